import resource
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.data.transforms import fitted, for_evaluation, placement
from fedhca2.deployment import Trained
from fedhca2.deployment.export import Exported, export
from fedhca2.errors import UserError
from fedhca2.models import build_model
from fedhca2.tasks import TASKS
from small_run import SETTINGS, small

CLIENT = "home"
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # of an exported model's outputs compared with the original


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
    indoor = {**SETTINGS["data"]["indoor"], "resize": "fit"}
    trained = Trained.open(untrained_run(tmp_path, data={**SETTINGS["data"], "indoor": indoor}), CLIENT)
    image = torch.from_numpy(picture(50, 64))
    place, sample = placement((50, 64), (32, 32)), for_evaluation(fitted({"image": image}, (32, 32)), (32, 32))
    with torch.inference_mode():
        small_one = TASKS["depth"].predict(trained.model()(sample["image"][None])["depth"])
    np.testing.assert_array_equal(trained.predict(image.numpy())["depth"], place.restored(TASKS["depth"], small_one)[0])


@pytest.mark.parametrize("size", [(1, 1), (20, 70), (33, 32), (100, 40)])
def test_any_size_is_predicted(run, size):
    predictions = Trained.open(run, CLIENT).predict(picture(*size))
    assert {task: map.shape for task, map in predictions.items()} == {"semseg": (1, *size), "depth": (1, *size)}


def test_an_unknown_client_is_refused(run):
    with pytest.raises(UserError, match=r"is not a client of .*\. Did you mean 'home'"):
        Trained.open(run, "hoem")


def test_a_broken_model_is_refused(run, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (tmp_path / "models" / f"{CLIENT}.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="should be a trained model"):
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


def test_a_folder_without_images_is_refused(run, tmp_path):
    found = predict(run, tmp_path, "-o", tmp_path / "out")
    assert (found.exit_code, "should have images in it" in found.output) == (2, True)


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


def test_a_file_that_is_no_image_is_one_line(run, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    done = CliRunner().invoke(app, ["predict", str(run), str(tmp_path / "notes.txt"), "--client", CLIENT])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_two_images_of_one_name_are_refused(run, tmp_path):
    done = CliRunner().invoke(app, ["predict", str(run), "a/x.png", "b/x.png", "--client", CLIENT, "-o", str(tmp_path)])
    assert "different names, found x more than once" in done.stderr


def test_safetensors_give_the_parameters_back(run, tmp_path):
    path, _ = export(Trained.open(run, CLIENT), "safetensors", tmp_path)
    expected = load_file(run / "models" / f"{CLIENT}.safetensors")
    assert all(tensor.equal(expected[name]) for name, tensor in load_file(path).items())


def test_the_card_says_how_to_read_every_output(run, tmp_path):
    _, card = export(Trained.open(run, CLIENT), "safetensors", tmp_path)
    text = card.read_text("utf-8")
    assert "float32 [1, 3, 32, 32]" in text
    assert all(TASKS[task].reading in text for task in ("semseg", "depth"))


def test_a_size_that_does_not_fit_the_strides_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="should be multiples of 32, found 40×64"):
        export(Trained.open(run, CLIENT), "onnx", tmp_path, (40, 64))


def original(trained, size):
    image = torch.from_numpy(picture(*size)).float()[None]
    with torch.inference_mode():
        return image, Exported(trained.model(size)).eval()(image)


@pytest.mark.slow
def test_onnx_gives_the_same_outputs(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    trained, size = Trained.open(run, CLIENT), (64, 96)  # another one than the model was trained at
    path, _ = export(trained, "onnx", tmp_path, size)
    image, expected = original(trained, size)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(["semseg", "depth"], {"image": image.numpy()})
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), **TOLERANCE)


@pytest.mark.slow
def test_torch_export_gives_the_same_outputs(run, tmp_path):
    trained = Trained.open(run, CLIENT)
    path, _ = export(trained, "torch-export", tmp_path)
    image, expected = original(trained, trained.size)
    found = torch.export.load(path).module()(image)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)
