"""The random choices for many training samples, drawn together.

`numpy.random.default_rng(seed)` takes 20 microseconds to seed and a few for every draw; an epoch needs a generator for
each of its images. Here all generators are seeded and stepped together, as arrays, to the same bits.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhca2.data.photometric import Distortion
from fedhca2.data.transforms import CROP_TRIES, SCALES, UNCHANGED, Augmentation, augmentation_seeds, draw_augmentation

Array = NDArray[Any]
Words = NDArray[np.uint32]
Longs = Any  # arrays of np.uint64: shifts and products of them have no precise types

POOL = 4  # words in a seed sequence
INIT_A, MULT_A, INIT_B, MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
MIX_L, MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
SHIFT = np.uint32(16)
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of the 128-bit congruential generator
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)

DRAWS = 2 * CROP_TRIES + 11  # at most, for one sample


@dataclass(frozen=True)
class Choices:
    """The fields of `Augmentation` for every sample, and of its `Distortion`."""

    scale: Array  # [N]
    crops: Array  # [N, tries, 2]
    mirrored: Array  # [N]
    distorted: Array  # whether colours change, [N]
    distortion: Array  # [5, N]

    @classmethod
    def of(cls, augmentations: Sequence[Augmentation]) -> Self:
        """The choices of these augmentations."""
        distortions = [astuple(one.distortion or Distortion()) for one in augmentations]
        return cls(
            scale=np.array([one.scale for one in augmentations]),
            crops=np.array([one.crops for one in augmentations]),
            mirrored=np.array([one.mirrored for one in augmentations]),
            distorted=np.array([one.distortion is not None for one in augmentations]),
            distortion=np.array(distortions).T,
        )

    @classmethod
    def none(cls, count: int) -> Self:
        """No change of this many samples."""
        return cls.of([UNCHANGED] * count)

    def put(self, number: int, other: "Choices") -> None:
        """Replace the choices of one sample by the first of others."""
        self.scale[number], self.crops[number], self.mirrored[number] = (
            other.scale[0],
            other.crops[0],
            other.mirrored[0],
        )
        self.distorted[number], self.distortion[:, number] = other.distorted[0], other.distortion[:, 0]

    def __getitem__(self, number: int) -> Augmentation:
        """The augmentation of one sample."""
        distortion = Distortion(*self.distortion[:, number].tolist()) if self.distorted[number] else None
        return Augmentation(
            scale=float(self.scale[number]),
            crops=tuple((y, x) for y, x in self.crops[number].tolist()),
            mirrored=bool(self.mirrored[number]),
            distortion=distortion,
        )


def draw_choices(
    seed: int, client: str, epoch: int, indices: Sequence[int], scales: tuple[float, float] = SCALES
) -> Choices:
    """The same choices as `draw_augmentation` for each of these images, drawn together."""
    seeds = np.array(augmentation_seeds(seed, client, epoch, indices), np.uint64)
    outputs = draws(seeds, DRAWS)
    uniform = as_doubles(outputs)
    every, first = np.arange(len(indices)), 2 * CROP_TRIES
    scale = scales[0] + (scales[1] - scales[0]) * uniform[:, first]
    on = (uniform[:, first + 2 : first + 6] < 0.5).T
    at = np.full(len(indices), first + 6)  # the next draw of each sample
    brightness = np.where(on[0], -32 + 64 * uniform[every, at], 0.0)
    at += on[0]
    contrast = np.where(on[1], 0.5 + uniform[every, at], 1.0)
    at += on[1]
    contrast_first = uniform[every, at] < 0.5
    at += 1
    saturation = np.where(on[2], 0.5 + uniform[every, at], 1.0)
    at += on[2]
    hues, again = as_integers(outputs[every, at], -18, 18)
    before, after = np.where(contrast_first, contrast, 1.0), np.where(contrast_first, 1.0, contrast)
    choices = Choices(
        scale=scale,
        crops=uniform[:, :first].reshape(-1, CROP_TRIES, 2),
        mirrored=uniform[:, first + 1] < 0.5,
        distorted=np.ones(len(indices), bool),
        distortion=np.stack([brightness, before, saturation, np.where(on[3], hues, 0), after]),
    )
    # One image in a hundred million draws its hue twice, or has a seed of 32 bits: these are drawn one by one.
    for rare in np.flatnonzero((on[3] & again) | (seeds < 2**32)).tolist():
        alone = Choices.of([draw_augmentation(seed, client, epoch, indices[rare], scales)])
        choices.put(rare, alone)
    return choices


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
