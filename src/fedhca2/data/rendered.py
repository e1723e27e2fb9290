"""Rendered scenes as a data set, without any files."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Annotated, Literal, Self

import torch
from pydantic import Field

from fedhca2.cores import usable_cores
from fedhca2.data.cache import shared_property
from fedhca2.data.config import SIZE, DataConfig
from fedhca2.data.dataset import Sample, Split
from fedhca2.data.scenes.labels import LABELS, Domain
from fedhca2.data.scenes.rendering import render
from fedhca2.tasks import TASKS, LabelSpace, TaskSet

FIRST_VAL_SCENE = 1_000_000  # so that the splits share no scene
CHUNK = 64  # scenes that a thread renders at a time: larger chunks mean less waiting between threads
LARGE = 256 * 256  # pixels of an image from which a GPU renders it, if there is one


class ScenesData(DataConfig):
    """Scenes that are rendered when a run starts and kept in memory."""

    kind: Literal["scenes"] = "scenes"
    domain: Annotated[Domain, Field(description="what the scenes show")]
    size: Annotated[
        tuple[Annotated[int, Field(ge=32, multiple_of=32)], Annotated[int, Field(ge=32, multiple_of=32)]],
        Field(description=SIZE),
    ] = (64, 64)
    train: Annotated[int, Field(ge=1, description="images in the training split")] = 200
    val: Annotated[int, Field(ge=1, description="images in the validation split")] = 100
    seed: Annotated[int, Field(ge=0, description="seed of the scenes; the experiment's seed does not affect them")] = 0

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that the scenes have labels for."""
        return LABELS[self.domain]

    def open(self, split: Split, tasks: TaskSet = TASKS) -> "RenderedScenes":
        """Open one split."""
        return RenderedScenes(self, split, tasks)


class RenderedScenes:
    """One split of rendered scenes."""

    def __init__(self, config: ScenesData, split: Split, tasks: TaskSet = TASKS) -> None:
        self.config, self.tasks = config, tasks
        self.labels = config.labels
        self.size = config.size
        self.first, self.count = (0, config.train) if split == "train" else (FIRST_VAL_SCENE, config.val)

    def __len__(self) -> int:
        return self.count

    @property
    def ids(self) -> Sequence[str]:
        """The scenes' numbers, as in the file names of `fedhca2 data scenes`."""
        return [f"{number:07d}" for number in range(self.first, self.first + self.count)]

    def for_share(self, indices: Sequence[int]) -> Self:
        """Return itself: all clients see the same."""
        return self

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
        samples: Sample = {}
        large = prod(self.size) >= LARGE
        gpu = large and torch.cuda.is_available()
        step = CHUNK // 4 if large else CHUNK
        device = torch.device("cuda" if gpu else "cpu")

        def chunk(start: int) -> tuple[int, Sample]:
            indices = range(self.first + start, self.first + min(start + step, self.count))
            scenes = render(self.config.domain, indices, size=self.size, seed=self.config.seed, device=device)
            return start, {name: scenes[name].cpu() for name in ("image", *self.labels)}

        workers = 1 if gpu else len(usable_cores())
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for start, rendered in pool.map(chunk, range(0, self.count, step)):
                for name, scenes in rendered.items():
                    if name not in samples:
                        samples[name] = torch.empty(self.count, *scenes.shape[1:], dtype=scenes.dtype)
                    samples[name][start : start + len(scenes)] = scenes
        return samples
