"""Cholesky factorisation and what follows from it, block by block, in the lower triangle of one matrix.

The matrix starts as K, or K with anything on its diagonal. Its lower triangle becomes the factor L of A = L L', then
the inverse M of L; the inverse of A is Q = M' M. The strict upper triangle keeps K throughout. Every sum over blocks is
one product with a long inner side, where BLAS is fastest; a matrix of a single block is a single LAPACK call.
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


def solve(on: Algebra, matrix: Any, values: Any, block: int) -> Any:
    """The solution x of L L' x = values, two triangular systems."""
    found = values.copy()
    rows_of = list(spans(len(matrix), block))
    for rows in rows_of:
        if rows.start:
            found[rows] -= on.product(matrix[rows, : rows.start], found[: rows.start])
        found[rows] = on.solve(matrix[rows, rows], found[rows])
    for rows in reversed(rows_of):
        if rows.stop < len(matrix):
            found[rows] -= on.product(matrix[rows.stop :, rows].T, found[rows.stop :])
        found[rows] = on.solve(matrix[rows, rows], found[rows], transposed=True)
    return found


def invert(on: Algebra, matrix: Any, block: int) -> Any:
    """Turn the factor L into its inverse M; returns the diagonal of Q = M' M."""
    for rows in spans(len(matrix), block):
        corner = matrix[rows, rows]
        products = [
            on.product(
                matrix[rows, columns.start : rows.start],
                _lower(on, matrix[columns.start : rows.start, columns], columns),
            )
            for columns in spans(rows.start, block)
        ]
        for columns, product in zip(spans(rows.start, block), products, strict=True):
            matrix[rows, columns] = -on.solve(corner, product)
        on.invert(corner)
    return _column_squares(on, matrix)


def apply_inverse(on: Algebra, inverse: Any, values: Any) -> Any:
    """Q @ values for Q = M' M."""
    half, found = on.xp.empty_like(values), on.xp.empty_like(values)
    for rows in spans(len(inverse), _PANEL):
        half[rows] = on.xp.tril(inverse[rows, rows]) @ values[rows]
        if rows.start:
            half[rows] += on.product(inverse[rows, : rows.start], values[: rows.start])
    for rows in spans(len(inverse), _PANEL):
        found[rows] = on.xp.tril(inverse[rows, rows]).T @ half[rows]
        if rows.stop < len(inverse):
            found[rows] += on.product(inverse[rows.stop :, rows].T, half[rows.stop :])
    return found


def inverse_panels(on: Algebra, inverse: Any, size: int = 1024) -> Iterator[tuple[slice, Any]]:
    """Rows of Q = M' M, a panel at a time, up to and with the block on the diagonal: the rest follows by symmetry."""
    for rows in spans(len(inverse), size):
        first = inverse[rows, : rows.stop].copy()
        first[:, rows] = on.xp.tril(first[:, rows])
        panel = on.product(first[:, rows].T, first)
        for below in spans(len(inverse), size, rows.stop):
            panel += on.product(inverse[below, rows].T, inverse[below, : rows.stop])
        yield rows, panel


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


def _lower(on: Algebra, column: Any, columns: slice) -> Any:
    """A block column of a lower triangular matrix, from its diagonal block down, with what lies above as zeros."""
    column = column.copy()
    width = columns.stop - columns.start
    column[:width] = on.xp.tril(column[:width])
    return column


def _column_squares(on: Algebra, matrix: Any) -> Any:
    """The squared norms of the columns of the lower triangle."""
    squares = on.xp.zeros(len(matrix))
    for rows in spans(len(matrix), _PANEL):
        corner = on.xp.tril(matrix[rows, rows])
        squares[rows] += (corner**2).sum(axis=0)
        left = matrix[rows, : rows.start]
        squares[: rows.start] += (left**2).sum(axis=0)
    return squares
