"""The file on the page about own models runs, and is as short as it should be."""

import re
from pathlib import Path

import pytest

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.in_process import InProcess, InProcessEngine
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.run import run
from fedhca2.federation.server import Server
from small import clients
from small_run import Silent

PAGE = Path(__file__).parents[2] / "docs" / "own-model.md"
PYTHON, YAML = (re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1] for kind in ("python", "yaml"))
BRIEF = ["rounds=1", "baseline=false", "training.batch_size=2"]
BRIEF += ["clients=[{data: outdoor, tasks: [sal]}, {data: indoor, tasks: [depth]}]"]
BRIEF += [
    f"data.{name}.{split}={count}" for name in ("outdoor", "indoor") for split, count in (("train", 2), ("val", 1))
]


@pytest.fixture
def mine(tmp_path):
    """Loads the page's experiment, in a few seconds' size, with these changes to the class's file."""

    def load(*changes, overrides=()):
        text = PYTHON
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        (tmp_path / "my_model.py").write_text(text)
        (tmp_path / "mine.yaml").write_text(YAML)
        return Experiment.load(tmp_path / "mine.yaml", [*BRIEF, *overrides])

    return load


def test_the_file_has_at_most_25_lines_of_code():
    code = [line for line in PYTHON.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 25


@pytest.mark.slow
def test_the_page_runs(mine):
    fleet = InProcess(list(clients(mine()).values()))
    server = Server(mine().resolved_method, fleet.profiles.values())
    assert len(run_rounds(server, fleet, 1, 0, Silent()).scores) == len(mine().specs)


FAULTS = {
    "strides": ([("[4, 2, 2, 2]", "[2, 2, 2, 2]")], "should give a list of maps 2×8×16×16, .*, found 2×8×32×32, "),
    "widths": (
        [("[3, *self.channels]", "[3, width, width, width, width]")],
        "maps 2×8×16×16, 2×16×8×8, .*, found 2×8×16×16, 2×8×8×8",
    ),
    "fewer maps": (
        [("        return maps", "        return maps[:3]")],
        "should give a list of maps .*found 2×8×16×16",
    ),
    "no list": ([("        return maps", "        return maps[0]")], "should give a list of maps .*, found 2×8×16×16"),
    "no channels": ([("self.channels", "self.widths")], "should have `channels`, the widths of its maps, found none"),
    "no module": (
        [("class Ladder(nn.Module):", "class Ladder:")],
        "Ladder should be a class of torch.nn.Module, found",
    ),
    "another name": ([("class Ladder(", "class Leader(")], r"found nothing of that name. Did you mean 'Leader'\?"),
    "an error inside": ([("maps = []", "maps = [][0]")], "should accept what it gets, found IndexError: "),
    "a broken file": ([("import nn", "import nnn")], "my_model.py cannot be imported: ImportError: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_file_is_one_line_before_a_folder_is_made(fault, mine, tmp_path):
    changes, line = FAULTS[fault]
    with pytest.raises(UserError, match=rf"^model: cannot be built: .*{line}[^\n]*$"):
        run(mine(*changes), tmp_path / "run", watcher=Silent(), engine=InProcessEngine())
    assert not (tmp_path / "run").exists()


SETTINGS = {
    "no such file": (["model.encoder.kind=other.py:Ladder"], "other.py cannot be imported: No such file"),
    "unknown setting": (["model.encoder.depth=3"], r"should take width=8, depth=3, found TypeError: .*'depth'"),
    "unknown kind": (["model.encoder.kind=ladder"], "model.encoder: kind should be timm or path/to/file.py:NAME"),
    "a name alone": (["model.encoder=resnet18"], "model.encoder: kind should be timm or path.*found 'resnet18'"),
    "unknown decoder": (["model.decoder=fnc"], "model.decoder: kind should be fcn or deeplab or path/to/file.py:NAME"),
    "unknown head": (["model.head=line"], "model.head: kind should be path/to/file.py:NAME or package.module:NAME"),
    "not a decoder": (["model.decoder=my_model.py:Ladder"], "decoder .*my_model.py:Ladder should "),
    "drops": (["model.encoder.drop_path=0.1"], "drop_path should be 0 if the encoder is a class of your own"),
    "no linear layers": (["model.encoder.adapters={}"], "my_model.py:Ladder' should have linear layers for adapters"),
}


@pytest.mark.parametrize("fault", SETTINGS)
def test_a_wrong_setting_is_one_line(fault, mine):
    overrides, line = SETTINGS[fault]
    with pytest.raises(UserError, match=line) as raised:
        clients(mine(overrides=overrides))
    assert len(raised.value.lines) == 1
