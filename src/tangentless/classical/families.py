"""Matrices of several kernels of the same points at once: inner products and distances are computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from ..gradients import take_pair
from ..inputs import check_images, to_numpy
from ..layers import is_whole
from ..tiles import complete, tile_spans
from .rows import Vectors, read_rows, to_distances, to_gaps
from .vectors import Gaussian, Pair, bell, by_rows, check_depth, relu_networks

Array = NDArray[np.float64]
# From the inner products (rows, columns) of two sets of vectors to (matrices, rows, columns), or for one matrix (rows,
# columns). It may overwrite the products.
Function = Callable[[Array, Vectors, Vectors], Array]
_ROWS_OF_MEDIAN = 5000


def ntk_family(
    X: Any, Z: Any = None, depths: Iterable[int] = range(1, 6), *, n_jobs: int | None = None
) -> dict[Pair, Array]:
    """The matrices of `NTK(depth, fixed)` for some depths and all `fixed` below each depth, by (depth, fixed).

    Depths 1 to 5 give 15 matrices; fixed = depth - 1 is the NNGP. A matrix takes 8 bytes per entry, so 15 of 5,000
    points take 3 GB. A few depths at a time take less memory, for little more time.

    >>> family = ntk_family(np.random.default_rng(0).standard_normal((20, 4)), depths=[1, 3])
    >>> sorted(family)
    [(1, 0), (3, 0), (3, 1), (3, 2)]
    """
    pairs: list[Pair] = []
    for depth in dict.fromkeys(_as_list(depths, "depths")):
        check_depth(depth)
        pairs += [(int(depth), fixed) for fixed in range(depth)]
    if not pairs:
        raise ParameterError("depths is empty; a family needs at least one depth")
    left, right = _read(X, Z, unit=True)
    diagonals = np.array([[depth - fixed] for depth, fixed in pairs]) * left.norms**2

    def tangents(products: Array, near: Vectors, far: Vectors) -> Array:
        return relu_networks(pairs, to_gaps(products, near, far), near.norms, far.norms)

    return dict(zip(pairs, _fill(left, right, tangents, diagonals, n_jobs), strict=True))


def squared_distances(X: Any, Z: Any = None, *, n_jobs: int | None = None) -> Array:
    """Squared distances between all rows, without cancellation: exactly 0 between equal rows.

    >>> squared_distances([[0.0, 1.0], [2.0, 1.0]])
    array([[0., 4.],
           [4., 0.]])
    """
    left, right = _read(X, Z, unit=False)
    return _fill(left, right, to_distances, np.zeros((1, len(left))), n_jobs)[0]


def gaussian_family(X: Any, Z: Any = None, *, gammas: Iterable[float]) -> Iterator[tuple[float, Array]]:
    """Yield (gamma, matrix of `Gaussian(gamma)`) for each gamma, from distances that are computed once.

    >>> X = np.random.default_rng(0).standard_normal((20, 4))
    >>> [(gamma, K.shape) for gamma, K in gaussian_family(X, gammas=[0.1, 1.0])]
    [(0.1, (20, 20)), (1.0, (20, 20))]
    """
    kernels = [Gaussian(gamma) for gamma in _as_list(gammas, "gammas")]  # checks gammas before anything is computed
    distances = squared_distances(X, Z)
    return ((kernel.gamma, bell(distances, kernel.gamma)) for kernel in kernels)


def median_squared_distance(X: Any, *, rows: int = _ROWS_OF_MEDIAN) -> float:
    """The median squared distance between two different rows. Of more than `rows` rows, evenly spaced ones count.

    >>> median_squared_distance([[0.0], [1.0], [3.0]])
    4.0
    """
    if not is_whole(rows) or rows < 2:
        raise ParameterError(f"rows must be a whole number from 2, not {rows!r}")
    points = check_images(to_numpy(X)[0], "X")
    if len(points) < 2:
        raise InputError("X has one row; a median distance needs at least two")
    chosen = points[np.linspace(0, len(points) - 1, min(rows, len(points))).astype(int)]
    median = float(np.median(squared_distances(chosen)[np.triu_indices(len(chosen), 1)]))
    if median == 0:
        raise InputError(
            "the median distance between rows is 0: more than half of all pairs are equal, as with constant features; "
            "drop repeated rows or choose gamma yourself"
        )
    return median


def _as_list(values: Any, name: str) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise ParameterError(f"{name} must be a list, such as [{values!r}], not {values!r}") from None


def _read(X: Any, Z: Any, *, unit: bool) -> tuple[Vectors, Vectors]:
    """Both sides, checked; without Z the same object twice."""
    points, others, *_ = take_pair(X, Z, on_gpu=False)
    left = _vectors(points, unit)
    return left, left if others is None else _vectors(others, unit)


def _vectors(points: NDArray[Any], unit: bool) -> Vectors:
    rows, norms = read_rows(points, unit=unit)
    return Vectors(rows, norms, norms**2)


def _fill(left: Vectors, right: Vectors, function: Function, diagonals: Array, n_jobs: int | None) -> list[Array]:
    """One matrix for each of the diagonals (matrices, N), tile by tile; symmetric ones compute each pair once.

    The matrices are separate arrays, so the memory of each is freed when it is dropped.
    """
    values, symmetric = [np.empty((len(left), len(right))) for _ in diagonals], left is right
    for rows, columns, upper in tile_spans(left, right, symmetric=symmetric):
        _fill_tile([one[rows, columns] for one in values], left[rows], right[columns], function, n_jobs)
        for one, diagonal in zip(values, diagonals, strict=True):
            if upper:
                complete(one[rows, rows], diagonal[rows])
            elif symmetric:
                one[columns, rows] = one[rows, columns].T
    return values


def _fill_tile(tiles: list[Array], near: Vectors, far: Vectors, function: Function, n_jobs: int | None) -> None:
    products = near.rows @ far.rows.T

    def work(part: slice) -> int:
        found = function(products[part], near[part], far)
        for tile, values in zip(tiles, found.reshape(len(tiles), -1, len(far)), strict=True):
            tile[part] = values
        return found.size

    by_rows(len(near), work, n_jobs)
