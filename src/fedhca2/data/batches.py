"""Batches of one client, in an order and with augmentations that depend on seed, client and epoch alone."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from fedhca2.data.dataset import Dataset, Sample
from fedhca2.data.transforms import collate, draw_augmentation, for_evaluation, for_training
from fedhca2.seeds import derive


class Batches:
    """A client's own images of a data set, for its own tasks."""

    def __init__(
        self, data: Dataset, indices: Sequence[int], tasks: Sequence[str], *, batch_size: int, workers: int = 0
    ) -> None:
        self.data = data
        self.indices = tuple(indices)
        self.tasks = tuple(tasks)
        self.batch_size = batch_size
        self.workers = workers

    def __len__(self) -> int:
        """Full batches in an epoch; what is left over is dropped."""
        return len(self.indices) // self.batch_size

    def training(self, *, seed: int, client: str, epoch: int, augment: bool = True) -> Iterator[Sample]:
        """The batches of one epoch of training."""
        order = np.random.default_rng(derive(seed, "shuffle", client, epoch)).permutation(len(self.indices))
        chosen = [self.indices[i] for i in order[: len(self) * self.batch_size]]

        def prepare(index: int) -> Sample:
            sample = self.data.load(index, self.tasks)
            if not augment:
                return for_evaluation(sample, self.data.size)
            return for_training(sample, self.data.size, draw_augmentation(seed, client, epoch, index))

        return self._batches(chosen, prepare)

    def evaluation(self) -> Iterator[Sample]:
        """All images in their order, the last batch as small as it is."""
        return self._batches(
            self.indices, lambda index: for_evaluation(self.data.load(index, self.tasks), self.data.size)
        )

    def _batches(self, indices: Sequence[int], prepare: Callable[[int], Sample]) -> Iterator[Sample]:
        batches = (indices[i : i + self.batch_size] for i in range(0, len(indices), self.batch_size))
        samples = (
            map(prepare, indices) if self.workers == 0 else _ahead(indices, prepare, self.workers, 2 * self.batch_size)
        )
        for batch in batches:
            yield collate([next(samples) for _ in batch])


def _ahead(indices: Iterable[int], prepare: Callable[[int], Sample], workers: int, ahead: int) -> Iterator[Sample]:
    """Like `map`, computed up to `ahead` samples early by threads, in order."""
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Sample]] = deque()
        for index in indices:
            waiting.append(pool.submit(prepare, index))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
