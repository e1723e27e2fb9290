"""Data sets in formats of others: map-style ones, Hugging Face's, images with a CSV file, and COCO's layout.

Each is a class of the kind that `own.py` describes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import PositiveInt

from fedhca2.data import files
from fedhca2.data.dataset import Size, Split
from fedhca2.data.files import BrokenFileError, reading
from fedhca2.data.tables import CsvRows, cell_in
from fedhca2.tasks import TASKS, TaskSet

Mask = NDArray[np.bool_]
Corners = NDArray[np.float64]  # (x, y) of each
Region = tuple[slice, slice]  # rows and columns of an image
Part = tuple[Region, Callable[[], Mask]]  # of an object, and what computes its mask


class MapStyle:
    """Any data set with `len()` and `[index]`: torchvision's, or another of torch's kind.

    `names` describes its samples. For a tuple it lists the names of the items, as in ("image", "semseg"); for a dict it
    gives the keys by our names, as in {"image": "jpg", "classification": "label"}. Class names come from `labels`, or
    from the `features` that a Hugging Face data set has.
    """

    def __init__(
        self, dataset: Any, names: Sequence[str] | Mapping[str, str], labels: Mapping[str, Any] | None = None
    ) -> None:
        self.dataset = dataset
        self.keys: Mapping[str, Any] = names if isinstance(names, Mapping) else {n: i for i, n in enumerate(names)}
        features = getattr(dataset, "features", None) or {}
        named = {name: getattr(features.get(key), "names", None) for name, key in self.keys.items() if name != "image"}
        self.labels = named if labels is None else labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.dataset[index]
        return {name: sample[key] for name, key in self.keys.items()}


class HuggingFace(MapStyle):
    """A Hugging Face data set in a folder, as `save_to_disk` writes it.

    Images must be within its own files: names of other files and addresses are refused.

    :param columns: its columns: `image`, and one for each task.
    :param train: the name of its split for training.
    :param val: the name of its split for validation.
    """

    def __init__(
        self, split: Split, root: Path, columns: dict[str, str], train: str = "train", val: str = "validation"
    ) -> None:
        try:
            import datasets
        except ImportError:
            raise ImportError("`datasets` is not installed; run: pip install 'fedhca2[huggingface]'") from None
        chosen = datasets.load_from_disk(str(root))[train if split == "train" else val]
        chosen = chosen.select_columns(list(dict.fromkeys(columns.values())))
        for name, feature in chosen.features.items():
            if isinstance(feature, datasets.Image):
                chosen = chosen.cast_column(name, datasets.Image(decode=False))
        super().__init__(chosen, columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        for name, value in sample.items():
            if isinstance(value, dict) and set(value) == {"bytes", "path"}:
                if value["bytes"] is None:
                    expected = f"{self.keys[name]!r}: expected an image"
                    raise ValueError(f"{expected}, got the name of one: {value['path']!r:.200}")
                sample[name] = Image.open(BytesIO(value["bytes"]), formats=files.FORMATS)
        return sample


class CsvImages(CsvRows):
    """A folder of images and one CSV file with a row for each.

    The column `split` says `train` or `val`. Without it, every fifth row is for validation. An empty cell is unknown.

    :param columns: the column of each task: file names of maps (PNG, or .npy for measured values), names of classes,
        or numbers, for several of which it is a list of columns.
    :param file: the CSV file, in `root`.
    :param image: the column with the images' file names.
    :param classes: the names of a task's classes, or their number; maps need it.
    :param links: follow links that lead out of `root`.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        columns: dict[str, str | list[str]],
        file: str = "labels.csv",
        image: str = "image",
        classes: dict[str, list[str] | PositiveInt] | None = None,
        links: bool = False,
        tasks: TaskSet = TASKS,
    ) -> None:
        super().__init__(split, root / file, columns, [image], classes, tasks)
        self.root, self.image = root, image
        self.within = None if links else root
        self.ids = [row[image] for row in self.rows]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, line = self.rows[index], self.lines[index]
        pixels = files.read_colours(self._file(line, self.image, row[self.image]))
        return {"image": pixels, **{task: self.label(task, line) for task in self.columns}}

    def _file(self, line: int, column: str, name: str) -> Path:
        return files.file_in(self.root, name, within=self.within, where=cell_in(self.path, line, column))

    def map(self, line: int, column: str, cell: str) -> Any:
        """A label map from its file."""
        path = self._file(line, column, cell)
        return files.read_npy(path) if path.suffix == ".npy" else files.read_values(path)


