"""Reading a run, of this version or another: what is wrong in it is one line that names the file, never a traceback.

A run records of its users' own tasks what a reader needs, so that reading imports no code.
"""

import json
import tracemalloc
import zipfile

import numpy as np
import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.reports.page.write import single_sections
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.run_folder.schema import facts_of, task_from
from fedhca2.runs import Run
from fedhca2.tasks import TASKS
from made_run import made_run

EVENTS = [
    ("metric", "round", -1),
    ("metric", "round", 10**12),
    ("metric", "task", "<script>"),
    ("metric", "value", [1]),
    ("loss", "client", {"a": 1}),
    ("client", "bytes_up", "many"),
    ("round", "refused", ["road"]),
    ("weights", "weights", {"road/encoder": "0.1"}),
    ("profile", "parameters", None),
    ("aggregation", "members", ["road", "road", "shop"]),
    ("aggregation", "products", [[1.0]]),
    ("aggregation", "gets", [[9, 9, 9]]),
    ("aggregation", "mixing", [[]]),
    ("aggregation", "event", ["aggregation"]),
    ("effect", "before", "much"),
    ("effect", "client", None),
    ("transfer", "members", ["road", "road"]),
    ("transfer", "transfer", [[1.0]]),
    ("transfer", "products", None),
    ("transfer", "losses", 3),
]
MEASURED = [
    {"event": "effect", "round": 1, "client": "road", "before": 2.0, "after": 1.0, "seconds": 0.1},
    {"event": "transfer", "round": 1, "members": ["road", "shop"], "losses": [1.0, 2.0], "seconds": 0.1}
    | {"products": [[1.0, 0.0], [0.0, 1.0]], "transfer": [[None, 0.1], [0.2, None]]},
]
RESULTS = [
    ("clients", {"road": {"semseg": {}}}),
    ("clients", {"road": {"nonsense": {"miou": 1.0}}}),
    ("baseline", "none"),
    ("bytes", {"up": -1, "down": 0}),
    ("seconds", "long"),
    ("versions", ["0"]),
    ("name", 3),
    ("skipped", {"road": 3}),
    ("origin", "here"),
    ("origin", {"command": "fedhca2 run", "started": "now"}),
    ("origin", {"command": ["fedhca2"], "started": "2026-11-18T13:16:34+00:00"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "run"
    made_run(path)
    return path


@pytest.fixture
def changed(folder):
    """Opens the run with another text in one of its files, which is restored afterwards."""
    before = {}

    def change(file, text):
        before[file] = (folder / file).read_text()
        (folder / file).write_text(text)
        return RunFiles.open(folder)

    yield change
    for file, text in before.items():
        (folder / file).write_text(text)


@pytest.fixture
def logged(folder, changed):
    """Opens the run with diagnostics, and another value in the first event of a kind."""

    def change(kind, key, value):
        events = [*map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()), *map(dict, MEASURED)]
        next(event for event in events if event["event"] == kind)[key] = value
        return changed("metrics.jsonl", "".join(json.dumps(event) + "\n" for event in events))

    return change


@pytest.mark.parametrize(("kind", "key", "value"), EVENTS)
def test_a_malformed_event_is_refused_in_one_line(logged, kind, key, value):
    run = logged(kind, key, value)
    with pytest.raises(UserError, match=r"metrics\.jsonl") as found:
        single_sections(run)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("key", "value"), RESULTS)
def test_a_malformed_result_is_refused(folder, changed, key, value):
    result = json.loads((folder / "result.json").read_text())
    with pytest.raises(UserError, match=r"result\.json"):
        single_sections(changed("result.json", json.dumps(result | {key: value})))


def test_what_a_newer_version_adds_is_left_alone(folder, changed):
    text = (folder / "metrics.jsonl").read_text() + '{"event": "news", "of": ["anything"]}\n'
    assert changed("metrics.jsonl", text).of("news") == [{"event": "news", "of": ["anything"]}]


HOLED = [[None if i == 1 else 1.0 for i in range(3)] for _ in range(3)]


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("effect", "before", None), ("effect", "after", None), ("aggregation", "products", HOLED)],
)
def test_numbers_that_are_not_finite_are_no_fault(logged, kind, key, value):
    assert single_sections(logged(kind, key, value))


def test_endless_rounds_are_refused(folder, changed):
    text = (folder / "config.yaml").read_text().replace("rounds: 3", "rounds: 1000000000000")
    with pytest.raises(UserError, match="rounds"):
        single_sections(changed("config.yaml", text))


IMAGES = [np.zeros((2, 3, 4), np.uint8), np.zeros((2, 3, 4, 4)), np.zeros((0, 3, 4, 4), np.uint8)]


@pytest.mark.parametrize("image", [*IMAGES, None])
def test_samples_that_are_damaged_or_no_images_are_refused(tmp_path, image):
    run, file = made_run(tmp_path), tmp_path / "samples" / "road.npz"
    if image is None:
        file.write_bytes(file.read_bytes()[:-30])
    else:
        np.savez(file, image=image)
    with pytest.raises(UserError, match=r"road\.npz: expected samples of a run, got"):
        run.samples("road")


