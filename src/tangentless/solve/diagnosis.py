"""Diagnosis of a kernel matrix: its condition number, pivots, duplicate rows, and how exact its entries must be.

`explain` writes the text of `NotPositiveDefinite`: why a matrix has no Cholesky factor, and a ridge at which it has.

The largest and smallest eigenvalue are estimated by Lanczos' method, from 40 products with the matrix and 40 with its
inverse. The largest is never overestimated, the smallest never underestimated; both are close if the next eigenvalue is
well apart.
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
from ..inputs import to_host
from . import blocked
from .checks import check_ridge
from .matrices import check_kernel, load, receive

Array = NDArray[np.float64]
Pairs = NDArray[np.intp]

_STEPS = 40  # of Lanczos' method
_NEGLIGIBLE = 1e-10  # a next Lanczos vector of this relative length is rounding error: the method ends
_PIVOTS = 5  # smallest pivots that are listed
_NAMED = 5  # rows or pairs that are listed
_FLOAT32_NOISE = 1e-6  # kernels computed in float32 have errors of 1e-7, and a pivot sums several of them
_FEW_DIGITS = 1e-3  # relative to the diagonal: the largest ridge that float32 errors in many rows may make necessary
_COLUMNS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What `diagnose` found about K + ridge I; `str()` gives it as text.

    `problem` is empty for a positive definite matrix, otherwise the text of `NotPositiveDefinite`. `pivots` lists the
    smallest pivots as (row, pivot / diagonal entry): the part of a row that the rows before it do not explain.
    `duplicates`, (k, 2), are pairs of rows at almost no distance, and `conflicts` those of them with different targets.

    `noise` is the size of errors, relative to the largest diagonal entry, at which results suffer. Independent errors
    of size s form a matrix of norm `2 s sqrt(n)`, which then reaches the smallest eigenvalue.
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
        """The condition number; its decimal logarithm is the number of digits that solving loses."""
        return self.largest_eigenvalue / self.smallest_eigenvalue if self.smallest_eigenvalue > 0 else math.inf

    def __str__(self) -> str:
        lines = [self.problem or f"K + {self.ridge:g} I of {self.rows:,} rows is positive definite"]
        if not self.problem:
            bounds = f"eigenvalues from {self.smallest_eigenvalue:.2g} to {self.largest_eigenvalue:.2g}"
            lines.append(f"condition number {self.condition:.1e}: {bounds}")
            lines.append("smallest pivots: " + ", ".join(f"{share:.1e} (row {row})" for row, share in self.pivots))
            lines.append(f"entries must be exact to {self.noise:.0e} of the largest")
        lines.append(_describe_pairs(len(self.duplicates), self.duplicates, "of rows are the same to the kernel"))
        if len(self.conflicts):
            lines.append(_describe_pairs(len(self.conflicts), self.conflicts, "of them have different targets"))
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
    """Examine K + ridge I. With Y, labels or targets, also find duplicates that have different ones.

    Rows i and j are duplicates if their squared distance, `K[i, i] + K[j, j] - 2 K[i, j]`, is at most `near` times the
    mean of the diagonal; float32 arithmetic may leave 1e-6 between equal images. Costs one factorisation, 40 products
    and 40 solutions.

    >>> X = np.random.default_rng(0).standard_normal((6, 9))
    >>> X[4] = X[1]
    >>> found = diagnose(X @ X.T, Y=[0, 1, 0, 1, 0, 1], ridge=0.01)
    >>> found.duplicates.tolist(), found.conflicts.tolist(), bool(1e3 < found.condition < 1e5)
    ([[1, 4]], [[1, 4]], True)
    """
    ridge = check_ridge(ridge)
    if not 0 <= near < math.inf:
        raise ParameterError(f"near must be a finite number of at least 0, not {near!r}")
    on, matrix, _ = receive(K, backend)
    with on.working():
        matrix = check_kernel(matrix)
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
    """Lanczos' method for the largest eigenvalue; each vector is orthogonalised twice, for stability."""
    steps = min(_STEPS, rows)
    basis = on.xp.zeros((rows, steps))
    vector = on.xp.asarray(np.random.default_rng(0).standard_normal((rows, 1)))
    along: list[float] = []
    between: list[float] = []
    for step in range(steps):
        length = float(on.xp.linalg.norm(vector))
        if step:
            if length <= _NEGLIGIBLE * max(map(abs, along)):
                break  # the basis spans an invariant subspace
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
    labels = np.asarray(to_host(Y))
    if labels.ndim == 0 or len(labels) != rows:
        raise InputError(f"K has {rows} rows, but Y is of shape {labels.shape}; they must match")
    return labels


