"""Pivoted Cholesky: the greedy choice of informative rows.

Each step takes the row of largest variance given the rows taken so far. Of the covariance matrix this needs the
diagonal and, for m rows, m columns. With `block > 1`, columns are computed in batches, which is faster for kernels. A
batch is itself chosen greedily, among the rows of largest variance. The first batches are small, because at first all
rows have similar variances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from ..layers import is_whole

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Columns = Callable[[Any, Indices], Array]

NOISE = 1e-6  # relative to the largest variance: what float32 arithmetic may leave of a row that is fully explained
_CANDIDATES = 2  # candidates of a batch, as a multiple of its size


def choose_rows(covariances: Columns, variances: Any, count: int, *, block: int = 1) -> Indices:
    """The numbers of `count` rows, the most informative first; fewer if these explain all others.

    `covariances(rows, columns)` returns entries of the matrix, where `rows` is an index array or `slice(None)`;
    `variances` is its diagonal. Only with `block=1` is every step greedy.

    >>> K = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.1], [0.0, 0.1, 0.5]])
    >>> choose_rows(lambda rows, columns: K[rows][:, columns], K.diagonal(), 2)
    array([0, 2])
    """
    left = np.array(variances, dtype=np.float64)
    if left.ndim != 1 or not np.isfinite(left).all():
        raise InputError("variances must be finite numbers, one for each row")
    check_count(count, len(left))
    if not is_whole(block) or block < 1:
        raise ParameterError(f"block is a whole number of rows from 1, not {block!r}")
    floor = NOISE * float(left.max())
    roots = np.empty((count, len(left)))
    chosen: list[int] = []
    while len(chosen) < count and left.max() > floor:
        found = roots[: len(chosen)]
        batch = _batch(covariances, left, found, min(block, count - len(chosen), 1 + len(chosen) // 2), floor)
        columns = np.asarray(covariances(slice(None), batch), dtype=np.float64) - found.T @ found[:, batch]
        for place, row in enumerate(batch):
            if left[row] <= floor:
                continue
            before, at = roots[len(found) : len(chosen)], len(chosen)
            column = columns[:, place] - before.T @ before[:, row]
            roots[at] = column / np.sqrt(max(column[row], floor))
            left -= roots[at] ** 2
            left[row] = -np.inf
            chosen.append(int(row))
    return np.array(chosen, dtype=np.intp)


def check_count(count: Any, rows: int, purpose: str = "") -> None:
    """Raise `ParameterError` unless `count` is a whole number from 1 to `rows`; `purpose` is like " as landmarks"."""
    if not is_whole(count) or not 1 <= count <= rows:
        raise ParameterError(f"of {rows} rows, from 1 to {rows} can be chosen{purpose}, not {count!r}")


def _batch(covariances: Columns, left: Array, roots: Array, size: int, floor: float) -> Indices:
    """The next rows to take: up to `size` of those whose remaining variance `left` is largest."""
    # Variances that differ by noise only count as equal, and the first row wins: all backends choose the same rows.
    if size == 1:
        return np.array([np.argmax(left >= left.max() - floor)], dtype=np.intp)
    candidates = np.argsort(-np.round(left / floor), kind="stable")[: _CANDIDATES * size]
    candidates = candidates[left[candidates] > floor]
    among = np.asarray(covariances(candidates, candidates), dtype=np.float64)
    among = among - roots[:, candidates].T @ roots[:, candidates]
    variances = np.clip(among.diagonal(), floor, None)
    picked = choose_rows(lambda rows, columns: among[rows][:, columns], variances, min(size, len(candidates)))
    return np.asarray(candidates[picked])
