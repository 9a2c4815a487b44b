"""Rows that say most about all others: greedy choice by variance, which is Cholesky's method with pivots.

Each step takes the row whose variance, given the rows taken so far, is largest. It needs the covariances of the rows
that are taken with all others, and no others: m columns for m rows. Taken `block` at a time, columns come in batches,
which is how kernels are computed fast; a batch is itself chosen greedily among the rows of largest variance, and is
small at first, when nothing tells rows apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Columns = Callable[[Any, Indices], Array]

NOISE = 1e-6  # of the largest variance: what float32 arithmetic may leave of a row that is explained
_CANDIDATES = 2  # of each batch, as many times its size


def choose_rows(covariances: Columns, variances: Any, count: int, *, block: int = 1) -> Indices:
    """The numbers of up to `count` rows, the most informative first; fewer where these explain all the rest.

    `covariances(rows, columns)` gives the entries of the matrix between two sets of rows, the first of which may be
    `slice(None)`; `variances` is its diagonal. With `block=1` the choice is greedy in every step.

    >>> K = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.1], [0.0, 0.1, 0.5]])
    >>> choose_rows(lambda rows, columns: K[rows][:, columns], K.diagonal(), 2)
    array([0, 2])
    """
    left = np.array(variances, dtype=np.float64)
    if left.ndim != 1 or not np.isfinite(left).all():
        raise InputError("variances must be finite numbers, one for each row")
    check_count(count, len(left))
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


def check_count(count: Any, rows: int) -> None:
    """Refuse a number of rows to choose that there are not."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= rows:
        raise ParameterError(f"of {rows} rows, from 1 to {rows} can be chosen, not {count!r}")


def _batch(covariances: Columns, left: Array, roots: Array, size: int, floor: float) -> Indices:
    # What differs by noise alone is equal, and the first is taken: every backend chooses the same rows.
    if size == 1:
        return np.array([np.argmax(left >= left.max() - floor)], dtype=np.intp)
    candidates = np.argsort(-np.round(left / floor), kind="stable")[: _CANDIDATES * size]
    candidates = candidates[left[candidates] > floor]
    among = np.asarray(covariances(candidates, candidates), dtype=np.float64)
    among = among - roots[:, candidates].T @ roots[:, candidates]
    variances = np.clip(among.diagonal(), floor, None)
    picked = choose_rows(lambda rows, columns: among[rows][:, columns], variances, min(size, len(candidates)))
    return np.asarray(candidates[picked])
