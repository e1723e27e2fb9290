"""Eq. (7) of FedHCA² by SciPy's SLSQP with its defaults, as the released code solves it, and by our solver.

    python benchmarks/slsqp.py

Updates are random with a common part, of 1,000 values and of one length. The gap is the certified bound on how far
the objective is above its minimum, as a share of it; the error is that of the direction.
"""

from time import perf_counter

import numpy as np
from scipy.optimize import minimize

from fedhca2.aggregation.solver import relative_gap, solve

C = 0.4


def by_slsqp(gram: np.ndarray) -> np.ndarray:
    """From equal weights, on the simplex, with SciPy's own tolerance."""
    count = len(gram)
    mean = np.full(count, 1 / count)
    radius = C * np.sqrt(mean @ gram @ mean)
    return minimize(
        lambda w: w @ gram @ mean + radius * np.sqrt(w @ gram @ w + 1e-8),
        mean,
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
    ).x


def main() -> None:
    for count in (6, 24, 100):
        for length in (1.0, 0.15, 0.015):
            rng = np.random.default_rng(0)
            rows = rng.normal(size=(count, 1000)) * rng.uniform(0.5, 1.5, (count, 1)) + 0.2 * rng.normal(size=1000)
            rows *= length / np.linalg.norm(rows, axis=1).mean()
            gram, answers = rows @ rows.T, {}
            for name, work in (("SLSQP", by_slsqp), ("ours", lambda gram: solve(gram, C))):
                began = perf_counter()
                weights = work(gram)
                answers[name] = perf_counter() - began, relative_gap(gram, weights, C), weights @ rows
            right = answers["ours"][2]
            for name, (seconds, gap, direction) in answers.items():
                error = np.linalg.norm(direction - right) / np.linalg.norm(right)
                about = f"{1000 * seconds:8.1f} ms  gap {gap:.0e}  error {error:.1%}"
                print(f"{count:3} updates of length {length:5}  {name:5}  {about}")


if __name__ == "__main__":
    main()
