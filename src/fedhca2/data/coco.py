"""Data sets in COCO's layout, and painting its segmentations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhca2.data.dataset import Split
from fedhca2.data.files import BrokenFileError, file_in, read_colours, read_json

Mask = NDArray[np.bool_]
Corners = NDArray[np.float64]  # (x, y) of each
Size = tuple[int, int]
MOST_CLASSES = 254  # beside the background; 255 is unknown
FARTHEST = 1e6  # pixels that a corner may lie outside of its image
LONGEST = 60  # bits of a run's length
MOST_PAINTED = 2_000_000_000  # pixels in all boxes around an image's objects; COCO's own images have far fewer
MOST_CROSSINGS = 4_000_000  # of a polygon's edges with rows of pixels


class CocoMasks:
    """A folder in COCO's layout, with `semseg` (0 is background) and `multilabel` (which categories are there).

    Small objects are painted over large ones. Images are in `root`; with `links`, also where links lead.
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
        content = read_json(self.path)
        if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
            raise BrokenFileError(self.path, "expected images, annotations and categories, got other keys")
        categories = self._entries(content, "categories", id=int, name=str)
        if len(categories) > MOST_CLASSES:
            raise BrokenFileError(self.path, f"expected at most {MOST_CLASSES} categories, got {len(categories)}")
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
                    fault = f"{key}[{number}]: expected {name!r} of type {kind.__name__}, got {entry!r:.80}"
                    raise BrokenFileError(self.path, fault)
        if "id" not in types:
            return entries
        ids = Counter(entry["id"] for entry in entries)
        if len(ids) < len(entries):
            fault = f"{key}: expected a different id for each, got {ids.most_common(1)[0][0]} twice"
            raise BrokenFileError(self.path, fault)
        return sorted(entries, key=lambda entry: entry["id"])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.images[index]
        place = self.path.with_name(f"{self.path.name}: image {image['id']}")
        objects = self.objects.get(image["id"], [])
        try:
            path = file_in(self.folder, image["file_name"], within=self.within)
        except ValueError as error:
            raise BrokenFileError(place, f"file_name: {error}") from None
        pixels = read_colours(path)
        size = (pixels.shape[1], pixels.shape[2])
        if (declared := (image.get("height"), image.get("width"))) != size:
            raise BrokenFileError(place, f"expected {size[0]}×{size[1]} like its file, got {declared!r:.80}")
        try:
            painted = self._painted(objects, size)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            fault = f"expected segmentations of COCO's format, got {type(error).__name__}: {error}"
            raise BrokenFileError(place, fault) from error
        there = np.zeros(len(self.classes), np.float32)
        there[[self.classes[each["category_id"]] - 1 for each in objects]] = 1
        return {"image": pixels, "semseg": painted, "multilabel": there}

    def _painted(self, objects: Sequence[Mapping[str, Any]], size: Size) -> NDArray[np.uint8]:
        """Paint one object at a time; of two on a pixel the smaller is seen, or of the same size the later one."""
        outlines = [(Outline.of(each["segmentation"], size), self.classes[each["category_id"]]) for each in objects]
        if (work := sum(outline.work for outline, _ in outlines)) > MOST_PAINTED:
            raise ValueError(f"expected at most {MOST_PAINTED:g} pixels in the boxes around objects, got {work:g}")
        painted = np.zeros(size, np.uint8)
        smallest = np.full(size, size[0] * size[1], np.int32)  # pixels of the object that is seen
        for outline, number in outlines:
            mask, place = outline.mask(size), outline.box.slices
            count = np.count_nonzero(mask)
            seen = np.logical_and(mask, smallest[place] >= count)
            np.copyto(smallest[place], count, where=seen)  # an index by a mask would take 16 bytes a pixel
            np.copyto(painted[place], number, where=seen)
        return painted


