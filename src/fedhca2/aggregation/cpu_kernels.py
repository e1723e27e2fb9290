"""Kernels on rows in main memory, compiled by numba: inner products, mixtures and projections in one pass.

They get rows as addresses of their first values, so rows are never stacked, and the type in which values are `stored`:
np.float32, np.float64, or np.uint16 for the bits of bfloat16.
"""

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

TILE = 3  # rows by rows whose products are summed at a time: nine sums and six values fit the registers
COLUMNS = 1024  # columns whose values stay in the fastest cache while all pairs of rows use them
GROUP = 8  # rows that are added at a time
STRETCH = 16384  # columns of a row that are read in one go if each is needed once: processors fetch long runs ahead
FOLDED = 4  # rows that are projected at a time, so that signs are read and converted once for all of them


@intrinsic
def _pointer(context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.inttoptr(values[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(cache=True, nogil=True)
def _values(row, start, stop, stored):  # type: ignore[no-untyped-def]
    return carray(_pointer(row), (stop,), stored)[start:]  # type: ignore[call-arg]


def _number_of(context, value):  # type: ignore[no-untyped-def]
    """A stored value as a number: the bits of a bfloat16 are the first half of a float32's."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        if not isinstance(value, types.Integer):
            return values[0]
        bits = builder.zext(values[0], context.get_value_type(types.uint32))
        bits = builder.shl(bits, context.get_constant(types.uint32, 16))
        return builder.bitcast(bits, context.get_value_type(types.float32))

    return (types.float32 if isinstance(value, types.Integer) else value)(value), generate


_number: Any = intrinsic(_number_of)


# Sums may be taken in any order, and so in vector registers; NaN and infinity are kept.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _tile(p0, p1, p2, q0, q1, q2, exact):  # type: ignore[no-untyped-def]
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = exact(0)
    for k in range(len(p0)):
        x0, x1, x2 = exact(_number(p0[k])), exact(_number(p1[k])), exact(_number(p2[k]))
        y0, y1, y2 = exact(_number(q0[k])), exact(_number(q1[k])), exact(_number(q2[k]))
        s00, s01, s02 = s00 + x0 * y0, s01 + x0 * y1, s02 + x0 * y2
        s10, s11, s12 = s10 + x1 * y0, s11 + x1 * y1, s12 + x1 * y2
        s20, s21, s22 = s20 + x2 * y0, s21 + x2 * y1, s22 + x2 * y2
    return s00, s01, s02, s10, s11, s12, s20, s21, s22


@njit(cache=True, nogil=True)
def add_products(rows, columns, stored, exact, products):  # type: ignore[no-untyped-def]
    """Add the inner products of rows to the lower triangle of `products`, [N, N] in float64.

    N is a multiple of TILE. Products are summed in the type `exact` over COLUMNS of them, and these sums in float64.
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
def squared_length(row, columns, stored):  # type: ignore[no-untyped-def]
    """Squared length of a row, in float64."""
    total = 0.0
    for value in _values(row, 0, columns, stored):
        total += np.float64(_number(value)) * np.float64(_number(value))
    return total


@njit(cache=True, nogil=True)
def _four(rows, first, start, stop, stored):  # type: ignore[no-untyped-def]
    """Values of four rows."""
    return (
        _values(rows[first], start, stop, stored),
        _values(rows[first + 1], start, stop, stored),
        _values(rows[first + 2], start, stop, stored),
        _values(rows[first + 3], start, stop, stored),
    )


# Here sums are in a fixed order. A product and its sum are rounded together, in a vector register or alone.
@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_to_one(w, first, second, totals):  # type: ignore[no-untyped-def]
    """Add a mixture of eight rows to one row of totals."""
    w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
    (p0, p1, p2, p3), (p4, p5, p6, p7) = first, second
    for k in range(len(totals)):
        total = totals[k] + w0 * _number(p0[k]) + w1 * _number(p1[k]) + w2 * _number(p2[k]) + w3 * _number(p3[k])
        totals[k] = total + w4 * _number(p4[k]) + w5 * _number(p5[k]) + w6 * _number(p6[k]) + w7 * _number(p7[k])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_to_four(w, rows, totals):  # type: ignore[no-untyped-def]
    """Add mixtures of four rows to four rows of totals: a value is read and converted once for all of them."""
    w00, w01, w02, w03 = w[0, 0], w[0, 1], w[0, 2], w[0, 3]
    w10, w11, w12, w13 = w[1, 0], w[1, 1], w[1, 2], w[1, 3]
    w20, w21, w22, w23 = w[2, 0], w[2, 1], w[2, 2], w[2, 3]
    w30, w31, w32, w33 = w[3, 0], w[3, 1], w[3, 2], w[3, 3]
    (p0, p1, p2, p3), (t0, t1, t2, t3) = rows, totals
    for k in range(len(p0)):
        x0, x1, x2, x3 = _number(p0[k]), _number(p1[k]), _number(p2[k]), _number(p3[k])
        t0[k] = t0[k] + w00 * x0 + w01 * x1 + w02 * x2 + w03 * x3
        t1[k] = t1[k] + w10 * x0 + w11 * x1 + w12 * x2 + w13 * x3
        t2[k] = t2[k] + w20 * x0 + w21 * x1 + w22 * x2 + w23 * x3
        t3[k] = t3[k] + w30 * x0 + w31 * x1 + w32 * x2 + w33 * x3


@njit(cache=True, nogil=True)
def _mix_one(rows, weights, start, stop, stored, totals):  # type: ignore[no-untyped-def]
    """Sum the columns of one mixture, from its weights [N]; rows without weight are not read."""
    totals[:] = 0
    for j in range(0, len(rows), GROUP):
        if weights[j : j + GROUP].any():
            first, second = _four(rows, j, start, stop, stored), _four(rows, j + 4, start, stop, stored)
            _add_to_one(weights[j : j + GROUP], first, second, totals)


@njit(cache=True, nogil=True)
def _mix_four(rows, weights, start, stop, stored, totals):  # type: ignore[no-untyped-def]
    """Sum the columns of four mixtures, from their weights [4, N]."""
    n = stop - start
    sums = totals[0, :n], totals[1, :n], totals[2, :n], totals[3, :n]  # known to be contiguous when this is compiled
    totals[:, :n] = 0
    for j in range(0, len(rows), 4):
        _add_to_four(weights[:, j : j + 4], _four(rows, j, start, stop, stored), sums)


@njit(cache=True, nogil=True)
def write_mixed(rows, weights, dense, columns, stored, mixed):  # type: ignore[no-untyped-def]
    """Write Σ_j weights[m, j]·row_j to the float32 rows `mixed`, [M] of them, from weights [M, N] in float64.

    N is a multiple of GROUP. Weights are `dense` if hardly any is zero. Everything is float64 and in a fixed order
    except for the last rounding, so a value's bits depend only on its own column.
    """
    stretch = STRETCH if len(mixed) == 1 else COLUMNS
    totals = np.empty((4, stretch))
    for start in range(0, columns, stretch):
        stop = min(start + stretch, columns)
        m = 0
        while m < len(mixed):
            count = 4 if dense and m + 4 <= len(mixed) else 1
            if count == 4:
                _mix_four(rows, weights[m : m + 4], start, stop, stored, totals)
            else:
                _mix_one(rows, weights[m], start, stop, stored, totals[0, : stop - start])
            for i in range(count):
                _values(mixed[m + i], start, stop, np.float32)[:] = totals[i, : stop - start]
            m += count


# Here sums are in a fixed order too: a value is added to its sum before the next block's, and a sign changes no digit.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _fold_four(rows, signs, sums):  # type: ignore[no-untyped-def]
    """Add values of four rows with their signs to sums; returns their squared lengths."""
    (p0, p1, p2, p3), (f0, f1, f2, f3) = rows, sums
    s0 = s1 = s2 = s3 = 0.0
    for k in range(len(signs)):
        sign = np.float32(signs[k])
        x0, x1, x2, x3 = _number(p0[k]), _number(p1[k]), _number(p2[k]), _number(p3[k])
        f0[k] += sign * np.float32(x0)
        f1[k] += sign * np.float32(x1)
        f2[k] += sign * np.float32(x2)
        f3[k] += sign * np.float32(x3)
        s0 += np.float64(x0) * np.float64(x0)
        s1 += np.float64(x1) * np.float64(x1)
        s2 += np.float64(x2) * np.float64(x2)
        s3 += np.float64(x3) * np.float64(x3)
    return s0, s1, s2, s3


@njit(cache=True, nogil=True)
def fold(rows, columns, stored, first, signs, shifts, sums, squares):  # type: ignore[no-untyped-def]
    """Add the columns of FOLDED rows from `first` on to their projections `sums`, and to their squared lengths."""
    size, column = sums.shape[1], first
    while column < first + columns:
        place = column % size
        target = (place + shifts[column // size]) % size
        count = min(size - place, size - target, first + columns - column)
        start, stop, end = column - first, column - first + count, target + count
        places = sums[0, target:end], sums[1, target:end], sums[2, target:end], sums[3, target:end]
        added = _fold_four(_four(rows, 0, start, stop, stored), signs[column : column + count], places)
        for i in range(FOLDED):
            squares[i] += added[i]
        column += count
