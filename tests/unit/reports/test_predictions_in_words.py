import numpy as np
import pytest

from fedhca2.reports.pictures import answer_of
from fedhca2.tasks import TASKS, LabelSpace

PETS = LabelSpace(names=("cat", "dog", "owl"))


def test_the_probability_of_a_class_stands_beside_its_name():
    answer = answer_of(TASKS["classification"], PETS, np.array([1.0]), np.array([0.2, 0.7, 0.1]))
    assert (str(answer), answer.value, answer.values["owl"]) == ("dog (0.70)", 0.7, 0.1)


@pytest.mark.parametrize(
    ("probabilities", "text"), [([0.6, 0.1, 0.9], "owl (0.90), cat (0.60)"), ([0.1, 0.2, 0.3], "nothing")]
)
def test_all_likely_classes_of_several_are_named(probabilities, text):
    values = np.array(probabilities)
    assert str(answer_of(TASKS["multilabel"], PETS, values, values)) == text


def test_classes_without_names_are_numbers():
    assert (
        str(answer_of(TASKS["classification"], LabelSpace(classes=2), np.array([1.0]), np.array([0, 1]))) == "1 (1.00)"
    )


@pytest.mark.parametrize(
    ("names", "values", "text"), [((), [2.5], "2.5"), (("x", "y"), [2.5, -1], "x 2.5, y -1"), (("tilt",), [3], "3")]
)
def test_numbers_are_written_with_their_names(names, values, text):
    assert str(answer_of(TASKS["regression"], LabelSpace(names=names), np.array(values))) == text


def test_a_map_of_classes_is_described_by_its_largest():
    map = np.array([[[0, 0, 2, 2, 2, 2, 1, 0, 0, 0]]])
    answer = answer_of(TASKS["semseg"], PETS, map)
    assert (str(answer), answer.values) == ("cat 50%, owl 40%, dog 10%", {"cat": 0.5, "owl": 0.4, "dog": 0.1})


@pytest.mark.parametrize(
    ("task", "map", "text"),
    [
        ("depth", [[[1.0, 4.25]]], "1 to 4.25 m"),
        ("sal", [[[0.2, 0.6, 0.9, 0.1]]], "50% of the pixels"),
        ("normals", [[[0.0]], [[0.0]], [[1.0]]], "3 channels of 1×1"),
    ],
)
def test_other_maps_are_described_by_their_range(task, map, text):
    assert str(answer_of(TASKS[task], LabelSpace(), np.array(map))) == text
