"""Settings of checkpoints, the guard, participation, diagnostics and secure aggregation; and all of them in Python."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from fedhca2.clients import Privacy, Training
from fedhca2.config import Config
from fedhca2.data.config import DataConfig
from fedhca2.data.own import choose_by_split
from fedhca2.errors import Fault
from fedhca2.experiment.clients import ClientEntry
from fedhca2.live import Live, hand_over
from fedhca2.methods import Method
from fedhca2.models import ModelConfig
from fedhca2.models.config import PARTS
from fedhca2.params import Part
from fedhca2.seeds import derive
from fedhca2.tasks import Task


class CheckpointPlan(Config):
    """When the whole federation is saved to the run's folder."""

    every: int = Field(1, ge=0, description="rounds between checkpoints; 0: only when a run is interrupted")
    keep: int = Field(2, ge=1, description="number of latest checkpoints to keep")
    memory: float | None = Field(
        None,
        ge=0,
        description="GB of states to keep in memory beside those of clients at work; others wait in files; by "
        "default a quarter of the free memory",
    )


class GuardBounds(Config):
    """Bounds beyond which the server refuses well-formed replies."""

    reach: float = Field(
        1.0, ge=0, description="largest move of a row, as a share of the most its steps can move it; 0: no bound"
    )
    jump: float = Field(
        10.0, ge=0, description="largest move, as a multiple of the client's own recent largest move; 0: no bound"
    )
    noise: float = Field(
        0.0, ge=0, description="standard deviation of the noise that sites may add to each value on their own"
    )
    window: int = Field(8, ge=1, description="how many of a client's accepted rounds count as recent")
    images: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="most training images of a client, by name; others are believed to have up to twice the median",
    )


class LateReplies(Config):
    """A reply that misses its round joins a later one with less weight. The client gets its next order after that."""

    weight: float = Field(0.5, ge=0, description="a: a reply that is s rounds late counts (1 + s)^-a times")
    seconds: float | None = Field(
        None, gt=0, description="over Flower: a round ends after this time if it has a reply; by default its deadline"
    )
    delays: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, description="simulates slow clients: by how many rounds a client's replies are late"
    )

    def weigh(self, rounds: int) -> float:
        """How often a reply that is this many rounds late counts.

        >>> LateReplies(weight=0.5).weigh(3)
        0.5
        """
        return float((1 + rounds) ** -self.weight)


