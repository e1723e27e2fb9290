"""All thresholds of one edge map in one pass, from the highest down: each adds pixels, thins and repairs the matching.

The matching of predicted and true edge pixels is one to one and maximum at every threshold: no augmenting path exists.
Only a new prediction, or a true pixel that has lost its prediction, can be the end of such a path. So one search from
each, the latter before anything is added, keeps the matching maximum. Pixels of the other side that a failed search has
visited form a closed set without a free pixel: they are dead, and later searches skip them. True pixels stay dead until
one of them loses its prediction, predictions until one is added.

numba's cache only checks this file: after a change in `thin.py`, delete `__pycache__/*.nb*` here.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedhca2.metrics.edges.thin import switch, thin_in_place


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
    """True pixels near each candidate, and candidates near each true pixel, both sorted from the nearest.

    Each is a pair of arrays: the first has the start of a pixel's list in the second (it ends where the next one
    starts).
    """
    start, start_back = np.zeros(candidate.size + 1, np.int64), np.zeros(candidate.size + 1, np.int64)
    for offset in offsets:
        for true in truth:
            start[true + offset + 1] += candidate[true + offset]
            start_back[true + 1] += candidate[true + offset]
    for pixel in range(candidate.size):
        start[pixel + 1] += start[pixel]
        start_back[pixel + 1] += start_back[pixel]
    near, near_back = np.empty(start[-1], np.int32), np.empty(start[-1], np.int32)
    filled, filled_back = start.copy(), start_back.copy()
    for offset in offsets:
        for true in truth:
            pixel = true + offset
            if candidate[pixel]:
                near[filled[pixel]], near_back[filled_back[true]] = true, pixel
                filled[pixel] += 1
                filled_back[true] += 1
    return start, near, start_back, near_back


@njit(cache=True, nogil=True)
def augment(root, start, near, active, partner, partner_back, dead, epoch, seen, stamp, parent, queue):  # type: ignore[no-untyped-def]
    """Search an augmenting path from an unmatched pixel of either side; true if the matching has grown.

    `start`, `near`, `partner` belong to the root's side, `active`, `partner_back`, `dead`, `seen`, `parent` to the
    other. `dead` is valid for the current `epoch`, `seen` for this search, whose `stamp` is new.
    """
    queue[0], head, tail = root, 0, 1
    while head < tail:
        pixel = queue[head]
        head += 1
        for other in near[start[pixel] : start[pixel + 1]]:
            if not active[other] or dead[other] == epoch or seen[other] == stamp:
                continue
            seen[other], parent[other] = stamp, pixel
            if partner_back[other] >= 0:
                queue[tail] = partner_back[other]
                tail += 1
                continue
            while other >= 0:
                pixel = parent[other]
                partner_back[other] = pixel
                other, partner[pixel] = partner[pixel], other
            return True
    for pixel in queue[1:tail]:
        dead[partner[pixel]] = epoch
    return False


@njit(cache=True, nogil=True)
def _changes(on, active, pixels, partner, prediction_of, added, freed):  # type: ignore[no-untyped-def]
    """List what is on but not yet active, and remove what is active but no longer on, freeing its true pixels.

    Returns the numbers of added pixels, freed true pixels, and removed pixels.
    """
    new, lost, left = 0, 0, 0
    for pixel in pixels:
        if on[pixel] and not active[pixel]:
            added[new] = pixel
            new += 1
        elif active[pixel] and not on[pixel]:
            active[pixel] = 0
            left += 1
            true = partner[pixel]
            if true >= 0:
                freed[lost] = true
                lost += 1
                partner[pixel], prediction_of[true] = -1, -1
    return new, lost, left


@njit(cache=True, nogil=True)
def _sweep(candidate, pixels, ends, truth, offsets, stride):  # type: ignore[no-untyped-def]
    size, count = candidate.size, ends.size - 2
    on, code = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    work, queued = np.empty((2, pixels.size), np.int64), np.zeros((2, size), np.uint8)
    gone, added, freed = (
        np.empty(pixels.size, np.int64),
        np.empty(pixels.size, np.int64),
        np.empty(truth.size, np.int64),
    )

    start, near, start_back, near_back = neighbours(candidate, truth, offsets)
    active, always = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    partner, prediction_of = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    dead, dead_back = np.zeros(size, np.int32), np.zeros(size, np.int32)
    seen, seen_back = np.zeros(size, np.int32), np.zeros(size, np.int32)
    parent, queue = np.empty(size, np.int32), np.empty(max(pixels.size, truth.size) + 1, np.int32)

    counts = np.zeros((2, count), np.int64)
    matches, predictions, stamp, epoch = 0, 0, 0, 1
    for k in range(count, 0, -1):
        if ends[k] > ends[k + 1]:
            for pixel in pixels[ends[k + 1] : ends[k]]:
                switch(on, code, pixel, stride)
            deleted = thin_in_place(on, code, pixels[: ends[k]], stride, work, queued, gone)
            new, lost, left = _changes(on, active, pixels[: ends[k]], partner, prediction_of, added, freed)
            for pixel in gone[:deleted]:
                switch(on, code, pixel, stride)
            predictions, matches = predictions + new - left, matches - lost
            for true in freed[:lost]:
                if dead[true] == epoch:
                    epoch += 1
            for true in freed[:lost]:
                stamp += 1
                matches += augment(
                    true,
                    start_back,
                    near_back,
                    active,
                    prediction_of,
                    partner,
                    dead_back,
                    k,
                    seen_back,
                    stamp,
                    parent,
                    queue,
                )
            for pixel in added[:new]:
                active[pixel] = 1
                stamp += 1
                matches += augment(
                    pixel, start, near, always, partner, prediction_of, dead, epoch, seen, stamp, parent, queue
                )
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
