"""Building an experiment's clients: the one place that wires parts together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from fedhca2.clients import Client, DeviceSlot, LocalData, StepKind
from fedhca2.data.batches import Batches
from fedhca2.data.dataset import Dataset
from fedhca2.errors import UserError
from fedhca2.experiment.clients import ClientSpec
from fedhca2.experiment.experiment import Experiment
from fedhca2.experiment.shards import OpenData, Shard
from fedhca2.models import MultiTaskModel, build_model
from fedhca2.models.own import check_parts
from fedhca2.tasks import TASKS, LabelSpace

# Compiling pays off from this number of training pixels: it halves the time of a step, and takes a minute.
WORTH_COMPILING = 2e10


def build_clients(
    experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard], place: DeviceSlot
) -> list[Client]:
    """Build all clients of an experiment at one device slot."""
    return [build_client(experiment, spec, data[spec.data], shards[spec.name], place) for spec in experiment.specs]


def step_kind(experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]) -> StepKind:
    """Choose how an experiment's clients take their steps on a GPU."""
    if experiment.training.step != "auto":
        return experiment.training.step
    pixels = sum(
        prod(data[spec.data].train.size) * len(shards[spec.name].train) * spec.epochs * experiment.rounds
        for spec in experiment.specs
    )
    return "compiled" if pixels >= WORTH_COMPILING else "captured"


def build_client(
    experiment: Experiment, spec: ClientSpec, data: OpenData, shard: Shard, device_slot: DeviceSlot
) -> Client:
    """Build one client with its own images, decoders and heads."""
    training, method = experiment.training, experiment.resolved_method
    model = build_client_model(experiment, spec, data.train.labels, data.train.size)
    shape = data.train.size if experiment.data[spec.data].are_arrays else (3, *data.train.size)
    _try_model(experiment, spec, model, data.train.labels, shape)

    def batches(split: Dataset, indices: Sequence[int]) -> Batches:
        return Batches(
            split,
            indices,
            spec.tasks,
            batch_size=training.batch_size,
            workers=training.workers,
            resize=experiment.data[spec.data].resize,
        )

    local = LocalData(
        dataset=spec.data,
        train=batches(data.train.for_share(shard.dealt), shard.train),
        val=batches(data.val, shard.val),
        rounds=experiment.rounds,
        epochs=spec.epochs,
        seed=experiment.seed,
        metrics=experiment.metrics,
        looked_at=batches(data.val, experiment.diagnostics.spread(shard.val)) if experiment.diagnostics else None,
    )
    return Client(
        spec.name,
        model,
        local,
        training,
        objective=method.local,
        batch_norm=method.batch_norm,
        privacy=experiment.privacy,
        others_noise=experiment.guard.noise,
        device_slot=device_slot,
    )


def build_client_model(
    experiment: Experiment, spec: ClientSpec, labels: Mapping[str, LabelSpace], size: tuple[int, int]
) -> MultiTaskModel:
    """Build a client's model for these labels and images."""
    with _model_faults(experiment, spec):
        return build_model(
            spec.model,
            _outputs(spec, labels),
            size,
            seed=experiment.seed,
            client=spec.name,
            frozen=experiment.resolved_method.local.frozen,
        )


def _try_model(
    experiment: Experiment,
    spec: ClientSpec,
    model: MultiTaskModel,
    labels: Mapping[str, LabelSpace],
    shape: Sequence[int],
) -> None:
    """Raise UserError if a model does not work on inputs of this shape."""
    with _model_faults(experiment, spec):
        check_parts(model, spec.model, shape, _outputs(spec, labels))


def _outputs(spec: ClientSpec, labels: Mapping[str, LabelSpace]) -> dict[str, int]:
    """The channels of a client's tasks."""
    return {task: TASKS[task].channels_for(labels[task]) for task in spec.tasks}


@contextmanager
def _model_faults(experiment: Experiment, spec: ClientSpec) -> Iterator[None]:
    """Report what is wrong with a client's model, and where it comes from."""
    try:
        yield
    except (ValueError, RuntimeError, KeyError, AssertionError) as error:
        whose = "model" if spec.model == experiment.model else f"clients: the model of {spec.name!r}"
        raise UserError([f"{whose}: cannot be built: {error}"]) from error
