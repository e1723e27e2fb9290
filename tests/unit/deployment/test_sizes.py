"""The same pixels give the same answer in evaluation, prediction and export, at every size that training accepts."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedhca2.clients.evaluation import evaluate, sample_predictions
from fedhca2.deployment import Trained
from fedhca2.deployment.export import build_exported, export
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, open_data
from fedhca2.tasks import get_task
from small_run import SETTINGS, clients_of, untrained_run
from tiny_encoder import TINY

NOISE = """
import numpy as np

class Noise:
    labels = {"normals": None, "regression": 2}

    def __init__(self, split, size: tuple[int, int] = (32, 32), image: tuple[int, int] | None = None):
        self.shape_of_images = image or size

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        pixels = rng.integers(0, 256, (*self.shape_of_images, 3), dtype=np.uint8)
        return {"image": pixels, "normals": np.float32([[[0, 0, 1]]]) + 0 * pixels, "regression": rng.random(2)}
"""
CLIENT, TASKS = "noise", ["normals", "regression"]
SIZES = [(7, 5), (16, 16), (31, 32), (32, 32), (33, 47), (40, 64), (48, 48), (65, 33), (80, 100), (96, 64)]
AGREEING = [  # the size in training, that of the images if it is another, and settings
    *((size, None, {}) for size in SIZES),
    *(((48, 48), smaller, {}) for smaller in [(1, 1), (20, 48), (33, 47)]),
    ((33, 47), (80, 60), {"data": {"resize": "fit"}}),
    ((49, 61), None, {"model": {"encoder": {"name": TINY}, "decoder_width": 8}}),  # whose maps leave pixels out
]


def make_client(folder, size, image=None, **changes):
    """A client that has trained nothing, and its trained model."""
    (folder / "noise.py").write_text(NOISE)
    image = {"image": list(image)} if image else {}
    data = {"noise": {"kind": f"{folder / 'noise.py'}:Noise", "size": list(size), **image, **changes.pop("data", {})}}
    clients = [{"name": CLIENT, "data": "noise", "tasks": TASKS}]
    model = {"encoder": {"name": "swin_micro"}, "decoder_width": 8}
    experiment = Experiment.parse({**SETTINGS, "model": model, "data": data, "clients": clients, **changes})
    client = clients_of(experiment, open=open_data)[CLIENT]
    run = untrained_run(folder / "run", experiment, client)
    return client, Trained.open(run, CLIENT, allow_code=[str(folder / "noise.py")])


def evaluate_first(client):
    """The first image, and the predictions that evaluation scores."""
    predictions = sample_predictions(client, "now")
    image = client.data.val.data.load(client.data.val.indices[0], ())["image"]
    return image, {task: predictions[f"now.{task}"][0] for task in TASKS}


def by_export(trained, image):
    with torch.inference_mode():
        outputs = build_exported(trained, tuple(image.shape[1:]))(image.float()[None])
    return read(outputs)


def read(outputs):
    pairs = zip(TASKS, outputs, strict=True)
    return {task: get_task(task).predict(output.detach())[0].numpy() for task, output in pairs}


def assert_same(actual, expected, **tolerance):
    for task, values in expected.items():
        np.testing.assert_allclose(actual[task], values, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


@pytest.mark.parametrize(("size", "image", "changes"), AGREEING, ids=str)
def test_evaluation_prediction_and_export_agree(tmp_path, size, image, changes):
    client, trained = make_client(tmp_path, size, image, **changes)
    image, expected = evaluate_first(client)
    assert_same(trained.predict(image), expected)
    if not trained.resizes:
        assert_same(by_export(trained, image), expected)


def test_evaluation_and_prediction_agree_in_mixed_precision(tmp_path):
    client, trained = make_client(tmp_path, (48, 48), training={**SETTINGS["training"], "precision": "bf16"})
    scored = {task: Mock(compute=dict) for task in TASKS}
    evaluate(client.personal.model, client.data.val.evaluation(), scored, "bf16")
    predicted = trained.predict(evaluate_first(client)[0])
    assert_same(predicted, {task: scored[task].update.call_args_list[0].args[0][0] for task in TASKS})


@pytest.mark.parametrize("own", [(100, 40), (50, 49), (33, 200)], ids=str)
def test_prediction_and_export_agree_on_larger_images(tmp_path, own):
    _, trained = make_client(tmp_path, (48, 48))
    image = torch.randint(0, 256, (3, *own), dtype=torch.uint8)
    assert_same(by_export(trained, image), trained.predict(image))


def test_a_size_that_the_encoder_does_not_take_is_one_line(tmp_path):
    encoder = {"name": "swinv2_tiny_window8_256"}
    _, trained = make_client(tmp_path, (64, 64), model={"encoder": encoder, "decoder_width": 8})
    with pytest.raises(UserError, match=r"^noise: expected images of a size that swinv2\S+ takes, got 96×96[^\n]*$"):
        trained.predict(torch.zeros(3, 90, 90, dtype=torch.uint8))


def run_onnx(path):
    """What an exported file computes from images of bytes [B, 3, H, W], and its session."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: list(map(torch.from_numpy, session.run(TASKS, {"image": images.float().numpy()}))), session


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["swin_micro", TINY])
def test_one_exported_file_takes_any_number_of_images_of_every_size_up_to_that_of_training(tmp_path, encoder):
    _, trained = make_client(tmp_path, (64, 48), model={"encoder": {"name": encoder}, "decoder_width": 8})
    onnx, program = (export(trained, format, tmp_path)[0] for format in ("onnx", "torch-export"))
    (run, session), module = run_onnx(onnx), torch.export.load(program).module()
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    images = torch.randint(0, 256, (3, 3, 20, 30), dtype=torch.uint8)
    outputs = run(images)
    for number, image in enumerate(images):
        assert_same(read([output[number : number + 1] for output in outputs]), trained.predict(image), **CLOSE)
    for own in [(1, 1), (7, 5), (16, 16), (31, 32), (32, 32), (33, 47), (40, 48), (48, 48), (63, 1), (64, 48)]:
        image = torch.randint(0, 256, (3, *own), dtype=torch.uint8)
        expected = trained.predict(image)
        assert_same(read(run(image[None])), expected, **CLOSE)
        assert_same(read(module(image.float()[None])), expected, **CLOSE)


