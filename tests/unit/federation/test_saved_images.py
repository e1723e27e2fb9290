"""A run's clients have the images that its `partition.json` says, also if the data folder has changed since."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image

from command import invoke
from fedhca2.experiment import Experiment
from fedhca2.federation.flower.local import write_sites
from small_run import tree
from tiny_encoder import TINY

pytestmark = pytest.mark.slow

VALUES = {
    "rounds": 1,
    "method": "fedavg",
    "model": {"encoder": {"name": TINY}},
    "training": {"batch_size": 2},
    "data": {"cups": {"kind": "csv", "root": "cups", "columns": {"classification": "brand"}, "size": [32, 32]}},
    "clients": [{"name": name, "data": "cups", "tasks": ["classification"]} for name in ("north", "south")],
}


def add_images(folder, numbers, brands=("tea", "milk")):
    """Add rows to the CSV file; every fourth is for validation."""
    with (folder / "labels.csv").open("a") as table:
        for i in numbers:
            image = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / f"{i}.png")
            table.write(f"{i}.png,{brands[i % 2]},{'val' if i % 4 == 3 else 'train'}\n")


def drop_row(folder, image):
    lines = (folder / "labels.csv").read_text().splitlines()
    (folder / "labels.csv").write_text("\n".join(line for line in lines if not line.startswith(f"{image},")) + "\n")


def partition(run):
    return json.loads((run / "partition.json").read_text())


def resume(folder):
    return invoke("resume", folder / "run", "--set", "rounds=2")


@pytest.fixture
def cups(tmp_path):
    """A folder of images with a CSV file, and a finished run `run` of one round next to it."""
    folder = tmp_path / "cups"
    folder.mkdir()
    (folder / "labels.csv").write_text("image,brand,split\n")
    add_images(folder, range(12))
    (tmp_path / "cups.yaml").write_text(yaml.safe_dump(VALUES))
    done = invoke("run", tmp_path / "cups.yaml", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    return folder


def test_a_run_keeps_its_images_when_rows_were_added(cups, tmp_path):
    def scores():
        assert invoke("evaluate", tmp_path / "run", "--split", "train").exit_code == 0
        return json.loads((tmp_path / "run" / "evaluation-train.json").read_text())["clients"]

    before = scores(), partition(tmp_path / "run")
    add_images(cups, range(20, 36))
    assert (scores(), partition(tmp_path / "run")) == before
    done = resume(tmp_path)
    assert (done.exit_code, partition(tmp_path / "run")) == (0, before[1])


@pytest.mark.parametrize("command", [["resume", "--set", "rounds=2"], ["evaluate"]])
def test_a_missing_image_is_an_error_that_changes_nothing(cups, tmp_path, command):
    used = partition(tmp_path / "run")["south"]["train"][0]
    drop_row(cups, used)
    before = tree(tmp_path / "run")
    done = invoke(command[0], tmp_path / "run", *command[1:])
    assert (done.exit_code, tree(tmp_path / "run")) == (2, before)
    assert all(word in done.output for word in ("error: data.cups: ", "'south'", repr(used)))


def test_every_client_without_its_images_is_named(cups, tmp_path):
    for image in partition(tmp_path / "run")["south"]["val"]:
        drop_row(cups, image)
    add_images(cups, [27])
    assert [name in resume(tmp_path).output for name in ("'north'", "'south'")] == [True, True]


@pytest.mark.parametrize(
    ("record", "code", "said"),
    [
        (None, 2, "partition.json"),
        (3, 2, "partition.json: north"),
        ({"train": 3}, 2, "partition.json: north"),
        ({"train": [["a"]], "val": [], "dealt": []}, 2, "partition.json: north"),
        (["data", "train", "val"], 0, ""),  # what older versions wrote
    ],
)
def test_a_list_of_images_is_as_this_version_or_an_older_one_wrote_it(cups, tmp_path, record, code, said):
    clients, file = partition(tmp_path / "run"), tmp_path / "run" / "partition.json"
    if record is None:
        file.unlink()
    elif isinstance(record, list):
        file.write_text(json.dumps({name: {key: of[key] for key in record} for name, of in clients.items()}))
    else:
        file.write_text(json.dumps({**clients, "north": record}))
    done = resume(tmp_path)
    assert (done.exit_code, said in done.output) == (code, True)
    assert not code or done.output.count("\n") == 1


def test_classes_that_have_changed_are_refused(cups, tmp_path):
    (cups / "labels.csv").write_text((cups / "labels.csv").read_text().replace("tea", "ale"))
    done = resume(tmp_path)
    assert (done.exit_code, "expected the classes" in done.output) == (2, True)


def test_the_local_sites_of_a_continued_run_have_the_images_that_they_had(cups, tmp_path):
    def images(**options):
        files = write_sites(Experiment.load(tmp_path / "cups.yaml"), tmp_path / "sites", **options)
        return [json.loads(file.with_suffix(".images.json").read_text()) for file in files.values()]

    before = images()
    add_images(cups, range(20, 36))
    assert (images(continued=True) == before, images() == before) == (True, False)
