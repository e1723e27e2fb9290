r"""Weights w [N] of a common update $\sum_i w_i \Delta_i$, from the Gram matrix G [N, N] of the updates.

They do not depend on the updates' scale, nor on their order (with more than seven updates `pcgrad` does, slightly).
Solutions are exact to `TOLERANCE`, relative to the lengths of the updates. At least one update must not be 0.
"""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from math import ceil
from typing import Literal

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.common_update import CommonUpdate

Array = NDArray[np.float64]

TOLERANCE = 1e-9
RANK = 1e-12  # relative to the largest eigenvalue; smaller ones count as 0


def mean(gram: Array) -> Array:
    """Equal weights.

    >>> mean(np.eye(2))
    array([0.5, 0.5])
    """
    return np.full(len(gram), 1 / len(gram))


def mgda(gram: Array) -> Array:
    r"""The shortest convex combination (Désidéri 2012): $\min_{w \in \Delta_N} w^\top G w$.

    With $G = A^\top A$ it is proportional to the $x \ge 0$ that minimises $\lVert Ax \rVert^2 + (1^\top x - 1)^2$.

    >>> mgda(np.diag([1.0, 4.0])).round(3)
    array([0.8, 0.2])
    """
    lengths, cosines = _unit(gram)
    root = _root(cosines) * (lengths / lengths.max())
    shortest: Array = scipy.optimize.nnls(np.vstack([root, np.ones(len(gram))]), np.append(np.zeros(len(root)), 1.0))[0]
    return _shares(shortest)


