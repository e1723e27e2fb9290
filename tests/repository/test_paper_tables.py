"""Every table of the papers is made by one command from the runs of its experiments; here, of made-up scores."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedhca2.configs import built_in_experiments
from fedhca2.experiment import Experiment
from fedhca2.reports.comparison import DELTA_M, gather
from fedhca2.reports.layouts import to_markdown
from fedhca2.tasks import TASKS, LabelSpace

SCALES = {"Table 4": "nyud, single-task", "Supplementary table 2": "pascal, single-task"}  # the columns that runs share
TABLES = sorted({table for one in built_in_experiments() for table in one.belongs_to if "able" in table})


METRICS = {task: TASKS[task].metric(LabelSpace(classes=2)).name for task in TASKS}


class Scored(SimpleNamespace):
    """An experiment with scores as if it had run."""

    def __init__(self, name):
        experiment = Experiment.load(name).blank
        dice, settings = np.random.default_rng(sum(map(ord, name))), experiment.to_dict()
        tasks, data, kinds = (
            {spec.name: getattr(spec, key) for spec in experiment.specs} for key in ("tasks", "data", "kind")
        )
        scores = {
            client: {task: {METRICS[task]: dice.uniform(20, 60)} for task in own} for client, own in tasks.items()
        }
        about = {"name": name, "path": name, "settings": settings, "method": settings["method"]["name"]}
        about |= {"tasks": tasks, "kinds": kinds, "several_of_a_kind": len(set(kinds.values())) < len(kinds)}
        outcome = SimpleNamespace(clients=scores, baseline=None, split="val")
        super().__init__(**about, outcome=outcome, dataset=data.get, task_set=TASKS)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_a_row_for_each_of_its_experiments(table):
    runs = [Scored(one.name) for one in built_in_experiments() if table in one.belongs_to]
    made = gather(runs)
    assert len(made.entries) == len(runs)
    assert not [label for label in made.entries if "{" in label or "[" in label]
    groups = {column.group for column in made.columns if not column.is_gain}
    if table in SCALES:  # runs with and without the multi-task client
        assert (groups, bool(made.left_out)) == ({SCALES[table]}, True)
    assert (DELTA_M in made.columns) == any(run.method == "local" for run in runs)
    assert to_markdown(made).count("\n| ") >= len(runs)
