import numpy as np
import pytest
from PIL import Image

from fedhca2.errors import UserError
from fedhca2.reports.pictures import GAP, answer_of, overlay, paint, paint_label, samples_panel
from fedhca2.tasks import TASKS, LabelSpace
from made_run import made_run

GREY = (64, 64, 64)


def test_a_panel_has_a_row_for_every_task(tmp_path):
    run = made_run(tmp_path)
    one, two = samples_panel(run, "road", tile=32), samples_panel(run, "home", tile=32)
    assert two.height - one.height == 32 + GAP


@pytest.mark.parametrize(
    ("client", "index", "line"),
    [("nobody", 0, "client 'nobody', got home, road, shop"), ("road", 2, "sample: expected a number below 2")],
)
def test_a_client_or_sample_that_is_not_there_is_an_error(tmp_path, client, index, line):
    with pytest.raises(UserError, match=line):
        samples_panel(made_run(tmp_path), client, index)


def test_an_overlay_has_the_size_of_its_image():
    image, painted = Image.new("RGB", (20, 10), "white"), Image.new("RGB", (10, 5), "black")
    assert overlay(image, painted, strength=0.5).getpixel((19, 9)) == (127, 127, 127)


@pytest.mark.parametrize(
    ("task", "paint", "value", "colour"),
    [(task, paint, np.nan, GREY) for task in ("depth", "normals", "sal")]
    + [("depth", paint_label, 0, GREY), ("depth", paint, 0, (68, 1, 84))],  # unknown in a label, near in a prediction
)
def test_what_is_unknown_is_grey(task, paint, value, colour):
    values = np.full((3 if task == "normals" else 1, 2, 2), value, np.float32)
    assert paint(TASKS[task], values).getpixel((0, 0)) == colour


PETS, UNNAMED = LabelSpace(names=("cat", "dog", "owl")), LabelSpace(classes=2)


@pytest.mark.parametrize(
    ("task", "space", "values", "probabilities", "text"),
    [
        ("classification", PETS, [1.0], [0.2, 0.7, 0.1], "dog (0.70)"),
        ("classification", UNNAMED, [1.0], [0, 1], "1 (1.00)"),
        ("multilabel", PETS, [0.6, 0.1, 0.9], [0.6, 0.1, 0.9], "owl (0.90), cat (0.60)"),
        ("multilabel", PETS, [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], "nothing"),
        ("regression", LabelSpace(), [2.5], None, "2.5"),
        ("regression", LabelSpace(names=("x", "y")), [2.5, -1], None, "x 2.5, y -1"),
        ("regression", LabelSpace(names=("tilt",)), [3], None, "3"),
        ("semseg", PETS, [[[0, 0, 2, 2, 2, 2, 1, 0, 0, 0]]], None, "cat 50%, owl 40%, dog 10%"),
        ("depth", LabelSpace(), [[[1.0, 4.25]]], None, "1 to 4.25 m"),
        ("sal", LabelSpace(), [[[0.2, 0.6, 0.9, 0.1]]], None, "50% of the pixels"),
        ("normals", LabelSpace(), [[[0.0]], [[0.0]], [[1.0]]], None, "3 channels of 1×1"),
    ],
)
def test_a_prediction_is_put_into_words(task, space, values, probabilities, text):
    probabilities = probabilities and np.array(probabilities)
    assert str(answer_of(TASKS[task], space, np.array(values), probabilities)) == text


def test_an_answer_has_the_numbers_behind_its_words():
    answer = answer_of(TASKS["classification"], PETS, np.array([1.0]), np.array([0.2, 0.7, 0.1]))
    assert (answer.value, answer.values["owl"]) == (0.7, 0.1)
    map = np.array([[[0, 0, 2, 2, 2, 2, 1, 0, 0, 0]]])
    assert answer_of(TASKS["semseg"], PETS, map).values == {"cat": 0.5, "owl": 0.4, "dog": 0.1}
