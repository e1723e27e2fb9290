"""Methods as values, how a config names them, and everything needed to write your own."""

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from fedhca2 import objectives
from fedhca2.aggregation.aggregator import Aggregator, Blend, Combined, Mixing
from fedhca2.aggregation.combining import Combiner, EmrMerging, SignAgreement, TiesMerging, TrimmedMean
from fedhca2.aggregation.common_update import CommonUpdate, Extrapolated, Robust
from fedhca2.aggregation.fedhca2 import ConflictAverse, CrossAttention, HyperWeights
from fedhca2.aggregation.means import (
    Attentive,
    Clustered,
    Graph,
    GroupMean,
    Mean,
    Pull,
    ServerAdam,
    ServerMomentum,
    StepMean,
    Stock,
    Voting,
)
from fedhca2.aggregation.rows import Measure, Member, Rows
from fedhca2.aggregation.weightings import Weighted
from fedhca2.config import Config, suggest
from fedhca2.errors import list_faults
from fedhca2.imports import FORMS, is_import_path, load
from fedhca2.messages import BatchNorm, Delivery, Kind
from fedhca2.objectives import (
    Attracted,
    ControlVariate,
    Dynamic,
    Frozen,
    HeadsFirst,
    Kept,
    Longer,
    Objective,
    PersonalCopy,
    Pooled,
    Proximal,
)
from fedhca2.params import STATISTICS, Layout, Part

__all__ = [
    "METHODS",
    "Aggregator",
    "Attentive",
    "Attracted",
    "Blend",
    "Clustered",
    "Combined",
    "Combiner",
    "CommonUpdate",
    "ConflictAverse",
    "ControlVariate",
    "CrossAttention",
    "Delivery",
    "Dynamic",
    "EmrMerging",
    "Extrapolated",
    "Frozen",
    "Graph",
    "GroupMean",
    "HeadsFirst",
    "HyperWeights",
    "Kept",
    "Kind",
    "Layout",
    "Mean",
    "Measure",
    "Member",
    "Method",
    "Mixing",
    "Objective",
    "PersonalCopy",
    "Proximal",
    "Pull",
    "Robust",
    "Rows",
    "ServerAdam",
    "ServerMomentum",
    "SignAgreement",
    "StepMean",
    "Stock",
    "TiesMerging",
    "TrimmedMean",
    "Voting",
    "Weighted",
    "components_of",
    "resolve",
    "settings_of",
]


class Method(Config):
    """A federated method as a value. A part without an aggregator stays with its client.

    >>> from fedhca2.methods import Mean
    >>> Method(encoder=Mean()).uploads(round=0)  # what the built-in method fedper does
    {'encoder': 'parameters'}

    :param encoder: the aggregator that mixes the clients' encoders.
    :param decoder: the same for decoders, of all tasks together.
    :param head: the same for heads, of equal tasks and classes.
    :param local: what the method adds to local training.
    :param weights: how learned weights, such as FedHCA²'s α and β, are learned.
    :param reference: the paper, for `fedhca2 methods`.
    """

    encoder: SerializeAsAny[Aggregator] | None = None
    decoder: SerializeAsAny[Aggregator] | None = None
    head: SerializeAsAny[Aggregator] | None = None
    local: SerializeAsAny[Objective] = Objective()
    weights: HyperWeights = HyperWeights()
    batch_norm: BatchNorm = Field(
        "local", description="running statistics stay local, are mixed like parameters, or are measured again"
    )
    norms: Literal["shared", "local"] = Field(
        "shared", description="parameters of normalisation layers are aggregated with their part, or stay local"
    )
    reference: str = ""
    rounds: int | None = Field(None, ge=1, exclude=True, description="rounds of the run, if known")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Method":
        if not self.local.replaces and self.batch_norm != "local":
            why = "since clients keep their own parameters"
            raise ValueError(f"batch_norm: expected 'local', {why}, got {self.batch_norm!r}")
        if self.norms == "local" and self.batch_norm == "average":
            raise ValueError("batch_norm: expected 'local' or 'recalibrate', since norms stay local, got 'average'")
        if self.local.keeps and any(aggregator.sends != "updates" for aggregator in self.all_aggregators.values()):
            raise ValueError(f"local: {self.local.kind}: expected aggregators of updates, got one of parameters")
        if isinstance(self.local, HeadsFirst) and (self.decoder or self.head):
            raise ValueError("decoder and head: expected null, since they train before the encoder, got an aggregator")
        return self

    @property
    def all_aggregators(self) -> Mapping[Part, Aggregator]:
        """The aggregators of all parts that have one."""
        parts: dict[Part, Aggregator | None] = {"encoder": self.encoder, "decoder": self.decoder, "head": self.head}
        return {part: aggregator for part, aggregator in parts.items() if aggregator}

    def over(self, rounds: int) -> Self:
        """The same method in a run of this many rounds: some aggregators change along the way."""
        return self.model_copy(update={"rounds": rounds})

    def aggregators(self, round: int) -> Mapping[Part, Aggregator]:
        """The aggregators of this round (counted from 0), in their state at that point of the run."""
        done = min(1.0, round / self.rounds) if self.rounds else 0.0
        return {
            part: aggregator.at(done)
            for part, aggregator in self.all_aggregators.items()
            if (round + 1) % aggregator.every == 0
        }

    def uploads(self, round: int) -> Mapping[Part, Kind]:
        """The parts that every client sends after training in this round."""
        sent: dict[Part, Kind] = {part: aggregator.sends for part, aggregator in self.aggregators(round).items()}
        if self.batch_norm == "average":
            sent |= {norms: "parameters" for part, norms in STATISTICS.items() if part in sent}
        return sent