@pytest.mark.slow
def test_a_file_exported_for_larger_images_agrees_with_prediction(tmp_path):
    _, trained = make_client(tmp_path, (33, 47), model={"encoder": {"name": TINY}, "decoder_width": 8})
    image = torch.randint(0, 256, (3, 50, 20), dtype=torch.uint8)
    run, _ = run_onnx(export(trained, "onnx", tmp_path, (50, 20))[0])
    assert_same(read(run(image[None])), trained.predict(image), **CLOSE)


@pytest.mark.slow
def test_exported_files_exchange_features_among_tasks_as_prediction_does(tmp_path):
    model = {"encoder": {"name": TINY}, "decoder_width": 8, "interaction": "cross_attention"}
    _, trained = make_client(tmp_path, (33, 47), model=model)
    image = torch.randint(0, 256, (3, 33, 47), dtype=torch.uint8)
    project = trained.model().interaction.project
    before = trained.predict(image)
    torch.nn.init.eye_(project.weight)  # it starts at zero
    expected = trained.predict(image)
    assert any((expected[task] != before[task]).any() for task in TASKS)
    run, _ = run_onnx(export(trained, "onnx", tmp_path)[0])
    assert_same(read(run(image[None])), expected, **CLOSE)
    assert_same(by_export(trained, image), expected)


def test_the_card_names_the_evaluated_size_and_warns_about_another_one(tmp_path):
    _, trained = make_client(tmp_path, (33, 47))
    same, other = (export(trained, "safetensors", tmp_path, size)[1].read_text("utf-8") for size in (None, (70, 20)))
    assert "[batch, 3, height, width], of at most 33×47" in same
    assert "padded to 33×47" in same
    assert "to 96×47" in other
    assert "Images of 70×20 may score otherwise" in other
