import re
from pathlib import Path

import pytest
import yaml

from fedhca2.aggregation import Mean
from fedhca2.methods import (
    METHODS,
    Attentive,
    ConflictAverse,
    CrossAttention,
    HyperWeights,
    Method,
    resolve,
    settings_of,
)
from fedhca2.objectives import Attracted, Proximal

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text("utf-8")
OUTSIDE = """
from fedhca2.aggregation import Mean
from fedhca2.methods import Method

OURS = Method(encoder=Mean(by="samples"))
BOTH = Method(encoder=Mean(by="samples"), decoder=Mean(every=5))
NUMBER = 3
"""


@pytest.mark.parametrize("line", re.findall(r"^method: (\{[^#\n]+\})", PAGE, re.MULTILINE))
def test_what_the_page_of_methods_writes_is_a_method(line):
    settings = yaml.safe_load(line)
    name = settings.pop("name")
    assert name.endswith(":MINE") or resolve(name, settings) != METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_reference_a_row_on_the_page_and_its_settings(name):
    method = METHODS[name]
    assert method.reference
    assert re.search(rf"^(\| |## |\*\*).*`{name}`", PAGE, re.MULTILINE)
    assert resolve("local", method.model_dump(mode="json")) == resolve(name, settings_of(method)) == method


MEAN, BY_IMAGES = Mean(), Mean(by="samples")


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("fedamp", {"alpha": 0.5}, {"decoder": Attentive(alpha=0.5), "local": Attracted(alpha=0.5)}),
        ("fedavg", {"decoder": {"by": "samples"}}, {"encoder": MEAN, "decoder": BY_IMAGES}),
        ("fedavg", {"by": "samples", "decoder": {"by": "clients"}}, {"encoder": BY_IMAGES, "decoder": MEAN}),
        ("fedhca2", {"decoder": None}, {"encoder": ConflictAverse(), "decoder": None}),
        ("fedper", {"decoder": {"kind": "cross_attention", "beta": 0.5}}, {"decoder": CrossAttention(beta=0.5)}),
        ("fedper", {"local": {"kind": "proximal", "mu": 0.5}}, {"local": Proximal(mu=0.5)}),
        ("fedhca2", {"clamp": "project", "batch_norm": "average"}, {"weights": HyperWeights(clamp="project")}),
        ("fedhca2", {"lr": 0.05, "learn": False}, {"weights": HyperWeights(lr=0.05, learn=False)}),
    ],
)
def test_settings_go_to_every_component_that_has_them_or_to_the_named_one(name, settings, expected):
    method = resolve(name, settings)
    assert {part: getattr(method, part) for part in expected} == expected
    assert resolve(name, method.model_dump(mode="json")) == method


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("fedhca3", {}, "expected a method, got 'fedhca3'. Did you mean 'fedhca2'?"),
        ("fedhca2", {"alhpa": 0.2}, "fedhca2: unknown setting 'alhpa'. Did you mean 'alpha'?"),
        ("fedhca2", {"c": 1.5}, "fedhca2: encoder.c: expected less than 1, got 1.5"),
        ("fedhca2", {"encoder": {"radius": 1}}, "fedhca2: encoder.radius: unknown key. (kind, every, alpha"),
        ("fedhca2", {"encoder": {"kind": "maen"}}, "got 'maen'. Did you mean 'mean'?"),
        ("fedhca2", {"encoder": 3}, "fedhca2: encoder: expected settings by name"),
        ("fedhca2", {"batch_norm": "x"}, "fedhca2.batch_norm: expected 'local', 'average' or 'recalibrate', got"),
        ("fedamp", {"batch_norm": "average"}, "fedamp: batch_norm: expected 'local'"),
        ("fedbn", {"batch_norm": "average"}, "since norms stay local"),
        ("fedhca2", {"local": None}, "fedhca2: local: expected settings by name"),
        ("fedhca2", {"c": [1, 2]}, "fedhca2: encoder.c: expected a number, got [1, 2]"),
        ("fedper", {"decoder": {"beta": 1}}, "fedper: decoder.kind: expected a known kind, got none."),
        ("fedper", {"decoder": {"kind": []}}, "fedper: decoder.kind: expected a known kind, got []."),
        ("fedavg", {"lr": 0.1}, "fedavg: unknown setting 'lr'."),
        ("no.such.module:X", {}, "no.such.module cannot be imported"),
        ("no_such_file.py:X", {}, "no_such_file.py cannot be imported"),
    ],
)
def test_a_mistake_is_named_in_one_line(name, settings, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        resolve(name, settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_comes_from_a_file_or_a_module(tmp_path, monkeypatch):
    (outside := tmp_path / "ours.py").write_text(OUTSIDE)
    assert resolve(f"{outside}:OURS", {"by": "clients"}) == Method(encoder=Mean())
    monkeypatch.syspath_prepend(outside.parent)
    assert resolve("ours:OURS") == Method(encoder=Mean(by="samples"))
    with pytest.raises(ValueError, match=r"expected encoder\.every or decoder\.every"):
        resolve(f"{outside}:BOTH", {"every": 3})
    with pytest.raises(ValueError, match=r"NUMBER: expected a Method, got int. \(OURS, BOTH\)"):
        resolve(f"{outside}:NUMBER")


@pytest.mark.parametrize("settings", [{"fine_tune_epochs": 3}, {"local": {"kind": "frozen", "fine_tune_epochs": 3}}])
def test_configs_and_run_folders_with_the_old_name_of_the_last_epochs_can_be_read(settings):
    assert resolve("fedbabu", settings) == resolve("fedbabu", {"final_epochs": 3})
