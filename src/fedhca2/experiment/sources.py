"""Config files: finding them, inheriting from others, and applying `key.path=value` overrides."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedhca2.config import suggest
from fedhca2.configs import embedded_experiments, embedded_file
from fedhca2.errors import UserError
from fedhca2.strict_yaml import MOST_LEVELS, YamlError, parse_yaml, read_yaml

SUFFIXES = (".yaml", ".yml")
OWN = ("name", "title", "belongs_to")  # keys that are not inherited


def read_config(source: str | Path, folders: list[Path] | None = None) -> dict[str, Any]:
    """Read plain data from a YAML file or an embedded config, merged with what it `extends`.

    `folders` gets the folders of all files that are read. Raises UserError if a file cannot be read, or is no mapping.
    """
    path = Path(source)
    if path.suffix in SUFFIXES:
        values = _read(path, str(source), (), folders if folders is not None else [])
        if not isinstance(values, dict):
            found = "an empty file" if values is None else f"{values!r:.200}"
            raise UserError([f"{source}: expected a mapping of keys to values, got {found}"])
        return _named(values, path.stem)
    embedded = embedded_file(str(source))
    if embedded is None:
        known = [listing.name for listing in embedded_experiments()]
        raise UserError([f"{source}: neither a .yaml file nor an embedded experiment. {_near(str(source), known)}"])
    return _named(_read(embedded, str(source), (), []), str(source).replace("/", "-"))


def merged(base: Any, changes: Any) -> Any:
    """Merge `changes` into `base` key by key; a mapping with a different `kind` (or `name`) replaces the whole mapping.

    >>> merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": 3}, "d": [2]})
    {'a': {'b': 1, 'c': 3}, 'd': [2]}
    >>> merged({"method": {"name": "fedhca2", "c": 0.2}}, {"method": "fedavg"})
    {'method': 'fedavg'}
    """
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    if any(key in changes and changes[key] != base.get(key) for key in ("kind", "name")):
        return changes
    both = {key: merged(base[key], value) if key in base else value for key, value in changes.items()}
    return {**base, **both}


def name_files(faults: Sequence[str], source: str | Path) -> list[str]:
    """Add to lines about a config the file that the faulty setting was inherited from, if it was."""
    files = list(_chain(source))
    lines = []
    for fault in faults:
        unknown = re.match(r"config: unknown key '([^']*)'", fault)
        steps = [unknown[1]] if unknown else re.findall(r"[\w-]+", fault.partition(": ")[0])
        depths = [_depth(values, steps) for _, values in files]
        nearest = depths.index(max(depths))
        lines.append(f"{fault} (in {files[nearest][0]})" if nearest else fault)
    return lines


def _chain(source: str | Path) -> Iterator[tuple[str, Any]]:
    """A config file and those that it extends, each with its name and own values."""
    file: Traversable | None = Path(source) if Path(source).suffix in SUFFIXES else embedded_file(str(source))
    name = str(source)
    while file is not None:
        values = read_yaml(file)
        yield name, values
        parent = values.get("extends") if isinstance(values, dict) else None
        name, file = str(parent), _parent(file, str(parent)) if parent else None


def _parent(file: Traversable, parent: str) -> Traversable | None:
    """The file that another extends."""
    return file.parent / parent if parent.endswith(SUFFIXES) and isinstance(file, Path) else embedded_file(parent)


def _depth(values: Any, steps: Sequence[str]) -> int:
    """How many of these steps lead somewhere."""
    for depth, step in enumerate(steps):
        if isinstance(values, list) and step.isdigit() and int(step) < len(values):
            values = values[int(step)]
        elif isinstance(values, dict) and step in values:
            values = values[step]
        else:
            return depth
    return len(steps)


def _named(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Give the config its file's name, unless it has one."""
    return {"name": re.sub(r"[^A-Za-z0-9_.-]", "-", name), **values}


def _read(file: Traversable, source: str, below: tuple[str, ...], folders: list[Path]) -> Any:
    """Read a file, merged with what it extends; `below` lists the files that extend it."""
    if isinstance(file, Path):
        folders.append(file.parent)
    try:
        values = read_yaml(file)
    except YamlError as error:
        raise UserError([f"{source}: {error}"]) from None
    except (OSError, ValueError) as error:  # ValueError: not a possible file name
        raise UserError([f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    if not isinstance(values, dict) or "extends" not in values:
        return values
    parent = str(values.pop("extends"))
    if parent in below:
        raise UserError([f"{source}: extends {parent!r}, which extends it"])
    above = _parent(file, parent)
    if above is None:
        raise UserError([f"{source}: extends: {parent!r} is neither a .yaml file nor an embedded experiment"])
    is_file = isinstance(above, Path) and parent.endswith(SUFFIXES)  # not an embedded one
    base = _read(above, str(above) if is_file else parent, (*below, parent), folders if is_file else [])
    base = {} if base is None else base
    if not isinstance(base, dict):
        raise UserError([f"{source}: extends: {parent!r} should be a mapping, found {type(base).__name__}"])
    own = {key: value for key, value in values.items() if key in OWN}
    inherited, changes = ({k: v for k, v in each.items() if k not in OWN} for each in (base, values))
    return {**own, **merged(inherited, changes)}


def _near(name: str, known: list[str]) -> str:
    """Suggest the closest name; a full list is too long for one line."""
    return f"{suggest(name, known).partition('(')[0]}`fedhca2 experiments` lists them"


def apply_overrides(values: Any, overrides: list[str]) -> Any:
    """Apply each override to the config; list entries are addressed by number, and values are YAML.

    >>> apply_overrides({"rounds": 3, "clients": [{"epochs": 1}]}, ["rounds=5", "clients.0.epochs=2", "method.c=0.2"])
    {'rounds': 5, 'clients': [{'epochs': 2}], 'method': {'c': 0.2}}
    """
    values = deepcopy(values)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path or path.count(".") >= MOST_LEVELS:
            raise UserError(
                [f"--set {override:.200}: should be KEY=VALUE, as in rounds=5 or training.learning_rate=0.001"]
            )
        try:
            value = parse_yaml(text)
        except YamlError as error:
            raise UserError([f"--set {override:.200}: the value is {error}"]) from None
        _set(values, path.split("."), value, override)
    return values


def _set(record: Any, steps: list[str], value: Any, override: str) -> None:
    for i, step in enumerate(steps):
        last = i == len(steps) - 1
        if isinstance(record, list):
            if not step.isdigit() or int(step) >= len(record):
                raise UserError([f"--set {override}: {step!r} should be the number of an entry below {len(record)}"])
            key: Any = int(step)
        elif isinstance(record, dict):
            key = step
            if isinstance(record.get(key), str) and key == "method" and not last:
                record[key] = {"name": record[key]}  # `method: fedavg` is short for `method: {name: fedavg}`
            if not last and record.get(key) is None:
                record[key] = {}
        else:
            raise UserError([f"--set {override}: there is nothing below {'.'.join(steps[:i])!r}"])
        if last and steps == ["method", "name"] and value != record.get("name"):
            record.clear()  # another method has other settings
        if last:
            record[key] = value
        else:
            record = record[key]
