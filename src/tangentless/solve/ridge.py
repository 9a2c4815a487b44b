"""Exact kernel ridge regression, `(K + ridge I) alpha = Y`, by Cholesky in float64, with closed-form leave-one-out.

Everything happens in one triangle of one matrix: first the factor, then its inverse, which gives the diagonal of
`Q = (K + ridge I)^-1` and hence leave-one-out predictions `Y - alpha / diag(Q)`. The other triangle still holds K,
so a failed factorisation can be explained, and a ridge that works be found, without a second copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from ..errors import InputError, NotPositiveDefinite, ParameterError

Array = NDArray[np.float64]

_EPSILON = float(np.finfo(np.float64).eps)
_ROWS_AT_ONCE = 256  # a panel of the matrix that checks look at: small beside the matrix, long enough to be fast
_NAMED = 5  # rows or pairs that an error spells out
_FLOAT32_NOISE = 1e-6  # kernels computed in float32 are right to 1e-7; a pivot collects several such errors


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """The coefficients alpha, and for every row what the other rows predict; both have the shape of Y."""

    ridge: float
    coefficients: Array
    leave_one_out: Array


def solve_ridge(K: Any, Y: Any, ridge: float = 0.0, *, overwrite: bool = False) -> RidgeSolution:
    """Solve `(K + ridge I) alpha = Y` for one or many columns of Y; a prediction is then `k(x, X) @ alpha`.

    K is symmetric, (n, n). With `overwrite` its memory is used for the factor, and the solution needs next to nothing
    beyond it. A matrix without a Cholesky factor, or with one that rounding alone could have made, raises
    `NotPositiveDefinite`, which names the rows that are duplicates or the pivot that vanished, and a ridge that works.

    >>> solution = solve_ridge([[2.0, 1.0], [1.0, 2.0]], [3.0, 0.0], ridge=1.0)
    >>> solution.coefficients.round(6)
    array([ 1.125, -0.375])
    >>> solution.leave_one_out.round(6)  # without the first row: 1 * 0 / (2 + 1); without the second: 1 * 3 / (2 + 1)
    array([0., 1.])
    """
    ridge = check_ridge(ridge)
    matrix = _check_matrix(K)
    targets = check_targets(Y, len(matrix))
    work = np.require(matrix, np.float64, ["ALIGNED", "WRITEABLE"]) if overwrite else np.array(matrix, dtype=np.float64)
    work = work if work.flags.f_contiguous else work.T  # LAPACK counts down columns; K is symmetric
    diagonal = work.diagonal().copy()
    work, failure = _factorise(work, diagonal + ridge)
    if failure is not None:
        raise NotPositiveDefinite(_explain(work, diagonal, ridge, failure))
    coefficients, _ = lapack.dpotrs(work, targets, lower=1)
    coefficients = coefficients.reshape(targets.shape)
    shrinkage = _inverse_diagonal(work).reshape(-1, *(1,) * (targets.ndim - 1))
    return RidgeSolution(ridge, coefficients, targets - coefficients / shrinkage)


def check_ridge(ridge: Any) -> float:
    """The ridge as a float, if it is a finite number of at least zero.

    >>> check_ridge(-1)
    Traceback (most recent call last):
        ...
    tangentless.errors.ParameterError: ridge must be a finite number of at least 0, not -1
    """
    if not isinstance(ridge, Real) or isinstance(ridge, bool) or not 0 <= float(ridge) < math.inf:
        raise ParameterError(f"ridge must be a finite number of at least 0, not {ridge!r}")
    return float(ridge)


def check_targets(Y: Any, rows: int) -> Array:
    """Y as float64, if it holds finite numbers for this many rows.

    >>> check_targets([1, 2], rows=3)
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: K has 3 rows, but Y has 2; they must match
    """
    targets = _as_numbers(Y, "Y").astype(np.float64)
    if targets.ndim not in (1, 2) or not targets.size:
        raise InputError(f"Y must be of shape (n,) or (n, targets), but its shape is {targets.shape}")
    if len(targets) != rows:
        raise InputError(f"K has {rows} rows, but Y has {len(targets)}; they must match")
    _check_finite(targets, "Y", 0)
    return targets


class _Failure(NamedTuple):
    """The first row whose pivot (what is left of its diagonal entry after the rows before it) is not above rounding."""

    row: int
    pivot: float


def _check_matrix(K: Any) -> NDArray[Any]:
    matrix = _as_numbers(K, "K")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InputError(f"K must be a square matrix, (n, n), but its shape is {matrix.shape}")
    # Half the digits: any order of summation agrees to far more, and what was never symmetric to far less.
    precision = np.finfo(matrix.dtype).eps if matrix.dtype.kind == "f" else _EPSILON
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, len(matrix))
        rows = matrix[start:stop, :stop].astype(np.float64, copy=False)
        columns = matrix[:stop, start:stop].T.astype(np.float64, copy=False)
        _check_finite(rows, "K", start)
        _check_finite(columns, "K", start)
        allowed = math.sqrt(precision) * max(np.abs(rows).max(), np.abs(columns).max())
        if (difference := np.abs(rows - columns)).max() > allowed:
            i, j = np.unravel_index(difference.argmax(), difference.shape)
            one, other = f"K[{start + i}, {j}] = {rows[i, j]:.6g}", f"K[{j}, {start + i}] = {columns[i, j]:.6g}"
            raise InputError(f"K is not symmetric: {one}, but {other}")
    return matrix


def _as_numbers(values: Any, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold real numbers, but its dtype is {array.dtype}")
    return array


def _check_finite(values: NDArray[Any], name: str, start: int) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = start + int(np.argwhere(~finite)[0, 0])
        raise InputError(f"{name} holds NaN or infinite values, first in row {row}")


def _factorise(work: Array, diagonal: Array) -> tuple[Array, _Failure | None]:
    """The factor in the lower triangle, the diagonal included; the rest of the matrix is left as it is."""
    np.fill_diagonal(work, diagonal)
    work, order = lapack.dpotrf(work, lower=1, clean=0, overwrite_a=1)
    passed = order - 1 if order else len(work)
    pivots = np.square(work.diagonal()[:passed])
    vanished = np.flatnonzero(~(pivots > _rounding(len(work)) * diagonal[:passed]))
    if vanished.size:
        return work, _Failure(int(vanished[0]), float(pivots[vanished[0]]))
    if order:
        row = work[passed, :passed]
        return work, _Failure(passed, float(diagonal[passed] - row @ row))
    return work, None


def _rounding(rows: int) -> float:
    """The relative size of what may be left of a pivot by rounding alone.

    Elimination contributes an epsilon for each row; computing the entries of K contributes tens of them, whatever n.
    """
    return max(rows, 100) * _EPSILON


def _inverse_diagonal(factor: Array) -> Array:
    """The diagonal of the inverse of L L', the squared norms of the columns of L^-1; overwrites L."""
    inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
    return np.array([column[i:] @ column[i:] for i, column in enumerate(inverse.T)])


