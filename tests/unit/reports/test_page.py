import re
from dataclasses import replace

import numpy as np
import pytest

from fedhca2.reports.figures import Figure
from fedhca2.reports.page import Section, Text
from fedhca2.reports.page.predictions import colour_key, describe_vector, run_galleries
from fedhca2.reports.page.write import render, write_page
from fedhca2.tasks import get_task
from made_run import made_run


def test_two_figures_with_one_id_are_refused():
    sections = [Section(name, [Figure("gains", name, "", [])]) for name in ("results", "transfer")]
    with pytest.raises(ValueError, match="gains"):
        render("twice", sections)


def gallery_of(run, client, title, **arrays):
    """A gallery of a client whose samples are these."""
    np.savez(run.samples_file(client), image=np.zeros((2, 3, 4, 4), np.uint8), **arrays)
    return next(gallery for gallery in run_galleries(run) if gallery.title == title)


def test_a_class_is_right_or_wrong_and_has_no_score(tmp_path):
    labels, ours = np.array([[1.0], [0.0]], np.float32), np.array([[1.0], [1.0]], np.float32)
    arrays = {"label.classification": labels, "before.classification": ours, "after.classification": ours}
    gallery = gallery_of(made_run(tmp_path), "road", "road", **arrays)
    assert [pictures[-1].caption for _, pictures in gallery.rows] == ["right", "wrong"]


def test_measured_values_have_their_unit():
    task = replace(get_task("regression"), unit="°")
    assert describe_vector(task, np.array([-18.09]), ["angle"]) == [("angle: -18.09°", None)]
    assert describe_vector(task, np.array([-18.09]), []) == [("-18.09°", None)]


def test_depth_is_painted_on_the_range_of_its_label(tmp_path):
    near, far = (np.linspace(*ends, 16, dtype=np.float32).reshape(1, 4, 4) for ends in ((1, 2), (3, 9)))
    maps = {f"{when}.depth": np.stack([near, far]) for when in ("label", "before", "after")}
    gallery = gallery_of(made_run(tmp_path), "home", "home, Depth", **maps)
    labels = [pictures[1] for _, pictures in gallery.rows]
    assert sorted(label.caption for label in labels) == ["1.0 to 2.0 m", "3.0 to 9.0 m"]
    assert len({picture.address for _, pictures in gallery.rows for picture in pictures[1:]}) == 1
    assert gallery.key.strip


def test_a_page_explains_the_classes_that_are_seen_and_no_others_and_none_is_black():
    seen = [np.array([[[[0.0, 2.0], [255.0, 2.0]]]])]
    swatches = dict(colour_key(get_task("semseg"), seen, ["wall", "bed", "lamp"]).swatches)
    assert list(swatches) == ["wall", "lamp"]
    assert "#000000" not in swatches.values()


@pytest.mark.parametrize("finished", [True, False])
def test_nothing_is_fetched(tmp_path, finished):
    page = write_page([made_run(tmp_path, finished=finished)], tmp_path / "page.html").read_text("utf-8")
    own = page[: page.index("<script>")] + page[page.index('<script type="application/json"') :]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", own)


def test_what_runs_say_is_text():
    hostile = "<img src=x onerror=alert(1)>"
    plain, page = (
        render(name, [Section(name, [f"`{name}`", Text(name, name), Figure("f", name, name, [{"name": end}])])])
        for name, end in (("", ""), (hostile, f"</script>{hostile}"))
    )
    assert hostile not in page
    assert "<code>&lt;img src=x onerror=alert(1)&gt;</code>" in page
    assert page.count("</script>") == plain.count("</script>")