def test_a_client_without_images_has_no_samples_and_its_name_is_no_path(tmp_path):
    run = made_run(tmp_path / "run")
    np.savez(tmp_path / "secret.npz", image=np.zeros((1, 3, 4, 4), np.uint8))
    np.savez(run.samples_file("road"))
    assert run.samples("../../secret") == run.samples("road") == {}


def test_samples_that_would_take_gigabytes_are_refused_before_they_do(tmp_path):
    run = made_run(tmp_path)
    one = np.zeros((1, 3, 2048, 4096), np.uint8)
    np.savez_compressed(tmp_path / "samples" / "road.npz", image=one, **{f"label.{i}": one for i in range(24)})
    _ = run.config
    tracemalloc.start()
    with pytest.raises(UserError, match=r"road\.npz: expected samples of a run.*bytes"):
        run.samples("road")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_samples_whose_header_lies_are_refused(tmp_path):
    run = made_run(tmp_path)
    with zipfile.ZipFile(tmp_path / "samples" / "road.npz", "w") as file, file.open("image.npy", "w") as array:
        header = {"descr": "|u1", "fortran_order": False, "shape": (1, 3, 2**20, 2**20)}
        np.lib.format.write_array_header_1_0(array, header)
    with pytest.raises(UserError, match=r"road\.npz: expected samples of a run.*bytes"):
        run.samples("road")


def test_an_unfinished_run_has_no_result_and_knows_its_tasks(tmp_path):
    run = made_run(tmp_path, finished=False)
    assert run.result is None
    assert run.tasks == {"road": ("semseg",), "shop": ("sal",), "home": ("semseg", "depth")}


def test_a_broken_line_or_result_is_an_error_and_an_incomplete_last_line_is_skipped(tmp_path):
    whole = made_run(tmp_path).events
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"event": "ro']))
    assert RunFiles.open(tmp_path).events == whole
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "nonsense", *lines[1:]]))
    with pytest.raises(UserError, match="line 2: expected JSON, got 'nonsense"):
        _ = RunFiles.open(tmp_path).events
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match="expected JSON"):
        _ = RunFiles.open(tmp_path).result


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


def test_a_result_of_another_version_is_read(tmp_path):
    made_run(tmp_path)
    recorded = json.loads((tmp_path / "result.json").read_text())
    for lost in ("name", "rounds", "seed", "seconds", "bytes", "versions", "device", "baseline", "delta_m"):
        del recorded[lost]
    (tmp_path / "result.json").write_text(json.dumps(recorded | {"news": 1}))
    result = Run.open(tmp_path).result
    assert (result.name, result.rounds, result.bytes, result.delta_m) == ("made", 3, {"up": 0, "down": 0}, None)


METRICS = {"rmse": False, "share": True}
FACTS = {"title": "Flock", "unit": "sheep", "output": "map", "counts_in_delta_m": True, "metrics": METRICS}


@pytest.fixture
def foreign(tmp_path):
    """A function that makes a run in which depth is a foreign task, of which these facts are recorded."""

    def make(facts):
        path = made_run(tmp_path / "run").path
        for name in ("metrics.jsonl", "result.json"):
            (path / name).write_text((path / name).read_text().replace('"depth"', '"flock"'))
        (path / "samples" / "home.npz").unlink()
        config = yaml.safe_load((path / "config.yaml").read_text())
        (path / "config.yaml").write_text(yaml.safe_dump(config | {"tasks": {"flock": "/somewhere/else.py:FLOCK"}}))
        if facts is not None:
            (path / "tasks.json").write_text(json.dumps(facts))
        return RunFiles(path)

    return make


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_restored_from_its_facts(name):
    facts = facts_of(TASKS[name])
    assert facts_of(task_from(name, json.loads(json.dumps(facts)))) == facts


def test_scores_are_read_and_drawn_without_the_code(foreign):
    files = foreign({"flock": FACTS})
    main = headline(files.task_set["flock"], files.outcome.clients["home"]["flock"])
    assert (main.metric, main.higher_is_better, files.task_set["flock"].title) == ("rmse", False, "Flock")
    assert "Flock" in str(single_sections(files))


def test_without_facts_the_code_is_needed(foreign):
    with pytest.raises(UserError, match=r"config\.yaml.*--allow-code /somewhere/else\.py"):
        _ = foreign(None).outcome


@pytest.mark.parametrize(
    "facts", [[], *({"flock": FACTS | bad} for bad in ({"metrics": {}}, {"unit": 3}, {"output": "x"}))]
)
def test_damaged_facts_are_one_line(foreign, facts):
    with pytest.raises(UserError, match=r"tasks\.json") as error:
        _ = foreign(facts).outcome
    assert len(error.value.lines) == 1


def test_facts_replace_no_built_in_task(foreign):
    files = foreign({"sal": FACTS})
    (files.path / "config.yaml").write_text(files.config_file.read_text().replace("flock: ", "sal: "))
    with pytest.raises(UserError, match="built in"):
        _ = RunFiles(files.path).outcome
