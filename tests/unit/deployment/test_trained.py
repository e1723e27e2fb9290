import csv
import json
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.data.augmentation import for_evaluation
from fedhca2.data.transforms import fitted, placement
from fedhca2.deployment import Trained
from fedhca2.deployment.export import card, export
from fedhca2.errors import UserError
from fedhca2.models import build_model
from fedhca2.run_folder.result import Result
from fedhca2.tasks import TASKS, LabelSpace
from small_run import SETTINGS, small

CLIENT = "home"
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run with an untrained model."""
    return untrained_run(tmp_path_factory.mktemp("run"))


def untrained_run(folder, **changes):
    experiment = small(model=SWIN, **changes)
    (folder / "config.yaml").write_text(experiment.to_yaml())
    spec = next(spec for spec in experiment.specs if spec.name == CLIENT)
    channels = {task: TASKS[task].channels_for(experiment.data[spec.data].labels[task]) for task in spec.tasks}
    model = build_model(experiment.model, channels, (32, 32), seed=5, client=CLIENT)
    (folder / "models").mkdir()
    save_file(model.state_dict(), folder / "models" / f"{CLIENT}.safetensors")
    return folder


def scaling_run(folder):
    """A run that scales large images down."""
    indoor = {**SETTINGS["data"]["indoor"], "resize": "fit"}
    return untrained_run(folder, data={**SETTINGS["data"], "indoor": indoor})


@contextmanager
def files_of_at_most(length):
    """Let the system refuse larger files, as a full disk would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def picture(height, width):
    return np.random.default_rng(0).integers(0, 255, (3, height, width), dtype=np.uint8)


def test_predictions_are_those_of_evaluation(run):
    trained, image = Trained.open(run, CLIENT), picture(32, 32)
    sample = for_evaluation({"image": torch.from_numpy(image)}, (32, 32))
    with torch.inference_mode():
        expected = TASKS["depth"].predict(trained.model()(sample["image"][None])["depth"])[0]
    np.testing.assert_array_equal(trained.predict(image)["depth"], expected)


def test_an_image_that_evaluation_scales_down_is_predicted_at_that_scale(tmp_path):
    trained = Trained.open(scaling_run(tmp_path), CLIENT)
    image = torch.from_numpy(picture(50, 64))
    place, sample = placement((50, 64), (32, 32)), for_evaluation(fitted({"image": image}, (32, 32)), (32, 32))
    with torch.inference_mode():
        small_one = TASKS["depth"].predict(trained.model()(sample["image"][None])["depth"])
    np.testing.assert_array_equal(trained.predict(image.numpy())["depth"], place.restored(TASKS["depth"], small_one)[0])


@pytest.mark.parametrize("size", [(1, 1), (20, 70), (33, 32), (100, 40)])
def test_any_size_is_predicted(run, size):
    predictions = Trained.open(run, CLIENT).predict(torch.from_numpy(picture(*size)))
    assert {task: map.shape for task, map in predictions.items()} == {"semseg": (1, *size), "depth": (1, *size)}


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
def test_an_image_may_have_every_form_that_data_sets_give(run, form):
    trained, image = Trained.open(run, CLIENT), picture(20, 30)
    expected = trained.predict(torch.from_numpy(image))["semseg"]
    np.testing.assert_array_equal(trained.predict(FORMS[form](image))["semseg"], expected)


@pytest.mark.parametrize("form", [np.asarray, Image.fromarray, torch.from_numpy])
def test_a_grey_image_is_its_shades(run, form):
    trained, grey = Trained.open(run, CLIENT), picture(20, 30)[0]
    expected = trained.predict(np.stack([grey] * 3))["semseg"]
    np.testing.assert_array_equal(trained.predict(form(grey))["semseg"], expected)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_an_image_may_be_a_path(run, tmp_path, kind):
    trained, image = Trained.open(run, CLIENT), picture(20, 30)
    Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / "a.png")
    found = trained.predict(kind(tmp_path / "a.png"))
    np.testing.assert_array_equal(found["semseg"], trained.predict(image)["semseg"])


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
def test_what_is_no_image_is_one_line(run, kind):
    with pytest.raises(UserError) as raised:
        Trained.open(run, CLIENT).predict(WRONG[kind])
    assert len(str(raised.value).splitlines()) == 1


