"""Config files: finding them, inheriting from others, and applying `key.path=value` overrides."""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedhca2.config import Config, suggest
from fedhca2.configs import built_in_file, built_in_names, preset_file
from fedhca2.errors import Fault, UserError
from fedhca2.strict_yaml import YamlError, parse_yaml, read_yaml

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class ConfigFile:
    """A config's own file, or one that it extends."""

    name: str
    values: dict[str, Any]
    folder: Path | None  # None: a built-in experiment


def read_files(source: str | Path) -> list[ConfigFile]:
    """Read a YAML file or a built-in experiment, and what it extends; raises UserError if a file is wrong."""
    name = str(source)
    is_own = Path(source).suffix in SUFFIXES
    file: Traversable | None = Path(source) if is_own else built_in_file(name)
    if file is None:
        hint = suggest(name, built_in_names()).partition("(")[0]  # the whole list is too long for a line
        raise UserError(name, f"expected a .yaml file or a built-in experiment. {hint}`fedhca2 experiments` lists them")
    files = list[ConfigFile]()
    while file is not None:
        files.append(ConfigFile(name, _read(file, name), Path(str(file)).parent if is_own else None))
        parent = files[-1].values.get("extends")
        if parent is None:
            break
        where, parent, is_own = f"{name}: extends", str(parent), is_own and str(parent).endswith(SUFFIXES)
        file = Path(str(file)).parent / parent if is_own else built_in_file(parent) or preset_file(parent)
        if file is None:
            raise UserError(where, f"expected a .yaml file or a built-in experiment, got {parent!r}")
        if len(files) > 32:
            raise UserError(where, f"expected a file that does not extend this one, got {parent!r}")
        name = str(file) if is_own else parent
    return files


def read_config(source: str | Path) -> dict[str, Any]:
    """The values of a YAML file or a built-in experiment, merged with what it extends."""
    return merge_files(read_files(source))


def _read(file: Traversable, name: str) -> dict[str, Any]:
    try:
        values = read_yaml(file)
    except YamlError as error:
        raise UserError(name, str(error)) from None
    except (OSError, ValueError) as error:  # ValueError: not a possible file name
        raise UserError(name, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(values, dict):
        actual = "an empty file" if values is None else f"{values!r:.200}"
        raise UserError(name, f"expected a mapping of keys to values, got {actual}")
    return values


def merge_files(files: Sequence[ConfigFile]) -> dict[str, Any]:
    """The values of a config over those of the files that it extends, with its file's name if it has none."""
    own = {key: value for key, value in files[0].values.items() if key in ("name", "title", "belongs_to")}
    shared = [
        {key: value for key, value in file.values.items() if key not in ("name", "title", "belongs_to", "extends")}
        for file in reversed(files)
    ]
    name = Path(files[0].name).stem if files[0].folder else files[0].name.replace("/", "-")
    return {"name": re.sub(r"[^A-Za-z0-9_.-]", "-", name), **own, **reduce(merged, shared)}


def merged(base: Any, changes: Any) -> Any:
    """Merge `changes` into `base` key by key; a mapping with a different `kind` (or `name`) replaces the whole mapping.

    >>> merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": 3}, "d": [2]})
    {'a': {'b': 1, 'c': 3}, 'd': [2]}
    >>> merged({"method": {"name": "fedhca2", "c": 0.2}}, {"method": "fedavg"})
    {'method': 'fedavg'}
    """
    base = dict(base) if isinstance(base, Config) else base
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    if any(key in changes and changes[key] != base.get(key) for key in ("kind", "name")):
        return changes
    both = {key: merged(base[key], value) if key in base else value for key, value in changes.items()}
    return {**base, **both}


def name_files(faults: Iterable[Fault], files: Sequence[ConfigFile]) -> list[Fault]:
    """Add to faults of a config the file that the setting was inherited from, if it was."""
    named = []
    for fault in faults:
        steps = re.findall(r"[\w-]+", fault.where)
        depths = [_depth(file.values, steps) for file in files]
        nearest = depths.index(max(depths))
        named.append(Fault(fault.where, f"{fault.message} (in {files[nearest].name})") if nearest else fault)
    return named


def _depth(values: Any, steps: Sequence[str]) -> int:
    """How many of these steps lead somewhere."""
    for depth, step in enumerate(steps):
        try:
            values = values[int(step) if isinstance(values, list) else step]
        except (LookupError, TypeError, ValueError):
            return depth
    return len(steps)


def apply_overrides(values: Any, overrides: list[str]) -> Any:
    """Apply each override to the config; list entries are addressed by number, and values are YAML.

    >>> apply_overrides({"method": "fedhca2", "clients": [{"epochs": 1}]}, ["clients.0.epochs=2", "method.c=0.2"])
    {'method': {'name': 'fedhca2', 'c': 0.2}, 'clients': [{'epochs': 2}]}
    """
    values = deepcopy(values)
    for override in overrides:
        path, equals, text = override.partition("=")
        where = f"--set {override:.200}"
        if not equals or not path or path.count(".") >= 64:
            raise UserError(where, "expected KEY=VALUE, as in rounds=5 or training.learning_rate=0.001")
        try:
            value = parse_yaml(text)
        except YamlError as error:
            raise UserError(where, f"the value is {error}") from None
        _set(values, path.split("."), value, where)
    return values


def _set(record: Any, steps: list[str], value: Any, where: str) -> None:
    for i, step in enumerate(steps):
        last = i == len(steps) - 1
        if isinstance(record, list):
            if not step.isdigit() or int(step) >= len(record):
                raise UserError(where, f"expected an index from 0 to {len(record) - 1}, got {step!r}")
            key: Any = int(step)
        elif isinstance(record, dict):
            key = step
            if isinstance(record.get(key), str) and key == "method" and not last:
                record[key] = {"name": record[key]}  # `method: fedavg` is short for `method: {name: fedavg}`
            if not last and record.get(key) is None:
                record[key] = {}
        else:
            raise UserError(where, f"expected a section in {'.'.join(steps[:i])!r}, got {record!r:.200}")
        if last and steps == ["method", "name"] and value != record.get("name"):
            record.clear()  # another method has other settings
        if last:
            record[key] = value
        else:
            record = record[key]
