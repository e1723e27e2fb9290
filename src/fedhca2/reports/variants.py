"""Grouping runs into rows of a table, one row for all seeds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedhca2.methods import AGGREGATED, METHODS
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.writer import FREE as FREE_IN_BASELINE

# Settings in which averaged runs may differ: none of these changes the results.
FREE = {*FREE_IN_BASELINE, "seed"} - {"method", "guard", "privacy", "devices"}


def variants(runs: Sequence[RunFiles]) -> dict[str, list[RunFiles]]:
    """Group runs that differ only in their seed, by method, and by settings if a method was run with several.

    A second run with the same settings and seed is ignored, for example if two comparisons both include Local.
    """
    groups: dict[str, list[RunFiles]] = {}
    for run in runs:
        group = groups.setdefault(settings_text(run, FREE), [])
        if all(other.settings["seed"] != run.settings["seed"] for other in group):
            group.append(run)
    firsts = [group[0] for group in groups.values()]
    rivals = [[other for other in firsts if other.method == run.method] for run in firsts]
    labels = [_label(run, others, most=3) for run, others in zip(firsts, rivals, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [_label(run, others, most=None) for run, others in zip(firsts, rivals, strict=True)]
    return dict(zip(labels, groups.values(), strict=True))


def settings_text(run: RunFiles, free: Iterable[str]) -> str:
    """A run's settings as text, without those that are `free` to differ."""
    return repr(sorted(flatten({key: value for key, value in run.settings.items() if key not in free})))


def _label(run: RunFiles, rivals: Sequence[RunFiles], most: int | None) -> str:
    """The experiment's own label, or the method with what tells it from rivals: at most `most` settings."""
    if label := run.settings.get("label"):
        return str(label)
    settings, own = [dict(flatten(other.settings)) for other in rivals], dict(flatten(run.settings))
    parts, *others = ([part for part in AGGREGATED if one.settings["method"].get(part)] for one in (run, *rivals))
    absent = [part for part in dict.fromkeys(part for other in others for part in other) if part not in parts]
    named = [
        key
        for key in differing_keys(rivals)
        if key.split(".")[0] not in FREE and not any(f"{key}.".startswith(f"method.{part}.") for part in absent)
    ]
    if "clients" in named:  # they say which data sets are used
        named = ["clients", *(key for key in named if key != "clients" and not key.startswith("data."))]
    rare = [key for key in named if 2 * sum(other.get(key) == own.get(key) for other in settings) <= len(rivals)]
    differences = [f"{' and '.join(parts) or 'nothing'} only"] if absent else []
    for key in rare[:most]:
        if key == "clients":  # how many there are of each, or how many there are
            copies = {entry.get("copies", 1) for entry in run.settings["clients"]}
            entries = [[entry | {"copies": 1} for entry in other.settings["clients"]] for other in rivals]
            same = len(copies) == 1 and all(other == entries[0] for other in entries)
            differences.append(f"{copies.pop()} of each" if same else f"{len(run.tasks)} clients")
        else:
            value, last = own.get(key), key.rpartition(".")[2]
            unique = sum(other.rpartition(".")[2] == last for other in named) == 1
            shown = f"{len(value)} values" if isinstance(value, list | tuple) and len(str(value)) > 30 else value
            differences.append(f"{last if unique else key.removeprefix('method.')}={shown}")
    return ", ".join([run.method, *differences])


def changed_settings(run: RunFiles) -> list[str]:
    """The settings in which a run's method differs from its defaults; none for a method of a user's own."""
    if run.method not in METHODS:
        return []
    usual = METHODS[run.method].over(run.settings["rounds"]).model_dump(mode="json", exclude={"reference"})
    defaults = dict(flatten(usual))
    own = flatten({key: value for key, value in run.settings["method"].items() if key != "name"})
    changed = {key: value for key, value in own if key not in defaults or defaults[key] != value}
    values: dict[str, set[str]] = {}
    for key, value in changed.items():
        values.setdefault(key.rpartition(".")[2], set()).add(repr(value))
    short = {key: key.rpartition(".")[2] for key in changed}
    named = {key: short[key] if len(values[short[key]]) == 1 else key for key in changed}
    return list(dict.fromkeys(f"{named[key]}={value}" for key, value in changed.items()))


def differing_keys(runs: Sequence[RunFiles]) -> list[str]:
    """The settings in which runs differ."""
    settings = [dict(flatten(run.settings)) for run in runs]
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]


def flatten(value: Any, key: str = "", *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """List nested settings by path; a list is one value, unless `lists` with further settings count as nested too.

    >>> list(flatten({"method": {"name": "fedhca2", "encoder": {"c": 0.4}}}))
    [('method.name', 'fedhca2'), ('method.encoder.c', 0.4)]
    >>> list(flatten({"clients": [{"tasks": ["sal"]}]}, lists=True))
    [('clients.0.tasks', ['sal'])]
    """
    items: Iterable[tuple[Any, Any]] | None = value.items() if isinstance(value, Mapping) else None
    if lists and isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        items = enumerate(value)
    if items is None:
        yield key, value
        return
    for step, item in items:
        yield from flatten(item, f"{key}.{step}" if key else str(step), lists=lists)
