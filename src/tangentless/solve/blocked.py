"""Cholesky factorisation and what follows from it, block by block, in the lower triangle of one matrix.

The matrix starts as K, or K with anything on its diagonal. Its lower triangle becomes the factor L of A = L L', and the
strict upper triangle keeps K. Every sum over blocks is one product with a long inner side, where BLAS is fastest; a
matrix of a single block is a single LAPACK call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..algebra import Algebra, CpuAlgebra
from ..chunks import spans

EPSILON = float(np.finfo(np.float64).eps)
_PANEL = 128  # rows that element-wise work looks at: small beside the matrix, long enough to be fast


class Failure(NamedTuple):
    """The first row whose pivot (what is left of its diagonal entry after the rows before it) is not above rounding."""

    row: int
    pivot: float


def factorise(on: Algebra, matrix: Any, diagonal: Any, block: int) -> Failure | None:
    """Turn the lower triangle into the Cholesky factor of K with this diagonal."""
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
    """The lower Cholesky factor of a NumPy matrix, whose memory it may use, or None where there is none.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 2.0]]))
    array([[2., 0.],
           [1., 1.]])
    """
    on = CpuAlgebra()
    failure = factorise(on, matrix, matrix.diagonal().copy(), on.block_rows(len(matrix)))
    return np.tril(matrix) if failure is None else None


def forward(on: Algebra, matrix: Any, values: Any, block: int, *, overwrite: bool = False) -> Any:
    """L^-1 @ values; what lies above the diagonal of `matrix` is not looked at."""
    found = values if overwrite else on.xp.empty_like(values)  # in the order of the values: no library transposes them
    for rows in spans(len(matrix), block):
        rest = values[rows]
        if rows.start:
            rest = rest - on.product(matrix[rows, : rows.start], found[: rows.start])
        found[rows] = on.solve(matrix[rows, rows], rest)
    return found


def backward(on: Algebra, matrix: Any, values: Any, block: int, *, overwrite: bool = False) -> Any:
    """L'^-1 @ values."""
    found = values if overwrite else on.xp.empty_like(values)
    for rows in reversed(list(spans(len(matrix), block))):
        rest = values[rows]
        if rows.stop < len(matrix):
            rest = rest - on.product(matrix[rows.stop :, rows].T, found[rows.stop :])
        found[rows] = on.solve(matrix[rows, rows], rest, transposed=True)
    return found


def solve(on: Algebra, matrix: Any, values: Any, block: int) -> Any:
    """The solution x of L L' x = values, two triangular systems."""
    return backward(on, matrix, forward(on, matrix, values, block), block, overwrite=True)


def inverse_panels(on: Algebra, matrix: Any) -> Iterator[tuple[slice, Any]]:
    """Columns of L^-1, a panel at a time, from the block on the diagonal down: what lies above it is zero.

    `backward` of the same rows and columns turns a panel into columns of Q = (L L')^-1.
    """
    size = on.panel_rows()
    for columns in spans(len(matrix), size):
        unit = on.xp.zeros((len(matrix) - columns.start, columns.stop - columns.start))
        set_diagonal(on, unit[: unit.shape[1]], 1.0)
        yield columns, forward(on, matrix[columns.start :, columns.start :], unit, size, overwrite=True)


def symmetric_product(on: Algebra, matrix: Any, diagonal: Any, values: Any) -> Any:
    """(K with this diagonal) @ values, from the strict upper triangle, which still holds K."""
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
    """Copy the strict upper triangle, which still holds K, to the lower one."""
    for rows in spans(len(matrix), _PANEL):
        corner = on.xp.triu(matrix[rows, rows], 1)
        matrix[rows, rows] = corner + corner.T
        matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T


def rounding(rows: int) -> float:
    """The relative size of what may be left of a pivot by rounding alone.

    Elimination contributes an epsilon for each row; computing the entries of K contributes tens of them, whatever n.
    """
    return max(rows, 100) * EPSILON


def set_diagonal(on: Algebra, corner: Any, diagonal: Any) -> None:
    """Put values on the diagonal of a square block."""
    places = on.xp.arange(len(corner))
    corner[places, places] = diagonal


def _check_pivots(on: Algebra, matrix: Any, diagonal: Any, rows: slice, order: int) -> Failure | None:
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
