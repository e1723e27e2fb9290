"""The example with sensors, whose data, task and model are all defined outside the package: everywhere it can run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from federations import PowerCutError, Watching, assert_equal, engine_of, in_memory, run_over
from in_process_grid import InProcessGrid
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.deployment.export import export
from fedhca2.deployment.trained import Trained, evaluate, predict_files
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.flower.deploy.consent import Invitation, RefusalError
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.local import write_sites
from fedhca2.federation.run import resume, run
from fedhca2.methods import METHODS
from fedhca2.reports.page.write import write_page
from fedhca2.run_folder.reader import RunFiles

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).parents[2] / "examples" / "sensors.yaml"
BRIEF = ["baseline=false", "rounds=2", "training.batch_size=4", "checkpoints.every=1"]
BRIEF += [f"data.{name}.count=8" for name in ("press", "pump", "fan")]


def sensors(*changes):
    return Experiment.load(CONFIG, [*BRIEF, *changes])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("sensors") / "run"
    run(sensors(), out, watcher=Watching())
    return out


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_an_own_model(method):
    _, scores = in_memory(sensors(f"method={method}", "rounds=1"))
    tasks = {client: {*of_client} for client, of_client in scores.items()}
    assert tasks == {"press": {"fault"}, "pump": {"life"}, "fan": {"fault", "life"}}


def test_an_own_model_is_the_same_over_flower_and_after_a_crash(tmp_path):
    expected, scores = in_memory(sensors())

    def grid():
        files = write_sites(sensors(), tmp_path / "sites")
        sites = {name: Site(SiteConfig.load(path)) for name, path in files.items()}
        return InProcessGrid({name: make_app(site) for name, site in sites.items()}), sites

    with pytest.raises(PowerCutError):
        run_over(grid()[0], sensors(), tmp_path / "run", Watching(fails_in=1))
    again, sites = grid()
    assert resume(tmp_path / "run", watcher=Watching(), engine=engine_of(again)).clients == scores
    assert_equal({name: site.client.personal.model.state_dict() for name, site in sites.items()}, expected)


@pytest.mark.parametrize("part", ["Temporal", "Pool", "Line"])
def test_a_site_runs_no_code_that_it_does_not_list(part, tmp_path):
    site = SiteConfig.load(write_sites(sensors(), tmp_path)["press"])
    fewer = tuple(path for path in site.encoders if not path.endswith(part))
    with pytest.raises(RefusalError, match=rf"\.kind: .*\(encoders in site.yaml\), got '.*{part}'"):
        Invitation.for_experiment(sensors(), "run1").accept(site.model_copy(update={"encoders": fewer}))


def test_an_own_model_resumes_bit_for_bit(done, tmp_path):
    with pytest.raises(PowerCutError):
        run(sensors(), tmp_path, watcher=Watching(fails_in=1))
    resume(tmp_path, watcher=Watching())
    for client in ("press", "fan"):
        found, expected = (Trained.open(out, client).model().state_dict() for out in (tmp_path, done))
        assert_equal({client: found}, {client: expected})


def test_an_own_model_has_a_page_and_is_scored_again_and_predicts_readings_but_no_images(done, tmp_path):
    assert "press" in write_page([RunFiles(done)], tmp_path / "page.html").read_text()
    assert evaluate(done, lambda client: None).clients == RunFiles(done).outcome.clients
    fan = Trained.open(done, "fan")
    shapes = {task: values.shape for task, values in fan.predict(np.zeros((3, 64))).items()}
    assert shapes == {"fault": (1,), "life": (1,)}
    with pytest.raises(UserError, match="--client fan: expected images"):
        list(predict_files(fan, [], tmp_path))
    with pytest.raises(UserError, match="--client fan: expected images"):
        export(fan, "safetensors", tmp_path)


def test_own_readings_are_checked_and_not_painted():
    assert CliRunner().invoke(app, ["data", "check", str(CONFIG)]).exit_code == 0
    painted = CliRunner().invoke(app, ["data", "info", str(CONFIG), "--name", "press"])
    assert (painted.exit_code, "images to paint" in painted.output) == (2, True)


FAULTS = {
    "another shape": ("(SENSORS, READINGS)", "(SENSORS, 32)", r"data\.press: train\[\d+\]: 'input': expected 3×32"),
    "a decoder's width": (
        "sum(channels), width)",
        "sum(channels), width + 1)",
        r"decoder .*sensors.py:Pool: expected features \[B, 32, …\], got 2×33",
    ),
    "a head's width": (
        "class Line(nn.Linear):",
        "class Line(nn.Identity):",
        r"head .*sensors.py:Line: expected \[B, 4\], got 2×32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_in_own_code_is_named(fault, tmp_path):
    before, after, line = FAULTS[fault]
    (tmp_path / "sensors.py").write_text(CONFIG.with_suffix(".py").read_text().replace(before, after))
    (tmp_path / "sensors.yaml").write_text(CONFIG.read_text())
    with pytest.raises(UserError, match=line):
        in_memory(Experiment.load(tmp_path / "sensors.yaml", BRIEF))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("model={encoder: {name: swin_micro}}", r"encoder and decoder: expected both mlp, .* got swin_micro and fcn"),
        ("model.encoder.adapters={rank: 2}", "expected linear layers for adapters"),
    ],
)
def test_an_encoder_that_cannot_read_vectors_or_be_adapted_is_refused(change, line):
    with pytest.raises(UserError, match=line):
        in_memory(sensors(change))


def test_an_own_frozen_encoder_does_not_change():
    start, _ = in_memory(sensors("rounds=1", "model.encoder.frozen=true"))
    end, _ = in_memory(sensors("model.encoder.frozen=true"))
    names = [name for name in start["fan"] if name.startswith("encoder.")]
    assert all(torch.equal(start["fan"][name], end["fan"][name]) for name in names)