class CocoMasks:
    """A folder in COCO's layout, with `semseg` (0 is background) and `multilabel` (which categories are there).

    Small objects are painted over large ones.

    :param images: the folder of a split's images, in `root`.
    :param annotations: the file with a split's annotations, in `root`.
    :param links: follow links that lead out of `root`.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        images: str = "{split}2017",
        annotations: str = "annotations/instances_{split}2017.json",
        links: bool = False,
    ) -> None:
        self.folder, self.path = root / images.format(split=split), root / annotations.format(split=split)
        elsewhere = Path(images).is_absolute() or ".." in Path(images).parts  # by the config, not by the data
        self.within = None if links else self.folder if elsewhere else root
        content = files.read_json(self.path)
        if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
            raise BrokenFileError(self.path, "expected images, annotations and categories, got other keys")
        categories = self._entries(content, "categories", id=int, name=str)
        if len(categories) > 254:  # 0 is the background; 255 is unknown
            raise BrokenFileError(self.path, f"expected at most 254 categories, got {len(categories)}")
        self.classes = {category["id"]: number for number, category in enumerate(categories, 1)}
        names = [category["name"] for category in categories]
        self.labels = {"semseg": ["background", *names], "multilabel": names}
        self.images = self._entries(content, "images", id=int, file_name=str)
        self.ids = [image["file_name"] for image in self.images]
        self.objects: dict[Any, list[Mapping[str, Any]]] = {}
        for each in self._entries(content, "annotations", image_id=int, category_id=int):
            self.objects.setdefault(each["image_id"], []).append(each)

    def _entries(self, content: Mapping[str, Any], key: str, **types: type) -> list[dict[str, Any]]:
        """One of the file's lists, in the order of its ids, which should differ; its entries have these members."""
        entries = content[key]
        if not isinstance(entries, list):
            raise BrokenFileError(self.path, f"{key}: expected a list, got {type(entries).__name__}")
        for number, entry in enumerate(entries):
            for name, kind in types.items():
                if not isinstance(entry, dict) or type(entry.get(name)) is not kind:
                    expected = f"{key}[{number}]: expected {name!r} of type {kind.__name__}"
                    raise BrokenFileError(self.path, f"{expected}, got {entry!r:.80}")
        if "id" not in types:
            return entries
        ids = Counter(entry["id"] for entry in entries)
        if len(ids) < len(entries):
            actual = f"{ids.most_common(1)[0][0]} twice"
            raise BrokenFileError(self.path, f"{key}: expected a different id for each, got {actual}")
        return sorted(entries, key=lambda entry: entry["id"])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.images[index]
        where, objects = f"{self.path}: image {image['id']}", self.objects.get(image["id"], [])
        path = files.file_in(self.folder, image["file_name"], within=self.within, where=f"{where}: file_name")
        pixels = files.read_colours(path)
        size = (pixels.shape[1], pixels.shape[2])
        if (declared := (image.get("height"), image.get("width"))) != size:
            raise BrokenFileError(where, f"expected {size[0]}×{size[1]} like its file, got {declared!r:.80}")
        with reading(where, "segmentations of COCO's format"):
            numbers = [self.classes[each["category_id"]] for each in objects]
            painted = paint([each["segmentation"] for each in objects], numbers, size)
        there = np.zeros(len(self.classes), np.float32)
        there[[number - 1 for number in numbers]] = 1
        return {"image": pixels, "semseg": painted, "multilabel": there}


def paint(segmentations: Sequence[Any], numbers: Sequence[int], size: Size) -> NDArray[np.uint8]:
    """Paint the numbers of objects, one at a time; of two on a pixel the smaller is seen, of equal ones the later.

    :param segmentations: in COCO's format: polygons, or run lengths. Another format raises an error of any kind.

    >>> paint([{"counts": [1, 2, 3], "size": [2, 3]}], [7], (2, 3))
    array([[0, 7, 0],
           [7, 0, 0]], dtype=uint8)
    """
    objects = [_parts(each, size) for each in segmentations]
    boxes = [box for region, parts in objects for box in (region, *(part for part, _ in parts[1:]))]
    work, most = sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in boxes), 2e9
    if work > most:  # COCO's own images have far fewer
        raise ValueError(f"{work:g} pixels in the boxes around objects, more than {most:g}")
    painted, mask = np.zeros(size, np.uint8), np.zeros(size, bool)
    smallest = np.full(size, size[0] * size[1], np.int32)  # pixels of the object that is seen
    for (region, parts), number in zip(objects, numbers, strict=True):
        mask[region] = False
        for part, fill in parts:
            mask[part] |= fill()
        count = np.count_nonzero(mask[region])
        seen = np.logical_and(mask[region], smallest[region] >= count)
        np.copyto(smallest[region], count, where=seen)  # an index by a mask would take 16 bytes a pixel
        np.copyto(painted[region], number, where=seen)
    return painted


