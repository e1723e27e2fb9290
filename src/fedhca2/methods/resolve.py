"""From what a config says to a method: a name, and settings that replace its defaults."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from fedhca2 import aggregation, objectives
from fedhca2.aggregation import Aggregator
from fedhca2.config import Config, suggest
from fedhca2.errors import list_faults
from fedhca2.imports import FORMS, is_import_path, load
from fedhca2.methods.catalogue import METHODS
from fedhca2.methods.method import Method
from fedhca2.objectives import Objective

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
    parts: dict[str, Aggregator | None] = {key: getattr(method, key) for key in AGGREGATED}
    shared: dict[str, Config] = {key: part for key, part in parts.items() if part}
    learning = any(part.learns for part in parts.values() if part)
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
    module, base = (aggregation, Aggregator) if component in AGGREGATED else (objectives, Objective)
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
        raise ValueError(f"unknown method {name!r}. {suggest(name, METHODS)}; or {FORMS}")
    try:
        method: Method = load(name, "a Method", lambda value: isinstance(value, Method))
    except ValueError as error:
        raise ValueError(f"method {name!r}: {error}") from error
    return method
