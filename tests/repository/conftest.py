"""Records of made runs, for the tests of docs/results.md."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from fedhca2.experiment import Experiment
from fedhca2.tasks import LabelSpace
from fedhca2.tasks.built_in import BUILT_IN

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METRIC = {task.name: task.metric(LabelSpace(classes=2)).name for task in BUILT_IN}
EVENTS = [
    {"event": "client", "client": "home", "round": 0, "seconds": 1, "bytes_up": 250_000, "bytes_down": 0},
    *({"event": "round", "round": 0, "seconds": seconds, "refused": {}} for seconds in (9, 2, 3)),
]


@pytest.fixture
def results(monkeypatch):
    """The module `benchmarks/results.py`; from here on its neighbours can be imported, too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("results")


@pytest.fixture
def finished_run(tmp_path):
    """Write a loose run, whose scores are `gain` percent better than 50; return its folder."""

    def write(name, gain, *settings, of="scenes_1c"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        experiment = Experiment.load(of, list(settings))
        clients = {
            spec.name: {task: {(metric := METRIC.get(task, "rmse")): score_of(metric, gain)} for task in spec.tasks}
            for spec in experiment.specs
        }
        about = {"method": experiment.method_name, "clients": clients, "baseline": None}
        cost = {"seconds": 7.0, "device": "a GPU", "versions": {"fedhca2": "9"}}
        (folder / "config.yaml").write_text(experiment.to_yaml(), "utf-8")
        (folder / "result.json").write_text(json.dumps(about | cost), "utf-8")
        events = [*EVENTS, *(events_over_rounds(clients, experiment.rounds) if experiment.evaluate_every else ())]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), "utf-8")
        return folder

    return write


def events_over_rounds(clients, rounds):
    """Scores that are half as good halfway, and weights that have learned by then."""
    for round, share in ((max(rounds // 2, 1), 0.5), (rounds, 1)):
        for client, tasks in clients.items():
            for task, scores in tasks.items():
                for metric, value in scores.items():
                    now = value * share if metric not in ("mean_error", "rmse") else value / share
                    who = {"client": client, "task": task, "metric": metric}
                    yield {"event": "metric", "round": round, **who, "value": now}
        slots = {f"{client}/encoder": [0.5 * share] for client in clients}
        slots |= {f"{client}/decoder.{task}": [0.3, 0.2 * share] for client, tasks in clients.items() for task in tasks}
        yield {"event": "weights", "round": round - 1, "weights": slots}


def score_of(metric, gain):
    return 50 * (1 - gain / 100 if metric in ("mean_error", "rmse") else 1 + gain / 100)
