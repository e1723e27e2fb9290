"""Rendered scenes as a data set: without any files, or written in the folder layouts of the papers' archives."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from torch import Tensor

from fedhca2.cores import usable_cores
from fedhca2.data.archives import ArchiveKind
from fedhca2.data.config import DataConfig
from fedhca2.data.dataset import SameForAll, Sample, Size, Split, shared_property
from fedhca2.data.label_spaces import CONTEXT_IDS, PART_CLASS, PASCAL_CLASSES, PERSON, SCENE_LABELS, Domain
from fedhca2.data.scenes.rendering import encode_normals, render
from fedhca2.painting import voc_palette
from fedhca2.tasks import TASKS, LabelSpace, TaskSet
from fedhca2.whole_files import ORDINARY, require_empty, write_whole

Side = Annotated[int, Field(ge=32, multiple_of=32)]


class ScenesData(DataConfig):
    """Scenes that are rendered when a run starts and kept in memory."""

    kind: Literal["scenes"] = "scenes"
    domain: Domain = Field(description="what the scenes show")
    size: tuple[Side, Side] = Field((64, 64), description=DataConfig.model_fields["size"].description)
    train: int = Field(200, ge=1, description="images in the training split")
    val: int = Field(100, ge=1, description="images in the validation split")
    seed: int = Field(0, ge=0, description="seed of the scenes; the experiment's seed does not affect them")

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that the scenes have labels for."""
        return SCENE_LABELS[self.domain]

    def open(self, split: Split, tasks: TaskSet = TASKS) -> "RenderedScenes":
        """Open one split."""
        return RenderedScenes(self, split, tasks)


def scene_numbers(split: Split, count: int) -> range:
    """The numbers of a split's scenes; the splits share none."""
    first = 0 if split == "train" else 1_000_000
    return range(first, first + count)


class RenderedScenes(SameForAll):
    """One split of rendered scenes."""

    def __init__(self, config: ScenesData, split: Split, tasks: TaskSet = TASKS) -> None:
        self.config, self.tasks = config, tasks
        self.labels = config.labels
        self.size = config.size
        self.numbers = scene_numbers(split, config.train if split == "train" else config.val)
        self.ids = [f"{number:07d}" for number in self.numbers]  # as in file names of `fedhca2 data scenes`

    def __len__(self) -> int:
        return len(self.numbers)

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All scenes, or for a client with only a task that skips empty ones, those that show it."""
        if not self.tasks.skips_empty(tasks):
            return range(len(self))
        return self._samples[tasks[0]].flatten(1).any(dim=1).nonzero().flatten().tolist()

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks."""
        return {name: self._samples[name][index] for name in ("image", *tasks)}

    @shared_property
    def _samples(self) -> Sample:
        """Render all scenes of the split in chunks, on a GPU or on the cores of the CPU with one thread each."""
        large = prod(self.size) >= 256 * 256
        gpu = large and torch.cuda.is_available()
        step = 16 if large else 64  # scenes that a thread renders at a time: more mean less waiting between threads

        def chunk(start: int) -> Sample:
            numbers, device = self.numbers[start : start + step], "cuda" if gpu else "cpu"
            scenes = render(self.config.domain, numbers, size=self.size, seed=self.config.seed, device=device)
            return {name: scenes[name].cpu() for name in ("image", *self.labels)}

        workers = 1 if gpu else len(usable_cores())
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            chunks = list(pool.map(chunk, range(0, len(self), step)))
        return {name: torch.cat([each.pop(name) for each in chunks]) for name in ("image", *self.labels)}


