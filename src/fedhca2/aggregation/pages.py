"""Memory by the page: rows that lie in files, and advice to the operating system."""

import ctypes
import mmap
from pathlib import Path

import torch
from torch import Tensor

LARGE = 1 << 22  # bytes from which on large pages are worth asking for

_madvise = None
if hasattr(mmap, "MADV_DONTNEED"):  # Linux and macOS; without it memory comes and goes as the system likes
    _madvise = ctypes.CDLL(None, use_errno=True).madvise
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def ask_for_large_pages(tensor: Tensor) -> None:
    """Let memory that was not written yet come in large pages: to get small ones takes longer than to write them."""
    if tensor.nbytes >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        _advise(tensor, mmap.MADV_HUGEPAGE)  # a system without them may refuse


def own_pages(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Room [rows, columns] that goes back to the system when it is let go; an allocator might keep it."""
    return torch.frombuffer(mmap.mmap(-1, rows * columns * dtype.itemsize), dtype=dtype).view(rows, columns)


def drop_pages(mapped: Tensor) -> None:
    """Give the memory of a mapped file back; any other tensor would lose its values."""
    if _advise(mapped, getattr(mmap, "MADV_DONTNEED", 0)):
        raise OSError(ctypes.get_errno(), "madvise failed on a mapped row")


def _advise(tensor: Tensor, advice: int) -> int:
    if _madvise is None:
        return 0
    before = tensor.data_ptr() % mmap.PAGESIZE
    return int(_madvise(tensor.data_ptr() - before, tensor.nbytes + before, advice))


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
