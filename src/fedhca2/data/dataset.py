"""The interface of a data set: samples by index, with the requested labels."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self

from torch import Tensor

from fedhca2.tasks import LabelSpace

Split = Literal["train", "val"]

# "image" is uint8 [3, H, W]. Labels are [C, H, W]: classes and sal uint8, 255 if unknown; edge float32 in
# 0 … 1; normals float32 unit vectors, zero if unknown; depth float32 in metres, zero if unknown.
Sample = dict[str, Tensor]


class Dataset(Protocol):
    """One split of a data set."""

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that it has labels for."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network's input."""

    @property
    def ids(self) -> Sequence[str]:
        """Names of the images, in order."""

    def __len__(self) -> int:
        """Number of images."""

    def for_share(self, indices: Sequence[int]) -> Self:
        """The data set as seen by a client whose share is these images in this order; usually the same for all."""

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """The images that a client with exactly these tasks can use."""

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """Load an image with the labels of these tasks."""
