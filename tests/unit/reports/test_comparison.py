import csv
import json
from functools import reduce
from io import StringIO
from math import inf, isnan, nan
from operator import getitem

import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.reports.comparison import DELTA_M, RECOVERED, Column, Comparison, SeedScores, gather
from fedhca2.reports.layouts import comparison_table, to_markdown
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import across_clients
from fedhca2.tasks import TASKS
from made_run import made_run, with_twin


def test_a_run_that_is_older_than_a_setting_has_its_default(tmp_path):
    runs = [made_run(tmp_path / f"ours-{seed}", "fedhca2", seed=seed) for seed in (0, 1)]
    for run in runs:
        settings = Experiment.load("demo", [f"seed={run.config['seed']}"]).to_dict()
        if run is runs[1]:
            del settings["skip_broken"], settings["model"]["encoder"]["frozen"]
        (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    assert list(gather([RunFiles(run.path) for run in runs]).entries) == ["fedhca2"]


def test_csv_gives_every_digit_back(tmp_path):
    comparison = gather([made_run(tmp_path / str(seed), better=1.1 + seed / 10, seed=seed) for seed in (0, 2)])
    rows = list(csv.DictReader(StringIO(comparison.table().to_csv())))
    column = Column("outdoor, single-task", "sal", "max_f", True)
    record = next(row for row in rows if row["method"] == "fedhca2" and row["task"] == "sal")
    assert float(record["mean"]) == comparison.entries["fedhca2"][column].mean


ENCODER = {"c": 0.4, "alpha": 0.1, "beta": 0.1, "rate": 0.1}
VARIED = [ENCODER, *(ENCODER | {key: 1} for key in ENCODER)]


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ([{"method.encoder.c": 0.2}, {"method.encoder.c": 0.4}], ["fedhca2, c=0.2", "fedhca2, c=0.4"]),
        ([{"method.encoder": each} for each in VARIED], ["fedhca2", *(f"fedhca2, {key}=1" for key in ENCODER)]),
        (
            [{"method.decoder": None}, {"method.encoder": None}, {}],
            ["fedhca2, encoder only", "fedhca2, decoder only", "fedhca2"],
        ),
        (
            [{"clients": [{"data": "pascal", "split": ["semseg"], "copies": copies}]} for copies in (1, 2)],
            ["fedhca2, 1 of each", "fedhca2, 2 of each"],
        ),
        ([{}, {"label": "+Enc", "rounds": 4}], ["fedhca2, rounds=3", "+Enc"]),
        ([{}, {}], ["fedhca2"]),  # the same run twice
    ],
)
def test_other_settings_are_another_row_and_not_another_seed(tmp_path, changes, labels):
    runs = [made_run(tmp_path / str(number)) for number in range(len(changes))]
    for run, changed in zip(runs, changes, strict=True):
        for key, value in changed.items():
            *path, last = key.split(".")
            reduce(getitem, path, run.config)[last] = value
    rows = gather(runs).entries
    assert list(rows) == labels
    assert {len(entry.values) for row in rows.values() for entry in row.values()} == {1}


def test_rows_of_other_clients_are_not_named_by_a_dump_of_them(tmp_path):
    runs = [made_run(tmp_path / "a"), without_home(made_run(tmp_path / "b"))]
    for run, data in zip(runs, ("pascal", "nyud"), strict=True):
        run.config["clients"] = [{"data": data, "tasks": ["depth"]}]
    assert list(gather(runs).entries) == ["fedhca2, 3 clients", "fedhca2, 2 clients"]


def test_a_run_without_a_baseline_is_compared_with_local_of_its_seed(tmp_path):
    runs = [made_run(tmp_path / f"local-{seed}", "local", better=1 + seed, seed=seed) for seed in (0, 1)]
    ours = made_run(tmp_path / "ours", "fedavg", better=3.0, seed=1)
    vars(ours)["result"] = ours.outcome.model_copy(update={"baseline": None})
    assert gather([*runs, ours]).entries["fedavg"][DELTA_M].values == pytest.approx(((3 * 50 + 100 / 3) / 4,))


