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


def single(entry):
    """One client of each kind, not ten."""
    return {**entry, "copies": 1}


@pytest.fixture(scope="module")
def experiment():
    return in_the_small("matfl/figure2", single)


@pytest.fixture(scope="module")
def run(experiment, tmp_path_factory):
    out = tmp_path_factory.mktemp("figure2") / "run"
    run_small(experiment, out)
    return RunFiles.open(out)


@pytest.fixture(scope="module")
def figures(run):
    """The figures on its page."""
    page = write_page([run], run.path / "page.html").read_text("utf-8")
    return json.loads(re.search(r'id="figures"[^>]*>(.*?)</script>', page, re.DOTALL).group(1))


def test_the_page_has_a_map_with_every_kind_of_client(figures):
    *points, _, _ = figures["map-encoder"]["data"]
    assert {trace["name"] for trace in points} == KINDS
    assert np.isfinite([[*trace["x"], *trace["y"]] for trace in points]).all()
    assert len({trace["marker"]["color"] for trace in points}) == 9


def test_models_are_those_of_clients_that_train_alone(experiment, run, tmp_path):
    run_small(experiment.with_method("local"), tmp_path / "local")
    alone, federated = models(tmp_path / "local"), models(run.path)
    assert all(tensor.equal(federated[name][key]) for name, own in alone.items() for key, tensor in own.items())
