"""A run records of its users' own tasks what a reader needs, so that reading imports no code."""

import json

import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.reports.page.write import single_sections
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.run_folder.schema import facts_of, task_from
from fedhca2.tasks import TASKS
from made_run import made_run

METRICS = {"rmse": False, "share": True}
FACTS = {"title": "Flock", "unit": "sheep", "output": "map", "counts_in_delta_m": True, "metrics": METRICS}


@pytest.fixture
def run(tmp_path):
    """A function that makes a run in which depth is a foreign task, of which these facts are recorded."""

    def make(facts):
        path = made_run(tmp_path / "run").path
        for name in ("metrics.jsonl", "result.json"):
            (path / name).write_text((path / name).read_text().replace('"depth"', '"flock"'))
        (path / "samples" / "home.npz").unlink()
        config = yaml.safe_load((path / "config.yaml").read_text())
        (path / "config.yaml").write_text(yaml.safe_dump(config | {"tasks": {"flock": "/somewhere/else.py:FLOCK"}}))
        if facts is not None:
            (path / "tasks.json").write_text(json.dumps(facts))
        return RunFiles(path)

    return make


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_restored_from_its_facts(name):
    facts = facts_of(TASKS[name])
    assert facts_of(task_from(name, json.loads(json.dumps(facts)))) == facts


def test_scores_are_read_and_drawn_without_the_code(run):
    files = run({"flock": FACTS})
    main = headline(files.task_set["flock"], files.outcome.clients["home"]["flock"])
    assert (main.metric, main.higher_is_better, files.task_set["flock"].title) == ("rmse", False, "Flock")
    assert "Flock" in str(single_sections(files))


def test_without_facts_the_code_is_needed(run):
    with pytest.raises(UserError, match=r"config\.yaml.*--allow-code /somewhere/else\.py"):
        _ = run(None).outcome


@pytest.mark.parametrize(
    "facts", [[], *({"flock": FACTS | bad} for bad in ({"metrics": {}}, {"unit": 3}, {"output": "x"}))]
)
def test_damaged_facts_are_one_line(run, facts):
    with pytest.raises(UserError, match=r"tasks\.json") as error:
        _ = run(facts).outcome
    assert len(error.value.lines) == 1


def test_facts_replace_no_built_in_task(run):
    files = run({"sal": FACTS})
    (files.path / "config.yaml").write_text(files.config_text.replace("flock: ", "sal: "))
    with pytest.raises(UserError, match="built in"):
        _ = RunFiles(files.path).outcome
