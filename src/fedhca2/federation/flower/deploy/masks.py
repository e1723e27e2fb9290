"""Rows as integers that add up without loss, and the masks that hide them until they are added."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

Whole = NDArray[np.uint32]
MODULUS = 2**32
KEY_BYTES = 32


class LargeValueError(ValueError):
    """A row has a value that is larger than the clip, or that is not a number."""


@dataclass(frozen=True)
class Steps:
    """Values from −clip to clip in equal steps, so fine that the numbers of all members fill half of the range.

    A result in the other half is not a sum, so wrong masks are noticed.

    >>> steps = Steps(clip=1.0, members=3)
    >>> steps.sum_of(steps.whole(np.array([0.5])) + steps.whole(np.array([-0.25])), 2).round(6)
    array([0.25])
    """

    clip: float
    members: int

    @property
    def count(self) -> int:
        """The number of steps from −clip to clip."""
        return MODULUS // 2 // self.members

    @property
    def size(self) -> float:
        """The size of one step; rounding errors are at most half of it."""
        return 2 * self.clip / self.count

    def whole(self, values: NDArray[Any]) -> Whole:
        """Round to the nearest steps; raises LargeValueError if a value is too large."""
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.clip:  # also if it is NaN
            raise LargeValueError(
                f"rows should have values of at most {self.clip:g} (secure_aggregation.clip), found {largest:g}"
            )
        return np.rint((values.astype(np.float64) + self.clip) / self.size).astype(np.uint32)

    def sum_of(self, total: Whole, members: int) -> NDArray[np.float64]:
        """The sum of this many members' steps; raises ValueError if it is impossible."""
        if int(total.max(initial=0)) > members * self.count:
            raise ValueError("a sum should have values within the clip, found one beyond: a client sent an invalid row")
        return total.astype(np.float64) * self.size - members * self.clip


def mask(secret: bytes, number: int, size: int) -> Whole:
    """The mask of a sum: ChaCha20 with a key derived from the secret, so that each of 2³² numbers is equally likely."""
    key = blake2b(secret, digest_size=KEY_BYTES, salt=number.to_bytes(16, "little"), person=b"fedhca2 mask").digest()
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * size))
    return np.frombuffer(stream, "<u4")
