"""What an attack is: a name, a function that plays it against real processes, and what should come of it.

Each kind of adversary is an `Adversary` in a module of its own (`hostile_sites.py`); `test_attacks.py` lists them,
plays every attack and prints one table. To add an adversary, write such a module and add it to that list.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """What came of an attack, in words, and how far the others are from where they would be without the attacker."""

    found: str
    drift: float = 0.0


@dataclass(frozen=True)
class Attack:
    """Something that an adversary can do."""

    name: str
    line: int  # of issue 14
    play: Callable[[Any], Outcome]  # with the adversary's stage
    expected: str  # a pattern that the outcome has to hold
    drift: float = 0.0  # the most that the others may move
    long: bool = False  # played by `make attack` alone

    def fault(self, outcome: Outcome) -> str:
        """Why an outcome is not what was promised, or nothing."""
        if not re.search(self.expected, outcome.found):
            return f"{self.name}: outcome should match {self.expected!r}, found {outcome.found!r}"
        if not outcome.drift <= self.drift:
            return f"{self.name}: others should drift by at most {self.drift:g}, found {outcome.drift:g}"
        return ""


@dataclass(frozen=True)
class Adversary:
    """Somebody with certain means, the processes that all its attacks are played on, and the attacks."""

    name: str
    stage: Callable[
        [Path], AbstractContextManager[Any]
    ]  # starts the processes in an empty folder, once for all attacks
    attacks: tuple[Attack, ...]


def relative_drift(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """|found − expected| / |expected| over all these rows together."""
    there, absent = torch.cat([*found]).double(), torch.cat([*expected]).double()
    return float((there - absent).norm() / absent.norm())