def _parts(segmentation: Any, size: Size) -> tuple[Region, list[Part]]:
    """The region of an object, and those of its polygons or run lengths, each with what computes its mask."""
    if isinstance(segmentation, Mapping):
        if (declared := segmentation.get("size", list(size))) != list(size):
            raise ValueError(f"runs of another size than {size[0]}×{size[1]} pixels: {declared!r:.80}")
        whole = slice(0, size[0]), slice(0, size[1])
        return whole, [(whole, partial(decode_runs, segmentation["counts"], size))]
    polygons = [np.asarray(polygon, np.float64).reshape(-1, 2) for polygon in segmentation if polygon]
    parts: list[Part] = []
    for corners in polygons:
        region = _region(corners, size)
        parts.append((region, partial(fill_polygon, corners, region)))
    return _region(np.concatenate([*polygons, np.empty((0, 2))]), size), parts


def _region(corners: Corners, size: Size) -> Region:
    """The pixels of an image whose centres can be in polygons."""
    if not np.all(np.abs(corners) < 1e6):
        raise ValueError("a corner 1e+06 or more pixels away")
    low = np.clip(np.floor(corners.min(axis=0, initial=1e6)) - 1, 0, size[::-1]).astype(int).tolist()
    high = np.clip(np.ceil(corners.max(axis=0, initial=-1e6)) + 1, 0, size[::-1]).astype(int).tolist()
    return slice(low[1], high[1]), slice(low[0], high[0])


def fill_polygon(corners: Corners, region: Region) -> Mask:
    """The pixels of a region whose centres are in a polygon of (x, y) corners, in pixels from the image's upper left.

    >>> square = np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0], [1.0, 1.0]])
    >>> fill_polygon(square, (slice(0, 2), slice(0, 4))).astype(int)
    array([[0, 1, 1, 0],
           [0, 0, 0, 0]])
    """
    (rows, columns), most = region, 4_000_000
    x, y = corners.T
    to_x, to_y = np.roll(corners, -1, axis=0).T
    first, last = (
        np.clip(np.ceil(edge - 0.5), rows.start, rows.stop).astype(int)
        for edge in (np.minimum(y, to_y), np.maximum(y, to_y))
    )
    counts = last - first
    if (crossings := int(counts.sum())) > most:
        raise ValueError(f"a polygon whose edges cross {crossings} rows of pixels, more than {most}")
    edge = np.repeat(np.arange(len(corners)), counts)
    row = np.arange(crossings) - np.repeat(np.cumsum(counts) - counts, counts) + first[edge]
    crossing = x[edge] + (row + 0.5 - y[edge]) * (to_x - x)[edge] / (to_y - y)[edge]
    column = np.clip(np.ceil(crossing - 0.5), columns.start, columns.stop).astype(int)
    height, width = rows.stop - rows.start, columns.stop - columns.start
    crossed, times = np.unique((row - rows.start) * (width + 1) + column - columns.start, return_counts=True)
    odd = np.zeros(height * (width + 1), bool)
    odd[crossed[times % 2 == 1]] = True
    inside: Mask = np.logical_xor.accumulate(odd.reshape(height, width + 1)[:, :-1], axis=1)
    return inside


def decode_runs(runs: Sequence[int] | str | bytes, size: Size) -> Mask:
    """The mask of run lengths down the columns, alternately of 0 and 1, beginning with 0; they may be compressed."""
    counts = decompress(runs) if isinstance(runs, str | bytes) else runs
    if (covered := sum(counts)) != size[0] * size[1]:
        raise ValueError(f"runs of {covered} pixels, instead of {size[0]}×{size[1]}")
    mask: Mask = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return mask.reshape(size[1], size[0]).T


def decompress(text: str | bytes) -> list[int]:
    """The run lengths in COCO's compressed text: groups of 5 bits, each as a letter from '0' on, lowest first.

    A sixth bit says that the number goes on; from the fourth number on, only the difference from the last but one of
    the same value is written.

    >>> decompress("0150000000")  # a diagonal of 5 pixels
    [0, 1, 5, 1, 5, 1, 5, 1, 5, 1]
    """
    counts: list[int] = []
    value = shift = 0
    for letter in text.encode("ascii") if isinstance(text, str) else text:
        group = letter - 48
        value |= (group & 0x1F) << shift
        shift += 5
        if group & 0x20:
            if shift > 60:
                raise ValueError("a number of more than 60 bits")
            continue
        if group & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    return counts
