"""Replies in files until they are aggregated: the server's memory does not grow with the number of clients."""

from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from fedhca2.aggregation import MappedRow
from fedhca2.messages import Reply


def spooled(reply: Reply, folder: Path, dtype: torch.dtype) -> Reply:
    """The same reply, its rows in files of a folder; `dtype` is what they had on the wire.

    The files have no name any more, so that nothing is left of them when nobody reads them, even after a crash.
    """
    return replace(reply, rows={slot: _in_file(row.to(dtype), folder) for slot, row in reply.rows.items()})


def _in_file(row: Tensor, folder: Path) -> MappedRow:
    try:
        with NamedTemporaryFile(dir=folder) as file:
            file.write(row.contiguous().view(torch.uint8).numpy().data)
            file.flush()
            return MappedRow.open(file.name, row.numel(), row.dtype)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
