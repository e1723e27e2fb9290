"""A user's own method in commands."""

import pytest
import yaml
from typer.testing import CliRunner

from fedhca2.cli import app
from small_run import SETTINGS

OWN = """
from fedhca2.methods import Aggregator, Blend, Method, Mixing

class Own(Aggregator):
    sends = "updates"
    measure = "rows"

    def mixing(self, products, members, layout):
        return Mixing("start", (Blend(products[999], (0,) * len(members)),))

OWN = Method(encoder=Own())
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SETTINGS, "method": "own.py:OWN"}))
    return tmp_path / "small.yaml"


def run(config, *more):
    words = ["run", config, "--out", config.parent / "run", *more]
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
def test_a_method_that_fails_is_one_line_before_anything_is_written(config, how):
    done = run(config, *how)
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert done.output.startswith("error: method.encoder: Own of own.py: ")
    assert "IndexError" in done.output
    assert "(own.py, line 9)" in done.output
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ([], False),
        (["--set", "method=local"], False),
        (["--set", "method=single_task_fl"], True),
        (["--set", 'clients=[{"data": "outdoor", "tasks": ["sal"]}]'], True),
    ],
)
def test_a_federation_without_any_exchange_is_warned_of(config, changes, warned, caplog):
    done = run(config, "--dry-run", "--set", "method=fedhca2", *changes)
    assert done.exit_code == 0, done.output
    assert ("no client gets anything from others" in caplog.text) == warned
