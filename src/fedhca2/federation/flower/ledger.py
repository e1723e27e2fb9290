"""A site's ledger of the noised updates and scores that have left it, in all runs."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Annotated, Literal

import torch
from filelock import FileLock
from pydantic import Field, ValidationError
from torch import Tensor

from fedhca2.clients.accounting import combined, epsilon
from fedhca2.config import Config
from fedhca2.errors import UserError
from fedhca2.federation.flower.site_config import SiteConfig, SitePrivacy
from fedhca2.params import Slot
from fedhca2.whole_files import sync_folder

SPENT = "the privacy budget is spent"
Kind = Literal["update", "scores"]


class Sent(Config):
    """One noised update, or scores: its destination, the noise in clips, and a digest of the numbers as sent."""

    run: str
    round: int
    noise: Annotated[float, Field(gt=0)]
    digest: str
    kind: Kind = "update"

    @classmethod
    def of(cls, run: str, round: int, noise: float, rows: Mapping[Slot, Tensor], kind: Kind = "update") -> "Sent":
        """Make the entry of these rows."""
        digest = blake2b(digest_size=16)
        for slot, row in sorted(rows.items()):
            digest.update(f"{slot} {row.dtype} {row.numel()}\n".encode())
            digest.update(row.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return cls(run=run, round=round, noise=noise, digest=digest.hexdigest(), kind=kind)


class Ledger:
    """A file with a line for each update, written to disk before the update leaves.

    An identical update that leaves again reveals nothing new and costs nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, site: SiteConfig) -> "Ledger":
        """The ledger in a site's folder."""
        return cls(site.state / f"{site.client}.ledger.jsonl")

    def entries(self) -> list[Sent]:
        """Everything that has left; raises UserError if the file is damaged, since its cost is then unknown."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            return []

    def affords(self, run: str, round: int, noise: float, budget: SitePrivacy, kind: Kind = "update") -> bool:
        """Whether an update or scores fit the budget, or are already in the ledger from before a crash."""
        entries = self.entries()
        paid = any((entry.run, entry.round, entry.kind) == (run, round, kind) for entry in entries)
        return paid or _is_within(budget, entries, noise)

    def charge(self, sent: Sent, budget: SitePrivacy) -> None:
        """Record an update so that it may leave; raises UserError if it may not."""
        with self._locked() as file:
            entries = self._read(file)
            if any(entry.digest == sent.digest for entry in entries):
                return
            if not _is_within(budget, entries, sent.noise):
                raise UserError([SPENT])
            file.truncate()
            file.write(sent.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path.parent)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the file for one process at a time, readable only by its owner."""
        with FileLock(f"{self.path}.lock", mode=0o600):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                yield file

    def _read(self, file: IO[bytes]) -> list[Sent]:
        """Read the entries; leaves the file at their end, before an incomplete last line from a crash."""
        entries, end = [], 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entries.append(Sent.model_validate_json(line))
            except ValidationError:
                where = f"{self.path}: line {number}"
                raise UserError([f"{where} should be an update that was sent, found {line[:40]!r}"]) from None
            end += len(line)
        file.seek(end)
        return entries


def cost(entries: Sequence[Sent], delta: float, *more: float) -> float:
    """The ε of sent updates, and of further ones with these noises."""
    return epsilon(combined(Counter([*(entry.noise for entry in entries), *more])), delta=delta)


def _is_within(budget: SitePrivacy, entries: Sequence[Sent], noise: float) -> bool:
    return budget.epsilon is None or cost(entries, budget.delta, noise) <= budget.epsilon
