"""Compiled parts of the metric of edges: suppression, thinning, and all thresholds of one edge map in one pass.

Thinning is Guo and Hall's two-pass algorithm (`bwmorph thin`). Maps are flat arrays with a margin of zeros. `code`
records which of every pixel's 8 neighbours are on, so one table look-up decides whether to delete it. After the first
two passes only neighbours of pixels that the last two have deleted are checked.

The pass over thresholds goes from the highest down: each adds pixels, thins, and repairs the matching of predicted and
true edge pixels. It is one to one and as large as possible: no augmenting path exists. True pixels that a failed search
has visited form a closed set without a free pixel: they are dead, and later searches skip them, until one of them loses
its prediction, which begins a new epoch.

numba caches machine code until this file changes, so what is compiled here uses nothing from other files.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Flags = NDArray[np.uint8]


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
def suppress(image, slope, radius):  # type: ignore[no-untyped-def]
    """Keep a value if none up to `radius` away, along the slope, is 1 % larger; otherwise set it to 0."""
    height, width = image.shape
    ridge = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            value = image[i, j]
            if value == 0:
                continue
            along_x = np.float32(1) / np.sqrt(np.float32(1) + slope[i, j] * slope[i, j])
            along_y = slope[i, j] * along_x
            bar = np.float32(1.01) * value
            is_ridge = True
            for d in range(1, radius + 1):
                y, x = np.float32(d) * along_y, np.float32(d) * along_x
                if bar < _at(image, i + y, j + x) or bar < _at(image, i - y, j - x):
                    is_ridge = False
                    break
            if is_ridge:
                ridge[i, j] = value
    return ridge


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
def thin_in_place(on, code, pixels, stride, gone):  # type: ignore[no-untyped-def]
    """Thin the map whose pixels are listed; returns the number of deletions, which are listed in `gone`."""
    before, last, deleted, passes = 0, 0, 0, 0  # deletions until the last pass but one, until the last one, and now
    while passes < 2 or deleted > before:
        start, side = deleted, passes % 2
        if passes < 2:
            for pixel in pixels:
                if on[pixel] and DELETABLE[side, code[pixel]]:
                    gone[deleted] = pixel
                    deleted += 1
        else:
            for pixel in gone[before:start]:
                for k in range(8):
                    near = pixel + neighbour(k, stride)
                    if on[near] == 1 and DELETABLE[side, code[near]]:
                        on[near], gone[deleted] = 3, near  # not twice
                        deleted += 1
        for pixel in gone[start:deleted]:
            on[pixel] = 1
            switch(on, code, pixel, stride)
        before, last, passes = last, start, passes + 1
    return deleted


@njit(cache=True, nogil=True)
def _thinned(pixels, size, stride):  # type: ignore[no-untyped-def]
    on, code = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    for pixel in pixels:
        switch(on, code, pixel, stride)
    thin_in_place(on, code, pixels, stride, np.empty_like(pixels))
    return on


def thin(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Thin the mask until nothing more can be deleted.

    >>> thin(np.ones((3, 5), bool)).astype(int)
    array([[0, 0, 0, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 0, 0, 0]])
    """
    padded = np.pad(mask, 1)
    on: Flags = _thinned(np.flatnonzero(padded), padded.size, padded.shape[1])
    return on.reshape(padded.shape)[1:-1, 1:-1].astype(bool)


def disc(radius: float, stride: int) -> NDArray[np.int64]:
    """Offsets of the pixels within `radius` in a flat map, the nearest first.

    >>> disc(1.0, stride=10)
    array([  0, -10,  -1,   1,  10])
    """
    dy, dx = np.mgrid[-int(radius) : int(radius) + 1, -int(radius) : int(radius) + 1].reshape(2, -1)
    squares = dy * dy + dx * dx
    order = np.argsort(squares, kind="stable")
    offsets: NDArray[np.int64] = (dy * stride + dx)[order[: np.sum(squares <= radius * radius)]]
    return offsets


@njit(cache=True, nogil=True)
def neighbours(candidate, truth, offsets):  # type: ignore[no-untyped-def]
    """True pixels near each candidate, from the nearest: where a pixel's list starts in the second array, and that."""
    start = np.zeros(candidate.size + 1, np.int64)
    for offset in offsets:
        for true in truth:
            start[true + offset + 1] += candidate[true + offset]
    for pixel in range(candidate.size):
        start[pixel + 1] += start[pixel]
    near, filled = np.empty(start[-1], np.int32), start.copy()
    for offset in offsets:
        for true in truth:
            if candidate[true + offset]:
                near[filled[true + offset]] = true
                filled[true + offset] += 1
    return start, near


