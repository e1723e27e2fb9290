"""The file on the page about own models runs, and is as short as it should be."""

import re
from pathlib import Path

import pytest

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import InProcessEngine
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.run import run
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from small import BRIEF, clients
from small_run import Silent

PAGE = Path(__file__).parents[2] / "docs" / "own-model.md"
(PYTHON, INTERACTION), (YAML, EXCHANGING) = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL) for kind in ("python", "yaml")
)
FEW = [*BRIEF, "baseline=false", "clients=[{data: outdoor, tasks: [sal]}, {data: indoor, tasks: [depth]}]"]
FEW += ["data.outdoor.train=2", "data.indoor.train=2"]


@pytest.fixture
def mine(tmp_path):
    """Loads the page's experiment, in a few seconds' size, with a change to the class's file."""

    def load(before="width=16", after="width=16", overrides=()):
        assert before in PYTHON
        (tmp_path / "my_model.py").write_text(PYTHON.replace(before, after))
        (tmp_path / "mine.yaml").write_text(YAML)
        return Experiment.load(tmp_path / "mine.yaml", [*FEW, *overrides])

    return load


def test_the_file_has_at_most_25_lines_of_code():
    code = [line for line in PYTHON.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 25


@pytest.mark.slow
def test_the_page_runs(mine):
    fleet = InProcess(list(clients(mine()).values()))
    server = Server(mine().resolved_method, fleet.profiles.values())
    assert len(run_rounds(server, fleet, 1, 0, Silent()).scores) == len(mine().specs)


@pytest.fixture
def exchanging(tmp_path):
    """Loads the page's experiment with an interaction, in a few seconds' size, with a change to the class's file."""

    def load(before="maps", after="maps"):
        assert before in INTERACTION
        (tmp_path / "my_interaction.py").write_text(INTERACTION.replace(before, after))
        (tmp_path / "exchanging.yaml").write_text(EXCHANGING)
        home = "clients=[{data: outdoor, tasks: [sal]}, {name: home, data: indoor, tasks: [depth, normals]}]"
        return Experiment.load(tmp_path / "exchanging.yaml", [*FEW, home])

    return load


def test_the_page_s_interaction_learns_and_is_never_sent(exchanging):
    home = clients(exchanging())["home"]
    reply = home.perform(Order(0, upload=exchanging().resolved_method.uploads(0)))
    assert home.personal.model.interaction.strength != 0
    assert {slot.part for slot in reply.rows} == {"encoder", "decoder"}
    assert not any("strength" in name for slot in reply.rows for name in home.layouts[slot].names)


FAULTS = {
    "strides": ("[4, 2, 2, 2]", "[2, 2, 2, 2]", "expected a list of maps 2×8×16×16, .*, got 2×8×32×32, "),
    "widths": (
        "[3, *self.channels]",
        "[3, width, width, width, width]",
        "maps 2×8×16×16, 2×16×8×8, .*, got 2×8×16×16, 2×8×8×8",
    ),
    "fewer maps": ("        return maps", "        return maps[:3]", "expected a list of maps .*got 2×8×16×16"),
    "no list": ("        return maps", "        return maps[0]", "expected a list of maps .*, got a tensor 2×8×16×16"),
    "no channels": ("self.channels", "self.widths", "expected `channels`, the widths of its maps, got none"),
    "no module": ("class Ladder(nn.Module):", "class Ladder:", "Ladder: expected a class of torch.nn.Module, got"),
    "another name": ("class Ladder(", "class Leader(", r"got nothing of that name. Did you mean 'Leader'\?"),
    "an error inside": ("maps = []", "maps = [][0]", r"test input, got IndexError: .* \(my_model.py, line 20\)"),
    "an error far inside": ("maps.append(step(", "maps.append(step(0, ", r"TypeError: .* \(my_model.py, line 22\)"),
    "an error in the constructor": ("super()", "_ = 1 / 0; super()", r"ZeroDivisionError: .* \(my_model.py, line"),
    "an error in the file": ("class Ladder", "1 / 0\nclass Ladder", r"imported: ZeroDivisionError: .*line 5\)"),
    "a missing setting": ("width=16", "depth, width=16", "Ladder: expected a setting 'depth', got none"),
    "unknown types": ("width=16", "width: 'Nothing' = 16", "Ladder: expected parameters with types, got NameError"),
    "a broken file": ("import nn", "import nnn", "my_model.py cannot be imported: ImportError: "),
}


INTERACTION_FAULTS = {
    "no maps": ("return {task: ", "return {'x': ", "expected maps {'depth': '2×64×16×16', .*, got {'x': "),
    "no parameters": ("(self, tasks, width)", "(self)", r"made with \(\('depth', 'normals'\), 64\), got TypeError"),
}


@pytest.mark.parametrize("fault", [*FAULTS, *INTERACTION_FAULTS])
def test_a_fault_in_the_file_is_one_line_before_a_folder_is_made(fault, mine, exchanging, tmp_path):
    load, part = (mine, "") if fault in FAULTS else (exchanging, r"interaction \S*my_interaction.py:Gate")
    before, after, line = (FAULTS | INTERACTION_FAULTS)[fault]
    with pytest.raises(UserError, match=rf"^model: cannot be built: {part}.*{line}[^\n]*$"):
        run(load(before, after), tmp_path / "run", watcher=Silent(), engine=InProcessEngine())
    assert not (tmp_path / "run").exists()


SETTINGS = {  # the class's own setting, an override, and the message
    "no such file": ("", "model.encoder.kind=other.py:Ladder", "other.py cannot be imported: No such file"),
    "unknown setting": ("", "model.encoder.depth=3", "Ladder: unknown setting 'depth'"),
    "unknown kind": ("", "model.encoder.kind=ladder", "model.encoder: kind: expected timm or mlp or path/to/file"),
    "a name alone": ("", "model.encoder=resnet18", "model.encoder: kind: expected timm or mlp or path.*got 'resnet18'"),
    "unknown decoder": ("", "model.decoder=fnc", "model.decoder: kind: expected fcn or deeplab or mlp or path/to/file"),
    "unknown interaction": ("", "model.interaction=attend", "model.interaction: kind: expected cross_attention or "),
    "unknown head": ("", "model.head=line", "model.head: kind: expected transposed or linear or path/to/file.py:NAME"),
    "not a decoder": ("", "model.decoder=my_model.py:Ladder", r"Ladder: expected .* \(\[8, 16, 32, 64\], 32\), got"),
    "drops": ("", "model.encoder.drop_path=0.1", "drop_path: expected 0, since the encoder is .*my_model.py:Ladder"),
    "no linear layers": ("", "model.encoder.adapters={}", "my_model.py:Ladder': expected linear layers for adapters"),
    "text": ("width: int = 16", "model.encoder.width=wide", "Ladder: width: expected a whole number, got 'wide'"),
    "a boolean": ("width: int = 16", "model.encoder.width=true", "Ladder: width: expected a number, got True"),
    "a mapping": ("width=16, *, steps: list[int] = ()", "model.encoder.steps={a: 1}", "Ladder: steps: expected a list"),
    "a part": ("width=16, *, steps: tuple[int, ...] = ()", "model.encoder.steps=[1, x]", r"steps\[1\]: expected a"),
}


def test_settings_of_types_that_no_config_has_are_the_class_s_own_matter(mine):
    assert clients(mine("width=16", "width=16, norm: nn.Module | None = None"))


@pytest.mark.parametrize(("change", "got"), [("maps[0]", "a tensor 2×8×16×16"), ("None", "NoneType")])
def test_an_encoder_without_a_list_of_maps_is_refused_before_projection(mine, change, got):
    with pytest.raises(UserError, match=rf"expected a list of maps 2×8×16×16, .*, got {got}"):
        clients(mine("        return maps", f"        return {change}", overrides=["model.feature_width=8"]))


@pytest.mark.parametrize("fault", SETTINGS)
def test_a_wrong_setting_is_one_line(fault, mine):
    declared, override, line = SETTINGS[fault]
    with pytest.raises(UserError, match=line) as raised:
        clients(mine("width=16", declared or "width=16", overrides=[override]))
    assert len(raised.value.lines) == 1
