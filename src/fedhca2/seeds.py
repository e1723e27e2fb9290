"""Seeds for every random draw, derived from the experiment's seed and the purpose of the draw."""

from collections.abc import Iterable
from hashlib import blake2b


def derive(*purpose: int | str) -> int:
    """Derive a 63-bit seed that depends only on the arguments.

    >>> derive(0, "shuffle", "home", 3) == derive(0, "shuffle", "home", 3) != derive(0, "shuffle", "home", 4)
    True
    """
    return derive_each(*purpose[:-1], last=purpose[-1:])[0]


def derive_each(*purpose: int | str, last: Iterable[int | str]) -> list[int]:
    """Derive a seed for each last word of a purpose.

    >>> derive_each("home", last=[3, 4]) == [derive("home", 3), derive("home", 4)]
    True
    """
    common = blake2b("".join(f"{_typed(word)}\x1f" for word in purpose).encode(), digest_size=8)
    seeds = []
    for word in last:
        own = common.copy()
        own.update(_typed(word).encode())
        seeds.append(int.from_bytes(own.digest(), "big") >> 1)
    return seeds


def _typed(word: int | str) -> str:
    return f"{type(word).__name__}:{word}"
