"""Mutated images, labels and weights: each is read or gets one line that names it, never a traceback."""

import io
import random
import shutil

import pytest
import torch
from safetensors.torch import save

from command import invoke
from fedhca2.data.rendered import write_scenes
from fedhca2.models import Encoder, EncoderConfig
from small_run import clients_of, small, untrained_run

pytestmark = pytest.mark.slow
SIZE = (32, 32)
FOLDERS = {
    "pascal_context": (
        *("JPEGImages", "semseg/VOC12", "sal_distill", "normals_distill", "pascal-context/trainval", "human_parts"),
        *("ImageSets/Context", "ImageSets/Parts", "json"),
    ),
    "nyud": ("images", "segmentation", "edge", "normals", "depth", "gt_sets"),
}


def mutate(data, rng):
    """Truncate content, change bytes in its header or anywhere, prepend bytes, or replace it."""
    changed, kind = bytearray(data), rng.randrange(5)
    if kind == 0:
        del changed[rng.randrange(len(changed)) :]
    elif kind == 1:
        changed[:0] = rng.randbytes(rng.randint(1, 9))
    elif kind == 2:
        changed[:] = rng.choice(
            [b"", b"\0" * 200, b"[" * 2000, b"root:x:0:0:root:/root:/bin/bash\n", rng.randbytes(200)]
        )
    else:
        end = min(len(changed), 200) if kind == 3 else len(changed)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(end)] = rng.randrange(256)
    return bytes(changed)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    roots = {layout: tmp_path_factory.mktemp(layout) / "root" for layout in FOLDERS}
    for layout, root in roots.items():
        write_scenes(layout, root, 1, 1, SIZE, seed=0)
    return roots


@pytest.mark.parametrize("layout", FOLDERS)
def test_checking_a_mutated_archive_names_what_is_broken(archives, layout, tmp_path):
    rng, root, named = random.Random(layout), tmp_path / "root", 0
    shutil.copytree(archives[layout], root)
    for number in range(45):
        folder = root / FOLDERS[layout][number % len(FOLDERS[layout])]
        file = rng.choice(sorted(folder.iterdir()))
        whole = file.read_bytes()
        file.write_bytes(mutate(whole, rng))
        done = invoke("data", "check", root)  # which loads every sample
        assert (done.exit_code in (0, 1), done.stderr) == (True, ""), (file, done.output)
        assert isinstance(done.exception, SystemExit | None), (file, done.exception)
        named += f"broken: {file}: " in done.output
        file.write_bytes(whole)
    assert named > 20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = small(clients=[{"name": "home", "data": "indoor", "tasks": ["depth"]}])
    return untrained_run(tmp_path_factory.mktemp("run"), experiment, clients_of(experiment)["home"])


def predict(run, image, tmp_path):
    """Whether a prediction was written; if not, one line says what is wrong."""
    done = invoke("predict", run, image, "--client", "home", "-o", tmp_path / "out")
    assert done.exit_code == 0 or (done.exit_code, done.stderr.count("\n")) == (2, 1), (done.output, done.exception)
    return done.exit_code == 0


@pytest.mark.parametrize("file", ["images/0000000.png", "JPEGImages/0000000.jpg", "run/models/home.safetensors"])
def test_predicting_with_a_mutated_image_or_model_is_a_picture_or_a_line(archives, run, tmp_path, file):
    image = tmp_path / "nyud" / "images" / "0000000.png"
    for layout, root in archives.items():
        shutil.copytree(root, tmp_path / layout)
    shutil.copytree(run, tmp_path / "run")
    changed = next(
        folder / file for folder in (tmp_path, *map(tmp_path.joinpath, archives)) if (folder / file).exists()
    )
    rng, whole, outcomes = random.Random(file), changed.read_bytes(), []
    for _ in range(30):
        changed.write_bytes(mutate(whole, rng))
        outcomes.append(predict(tmp_path / "run", image if file.startswith("run") else changed, tmp_path))
    assert outcomes.count(False) > 10


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_mutated_weights_are_used_or_refused_in_a_line(tmp_path, suffix):
    tensors, pickled = Encoder(EncoderConfig(name="swin_micro"), SIZE).state_dict(), io.BytesIO()
    torch.save({"state_dict": tensors}, pickled)
    whole = save(tensors) if suffix == ".safetensors" else pickled.getvalue()
    rng, path, lines = random.Random(suffix), tmp_path / f"weights{suffix}", []
    for _ in range(30):
        path.write_bytes(mutate(whole, rng))
        try:
            Encoder(EncoderConfig(name="swin_micro", weights=str(path)), SIZE)
        except ValueError as error:
            lines.append(str(error))
    assert all(str(path) in line and "\n" not in line for line in lines)
    assert len(lines) > 10
