"""Writes the JSON Schema of an experiment's file, with which editors check it while it is written.

python docs/site/schema.py     writes src/fedhca2/configs/schema.json again, after a change of settings

The schema knows less than `Experiment.parse`: not which data sets have labels for which tasks, and nothing about a
class of a user's own, which may have any setting. A file that extends another may leave out what the other has.
"""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from fedhca2.config import Config
from fedhca2.data import KINDS
from fedhca2.experiment.experiment import Experiment
from fedhca2.methods import AGGREGATED, COMPONENTS, METHODS, OWN, HyperWeights, Method, components_of, kinds_of
from fedhca2.models.config import DecoderConfig, EncoderConfig, HeadConfig, InteractionConfig, Part
from fedhca2.tasks import TASKS

Schema = dict[str, Any]
IMPORT_PATH = {"type": "string", "pattern": ":"}
FILE = Path(__file__).parents[2] / "src" / "fedhca2" / "configs" / "schema.json"


def experiment_schema() -> Schema:
    """The schema, as plain data."""
    components = {each for key in ("encoder", "local") for each in kinds_of(key).values()}
    models: list[type[Config]] = [Experiment, *KINDS.values(), Method, HyperWeights]
    models += sorted(components, key=lambda each: each.__name__)
    places, whole = models_json_schema([(model, "validation") for model in models])
    names = {model: str(places[model, "validation"]["$ref"]).rpartition("/")[2] for model in models}
    held: dict[str, Schema] = _in_dialect(whole["$defs"])
    root = held.pop("Experiment")
    needed = {kind: held[names[model]].pop("required", []) for kind, model in KINDS.items()}
    _complete_data(held, names)
    _complete_models(held)
    held["DeclaredTask"].pop("required")
    held["Method"] = {"properties": {key: held["Method"]["properties"][key] for key in OWN}}
    held |= _methods(names)
    changed = {
        "method": _method(),
        "methods": {
            "type": ["object", "null"],
            "properties": {name: _ref(f"method {name}") for name in METHODS},
            "patternProperties": {":": {"type": "object"}},
            "additionalProperties": False,
        },
        "tasks": _by_name(_name_or_settings(list(TASKS), "DeclaredTask")),
        "data": _by_name(_by_kind({kind: names[model] for kind, model in KINDS.items()}, own=True)),
    }
    properties = root["properties"] | {key: _described(root["properties"][key]) | new for key, new in changed.items()}
    properties["extends"] = {"type": "string", "description": "the file or built-in experiment that this one changes"}
    known: Schema = {key: {} for model in KINDS.values() for key in model.model_fields}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",  # the dialect that all editors know
        "title": "An experiment of fedhca2",
        "description": _about(Experiment),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "if": {"required": ["extends"]},
        "then": {"properties": {"data": {"additionalProperties": _without_kind(known)}}},
        "else": {"required": ["data", "clients"], "properties": {"data": {"additionalProperties": _needed(needed)}}},
        "$defs": {name: schema for name, schema in sorted(held.items()) if name not in ("DataConfig", "Aggregator")},
    }


def _about(documented: Any) -> str:
    """A docstring without its examples and parameters."""
    return re.split(r"\n\n(?=>>>|:param)", inspect.getdoc(documented) or "")[0]


def _complete_data(held: Mapping[str, Schema], names: Mapping[type[Config], str]) -> None:
    """Let the kind of a data set, and that of its partition, say which settings they have."""
    for kind, model in KINDS.items():
        settings = held[names[model]]["properties"]
        divisions = [option["$ref"].rpartition("/")[2] for option in settings["partition"].pop("oneOf")]
        settings["partition"] |= _by_kind({held[name]["properties"]["kind"]["const"]: name for name in divisions})
        settings["kind"] = {"const": kind}
        held[names[model]]["description"] = _about(getattr(model, "made_by", model))


def _complete_models(held: Mapping[str, Schema]) -> None:
    """Let parts of models be named by their kind alone, and clients have models of their own."""
    parts: dict[str, type[Part]] = {
        "encoder": EncoderConfig,
        "decoder": DecoderConfig,
        "head": HeadConfig,
        "interaction": InteractionConfig,
    }
    model = held["ModelConfig"]["properties"]
    for key, part in parts.items():
        name = part.__name__
        held[name].pop("required", None)
        held[name]["properties"]["kind"] |= {"enum": list(part.built_in)}
        empty = key in ("head", "interaction")
        model[key] = _described(model[key]) | _name_or_settings(part.built_in, name, empty=empty)
    client = held["ClientEntry"]
    client["properties"]["model"] |= {"anyOf": [_ref("ModelConfig"), {"type": "null"}]}
    client["oneOf"] = [{"required": ["tasks"]}, {"required": ["split"]}]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _described(schema: Schema) -> Schema:
    return {"description": schema["description"]} if "description" in schema else {}


def _is(key: str, value: str) -> Schema:
    return {"properties": {key: {"const": value}}, "required": [key]}


