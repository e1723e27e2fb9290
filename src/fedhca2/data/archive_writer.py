"""Writing rendered scenes in the folder layouts of the papers' data sets."""

import json
from collections.abc import Callable, Iterator, Mapping
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
        _write_class_lists(root / "json")


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
    image = Image.fromarray(scene["image"].permute(1, 2, 0).numpy())
    image.save(_at(root, "JPEGImages", f"{id}.jpg"), quality=JPEG_QUALITY)
    classes = Image.fromarray(semseg)
    classes.putpalette(voc_palette().flatten().tolist())
    classes.save(_at(root, "semseg/VOC12", f"{id}.png"))
    Image.fromarray(scene["sal"][0].numpy() * 255).save(_at(root, "sal_distill", f"{id}.png"))
    _save_normals(_at(root, "normals_distill", f"{id}.png"), scene)
    label_map = scene["context"][0].numpy().astype(np.uint16)
    savemat(_at(root, "pascal-context/trainval", f"{id}.mat"), {"LabelMap": label_map}, do_compression=True)
    annotation = _annotation(id, semseg, objects, scene["human_parts"][0].numpy())
    savemat(_at(root, "human_parts", f"{id}.mat"), {"anno": annotation}, do_compression=True)
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
    Image.fromarray(scene["image"].permute(1, 2, 0).numpy()).save(_at(root, "images", f"{id}.png"))
    Image.fromarray(scene["semseg"][0].numpy() + np.uint8(1)).save(_at(root, "segmentation", f"{id}.png"))
    Image.fromarray((scene["edge"][0].numpy() * 255).astype(np.uint8)).save(_at(root, "edge", f"{id}.png"))
    _save_normals(_at(root, "normals", f"{id}.png"), scene)
    np.save(_at(root, "depth", f"{id}.npy"), scene["depth"][0].numpy())


def _save_normals(path: Path, scene: Sample) -> None:
    Image.fromarray(encode_normals(scene["normals"]).permute(1, 2, 0).numpy()).save(path)


def _write_lists(layout: ArchiveKind, root: Path, split: str, objects: Mapping[str, list[int] | None]) -> None:
    folder = "ImageSets/Context" if layout == "pascal_context" else "gt_sets"
    _at(root, folder, f"{split}.txt").write_text("".join(f"{id}\n" for id in objects), encoding="utf-8")
    if layout == "pascal_context":
        _at(root, "ImageSets/Parts", f"{split}.txt").write_text(json.dumps(objects), encoding="utf-8")


def _write_class_lists(folder: Path) -> None:
    solid = [name for name in CONTEXT_IDS if name != "sky"]  # the sky has no normals
    lists = {
        "context_classes": CONTEXT_IDS | {"tvmonitor": TVMONITOR},
        "nyu_classes": {name: number for number, name in enumerate(solid, start=1)},
        "pascal_part": {str(PERSON): PART_CLASS},
    }
    for name, content in lists.items():
        _at(folder, "", f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _at(root: Path, folder: str, name: str) -> Path:
    """The path of a file; creates its folder."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    return root / folder / name
