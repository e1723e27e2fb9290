import numpy as np
import pytest
from PIL import Image

from fedhca2.errors import UserError
from fedhca2.reports.pictures import GAP, overlay, paint, paint_label, samples_panel
from fedhca2.tasks import TASKS
from made_run import SIZE, made_run


def test_a_panel_has_a_row_for_every_task(tmp_path):
    run = made_run(tmp_path)
    one, two = samples_panel(run, "road", tile=32), samples_panel(run, "home", tile=32)
    assert two.height - one.height == 32 + GAP


def test_an_unknown_client_is_named_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match="client 'nobody', got home, road, shop"):
        samples_panel(made_run(tmp_path), "nobody")


def test_a_sample_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UserError, match="sample: expected a number below 2"):
        samples_panel(made_run(tmp_path), "road", index=2)


def test_unknown_depth_is_grey_in_a_label_and_near_in_a_prediction():
    nothing = np.zeros((1, SIZE, SIZE), dtype=np.float32)
    assert paint_label(TASKS["depth"], nothing).getpixel((0, 0)) == (64, 64, 64)
    assert paint(TASKS["depth"], nothing).getpixel((0, 0)) == (68, 1, 84)


def test_an_overlay_has_the_size_of_its_image():
    image, painted = Image.new("RGB", (20, 10), "white"), Image.new("RGB", (10, 5), "black")
    assert overlay(image, painted, strength=0.5).getpixel((19, 9)) == (127, 127, 127)


@pytest.mark.parametrize("task", ["depth", "normals", "sal"])
def test_what_is_no_number_is_grey(task):
    unknown = np.full((3 if task == "normals" else 1, 2, 2), np.nan, np.float32)
    assert paint(TASKS[task], unknown).getpixel((0, 0)) == (64, 64, 64)
