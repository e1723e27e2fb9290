"""Building an experiment's clients: the one place that wires parts together."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod

from torch import Tensor

from fedhca2.clients import Client, ClientState, DeviceSlot, LocalData, StepKind
from fedhca2.clients.evaluation import standardise
from fedhca2.clients.exchange import row_lengths
from fedhca2.data.batches import Batches
from fedhca2.data.dataset import Dataset, input_shape
from fedhca2.errors import UserError
from fedhca2.experiment.clients import ClientSpec
from fedhca2.experiment.experiment import Experiment
from fedhca2.experiment.shards import OpenData, Shard
from fedhca2.messages import Profile
from fedhca2.models import MultiTaskModel, common_model, draw_own_parts, fingerprint
from fedhca2.models.own import check_parts
from fedhca2.objectives import Longer
from fedhca2.params import Layout, Slot, copy_packed, copy_values, layouts
from fedhca2.tasks import LabelSpace
from fedhca2.tasks.task import class_digests


def step_kind(experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]) -> StepKind:
    """Choose how an experiment's clients take their steps on a GPU."""
    if experiment.training.step != "auto":
        return experiment.training.step
    steps = steps_in_round(experiment, shards)
    pixels = sum(
        prod(data[spec.data].train.size) * steps[spec.name] * experiment.training.batch_size * experiment.rounds
        for spec in experiment.specs
    )
    return "compiled" if pixels >= 2e10 else "captured"  # compiling takes a minute, and halves the time of a step


def steps_in_round(experiment: Experiment, shards: Mapping[str, Shard]) -> dict[str, int]:
    """The steps that each client's model takes in a round."""
    size = experiment.training.batch_size
    steps = {spec.name: spec.steps_in_round(len(shards[spec.name].train) // size) for spec in experiment.specs}
    if isinstance(experiment.resolved_method.local, Longer):
        return dict.fromkeys(steps, sum(steps.values()))
    return steps


@dataclass(frozen=True)
class _Common:
    """What clients with the same model, data set and tasks have in common before each draws its decoders and heads."""

    model: MultiTaskModel
    layouts: Mapping[Slot, Layout]
    backbone: str
    evaluated: dict[tuple[int, ...], Batches] = field(default_factory=dict)  # by the images that clients evaluate on


@dataclass(eq=False)
class ClientPlan:
    """A client that is built when it is needed: from a model that its kind has in common, since copying is quick."""

    experiment: Experiment
    spec: ClientSpec
    data: OpenData
    shard: Shard
    device_slot: DeviceSlot
    common: _Common
    steps: int
    first: Mapping[Slot, float] | None = None  # the lengths of its first model's rows, once that was drawn
    _own_values: Mapping[str, Tensor] | None = None  # its first decoders and heads, from drawing to building

    @cached_property
    def profile(self) -> Profile:
        """What the client tells the server about itself."""
        spec, common, classes = self.spec, self.common, class_digests(self.spec.tasks, self.data.train.labels)
        images = len(self.shard.train)
        return Profile(spec.name, spec.data, spec.tasks, images, common.layouts, common.backbone, classes)

    def draw(self) -> None:
        """Draw the decoders and heads that the client starts with. Nobody may draw or build others meanwhile."""
        model, method = self.common.model, self.experiment.resolved_method
        parts = method.local.frozen.union(self.spec.model.common_start)
        draw_own_parts(model, seed=self.experiment.seed, client=self.spec.name, common=parts)
        own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encoder.")}
        self._own_values = dict(zip(own, copy_packed(list(own.values())), strict=True))
        self.first = row_lengths(model)

    def build(self, state: ClientState | None = None) -> Client:
        """Build the client as it starts, or in a saved state; raises ValueError if that is another's.

        Draws if that was not just done; for a saved state only if it never was.
        """
        if self.first is None or (state is None and self._own_values is None):
            self.draw()
        experiment, method, model = self.experiment, self.experiment.resolved_method, deepcopy(self.common.model)
        own, self._own_values = self._own_values or {}, None
        if state is None:
            values = model.state_dict(keep_vars=True)
            copy_values([values[name] for name in own], list(own.values()))
            standardise(model, self._local_data.train)
        client = Client(
            self.profile,
            model,
            self._local_data,
            experiment.training,
            objective=method.local,
            batch_norm=method.batch_norm,
            privacy=experiment.privacy,
            others_noise=experiment.guard.noise,
            first=self.first or {},
            device_slot=self.device_slot,
        )
        if state is not None:
            client.restore(state)
        return client

    @cached_property
    def _local_data(self) -> LocalData:
        """The client's images, made once: those that stay on a GPU are found again, also by others of its kind."""
        experiment, data, shard, plan = self.experiment, self.data, self.shard, self.experiment.diagnostics
        return LocalData(
            train=self._batches(data.train.for_share(shard.dealt), shard.train),
            test=self._batches(data.val, shard.test) if shard.test else None,
            selects=experiment.select == "best",
            val=self.common.evaluated.setdefault(tuple(shard.val), self._batches(data.val, shard.val)),
            rounds=experiment.rounds,
            steps=self.steps,
            stretch=Fraction(self.steps, self.spec.steps_in_round(len(shard.train) // experiment.training.batch_size)),
            seed=experiment.seed,
            metrics=experiment.metrics,
            some_val=self._batches(data.val, plan.spread(shard.val)) if plan else None,
        )

    def _batches(self, split: Dataset, indices: Sequence[int]) -> Batches:
        training, resize = self.experiment.training, self.experiment.data[self.spec.data].resize
        loading = {"batch_size": training.batch_size, "workers": training.workers}
        return Batches(split, indices, self.spec.tasks, **loading, resize=resize, task_set=self.experiment.task_set)


def plan_clients(
    experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard], device_slot: DeviceSlot
) -> list[ClientPlan]:
    """Plan all clients of an experiment at one device slot; raises UserError if a model cannot be built."""
    by_kind: dict[tuple[str, str, tuple[str, ...]], _Common] = {}
    plans, steps = [], steps_in_round(experiment, shards)
    for spec in experiment.specs:
        opened, shard, kind = data[spec.data], shards[spec.name], (spec.model.model_dump_json(), spec.data, spec.tasks)
        if kind not in by_kind:
            train = opened.train
            model = common_client_model(experiment, spec, train.labels, train.size, input_shape(train))
            by_kind[kind] = _Common(model, layouts(model), fingerprint(model))
        plans.append(ClientPlan(experiment, spec, opened, shard, device_slot, by_kind[kind], steps[spec.name]))
    return plans


def common_client_model(
    experiment: Experiment,
    spec: ClientSpec,
    labels: Mapping[str, LabelSpace],
    size: tuple[int, int],
    shape: Sequence[int] | None = None,
) -> MultiTaskModel:
    """The model that clients of one kind have in common, for these labels and images.

    Raises UserError if it cannot be built, or does not work on inputs of this shape.
    """
    channels = {task: experiment.task_set[task].channels_for(labels[task]) for task in spec.tasks}
    try:
        model = common_model(spec.model, channels, size, seed=experiment.seed, tasks=experiment.task_set)
        if experiment.resolved_method.norms == "local":
            model.keep_norms()
        if shape is not None:
            check_parts(model, spec.model, shape, channels)
    except (ValueError, RuntimeError, KeyError, AssertionError) as error:
        where = "model" if spec.model == experiment.model else f"clients: the model of {spec.name!r}"
        raise UserError(where, f"cannot be built: {error}") from error
    return model
