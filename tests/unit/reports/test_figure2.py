"""A small version of MaT-FL's figure 2: its experiment draws the map of updates and changes no model."""

import json
import re

import numpy as np
import pytest

from fedhca2.reports.page.write import write_page
from fedhca2.run_folder.reader import RunFiles
from in_the_small import in_the_small
from small_run import models, run_small

pytestmark = pytest.mark.slow
KINDS = {
    *(f"pascal-{task}" for task in ("semseg", "human_parts", "normals", "edge", "sal")),
    *(f"nyud-{task}" for task in ("semseg", "normals", "edge", "depth")),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with one client of each kind, not ten."""
    out = tmp_path_factory.mktemp("figure2") / "run"
    run_small(in_the_small("matfl/figure2", lambda entry: {**entry, "copies": 1}), out)
    return RunFiles.open(out)


def test_the_page_has_a_map_with_every_kind_of_client(run):
    page = write_page([run], run.path / "page.html").read_text("utf-8")
    figures = json.loads(re.search(r'id="figures"[^>]*>(.*?)</script>', page, re.DOTALL).group(1))
    *points, _, _ = figures["map-encoder"]["data"]
    assert {trace["name"] for trace in points} == KINDS
    assert np.isfinite([[*trace["x"], *trace["y"]] for trace in points]).all()
    assert len({trace["marker"]["color"] for trace in points}) == 9


def test_models_are_those_of_clients_that_train_alone(run, tmp_path):
    run_small(run.experiment().with_method("local"), tmp_path / "local")
    alone, federated = models(tmp_path / "local"), models(run.path)
    assert all(tensor.equal(federated[name][key]) for name, own in alone.items() for key, tensor in own.items())