class Participation(Config):
    """Which clients take part in a round: a fraction of those that are available."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the available clients that take part in a round")
    availability: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, description="probability that a client is available; 1 by default"
    )
    late: LateReplies | None = Field(
        None, description="replies that miss their round count later; by default they are dropped"
    )

    def choose(self, clients: Iterable[str], round: int, seed: int) -> list[str]:
        """Choose the clients of one round, in their order; depends only on the arguments.

        >>> Participation(fraction=0.5).choose(["a", "b", "c", "d"], round=0, seed=0)
        ['a', 'd']
        """
        available = [
            client
            for client in clients
            if derive(seed, "availability", round, client) < self.availability.get(client, 1.0) * 2**63
        ]
        count = ceil(self.fraction * len(available) - 1e-9)
        chosen = set(sorted(available, key=lambda client: derive(seed, "participation", round, client))[:count])
        return [client for client in available if client in chosen]


class Diagnostics(Config):
    """Measures, in some rounds, what clients' updates do for each other. It changes nothing in the training."""

    every: int = Field(10, ge=1, description="rounds between measurements")
    clients: int | None = Field(
        None, ge=2, description="most clients whose pairs are measured, chosen by seed; by default all"
    )
    images: int | None = Field(
        None, ge=1, description="most validation images of a client, evenly spread; by default all"
    )

    def choose(self, clients: Iterable[str], seed: int) -> list[str]:
        """Choose the clients whose pairs are measured, sorted by name; as far as possible the same in every round.

        >>> Diagnostics(clients=2).choose(["d", "c", "b", "a"], seed=0)
        ['b', 'd']
        """
        ordered = sorted(clients, key=lambda client: derive(seed, "diagnostics", client))
        return sorted(ordered[: self.clients])

    def spread(self, images: Sequence[int]) -> Sequence[int]:
        """Choose the images to measure losses on.

        >>> Diagnostics(images=3).spread(range(9)), Diagnostics().spread([4, 5])
        ([0, 3, 6], [4, 5])
        """
        count = min(self.images or len(images), len(images))
        return [images[i * len(images) // count] for i in range(count)]


class SecureAggregation(Config):
    """The server only gets sums of rows."""

    clip: float = Field(
        8.0, ge=1e-6, le=1e6, description="largest value allowed in a row; a client whose row exceeds it sends nothing"
    )
    threshold: float = Field(0.6, gt=0.5, le=1, description="share of a round's clients needed to unmask anything")
    sketch: int = Field(
        0,
        ge=0,
        le=2**16,
        multiple_of=8,
        description="numbers of each update that are sent in the clear, for methods that compare updates",
    )
    seconds: float = Field(60.0, gt=0, description="time limit per message of a sum; slower clients are left out")

    def least(self, clients: int) -> int:
        """How many of this number of clients must stay to the end: always a majority.

        >>> [SecureAggregation().least(clients) for clients in (2, 3, 4, 6, 10)]
        [2, 2, 3, 4, 6]
        """
        return max(clients // 2 + 1, ceil(self.threshold * clients - 1e-9))

    def faults(self, method: Method, deviation: float) -> Iterator[Fault]:
        """Why a method, or noise of this deviation, cannot be combined with it."""
        farthest = 8  # standard deviations that noise practically never exceeds: one value in 10¹⁵ does
        if self.clip < farthest * deviation:
            expected = f"at least {farthest * deviation:g}, {farthest} standard deviations of the noise on each value"
            yield Fault("secure_aggregation.clip", f"expected {expected}, got {self.clip:g}")
        if method.local.in_one_place:
            yield Fault("secure_aggregation", "expected null: the method needs all data in one place")
        for part, aggregator in method.all_aggregators.items():
            if aggregator.reveals_rows:
                why = f"got {aggregator.kind}, {aggregator.reveals_rows}"
                yield Fault("secure_aggregation", f"expected null, mean or group_mean for method.{part}, {why}")
            elif aggregator.measure != "nothing" and not self.sketch:
                why = f"{aggregator.kind} for method.{part} needs inner products of rows"
                hint = "docs/secure-aggregation.md says what sketches reveal"
                yield Fault("secure_aggregation.sketch", f"expected a number such as 1024, since {why}; {hint}")
        if method.batch_norm == "average":
            why = "variances have no upper bound"
            yield Fault("secure_aggregation", f"does not work with method.batch_norm 'average': {why}")

    def sketched(self, method: Method) -> frozenset[Part]:
        """The parts whose sketches the server gets."""
        return frozenset(part for part, aggregator in method.all_aggregators.items() if aggregator.measure != "nothing")


Values = Mapping[str, Any]  # of a group of settings, as in a file


class GivenSettings(TypedDict, total=False):
    """The settings of an experiment as Python may give them: plain data, or objects."""

    name: str
    title: str
    label: str | None
    belongs_to: Sequence[str]
    seed: int
    rounds: int
    method: str | Values | Method
    methods: Mapping[str, Values] | None
    baseline: bool
    evaluate_every: int
    select: Literal["last", "best"]
    patience: int | None
    diagnostics: Diagnostics | Values | None
    devices: Sequence[str]
    model: ModelConfig | Values
    training: Training | Values
    metrics: Mapping[str, str]
    skip_broken: bool
    participation: Participation | Values
    privacy: Privacy | Values
    secure_aggregation: SecureAggregation | Values | None
    guard: GuardBounds | Values
    checkpoints: CheckpointPlan | Values
    tasks: Mapping[str, str | Values | Task]
    data: Mapping[str, Values | DataConfig | Callable[..., Any] | Sequence[Any]]
    clients: Sequence[Values | ClientEntry]


class Objects:
    """Puts import paths in place of classes, functions and other objects. They are valid as long as this is kept."""

    def __init__(self) -> None:
        self.live = list[Live]()

    def named(self, settings: Values) -> dict[str, Any]:
        """The settings of an experiment without objects."""
        plain = dict(settings)
        if "method" in plain:
            plain["method"] = self._kind(plain["method"], "method", key="name")
        for key, changed in (("data", self._data), ("tasks", self._kind)):
            if key in plain:
                plain[key] = self._each(plain[key], changed)
        if "model" in plain:
            plain["model"] = self._model(plain["model"])
        if isinstance(plain.get("clients"), list | tuple):
            plain["clients"] = [
                self._each(entry, lambda part, key: self._model(part) if key == "model" else part)
                for entry in plain["clients"]
            ]
        return plain

    def _data(self, value: Any, name: str) -> Any:
        plain = self._kind(value, name)
        return {"kind": plain} if isinstance(plain, str) and plain is not value else plain

    def _model(self, parts: Any) -> Any:
        return self._each(parts, lambda part, key: self._kind(part, key) if key in PARTS else part)

    def _kind(self, value: Any, name: str, key: str = "kind") -> Any:
        """The import path of an object, or plain data with one under this key."""
        if isinstance(value, Mapping):
            return {**value, key: self._kind(value[key], name)} if key in value else value
        is_config = isinstance(value, Config) and not isinstance(value, Method)
        if value is None or isinstance(value, str | int | float | list) or is_config:
            return value
        is_pair = isinstance(value, tuple) and len(value) == 2
        self.live.append(hand_over(choose_by_split(name, *value) if is_pair else value, name))
        return self.live[-1].path

    @staticmethod
    def _each(values: Any, changed: Callable[[Any, str], Any]) -> Any:
        return {key: changed(one, key) for key, one in values.items()} if isinstance(values, Mapping) else values
