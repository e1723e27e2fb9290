"""A run's folder may come from anybody: what is wrong in it is one line that names the file, never a traceback."""

import json

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
]
RESULTS = [
    ("clients", {"road": {"semseg": {}}}),
    ("clients", {"road": {"nonsense": {"miou": 1.0}}}),
    ("baseline", "none"),
    ("bytes", {"up": -1, "down": 0}),
    ("seconds", "long"),
    ("versions", ["0"]),
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


@pytest.mark.parametrize(("kind", "key", "value"), EVENTS)
def test_a_malformed_event_is_refused_in_one_line(folder, changed, kind, key, value):
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    next(event for event in events if event["event"] == kind)[key] = value
    run = changed("metrics.jsonl", "".join(json.dumps(event) + "\n" for event in events))
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


def test_numbers_that_are_not_finite_are_no_fault(folder, changed):
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    next(event for event in events if event["event"] == "aggregation")["products"][0][1] = None
    assert single_sections(changed("metrics.jsonl", "".join(json.dumps(event) + "\n" for event in events)))


def test_endless_rounds_are_refused(folder, changed):
    text = (folder / "config.yaml").read_text().replace("rounds: 3", "rounds: 1000000000000")
    with pytest.raises(UserError, match="rounds"):
        single_sections(changed("config.yaml", text))


@pytest.mark.parametrize(
    "image", [np.zeros((2, 3, 4), np.uint8), np.zeros((2, 3, 4, 4)), np.zeros((0, 3, 4, 4), np.uint8)]
)
def test_samples_that_are_no_images_are_refused(tmp_path, image):
    run = made_run(tmp_path)
    np.savez(tmp_path / "samples" / "road.npz", image=image)
    with pytest.raises(UserError, match="should be samples of a run"):
        run.samples("road")


def test_a_client_s_name_is_no_path(tmp_path):
    run = made_run(tmp_path / "run")
    np.savez(tmp_path / "secret.npz", image=np.zeros((1, 3, 4, 4), np.uint8))
    assert run.samples("../../secret") == {}


def test_a_client_without_images_has_no_samples(tmp_path):
    run = made_run(tmp_path)
    np.savez(tmp_path / "samples" / "road.npz")
    assert run.samples("road") == {}
