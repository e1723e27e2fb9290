"""Checking a data set: read everything and report faults; paint a few samples into one picture."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from math import nan
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from fedhca2.data.archives import ArchiveKind, Nyud, PascalContext
from fedhca2.data.config import DataConfig
from fedhca2.data.dataset import Dataset, Sample, Split
from fedhca2.data.files import FileError, MissingFileError
from fedhca2.errors import UserError
from fedhca2.tasks import TASKS, Task, TaskSet
from fedhca2.words import counted

ARCHIVES: dict[ArchiveKind, type[PascalContext] | type[Nyud]] = {"pascal_context": PascalContext, "nyud": Nyud}
D = TypeVar("D", bound=Dataset)
Progress = Callable[[int, int], None] | None  # gets the numbers of samples read and planned


@dataclass
class SplitReport:
    """What was read from one split."""

    images: int
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    labelled: Counter[str] = field(default_factory=Counter)  # images with a label, by task

    def add(self, task: Task, label: Tensor) -> None:
        """Count a label, and widen the range of its task's; what is unknown is left out."""
        values = label[task.known(label)]
        self.labelled[task.name] += len(values) > 0
        if len(values):
            low, high = self.ranges.get(task.name, (float("inf"), float("-inf")))
            self.ranges[task.name] = (min(low, values.min().item()), max(high, values.max().item()))

    def labels(self) -> Iterator[str]:
        """The ranges of all tasks' labels, and how many images have none."""
        for task, count in self.labelled.items():
            missing = f", missing in {counted(self.images - count, 'image')}" if count < self.images else ""
            low, high = self.ranges.get(task, (nan, nan))
            yield f"  {task}: " + (f"{low:g} … {high:g}{missing}" if count else "no label")


