"""The catalogue of methods, one value each, and what a config makes of them: a name, and settings for its defaults."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from fedhca2 import aggregation as agg
from fedhca2 import objectives as obj
from fedhca2.config import Config, suggest
from fedhca2.errors import list_faults
from fedhca2.imports import FORMS, is_import_path, load
from fedhca2.methods.method import Method

METHODS: dict[str, Method] = {
    "local": Method(reference="every client on its own"),
    "alone_longer": Method(local=obj.Longer(), reference="every client on its own, with the steps of all"),
    "pooled": Method(local=obj.Pooled(), reference="the ceiling: docs/methods.md"),
    "fedavg": Method(encoder=agg.Mean(), decoder=agg.Mean(), reference="McMahan et al., AISTATS 2017"),
    "fedprox": Method(encoder=agg.Mean(), decoder=agg.Mean(), local=obj.Proximal(), reference="Li et al., MLSys 2020"),
    "fedper": Method(encoder=agg.Mean(), reference="Arivazhagan et al., arXiv:1912.00818"),
    "fedrep": Method(encoder=agg.Mean(), local=obj.HeadsFirst(), reference="Collins et al., ICML 2021"),
    "ditto": Method(encoder=agg.Mean(), decoder=agg.Mean(), local=obj.PersonalCopy(), reference="Li et al., ICML 2021"),
    "fedamp": Method(
        encoder=agg.Attentive(), decoder=agg.Attentive(), local=obj.Attracted(), reference="Huang et al., AAAI 2021"
    ),
    "fedbabu": Method(encoder=agg.Mean(), local=obj.Frozen(), reference="Oh et al., ICLR 2022"),
    "fedsta": Method(encoder=agg.Mean(), reference="Park et al., NeurIPS 2021"),
    "matfl": Method(encoder=agg.Clustered(), reference="Cai et al., CVPRW 2023, released code"),
    "matfl_voting": Method(encoder=agg.Voting(), reference="Cai et al., CVPRW 2023"),
    "single_task_fl": Method(
        encoder=agg.GroupMean(), decoder=agg.GroupMean(), reference="baseline of Cai et al., CVPRW 2023"
    ),
    "fedpull": Method(encoder=agg.Pull(), decoder=agg.GroupMean(), reference="ours: docs/methods.md"),
    "fedhca2": Method(encoder=agg.ConflictAverse(), decoder=agg.CrossAttention(), reference="Lu et al., CVPR 2024"),
    "colnet": Method(
        encoder=agg.ConflictAverse(alpha=1, groups=True, across="groups"),
        weights=agg.HyperWeights(learn=False),
        reference="Feng et al., arXiv:2501.10347",
    ),
    "cagrad": Method(encoder=agg.ConflictAverse(alpha=None), reference="Liu et al., NeurIPS 2021"),
    "mgda": Method(encoder=agg.Weighted(weighting="mgda"), reference="Désidéri, C. R. Math. 350, 2012"),
    "pcgrad": Method(encoder=agg.Weighted(weighting="pcgrad"), reference="Yu et al., NeurIPS 2020"),
    "upgrad": Method(encoder=agg.Weighted(weighting="upgrad"), reference="Quinton and Rey, arXiv:2406.16232"),
    "dualproj": Method(encoder=agg.Weighted(weighting="dualproj"), reference="Lopez-Paz and Ranzato, NeurIPS 2017"),
    "imtl_g": Method(encoder=agg.Weighted(weighting="imtl_g"), reference="Liu et al., ICLR 2021"),
    "aligned_mtl": Method(encoder=agg.Weighted(weighting="aligned_mtl"), reference="Senushkin et al., CVPR 2023"),
    "nash_mtl": Method(encoder=agg.Weighted(weighting="nash_mtl"), reference="Navon et al., ICML 2022"),
    "fairgrad": Method(encoder=agg.Weighted(weighting="fairgrad"), reference="Ban and Ji, ICML 2024"),
    "fedavg_ft": Method(
        encoder=agg.Mean(),
        decoder=agg.Mean(),
        local=obj.Objective(final_epochs=5),
        reference="Cheng et al., arXiv:2108.07313",
    ),
    "fedper_ft": Method(
        encoder=agg.Mean(), local=obj.Objective(final_epochs=5), reference="Cheng et al., arXiv:2108.07313"
    ),
    "fedbn": Method(encoder=agg.Mean(), decoder=agg.Mean(), norms="local", reference="Li et al., ICLR 2021"),
    "fednova": Method(encoder=agg.StepMean(), reference="Wang et al., NeurIPS 2020"),
    "fedexp": Method(encoder=agg.Extrapolated(), reference="Jhunjhunwala et al., ICLR 2023"),
    "model_stock": Method(encoder=agg.Stock(), reference="Jang et al., ECCV 2024"),
    "pfedgraph": Method(
        encoder=agg.Graph(), decoder=agg.Graph(), local=obj.Proximal(), reference="Ye et al., ICML 2023"
    ),
    "scaffold": Method(encoder=agg.StepMean(), local=obj.ControlVariate(), reference="Karimireddy et al., ICML 2020"),
    "feddyn": Method(encoder=agg.Weighted(), local=obj.Dynamic(), reference="Acar et al., ICLR 2021"),
    "krum": Method(encoder=agg.Robust(rule="krum"), reference="Blanchard et al., NeurIPS 2017"),
    "multi_krum": Method(encoder=agg.Robust(rule="krum", chosen=None), reference="Blanchard et al., NeurIPS 2017"),
    "geometric_median": Method(encoder=agg.Robust(), reference="Pillutla et al., IEEE TSP 70, 2022"),
    "norm_clipping": Method(encoder=agg.Robust(rule="clipped_mean"), reference="Sun et al., arXiv:1911.07963"),
    "coordinate_median": Method(encoder=agg.TrimmedMean(hostile=None), reference="Yin et al., ICML 2018"),
    "trimmed_mean": Method(encoder=agg.TrimmedMean(), reference="Yin et al., ICML 2018"),
    "ties": Method(encoder=agg.TiesMerging(), reference="Yadav et al., NeurIPS 2023"),
    "emr": Method(encoder=agg.EmrMerging(), reference="Huang et al., NeurIPS 2024"),
    "sign_agreement": Method(encoder=agg.SignAgreement(), reference="Parascandolo et al., ICLR 2021"),
    "fedavgm": Method(
        encoder=agg.ServerMomentum(), decoder=agg.ServerMomentum(), reference="Hsu et al., arXiv:1909.06335"
    ),
    "fedadam": Method(encoder=agg.ServerAdam(), decoder=agg.ServerAdam(), reference="Reddi et al., ICLR 2021"),
    "fedyogi": Method(
        encoder=agg.ServerAdam(rule="yogi"), decoder=agg.ServerAdam(rule="yogi"), reference="Reddi et al., ICLR 2021"
    ),
    "fedadagrad": Method(
        encoder=agg.ServerAdam(rule="adagrad"),
        decoder=agg.ServerAdam(rule="adagrad"),
        reference="Reddi et al., ICLR 2021",
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
    method = METHODS[name] if name in METHODS else imported(name)
    settings = _with_new_names(settings or {})
    nested = {key: settings.pop(key) for key in COMPONENTS if key in settings}
    parts: dict[str, Config | None] = {key: getattr(method, key) for key in COMPONENTS}
    for key, value in nested.items():
        parts[key] = _component(name, key, parts[key], value)
    own = {key: settings.pop(key) for key in OWN if key in settings}
    for key, value in settings.items():
        _set_everywhere(name, parts, key, value, nested)
    return _validated(Method, name, {key: getattr(method, key) for key in OWN} | own | parts)


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


def _set_everywhere(
    name: str, parts: dict[str, Config | None], key: str, value: object, nested: Mapping[str, Any]
) -> None:
    """Set a field in every component that has it, except components that set it themselves."""
    active = components_of(Method.model_validate(parts))
    holders = [part for part, held in active.items() if key in type(held).model_fields and key != "kind"]
    if not holders:
        fields = {field for held in active.values() for field in type(held).model_fields} - {"kind"}
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
        return _validated(type(current), f"{name}: {key}", {**current.model_dump(), **value})
    kinds = kinds_of(key)
    if not isinstance(kind, str) or kind not in kinds:
        found = "none" if kind is None else repr(kind)
        raise ValueError(f"{name}: {key}.kind: expected a known kind, got {found}. {suggest(str(kind), kinds)}")
    return _validated(kinds[kind], f"{name}: {key}", value)


def kinds_of(component: str) -> dict[str, type[Config]]:
    """What a component of a method may be, by kind: an aggregator for a part, an objective for `local`.

    >>> sorted(kinds_of("local"))[:3]
    ['attracted', 'control_variate', 'dynamic']
    """
    module, base = (agg, agg.Aggregator) if component in AGGREGATED else (obj, obj.Objective)
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)]
    return {each.model_fields["kind"].default: each for each in classes if each.model_fields["kind"].default}


def _validated(cls: type[C], place: str, values: Mapping[str, Any]) -> C:
    """Validate the values at this place, or raise an error of one line."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise ValueError(str(list_faults(error, place)[0])) from None


def imported(name: str) -> Method:
    """Import the method that a path names."""
    if not is_import_path(name):
        raise ValueError(f"expected a method, got {name!r}. {suggest(name, METHODS)}; or {FORMS}")
    try:
        method: Method = load(name, "a Method", lambda value: isinstance(value, Method))
    except ValueError as error:
        raise ValueError(f"method {name!r}: {error}") from error
    return method
