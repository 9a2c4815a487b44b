"""What a kernel matrix is like before or after it disappoints: conditioning, pivots, duplicates, and noise.

Eigenvalues are estimated by Lanczos' method from a few dozen products with the matrix and with its inverse: from below
for the largest, from above for the smallest, and close where they are apart from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from ..algebra import Algebra
from ..devices import Device
from ..errors import InputError, ParameterError
from . import blocked
from .checks import check_ridge
from .failure import close_pairs, explain
from .matrices import algebra_for, check_kernel, load

Array = NDArray[np.float64]
Pairs = NDArray[np.intp]

_STEPS = 40
_NEGLIGIBLE = 1e-10  # far above rounding, which has no direction worth following, and far below what is estimated
_PIVOTS = 5
_NAMED = 5


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The findings about K + ridge I; `str` puts them in words.

    `problem` is empty for a positive definite matrix, and else the text of `NotPositiveDefinite`. `pivots` are the
    smallest, as shares of the diagonal entry: what of a row the rows before it do not explain. `duplicates` are pairs
    of rows that are the same to the kernel, and `conflicts` those of them with different targets.

    `noise` is the relative error of entries from which results suffer: errors of that size, independent of each other,
    make a matrix whose norm, `2 sqrt(n)` times their size, reaches the smallest eigenvalue.
    """

    rows: int
    ridge: float
    problem: str
    largest_eigenvalue: float
    smallest_eigenvalue: float
    pivots: tuple[tuple[int, float], ...]
    duplicates: Pairs
    conflicts: Pairs
    noise: float

    @property
    def condition(self) -> float:
        """The condition number: digits lost in solving are its logarithm."""
        return self.largest_eigenvalue / self.smallest_eigenvalue if self.smallest_eigenvalue > 0 else math.inf

    def __str__(self) -> str:
        lines = [self.problem or f"K + {self.ridge:g} I of {self.rows:,} rows is positive definite"]
        if not self.problem:
            bounds = f"eigenvalues from {self.smallest_eigenvalue:.2g} to {self.largest_eigenvalue:.2g}"
            lines.append(f"condition number {self.condition:.1e}: {bounds}")
            lines.append("smallest pivots: " + ", ".join(f"{share:.1e} (row {row})" for row, share in self.pivots))
            lines.append(f"entries must be right to {self.noise:.0e} of the largest")
        lines.append(_tell(self.duplicates, "of rows are the same to the kernel"))
        if len(self.conflicts):
            lines.append(_tell(self.conflicts, "of them have different targets"))
        return "\n".join(lines)


def diagnose(
    K: Any,
    Y: Any = None,
    ridge: float = 0.0,
    *,
    near: float = 1e-6,
    overwrite: bool = False,
    backend: str | Device = "auto",
) -> Diagnosis:
    """Examine K + ridge I; with Y, labels or targets, also which duplicates have different ones.

    Rows are duplicates at a squared distance of at most `near` of the mean of the diagonal; 1e-6 is what float32
    arithmetic may leave between equal images. Costs a factor and 40 solutions.

    >>> X = np.random.default_rng(0).standard_normal((6, 9))
    >>> X[4] = X[1]
    >>> found = diagnose(X @ X.T, Y=[0, 1, 0, 1, 0, 1], ridge=0.01)
    >>> found.duplicates.tolist(), found.conflicts.tolist(), bool(1e3 < found.condition < 1e5)
    ([[1, 4]], [[1, 4]], True)
    """
    ridge = check_ridge(ridge)
    if not 0 <= near < math.inf:
        raise ParameterError(f"near must be a finite number of at least 0, not {near!r}")
    on = algebra_for(backend, K)
    with on.working():
        matrix = check_kernel(K)
        targets = _check_labels(Y, len(matrix))
        return _diagnose(on, load(on, matrix, 1, overwrite=overwrite), targets, ridge, near)


def _diagnose(on: Algebra, work: Any, targets: NDArray[Any] | None, ridge: float, near: float) -> Diagnosis:
    rows, block = len(work), on.block_rows(len(work))
    diagonal = work.diagonal().copy()
    scale = float(abs(diagonal).max()) or 1.0
    duplicates = np.concatenate(list(close_pairs(on, work, diagonal, near * abs(float(diagonal.mean())))))
    conflicts = duplicates[:0] if targets is None else duplicates[_differ(targets, duplicates)]
    shifted = diagonal + ridge
    largest = _largest_eigenvalue(on, lambda v: blocked.symmetric_product(on, work, shifted, v), rows)
    failure = blocked.factorise(on, work, shifted, block)
    if failure is not None:
        problem = explain(on, work, diagonal, shifted - diagonal, failure, block)
        return Diagnosis(rows, ridge, problem, largest, 0.0, (), duplicates, conflicts, 0.0)
    shares = on.download(work.diagonal() ** 2 / shifted)
    pivots = tuple((int(row), float(shares[row])) for row in np.argsort(shares, kind="stable")[:_PIVOTS])
    smallest = 1 / _largest_eigenvalue(on, lambda v: blocked.solve(on, work, v, block), rows)
    noise = smallest / (2 * math.sqrt(rows) * scale)
    return Diagnosis(rows, ridge, "", largest, smallest, pivots, duplicates, conflicts, noise)


def _largest_eigenvalue(on: Algebra, apply: Callable[[Any], Any], rows: int) -> float:
    """Lanczos' method: the matrix seen on the space of a vector and its images, orthogonalised twice for stability."""
    steps = min(_STEPS, rows)
    basis = on.xp.zeros((rows, steps))
    vector = on.xp.asarray(np.random.default_rng(0).standard_normal((rows, 1)))
    along: list[float] = []
    between: list[float] = []
    for step in range(steps):
        length = float(on.xp.linalg.norm(vector))
        if step:
            if length <= _NEGLIGIBLE * max(map(abs, along)):
                break  # the space is all that the matrix reaches from the vector
            between.append(length)
        basis[:, step : step + 1] = vector / length
        vector = apply(basis[:, step : step + 1].copy())
        along.append(float((basis[:, step : step + 1] * vector).sum()))
        for _ in range(2):
            vector = vector - basis @ (basis.T @ vector)
    return float(eigh_tridiagonal(np.array(along), np.array(between), eigvals_only=True)[-1])


def _check_labels(Y: Any, rows: int) -> NDArray[Any] | None:
    if Y is None:
        return None
    labels = np.asarray(Y)
    if labels.ndim == 0 or len(labels) != rows:
        raise InputError(f"K has {rows} rows, but Y is of shape {labels.shape}; they must match")
    return labels


def _differ(targets: NDArray[Any], pairs: Pairs) -> NDArray[np.bool_]:
    unequal = np.asarray(targets[pairs[:, 0]] != targets[pairs[:, 1]], dtype=np.bool_)
    return np.asarray(unequal.reshape(len(pairs), math.prod(targets.shape[1:])).any(axis=1))


def _tell(pairs: Pairs, what: str) -> str:
    count = "1 pair" if len(pairs) == 1 else f"{len(pairs):,} pairs"
    named = ", ".join(f"{i} and {j}" for i, j in pairs[:_NAMED])
    return f"{count} {what}" + (f" ({named}{', ...' if len(pairs) > _NAMED else ''})" if named else "")
