"""Grouping runs into rows of a table, one row for all seeds."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedhca2.reports.comparison.compared import ComparedRun, Run
from fedhca2.run_folder.baseline import FREE as FREE_BESIDE_LOCAL

# Settings in which averaged runs may differ: none of these changes the results.
FREE = ("seed", "name", "title", "belongs_to", "baseline", "checkpoints", "evaluate_every", "diagnostics")
NAMED = 3  # most settings in a label


def variants(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in their seed, by method, and by settings if a method was run with several.

    A second run with the same settings and seed is ignored, for example if two comparisons both include Local.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        held = {key: value for key, value in run.settings.items() if key not in FREE}
        group = groups.setdefault(repr(sorted(flat(held))), [])
        if all(other.settings["seed"] != run.settings["seed"] for other in group):
            group.append(run)
    rivals: dict[str, list[list[Run]]] = {}
    for group in groups.values():
        rivals.setdefault(group[0].method, []).append(group)
    labels = [_label(group, rivals[group[0].method], NAMED) for group in groups.values()]
    if len(set(labels)) < len(labels):
        labels = [_label(group, rivals[group[0].method], None) for group in groups.values()]
    return dict(zip(labels, groups.values(), strict=True))


def without_method(run: ComparedRun, free: Sequence[str] = ()) -> str:
    """What a run shares with the run of Local that it is compared with: its seed, and its settings for all methods.

    Settings that are `free` may differ too.
    """
    free = (*FREE_BESIDE_LOCAL, *free)
    return repr(sorted(flat({key: value for key, value in run.settings.items() if key not in free})))


def _label(group: Sequence[ComparedRun], rivals: Sequence[Sequence[ComparedRun]], most: int | None) -> str:
    """The method, with at most `most` of the settings that most of its rivals do not share."""
    settings = [dict(flat(rival[0].settings)) for rival in rivals]
    method, own = group[0].method, dict(flat(group[0].settings))
    named = [key for key in differing([rival[0] for rival in rivals]) if key.split(".")[0] not in FREE]
    rare = [key for key in named if 2 * sum(held.get(key) == own.get(key) for held in settings) <= len(rivals)]
    told = [f"{key.removeprefix('method.')}={own.get(key)}" for key in rare[:most]]
    return f"{method} ({', '.join(told)})" if told else method


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings in which runs differ."""
    settings = [dict(flat(run.settings)) for run in runs]
    keys = dict.fromkeys(key for held in settings for key in held)
    return [key for key in keys if len({repr(held.get(key)) for held in settings}) > 1]


def flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """List nested settings by path.

    >>> list(flat({"method": {"name": "fedhca2", "encoder": {"c": 0.4}}}))
    [('method.name', 'fedhca2'), ('method.encoder.c', 0.4)]
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{place}.{key}" if place else str(key))
    else:
        yield place, value
