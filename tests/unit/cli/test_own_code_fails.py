"""A user's own model, task, data set or method that fails, and methods that exchange nothing."""

import pytest
import yaml

from command import invoke, printed, refused
from small import SMALL
from small_run import SETTINGS

OWN = """from torch import nn
from fedhca2.tasks import Task, metrics

class Encoder(nn.Module):
    channels = [4, 4, 4, 4]

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(nn.Conv2d(*each) for each in ((3, 4, 4, 4), *[(4, 4, 2, 2)] * 3))
        self.calls = 0

    def forward(self, image):
        self.calls += 1
        maps = [image]
        for step in self.steps:
            maps.append(step(maps[-1]))
        return maps[1:] if self.calls < 5 else maps["later"]

def loss(output, label):
    raise KeyError("any")

PEOPLE = Task(
    name="count", output="vector", channels=1, loss=loss, predict=lambda output: output,
    metric=lambda space: metrics.VectorMAE(),
)
"""
CHANGES = {
    "model": {"model": {"encoder": {"kind": "own.py:Encoder"}, "decoder_width": 8}, "method": "fedavg"},
    "loss": {"tasks": {"people": "own.py:PEOPLE"}, "clients": [{"data": "outdoor", "tasks": ["people"], "copies": 2}]},
}


@pytest.mark.slow
@pytest.mark.parametrize(("part", "what"), [("model", "TypeError"), ("loss", "KeyError")])
def test_code_that_fails_in_training_is_one_line_with_its_client_file_and_line(tmp_path, part, what):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SMALL, **CHANGES[part]}))
    done = invoke("run", tmp_path / "small.yaml", "--out", tmp_path / "run")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.exit_code, line.startswith("error: client '")) == (2, True)
    assert (what in line, "(own.py, line " in line) == (True, True), line


BROKEN = """class Broken:
    labels, size = {"depth": None}, (32, 32)

    def __init__(self, split):
        pass

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {}["later"]
"""


@pytest.mark.parametrize("requested", [True, False])
@pytest.mark.parametrize("command", [["data", "info"], ["run", "--dry-run"]])
def test_the_traceback_of_own_code_is_printed_on_request(tmp_path, command, requested):
    (tmp_path / "own.py").write_text(BROKEN)
    clients = {"training": {"batch_size": 2}, "clients": [{"data": "own", "tasks": ["depth"]}]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"data": {"own": {"kind": "own.py:Broken"}}, **clients}))
    done = invoke(*command, tmp_path / "own.yaml", *["--traceback"] * requested)
    assert done.exit_code == 2
    assert "(own.py, line 11)" in done.stderr
    assert ('return {}["later"]' in done.stderr) == requested


METHOD = """
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
    (tmp_path / "own.py").write_text(METHOD)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SETTINGS, "method": "own.py:OWN"}))
    return tmp_path / "small.yaml"


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
def test_a_method_that_fails_is_one_line_before_anything_is_written(config, how):
    line = refused("run", config, "--out", config.parent / "run", *how)
    assert line.startswith("error: method.encoder: Own of own.py: ")
    assert ("IndexError" in line, "(own.py, line 9)" in line) == (True, True), line
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
    printed("run", config, "--dry-run", "--set", "method=fedhca2", *changes)
    assert ("no client gets anything from others" in caplog.text) == warned