@dataclass(frozen=True)
class Box:
    """Rows from `top` to before `bottom`, and columns from `left` to before `right`."""

    top: int
    left: int
    bottom: int
    right: int

    @classmethod
    def around(cls, corners: Corners, size: Size) -> "Box":
        """The pixels of an image whose centres can be in a polygon."""
        if not np.all(np.abs(corners) < FARTHEST):
            raise ValueError(f"corners should be nearer than {FARTHEST:g} pixels, found one farther away")
        width_and_height = size[::-1]
        low = np.clip(np.floor(corners.min(axis=0)) - 1, 0, width_and_height)
        high = np.clip(np.ceil(corners.max(axis=0)) + 1, 0, width_and_height)
        return cls(int(low[1]), int(low[0]), int(high[1]), int(high[0]))

    @property
    def size(self) -> Size:
        """Height and width."""
        return self.bottom - self.top, self.right - self.left

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its part of an image [H, W]."""
        return slice(self.top, self.bottom), slice(self.left, self.right)


@dataclass(frozen=True)
class Outline:
    """A segmentation before it is painted, in a box: polygons, each in its own box, or run lengths."""

    box: Box
    polygons: Sequence[tuple[Corners, Box]] = ()
    runs: Any = None

    @classmethod
    def of(cls, segmentation: Any, size: Size) -> "Outline":
        """The outline of a segmentation in COCO's format; raises an error of any kind for another format."""
        if isinstance(segmentation, Mapping):
            if (declared := segmentation.get("size", list(size))) != list(size):
                raise ValueError(f"runs should be of {size[0]}×{size[1]} pixels, found {declared!r:.80}")
            return cls(Box(0, 0, *size), runs=segmentation["counts"])
        corners = [np.asarray(polygon, np.float64).reshape(-1, 2) for polygon in segmentation if polygon]
        box = Box.around(np.concatenate(corners), size) if corners else Box(0, 0, 0, 0)
        return cls(box, [(each, Box.around(each, size)) for each in corners])

    @property
    def work(self) -> int:
        """The number of pixels that painting goes over."""
        return sum(box.size[0] * box.size[1] for box in (self.box, *(box for _, box in self.polygons)))

    def mask(self, size: Size) -> Mask:
        """The mask of its box.

        >>> Outline.of({"counts": [1, 2, 3], "size": [2, 3]}, (2, 3)).mask((2, 3)).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
        """
        if self.runs is not None:
            return decode_runs(decompress(self.runs) if isinstance(self.runs, str | bytes) else self.runs, size)
        mask: Mask = np.zeros(self.box.size, bool)
        top, left = self.box.top, self.box.left
        for corners, box in self.polygons:
            mask[box.top - top : box.bottom - top, box.left - left : box.right - left] |= fill_polygon(corners, box)
        return mask


def fill_polygon(corners: Corners, box: Box) -> Mask:
    """The pixels of a box whose centres are in a polygon of (x, y) corners, in pixels from the image's upper left.

    >>> fill_polygon(np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0], [1.0, 1.0]]), Box(0, 0, 2, 4)).astype(int)
    array([[0, 1, 1, 0],
           [0, 0, 0, 0]])
    """
    x, y = corners.T
    to_x, to_y = np.roll(corners, -1, axis=0).T
    first, last = (
        np.clip(np.ceil(edge - 0.5), box.top, box.bottom).astype(int)
        for edge in (np.minimum(y, to_y), np.maximum(y, to_y))
    )
    counts = last - first
    if (crossings := int(counts.sum())) > MOST_CROSSINGS:
        raise ValueError(f"a polygon should cross at most {MOST_CROSSINGS} rows of pixels, found {crossings}")
    edge = np.repeat(np.arange(len(corners)), counts)
    row = np.arange(crossings) - np.repeat(np.cumsum(counts) - counts, counts) + first[edge]
    place = x[edge] + (row + 0.5 - y[edge]) * (to_x - x)[edge] / (to_y - y)[edge]
    column = np.clip(np.ceil(place - 0.5), box.left, box.right).astype(int)
    height, width = box.size
    crossed, times = np.unique((row - box.top) * (width + 1) + column - box.left, return_counts=True)
    odd = np.zeros(height * (width + 1), bool)
    odd[crossed[times % 2 == 1]] = True
    inside: Mask = np.logical_xor.accumulate(odd.reshape(height, width + 1)[:, :-1], axis=1)
    return inside


def decode_runs(counts: Sequence[int], size: Size) -> Mask:
    """The mask of run lengths down the columns, of 0 and 1 in turn, beginning with 0."""
    if (covered := sum(counts)) != size[0] * size[1]:
        raise ValueError(f"runs should cover {size[0]}×{size[1]} pixels, found {covered}")
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
            if shift > LONGEST:
                raise ValueError(f"numbers should have at most {LONGEST} bits, found more")
            continue
        if group & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    return counts
