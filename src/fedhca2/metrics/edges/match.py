"""A maximum one-to-one matching of predicted and true edge pixels that is kept up while predictions come and go.

A matching is maximum if no augmenting path exists. A new prediction can only be the end of such a path, and so can
a true pixel whose prediction has gone; so one search from each, the latter before anything is added, keeps the
matching maximum. Pixels of the other side that a failed search has seen form a closed set without a free one: they are
dead, and later searches leave them out. True pixels stay dead until one of them loses its prediction, predictions until
one is added.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


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
    """True pixels near each candidate, and candidates near each true pixel, both the nearest first.

    Either is a pair: where a pixel's list starts in the second array (it ends where the next one's starts).
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
    """Look for an augmenting path from an unmatched pixel of either side; true if the matching has grown.

    `start`, `near`, `partner` are of the root's side, `active`, `partner_back`, `dead`, `seen`, `parent` of the other.
    `dead` holds for the present `epoch`, `seen` for this search, whose `stamp` is new.
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