METHODS: dict[str, Method] = {
    "local": Method(reference="every client on its own"),
    "alone_longer": Method(local=Longer(), reference="every client on its own, with the steps of all"),
    "pooled": Method(local=Pooled(), reference="the ceiling: docs/methods.md"),
    "fedavg": Method(encoder=Mean(), decoder=Mean(), reference="McMahan et al., AISTATS 2017"),
    "fedprox": Method(encoder=Mean(), decoder=Mean(), local=Proximal(), reference="Li et al., MLSys 2020"),
    "fedper": Method(encoder=Mean(), reference="Arivazhagan et al., arXiv:1912.00818"),
    "fedrep": Method(encoder=Mean(), local=HeadsFirst(), reference="Collins et al., ICML 2021"),
    "ditto": Method(encoder=Mean(), decoder=Mean(), local=PersonalCopy(), reference="Li et al., ICML 2021"),
    "fedamp": Method(encoder=Attentive(), decoder=Attentive(), local=Attracted(), reference="Huang et al., AAAI 2021"),
    "fedbabu": Method(encoder=Mean(), local=Frozen(), reference="Oh et al., ICLR 2022"),
    "fedsta": Method(encoder=Mean(), reference="Park et al., NeurIPS 2021"),
    "matfl": Method(encoder=Clustered(), reference="Cai et al., CVPRW 2023, released code"),
    "matfl_voting": Method(encoder=Voting(), reference="Cai et al., CVPRW 2023"),
    "single_task_fl": Method(encoder=GroupMean(), decoder=GroupMean(), reference="baseline of Cai et al., CVPRW 2023"),
    "fedpull": Method(encoder=Pull(), decoder=GroupMean(), reference="ours: docs/methods.md"),
    "fedhca2": Method(encoder=ConflictAverse(), decoder=CrossAttention(), reference="Lu et al., CVPR 2024"),
    "colnet": Method(
        encoder=ConflictAverse(alpha=1, groups=True, across="groups"),
        weights=HyperWeights(learn=False),
        reference="Feng et al., arXiv:2501.10347",
    ),
    "cagrad": Method(encoder=ConflictAverse(alpha=None), reference="Liu et al., NeurIPS 2021"),
    "mgda": Method(encoder=Weighted(weighting="mgda"), reference="Désidéri, C. R. Math. 350, 2012"),
    "pcgrad": Method(encoder=Weighted(weighting="pcgrad"), reference="Yu et al., NeurIPS 2020"),
    "upgrad": Method(encoder=Weighted(weighting="upgrad"), reference="Quinton and Rey, arXiv:2406.16232"),
    "dualproj": Method(encoder=Weighted(weighting="dualproj"), reference="Lopez-Paz and Ranzato, NeurIPS 2017"),
    "imtl_g": Method(encoder=Weighted(weighting="imtl_g"), reference="Liu et al., ICLR 2021"),
    "aligned_mtl": Method(encoder=Weighted(weighting="aligned_mtl"), reference="Senushkin et al., CVPR 2023"),
    "nash_mtl": Method(encoder=Weighted(weighting="nash_mtl"), reference="Navon et al., ICML 2022"),
    "fairgrad": Method(encoder=Weighted(weighting="fairgrad"), reference="Ban and Ji, ICML 2024"),
    "fedavg_ft": Method(
        encoder=Mean(), decoder=Mean(), local=Objective(final_epochs=5), reference="Cheng et al., arXiv:2108.07313"
    ),
    "fedper_ft": Method(encoder=Mean(), local=Objective(final_epochs=5), reference="Cheng et al., arXiv:2108.07313"),
    "fedbn": Method(encoder=Mean(), decoder=Mean(), norms="local", reference="Li et al., ICLR 2021"),
    "fednova": Method(encoder=StepMean(), reference="Wang et al., NeurIPS 2020"),
    "fedexp": Method(encoder=Extrapolated(), reference="Jhunjhunwala et al., ICLR 2023"),
    "model_stock": Method(encoder=Stock(), reference="Jang et al., ECCV 2024"),
    "pfedgraph": Method(encoder=Graph(), decoder=Graph(), local=Proximal(), reference="Ye et al., ICML 2023"),
    "scaffold": Method(encoder=StepMean(), local=ControlVariate(), reference="Karimireddy et al., ICML 2020"),
    "feddyn": Method(encoder=Weighted(), local=Dynamic(), reference="Acar et al., ICLR 2021"),
    "krum": Method(encoder=Robust(rule="krum"), reference="Blanchard et al., NeurIPS 2017"),
    "multi_krum": Method(encoder=Robust(rule="krum", chosen=None), reference="Blanchard et al., NeurIPS 2017"),
    "geometric_median": Method(encoder=Robust(), reference="Pillutla et al., IEEE TSP 70, 2022"),
    "norm_clipping": Method(encoder=Robust(rule="clipped_mean"), reference="Sun et al., arXiv:1911.07963"),
    "coordinate_median": Method(encoder=TrimmedMean(hostile=None), reference="Yin et al., ICML 2018"),
    "trimmed_mean": Method(encoder=TrimmedMean(), reference="Yin et al., ICML 2018"),
    "ties": Method(encoder=TiesMerging(), reference="Yadav et al., NeurIPS 2023"),
    "emr": Method(encoder=EmrMerging(), reference="Huang et al., NeurIPS 2024"),
    "sign_agreement": Method(encoder=SignAgreement(), reference="Parascandolo et al., ICLR 2021"),
    "fedavgm": Method(encoder=ServerMomentum(), decoder=ServerMomentum(), reference="Hsu et al., arXiv:1909.06335"),
    "fedadam": Method(encoder=ServerAdam(), decoder=ServerAdam(), reference="Reddi et al., ICLR 2021"),
    "fedyogi": Method(
        encoder=ServerAdam(rule="yogi"), decoder=ServerAdam(rule="yogi"), reference="Reddi et al., ICLR 2021"
    ),
    "fedadagrad": Method(
        encoder=ServerAdam(rule="adagrad"), decoder=ServerAdam(rule="adagrad"), reference="Reddi et al., ICLR 2021"
    ),
}