def test_the_worst_client_the_share_that_loses_and_the_spread():
    alone = {name: {"depth": {"rmse": 1.0}} for name in "abcd"}
    ours = {name: {"depth": {"rmse": rmse}} for name, rmse in zip("abcd", (0.9, 1.1, 0.8, 1.0), strict=True)}
    across = across_clients(ours, alone, TASKS)
    assert (across.client, across.harmed) == ("b", 25)
    assert (across.worst, across.deviation) == pytest.approx((-10, 125**0.5))
    assert across_clients(ours, {}, TASKS) is None


@pytest.mark.parametrize(("ceiling", "share"), [((5.0, 5.2, 4.8), 50), ((5.0, -5.2, 4.8), nan), ((5.0, 5.2), nan)])
def test_the_share_of_the_pooled_gain_needs_a_gain_beyond_chance(tmp_path, ceiling, share):
    comparison = gather(
        [
            made_run(tmp_path / f"{method}-{seed}", method, better=1 + own / 100, seed=seed)
            for seed, gain in enumerate(ceiling)
            for method, own in (("local", 0.0), ("pooled", gain), ("fedavg", 2.5))
        ]
    )
    assert comparison.entries["fedavg"][RECOVERED].mean == pytest.approx(share, nan_ok=True)
    assert isnan(share) == ("No share of the pooled gain" in " ".join(comparison.notes))


def test_a_summary_of_many_methods_has_both_gains(tmp_path):
    alone = with_twin(made_run(tmp_path / "local", "local"), delta_m=None, delta_m_by_client=None)
    ours = with_twin(made_run(tmp_path / "ours", "fedavg"), delta_m=5.0, delta_m_by_client=20.0)
    twins = gather([alone, ours])
    many = Comparison(twins.columns, {str(i): twins.entries["fedavg"] for i in range(5)})
    assert {"Δm % ↑", "Δm by client % ↑"} <= set(comparison_table(many).columns)


@pytest.mark.parametrize(("scores", "best"), [([[43.001], [43.0]], 2), ([[inf, 1.0], [2.0, 2.0], [1.0]], 1)])
def test_all_values_that_look_equal_are_best_and_infinite_ones_never(scores, best):
    column = Column("home", "sal", "max_f", True)
    entries = {str(i): {column: SeedScores(dict(enumerate(own)))} for i, own in enumerate(scores)}
    assert to_markdown(Comparison([column], entries)).count("**") == 2 * best


def without_home(run, **changes):
    """The run without its multi-task client, and without a baseline."""
    result = json.loads((run.path / "result.json").read_text())
    del result["clients"]["home"]
    (run.path / "result.json").write_text(json.dumps({**result, "baseline": None, **changes}))
    return RunFiles.open(run.path)


@pytest.fixture
def table_4(tmp_path):
    """Single-task clients alone and together, and together with a multi-task client (P table 4)."""
    return [
        without_home(made_run(tmp_path / "local", "local")),
        without_home(made_run(tmp_path / "single", "fedhca2", better=1.1), seed=0),
        made_run(tmp_path / "both", "fedper", better=1.2),
    ]


def test_runs_with_different_clients_are_compared_in_the_columns_that_they_share(table_4):
    comparison = gather(table_4)
    assert [column.group for column in comparison.columns] == ["outdoor, single-task"] * 2 + [""] * 4
    assert [column.task for column in comparison.left_out] == ["semseg", "depth"]
    assert "indoor, multi-task: depth" in to_markdown(comparison)
    assert [round(row[DELTA_M].mean, 6) for row in comparison.entries.values()] == [0, 10, 20]


def test_runs_without_a_column_in_common_are_refused(table_4):
    result = json.loads((table_4[2].path / "result.json").read_text())
    others = {"home": result["clients"]["home"]}
    (table_4[2].path / "result.json").write_text(json.dumps({**result, "clients": others}))
    with pytest.raises(UserError, match="in common"):
        gather([table_4[0], RunFiles.open(table_4[2].path)])


def test_a_run_of_other_data_is_no_baseline_of_shared_columns(table_4):
    table_4[0].config["data"] = {"outdoor": {"seed": 1}}
    assert DELTA_M not in gather(table_4).columns
