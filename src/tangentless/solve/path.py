"""A whole path of ridges from one eigendecomposition, scored by leave-one-out.

With `K = V E V'`, for every ridge `Q = V (E + ridge)^-1 V'`: coefficients and the diagonal of Q are products with V,
n^2 each. The eigendecomposition itself costs about ten Cholesky factorisations with leave-one-out and the memory of
four matrices, so it pays from a dozen ridges on. It runs where the matrix is, or is to be solved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..devices import Device
from ..errors import NotPositiveDefinite, ParameterError
from .blocked import rounding
from .checks import check_ridge, check_targets, check_weights
from .matrices import algebra_for, check_kernel, load
from .memory import check_fits, memory_needed
from .scores import Criterion, accuracy, squared_error

Array = NDArray[np.float64]

_LARGEST = 32_766  # rows: LAPACK's eigensolver counts its scratch memory, 2 n^2 numbers, in 32 bits
DECADES = np.arange(-40, 13) / 4  # a default path: quarters of decades from 1e-10 to 1e3 of the mean of the diagonal
_MATRICES = 4  # held at once: the eigenvectors, LAPACK's scratch of two, and one for squares


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Leave-one-out scores at each ridge; infinite errors where the matrix is not positive definite.

    `accuracies` are of one-hot targets, and None for others; `conditions` are the condition numbers of K + ridge I.
    """

    ridges: Array
    squared_errors: Array
    accuracies: Array | None
    conditions: Array

    def best(self, criterion: Criterion = "squared error") -> float:
        """The ridge with the smallest error, or the highest accuracy and among those the smallest error."""
        keys = [(0.0, error) for error in self.squared_errors]
        if criterion == "accuracy" and self.accuracies is not None:
            keys = [(-share, error) for share, error in zip(self.accuracies, self.squared_errors, strict=True)]
        return float(self.ridges[min(range(len(keys)), key=keys.__getitem__)])


def ridge_path(K: Any, Y: Any, ridges: Any = None, *, weights: Any = None, backend: str | Device = "auto") -> RidgePath:
    """Score ridges by leave-one-out, by default 0 and quarters of decades from 1e-10 to 1e3 of the mean of diag(K).

    `backend` is as of `solve_ridge`.

    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> path = ridge_path(X @ X.T, X[:, 0] + np.random.default_rng(1).standard_normal(50), [0.1, 1.0, 10.0, 1000.0])
    >>> path.best()
    1.0
    """
    on = algebra_for(backend, K)
    with on.working():
        matrix = check_kernel(K)
        targets, scales = check_targets(Y, len(matrix)), check_weights(weights, len(matrix))
        return score_path(on, matrix, targets, ridges, scales)


def score_path(on: Algebra, matrix: Any, targets: Array, ridges: Any, weights: Array | None) -> RidgePath:
    """As `ridge_path`, of what is checked already."""
    rows = len(matrix)
    _check_size(on, rows)
    work = load(on, matrix, 1, overwrite=False)
    grid = _check_ridges(ridges, float(work.diagonal().mean()))
    roots = np.ones(rows) if weights is None else np.sqrt(weights)
    scales = on.xp.asarray(roots)
    work *= scales[:, None]
    work *= scales
    return _score(on, work, targets, grid, roots, weights)


def _score(on: Algebra, work: Any, targets: Array, ridges: Array, roots: Array, weights: Array | None) -> RidgePath:
    found, vectors = on.eigen(work)
    values, columns = on.download(found), targets.reshape(len(targets), -1)
    projected = on.product(vectors.T, on.xp.asarray(roots[:, None] * columns))
    shifted = values[:, None] + ridges
    usable = shifted[0] > rounding(len(values)) * shifted[-1]
    if not usable.any():
        raise NotPositiveDefinite(
            f"K + ridge I is not positive definite at any ridge of the path: the smallest eigenvalue is "
            f"{values[0]:.2g}, the largest ridge {ridges.max():g}; try larger ones, from {_remedy(values):.0e} on"
        )
    inverses = on.xp.asarray(1 / np.where(usable, shifted, 1.0))
    shrinkages = on.download(on.product(vectors**2, inverses))
    errors, shares = np.full(len(ridges), np.inf), np.zeros(len(ridges))
    for place in np.flatnonzero(usable):
        alpha = on.download(on.product(vectors, projected * inverses[:, place, None]))
        misses = alpha / (roots * shrinkages[:, place])[:, None]
        errors[place] = squared_error(columns, columns - misses, weights)
        if columns.shape[1] > 1:
            shares[place] = accuracy(columns, columns - misses, weights)
    conditions = np.where(usable, shifted[-1] / np.where(usable, shifted[0], 1.0), np.inf)
    return RidgePath(ridges, errors, shares if _is_one_hot(targets) else None, conditions)


def _remedy(values: Array) -> float:
    """A ridge that is above the noise which a smallest eigenvalue below zero shows, and above rounding."""
    return float(max(-2 * values[0], 10 * rounding(len(values)) * abs(values[-1]))) or 1.0


def _is_one_hot(targets: Array) -> bool:
    if targets.ndim != 2 or targets.shape[1] < 2:
        return False
    return bool(((targets == targets.max(axis=1, keepdims=True)).sum(axis=1) == 1).all())


def _check_size(on: Algebra, rows: int) -> None:
    instead = "score a few ridges one at a time with solve_ridge"
    if rows > _LARGEST:
        raise ParameterError(f"a path of ridges takes at most {_LARGEST:,} rows, not {rows:,}; {instead}")
    check_fits(memory_needed(rows, matrices=_MATRICES), on.free_bytes(), f"a path of ridges for {rows:,} rows", instead)


def _check_ridges(ridges: Any, scale: float) -> Array:
    if ridges is None:
        return np.concatenate([[0.0], (scale or 1.0) * 10.0**DECADES])
    grid = np.array([check_ridge(ridge) for ridge in np.atleast_1d(np.asarray(ridges, dtype=object)).ravel()])
    if not grid.size:
        raise ParameterError("a path needs at least one ridge")
    return grid
