"""What one answer for all images scores, and when a model is clearly better than that."""

import json
from math import nan

import numpy as np
import pytest
import torch

from fedhca2.clients.evaluation import trivial_answers
from fedhca2.data.batches import Batches
from fedhca2.reports.layouts import comparison_table, write_comparison
from fedhca2.reports.page.several import several_sections
from fedhca2.reports.page.write import single_sections
from fedhca2.reports.tables import result_table
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.tasks import TASKS, LabelSpace
from made_run import made_run
from small_run import clients_of, small


class Labelled:
    """Images without content, and these labels."""

    size = (4, 4)

    def __init__(self, **labels):
        self.values = labels

    def load(self, index, tasks):
        return {"image": torch.zeros(3, 4, 4, dtype=torch.uint8), **{task: self.values[task][index] for task in tasks}}


def answers(**labels):
    """The trivial answers to labels, one tensor for each image."""
    tensors = {task: [torch.as_tensor(np.array(one, np.float32)) for one in each] for task, each in labels.items()}
    count = len(next(iter(tensors.values())))
    return trivial_answers(Batches(Labelled(**tensors), range(count), list(tensors), batch_size=1))


def test_the_trivial_answer_is_the_largest_class_or_the_mean_of_known_labels():
    maps = [[[[2, 2], [2, 255]]], [[[255, 255], [255, 1]]]]
    assert answers(semseg=maps, classification=[[1], [nan]]) == {"semseg": torch.tensor([2]), "classification": 1}
    actual = answers(regression=[[1, 10], [3, nan]], depth=[[[[0, 1]]], [[[3, 255]]]])
    assert {task: answer.tolist() for task, answer in actual.items()} == {"regression": [2, 10], "depth": [2]}
    assert answers(regression=[[nan]], classification=[[nan]]) == {}


def test_last_scores_have_the_trivial_score_of_every_task_with_plain_maps():
    client = clients_of(small())["home"]
    assert all("trivial" in scores for scores in client.evaluate(trivial=True).values())
    assert not any("trivial" in scores for scores in client.evaluate().values())
    assert not TASKS["edge"].metric(LabelSpace()).for_plain_maps


@pytest.mark.parametrize(
    ("task", "metric", "score", "trivial", "clear"),
    [
        ("regression", "rmse", 17.9, 18.8, False),
        ("regression", "rmse", 10.0, 18.8, True),
        ("classification", "accuracy", 95.0, 92.0, True),  # of what is missing, more than a third
        ("semseg", "miou", 5.0, 2.5, True),
        ("semseg", "miou", 2.5, 2.5, False),
        ("semseg", "miou", 2.5, nan, True),
    ],
)
def test_clearly_better_is_a_tenth_of_the_score_or_of_what_it_lacks(task, metric, score, trivial, clear):
    scores = {metric: score, "trivial": trivial}
    assert headline(TASKS[task], scores).is_clear == clear


def with_trivial(run, **scores):
    """The same run with these trivial scores of clients with one task."""
    result = json.loads((run.path / "result.json").read_text())
    for client, score in scores.items():
        next(iter(result["clients"][client].values()))["trivial"] = score
    (run.path / "result.json").write_text(json.dumps(result))
    return RunFiles.open(run.path)


def test_the_page_and_the_terminal_name_who_is_not_clearly_better(tmp_path):
    run = made_run(tmp_path, better=1.25)
    blocks = single_sections(run)[0].blocks  # of an older run
    assert "trivial" not in " ".join([*blocks[-1].columns, *blocks[0].sentences])
    run = with_trivial(run, road=48.0, shop=5.0)
    blocks = single_sections(run)[0].blocks
    (sentence,) = [sentence for sentence in blocks[0].sentences if "trivial" in sentence]
    assert ("1 of 2 scores" in sentence, "road" in sentence, "shop" in sentence) == (True, True, False)
    assert [row[2].text for row in blocks[-1].rows] == ["48.0%", "5.00%", "—", "—"]
    assert [row[4].text.endswith("†") for row in blocks[-1].rows] == [True, False, False, False]
    assert "trivial" not in result_table(run.outcome, run.task_set).columns
    assert result_table(run.outcome, run.task_set, trivial=True).rows[0][3] == "48.0%"


def runs_of(folder, *methods):
    runs = (made_run(folder / name, name, better=1.25 if name == "fedhca2" else 1.0) for name in methods)
    return [with_trivial(run, road=48.0, shop=5.0) for run in runs]


def test_a_comparison_lists_it_on_request_and_on_the_page(tmp_path):
    runs = runs_of(tmp_path, "local", "fedhca2")
    assert "trivial" not in write_comparison(runs, tmp_path).entries
    table = write_comparison(runs, tmp_path, trivial=True)
    scores = [f"{table.entries['trivial'][column].mean:g}" for column in table.columns]
    assert scores[:2] == ["48", "5"]
    assert set(scores[2:]) == {"nan"}  # columns of gains
    assert "trivial" in (tmp_path / "table.md").read_text()
    blocks = several_sections(runs)[0].blocks
    tables = [block for block in blocks if type(block).__name__ == "Table"]
    assert [row[0].text for row in tables[0].rows] == ["local", "fedhca2", "trivial"]
    answer = next(block for block in blocks if type(block).__name__ == "AnswerBlock")
    (sentence,) = [sentence for sentence in answer.sentences if "trivial" in sentence]
    assert "1 of 2 scores of fedhca2" in sentence


def test_a_summary_counts_the_scores_above_it_instead_of_a_row_without_numbers(tmp_path):
    methods = ["local", "fedavg", "fedper", "fedprox", "fedhca2"]
    runs = runs_of(tmp_path, *methods)
    table = comparison_table(write_comparison(runs, tmp_path, trivial=True))
    (column,) = [number for number, name in enumerate(table.columns) if "trivial" in name]
    # Shop reaches more than 5%, and road 48% with fedhca2 alone.
    assert {row[0]: row[column] for row in table.rows} == dict.fromkeys(methods, "1") | {"fedhca2": "2"}