def pcgrad(gram: Array) -> Array:
    r"""The mean of all updates after gradient surgery (Yu et al. 2020), averaged over the orders of surgery.

    Every update loses its component along each other update that it conflicts with, one after the other:
    $v \leftarrow v - \min(\langle v, \Delta_j \rangle, 0)\, \Delta_j / \lVert \Delta_j \rVert^2$. The paper draws an
    order at random and returns the sum. This averages over all orders of up to seven updates; for more, over a fixed
    sample of orders.

    >>> pcgrad(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    array([0.75, 0.75])
    """
    n = len(gram)
    total = np.zeros(n)
    if n <= 7:
        orders = np.array(list(permutations(range(n))))
    else:  # which take 250,000 inner products
        dice = np.random.default_rng(0)
        orders = np.array([dice.permutation(n) for _ in range(max(4, 250_000 // n**2))])
    for some in np.array_split(orders, ceil(len(orders) * n**2 / 250_000)):
        each, squares = np.arange(len(some)), gram.diagonal()
        weights = np.tile(np.eye(n), (len(some), 1, 1))
        products = np.tile(gram, (len(some), 1, 1))
        for j in some.T:
            against = np.where(squares[j] > 0, squares[j], np.inf)[:, None]
            removed = -np.minimum(products[each, :, j], 0) / against
            weights[each, :, j] += removed
            products += removed[:, :, None] * gram[j][:, None]
        total += weights.sum(axis=(0, 1))
    return total / (n * len(orders))


def upgrad(gram: Array) -> Array:
    r"""The mean of all updates, each first projected onto the set without conflicts (Quinton and Rey 2024).

    >>> upgrad(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    array([0.75, 0.75])
    """
    total: Array = np.array([_project(gram, each) for each in np.eye(len(gram)) / len(gram)]).sum(axis=0)
    return total


def dualproj(gram: Array) -> Array:
    """The mean update, projected onto the set without conflicts (Lopez-Paz and Ranzato 2017, Eq. 11).

    >>> dualproj(np.array([[1.0, -1.0], [-1.0, 4.0]]))
    array([0.5, 0.5])
    """
    return _project(gram, mean(gram))


def imtl_g(gram: Array) -> Array:
    r"""The update with the same component along all (Liu et al. 2021): $w \propto G^+ d$ with lengths d, $\sum w = 1$.

    Weights can be negative. If they sum to 0 there is no such update, and all weights are 0.

    >>> imtl_g(np.diag([1.0, 4.0])).round(3)
    array([0.667, 0.333])
    """
    lengths = np.sqrt(gram.diagonal())
    weights = np.linalg.pinv(gram, RANK, hermitian=True) @ lengths
    total = weights.sum()
    return weights / total if abs(total) > TOLERANCE * np.abs(weights).sum() else np.zeros(len(gram))


def aligned_mtl(gram: Array) -> Array:
    r"""The mean after all principal components are shortened to the shortest (Senushkin et al. 2023, Algorithm 1).

    $w = \sqrt{\lambda_{\min}}\, V \Lambda^{-1/2} V^\top b$ with $b = 1/N$, over the eigenvalues that are not 0.

    >>> aligned_mtl(np.diag([1.0, 4.0]))
    array([0.5 , 0.25])
    """
    values, vectors = np.linalg.eigh(gram)
    some = values > RANK * values[-1]
    values, vectors = values[some], vectors[:, some]
    weights: Array = vectors @ (np.sqrt(values[0] / values) * (mean(gram) @ vectors))
    return weights


def fairgrad(gram: Array, fairness: float) -> Array:
    r"""Fair shares (Ban and Ji 2024, Eq. 4): $(Gw)_i = w_i^{-1/\alpha}$, then $\sum w = 1$.

    α = 1 is the bargaining solution (Nash-MTL, Navon et al. 2022).

    Zero updates get weight 0. If 0 is in the convex hull of the updates there is no solution; the weights tend to those
    of `mgda`, whose update is 0.

    >>> fairgrad(np.diag([1.0, 4.0]), fairness=1).round(3)
    array([0.667, 0.333])
    """
    moved = np.flatnonzero(gram.diagonal() > 0)
    if len(moved) < len(gram):
        weights = np.zeros(len(gram))
        weights[moved] = fairgrad(gram[np.ix_(moved, moved)], fairness)
        return weights
    shortest = mgda(gram)
    if shortest @ gram @ shortest <= RANK * gram.diagonal().max():
        return shortest
    lengths, cosines = _unit(gram)
    short, power = lengths / lengths.max(), 1 / fairness
    now = max(power, 1.0)  # Newton's method is slow for a small power, so it starts at 1 and decreases step by step
    x = short ** ((now - 1) / (now + 1))  # the solution for orthogonal updates
    while True:
        x = _newton(cosines, short ** (now - 1), now, x)
        if now == power:
            return _shares(x / lengths)
        now = max(power, now / 1.5)


def _newton(gram: Array, target: Array, power: float, x: Array) -> Array:
    r"""Solve $(Gx)_i = t_i x_i^{-p}$ for x > 0, the minimum of a convex function, by Newton's method."""

    def slope(x: Array) -> Array:
        ahead: Array = gram @ x - target * x**-power
        return ahead

    for _ in range(100):  # typically ten
        share = target * x**-power
        if (np.abs(slope(x)) <= 0.01 * TOLERANCE * share).all():
            break
        step = -np.linalg.solve(gram + np.diag(power * share / x), slope(x))
        size = min(1.0, 0.9 / max(float((-step / x).max()), 0.9))  # x stays positive
        while slope(x + size * step) @ step > 0 and size > TOLERANCE:  # beyond the minimum along this line
            size /= 2
        x = x + size * step
    return x


def _project(gram: Array, u: Array) -> Array:
    r"""Weights v of the projection of $\sum u_i \Delta_i$ onto the set without conflicts.

    They minimise $v^\top G v$ with $v \ge u$ (Quinton and Rey 2024, Proposition 1). Block pivoting is fast but may not
    converge; the fallback is an active-set method, which does.
    """
    lengths, cosines = _unit(gram)
    units = np.where(lengths > 0, lengths, 1)
    weights = _by_pivots(cosines, units * u)
    if weights is None:
        root = _root(cosines)
        weights = units * u + scipy.optimize.nnls(root, -root @ (units * u))[0]
    return weights / units


def _by_pivots(gram: Array, low: Array) -> Array | None:
    """Minimise vᵀGv with v ≥ low: for each entry v = low or Gv = 0. All violations are swapped at once."""
    enough = 0.01 * TOLERANCE * float(np.linalg.norm(low))
    slope = gram @ low
    free = slope < -enough
    for _ in range(50):  # typically five
        v = low.copy()
        try:
            v[free] -= np.linalg.solve(gram[np.ix_(free, free)], slope[free])
        except np.linalg.LinAlgError:
            return None
        along = gram @ v
        wrong = np.where(free, v < low - enough, along < -enough)
        if not wrong.any():
            return v if np.abs(along[free]).max(initial=0) <= enough else None
        free ^= wrong
    return None


def _shares(weights: Array) -> Array:
    shares: Array = weights / weights.sum()
    return shares


def _unit(gram: Array) -> tuple[Array, Array]:
    """Lengths of the updates, and the Gram matrix of the updates scaled to length 1; zero updates stay zero."""
    lengths = np.sqrt(gram.diagonal())
    over = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return lengths, gram * over[:, None] * over


def _root(gram: Array) -> Array:
    """A with AᵀA = G."""
    values, vectors = np.linalg.eigh(gram)
    root: Array = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    return root


WEIGHTINGS: dict[str, Callable[[Array], Array]] = {
    each.__name__: each for each in (mean, mgda, pcgrad, upgrad, dualproj, imtl_g, aligned_mtl)
}
WEIGHTINGS["nash_mtl"] = partial(fairgrad, fairness=1)


class Weighted(CommonUpdate):
    """One update for all, by a weighting from multi-task learning."""

    kind: Literal["weighted"] = "weighted"
    weighting: Literal[
        "mean", "mgda", "pcgrad", "upgrad", "dualproj", "imtl_g", "aligned_mtl", "nash_mtl", "fairgrad"
    ] = Field("mean", description="how inner products of updates become weights")
    unit: bool = Field(False, description="divide every update by its length first")
    fairness: float = Field(2.0, gt=0, le=10, description="α of fairgrad: 1 is nash_mtl, the limit is mgda")

    @property
    def reveals_rows(self) -> str | None:
        """Some weights can be negative, or nearly 0 for all rows but one."""
        if self.weighting in ("mean", "pcgrad", "upgrad", "dualproj"):  # no weight is below 1/N
            return super().reveals_rows
        return "which can give one row nearly all the weight, and the sum then reveals it"

    def weights(self, gram: Tensor) -> Tensor:
        """Apply the chosen function to the Gram matrix, scaled; equal weights if all updates are 0."""
        squares = gram.double().diagonal().clamp(min=0)
        if not squares.any():
            return torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
        lengths = torch.where(squares > 0, squares, 1).sqrt() if self.unit else squares.max().sqrt().expand(len(gram))
        scaled = (gram.double() / lengths[:, None] / lengths).numpy()
        name = self.weighting
        weights = fairgrad(scaled, self.fairness) if name == "fairgrad" else WEIGHTINGS[name](scaled)
        return torch.from_numpy(weights) / (lengths if self.unit else 1)
