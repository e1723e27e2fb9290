"""Grouping runs into rows of a table, one row for all seeds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fedhca2.methods import METHODS
from fedhca2.run_folder.baseline import FREE as FREE_BESIDE_LOCAL
from fedhca2.tasks import TaskSet


class ComparedRun(Protocol):
    """A finished run to compare: its folder (`RunFiles`), or what somebody kept of it."""

    @property
    def path(self) -> object:
        """Its place, for messages."""

    @property
    def method(self) -> str:
        """The method's name."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings, as `Experiment.to_dict` returns them."""

    @property
    def finished_result(self) -> Mapping[str, Any]:
        """Scores in `clients`; `baseline` and, unless it is None, `delta_m` and `delta_m_by_client`."""

    @property
    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The tasks of every client that was evaluated, in the order of the config."""

    @property
    def task_set(self) -> TaskSet:
        """The tasks that it knows."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of every client: its data set and tasks."""

    @property
    def several_of_a_kind(self) -> bool:
        """Whether some clients have the same data set and tasks."""

    def dataset(self, client: str) -> str:
        """A client's data set."""


Run = TypeVar("Run", bound=ComparedRun)
# Settings in which averaged runs may differ: none of these changes the results.
FREE = (
    "seed",
    "name",
    "title",
    "label",
    "belongs_to",
    "methods",
    "baseline",
    "checkpoints",
    "evaluate_every",
    "diagnostics",
)
NAMED, LONG = 3, 30  # most settings in a label, and letters of a list
PARTS = ("encoder", "decoder", "head")


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
    """The experiment's own label, or the method with what tells it from rivals: at most `most` settings."""
    run, others = group[0], [rival[0] for rival in rivals]
    if label := run.settings.get("label"):
        return str(label)
    settings, own = [dict(flat(other.settings)) for other in others], dict(flat(run.settings))
    absent = {part for part in PARTS if not _has_part(run, part) and any(_has_part(other, part) for other in others)}
    named = [
        key
        for key in differing(others)
        if key.split(".")[0] not in FREE and not any(f"{key}.".startswith(f"method.{part}.") for part in absent)
    ]
    if "clients" in named:  # they say which data sets are used
        named = ["clients", *(key for key in named if key != "clients" and not key.startswith("data."))]
    rare = [key for key in named if 2 * sum(held.get(key) == own.get(key) for held in settings) <= len(rivals)]
    parts = " and ".join(part for part in PARTS if _has_part(run, part)) or "nothing"
    told = [f"{parts} only"] if absent else []
    told += [
        _clients_of(run, others) if key == "clients" else _setting(key, own.get(key), named) for key in rare[:most]
    ]
    return ", ".join([run.method, *told])


def _has_part(run: ComparedRun, part: str) -> bool:
    """Whether the method aggregates a part of the model."""
    return bool(run.settings["method"].get(part))


def _clients_of(run: ComparedRun, others: Sequence[ComparedRun]) -> str:
    """What tells a run's clients from those of others: how many there are of each, or how many there are."""
    entries = [
        [{key: value for key, value in entry.items() if key != "copies"} for entry in other.settings["clients"]]
        for other in others
    ]
    copies = {entry.get("copies", 1) for entry in run.settings["clients"]}
    if len(copies) == 1 and all(own == entries[0] for own in entries):
        return f"{copies.pop()} of each"
    return f"{len(run.tasks)} clients"


def _setting(key: str, value: Any, named: Sequence[str]) -> str:
    """A setting in words: its last name, unless another one ends in the same name, and a short value."""
    _, _, last = key.rpartition(".")
    unique = sum(other.rpartition(".")[2] == last for other in named) == 1
    shown = f"{len(value)} values" if isinstance(value, list | tuple) and len(str(value)) > LONG else value
    return f"{last if unique else key.removeprefix('method.')}={shown}"


def changed_settings(run: ComparedRun) -> list[str]:
    """The settings in which a run's method differs from its defaults; none for a method of a user's own."""
    if run.method not in METHODS:
        return []
    usual = METHODS[run.method].over(run.settings["rounds"]).model_dump(mode="json", exclude={"reference"})
    defaults, own = (
        dict(flat(usual)),
        flat({key: held for key, held in run.settings["method"].items() if key != "name"}),
    )
    changed = {key: value for key, value in own if key not in defaults or defaults[key] != value}
    values: dict[str, set[str]] = {}
    for key, value in changed.items():
        values.setdefault(key.rpartition(".")[2], set()).add(repr(value))
    short = {key: key.rpartition(".")[2] for key in changed}
    return list(
        dict.fromkeys(f"{short[key] if len(values[short[key]]) == 1 else key}={changed[key]}" for key in changed)
    )


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings in which runs differ."""
    settings = [dict(flat(run.settings)) for run in runs]
    keys = dict.fromkeys(key for held in settings for key in held)
    return [key for key in keys if len({repr(held.get(key)) for held in settings}) > 1]


def flat(value: Any, key: str = "", *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """List nested settings by path; a list is one value, unless `lists` with further settings count as nested too.

    >>> list(flat({"method": {"name": "fedhca2", "encoder": {"c": 0.4}}}))
    [('method.name', 'fedhca2'), ('method.encoder.c', 0.4)]
    >>> list(flat({"clients": [{"tasks": ["sal"]}]}, lists=True))
    [('clients.0.tasks', ['sal'])]
    """
    items: Iterable[tuple[Any, Any]] | None = value.items() if isinstance(value, Mapping) else None
    if lists and isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        items = enumerate(value)
    if items is None:
        yield key, value
        return
    for step, item in items:
        yield from flat(item, f"{key}.{step}" if key else str(step), lists=lists)
