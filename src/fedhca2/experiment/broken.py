"""Images and labels that cannot be read, left out where the experiment allows it."""

from collections.abc import Mapping, Sequence

from fedhca2.data.dataset import Dataset
from fedhca2.data.files import FileError
from fedhca2.errors import UserError
from fedhca2.experiment.experiment import Experiment
from fedhca2.experiment.shards import OpenData, Shard

Skipped = dict[str, list[str]]  # what is wrong with which files, by client


def without_broken(
    experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]
) -> tuple[dict[str, Shard], Skipped]:
    """Shards without samples that cannot be read; everything is read once, so only where `skip_broken` is set."""
    if not experiment.skip_broken:
        return dict(shards), {}
    left: dict[str, Shard] = {}
    skipped: Skipped = {}
    lines: list[str] = []
    for spec in experiment.specs:
        shard, faults = shards[spec.name], list[str]()
        train = _readable(data[spec.data].train.for_share(shard.dealt), shard.train, spec.tasks, faults)
        val = _readable(data[spec.data].val, shard.val, spec.tasks, faults)
        left[spec.name] = Shard(train, val, shard.dealt)
        if faults:
            skipped[spec.name] = faults
        if len(train) < experiment.training.batch_size or not val:
            lines.append(
                f"clients: {spec.name!r} should have {experiment.training.batch_size} training images and one to be "
                f"evaluated on, found {len(train)} and {len(val)} that can be read ({len(faults)} cannot)"
            )
    if lines:
        raise UserError(lines)
    return left, skipped


def _readable(data: Dataset, indices: Sequence[int], tasks: Sequence[str], faults: list[str]) -> list[int]:
    """The indices of samples that can be read; what is wrong with others is noted."""
    good = []
    for index in indices:
        try:
            data.load(index, tasks)
            good.append(index)
        except FileError as error:
            faults.append(str(error))
    return good
