"""Writing rendered scenes in the folder layouts of the papers' data sets."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from fedhca2.data.dataset import Sample
from fedhca2.data.label_spaces import PASCAL_CLASSES
from fedhca2.data.pascal_context import PART_CLASS, PERSON
from fedhca2.data.rendered import FIRST_VAL_SCENE
from fedhca2.data.scenes.labels import CONTEXT_IDS, Domain, encode_normals
from fedhca2.data.scenes.rendering import render
from fedhca2.painting import voc_palette
from fedhca2.whole_files import put_in_place

ArchiveKind = Literal["pascal_context", "nyud"]

DOMAINS: Mapping[ArchiveKind, Domain] = {"pascal_context": "outdoor", "nyud": "indoor"}
SCENES_AT_ONCE = 8
JPEG_QUALITY = 95
TVMONITOR = 427  # its id in PASCAL-Context; readers of the class lists expect it
PART_WRITTEN = {1: "head", 2: "torso", 3: "luarm", 4: "llarm", 5: "luleg", 6: "llleg"}


def write_scenes(
    layout: ArchiveKind,
    root: Path,
    train: int,
    val: int,
    size: tuple[int, int],
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write this many scenes of each split into an empty folder; `progress` gets the numbers written and planned.

    `ScenesData` renders the same scenes for the same numbers, size and seed.
    """
    if layout not in DOMAINS:
        raise ValueError(f"layout should be one of {', '.join(DOMAINS)}, found '{layout}'")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f"{root}: should be a new or empty folder, found files in it")
    write = {"pascal_context": _write_pascal_context, "nyud": _write_nyud}[layout]
    written = 0
    for split, numbers in {"train": range(train), "val": range(FIRST_VAL_SCENE, FIRST_VAL_SCENE + val)}.items():
        lists: dict[str, Any] = {}
        for number, scene in _scenes(DOMAINS[layout], numbers, size, seed):
            id = f"{number:07d}"
            lists[id] = write(root, id, scene)
            written += 1
            if progress is not None:
                progress(written, train + val)
        _write_lists(layout, root, split, lists)
    if layout == "pascal_context":
        _write_class_lists(root)


def _scenes(domain: Domain, numbers: range, size: tuple[int, int], seed: int) -> Iterator[tuple[int, Sample]]:
    for start in range(0, len(numbers), SCENES_AT_ONCE):
        some = numbers[start : start + SCENES_AT_ONCE]
        batch = render(domain, some, size=size, seed=seed)
        for place, number in enumerate(some):
            yield number, {name: values[place] for name, values in batch.items()}


def _write_pascal_context(root: Path, id: str, scene: Sample) -> list[int]:
    """Write one scene and return the classes of its objects."""
    semseg = scene["semseg"][0].numpy()
    objects = [int(code) for code in np.unique(semseg) if code not in (0, 255)]
    _save(root, f"JPEGImages/{id}.jpg", scene["image"].permute(1, 2, 0).numpy())
    _save(root, f"semseg/VOC12/{id}.png", semseg, palette=voc_palette().flatten().tolist())
    _save(root, f"sal_distill/{id}.png", scene["sal"][0].numpy() * 255)
    _save(root, f"normals_distill/{id}.png", encode_normals(scene["normals"]).permute(1, 2, 0).numpy())
    label_map = scene["context"][0].numpy().astype(np.uint16)
    _save_mat(root, f"pascal-context/trainval/{id}.mat", {"LabelMap": label_map})
    annotation = _annotation(id, semseg, objects, scene["human_parts"][0].numpy())
    _save_mat(root, f"human_parts/{id}.mat", {"anno": annotation})
    return objects


def _annotation(id: str, semseg: NDArray[np.uint8], objects: list[int], parts: NDArray[np.uint8]) -> NDArray[np.void]:
    """Make a PASCAL-Part annotation with one object per class in the scene."""
    named_parts = [
        (PART_WRITTEN[code], (parts == code).astype(np.uint8)) for code in PART_WRITTEN if (parts == code).any()
    ]
    rows = [
        (
            PASCAL_CLASSES[code],
            code,
            (semseg == code).astype(np.uint8),
            _struct("part_name mask", named_parts if code == PERSON else []),
        )
        for code in objects
    ]
    return _struct("imname objects", [(id, _struct("class class_ind mask parts", rows))])


def _struct(fields: str, rows: list[tuple[Any, ...]]) -> NDArray[np.void]:
    """Make a MATLAB struct array, 1×n, or 0×0 without rows."""
    array = np.empty((1, len(rows)) if rows else (0, 0), [(field, object) for field in fields.split()])
    for place, row in enumerate(rows):
        array[0, place] = row
    return array


def _write_nyud(root: Path, id: str, scene: Sample) -> None:
    _save(root, f"images/{id}.png", scene["image"].permute(1, 2, 0).numpy())
    _save(root, f"segmentation/{id}.png", scene["semseg"][0].numpy() + np.uint8(1))
    _save(root, f"edge/{id}.png", (scene["edge"][0].numpy() * 255).astype(np.uint8))
    _save(root, f"normals/{id}.png", encode_normals(scene["normals"]).permute(1, 2, 0).numpy())
    with _new_file(root, f"depth/{id}.npy") as path, path.open("wb") as file:
        np.save(file, scene["depth"][0].numpy())


def _write_lists(layout: ArchiveKind, root: Path, split: str, objects: Mapping[str, list[int] | None]) -> None:
    folder = "ImageSets/Context" if layout == "pascal_context" else "gt_sets"
    _save_text(root, f"{folder}/{split}.txt", "".join(f"{id}\n" for id in objects))
    if layout == "pascal_context":
        _save_text(root, f"ImageSets/Parts/{split}.txt", json.dumps(objects))


def _write_class_lists(root: Path) -> None:
    solid = [name for name in CONTEXT_IDS if name != "sky"]  # the sky has no normals
    lists = {
        "context_classes": CONTEXT_IDS | {"tvmonitor": TVMONITOR},
        "nyu_classes": {name: number for number, name in enumerate(solid, start=1)},
        "pascal_part": {str(PERSON): PART_CLASS},
    }
    for name, content in lists.items():
        _save_text(root, f"json/{name}.json", json.dumps(content))


def _save(root: Path, name: str, pixels: NDArray[np.uint8], palette: list[int] | None = None) -> None:
    image = Image.fromarray(pixels)
    if palette is not None:
        image.putpalette(palette)
    with _new_file(root, name) as path:
        image.save(path, "JPEG" if name.endswith(".jpg") else "PNG", quality=JPEG_QUALITY)


def _save_mat(root: Path, name: str, values: Mapping[str, Any]) -> None:
    with _new_file(root, name) as path, path.open("wb") as file:
        savemat(file, values, do_compression=True)


def _save_text(root: Path, name: str, text: str) -> None:
    with _new_file(root, name) as path:
        path.write_text(text, encoding="utf-8")


@contextmanager
def _new_file(root: Path, name: str) -> Iterator[Path]:
    """A path to write this file to, in a folder that exists."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with put_in_place(path) as aside:
        yield aside