def test_an_unknown_client_is_refused(run):
    with pytest.raises(UserError, match=r"--client: expected a client of .*\. Did you mean 'home'"):
        Trained.open(run, "hoem")


def test_a_broken_model_is_refused(run, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (tmp_path / "models" / f"{CLIENT}.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="expected a trained model"):
        Trained.open(tmp_path, CLIENT).model()


def test_an_unfinished_run_has_no_trained_models(run, tmp_path):
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    with pytest.raises(UserError, match="expected a finished run"):
        Trained.open(tmp_path, CLIENT).model()


def photos(folder, *names):
    for name in names:
        Image.fromarray(picture(20, 30).transpose(1, 2, 0)).save(folder / name)
    return folder


def predict(run, *words):
    return CliRunner().invoke(app, ["predict", str(run), "--client", CLIENT, *map(str, words)])


def test_a_folder_stands_for_its_images(run, tmp_path):
    (photos(tmp_path, "b.png", "a.jpg") / "notes.txt").touch()
    predict(run, tmp_path, "-o", tmp_path / "out")
    assert {path.name.partition(".")[0] for path in (tmp_path / "out").iterdir()} == {"a", "b"}


def test_folders_within_a_folder_are_repeated_without_what_was_written_before(run, tmp_path):
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        photos(tmp_path / name, "a.png")
    for _ in range(2):
        found = predict(run, tmp_path, "-o", tmp_path / "out", "--json")
        assert [record["image"] for record in json.loads(found.stdout)] == [
            str(tmp_path / name / "a.png") for name in ("east", "west") for _ in ("semseg", "depth")
        ]
    assert {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("a.*.png")} == {"out/east", "out/west"}


def test_a_folder_without_images_is_refused(run, tmp_path):
    found = predict(run, tmp_path, "-o", tmp_path / "out")
    assert (found.exit_code, "expected images in it" in found.output) == (2, True)


def test_a_failed_prediction_leaves_nothing(run, tmp_path):
    (photos(tmp_path, "a.png") / "b.png").write_bytes(b"no image")
    assert predict(run, tmp_path, "-o", tmp_path / "out" / "deep").exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_failed_prediction_leaves_earlier_ones(run, tmp_path):
    (photos(tmp_path, "a.png") / "b.png").write_bytes(b"no image")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.depth.png").write_text("earlier")
    predict(run, tmp_path, "-o", tmp_path / "out")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {"a.depth.png": "earlier"}


def test_a_full_disk_is_named_and_nothing_is_left(run, tmp_path):
    photos(tmp_path, "a.png")
    with files_of_at_most(100):
        found = predict(run, tmp_path, "-o", tmp_path / "out")
    assert (found.exit_code, found.output.startswith(f"error: {tmp_path / 'out'}")) == (2, True)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_maps_overlays_and_arrays(run, tmp_path):
    Image.fromarray(picture(20, 30).transpose(1, 2, 0)).save(tmp_path / "photo.png")
    out = tmp_path / "out"
    CliRunner().invoke(
        app, ["predict", str(run), str(tmp_path / "photo.png"), "--client", CLIENT, "-o", str(out), "--raw"]
    )
    kinds = ("npy", "overlay.png", "png")
    assert sorted(path.name for path in out.iterdir()) == [f"photo.{t}.{k}" for t in ("depth", "semseg") for k in kinds]
    assert Image.open(out / "photo.depth.png").size == (30, 20)


def test_the_command_says_what_each_image_shows(run, tmp_path):
    lines = predict(run, photos(tmp_path, "a.png", "b.png"), "-o", tmp_path / "out").stdout.splitlines()
    assert [line.split(": ")[0] for line in lines[:-1]] == [
        f"{tmp_path / name}  {task}" for name in ("a.png", "b.png") for task in ("semseg", "depth")
    ]
    assert lines[1].endswith(" m")
    assert str(tmp_path / "out") in lines[-1]


def test_answers_are_records_in_json_and_csv(run, tmp_path):
    out = ["-o", tmp_path / "out"]
    records = json.loads(predict(run, photos(tmp_path, "a.png"), "--json", *out).stdout)
    assert [record["task"] for record in records] == ["semseg", "depth"]
    assert sum(records[0]["values"].values()) == pytest.approx(1)
    assert all(Path(file).is_file() for record in records for file in record["files"])
    rows = list(csv.DictReader(predict(run, tmp_path, "--csv", *out).stdout.splitlines()))
    assert [(row["answer"], float(row["value"])) for row in rows] == [(one["answer"], one["value"]) for one in records]


def test_two_formats_are_refused(run, tmp_path):
    done = predict(run, photos(tmp_path, "a.png"), "--json", "--csv")
    assert (done.exit_code, "--csv" in done.stderr) == (2, True)


def test_a_file_that_is_no_image_is_one_line(run, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    done = CliRunner().invoke(app, ["predict", str(run), str(tmp_path / "notes.txt"), "--client", CLIENT])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("size", [(100_000, 1), (1, 4_000_000), (39_000_000, 1), (6400, 6241)], ids=str)
def test_an_image_that_takes_much_memory_is_one_line_with_its_name(run, tmp_path, size):
    Image.new("1", size).save(tmp_path / "thin.png")
    done = predict(run, tmp_path / "thin.png", "-o", tmp_path / "out")
    assert (done.exit_code, done.stderr.count("\n"), "thin.png: " in done.stderr, "pixels" in done.stderr) == (
        2,
        1,
        True,
        True,
    )


def test_two_images_of_one_name_are_refused(run, tmp_path):
    done = CliRunner().invoke(app, ["predict", str(run), "a/x.png", "b/x.png", "--client", CLIENT, "-o", str(tmp_path)])
    assert "different names, got x more than once" in done.stderr


def test_safetensors_give_the_parameters_back(run, tmp_path):
    path, _ = export(Trained.open(run, CLIENT), "safetensors", tmp_path)
    expected = load_file(run / "models" / f"{CLIENT}.safetensors")
    assert all(tensor.equal(expected[name]) for name, tensor in load_file(path).items())


def test_the_card_says_how_to_read_every_output(run, tmp_path):
    _, card = export(Trained.open(run, CLIENT), "safetensors", tmp_path)
    text = card.read_text("utf-8")
    assert "float32 [batch, 3, height, width], of at most 32×32" in text
    assert all(TASKS[task].reading in text for task in ("semseg", "depth"))


def test_the_card_has_the_scores_of_the_final_model(tmp_path):
    scores = {CLIENT: {"depth": {"rmse": 0.5}}}
    result = Result(name="small", method="fedavg", rounds=1, seed=0, clients=scores, split="test")
    (untrained_run(tmp_path) / "result.json").write_text(result.model_dump_json())
    text = export(Trained.open(tmp_path, CLIENT), "safetensors", tmp_path / "out")[1].read_text("utf-8")
    assert all(words in text for words in ("RMSE ↓ 0.500 m", f"test images of {CLIENT}"))


@pytest.mark.parametrize("size", [(0, 64), (-32, 32), (100_000, 32), (6400, 6400)], ids=str)
def test_a_size_that_no_model_could_take_is_refused(run, tmp_path, size):
    with pytest.raises(UserError, match=rf"--size: expected .* got {size[0]}×"):
        export(Trained.open(run, CLIENT), "onnx", tmp_path / "out", size)
    assert not (tmp_path / "out").exists()


def test_a_size_to_which_no_image_is_scaled_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--size: expected at most 32×32, .* got 64×32"):
        export(Trained.open(scaling_run(tmp_path), CLIENT), "onnx", tmp_path / "out", (64, 32))


def test_the_card_has_no_markup_of_names(run, monkeypatch):
    names = ("<img src=x onerror=alert(1)>", "a|b", "[x](http://x)", "`c`", "plain name")
    monkeypatch.setattr(Trained, "spaces", {"semseg": LabelSpace(names=names), "depth": LabelSpace()})
    text = card(Trained.open(run, CLIENT), "onnx", "home.onnx", (32, 32))
    assert not any(name in text for name in names[:-1])
    assert "plain name" in text
