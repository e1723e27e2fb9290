"""Every table of the papers is made by one command from the runs of its experiments; here, of made-up scores."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from fedhca2.configs import built_in_experiments
from fedhca2.experiment import Experiment
from fedhca2.reports.comparison import DELTA_M, gather
from fedhca2.reports.layouts import to_markdown
from fedhca2.tasks import TASKS, LabelSpace

SCALES = {"Table 4": "nyud, single-task", "Supplementary table 2": "pascal, single-task"}  # the columns that runs share
TABLES = sorted({table for one in built_in_experiments() for table in one.belongs_to if "able" in table})


@dataclass(frozen=True)
class Scored:
    """An experiment with scores as if it had run."""

    name: str
    settings: dict
    tasks: dict
    kinds: dict
    data: dict
    task_set: ClassVar = TASKS

    @classmethod
    def of(cls, name):
        experiment = Experiment.load(name).blank
        specs = experiment.specs
        tasks, data = ({spec.name: getattr(spec, key) for spec in specs} for key in ("tasks", "data"))
        return cls(name, experiment.to_dict(), tasks, {spec.name: spec.kind for spec in specs}, data)

    @property
    def path(self):
        return self.name

    @property
    def method(self):
        return self.settings["method"]["name"]

    @property
    def several_of_a_kind(self):
        return len(set(self.kinds.values())) < len(self.kinds)

    @property
    def outcome(self):
        dice = np.random.default_rng(sum(map(ord, self.name)))
        metrics = {task: TASKS[task].metric(LabelSpace(classes=2)).name for task in TASKS}
        scores = {
            client: {task: {metrics[task]: dice.uniform(20, 60)} for task in tasks}
            for client, tasks in self.tasks.items()
        }
        return SimpleNamespace(clients=scores, baseline=None, split="val")

    def dataset(self, client):
        return self.data[client]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_a_row_for_each_of_its_experiments(table):
    runs = [Scored.of(one.name) for one in built_in_experiments() if table in one.belongs_to]
    made = gather(runs)
    assert len(made.entries) == len(runs)
    assert not [label for label in made.entries if "{" in label or "[" in label]
    groups = {column.group for column in made.columns if not column.is_gain}
    if table in SCALES:  # runs with and without the multi-task client
        assert (groups, bool(made.left_out)) == ({SCALES[table]}, True)
    assert (DELTA_M in made.columns) == any(run.method == "local" for run in runs)
    assert to_markdown(made).count("\n| ") >= len(runs)
