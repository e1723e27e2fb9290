"""The random choices for many training samples, as arrays."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedhca2.data.draws import as_doubles, as_integers, draws
from fedhca2.data.photometric import Distortion
from fedhca2.data.transforms import CROP_TRIES, SCALES, UNCHANGED, Augmentation, augmentation_seeds, draw_augmentation

Array = NDArray[Any]
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