def _explain(work: Array, diagonal: Array, ridge: float, failure: _Failure) -> str:
    """What is wrong with a matrix, of which `work` still holds one triangle, and a ridge that puts it right."""
    scale = max(ridge, float(np.abs(diagonal).max())) or 1.0
    # A negative pivot shows errors of about its size in K; those that float32 arithmetic may leave hide duplicates.
    noise = max(_rounding(len(work)) * scale, min(-2 * failure.pivot, _FLOAT32_NOISE * scale))
    cause = ""
    if ridge <= noise:  # a larger ridge keeps even such rows apart, so they are not to blame
        cause = _name_empty(diagonal) or _name_duplicates(work, diagonal, noise)
    cause = cause or _name_pivot(diagonal + ridge, failure)
    remedy = _find_ridge(work, diagonal, max(10 * noise, 2 * ridge))
    doubt = ""
    if remedy > math.sqrt(_EPSILON) * scale:
        doubt = ", but so large a ridge means that K is not a kernel matrix, or was computed with too few digits"
    return f"K + ridge I is not positive definite at ridge={ridge:g}: {cause}; ridge={remedy:.0e} would work{doubt}"


def _name_empty(diagonal: Array) -> str:
    """Rows without any feature, such as black images."""
    rows = np.flatnonzero(diagonal == 0)
    if not rows.size:
        return ""
    named = ", ".join(map(str, rows[:_NAMED])) + (", ..." if len(rows) > _NAMED else "")
    return f"K[i, i] = 0, as of a black image, for {len(rows)} of {len(diagonal)} rows ({named}): drop them"


def _name_duplicates(work: Array, diagonal: Array, noise: float) -> str:
    """Pairs of rows at a squared distance `K[i, i] + K[j, j] - 2 K[i, j]` that is not above the noise."""
    count = 0
    named: list[str] = []
    for j in range(1, len(work)):
        distances = diagonal[:j] + diagonal[j] - 2 * work[:j, j]
        close = np.flatnonzero(np.abs(distances) <= noise)
        count += len(close)
        named += [f"{i} and {j}" for i in close[: _NAMED - len(named)]]
    if not count:
        return ""
    pairs = "1 pair" if count == 1 else f"{count} pairs"
    rest = ", ..." if count > len(named) else ""
    return f"to the kernel, {pairs} of rows are duplicates ({', '.join(named)}{rest}): drop one of each"


def _name_pivot(diagonal: Array, failure: _Failure) -> str:
    row, pivot = failure
    return f"the rows before row {row} explain all of it, and leave a pivot of {pivot:.2g} of {diagonal[row]:.6g}"


def _find_ridge(work: Array, diagonal: Array, least: float) -> float:
    """The first power of ten from `least` on at which the factorisation passes.

    Attempts that fail stop at the row where they do, so the search costs little more than one factorisation.
    """
    remedy = 10.0 ** math.ceil(math.log10(least))
    while math.isfinite(remedy):
        for i in range(len(work)):
            work[i:, i] = work[i, i:]
        work, failure = _factorise(work, diagonal + remedy)
        if failure is None:
            break
        remedy *= 10
    return remedy
