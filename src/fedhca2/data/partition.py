"""Dividing a data set's training images among clients."""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from fedhca2.config import Config, suggest
from fedhca2.data.dataset import Dataset
from fedhca2.errors import Fault
from fedhca2.tasks import TASKS, Task, TaskSet

Parts = dict[str, list[int]]  # {client: indices of images}


def even_split(count: int, shares: int, rng: RandomState) -> list[list[int]]:
    """Cut a permutation of `count` indices into `shares` parts whose sizes differ by at most one.

    >>> even_split(5, 2, RandomState(0))
    [[2, 0, 1], [3, 4]]
    """
    if shares > count:
        got = f"{count} images for {shares} clients; use fewer clients"
        raise ValueError(f"expected at least one image per client, got {got}")
    return [part.tolist() for part in np.array_split(rng.permutation(count), shares)]


def proportional_split(indices: Sequence[int], shares: Sequence[float]) -> list[list[int]]:
    """Cut the indices, in their order, in proportion to `shares`, each cut rounded to the nearest image.

    >>> proportional_split([7, 8, 9, 5], [3, 1])
    [[7, 8, 9], [5]]
    """
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * len(indices)).astype(int)
    return [list(indices[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def keep(indices: Sequence[int], usable: Sequence[int]) -> list[int]:
    """The usable indices, in order."""
    allowed = set(usable)
    return [index for index in indices if index in allowed]


class Partition(Config):
    """How images are divided: among a data set's single-task clients, and separately among its multi-task clients."""

    kind: str

    def fault(self, clients: Sequence[str], tasks: Sequence[Task]) -> Fault | None:
        """Why the clients of a data set with labels for these tasks cannot use this partition; None if they can."""
        return None

    @abstractmethod
    def assign(self, data: Dataset, clients: Sequence[str], rng: RandomState, tasks: TaskSet = TASKS) -> Parts:
        """Divide the images of a data set among clients."""


class Even(Partition):
    """The papers' partition: a random permutation in equal parts."""

    kind: Literal["even"] = "even"

    def assign(self, data: Dataset, clients: Sequence[str], rng: RandomState, tasks: TaskSet = TASKS) -> Parts:
        """Divide into equal parts."""
        return dict(zip(clients, even_split(len(data), len(clients), rng), strict=True))


class Shares(Partition):
    """Parts of a random permutation, in proportion to the clients' numbers."""

    kind: Literal["shares"] = "shares"
    shares: dict[str, PositiveFloat] = Field(description="one number per client of the data set")

    def fault(self, clients: Sequence[str], tasks: Sequence[Task]) -> Fault | None:
        """Every client should have a share, and no one else."""
        return _names_fault("shares", self.shares, clients)

    def assign(self, data: Dataset, clients: Sequence[str], rng: RandomState, tasks: TaskSet = TASKS) -> Parts:
        """Divide in proportion."""
        order = rng.permutation(len(data)).tolist()
        parts = proportional_split(order, [self.shares[client] for client in clients])
        return dict(zip(clients, parts, strict=True))


class Draws(Partition):
    """Every client draws its own share of all images, independently of the others."""

    kind: Literal["draws"] = "draws"
    share: float = Field(gt=0, le=1, description="fraction of all images that each client draws")

    def assign(self, data: Dataset, clients: Sequence[str], rng: RandomState, tasks: TaskSet = TASKS) -> Parts:
        """Draw parts that may overlap."""
        count = round(self.share * len(data))
        return {client: rng.permutation(len(data))[:count].tolist() for client in clients}


class Dirichlet(Partition):
    """Images are grouped by a statistic of a label; each group is divided by shares drawn from a Dirichlet.

    The smaller `alpha`, the more the clients' images differ.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    by: str = Field(description="the task: images are grouped by its largest class, or by its mean value")
    alpha: float = Field(
        0.5, gt=0, description="small values make clients very different, large values make them similar"
    )
    at_least: int = Field(
        8, ge=1, description="fewest images a client may get; shares are redrawn until every client has them"
    )

    def fault(self, clients: Sequence[str], tasks: Sequence[Task]) -> Fault | None:
        """It should be possible to group images by this task."""
        groupable = [task.name for task in tasks if task.grouped_by]
        expected = "expected a task whose labels group images"
        hint = suggest(self.by, groupable)
        return None if self.by in groupable else Fault("by", f"{expected}, got {self.by!r}. {hint}")

    def assign(self, data: Dataset, clients: Sequence[str], rng: RandomState, tasks: TaskSet = TASKS) -> Parts:
        """Divide into parts with different label distributions."""
        groups, draws = label_groups(data, tasks[self.by]), 100
        for _ in range(draws):
            parts: Parts = {client: [] for client in clients}
            for group in np.unique(groups):
                members = rng.permutation(np.flatnonzero(groups == group)).tolist()
                shares = rng.dirichlet(np.full(len(clients), self.alpha))
                for client, part in zip(clients, proportional_split(members, shares.tolist()), strict=True):
                    parts[client] += part
            if min(map(len, parts.values())) >= self.at_least:
                return parts
        raise ValueError(
            f"dirichlet: expected {self.at_least} images for every client, got too few in all {draws} draws; "
            "choose a larger alpha or a smaller at_least"
        )


class Lists(Partition):
    """Fixed lists: the numbers or ids of every client's images, in the config or in a JSON file.

    The file may be the `partition.json` of a run.
    """

    kind: Literal["lists"] = "lists"
    lists: dict[str, list[int | str]] | None = Field(None, description="numbers or ids of images, by client")
    file: Path | None = Field(None, description="a JSON file with these lists")

    @model_validator(mode="after")
    def _here_or_there(self) -> "Lists":
        if (self.lists is None) == (self.file is None):
            raise ValueError("expected either 'lists' or 'file', got both or neither")
        listed, most = sum(map(len, (self.lists or {}).values())), 50_000  # a long config is slow to read
        if listed > most:
            raise ValueError(f"expected at most {most} images in 'lists', got {listed}; put them in a 'file'")
        return self

    def read(self) -> Mapping[str, Sequence[int | str]]:
        """Read the lists from the config or the file."""
        if self.file is None:
            return self.lists or {}
        try:
            content = json.loads(self.file.read_text("utf-8"))
            lists = {name: entry["train"] if isinstance(entry, dict) else entry for name, entry in content.items()}
            for images in lists.values():
                if not isinstance(images, list) or not all(isinstance(image, int | str) for image in images):
                    raise TypeError(f"{images!r}")
            return lists
        except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{self.file}: expected JSON, {{client: [image, …]}}, got {error}") from None

    def fault(self, clients: Sequence[str], tasks: Sequence[Task]) -> Fault | None:
        """Every client should have a list; a file may have more lists."""
        try:
            lists = self.read()
        except ValueError as error:
            return Fault("file", str(error))
        return _names_fault("lists", {name: lists[name] for name in lists if self.lists or name in clients}, clients)

    def assign(self, data: Dataset, clients: Sequence[str], rng: RandomState, tasks: TaskSet = TASKS) -> Parts:
        """Assign the listed images."""
        numbers = {id: index for index, id in enumerate(data.ids)}
        lists = self.read()
        parts: Parts = {}
        for client in clients:
            part = [image if isinstance(image, int) else numbers.get(image, -1) for image in lists[client]]
            wrong = [image for image, index in zip(lists[client], part, strict=True) if not 0 <= index < len(data)]
            if wrong:
                raise ValueError(f"lists.{client}: expected images of the training split, got {wrong[0]!r}")
            if len(set(part)) < len(part):
                raise ValueError(f"lists.{client}: expected every image once, got one twice")
            parts[client] = part
        return parts


PartitionConfig = Annotated[Even | Shares | Draws | Dirichlet | Lists, Field(discriminator="kind")]


def _names_fault(key: str, by_client: Mapping[str, object], clients: Sequence[str]) -> Fault | None:
    """What is wrong with settings by client: each should be there, and no one else."""
    if unknown := [name for name in by_client if name not in clients]:
        expected = "expected clients of this data set"
        return Fault(key, f"{expected}, got {unknown[0]!r}. {suggest(unknown[0], clients)}")
    missing = [name for name in clients if name not in by_client]
    return Fault(key, f"expected every client of this data set, got nothing for {missing[0]!r}") if missing else None


def largest_class(labels: Tensor) -> float:
    """The class of most known pixels; class 0 (background, wall), which is almost everywhere, only if it is alone.

    >>> largest_class(torch.tensor([0, 0, 0, 2, 2, 5]))
    2.0
    """
    counts = torch.bincount(labels.long(), minlength=1)
    if len(counts) > 1 and counts[1:].any():
        counts[0] = 0
    return float(counts.argmax())


def label_groups(data: Dataset, task: Task) -> NDArray[np.int64]:
    """A group for every image: its largest class, or the tenth of the images that its mean value falls into."""
    labels = (data.load(i, [task.name])[task.name] for i in range(len(data)))
    known_values = (label[task.known(label)] for label in labels)
    if task.grouped_by == "class":
        return np.array([largest_class(values) for values in known_values]).astype(np.int64)
    means = np.array([float(values.double().mean()) if len(values) else 0.0 for values in known_values])
    groups: NDArray[np.int64] = means.argsort(kind="stable").argsort(kind="stable") * 10 // len(means)
    return groups