def write_scenes(
    layout: ArchiveKind,
    root: Path,
    train: int,
    val: int,
    size: Size,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write this many scenes of each split into an empty folder; `progress` gets the numbers written and planned.

    `ScenesData` renders the same scenes for the same numbers, size and seed.
    """
    require_empty(root)
    domain, lists, files_of = _LAYOUTS[layout]
    written, step = 0, 8
    counts: dict[Split, int] = {"train": train, "val": val}
    for split, count in counts.items():
        objects, numbers = {}, scene_numbers(split, count)
        for some in (numbers[start : start + step] for start in range(0, count, step)):
            batch = render(domain, some, size=size, seed=seed)
            for position, number in enumerate(some):
                id, scene = f"{number:07d}", {name: values[position] for name, values in batch.items()}
                objects[id] = sorted(set(scene["semseg"].flatten().tolist()) - {0})
                _save(root, files_of(id, scene, objects[id]))
                written += 1
                if progress is not None:
                    progress(written, train + val)
        _save(root, {f"{lists}/{split}.txt": "".join(f"{id}\n" for id in objects)})
        if layout == "pascal_context":
            _save(root, {f"ImageSets/Parts/{split}.txt": json.dumps(objects)})
    if layout == "pascal_context":
        solid = [name for name in CONTEXT_IDS if name != "sky"]  # the sky has no normals
        numbered = {name: number for number, name in enumerate(solid, start=1)}
        classes = CONTEXT_IDS | {"tvmonitor": 427}  # readers of the lists expect it
        tables = {"context_classes": classes, "nyu_classes": numbered, "pascal_part": {str(PERSON): PART_CLASS}}
        _save(root, {f"json/{name}.json": json.dumps(content) for name, content in tables.items()})


def _pascal_files(id: str, scene: Sample, objects: Sequence[int]) -> dict[str, Any]:
    """The files of a scene by name; in its annotation of PASCAL-Part, there is one object for each of its classes."""
    semseg = Image.fromarray(scene["semseg"][0].numpy())
    semseg.putpalette(voc_palette().flatten().tolist())
    names = ("head", "torso", "luarm", "llarm", "luleg", "llleg")
    masks = [(name, (scene["human_parts"][0] == PART_CLASS[name]).byte().numpy()) for name in names]
    parts = _struct("part_name mask", [(name, mask) for name, mask in masks if mask.any()])
    no_parts = _struct("part_name mask", [])
    rows = [
        (PASCAL_CLASSES[k], k, (scene["semseg"][0] == k).byte().numpy(), parts if k == PERSON else no_parts)
        for k in objects
    ]
    annotation = _struct("imname objects", [(id, _struct("class class_ind mask parts", rows))])
    return {
        f"JPEGImages/{id}.jpg": _picture(scene["image"]),
        f"semseg/VOC12/{id}.png": semseg,
        f"sal_distill/{id}.png": _picture(scene["sal"] * 255),
        f"normals_distill/{id}.png": _picture(encode_normals(scene["normals"])),
        f"pascal-context/trainval/{id}.mat": {"LabelMap": scene["context"][0].numpy().astype(np.uint16)},
        f"human_parts/{id}.mat": {"anno": annotation},
    }


def _struct(fields: str, rows: Sequence[tuple[Any, ...]]) -> NDArray[np.void]:
    """A MATLAB struct array, 1×n, or 0×0 without rows."""
    array = np.empty((1, len(rows)) if rows else (0, 0), [(field, object) for field in fields.split()])
    for position, row in enumerate(rows):
        array[0, position] = row
    return array


def _nyud_files(id: str, scene: Sample, objects: Sequence[int]) -> dict[str, Any]:
    return {
        f"images/{id}.png": _picture(scene["image"]),
        f"segmentation/{id}.png": _picture(scene["semseg"] + 1),
        f"edge/{id}.png": _picture((scene["edge"] * 255).byte()),
        f"normals/{id}.png": _picture(encode_normals(scene["normals"])),
        f"depth/{id}.npy": scene["depth"][0].numpy(),
    }


# What a layout's scenes show, the folder with the lists of its splits, and the files of one scene by name.
_LAYOUTS: dict[ArchiveKind, tuple[Domain, str, Callable[[str, Sample, Sequence[int]], dict[str, Any]]]] = {
    "pascal_context": ("outdoor", "ImageSets/Context", _pascal_files),
    "nyud": ("indoor", "gt_sets", _nyud_files),
}


def _picture(values: Tensor) -> Image.Image:
    """A picture of bytes [1 or 3, H, W]."""
    return Image.fromarray(values.permute(1, 2, 0).squeeze(2).numpy())


def _save(root: Path, files: Mapping[str, Any]) -> None:
    """Write pictures, texts, arrays (.npy) and variables by name (.mat)."""
    for name, content in files.items():
        buffer = BytesIO(content.encode() if isinstance(content, str) else b"")
        if isinstance(content, Image.Image):
            content.save(buffer, "JPEG" if name.endswith(".jpg") else "PNG", quality=95)
        elif isinstance(content, Mapping):
            scipy.io.savemat(buffer, content, do_compression=True)
        elif isinstance(content, np.ndarray):
            np.save(buffer, content)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(root / name, buffer.getvalue(), ORDINARY, sync=False)
