"""Ridge regression on landmarks (Nyström), for those who cannot afford all n^2 entries: n m of them, for m landmarks.

Predictions are combinations of the kernel with the landmarks, `k(x, landmarks) @ beta`, chosen among all such to fit
the n targets: `(C' C + ridge W) beta = C' Y`, for C the kernel of all rows with the landmarks and W that of the
landmarks. With every row a landmark this is exact ridge regression. C is read a panel of rows at a time, so memory
is 2 m^2 numbers and a panel, and the cost n m^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..chunks import spans
from ..errors import InputError, NotPositiveDefinite, ParameterError
from .blocked import EPSILON, cholesky
from .checks import check_ridge, check_targets
from .matrices import as_numbers, check_finite, check_kernel, is_stored

Array = NDArray[np.float64]

_PANEL = 1024


@dataclass(frozen=True, eq=False)
class NystroemSolution:
    """Coefficients of the landmarks, (m,) or (m, targets): a prediction is `k(x, landmarks) @ coefficients`."""

    ridge: float
    coefficients: Array


def solve_nystroem(C: Any, W: Any, Y: Any, ridge: float) -> NystroemSolution:
    """Ridge regression with the kernel C of n rows with m landmarks, (n, m), and W of the landmarks, (m, m).

    C is an array or a matrix in a store, `gram(kernel, X, landmarks, store=...)`; the landmarks are of your choice, for
    example `X[choose_landmarks(len(X), 1000)]`. The ridge, above 0, means what it means for `solve_ridge`.

    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> chosen = choose_landmarks(200, 50)
    >>> k = lambda A, B: np.exp(A @ B.T / 8)
    >>> solution = solve_nystroem(k(X, X[chosen]), k(X[chosen], X[chosen]), X[:, 0], ridge=0.01)
    >>> bool(np.abs(k(X, X[chosen]) @ solution.coefficients - X[:, 0]).max() < 0.1)
    True
    """
    if check_ridge(ridge) == 0:
        raise ParameterError("landmarks need a ridge above 0; without one use solve_ridge on all rows")
    corner = np.asarray(check_kernel(W), dtype=np.float64)
    columns: Any = C if is_stored(C) else as_numbers(C, "C")
    if len(columns.shape) != 2 or columns.shape[1] != len(corner):
        raise InputError(f"C must be of shape (n, {len(corner)}), as W has landmarks, but its shape is {columns.shape}")
    targets = check_targets(Y, columns.shape[0])
    factor, _ = factor_corner(corner, columns.shape[0])
    moments, products = np.zeros_like(corner), np.zeros((len(corner), targets.size // len(targets)))
    for part in spans(len(targets), columns.manifest.tile if is_stored(columns) else _PANEL):
        panel = np.asarray(columns[part], dtype=np.float64)
        check_finite(panel, "C", part.start)
        features = solve_triangular(factor, panel.T, lower=True, check_finite=False)  # their products are those of C
        moments += features @ features.T
        products += features @ targets[part].reshape(features.shape[1], -1)
    moments[np.diag_indices(len(moments))] += ridge
    root = cholesky(moments)
    if root is None:
        raise NotPositiveDefinite(f"a ridge of {ridge:g} is lost in rounding beside the kernel; use a larger one")
    weights = solve_triangular(root, solve_triangular(root, products, lower=True), lower=True, trans=1)
    coefficients = solve_triangular(factor, weights, lower=True, trans=1)
    return NystroemSolution(float(ridge), coefficients.reshape(len(corner), *targets.shape[1:]))


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