@njit(cache=True, nogil=True)
def augment(root, start, near, partner, prediction_of, dead, epoch, seen, stamp, parent, queue):  # type: ignore[no-untyped-def]
    """Search an augmenting path from an unmatched prediction; true if the matching has grown.

    `dead` is valid for the current `epoch`, `seen` for this search, whose `stamp` is new; the last two are scratch.
    """
    queue[0], head, tail = root, 0, 1
    while head < tail:
        pixel = queue[head]
        head += 1
        for true in near[start[pixel] : start[pixel + 1]]:
            if dead[true] == epoch or seen[true] == stamp:
                continue
            seen[true], parent[true] = stamp, pixel
            if prediction_of[true] >= 0:
                queue[tail] = prediction_of[true]
                tail += 1
                continue
            while true >= 0:
                pixel = parent[true]
                prediction_of[true] = pixel
                true, partner[pixel] = partner[pixel], true
            return True
    for pixel in queue[1:tail]:
        dead[partner[pixel]] = epoch
    return False


@njit(cache=True, nogil=True)
def _sweep(candidate, pixels, ends, truth, offsets, stride):  # type: ignore[no-untyped-def]
    size, count = candidate.size, ends.size - 2
    start, near = neighbours(candidate, truth, offsets)
    on, code, gone = np.zeros(size, np.uint8), np.zeros(size, np.uint8), np.empty(pixels.size, np.int64)
    partner, prediction_of = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    dead, failed, seen = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    parent, queue = np.empty(size, np.int32), np.empty(pixels.size + 1, np.int32)
    counts = np.zeros((2, count), np.int64)
    matches, predictions, stamp, epoch = 0, 0, 0, 1
    for k in range(count, 0, -1):
        here = pixels[: ends[k]]
        if ends[k] > ends[k + 1]:
            for pixel in here[ends[k + 1] :]:
                switch(on, code, pixel, stride)
            deleted = thin_in_place(on, code, here, stride, gone)
            predictions, past = here.size - deleted, epoch
            for pixel in gone[:deleted]:
                true = partner[pixel]
                if true >= 0:
                    prediction_of[true], partner[pixel] = -1, -1
                    matches -= 1
                    epoch = past + 1 if dead[true] == past else epoch
            for root in here:
                if on[root] and partner[root] < 0 and failed[root] != epoch:
                    stamp += 1
                    if augment(root, start, near, partner, prediction_of, dead, epoch, seen, stamp, parent, queue):
                        matches += 1
                    else:
                        failed[root] = epoch
            for pixel in gone[:deleted]:
                switch(on, code, pixel, stride)
        counts[0, k - 1], counts[1, k - 1] = matches, predictions
    return counts


def sweep(level: NDArray[np.uint8], truth: NDArray[np.bool_], count: int, radius: float) -> NDArray[np.int64]:
    """Matched [0] and predicted [1] pixels at each of `count` thresholds.

    A pixel is on at threshold k = 1 … count if its level is at least k. Pixels that are on are thinned, and as many as
    possible are matched one to one with true pixels at most `radius` away.

    >>> line = np.array([[0, 0, 0, 0], [2, 1, 2, 0]], np.uint8)
    >>> sweep(line, np.array([[0, 1, 1, 0], [0, 0, 0, 0]], bool), count=2, radius=1.0)
    array([[2, 1],
           [3, 2]])
    """
    margin = int(radius) + 1
    padded = np.pad(level, margin)
    flat, stride, true = padded.ravel(), padded.shape[1], np.flatnonzero(np.pad(truth, margin))
    pixels = np.flatnonzero(flat)
    pixels = pixels[np.argsort(count - flat[pixels], kind="stable")]
    # ends[k]: how many pixels reach level k; the entry after the last level is 0.
    ends = np.bincount(flat, minlength=count + 2)[::-1].cumsum()[::-1].copy()
    candidate = (flat > 0).astype(np.uint8)
    counts: NDArray[np.int64] = _sweep(candidate, pixels, ends, true, disc(radius, stride), stride)
    return counts
