"""What a kernel matrix is like before or after it disappoints: conditioning, pivots, duplicates, and noise.

`explain` says why a matrix has no Cholesky factor, and names a ridge that gives it one: the text of
`NotPositiveDefinite`.

Eigenvalues are estimated by Lanczos' method from a few dozen products with the matrix and with its inverse: from below
for the largest, from above for the smallest, and close where they are apart from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import InputError, ParameterError
from . import blocked
from .checks import check_ridge
from .matrices import algebra_for, check_kernel, load

Array = NDArray[np.float64]
Pairs = NDArray[np.intp]

_STEPS = 40
_NEGLIGIBLE = 1e-10  # far above rounding, which has no direction worth following, and far below what is estimated
_PIVOTS = 5
_NAMED = 5  # rows or pairs that are spelled out
_FLOAT32_NOISE = 1e-6  # kernels computed in float32 are right to 1e-7; a pivot collects several such errors
_FEW_DIGITS = 1e-3  # of the diagonal: a ridge that errors of float32 in many rows together may need
_COLUMNS_AT_ONCE = 256


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
        lines.append(_tell(len(self.duplicates), self.duplicates, "of rows are the same to the kernel"))
        if len(self.conflicts):
            lines.append(_tell(len(self.conflicts), self.conflicts, "of them have different targets"))
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


def _tell(count: int, first: Pairs, what: str) -> str:
    """What so many pairs are, with the first of them."""
    counted = "1 pair" if count == 1 else f"{count:,} pairs"
    named = ", ".join(f"{i} and {j}" for i, j in first[:_NAMED])
    return f"{counted} {what}" + (f" ({named}{', ...' if count > _NAMED else ''})" if named else "")


def explain(on: Algebra, work: Any, diagonal: Any, added: Any, failure: blocked.Failure, block: int) -> str:
    """What is wrong with a matrix, of which `work` still holds the upper triangle, and a ridge that puts it right.

    `added` is what was added to the diagonal; it is the ridge where rows have no weights.
    """
    (row, pivot), own, ridge = failure, on.download(diagonal), float(added.min())
    scale = max(ridge, float(np.abs(own).max())) or 1.0
    # A negative pivot shows errors of about its size in K; those that float32 arithmetic may leave hide duplicates.
    noise = max(blocked.rounding(len(own)) * scale, min(-2 * pivot, _FLOAT32_NOISE * scale))
    cause = ""
    if ridge <= noise:  # a larger ridge keeps even such rows apart, so they are not to blame
        cause = _name_empty(own) or _name_duplicates(on, work, diagonal, noise)
    whole = f"{own[row] + float(added[row]):.6g}"
    cause = cause or f"the rows before row {row} explain all of it, and leave a pivot of {pivot:.2g} of {whole}"
    remedy = _find_ridge(on, work, diagonal, max(10 * noise, 2 * ridge), block)
    doubt = ""
    if remedy > math.sqrt(blocked.EPSILON) * scale:
        few_digits = remedy < _FEW_DIGITS * scale
        reason = "was computed with too few digits" if few_digits else "is not a kernel matrix"
        doubt = f", but so large a ridge means that K {reason}"
    return f"K + ridge I is not positive definite at ridge={ridge:g}: {cause}; ridge={remedy:.0e} would work{doubt}"


def close_pairs(on: Algebra, work: Any, diagonal: Any, noise: float) -> Iterator[Pairs]:
    """Pairs i < j at a squared distance `K[i, i] + K[j, j] - 2 K[i, j]` that is not above the noise, by j, (k, 2)."""
    for columns in spans(len(work), _COLUMNS_AT_ONCE):
        distances = diagonal[: columns.stop, None] + diagonal[None, columns] - 2 * work[: columns.stop, columns]
        close = on.xp.triu(abs(distances) <= noise, 1 - columns.start)
        found = np.argwhere(on.download(close).T)
        yield np.column_stack([found[:, 1], columns.start + found[:, 0]])


def _name_empty(diagonal: Array) -> str:
    """Rows without any feature, such as black images."""
    rows = np.flatnonzero(diagonal == 0)
    if not rows.size:
        return ""
    named = ", ".join(map(str, rows[:_NAMED])) + (", ..." if len(rows) > _NAMED else "")
    return f"K[i, i] = 0, as of a black image, for {len(rows)} of {len(diagonal)} rows ({named}): drop them"


def _name_duplicates(on: Algebra, work: Any, diagonal: Any, noise: float) -> str:
    count, first = 0, np.empty((0, 2), np.intp)
    for pairs in close_pairs(on, work, diagonal, noise):  # there may be too many to keep
        count, first = count + len(pairs), np.concatenate([first, pairs])[:_NAMED]
    return f"to the kernel, {_tell(count, first, 'of rows are duplicates')}: drop one of each" if count else ""


def _find_ridge(on: Algebra, work: Any, diagonal: Any, least: float, block: int) -> float:
    """The first power of ten from `least` on at which the factorisation passes.

    Attempts that fail stop at the row where they do, so the search costs little more than one factorisation.
    """
    remedy = 10.0 ** math.ceil(math.log10(least))
    while math.isfinite(remedy):
        blocked.restore(on, work)
        if blocked.factorise(on, work, diagonal + remedy, block) is None:
            break
        remedy *= 10
    return remedy
