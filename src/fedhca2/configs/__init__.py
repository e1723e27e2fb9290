"""The built-in experiments, and the settings that their schema describes. It imports nothing slow."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from fedhca2.strict_yaml import read_yaml

Schema = Mapping[str, Any]
FOLDER = resources.files("fedhca2") / "configs"
PRESETS = "presets/"  # parts of experiments, to extend


@dataclass(frozen=True)
class Listing:
    """A built-in experiment: its name for `fedhca2 run`, its title, and the tables and figures it belongs to."""

    name: str
    title: str
    belongs_to: tuple[str, ...]


def built_in_experiments() -> list[Listing]:
    """List the experiments that come with the package."""
    found = [(name, read_yaml(file)) for name, file in sorted(_files().items())]
    return [Listing(name, values.get("title", ""), tuple(values.get("belongs_to", ()))) for name, values in found]


def built_in_names() -> list[str]:
    """The names of the experiments that come with the package."""
    return sorted(_files())


def built_in_file(name: str) -> Traversable | None:
    """Return the file of a built-in experiment, or None if no experiment has this name."""
    return _files().get(name)


def preset_file(name: str) -> Traversable | None:
    """Return the file of a part of an experiment, which others extend, or None if none has this name."""
    return dict(_walk(FOLDER, "")).get(f"{PRESETS}{name}")


@cache
def _files() -> dict[str, Traversable]:
    """The files of all experiments, by name."""
    return {name: file for name, file in _walk(FOLDER, "") if not name.startswith(PRESETS)}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml"), entry


def schema_text() -> str:
    """The file with the JSON Schema of experiments, which `docs/site/schema.py` writes."""
    return (FOLDER / "schema.json").read_text("utf-8")


@cache
def read_schema() -> Schema:
    """The JSON Schema of an experiment's file."""
    schema: Schema = json.loads(schema_text())
    return schema


@dataclass(frozen=True)
class Setting:
    """One setting of a group.

    `values` are those it may have, `default` is empty if it has to be given, `about` says what the group is, and
    `value` is that of an experiment, if one is meant.
    """

    group: str
    name: str
    values: str
    default: str
    meaning: str
    about: str = ""
    value: str = ""

    @property
    def key(self) -> str:
        """Its whole name."""
        return f"{self.group}.{self.name}" if self.group else self.name


def list_settings(values: Any = ...) -> list[Setting]:
    """All settings of experiments, or with plain values those of one experiment; without settings of methods.

    Each group follows the one that it is in. Without values (...), names of data sets and the like are `NAME`, the
    first entry of a list is `0`, and of groups that occur several times only the first is listed.
    """
    settings, waiting, seen = list[Setting](), [("", read_schema(), values)], list[Schema]()
    while waiting:
        group, schema, given = waiting.pop(0)
        if given is ... and schema in seen:
            continue
        seen.append(schema)
        below = []
        for name, property in schema["properties"].items():
            if name == "extends" or ("const" in property if given is ... else name not in given):
                continue
            value = ... if given is ... else given[name]
            nested = list(_nested(property, f"{group}.{name}" if group else name, value))
            if not nested or given is ...:
                settings.append(_describe(group, name, property, nested, schema, value))
            below += nested
        waiting = below + waiting
    return settings


def _describe(group: str, name: str, schema: Schema, nested: list[Any], parent: Schema, value: Any) -> Setting:
    default = schema.get("default", ...)
    default = "" if default is ... or (nested and default is not None) else format_value(default)
    meaning = schema.get("description") or (_first_line(nested[0][1]) if len(nested) == 1 else "")
    meaning = meaning or (_first_line(parent) if name == "kind" else "")
    allowed = "nested settings" if nested else allowed_values(schema)
    return Setting(group, name, allowed, default, meaning, parent.get("description", ""), format_value(value))


def _first_line(schema: Schema) -> str:
    return str(schema.get("description", "")).partition("\n")[0]


def _nested(schema: Schema, key: str, value: Any) -> Iterator[tuple[str, Schema, Any]]:
    """The groups of settings within a setting, with their keys, and their values if there are any."""
    if "$ref" in schema:
        group = _resolve(schema["$ref"])
        if "properties" in group and (value is ... or isinstance(value, Mapping)):
            yield key, group, value
    for option in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
        if "if" not in option:
            yield from _nested(option, key, value)
        elif value is ...:
            yield from _nested(option["then"], f"{key} ({option['if']['properties']['kind']['const']})", ...)
        elif isinstance(value, Mapping) and value.get("kind") == option["if"]["properties"]["kind"]["const"]:
            yield from _nested(option["then"], key, value)
    if "then" in schema.get("else", {}):
        yield from _nested(schema["else"]["then"], key, value)
    for inner, step in (("items", 0), ("additionalProperties", "NAME")):
        if isinstance(schema.get(inner), Mapping):
            entries = (
                {step: ...} if value is ... else value if isinstance(value, Mapping) else dict(enumerate(value or ()))
            )
            for step, entry in entries.items():
                yield from _nested(schema[inner], f"{key}.{step}", entry)


def _resolve(reference: str) -> Schema:
    found = read_schema()
    for step in reference.split("/")[1:]:
        found = found[step]
    return found


def allowed_values(schema: Schema) -> str:
    """The values that a setting may have, from its JSON Schema.

    >>> allowed_values({"type": "number", "minimum": 0, "exclusiveMaximum": 1}), allowed_values({"enum": ["a", "b"]})
    ('≥ 0, < 1', 'a | b')
    """
    if "enum" in schema or "const" in schema:
        return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(allowed_values, schema["anyOf"])))
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    if bounds := [f"{sign} {format_value(schema[key])}" for key, sign in signs.items() if key in schema]:
        return ", ".join(bounds)
    return _types(schema)


def _types(schema: Any) -> str:
    """The types of JSON Schema in a user's words."""
    if not isinstance(schema, Mapping) or not schema.keys() & {"type", "anyOf", "enum"}:
        return "anything"
    if "type" not in schema or "enum" in schema:
        return allowed_values(schema)
    items = schema.get("items")
    words = {
        "array": f"list of {_types(items[0] if isinstance(items, list) else items)}",
        "object": f"{_types(schema.get('additionalProperties'))} by name",
        "string": schema.get("format", "text"),
        "integer": "whole number",
        "boolean": "true | false",
    }
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " | ".join(str(words.get(each, each)) for each in types)


def format_value(value: Any) -> str:
    """Format a value as in a config.

    >>> format_value([0.5, 2.0]), format_value(None), format_value("")
    ('[0.5, 2]', 'null', 'none')
    """
    if value is ...:
        return ""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (tuple, list)) and value:
        return f"[{', '.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value) if value or value == 0 else "none"


def setting_keys() -> dict[str, str]:
    """The keys for `--set` that every experiment has, with their meanings, and the settings of methods."""
    plain = [setting for setting in list_settings() if setting.values != "nested settings"]
    keys = {setting.key: setting.meaning for setting in plain if "NAME" not in setting.key}
    methods = _resolve("#/$defs/method")["properties"]
    own = {name: _resolve(each["$ref"]) for name, each in methods.items() if "$ref" in each}
    return keys | {f"method.{name}": _first_line(schema) for name, schema in own.items()}
