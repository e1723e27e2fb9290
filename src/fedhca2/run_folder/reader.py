"""A run as its files tell it: all that reports know."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from fedhca2.errors import UserError
from fedhca2.experiment.clients import client_kind
from fedhca2.experiment.sources import read_config
from fedhca2.run_folder.result import BASELINE_METRICS, overall_gain
from fedhca2.run_folder.strict_json import numbers, read_json

Event = dict[str, Any]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RunFiles:
    """A run's folder, finished or not. A `result.json` says that the run came to its end."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> "RunFiles":
        """The run in this folder; UserError if there is none."""
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise UserError([f"{path}: should be a run's folder, found no config.yaml in it"])
        return cls(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config."""
        return _checked(self.path / "config.yaml", read_config(self.path / "config.yaml"))

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """What the run came to, with NaN for scores that are not known."""
        path = self.path / "result.json"
        if not path.is_file():
            return None
        result = _checked(path, read_json(path))
        clients, baseline = numbers(result["clients"]), numbers(result.get("baseline") or {})
        if "delta_m_by_client" not in result:  # written before there were both: what it calls Δm is by client
            gain = overall_gain(clients, baseline, self._kinds(clients))
            result |= {"delta_m": gain, "delta_m_by_client": result.get("delta_m")}
        return {**result, "clients": clients, "baseline": baseline or None}

    @cached_property
    def events(self) -> list[Event]:
        """Everything in `metrics.jsonl`."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        return list(parse_events(path.read_text("utf-8").splitlines(), str(path)))

    def of(self, kind: str) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config["method"]["name"])

    @property
    def rounds(self) -> int:
        """How many rounds the run was meant to have."""
        return int(self.config["rounds"])

    def short_name(self, member: str) -> str:
        """What a figure calls a 'client/task': the client alone if that is its only task."""
        client, _, _ = member.partition("/")
        return client if len(self.tasks.get(client, ())) == 1 else member

    @cached_property
    def tasks(self) -> dict[str, tuple[str, ...]]:
        """Every client's tasks, in the order of the config."""
        if self.result:
            return {client: tuple(tasks) for client, tasks in self.result["clients"].items()}
        found: dict[str, dict[str, None]] = {}
        for event in self.events:
            if event["event"] in ("loss", "metric"):
                found.setdefault(event["client"], {})[event["task"]] = None
        return {client: tuple(tasks) for client, tasks in found.items()}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of every client: its data set and tasks."""
        return self._kinds(self.tasks)

    @property
    def several_of_a_kind(self) -> bool:
        """Whether some clients have the same data set and tasks."""
        return len(set(self.kinds.values())) < len(self.kinds)

    def dataset(self, client: str) -> str:
        """A client's data set; one that never said so has its own."""
        return self._datasets.get(client, client)

    @cached_property
    def _datasets(self) -> dict[str, str]:
        return {event["client"]: event["dataset"] for event in self.of("profile")}

    def _kinds(self, tasks: Mapping[str, Iterable[str]]) -> dict[str, str]:
        return {client: client_kind(self.dataset(client), held) for client, held in tasks.items()}

    @cached_property
    def baseline_scores(self) -> list[Event]:
        """The events `metric` of the Local baseline, whether it was trained along or is another run's."""
        path = self.path / BASELINE_METRICS
        if (self.path / "baseline" / "config.yaml").is_file():
            return RunFiles(self.path / "baseline").of("metric")
        if not path.is_file():
            return []
        try:
            return [_known(_checked(path, event)) for event in read_json(path)]
        except TypeError as error:
            raise UserError([f"{path}: should be a list of events, found {error}"]) from None

    def samples(self, client: str) -> dict[str, Array]:
        """A client's sample images, labels and predictions; empty if none were kept."""
        path = self.path / "samples" / f"{client}.npz"
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except Exception as error:  # readers of damaged archives raise anything
            reason = " ".join(str(error).split())[:200]
            raise UserError([f"{path}: should be samples of a run, found {type(error).__name__}: {reason}"]) from None


def parse_events(lines: list[str], place: str) -> Iterator[Event]:
    """Events from lines of JSON; a last line that is not whole yet is left out."""
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise UserError([f"{place}: line {number} should be JSON, found {line[:40]!r}"]) from None
        yield _known(_checked(place, event))


def _known(event: Event) -> Event:
    """A value that is null was no finite number."""
    return {**event, "value": nan} if event.get("value", 0.0) is None else event


def _checked(place: object, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError([f"{place}: should hold keys and values, found {values!r:.40}"])
    return values