@dataclass
class CheckReport:
    """The contents of a data set compared with the papers', tasks without a folder, missing files, broken files."""

    title: str
    origin: list[str] = field(default_factory=list)
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
        yield self.title
        for split, report in self.splits.items():
            sizes = ", ".join(f"{'×'.join(map(str, size))} ({count})" for size, count in report.sizes.most_common(5))
            more = f" and {len(report.sizes) - 5} more" if len(report.sizes) > 5 else ""
            yield f"{split}: {counted(report.images, 'image')}; sizes {sizes or 'unknown'}{more}"
            yield from report.labels()
        yield from self.origin
        yield from (f"no folder with labels for {task}" for task in self.without)
        yield from (f"missing: {path}" for path in self.missing)
        yield from (f"broken: {path}: {fault}" for path, fault in self.broken.items())

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Record the faulty file that this block stops at, once, and go on."""
        try:
            yield
        except MissingFileError as error:
            if error.path not in self.missing:
                self.missing.append(error.path)
        except FileError as error:
            self.broken.setdefault(error.path, error.faults[0].message)

    def open(self, split_of: Callable[[Split], D]) -> dict[Split, D]:
        """The splits that can be opened."""
        opened: dict[Split, D] = {}
        for split in get_args(Split):
            with self.noting():
                opened[split] = split_of(split)
        return opened


def kind_of(root: Path) -> ArchiveKind:
    """Detect the kind of an archive by its list of images."""
    if (root / "ImageSets").is_dir():
        return "pascal_context"
    if (root / "gt_sets").is_dir():
        return "nyud"
    actual = "neither" if root.is_dir() else "no folder"
    raise UserError(root, f"expected a folder with ImageSets/ (pascal_context) or gt_sets/ (nyud), got {actual}")


def check(root: Path, kind: ArchiveKind | None = None, progress: Progress = None) -> CheckReport:
    """Read every image and label of an archive; `progress` gets the numbers of samples read and planned."""
    kind = kind or kind_of(root)
    report = CheckReport(f"{kind} in {root}")
    archives = report.open(lambda split: ARCHIVES[kind](root, split))
    for archive in archives.values():
        report.without = [task for task in archive.spaces if task not in archive.labels]
        report.origin += compare_with_papers(kind, archive.split, archive.ids)
        if isinstance(archive, PascalContext) and any(TASKS[task].skips_empty for task in archive.labels):
            with report.noting():
                archive.has_person(0)  # reads the list of people
    if report.without and archives:
        tasks = ", ".join(task for task in archive.spaces if task in archive.labels)
        report.origin.append(f"clients of this archive can have {tasks or 'no task'}")
    _read_all(archives, report, progress)
    return report


def compare_with_papers(kind: ArchiveKind, split: Split, ids: Sequence[str]) -> list[str]:
    """Say whether a split is the papers', by its number of images and, for training images, by their ids.

    >>> compare_with_papers("nyud", "val", ["0001", "0002"])
    ["val: another archive than the papers', which have 654 images here, got 2"]
    """
    images = {"pascal_context": {"train": 4998, "val": 5105}, "nyud": {"train": 795, "val": 654}}
    digests = (  # of the sorted ids of the official training lists
        "2da5ca32fd4ef15bec421829de47e0652cb7b749f4cd24a2485757607ecb1975",
        "c4e0b26c6b243abddb903ff779dfdfa6f791f6d84e13ce02a84eee4bdf5e73a6",
    )
    expected = images[kind][split]
    if len(ids) != expected:
        return [f"{split}: another archive than the papers', which have {expected} images here, got {len(ids)}"]
    if split == "train" and sha256("\n".join(sorted(ids)).encode()).hexdigest() not in digests:
        return [f"{split}: as many images as in the papers, and others than in the official list"]
    return [f"{split}: the papers' {'training images' if split == 'train' else 'number of images'}"]


def check_data(name: str, config: DataConfig, progress: Progress = None, tasks: TaskSet = TASKS) -> CheckReport:
    """Read every image and label of a data set of any kind, as far as `tasks` has them."""
    report = CheckReport(f"{name}: {config.kind}")
    _read_all(report.open(lambda split: config.open(split, tasks)), report, progress, tasks)
    return report


def _read_all(
    opened: Mapping[Split, Dataset], report: CheckReport, progress: Progress, task_set: TaskSet = TASKS
) -> None:
    """Read every sample; if that fails, read its parts one by one, to find all faults."""
    total, done = sum(map(len, opened.values())), 0
    for split, data in opened.items():
        own = report.splits[split] = SplitReport(len(data))
        tasks = [task_set[task] for task in data.labels if task in task_set]
        names = [task.name for task in tasks]
        for index in range(len(data)):
            samples: list[Sample] = []
            try:
                samples.append(data.load(index, names))
            except FileError:
                for part in ((), *zip(names)):
                    with report.noting():
                        samples.append(data.load(index, part))
            own.sizes.update(tuple(sample["image"].shape[-2:]) for sample in samples[:1])
            for sample in samples:
                for task in tasks:
                    if task.name in sample:
                        own.add(task, sample[task.name])
            done += 1
            if progress is not None:
                progress(done, total)


def contact_sheet(dataset: Dataset, count: int, task_set: TaskSet = TASKS) -> Image.Image:
    """Paint samples from all over a data set, one per row: the image, then its labels."""
    cell, title_height = (192, 144), 16  # width and height of each picture; height of the line of titles
    tasks = [task for task in dataset.labels if task in task_set]
    titles = ["Image", *(task_set[task].title for task in tasks)]
    usable = dataset.usable(tasks)
    chosen = [usable[position] for position in np.linspace(0, len(usable) - 1, min(count, len(usable))).astype(int)]
    sheet = Image.new("RGB", (cell[0] * len(titles), title_height + cell[1] * len(chosen)))
    for column, title in enumerate(titles):
        ImageDraw.Draw(sheet).text((column * cell[0] + 4, 2), title, fill="white")
    for row, index in enumerate(chosen):
        sample = dataset.load(index, tasks)
        painted = [task_set[task].paint(task_set[task].ignored(sample[task]), dataset.labels[task]) for task in tasks]
        for column, picture in enumerate([sample["image"], *painted]):
            full = Image.fromarray(picture.permute(1, 2, 0).numpy())
            small = ImageOps.contain(full, cell, Image.Resampling.NEAREST)
            sheet.paste(small, (column * cell[0], title_height + row * cell[1]))
    return sheet
