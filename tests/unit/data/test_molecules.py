"""Molecules with measured affinities, from files like those of MoleculeACE."""

from importlib.util import find_spec

import numpy as np
import pytest

from command import printed
from fedhca2.deployment import Trained
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from own_experiments import fault, opened, write_experiment, write_table

pytest.importorskip("rdkit", reason="needs fedhca2[molecules]")

RINGS = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccc2ccccc2c1", "C1CCNC1", "c1ccoc1", "C1NCCNC1", "C1CCCCCC1")


def molecules():
    """Rings with chains; the longer the chain, the more potent."""
    return [(f"{ring}{'C' * length}O", length / 2 - 5) for ring in RINGS for length in range(1, 7)]


def write(folder, target="CHEMBL1_Ki", change=lambda rows: None):
    rows = [
        {"smiles": smiles, "y": y, "split": "test" if i % 4 == 3 else "train"}
        for i, (smiles, y) in enumerate(molecules())
    ]
    change(rows)
    write_table(folder / f"{target}.csv", rows)


def experiment_in(folder, targets=("CHEMBL1_Ki",), **settings):
    return write_experiment(
        folder,
        rounds=40,
        model={"encoder": {"kind": "mlp", "widths": [16, 8]}},
        training={"batch_size": 8, "learning_rate": 0.01},
        tasks=dict.fromkeys(targets, "regression"),
        data={"lab": {"kind": "molecules", "folder": ".", "targets": list(targets), **settings}},
        clients=[{"data": "lab", "tasks": list(targets)}],
    )


def test_inputs_are_fingerprints_labels_are_in_their_unit_and_the_split_is_the_files(tmp_path):
    write(tmp_path)
    path = experiment_in(tmp_path)
    data = opened(path)
    labels = [float(data.load(i, ["CHEMBL1_Ki"])["CHEMBL1_Ki"]) for i in range(len(data))]
    assert data.size == (1024,)
    assert set(data.load(0, [])["image"].unique().tolist()) == {0, 1}
    assert labels == pytest.approx([value + 9 for i, (_, value) in enumerate(molecules()) if i % 4 != 3])
    assert opened(path, "val").ids == [smiles for i, (smiles, _) in enumerate(molecules()) if i % 4 == 3]


def test_a_split_by_scaffold_keeps_rings_apart(tmp_path):
    write(tmp_path)
    path = experiment_in(tmp_path, split_by="scaffold")
    ids = [opened(path, split).ids for split in ("train", "val")]
    train, val = ({ring for ring in RINGS for smiles in each if smiles.startswith(f"{ring}C")} for each in ids)
    assert (bool(train), bool(val), train & val) == (True, True, set())


def test_a_molecule_that_two_targets_measured_has_both_labels(tmp_path):
    write(tmp_path)
    write(tmp_path, "CHEMBL2_EC50", lambda rows: rows.__delitem__(slice(8, None)))
    data = opened(experiment_in(tmp_path, ["CHEMBL1_Ki", "CHEMBL2_EC50"]))
    counts = [(~np.isnan(data.load(i, [task])[task].numpy())).sum() for task in data.labels for i in range(len(data))]
    assert (sum(counts[: len(data)]), sum(counts[len(data) :])) == (36, 6)


def test_most_bounds_the_molecules_for_training(tmp_path):
    write(tmp_path)
    path = experiment_in(tmp_path, most=10)
    assert (len(opened(path)), len(opened(path, "val"))) == (10, 12)
    assert opened(path).ids != opened(experiment_in(tmp_path, most=10, seed=1)).ids


def test_a_trained_model_answers_smiles_with_a_pki(tmp_path):
    write(tmp_path)
    printed("run", experiment_in(tmp_path), "--out", tmp_path / "run")
    trained = Trained.open(tmp_path / "run", "lab")
    short, long = (trained.answer(f"c1ccccc1{chain}O")["CHEMBL1_Ki"].value for chain in ("CC", "CCCCC"))
    assert 4.5 < short < 6 < long < 7.2  # 5 and 6.5 in the data
    with pytest.raises(UserError, match="'CCQ'"):
        trained.predict("CCQ")


BAD = {
    "a SMILES that does not parse": ("smiles", "c1ccc", ["CHEMBL1_Ki.csv:5", "column 'smiles'", "'c1ccc'"]),
    "an empty SMILES": ("smiles", "", ["CHEMBL1_Ki.csv:5", "column 'smiles'", "''"]),
    "an infinite value": ("y", "inf", ["CHEMBL1_Ki.csv:5", "column 'y'", "finite"]),
    "a word": ("y", "weak", ["CHEMBL1_Ki.csv:5", "column 'y'", "a number", "'weak'"]),
}


@pytest.mark.parametrize(("column", "cell", "words"), BAD.values(), ids=BAD)
def test_a_bad_cell_is_one_line_before_training(tmp_path, column, cell, words):
    write(tmp_path, change=lambda rows: rows[3].update({column: cell}))
    message = fault(experiment_in(tmp_path))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("measured", [0, 1])
def test_a_target_that_is_unknown_or_has_too_few_measurements_is_one_line(tmp_path, measured):
    write(tmp_path, change=lambda rows: [row.update(y="") for row in rows[measured:]])
    message = fault(experiment_in(tmp_path))
    assert all(word in message for word in ("CHEMBL1_Ki.csv", "column 'y'", f"got {measured}"))
    assert all(word in fault(experiment_in(tmp_path, ["CHEMBL1_KI"])) for word in ("CHEMBL1_KI.csv", "'CHEMBL1_Ki'"))


def test_a_file_is_read_again_once_it_was_corrected(tmp_path):
    write(tmp_path, change=lambda rows: rows[3].update(y="weak"))
    assert "'weak'" in fault(experiment_in(tmp_path))
    write(tmp_path, change=lambda rows: rows[0].update(y=-1))
    assert float(opened(experiment_in(tmp_path)).load(0, ["CHEMBL1_Ki"])["CHEMBL1_Ki"]) == 8


@pytest.mark.skipif(find_spec("MoleculeACE") is None, reason="needs pip install --no-deps MoleculeACE")
def test_the_ten_companies_share_all_thirty_targets():
    experiment = Experiment.load("molecules_10")
    assert sorted(task for spec in experiment.specs for task in spec.tasks) == sorted(experiment.tasks)
    assert {name for labels in experiment.labels.values() for name in labels} == {*experiment.tasks}
    assert len(experiment.tasks) == 30
