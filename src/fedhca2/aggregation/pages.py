"""Memory pages: rows in files, and advice to the operating system."""

import ctypes
import mmap
from pathlib import Path

import torch
from torch import Tensor

LARGE = 1 << 22  # bytes from which large pages are worthwhile

_madvise, _trim = None, None
if hasattr(mmap, "MADV_DONTNEED"):  # Linux and macOS; without it, the system manages memory itself
    _madvise = ctypes.CDLL(None, use_errno=True).madvise
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


def ask_for_large_pages(tensor: Tensor) -> None:
    """Ask for large pages for memory that was not written yet: getting small pages takes longer than writing them."""
    if tensor.nbytes >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        _advise(tensor, mmap.MADV_HUGEPAGE)  # a system without them may refuse


def own_pages(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A buffer [rows, columns] that returns to the system when it is freed; an allocator might keep it."""
    return torch.frombuffer(mmap.mmap(-1, rows * columns * dtype.itemsize), dtype=dtype).view(rows, columns)


def drop_pages(mapped: Tensor) -> None:
    """Release the memory of a mapped file; any other tensor would lose its values."""
    if _advise(mapped, getattr(mmap, "MADV_DONTNEED", 0)):
        raise OSError(ctypes.get_errno(), "madvise failed on a mapped row")


def return_freed_memory() -> None:
    """Return to the system what was freed: glibc keeps much of it if tensors of many sizes come and go."""
    if _trim is not None:
        _trim(0)


def _advise(tensor: Tensor, advice: int) -> int:
    if _madvise is None:
        return 0
    before = tensor.data_ptr() % mmap.PAGESIZE
    return int(_madvise(tensor.data_ptr() - before, tensor.nbytes + before, advice))


class MappedRow(Tensor):
    """A tensor backed by a file, which only takes memory for what was read and not yet released.

    It is read-only: releasing it drops whatever was written to it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # pieces are plain tensors

    @classmethod
    def open(cls, path: Path | str, numel: int, dtype: torch.dtype) -> "MappedRow":
        """The first `numel` values of a file."""
        return torch.from_file(str(path), shared=False, size=numel, dtype=dtype).as_subclass(cls)

    def release(self) -> None:
        """Release its memory; values that are read again come from the file again.

        This releases everything, not only the part that was read, since the system reads ahead.
        """
        drop_pages(self)
