import json

import numpy as np
import pytest

from fedhca2.errors import UserError
from fedhca2.run_folder.reader import RunFiles
from fedhca2.runs import Run
from made_run import crowded_run, made_run, with_twin


def test_a_folder_without_config_is_no_run(tmp_path):
    with pytest.raises(UserError, match="expected a run's folder"):
        RunFiles.open(tmp_path)


def test_an_unfinished_run_has_no_result_and_knows_its_tasks(tmp_path):
    run = made_run(tmp_path, finished=False)
    assert run.result is None
    assert run.tasks == {"road": ("semseg",), "shop": ("sal",), "home": ("semseg", "depth")}
    assert (run.short_name("road/semseg"), run.short_name("home/depth")) == ("road", "home/depth")


def test_an_incomplete_last_line_is_skipped(tmp_path):
    whole = len(made_run(tmp_path).events)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "ro')
    assert len(RunFiles.open(tmp_path).events) == whole


def test_a_broken_line_or_result_is_an_error(tmp_path):
    made_run(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "nonsense", *lines[1:]]))
    with pytest.raises(UserError, match="line 2: expected JSON, got 'nonsense"):
        _ = RunFiles.open(tmp_path).events
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match="expected JSON"):
        _ = RunFiles.open(tmp_path).result


def test_clients_of_a_kind_have_the_same_data_and_tasks(tmp_path):
    kinds = with_twin(made_run(tmp_path), delta_m=None).kinds
    assert (kinds["road"] == kinds["road-2"], len(set(kinds.values()))) == (True, 3)


def test_without_events_the_config_names_the_clients_data(tmp_path):
    run, home = made_run(tmp_path), {"name": "home", "data": "indoor", "tasks": ["depth"]}
    run.events_file.unlink()
    run.config["clients"] = [{"data": "outdoor", "split": ["semseg", "sal"]}, home]
    assert [run.dataset(client) for client in ("outdoor-sal", "home", "unknown")] == ["outdoor", "indoor", "unknown"]
    damaged = RunFiles(tmp_path)
    damaged.config["clients"] = [{"data": 3}]
    with pytest.raises(UserError, match=r"config.yaml: clients"):
        damaged.dataset("home")


def test_a_run_without_profiles_did_not_fail(tmp_path):
    made_run(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(line for line in lines if '"profile"' not in line))
    assert not RunFiles(tmp_path).everyone_failed


def test_damaged_samples_are_named(tmp_path):
    run = made_run(tmp_path)
    file = next((run.path / "samples").iterdir())
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(UserError, match=rf"{file.name}: expected samples of a run, got"):
        run.samples(file.stem)


def test_a_result_of_another_version_is_read(tmp_path):
    made_run(tmp_path)
    recorded = json.loads((tmp_path / "result.json").read_text())
    for lost in ("name", "rounds", "seed", "seconds", "bytes", "versions", "device", "baseline", "delta_m"):
        del recorded[lost]
    (tmp_path / "result.json").write_text(json.dumps(recorded | {"news": 1}))
    result = Run.open(tmp_path).result
    assert (result.name, result.rounds, result.bytes, result.delta_m) == ("made", 3, {"up": 0, "down": 0}, None)


def test_matrices_within_events_of_older_runs_are_read(tmp_path):
    events = crowded_run(tmp_path, count=40, rounds=1).of("aggregation")
    assert np.array(events[0]["products"]).shape == (40, 40)
