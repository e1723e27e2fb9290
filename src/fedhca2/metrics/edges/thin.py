"""Making edges thin: ridges of raw edge maps, and drawn edges thinned to convergence.

Thinning is Guo and Hall's two-pass algorithm (`bwmorph thin`). Maps are flat arrays with a margin of zeros. `code`
records which of every pixel's 8 neighbours are on, so one table look-up decides whether to delete it. After the first
two passes only neighbours of deleted pixels are checked.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

Flags = NDArray[np.uint8]
Image = NDArray[np.float32]
CONSERVATIVE = np.float32(1.01)
ORIENTATION_RADIUS = 4


def _deletable() -> Flags:
    """Whether to delete, for each pass and code of neighbours; bit k − 1 is x_k, E first and then counter-clockwise."""
    table = np.zeros((2, 256), np.uint8)
    for code in range(256):
        x = [code >> (k - 1) & 1 for k in (8, 1, 2, 3, 4, 5, 6, 7, 8, 1)]
        branches = sum(not x[k] and bool(x[k + 1] or x[k + 2]) for k in (1, 3, 5, 7))
        pairs = min(sum(x[k] | x[k + 1] for k in (1, 3, 5, 7)), sum(x[k] | x[k - 1] for k in (1, 3, 5, 7)))
        if branches == 1 and 2 <= pairs <= 3:
            table[0, code] = not ((x[2] or x[3] or not x[8]) and x[1])
            table[1, code] = not ((x[6] or x[7] or not x[4]) and x[5])
    return table


DELETABLE = _deletable()


@njit(cache=True, nogil=True)
def neighbour(k, stride):  # type: ignore[no-untyped-def]
    """Offset of neighbour x_(k + 1): E, NE, N, NW, W, SW, S, SE."""
    dx = (1, 1, 0, -1, -1, -1, 0, 1)[k]
    dy = (0, -1, -1, -1, 0, 1, 1, 1)[k]
    return dy * stride + dx


@njit(cache=True, nogil=True)
def switch(on, code, pixel, stride):  # type: ignore[no-untyped-def]
    """Turn a pixel on or off, and update its neighbours."""
    on[pixel] ^= 1
    for k in range(8):
        code[pixel + neighbour(k, stride)] ^= 1 << ((k + 4) % 8)


@njit(cache=True, nogil=True)
def thin_in_place(on, code, pixels, stride, work, queued, gone):  # type: ignore[no-untyped-def]
    """Thin the map whose pixels are listed; returns the number of deletions, which are listed in `gone`.

    `work` [2, n] and `queued` [2, map] are scratch; `queued` is all zeros before and after.
    """
    waiting = np.zeros(2, np.int64)
    deleted, first = 0, True
    while first or waiting[0] + waiting[1] > 0:
        for turn in range(2):
            candidates = pixels if first else work[turn, : waiting[turn]]
            start = deleted
            for pixel in candidates:
                queued[turn, pixel] = 0
                if on[pixel] and DELETABLE[turn, code[pixel]]:
                    gone[deleted] = pixel
                    deleted += 1
            waiting[turn] = 0
            for pixel in gone[start:deleted]:
                switch(on, code, pixel, stride)
            for pixel in gone[start:deleted]:
                for k in range(8):
                    near = pixel + neighbour(k, stride)
                    if on[near]:
                        for later in range(2):
                            if not queued[later, near]:
                                queued[later, near] = 1
                                work[later, waiting[later]] = near
                                waiting[later] += 1
        first = False
    return deleted


@njit(cache=True, nogil=True)
def _thinned(mask, stride):  # type: ignore[no-untyped-def]
    on, code = np.zeros(mask.size, np.uint8), np.zeros(mask.size, np.uint8)
    pixels = np.flatnonzero(mask)
    for pixel in pixels:
        switch(on, code, pixel, stride)
    work, queued = np.empty((2, pixels.size), np.int64), np.zeros((2, mask.size), np.uint8)
    thin_in_place(on, code, pixels, stride, work, queued, np.empty(pixels.size, np.int64))
    return on


def thin(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Thin the mask until nothing more can be deleted.

    >>> thin(np.ones((3, 5), bool)).astype(int)
    array([[0, 0, 0, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 0, 0, 0]])
    """
    padded = np.pad(mask, 1)
    on: Flags = _thinned(padded.ravel(), padded.shape[1])
    return on.reshape(padded.shape)[1:-1, 1:-1].astype(bool)


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
