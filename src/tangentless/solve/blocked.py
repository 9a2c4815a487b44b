"""Blocked Cholesky factorisation, in place, and the triangular solves, inverses and products that use the factor.

        | d  K  K |                       | L  K  K |
        | K  d  K |   -- factorise() ->   | L  L  K |      A = K with the diagonal d = L L'
        | K  K  d |                       | L  L  L |

L overwrites the lower triangle with the diagonal; the strict upper triangle still holds K. Each block takes all earlier
blocks into account in one product with a long inner dimension, for which BLAS is fastest. A matrix of one block is one
LAPACK call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..algebra import Algebra, CpuAlgebra
from ..chunks import spans

EPSILON = float(np.finfo(np.float64).eps)
_PANEL = 128  # rows of a step of element-wise work: small beside the matrix, long enough to be fast


class Failure(NamedTuple):
    """The first row whose pivot is not positive beyond rounding errors.

    The pivot of a row is its diagonal entry less what the rows before it explain of it.
    """

    row: int
    pivot: float


def factorise(on: Algebra, matrix: Any, diagonal: Any, block: int) -> Failure | None:
    """Replace the lower triangle by the Cholesky factor of K with this diagonal; returns the failure that ended it."""
    for rows in spans(len(matrix), block):
        corner, before = matrix[rows, rows], matrix[rows, : rows.start]
        set_diagonal(on, corner, diagonal[rows])
        if rows.start == 0:
            order = on.factorise(corner)
        else:
            above = on.xp.triu(corner, 1)
            corner -= on.product(before, before.T)
            order = on.factorise(corner)
            corner[...] = on.xp.tril(corner) + above
        failure = _check_pivots(on, matrix, diagonal, rows, order)
        if failure is not None:
            return failure
        for lower in spans(len(matrix), block, rows.stop):
            below = matrix[lower, rows]
            if rows.start:
                below -= on.product(matrix[lower, : rows.start], before.T)
            below[...] = on.solve(corner, below.T).T
    return None


def cholesky(matrix: Any) -> Any:
    """The lower Cholesky factor of a NumPy matrix, which is overwritten; None if it is not positive definite.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 2.0]]))
    array([[2., 0.],
           [1., 1.]])
    """
    on = CpuAlgebra()
    failure = factorise(on, matrix, matrix.diagonal().copy(), on.block_rows(len(matrix)))
    return np.tril(matrix) if failure is None else None


def forward(on: Algebra, matrix: Any, values: Any, block: int, *, overwrite: bool = False) -> Any:
    """L^-1 @ values, (n, columns); entries above the diagonal of `matrix` are not read."""
    found = values if overwrite else on.xp.empty_like(values)  # same memory order, so that no library transposes it
    for rows in spans(len(matrix), block):
        rest = values[rows]
        if rows.start:
            rest = rest - on.product(matrix[rows, : rows.start], found[: rows.start])
        found[rows] = on.solve(matrix[rows, rows], rest)
    return found


def backward(on: Algebra, matrix: Any, values: Any, block: int, *, overwrite: bool = False) -> Any:
    """L'^-1 @ values, (n, columns)."""
    found = values if overwrite else on.xp.empty_like(values)
    for rows in reversed(list(spans(len(matrix), block))):
        rest = values[rows]
        if rows.stop < len(matrix):
            rest = rest - on.product(matrix[rows.stop :, rows].T, found[rows.stop :])
        found[rows] = on.solve(matrix[rows, rows], rest, transposed=True)
    return found


def solve(on: Algebra, matrix: Any, values: Any, block: int) -> Any:
    """The solution x of L L' x = values, by two triangular systems."""
    return backward(on, matrix, forward(on, matrix, values, block), block, overwrite=True)


def inverse_panels(on: Algebra, matrix: Any) -> Iterator[tuple[slice, Any]]:
    """Yield panels of columns of L^-1, `(columns, values)`; values are of shape `(n - columns.start, width)`.

    Rows above `columns.start` are left out, because they are zero. `backward` with `matrix[start:, start:]` turns the
    values into the same rows and columns of Q = (L L')^-1.
    """
    size = on.panel_rows()
    for columns in spans(len(matrix), size):
        unit = on.xp.zeros((len(matrix) - columns.start, columns.stop - columns.start))
        set_diagonal(on, unit[: unit.shape[1]], 1.0)
        yield columns, forward(on, matrix[columns.start :, columns.start :], unit, size, overwrite=True)


def symmetric_product(on: Algebra, matrix: Any, diagonal: Any, values: Any) -> Any:
    """(K with this diagonal) @ values. K is read from the strict upper triangle, which `factorise` leaves as it is."""
    found = diagonal[:, None] * values
    for rows in spans(len(matrix), _PANEL):
        corner = on.xp.triu(matrix[rows, rows], 1)
        found[rows] += (corner + corner.T) @ values[rows]
        if rows.stop < len(matrix):
            right = matrix[rows, rows.stop :]
            found[rows] += on.product(right, values[rows.stop :])
            found[rows.stop :] += on.product(right.T, values[rows])
    return found


def restore(on: Algebra, matrix: Any) -> None:
    """Undo `factorise` but for the diagonal: copy K from the strict upper triangle to the lower one."""
    for rows in spans(len(matrix), _PANEL):
        corner = on.xp.triu(matrix[rows, rows], 1)
        matrix[rows, rows] = corner + corner.T
        matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T


def rounding(rows: int) -> float:
    """Relative to the diagonal entry, the largest pivot that rounding errors alone may leave of an exact zero.

    Elimination adds one epsilon per row; the entries of K themselves have errors of tens of epsilons, whatever n is.
    """
    return max(rows, 100) * EPSILON


def set_diagonal(on: Algebra, corner: Any, diagonal: Any) -> None:
    """Set the diagonal of a square block."""
    places = on.xp.arange(len(corner))
    corner[places, places] = diagonal


def _check_pivots(on: Algebra, matrix: Any, diagonal: Any, rows: slice, order: int) -> Failure | None:
    """The first failure in a block of rows; `order` is 1 + the row of the block at which LAPACK stopped, or 0."""
    wanted = on.download(diagonal[rows])
    passed = order - 1 if order else len(wanted)
    pivots = np.square(on.download(matrix[rows, rows].diagonal()[:passed]))
    vanished = np.flatnonzero(~(pivots > rounding(len(matrix)) * wanted[:passed]))
    if vanished.size:
        return Failure(rows.start + int(vanished[0]), float(pivots[vanished[0]]))
    if order:
        row = rows.start + passed
        explained = on.download(matrix[row, :row])
        return Failure(row, float(wanted[passed] - explained @ explained))
    return None
