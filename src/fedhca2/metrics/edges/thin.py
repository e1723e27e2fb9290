"""Morphological thinning to convergence, Guo and Hall's two-pass algorithm (`bwmorph thin`).

Maps live in flat arrays with a margin of zeros. `code` holds, for every pixel, which of its 8 neighbours are on, so a
pixel's fate is one look into a table, and after the first two passes only neighbours of deleted pixels are looked at.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Flags = NDArray[np.uint8]


def _deletable() -> Flags:
    """For each pass and each code of neighbours, bit k − 1 being x_k, E first and then counter-clockwise: delete?"""
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
    """Turn a pixel on or off, and tell its neighbours."""
    on[pixel] ^= 1
    for k in range(8):
        code[pixel + neighbour(k, stride)] ^= 1 << ((k + 4) % 8)


@njit(cache=True, nogil=True)
def thin_in_place(on, code, pixels, stride, work, queued, gone):  # type: ignore[no-untyped-def]
    """Thin the map whose pixels are listed; gives the number of deletions, which are listed in `gone`.

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
    """The mask thinned until nothing more can go.

    >>> thin(np.ones((3, 5), bool)).astype(int)
    array([[0, 0, 0, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 0, 0, 0]])
    """
    padded = np.pad(mask, 1)
    on: Flags = _thinned(padded.ravel(), padded.shape[1])
    return on.reshape(padded.shape)[1:-1, 1:-1].astype(bool)