def _by_kind(names: Mapping[str, str], *, own: bool = False) -> Schema:
    """Settings whose `kind` says which they are, by name; own: or are of a class of a user's own."""
    kind: Schema = {"enum": list(names)}
    choices = [{"if": _is("kind", each), "then": _ref(name)} for each, name in names.items()]
    return {
        "type": "object",
        "properties": {"kind": {"anyOf": [kind, IMPORT_PATH]} if own else kind},
        "allOf": choices,
    }


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _without_kind(known: Schema) -> Schema:
    """Settings of a kind that another file names."""
    return {"if": {"not": {"required": ["kind"]}}, "then": {"additionalProperties": False, "properties": known}}


def _needed(required: Mapping[str, list[str]]) -> Schema:
    """The settings that a data set needs: its kind, and those of its kind that have no default."""
    return {
        "required": ["kind"],
        "allOf": [{"if": _is("kind", kind), "then": {"required": keys}} for kind, keys in required.items() if keys],
    }


def _name_or_settings(known: Iterable[str], name: str, *, empty: bool = False) -> Schema:
    """A kind alone, or a mapping with settings: any for a class of a user's own, and known ones otherwise."""
    own = {"properties": {"kind": IMPORT_PATH}, "required": ["kind"]}
    return {
        "type": ["string", "object", *(["null"] if empty else [])],
        "if": {"type": "string"},
        "then": {"anyOf": [{"enum": list(known)}, IMPORT_PATH]},
        "else": {"if": {"type": "object", "not": own}, "then": _ref(name)},
    }


def _method() -> Schema:
    """A method's name, or a mapping with it and settings: any for a method of a user's own."""
    known = {"anyOf": [{"enum": list(METHODS)}, IMPORT_PATH]}
    choices = [{"if": _is("name", name), "then": _ref(f"method {name}")} for name in METHODS]
    unnamed = {"if": {"not": {"required": ["name"]}}, "then": _ref("method")}
    return {
        "type": ["string", "object"],
        "if": {"type": "string"},
        "then": known,
        "else": {"properties": {"name": known}, "allOf": [*choices, unnamed]},
    }


def _methods(names: Mapping[type[Config], str]) -> dict[str, Schema]:
    """The settings of every method, and of a method that a file does not name."""
    every = {key: _by_kind({kind: names[cls] for kind, cls in kinds_of(key).items()}) for key in ("encoder", "local")}
    found: dict[str, Schema] = {"part of a method": every["encoder"], "local of a method": every["local"]}
    everything: Schema = {}
    for name, method in METHODS.items():
        parts: dict[str, Config | None] = {key: getattr(method, key) for key in COMPONENTS}
        settings: Schema = {"name": {}} | {key: _component(key, part, names) for key, part in parts.items()}
        for part in components_of(method).values():
            fields = [field for field in type(part).model_fields if field != "kind"]
            settings |= {
                field: _ref(f"{names[type(part)]}/properties/{field}") for field in fields if field not in settings
            }
        settings |= {field: _ref(f"Method/properties/{field}") for field in OWN}
        found[f"method {name}"] = {"properties": settings, "additionalProperties": False}
        everything |= settings
    everything |= {key: {"type": ["object", "null"]} for key in COMPONENTS}
    return {**found, "method": {"properties": everything, "additionalProperties": False}}


def _component(key: str, current: Config | None, names: Mapping[type[Config], str]) -> Schema:
    """One component of a method: settings of its kind, or those of another with its `kind`, or for a part nothing."""
    if key == "weights":
        return _ref(names[HyperWeights])
    usual = _ref(names[type(current)]) if current is not None else {"required": ["kind"]}
    other = _ref("part of a method" if key in AGGREGATED else "local of a method")
    schema = {"if": {"required": ["kind"]}, "then": other, "else": usual}
    return {"anyOf": [schema, {"type": "null"}]} if key in AGGREGATED else schema


def _in_dialect(value: Any) -> Any:
    """The same schema without titles and in the older words of the dialect."""
    if isinstance(value, list):
        return [_in_dialect(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {  # a title that is no text is a setting of that name
        key: _in_dialect(item)
        for key, item in value.items()
        if key != "discriminator" and not (key == "title" and isinstance(item, str))
    }
    if "prefixItems" in found:
        found["items"] = found.pop("prefixItems")
    if "$ref" in found and len(found) > 1:
        found["allOf"] = [{"$ref": found.pop("$ref")}]
    return found


def schema_text() -> str:
    """The schema's file."""
    return _in_lines(experiment_schema(), levels=2) + "\n"


def _in_lines(values: Any, levels: int) -> str:
    """JSON with a line for each entry of the outer levels, so that a change of the schema shows where it is."""
    if not levels or not isinstance(values, Mapping):
        return json.dumps(values, allow_nan=False)
    lines = (f"{json.dumps(key)}: {_in_lines(each, levels - 1)}" for key, each in values.items())
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    FILE.write_text(schema_text(), "utf-8")