def _differ(targets: NDArray[Any], pairs: Pairs) -> NDArray[np.bool_]:
    unequal = np.asarray(targets[pairs[:, 0]] != targets[pairs[:, 1]], dtype=np.bool_)
    return np.asarray(unequal.reshape(len(pairs), math.prod(targets.shape[1:])).any(axis=1))


def _describe_pairs(count: int, first: Pairs, what: str) -> str:
    """A text such as "2 pairs of rows are duplicates (1 and 6, 2 and 9)"."""
    counted = "1 pair" if count == 1 else f"{count:,} pairs"
    named = ", ".join(f"{i} and {j}" for i, j in first[:_NAMED])
    return f"{counted} {what}" + (f" ({named}{', ...' if count > _NAMED else ''})" if named else "")


def explain(on: Algebra, work: Any, diagonal: Any, added: Any, failure: blocked.Failure, block: int) -> str:
    """The text of `NotPositiveDefinite`: why the factorisation failed, and a ridge at which it succeeds.

    `work` still holds K in its strict upper triangle. `diagonal` is that of K, and `added` what was added to it: the
    ridge, divided by the weights of rows if they have some.
    """
    (row, pivot), own, ridge = failure, on.download(diagonal), float(added.min())
    scale = max(ridge, float(np.abs(own).max())) or 1.0
    # A negative pivot shows errors of about its size in K. Duplicates may differ by as much, up to float32 errors.
    noise = max(blocked.rounding(len(own)) * scale, min(-2 * pivot, _FLOAT32_NOISE * scale))
    cause = ""
    if ridge <= noise:  # with a larger ridge, empty and duplicate rows cannot be the cause
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
    """Yield pairs i < j, (k, 2), whose `K[i, i] + K[j, j] - 2 K[i, j]` is within the noise, in the order of j."""
    for columns in spans(len(work), _COLUMNS_AT_ONCE):
        distances = diagonal[: columns.stop, None] + diagonal[None, columns] - 2 * work[: columns.stop, columns]
        close = on.xp.triu(abs(distances) <= noise, 1 - columns.start)
        found = np.argwhere(on.download(close).T)
        yield np.column_stack([found[:, 1], columns.start + found[:, 0]])


def _name_empty(diagonal: Array) -> str:
    """A text about rows with K[i, i] = 0, such as black images; empty if there are none."""
    rows = np.flatnonzero(diagonal == 0)
    if not rows.size:
        return ""
    named = ", ".join(map(str, rows[:_NAMED])) + (", ..." if len(rows) > _NAMED else "")
    return f"K[i, i] = 0, as of a black image, for {len(rows)} of {len(diagonal)} rows ({named}): drop them"


def _name_duplicates(on: Algebra, work: Any, diagonal: Any, noise: float) -> str:
    """A text about pairs of duplicate rows; empty if there are none."""
    count, first = 0, np.empty((0, 2), np.intp)
    for pairs in close_pairs(on, work, diagonal, noise):  # there may be too many to keep
        count, first = count + len(pairs), np.concatenate([first, pairs])[:_NAMED]
    return (
        f"to the kernel, {_describe_pairs(count, first, 'of rows are duplicates')}: drop one of each" if count else ""
    )


def _find_ridge(on: Algebra, work: Any, diagonal: Any, least: float, block: int) -> float:
    """The smallest power of ten from `least` on at which the factorisation succeeds.

    A failed attempt ends at its first bad row, so the search costs little more than one factorisation.
    """
    remedy = 10.0 ** math.ceil(math.log10(least))
    while math.isfinite(remedy):
        blocked.restore(on, work)
        if blocked.factorise(on, work, diagonal + remedy, block) is None:
            break
        remedy *= 10
    return remedy
