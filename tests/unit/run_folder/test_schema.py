"""A run's folder may come from anybody: what is wrong in it is one line that names the file, never a traceback."""

import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from fedhca2.errors import UserError
from fedhca2.reports.page.write import single_sections
from fedhca2.run_folder.reader import RunFiles
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


@pytest.mark.parametrize("image", IMAGES)
def test_samples_that_are_no_images_are_refused(tmp_path, image):
    run = made_run(tmp_path)
    np.savez(tmp_path / "samples" / "road.npz", image=image)
    with pytest.raises(UserError, match="expected samples of a run"):
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
