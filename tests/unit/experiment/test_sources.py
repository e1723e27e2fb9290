import pytest
import yaml

from fedhca2.configs import built_in_experiments
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import merged, read_config


def test_a_config_holds_what_it_extends_except_what_that_says_of_itself(tmp_path):
    base = "name: base\ntitle: The base\nbelongs_to: [Table 1]\nrounds: 3\n"
    (tmp_path / "base.yaml").write_text(f"{base}model: {{decoder_width: 8, encoder: {{drop_path: 0.1}}}}\n")
    (tmp_path / "own.yaml").write_text("extends: base.yaml\nmodel: {encoder: {drop_path: 0.2}}\n")
    model = {"decoder_width": 8, "encoder": {"drop_path": 0.2}}
    assert read_config(tmp_path / "own.yaml") == {"name": "own", "rounds": 3, "model": model}


def test_another_kind_or_method_replaces_all_settings_of_the_first():
    assert merged({"kind": "nyud", "root": "x"}, {"kind": "scenes"}) == {"kind": "scenes"}
    assert Experiment.load("demo", ["method.name=fedavg"]).method == {"name": "fedavg"}


def test_a_file_that_extends_another_can_have_its_own_name(tmp_path):
    (tmp_path / "own.yaml").write_text("extends: demo\nname: mine\nrounds: 7\n")
    experiment = Experiment.load(tmp_path / "own.yaml")
    assert (experiment.name, experiment.rounds, experiment.specs) == ("mine", 7, Experiment.load("demo").specs)


BASES = {  # what a config extends, the content of b.yaml in its folder, and the message
    "b.yaml": ("extends: a.yaml\n", "does not extend this one"),
    "./b.yaml": ("[1, 2]\n", r"b\.yaml: expected a mapping of keys to values, got \[1, 2\]"),
    "././b.yaml": ("rounds: [1", "not valid YAML"),
    "demmo": ("", r"extends: expected a \.yaml file or a built-in experiment, got 'demmo'"),
    **dict.fromkeys(["a" * 5000, "a" * 5000 + ".yaml", "a\0b", "a\0b.yaml", "/etc/hostname", "../demo", ""], ("", "")),
}


@pytest.mark.parametrize("name", BASES)
def test_a_base_that_cannot_be_read_is_one_line(tmp_path, name):
    content, message = BASES[name]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"extends": name}))
    (tmp_path / "b.yaml").write_text(content)
    with pytest.raises(UserError, match=message) as refused:
        read_config(tmp_path / "a.yaml")
    assert len(refused.value.lines) == 1


@pytest.mark.parametrize(("own", "is_inherited"), [("rounds: 7", True), ("training: {learning_rate: fast}", False)])
def test_a_fault_in_a_file_that_is_extended_names_that_file(tmp_path, own, is_inherited):
    (tmp_path / "own.yaml").write_text(f"extends: base.yaml\n{own}\n")
    (tmp_path / "base.yaml").write_text("extends: demo\ntraining: {learning_rate: fast}\n")
    with pytest.raises(UserError, match=r"training\.learning_rate: .* got 'fast'") as refused:
        Experiment.load(tmp_path / "own.yaml")
    assert ("base.yaml)" in str(refused.value), "(in demo)" in str(refused.value)) == (is_inherited, False)


def test_a_misspelt_experiment_gets_a_suggestion():
    with pytest.raises(UserError, match=r"Did you mean 'fedhca2/scenario1'\?"):
        read_config("fedhca2/scenaro1")


def test_every_experiment_has_a_title_and_every_table_an_experiment():
    listings = built_in_experiments()
    for listing in listings:
        assert listing.title
        unprinted = listing.name == "fedhca2/table3/fixed-weights"  # an ablation that no table has
        assert bool(listing.belongs_to) == ("/" in listing.name and not unprinted)
    numbers = {
        "Table": range(1, 6),
        "Figure": range(4, 8),
        "Supplementary table": range(1, 9),
        "Supplementary figure": range(1, 6),
        "MaT-FL table": (1, 2),
        "MaT-FL figure": (2, 4, 5, 6),
    }
    items = {f"{kind} {number}" for kind, numbers_of_kind in numbers.items() for number in numbers_of_kind}
    assert items <= {item for listing in listings for item in listing.belongs_to}
