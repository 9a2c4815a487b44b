"""Ridge regression on landmarks (Nyström), for those who cannot afford all n^2 entries: n m of them, for m landmarks.

Predictions are combinations of the kernel with the landmarks, `k(x, landmarks) @ beta`, chosen among all such to fit
the n targets: `(C' C + ridge W) beta = C' Y`, for C the kernel of all rows with the landmarks and W that of the
landmarks. With every row a landmark this is exact ridge regression. C is read twice, a panel of rows at a time, so
memory is a few m^2 numbers and a panel, and the cost 2 n m^2. The second time gives leave-one-out predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, solve_triangular

from ..chunks import spans
from ..errors import InputError, NotPositiveDefinite, ParameterError
from .blocked import EPSILON, cholesky, rounding
from .checks import check_ridge, check_targets
from .matrices import as_numbers, check_finite, check_kernel, is_stored
from .path import DECADES
from .scores import Criterion, check_criterion, rank

Array = NDArray[np.float64]

_PANEL = 1024


@dataclass(frozen=True, eq=False)
class NystroemSolution:
    """Coefficients of the landmarks, (m,) or (m, targets): a prediction is `k(x, landmarks) @ coefficients`.

    `leave_one_out` is what the other rows predict for each, with the same landmarks; it has the shape of Y.
    """

    ridge: float
    coefficients: Array
    leave_one_out: Array


def solve_nystroem(
    C: Any, W: Any, Y: Any, ridge: float | str, *, weights: Any = None, criterion: Criterion = "squared error"
) -> NystroemSolution:
    """Ridge regression with the kernel C of n rows with m landmarks, (n, m), and W of the landmarks, (m, m).

    C is an array or a matrix in a store, `gram(kernel, X, landmarks, store=...)`; the landmarks are of your choice, for
    example `X[choose_landmarks(len(X), 1000)]`. The ridge, above 0, means what it means for `solve_ridge`, and "loo"
    picks it by the leave-one-out `criterion`. `weights` of rows are at least 0.

    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> chosen = choose_landmarks(200, 50)
    >>> k = lambda A, B: np.exp(A @ B.T / 8)
    >>> solution = solve_nystroem(k(X, X[chosen]), k(X[chosen], X[chosen]), X[:, 0], ridge=0.01)
    >>> bool(np.abs(k(X, X[chosen]) @ solution.coefficients - X[:, 0]).max() < 0.1)
    True
    """
    fixed = None if isinstance(ridge, str) and ridge == "loo" else check_ridge(ridge)
    if fixed == 0:
        raise ParameterError("landmarks need a ridge above 0; without one use solve_ridge on all rows")
    corner = np.asarray(check_kernel(W), dtype=np.float64)
    columns: Any = C if is_stored(C) else as_numbers(C, "C")
    if len(columns.shape) != 2 or columns.shape[1] != len(corner):
        raise InputError(f"C must be of shape (n, {len(corner)}), as W has landmarks, but its shape is {columns.shape}")
    targets = check_targets(Y, columns.shape[0])
    check_criterion(criterion, targets)
    features = _Features.of(columns, corner, targets, weights)
    grid = float(corner.diagonal().mean() or 1.0) * 10.0**DECADES if fixed is None else np.array([fixed])
    grid = grid[grid > rounding(len(corner)) * features.values[-1]]
    if not grid.size:
        raise NotPositiveDefinite(f"a ridge of {ridge} is lost in rounding beside the kernel; use a larger one")
    predictions = features.leave_one_out(grid).reshape(len(grid), *targets.shape)
    place = min(range(len(grid)), key=lambda at: rank(criterion, targets, predictions[at], features.weights))
    coefficients = features.coefficients(grid[place]).reshape(len(corner), *targets.shape[1:])
    return NystroemSolution(float(grid[place]), coefficients, predictions[place])


@dataclass(frozen=True, eq=False)
class _Features:
    """Features of the rows whose products are those of C, in the basis in which their moments are diagonal."""

    columns: Any
    targets: Array  # (n, columns)
    weights: Array
    factor: Array  # of W
    values: Array  # eigenvalues of the moments, ascending
    vectors: Array
    projected: Array  # moments of features and targets

    @classmethod
    def of(cls, columns: Any, corner: Array, targets: Array, weights: Any) -> _Features:
        rows = len(targets)
        values = targets.reshape(rows, -1)
        scales = np.ones(rows) if weights is None else as_numbers(weights, "weights").astype(np.float64)
        if scales.shape != (rows,) or not (np.isfinite(scales).all() and (scales >= 0).all() and scales.any()):
            raise InputError(f"weights must be {rows} finite numbers of at least 0, and not all 0")
        factor, _ = factor_corner(corner, rows)
        moments, products = np.zeros_like(corner), np.zeros((len(corner), values.shape[1]))
        for part, features in _panels(columns, factor):
            moments += (features * scales[part]) @ features.T
            products += features @ (scales[part, None] * values[part])
        eigenvalues, vectors = eigh(moments, overwrite_a=True, check_finite=False)
        return cls(columns, values, scales, factor, eigenvalues, vectors, vectors.T @ products)

    def leave_one_out(self, ridges: Array) -> Array:
        """Predictions of each row by the others, (ridges, n, columns): a second pass over C."""
        found = np.empty((len(ridges), *self.targets.shape))
        for part, features in _panels(self.columns, self.factor):
            turned = self.vectors.T @ features
            shares = self.weights[part, None] * ((turned**2).T @ (1 / (self.values[:, None] + ridges)))
            for place, ridge in enumerate(ridges):
                fitted = turned.T @ (self.projected / (self.values + ridge)[:, None])
                misses = (self.targets[part] - fitted) / np.maximum(1 - shares[:, place], EPSILON)[:, None]
                found[place, part] = self.targets[part] - misses
        return found

    def coefficients(self, ridge: float) -> Array:
        """Of the landmarks."""
        found = self.vectors @ (self.projected / (self.values + ridge)[:, None])
        return np.asarray(solve_triangular(self.factor, found, lower=True, trans=1))


def _panels(columns: Any, factor: Array) -> Iterator[tuple[slice, Array]]:
    """Features of the rows, (m, rows), a panel at a time."""
    for part in spans(columns.shape[0], columns.manifest.tile if is_stored(columns) else _PANEL):
        panel = np.asarray(columns[part], dtype=np.float64)
        check_finite(panel, "C", part.start)
        yield part, solve_triangular(factor, panel.T, lower=True, check_finite=False)


def choose_landmarks(rows: int, count: int, *, seed: int = 0) -> NDArray[np.intp]:
    """Rows to be landmarks, at random and without repetition, in order.

    >>> choose_landmarks(10, 3)
    array([5, 6, 9])
    """
    if not 1 <= count <= rows:
        raise ParameterError(f"of {rows} rows, from 1 to {rows} can be landmarks, not {count}")
    return np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))


def factor_corner(corner: Array, rows: int) -> tuple[Array, float]:
    """The Cholesky factor of W, with as much on its diagonal as rounding may have taken, and how much that is."""
    shift = rows * EPSILON * float(np.trace(corner))
    factor: Array | None = cholesky(corner + shift * np.eye(len(corner)))
    if factor is None:
        raise NotPositiveDefinite(
            "the kernel W of the landmarks, which is K between landmarks, has no Cholesky factor: drop landmarks that "
            "are duplicates, or compute it with more digits (precision='float64')"
        )
    return factor, shift
