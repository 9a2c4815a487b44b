"""Ridge regression on m landmarks (Nyström), from n m entries of the kernel instead of n^2.

Predictions are `k(x, landmarks) @ beta`, where beta fits the n targets: `(C' C + ridge W) beta = C' Y`. C is the kernel
of all rows with the landmarks, W that of the landmarks. If every row is a landmark, this is exact ridge regression.

With W = L L', it is ridge regression on the features `C L'^-1`, which `primal.py` solves. C is read twice, a panel of
rows at a time: once for the solution, once for leave-one-out predictions. Memory is a few m^2 numbers and a panel, and
the cost 2 n m^2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..algebra import CpuAlgebra
from ..chunks import spans
from ..errors import InputError, NotPositiveDefinite
from .blocked import EPSILON, cholesky
from .checks import check_targets
from .matrices import as_numbers, check_finite, check_kernel, is_stored
from .pivoted import check_count
from .primal import PANEL, PrimalSolution, solve_panels
from .scores import Criterion

Array = NDArray[np.float64]


class NystroemSolution(PrimalSolution):
    """Coefficients of the landmarks, (m,) or (m, targets): a prediction is `k(x, landmarks) @ coefficients`.

    `leave_one_out` is what the other rows predict for each row, with the same landmarks; it has the shape of Y.
    """


def solve_nystroem(
    C: Any, W: Any, Y: Any, ridge: float | str, *, weights: Any = None, criterion: Criterion = "squared error"
) -> NystroemSolution:
    """Ridge regression with the kernel C of n rows with m landmarks, (n, m), and W of the landmarks, (m, m).

    C is an array or a matrix in a store, `gram(kernel, X, landmarks, store=...)`. Any rows can be landmarks, such as
    `X[choose_landmarks(len(X), 1000)]`. The ridge is above 0 and means the same as for `solve_ridge`; "loo" picks it by
    the leave-one-out `criterion`. `weights` of rows are at least 0.

    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> chosen = choose_landmarks(200, 50)
    >>> k = lambda A, B: np.exp(A @ B.T / 8)
    >>> solution = solve_nystroem(k(X, X[chosen]), k(X[chosen], X[chosen]), X[:, 0], ridge=0.01)
    >>> bool(np.abs(k(X, X[chosen]) @ solution.coefficients - X[:, 0]).max() < 0.1)
    True
    """
    corner = np.asarray(check_kernel(W), dtype=np.float64)
    columns: Any = C if is_stored(C) else as_numbers(C, "C")
    if len(columns.shape) != 2 or columns.shape[1] != len(corner):
        raise InputError(
            f"C must be of shape (n, {len(corner)}), one column per row of W, but its shape is {columns.shape}"
        )
    targets = check_targets(Y, columns.shape[0])
    factor, _ = factor_corner(corner, columns.shape[0])
    scale, panels = float(corner.diagonal().mean()), functools.partial(_features, columns, factor)
    # The features of the landmarks are L: C holds the inner products of the features of rows and landmarks.
    found = solve_panels(CpuAlgebra(), panels, targets, ridge, weights=weights, criterion=criterion, scale=scale)
    coefficients = np.asarray(solve_triangular(factor, found.coefficients, lower=True, trans=1))
    return NystroemSolution(found.ridge, coefficients, found.leave_one_out)


def _features(columns: Any, factor: Array) -> Iterator[Array]:
    """The features `C L'^-1` of the rows, a panel at a time."""
    for part in spans(columns.shape[0], columns.manifest.tile if is_stored(columns) else PANEL):
        panel = np.asarray(columns[part], dtype=np.float64)
        check_finite(panel, "C", part.start)
        yield solve_triangular(factor, panel.T, lower=True, check_finite=False).T


def choose_landmarks(rows: int, count: int, *, seed: int = 0) -> NDArray[np.intp]:
    """Random numbers of rows for landmarks, ascending and without repetition.

    >>> choose_landmarks(10, 3)
    array([5, 6, 9])
    """
    check_count(count, rows, " as landmarks")
    return np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))


def factor_corner(corner: Array, rows: int) -> tuple[Array, float]:
    """The Cholesky factor of W + shift I, and the shift: as much as rounding errors may make W indefinite."""
    shift = rows * EPSILON * float(np.trace(corner))
    factor: Array | None = cholesky(corner + shift * np.eye(len(corner)))
    if factor is None:
        raise NotPositiveDefinite(
            "the kernel W of the landmarks, which is K between landmarks, has no Cholesky factor: drop landmarks that "
            "are duplicates, or compute it with more digits (precision='float64')"
        )
    return factor, shift
