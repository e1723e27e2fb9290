"""The first draws of many of numpy's generators at once, to the bit.

`numpy.random.default_rng(seed)` takes 20 microseconds to seed and a few for every draw; an epoch needs a generator for
each of its images. Here all generators are seeded and stepped together, as arrays.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Longs = Any  # arrays of np.uint64: shifts and products of them have no precise types

POOL = 4  # words in a seed sequence
INIT_A, MULT_A, INIT_B, MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
MIX_L, MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
SHIFT = np.uint32(16)
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of the 128-bit congruential generator
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def draws(seeds: Longs, count: int) -> Longs:
    """The first `count` 64-bit outputs of `PCG64(seed)` for every seed of more than 32 bits: [seeds, count].

    >>> draws(np.array([2**40 + 7], np.uint64), 2).tolist() == [np.random.PCG64(2**40 + 7).random_raw(2).tolist()]
    True
    """
    state = _generated(_mixed(seeds))
    start, sequence = (state[0], state[1]), (state[2], state[3])
    increment = _shifted_once(sequence)
    # The generator starts at start + increment, makes a step, and makes another before each output.
    begin = _added(start, increment)
    factors, sums = _jumps(count)
    return _output(*_added(_times(_column(begin), factors), _times(_column(increment), sums)))


def as_doubles(outputs: Longs) -> NDArray[np.float64]:
    """What `random()` returns for these outputs."""
    return np.asarray((outputs >> np.uint64(11)) * (1.0 / 9007199254740992.0))


def as_integers(outputs: Longs, low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """What `integers(low, high)` returns for these outputs, and which of them it may reject to draw again."""
    wide = (outputs & LOW) * np.uint64(high - low)
    return low + (wide >> HALF).astype(np.int64), (wide & LOW) < np.uint64(high - low)


def _mixed(seeds: Longs) -> list[Words]:
    """The entropy pools of `SeedSequence(seed)`, a word of every seed in each array."""
    constant = INIT_A

    def hashed(value: Words) -> Words:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * MULT_A & 0xFFFFFFFF
        value = value * np.uint32(constant)
        return value ^ (value >> SHIFT)

    zero = np.zeros(len(seeds), np.uint32)
    words = [(seeds & LOW).astype(np.uint32), (seeds >> HALF).astype(np.uint32), zero, zero]
    pool = [hashed(word) for word in words]
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                mixed = MIX_L * pool[target] - MIX_R * hashed(pool[source])
                pool[target] = mixed ^ (mixed >> SHIFT)
    return pool


def _generated(pool: list[Words]) -> list[Longs]:
    """Four 64-bit words of state for every pool."""
    constant, words = INIT_B, []
    for number in range(2 * POOL):
        value = pool[number % POOL] ^ np.uint32(constant)
        constant = constant * MULT_B & 0xFFFFFFFF
        value = value * np.uint32(constant)
        words.append((value ^ (value >> SHIFT)).astype(np.uint64))
    return [low | high << HALF for low, high in zip(words[::2], words[1::2], strict=True)]


# 128-bit numbers are pairs of arrays: the high and the low 64 bits.
Wide = tuple[Longs, Longs]


@cache
def _jumps(count: int) -> tuple[Wide, Wide]:
    """The factors of the first state, and of the increment, in the states after two and more steps: [1, count]."""
    factor, total, factors, sums = MULTIPLIER, 1, [], []
    for _ in range(count):
        factor, total = factor * MULTIPLIER % 2**128, (total * MULTIPLIER + 1) % 2**128
        factors.append(factor)
        sums.append(total)
    return _wide(factors), _wide(sums)


def _wide(values: list[int]) -> Wide:
    return np.array([[v >> 64 for v in values]], np.uint64), np.array([[v % 2**64 for v in values]], np.uint64)


def _column(number: Wide) -> Wide:
    return number[0][:, None], number[1][:, None]


def _shifted_once(number: Wide) -> Wide:
    """2·number + 1."""
    high, low = number
    one = np.uint64(1)
    return high << one | low >> np.uint64(63), low << one | one


def _added(one: Wide, other: Wide) -> Wide:
    low = one[1] + other[1]
    return one[0] + other[0] + (low < one[1]), low


def _times(one: Wide, other: Wide) -> Wide:
    return _high(one[1], other[1]) + one[0] * other[1] + one[1] * other[0], one[1] * other[1]


def _high(one: Longs, other: Longs) -> Longs:
    """The high 64 bits of a product of 64-bit numbers."""
    a, b, c, d = one >> HALF, one & LOW, other >> HALF, other & LOW
    middle = a * d + (b * d >> HALF)
    middle_low = (middle & LOW) + b * c
    return a * c + (middle >> HALF) + (middle_low >> HALF)


def _output(high: Longs, low: Longs) -> Longs:
    """The output of a state: both halves xored, rotated by the highest bits."""
    value, turn = high ^ low, high >> np.uint64(58)
    return value >> turn | value << (np.uint64(64) - turn & np.uint64(63))
