r"""Eq. (7) of FedHCA² on a Gram matrix, by an active-set method that ends with a certificate.

$$\min_{w \in \Delta_n} F(w) = w^\top G b + \kappa \sqrt{w^\top G w}, \quad b = 1/n, \ \kappa = c \sqrt{b^\top G b}$$

F is convex and homogeneous, so $F(w) = w^\top \nabla F(w)$, and min F is the maximum over the ball of Eq. (6) of
$\min_i \langle \Delta_i, d \rangle$. The d for w has $\langle \Delta_i, d \rangle = \nabla F(w)_i$,
hence the certificate $F(w) - \min_i \nabla F(w)_i \ge F(w) - F^*$.

On the affine hull of a subset the minimiser is known: with $w_0$ the weights of its least-norm point $U_0$ and $w_1$
those of minus the projection of Δ̄ on its directions, $U_1$, it is $w_0 + \tau w_1$ with
$\tau = \lVert U_0 \rVert / \sqrt{\kappa^2 - \lVert U_1 \rVert^2}$; if the root is not real, F falls along $w_1$
without bound.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # imports its parts when they are used
from numpy.typing import NDArray

Array = NDArray[np.float64]

TOLERANCE = 1e-12  # of the gap, relative
PIVOT = 1e-13  # smallest squared distance of an update from the affine hull of the others that is not treated as noise


def relative_gap(gram: Array, w: Array, c: float) -> float:
    """Certified bound on (F(w) − min F) / |F(w)|."""
    value, gradient = _Problem(gram, c).value_and_gradient(w)
    excess = value - float(gradient.min())
    return excess / abs(value) if value else (np.inf if excess > 0 else 0.0)


def solve(gram: Array, c: float) -> Array:
    """Weights on the simplex that minimise F, from the Gram matrix [N, N] of the updates.

    >>> solve(np.array([[1.0, 0.0], [0.0, 9.0]]), c=0.4).round(3)
    array([1., 0.])
    """
    scale = float(gram.diagonal().max())
    if len(gram) == 1 or scale <= 0:
        return np.full(len(gram), 1 / len(gram))
    problem = _Problem(gram / scale, c)
    if problem.kappa == 0:
        return problem.best_vertex()
    start = problem.by_blocks()
    return problem.one_by_one(start if start is not None else problem.best_vertex())


@dataclass
class _Hull:
    """Some of the updates, and the Cholesky factor of their Gram matrix plus a constant (definite if independent)."""

    index: list[int]
    factor: Array

    def extended(self, j: int, k: Array) -> "_Hull | None":
        """This hull with update j, or None if j already lies in it."""
        column, _ = scipy.linalg.lapack.dtrtrs(self.factor, k[self.index, j], lower=1)
        pivot = k[j, j] - column @ column
        if pivot <= PIVOT * k[j, j]:
            return None
        size = len(self.index)
        factor = np.zeros((size + 1, size + 1), order="F")
        factor[:size, :size] = self.factor
        factor[size, :size] = column
        factor[size, size] = np.sqrt(pivot)
        return _Hull([*self.index, j], factor)


class _Problem:
    """The data of one problem: G, h = G b, κ."""

    def __init__(self, gram: Array, c: float) -> None:
        self.gram = gram
        self.h: Array = gram.mean(axis=1)
        self.kappa = c * max(float(self.h.mean()), 0.0) ** 0.5
        self.shifted: Array = gram + max(float(gram.diagonal().min()), 1e-12)

    def value_and_gradient(self, w: Array) -> tuple[float, Array]:
        """F and ∇F at w."""
        product = self.gram @ w
        norm = max(float(w @ product), 0.0) ** 0.5
        gradient = self.h + (self.kappa / norm) * product if norm else self.h
        return float(w @ gradient), gradient

    def best_vertex(self) -> Array:
        """The single update with the least F."""
        norms = np.sqrt(np.maximum(self.gram.diagonal(), 0.0))
        w = np.zeros(len(self.h))
        w[np.argmin(self.h + self.kappa * norms)] = 1
        return w

    def hull(self, index: list[int]) -> _Hull | None:
        """The hull of these updates, or None if they are not affinely independent."""
        try:
            factor = np.linalg.cholesky(self.shifted[np.ix_(index, index)])
        except np.linalg.LinAlgError:
            return None
        enough = PIVOT * self.shifted.diagonal()[index]
        return _Hull(index, np.asfortranarray(factor)) if (factor.diagonal() ** 2 > enough).all() else None

    def minimum(self, hull: _Hull) -> tuple[Array, bool]:
        """Weights of the affine hull's minimiser and True, or a direction in which F falls without bound and False."""
        if len(hull.index) == 1:
            return np.ones(1), True
        h = self.h[hull.index]
        both, _ = scipy.linalg.lapack.dpotrs(hull.factor, np.column_stack([np.ones_like(h), h]), lower=1)
        p, q = both.T
        w0 = p / p.sum()
        w1 = q.sum() * w0 - q
        room = self.kappa**2 + w1 @ h  # w1ᵀ G w1 = −w1ᵀ h
        if room <= 0:
            return w1, False
        least = w0 @ (self.gram[np.ix_(hull.index, hull.index)] @ w0)
        return w0 + np.sqrt(max(least, 0.0) / room) * w1, True

    def by_blocks(self) -> Array | None:
        """Fast, without a guarantee: drop all negative weights, or add all updates that would lower F, at once."""
        index = list(range(len(self.h)))
        best = None
        for _ in range(30):
            hull = self.hull(index) if index else None
            if hull is None:
                break
            target, bounded = self.minimum(hull)
            if not bounded or (target < 0).any():
                index = [i for i, weight in zip(index, target, strict=True) if weight > 0]
                continue
            best = np.zeros(len(self.h))
            best[index] = target
            value, gradient = self.value_and_gradient(best)
            lower = np.flatnonzero(gradient < value - TOLERANCE * abs(value))
            if len(lower) == 0:
                break
            index = sorted({*index, *lower.tolist()})
        return best

    def one_by_one(self, w: Array) -> Array:
        """From w, add the steepest update and walk to the minimum of the hull, as long as F falls."""
        hull = self.hull(np.flatnonzero(w).tolist())
        best, least = w, np.inf
        while hull is not None:
            w, hull = self.descend(w, hull)
            value, gradient = self.value_and_gradient(w)
            if value >= least:
                break
            best, least = w, value
            steepest = int(gradient.argmin())
            if value - gradient[steepest] <= TOLERANCE * abs(value) or steepest in hull.index:
                break
            hull = hull.extended(steepest, self.shifted)
        return best

    def descend(self, w: Array, hull: _Hull) -> tuple[Array, _Hull]:
        """The minimum over the convex hull of a shrinking subset: a weight that would become negative is dropped."""
        while True:
            target, bounded = self.minimum(hull)
            inside = w[hull.index]
            direction = target - inside if bounded else target
            w = w.copy()
            if bounded and (target >= 0).all():
                w[hull.index] = target
                return w, hull
            falling = np.flatnonzero(direction < 0)
            if len(falling) == 0:  # a direction that is only rounding
                return w, hull
            ratios = inside[falling] / -direction[falling]
            first = int(falling[ratios.argmin()])
            w[hull.index] = np.maximum(inside + ratios.min() * direction, 0.0)
            w[hull.index[first]] = 0
            smaller = self.hull([j for k, j in enumerate(hull.index) if k != first])
            if smaller is None:
                return w, hull
            hull = smaller
