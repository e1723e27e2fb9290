"""What an image is about, in one number, to group images by."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.dataset import Dataset
from fedhca2.labels import IGNORE
from fedhca2.tasks import TASKS, Grouping

BINS = 10


def largest_class(label: Tensor) -> float:
    """The class with most pixels; class 0 (background, wall), which is nearly everywhere, only where it is alone.

    >>> largest_class(torch.tensor([0, 0, 0, 2, 2, 5, 255]))
    2.0
    """
    counts = torch.bincount(label[label != IGNORE].long().flatten(), minlength=1)
    if len(counts) > 1 and counts[1:].any():
        counts[0] = 0
    return float(counts.argmax())


def mean_value(label: Tensor) -> float:
    """The mean over pixels that are known; 0 without any."""
    known = label[label != IGNORE].double()
    return float(known.mean()) if len(known) else 0.0


STATISTICS: dict[Grouping, Callable[[Tensor], float]] = {"class": largest_class, "value": mean_value}


def label_groups(data: Dataset, task: str) -> NDArray[np.int64]:
    """A group for every image: its largest class, or which tenth of the images its mean value falls into."""
    found = TASKS[task]
    if found.grouped_by is None:
        raise ValueError(f"{task}: its labels have no one number to group images by")
    statistic = STATISTICS[found.grouped_by]
    values = np.array([statistic(found.ignored(data.load(i, [task])[task])) for i in range(len(data))])
    if found.grouped_by == "class":
        return values.astype(np.int64)
    groups: NDArray[np.int64] = values.argsort(kind="stable").argsort(kind="stable") * BINS // len(values)
    return groups
