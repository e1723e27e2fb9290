"""Compiled inner products and mixtures of rows in main memory: every value is read once.

Rows are passed as addresses of their first values, so they are never stacked. The caller keeps the rows alive.
"""

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

TILE = 3  # rows by rows whose products are summed at a time: nine sums and six values fit the registers
COLUMNS = 1024  # columns whose values stay in the fastest cache while all pairs of rows use them
GROUP = 4  # rows that are added at a time


@intrinsic
def _pointer(context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.inttoptr(values[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(cache=True, nogil=True)
def _values(row, start, stop, stored):  # type: ignore[no-untyped-def]
    return carray(_pointer(row), (stop,), stored)[start:]  # type: ignore[call-arg]


# Sums may be taken in any order, and so in vector registers; NaN and infinity are kept.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _tile(p0, p1, p2, q0, q1, q2, exact):  # type: ignore[no-untyped-def]
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = exact(0)
    for k in range(len(p0)):
        x0, x1, x2 = exact(p0[k]), exact(p1[k]), exact(p2[k])
        y0, y1, y2 = exact(q0[k]), exact(q1[k]), exact(q2[k])
        s00, s01, s02 = s00 + x0 * y0, s01 + x0 * y1, s02 + x0 * y2
        s10, s11, s12 = s10 + x1 * y0, s11 + x1 * y1, s12 + x1 * y2
        s20, s21, s22 = s20 + x2 * y0, s21 + x2 * y1, s22 + x2 * y2
    return s00, s01, s02, s10, s11, s12, s20, s21, s22


@njit(cache=True, nogil=True)
def gram(rows, columns, stored, exact, products):  # type: ignore[no-untyped-def]
    """Add the inner products of rows to the lower triangle of `products`, [N, N] in float64.

    N is a multiple of TILE. The rows are `stored` as float32 or float64; products are summed in the type `exact` over
    COLUMNS of them, and these sums in float64.
    """
    for start in range(0, columns, COLUMNS):
        stop = min(start + COLUMNS, columns)
        for i in range(0, len(rows), TILE):
            p0 = _values(rows[i], start, stop, stored)
            p1 = _values(rows[i + 1], start, stop, stored)
            p2 = _values(rows[i + 2], start, stop, stored)
            for j in range(0, i + TILE, TILE):
                q0 = _values(rows[j], start, stop, stored)
                q1 = _values(rows[j + 1], start, stop, stored)
                q2 = _values(rows[j + 2], start, stop, stored)
                sums = _tile(p0, p1, p2, q0, q1, q2, exact)
                for k in range(TILE * TILE):
                    products[i + k // TILE, j + k % TILE] += sums[k]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def square(row, columns, stored):  # type: ignore[no-untyped-def]
    """Squared length of a row, in float64."""
    total = 0.0
    for value in _values(row, 0, columns, stored):
        total += np.float64(value) * np.float64(value)
    return total


@njit(cache=True, nogil=True)
def mix(rows, weights, columns, stored, mixed):  # type: ignore[no-untyped-def]
    """Write Σ_j weights[m, j]·row_j to the float32 rows `mixed`, [M] of them, from weights [M, N] in float64.

    N is a multiple of GROUP. Everything is float64 and in a fixed order except for the last rounding, so a
    value's bits depend only on its own column.
    """
    totals = np.empty(COLUMNS)
    for start in range(0, columns, COLUMNS):
        stop = min(start + COLUMNS, columns)
        for m in range(len(mixed)):
            totals[:] = 0
            for j in range(0, len(rows), GROUP):
                w0, w1, w2, w3 = weights[m, j], weights[m, j + 1], weights[m, j + 2], weights[m, j + 3]
                if w0 == 0 and w1 == 0 and w2 == 0 and w3 == 0:
                    continue
                p0 = _values(rows[j], start, stop, stored)
                p1 = _values(rows[j + 1], start, stop, stored)
                p2 = _values(rows[j + 2], start, stop, stored)
                p3 = _values(rows[j + 3], start, stop, stored)
                for k in range(stop - start):
                    totals[k] = totals[k] + w0 * p0[k] + w1 * p1[k] + w2 * p2[k] + w3 * p3[k]
            _values(mixed[m], start, stop, np.float32)[:] = totals[: stop - start]