AGGREGATED = ("encoder", "decoder", "head")
COMPONENTS = (*AGGREGATED, "local", "weights")
NORMS = ("batch_norm", "norms")  # what every method may do with normalisation layers
OWN = (*NORMS, "reference")
RENAMED = {"fine_tune_epochs": "final_epochs"}  # settings of older configs and run folders

C = TypeVar("C", bound=Config)


def resolve(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """Look up a method by name, with these settings.

    A name is one of METHODS, or "package.module:NAME", or "path/to/file.py:NAME". A setting sets the field of that
    name in every component that has it; `encoder: {c: 0.2}` sets it in one component, `decoder: null` drops one, and
    `encoder: {kind: mean}` replaces one.

    >>> resolve("fedhca2", {"c": 0.2, "decoder": None}).encoder.c
    0.2
    """
    if name in METHODS:
        method = METHODS[name]
    elif not is_import_path(name):
        raise ValueError(f"expected a method, got {name!r}. {suggest(name, METHODS)}; or {FORMS}")
    else:
        try:
            method = load(name, "a Method", lambda value: isinstance(value, Method))
        except ValueError as error:
            raise ValueError(f"method {name!r}: {error}") from error
    settings = _with_new_names(settings or {})
    nested = {key: settings.pop(key) for key in COMPONENTS if key in settings}
    parts: dict[str, Config | None] = {key: getattr(method, key) for key in COMPONENTS}
    for key, value in nested.items():
        parts[key] = _component(name, key, parts[key], value)
    own = {key: settings.pop(key) for key in OWN if key in settings}
    for key, value in settings.items():
        _set_all(name, parts, key, value, nested)
    return _validate(Method, name, {key: getattr(method, key) for key in OWN} | own | parts)


def components_of(method: Method) -> dict[str, Config]:
    """The components that have an effect.

    >>> list(components_of(METHODS["fedprox"]))
    ['encoder', 'decoder', 'local']
    """
    shared: dict[str, Config] = {key: part for key in AGGREGATED if (part := getattr(method, key))}
    learning = any(aggregator.learns for aggregator in method.all_aggregators.values())
    return {**shared, "local": method.local} | ({"weights": method.weights} if learning else {})


def settings_of(method: Method) -> dict[str, Any]:
    """The settings that can be written beside the method's name without naming a component, and their values.

    >>> settings_of(METHODS["fedper"])
    {'by': 'clients', 'final_epochs': 0, 'batch_norm': 'local', 'norms': 'shared'}
    """
    settings: dict[str, Any] = {}
    for component in components_of(method).values():
        values = component.model_dump(exclude={"kind", "every"})
        settings |= {key: value for key, value in values.items() if key not in settings}
    return {**settings, "batch_norm": method.batch_norm, "norms": method.norms}


def _with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        RENAMED.get(key, key): _with_new_names(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
    }


def _set_all(name: str, parts: dict[str, Config | None], key: str, value: object, nested: Mapping[str, Any]) -> None:
    """Set a field in every component that has it, except components that set it themselves."""
    active = components_of(Method.model_validate(parts))
    holders = [part for part, component in active.items() if key in type(component).model_fields and key != "kind"]
    if not holders:
        fields = {field for component in active.values() for field in type(component).model_fields} - {"kind"}
        raise ValueError(f"{name}: unknown setting {key!r}. {suggest(key, [*COMPONENTS, *NORMS, *sorted(fields)])}")
    holders = [part for part in holders if not (isinstance(nested.get(part), Mapping) and key in nested[part])]
    if len({repr(getattr(parts[part], key)) for part in holders}) > 1:
        keys = " or ".join(f"{part}.{key}" for part in holders)
        raise ValueError(f"{name}: {key!r} is ambiguous: expected {keys}, got {key}: {value!r}")
    for part in holders:
        parts[part] = _component(name, part, parts[part], {key: value})


def _component(name: str, key: str, current: Config | None, value: object) -> Config | None:
    """A component with some fields set, or of another kind, or none."""
    if value is None and key in AGGREGATED:
        return None
    if isinstance(value, Config):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: {key}: expected settings by name, got {value!r}")
    kind = value.get("kind", getattr(current, "kind", None))
    if current is not None and kind == getattr(current, "kind", None):
        return _validate(type(current), f"{name}: {key}", {**current.model_dump(), **value})
    kinds = kinds_of(key)
    if not isinstance(kind, str) or kind not in kinds:
        actual = "none" if kind is None else repr(kind)
        raise ValueError(f"{name}: {key}.kind: expected a known kind, got {actual}. {suggest(str(kind), kinds)}")
    return _validate(kinds[kind], f"{name}: {key}", value)


def kinds_of(component: str) -> dict[str, type[Config]]:
    """What a component of a method may be, by kind: an aggregator for a part, an objective for `local`.

    >>> sorted(kinds_of("local"))[:3]
    ['attracted', 'control_variate', 'dynamic']
    """
    names, base = (globals(), Aggregator) if component in AGGREGATED else (vars(objectives), Objective)
    classes = [each for each in names.values() if isinstance(each, type) and issubclass(each, base)]
    return {each.model_fields["kind"].default: each for each in classes if each.model_fields["kind"].default}


def _validate(cls: type[C], where: str, values: Mapping[str, Any]) -> C:
    """Validate the values at this place, or raise an error of one line."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise ValueError(str(list_faults(error, where)[0])) from None
