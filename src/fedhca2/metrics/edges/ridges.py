"""Ridges of raw edge maps: values that are the largest straight across the edge."""

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

Image = NDArray[np.float32]
CONSERVATIVE = np.float32(1.01)
ORIENTATION_RADIUS = 4


def triangle(image: Image, radius: int) -> Image:
    """Smooth with the kernel [1 … r, r + 1, r … 1]/(r + 1)² along both axes, with symmetric borders.

    >>> triangle(np.array([[0, 4, 0, 0]], np.float32), 1)
    array([[1., 2., 1., 0.]], dtype=float32)
    """
    kernel = (radius + 1 - np.abs(np.arange(-radius, radius + 1))) / (radius + 1) ** 2
    for axis in (0, 1):
        image = correlate1d(image, kernel, axis=axis, output=np.float32, mode="reflect")
    return image


def slope(image: Image) -> Image:
    r"""Tangent of the direction across the edge, $O_{yy}\operatorname{sign}(-O_{xy})/(O_{xx} + 10^{-5})$.

    It represents the angle atan(slope) mod π: a line through the pixel only needs the tangent.
    """
    smooth = triangle(image, ORIENTATION_RADIUS)
    dy, dx = np.gradient(smooth)
    dxy, dyy = np.gradient(dy, axis=1), np.gradient(dy, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a vertical direction has no finite tangent
        across: Image = dyy * np.sign(-dxy) / (np.gradient(dx, axis=1) + np.float32(1e-5))
    return across


@njit(cache=True, nogil=True)
def _at(image, y, x):  # type: ignore[no-untyped-def]
    """Bilinear value; positions outside take the border's value."""
    height, width = image.shape
    y = min(max(y, np.float32(0)), np.float32(height - 1.001))
    x = min(max(x, np.float32(0)), np.float32(width - 1.001))
    top, left = int(y), int(x)
    dy, dx = y - np.float32(top), x - np.float32(left)
    one = np.float32(1)
    above = image[top, left] * (one - dx) + image[top, left + 1] * dx
    below = image[top + 1, left] * (one - dx) + image[top + 1, left + 1] * dx
    return above * (one - dy) + below * dy


@njit(cache=True, nogil=True)
def _suppress(image, slope, radius):  # type: ignore[no-untyped-def]
    height, width = image.shape
    ridge = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            value = image[i, j]
            if value == 0:
                continue
            along_x = np.float32(1) / np.sqrt(np.float32(1) + slope[i, j] * slope[i, j])
            along_y = slope[i, j] * along_x
            bar = CONSERVATIVE * value
            kept = True
            for d in range(1, radius + 1):
                y, x = np.float32(d) * along_y, np.float32(d) * along_x
                if bar < _at(image, i + y, j + x) or bar < _at(image, i - y, j - x):
                    kept = False
                    break
            if kept:
                ridge[i, j] = value
    return ridge


def _fade(length: int, border: int) -> Image:
    """Factors i/border at distance i from both ends of a row, and 1 further in."""
    ramp = np.minimum(np.arange(length) / border, 1) if border else np.ones(length)
    return (ramp * ramp[::-1]).astype(np.float32)


def suppress_non_maxima(image: Image, radius: int, border: int, smooth: bool) -> Image:
    """Keep a value if none up to `radius` away, straight across the edge, is 1 % larger; otherwise set it to 0.

    Within `border` pixels of the rim, the remaining values fade to 0. `smooth` applies `triangle(·, 1)` first.
    """
    if min(image.shape) < 2:
        raise ValueError(f"an edge map should be 2×2 or larger, found {image.shape[0]}×{image.shape[1]}")
    image = triangle(image, 1) if smooth else np.ascontiguousarray(image)
    ridge: Image = _suppress(image, slope(image), radius)
    return ridge * _fade(len(ridge), border)[:, None] * _fade(ridge.shape[1], border)
