"""Seeds for every random draw, derived from the experiment's seed and the purpose of the draw."""

from hashlib import blake2b


def derive(*purpose: int | str) -> int:
    """Derive a 63-bit seed that depends only on the arguments.

    >>> derive(0, "shuffle", "home", 3), derive(0, "shuffle", "home", "3")
    (5530536303247691674, 4798962410412647507)
    """
    words = "\x1f".join(f"{type(word).__name__}:{word}" for word in purpose)
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big") >> 1
