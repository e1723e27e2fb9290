"""Tables: CSV files whose columns are inputs and labels."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import fedhca2
from command import printed
from fedhca2.deployment import Trained
from fedhca2.experiment import Experiment
from own_experiments import fault, opened, run, write_experiment, write_table

ROWS = 40
EXAMPLES = Path(__file__).parents[3] / "examples"
SETTINGS = {"inputs": ["age", "weight"], "categories": ["ward"], "columns": {"days": "days", "back": "back"}}


def rows_of(count=ROWS):
    """Patients: days depend on age and ward; every third row lacks days, and every fifth back."""
    rng = np.random.default_rng(0)
    for i in range(count):
        age, ward = int(rng.integers(20, 90)), "ab"[i % 2]
        days = "" if i % 3 == 0 else f"{age / 10 + (ward == 'a') * 4:g}"
        back = "" if i % 5 == 0 else "yes" if age > 50 else "no"
        yield {"age": age, "weight": int(rng.integers(50, 99)), "ward": ward, "days": days, "back": back}


def table_in(folder, change=lambda rows: None, **settings):
    rows = list(rows_of())
    change(rows)
    write_table(folder / "patients.csv", rows)
    return experiment_in(folder, **settings)


def experiment_in(folder, tasks=("days", "back"), **settings):
    return write_experiment(
        folder,
        rounds=2,
        method="fedper",
        model={"encoder": {"kind": "mlp", "widths": [16, 8]}},
        training={"batch_size": 4, "learning_rate": 0.01},
        tasks={"days": {"kind": "regression", "unit": "d"}, "back": "classification"},
        data={"ward": {"kind": "table", "file": "patients.csv", **SETTINGS, **settings}},
        clients=[{"data": "ward", "tasks": list(tasks)}, {"data": "ward", "name": "b", "tasks": ["days"]}],
    )


def samples(data, name):
    return np.array([data.load(index, ["days", "back"])[name].numpy() for index in range(len(data))])


def test_numbers_are_standardised_by_the_rows_for_training(tmp_path):
    inputs = samples(opened(table_in(tmp_path)), "image")
    np.testing.assert_allclose(inputs[:, :2].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs[:, :2].std(axis=0), 1, atol=1e-6)
    ages = [row["age"] for i, row in enumerate(rows_of()) if i % 5 == 4]
    trained_on = [row["age"] for i, row in enumerate(rows_of()) if i % 5 != 4]
    expected = (np.array(ages) - np.mean(trained_on)) / np.std(trained_on)
    np.testing.assert_allclose(samples(opened(table_in(tmp_path), "val"), "image")[:, 0], expected, rtol=1e-5)


def test_a_category_is_an_input_for_each_of_its_values(tmp_path):
    inputs = samples(opened(table_in(tmp_path)), "image")
    assert inputs[:4, 2:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert opened(table_in(tmp_path, categories={"ward": ["a", "b", "c"]})).size == (5,)


def test_an_unknown_number_is_the_mean_and_an_unknown_word_none_of_the_values(tmp_path):
    def change(rows):
        rows[4].update(ward="c")  # for validation
        for row, cell in zip(rows, ("", "NA", "nan"), strict=False):
            row.update(age=cell)

    path = table_in(tmp_path, change)
    assert samples(opened(path, "val"), "image")[0, 2:].tolist() == [0, 0]
    assert samples(opened(path), "image")[:3, 0].tolist() == [0, 0, 0]


def test_inputs_are_all_columns_that_nothing_else_names(tmp_path):
    data = opened(table_in(tmp_path, inputs=None)).data
    assert data.inputs == ["age", "weight"]
    with pytest.raises(ValueError, match="'hight'"):
        data.encode({"hight": 3})


def test_labels_may_be_missing_in_any_row_and_a_batch_holds_the_same_as_its_samples(tmp_path):
    data, indices = opened(table_in(tmp_path)), [3, 0, 7]
    for_training = [i for i in range(ROWS) if i % 5 != 4]
    assert np.isnan(samples(data, "days")[:, 0]).tolist() == [i % 3 == 0 for i in for_training]
    assert np.isnan(samples(data, "back")[:, 0]).tolist() == [i % 5 == 0 for i in for_training]
    for name, tensor in [pair for _ in range(2) for pair in data.batch(indices, ["days"]).items()]:
        np.testing.assert_array_equal(tensor.numpy(), [data.load(index, ["days"])[name].numpy() for index in indices])


def test_rows_may_have_names_and_check_reads_them(tmp_path):
    path = table_in(tmp_path, lambda rows: [row.update(id=f"p{i}") for i, row in enumerate(rows)], ids="id")
    assert opened(path, "val").ids[:2] == ["p4", "p9"]
    assert "missing in" in printed("data", "check", path)


def test_scores_and_answers_are_in_the_unit_of_the_column(tmp_path):
    path = table_in(tmp_path)
    printed("run", path, "--out", tmp_path / "run", "--set", "rounds=60", "--set", "training.schedule.lag=false")
    trained = Trained.open(tmp_path / "run", "ward")
    old, young = ({"age": age, "weight": 70, "ward": "a"} for age in (80, 30))
    answers = [trained.answer(row)["days"] for row in (old, young)]
    assert 3 < answers[0].value - answers[1].value < 7  # 5 in the data
    assert str(answers[0]).endswith(" d")
    val = [row for i, row in enumerate(rows_of()) if i % 5 == 4 and row["days"]]
    errors = [
        float(trained.predict({name: row[name] for name in ("age", "weight", "ward")})["days"][0]) - float(row["days"])
        for row in val
    ]
    scores = trained.run.outcome.clients["ward"]["days"]
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-4)


BAD = {
    "no such file": ({"file": "nowhere.csv"}, None, ["nowhere.csv", "got nothing"]),
    "a column that does not exist": ({"inputs": ["age", "hight"]}, None, ["column 'hight'", "age, weight"]),
    "a label's column that does not exist": ({"columns": {"days": "dys"}}, None, ["column 'dys'"]),
    "a word among numbers": ({}, (3, "age", "old"), ["patients.csv:5", "column 'age'", "a number", "'old'"]),
    "an infinite input": ({}, (3, "age", "inf"), ["patients.csv:5", "column 'age'", "finite", "'inf'"]),
    "a number that overflows": ({}, (3, "age", "1e300"), ["patients.csv:5", "column 'age'", "finite"]),
    "an infinite label": ({}, (3, "days", "-inf"), ["patients.csv:5", "column 'days'", "finite", "'-inf'"]),
    "one measurement": ({}, (range(2, ROWS), "days", ""), ["column 'days'", "two or more", "got 1"]),
    "equal measurements": ({}, (range(ROWS), "days", "3"), ["column 'days'", "two or more", "got 1"]),
    "no measurement": ({}, (range(ROWS), "days", ""), ["column 'days'", "two or more", "got 0"]),
    "no class": ({}, (range(ROWS), "back", ""), ["column 'back'", "got none"]),
    "no input": ({"inputs": [], "categories": []}, None, ["1 to 8192 inputs", "got 0"]),
    "an empty input": ({}, (range(ROWS), "age", ""), ["column 'age'", "a number", "got none"]),
    "a task for maps": ({"columns": {"semseg": "back"}, "classes": {"semseg": 2}}, None, ["'days'"]),
}


@pytest.mark.parametrize(("settings", "cells", "words"), BAD.values(), ids=BAD)
def test_a_bad_table_is_one_line_before_training(tmp_path, settings, cells, words):
    def change(rows):
        lines, column, cell = cells or ((), "", "")
        for line in [lines] if isinstance(lines, int) else lines:
            rows[line][column] = cell

    message = fault(table_in(tmp_path, change, **settings))
    assert all(word in message for word in words), message


def test_a_million_columns_or_too_many_values_of_a_category_are_one_line(tmp_path):
    names = ["age", "weight", "ward", "days", "back", *(f"c{i}" for i in range(10**6))]
    (tmp_path / "patients.csv").write_text(",".join(names) + "\n" + "," * (len(names) - 1) + "\n")
    assert "at most 8192 columns, got 1000005" in fault(experiment_in(tmp_path))
    values = [str(i) for i in range(9000)]
    assert "1 to 8192 inputs, got 9002" in fault(table_in(tmp_path, categories={"ward": values}))


@pytest.mark.parametrize("model", [{}, {"encoder": {"kind": "mlp"}, "decoder": "fcn"}, {"decoder": "mlp"}])
def test_a_model_for_images_is_refused(tmp_path, model):
    values = yaml.safe_load(table_in(tmp_path).read_text()) | {"model": model}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(values))
    done = run("run", tmp_path / "ours.yaml", "--out", tmp_path / "run")
    assert (done.exit_code, (tmp_path / "run").exists()) == (2, False)
    assert all(word in done.output for word in ("encoder and decoder", "mlp"))


@pytest.mark.slow
def test_the_hospitals_of_the_example_train_with_scikit_learns_tables(tmp_path):
    pytest.importorskip("sklearn")
    shown = printed("run", EXAMPLES / "hospitals.yaml", "--out", tmp_path / "run", "--set", "rounds=1")
    assert all(word in shown for word in ("diabetes-both", "tumours-both"))


@pytest.mark.slow
def test_the_dictionaries_of_the_example_answer_texts(tmp_path):
    fedhca2.run(Experiment.load(EXAMPLES / "dictionaries.yaml"), tmp_path / "run")
    trained = Trained.open(tmp_path / "run", "thesaurus")
    texts = {"plant": "perennial herb with yellow flowers", "animal": "large bird of prey", "person": "one who sings"}
    assert [str(trained.answer(text)["kind"]).split()[0] for text in texts.values()] == [*texts]
