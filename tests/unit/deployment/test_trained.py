import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from command import as_json, invoke, printed, refused
from fedhca2.deployment import Trained
from fedhca2.deployment.export import card, export
from fedhca2.errors import UserError
from fedhca2.run_folder.result import Result
from fedhca2.tasks import TASKS, LabelSpace
from full_disk import files_of_at_most
from small_run import SETTINGS, clients_of, small, untrained_run

CLIENT = "home"
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("run"))


def untrained(folder, **changes):
    experiment = small(model=SWIN, **changes)
    return untrained_run(folder, experiment, clients_of(experiment)[CLIENT])


@pytest.fixture
def trained(run):
    return Trained.open(run, CLIENT)


def picture(height, width):
    return np.random.default_rng(0).integers(0, 255, (3, height, width), dtype=np.uint8)


FORMS = {
    "planes of bytes": lambda image: image,
    "planes of floats": lambda image: image / 255.0,
    "a tensor": torch.from_numpy,
    "a tensor of floats": lambda image: torch.from_numpy(image) / 255,
    "pixels of bytes": lambda image: image.transpose(1, 2, 0),
    "pixels of floats": lambda image: np.float32(image.transpose(1, 2, 0) / 255),
    "a Pillow image": lambda image: Image.fromarray(image.transpose(1, 2, 0)),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_image_may_have_every_form_that_data_sets_give(trained, form):
    image = picture(20, 30)
    expected = trained.predict(torch.from_numpy(image))["semseg"]
    np.testing.assert_array_equal(trained.predict(FORMS[form](image))["semseg"], expected)


@pytest.mark.parametrize("form", [np.asarray, Image.fromarray, torch.from_numpy])
def test_a_grey_image_is_its_shades(trained, form):
    grey = picture(20, 30)[0]
    expected = trained.predict(np.stack([grey] * 3))["semseg"]
    np.testing.assert_array_equal(trained.predict(form(grey))["semseg"], expected)


@pytest.mark.parametrize("kind", [str, Path])
def test_an_image_may_be_a_path(trained, tmp_path, kind):
    prediction = trained.predict(kind(photos(tmp_path, "a.png") / "a.png"))
    np.testing.assert_array_equal(prediction["semseg"], trained.predict(picture(20, 30))["semseg"])


WRONG = {
    "no file": "nothere.jpg",
    "nothing": None,
    "a number": 3.5,
    "large floats": np.full((4, 4, 3), 200.0),
    "not finite": np.full((4, 4, 3), np.nan),
    "two channels": np.zeros((4, 4, 2), np.uint8),
    "no pixels": np.zeros((0, 4)),
    "a batch": np.zeros((2, 3, 4, 4)),
    "rows of different lengths": [[1, 2], [3]],
    "a sample": {"image": 1},
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_input_that_is_no_image_is_one_line(trained, kind):
    with pytest.raises(UserError) as raised:
        trained.predict(WRONG[kind])
    assert len(str(raised.value).splitlines()) == 1


def test_an_unknown_client_an_unfinished_run_and_a_broken_model_are_refused(run, tmp_path):
    with pytest.raises(UserError, match=r"--client: expected a client of .*\. Did you mean 'home'"):
        Trained.open(run, "hoem")
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    with pytest.raises(UserError, match="expected a finished run"):
        Trained.open(tmp_path, CLIENT).model()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{CLIENT}.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="expected a trained model"):
        Trained.open(tmp_path, CLIENT).model()


def photos(folder, *names):
    for name in names:
        Image.fromarray(picture(20, 30).transpose(1, 2, 0)).save(folder / name)
    return folder


@pytest.fixture
def predict(run, tmp_path):
    """The words of a command that predicts images into a folder `out`."""
    return lambda *words: ["predict", run, "--client", CLIENT, "-o", tmp_path / "out", *words]


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_a_folder_stands_for_its_images_and_folders_without_what_was_written_before(predict, tmp_path):
    (tmp_path / "notes.txt").touch()
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        photos(tmp_path / name, "a.png")
    photos(tmp_path, "b.jpg")
    files = ("b.jpg", "east/a.png", "west/a.png")
    images = [str(tmp_path / name) for name in files for _ in ("semseg", "depth")]
    for _ in range(2):
        assert [record["image"] for record in as_json(*predict(tmp_path))] == images
    assert {name.partition(".")[0] for name in names_in(tmp_path / "out")} == {"b", "east/a", "west/a"}


def test_a_failed_prediction_leaves_nothing_new_and_what_was_there(predict, tmp_path):
    (photos(tmp_path, "a.png") / "b.png").write_bytes(b"no image")
    refused(*predict(tmp_path, "-o", tmp_path / "out" / "deep"))
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.depth.png").write_text("earlier")
    refused(*predict(tmp_path))
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {"a.depth.png": "earlier"}


def test_maps_overlays_and_arrays_are_written_unless_the_disk_is_full(predict, tmp_path):
    photos(tmp_path, "photo.png")
    with files_of_at_most(100):
        done = invoke(*predict(tmp_path))
    assert (done.exit_code, done.output.startswith(f"error: {tmp_path / 'out'}")) == (2, True)
    assert not (tmp_path / "out").exists()
    printed(*predict(tmp_path, "--raw"))
    kinds = ("npy", "overlay.png", "png")
    assert names_in(tmp_path / "out") == [f"photo.{task}.{kind}" for task in ("depth", "semseg") for kind in kinds]
    assert Image.open(tmp_path / "out" / "photo.depth.png").size == (30, 20)


def test_the_command_says_what_each_image_shows_and_gives_records_in_json_and_csv(predict, tmp_path):
    *lines, last = printed(*predict(photos(tmp_path, "a.png", "b.png"))).splitlines()
    about = [f"{tmp_path / name}  {task}" for name in ("a.png", "b.png") for task in ("semseg", "depth")]
    assert [line.split(": ")[0] for line in lines] == about
    assert lines[1].endswith(" m")
    assert str(tmp_path / "out") in last
    records = as_json(*predict(tmp_path / "a.png"))
    assert [record["task"] for record in records] == ["semseg", "depth"]
    assert sum(records[0]["values"].values()) == pytest.approx(1)
    assert all(Path(file).is_file() for record in records for file in record["files"])
    rows = list(csv.DictReader(printed(*predict(tmp_path / "a.png", "--csv")).splitlines()))
    assert [(row["answer"], float(row["value"])) for row in rows] == [(one["answer"], one["value"]) for one in records]


def test_wrong_images_and_two_formats_are_one_line(predict, tmp_path):
    assert "expected images in it" in refused(*predict(tmp_path))
    (tmp_path / "notes.txt").write_text("no image")
    assert "notes.txt" in refused(*predict(tmp_path / "notes.txt"))
    assert "different names, got x more than once" in refused(*predict("a/x.png", "b/x.png"))
    assert "--csv" in refused(*predict(tmp_path, "--json", "--csv"))


@pytest.mark.parametrize("size", [(100_000, 1), (1, 4_000_000), (39_000_000, 1), (6400, 6241)], ids=str)
def test_an_image_that_takes_much_memory_is_one_line_with_its_name(predict, tmp_path, size):
    Image.new("1", size).save(tmp_path / "thin.png")
    line = refused(*predict(tmp_path / "thin.png"))
    assert ("thin.png: " in line, "pixels" in line) == (True, True)


def test_safetensors_keep_the_parameters_and_the_card_explains_every_output(run, trained, tmp_path):
    path, card = export(trained, "safetensors", tmp_path)
    expected, text = load_file(run / "models" / f"{CLIENT}.safetensors"), card.read_text("utf-8")
    assert all(tensor.equal(expected[name]) for name, tensor in load_file(path).items())
    assert "float32 [batch, 3, height, width], of at most 32×32" in text
    assert all(TASKS[task].reading in text for task in ("semseg", "depth"))


def test_the_card_has_the_scores_of_the_final_model(tmp_path):
    scores = {CLIENT: {"depth": {"rmse": 0.5}}}
    result = Result(name="small", method="fedavg", rounds=1, seed=0, clients=scores, split="test")
    (untrained(tmp_path) / "result.json").write_text(result.model_dump_json())
    text = export(Trained.open(tmp_path, CLIENT), "safetensors", tmp_path / "out")[1].read_text("utf-8")
    assert all(words in text for words in ("RMSE ↓ 0.500 m", f"test images of {CLIENT}"))


def test_a_size_that_no_model_could_take_or_to_which_no_image_is_scaled_is_refused(trained, tmp_path):
    for size in ((0, 64), (-32, 32), (100_000, 32), (6400, 6400)):
        with pytest.raises(UserError, match=rf"--size: expected .* got {size[0]}×"):
            export(trained, "onnx", tmp_path / "out", size)
    indoor = {**SETTINGS["data"]["indoor"], "resize": "fit"}
    run = untrained(tmp_path, data={**SETTINGS["data"], "indoor": indoor})
    with pytest.raises(UserError, match=r"--size: expected at most 32×32, .* got 64×32"):
        export(Trained.open(run, CLIENT), "onnx", tmp_path / "out", (64, 32))
    assert not (tmp_path / "out").exists()


def test_the_card_has_no_markup_of_names(trained, monkeypatch):
    names = ("<img src=x onerror=alert(1)>", "a|b", "[x](http://x)", "`c`", "plain name")
    monkeypatch.setattr(Trained, "spaces", {"semseg": LabelSpace(names=names), "depth": LabelSpace()})
    text = card(trained, "onnx", "home.onnx", (32, 32))
    assert not any(name in text for name in names[:-1])
    assert "plain name" in text
