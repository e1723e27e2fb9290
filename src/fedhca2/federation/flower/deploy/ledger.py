"""A site's ledger of the noised updates and scores that have left it, in all runs."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Annotated, Literal

import torch
from filelock import FileLock
from pydantic import Field, ValidationError
from torch import Tensor

from fedhca2.clients.privacy import combined, epsilon
from fedhca2.config import Config
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.site_config import SiteConfig, SitePrivacy
from fedhca2.params import Slot
from fedhca2.whole_files import sync_folder

SPENT = "the privacy budget is spent"
NOISE = re.compile(rb'"noise":([0-9.e+-]+),')
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
                return [entry for entries in self._read(file) for entry in entries]
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
            finished, unfinished = self._read(file)
            entries = [*finished, *unfinished]
            if any(entry.digest == sent.digest for entry in entries):
                return
            if not _is_within(budget, entries, sent.noise):
                raise UserError([SPENT])
            file.write(b"".join(entry.model_dump_json().encode() + b"\n" for entry in [*unfinished, sent]))
            file.truncate()
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

    def _read(self, file: IO[bytes]) -> tuple[list[Sent], list[Sent]]:
        """Read the entries, and a last one whose line is not finished; leaves the file before that line."""
        entries: list[Sent] = []
        unfinished: list[Sent] = []
        end = 0
        for number, line in enumerate(file, 1):
            try:
                if line.endswith(b"\n"):
                    entries.append(Sent.model_validate_json(line))
                    end += len(line)
                else:
                    unfinished.append(_restored(line, entries))
            except ValueError:
                where = f"{self.path}: line {number}"
                raise UserError([f"{where} should be an update that was sent, found {line[:40]!r}"]) from None
        file.seek(end)
        return entries, unfinished


def _restored(line: bytes, entries: Sequence[Sent]) -> Sent:
    """The entry of a line that lost its end. It costs what an update costs, since it may have left.

    If the line does not say its noise any more, that is the smallest of all; raises ValueError if there are none.
    """
    with suppress(ValidationError):
        return Sent.model_validate_json(line)
    said = NOISE.search(line)
    noise = float(said[1]) if said else min(entry.noise for entry in entries)
    return Sent(run="unknown", round=-1, noise=noise, digest=blake2b(line, digest_size=16).hexdigest())


def cost(entries: Sequence[Sent], delta: float, *more: float) -> float:
    """The ε of sent updates, and of further ones with these noises."""
    return epsilon(combined(Counter([*(entry.noise for entry in entries), *more])), delta=delta)


def _is_within(budget: SitePrivacy, entries: Sequence[Sent], noise: float) -> bool:
    return budget.epsilon is None or cost(entries, budget.delta, noise) <= budget.epsilon
