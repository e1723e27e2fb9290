"""A row in a file, for more clients than memory holds."""

from pathlib import Path

import torch
from torch import Tensor

from fedhca2.aggregation.pages import drop_pages


class MappedRow(Tensor):
    """A tensor whose values are those of a file, and which takes memory only where it was read and not yet released.

    It is for reading: what is written to it is lost when it is released.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # pieces are plain tensors

    @classmethod
    def open(cls, path: Path | str, numel: int, dtype: torch.dtype) -> "MappedRow":
        """The first `numel` values of a file."""
        return torch.from_file(str(path), shared=False, size=numel, dtype=dtype).as_subclass(cls)

    def release(self) -> None:
        """Give its memory back; values that are read again come from the file again.

        All of it, and not the part that was read alone: the system brings more than was asked for.
        """
        drop_pages(self)
