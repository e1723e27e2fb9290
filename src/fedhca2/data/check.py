"""Checking a data set on disk: read everything and report faults; paint a few samples into one picture."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from fedhca2.data.archive import Archive, Size
from fedhca2.data.archive_writer import ArchiveKind
from fedhca2.data.dataset import Dataset, Split
from fedhca2.data.files import FileError, MissingFileError
from fedhca2.data.nyud import Nyud
from fedhca2.data.pascal_context import PascalContext
from fedhca2.tasks import TASKS

SPLITS: tuple[Split, ...] = get_args(Split)
ARCHIVES: dict[ArchiveKind, type[PascalContext] | type[Nyud]] = {"pascal_context": PascalContext, "nyud": Nyud}
CELL = (192, 144)
TITLE_HEIGHT = 16


@dataclass
class SplitReport:
    """What was read from one split."""

    images: int
    sizes: Counter[Size] = field(default_factory=Counter)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, task: str, label: Tensor) -> None:
        """Widen the range of a task's labels by one map; 255 is not a class, and 0 is neither a normal nor a depth."""
        known = label[TASKS[task].ignored(label) != 255]
        if len(known):
            low, high = self.ranges.get(task, (float("inf"), float("-inf")))
            self.ranges[task] = (min(low, known.min().item()), max(high, known.max().item()))


@dataclass
class CheckReport:
    """The contents of a data set, the tasks without a folder, and missing or broken files."""

    kind: ArchiveKind
    root: Path
    without: list[str] = field(default_factory=list)
    splits: dict[Split, SplitReport] = field(default_factory=dict)
    missing: list[Path] = field(default_factory=list)
    broken: dict[Path, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing is missing or broken."""
        return not self.missing and not self.broken

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"{self.kind} in {self.root}"
        for split, found in self.splits.items():
            sizes = ", ".join(f"{height}×{width} ({count})" for (height, width), count in found.sizes.most_common(5))
            more = f" and {len(found.sizes) - 5} more" if len(found.sizes) > 5 else ""
            yield f"{split}: {found.images} images; sizes {sizes or 'unknown'}{more}"
            yield from (f"  {task}: {low:g} … {high:g}" for task, (low, high) in found.ranges.items())
        yield from (f"no folder with labels for {task}" for task in self.without)
        yield from (f"missing: {path}" for path in self.missing)
        yield from (f"broken: {path}: {fault}" for path, fault in self.broken.items())

    def note(self, error: FileError) -> None:
        """Record a faulty file once."""
        if not isinstance(error, MissingFileError):
            self.broken.setdefault(error.path, error.fault)
        elif error.path not in self.missing:
            self.missing.append(error.path)


def kind_of(root: Path) -> ArchiveKind:
    """Detect the kind of an archive by its list of images."""
    if (root / "ImageSets").is_dir():
        return "pascal_context"
    if (root / "gt_sets").is_dir():
        return "nyud"
    raise ValueError(f"{root}: should have ImageSets/ (pascal_context) or gt_sets/ (nyud), found neither")


def check(
    root: Path, kind: ArchiveKind | None = None, progress: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Read every image and label; `progress` gets the numbers of samples read and planned."""
    report = CheckReport(kind or kind_of(root), root)
    archives: dict[Split, Archive] = {}
    for split in SPLITS:
        try:
            archives[split] = ARCHIVES[report.kind](root, split, tasks=None)
        except FileError as error:
            report.note(error)
    total, done = sum(map(len, archives.values())), 0
    for split, archive in archives.items():
        found = report.splits[split] = SplitReport(len(archive))
        report.without = [task for task in archive.spaces if task not in archive.labels]
        try:
            archive.check_lists()
        except FileError as error:
            report.note(error)
        for id in archive.ids:
            _check_sample(archive, id, found, report)
            done += 1
            if progress is not None:
                progress(done, total)
    return report


def _check_sample(archive: Archive, id: str, found: SplitReport, report: CheckReport) -> None:
    try:
        image = archive.read("image", id)
    except FileError as error:
        report.note(error)
        return
    size = (image.shape[-2], image.shape[-1])
    found.sizes[size] += 1
    for task in archive.labels:
        try:
            found.add(task, archive.read(task, id, size))
        except FileError as error:
            report.note(error)


def contact_sheet(dataset: Dataset, count: int) -> Image.Image:
    """Paint samples from all over a data set, one per row: the image, then its labels."""
    tasks = list(dataset.labels)
    titles = ["Image", *(TASKS[task].title for task in tasks)]
    usable = dataset.usable(tasks)
    chosen = [usable[place] for place in np.linspace(0, len(usable) - 1, min(count, len(usable))).astype(int)]
    sheet = Image.new("RGB", (CELL[0] * len(titles), TITLE_HEIGHT + CELL[1] * len(chosen)))
    for column, title in enumerate(titles):
        ImageDraw.Draw(sheet).text((column * CELL[0] + 4, 2), title, fill="white")
    for row, index in enumerate(chosen):
        sample = dataset.load(index, tasks)
        painted = [TASKS[task].paint(TASKS[task].ignored(sample[task]), dataset.labels[task]) for task in tasks]
        for column, picture in enumerate([sample["image"], *painted]):
            cell = Image.fromarray(picture.permute(1, 2, 0).numpy())
            cell = ImageOps.contain(cell, CELL, Image.Resampling.NEAREST)
            sheet.paste(cell, (column * CELL[0], TITLE_HEIGHT + row * CELL[1]))
    return sheet
