"""Where the vectors of conjugate gradients are: in this process, or in blocks of rows on the workers of a cluster.

Both places offer the same few operations, so that the method is written once. On a cluster a vector never leaves the
workers: blocks go from worker to worker, and only sums over all rows, a number a column, come back to the client.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..chunks import spans
from ..errors import ClusterError, InputError
from ..gram.cluster import client_of
from .matrices import is_stored

Array = NDArray[np.float64]
Blocks = list[Any]  # of rows: arrays, or futures of Dask


@contextlib.contextmanager
def find_place(matrix: Any, scheduler: Any) -> Iterator[Here | Spread]:
    """The workers of a Dask scheduler, or this process."""
    if scheduler is None:
        yield Here(matrix)
        return
    if not is_stored(matrix):
        raise InputError("on a cluster K is a matrix in a store that all workers see, as open_gram gives it")
    with client_of(scheduler) as client:
        yield Spread(matrix, client)


class Here:
    """All rows are one block, in this process."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    def put(self, values: Array) -> Blocks:
        """An array, in blocks."""
        return [values]

    def get(self, blocks: Blocks) -> Array:
        """Blocks, as an array."""
        whole: Array = blocks[0]
        return whole

    def each(self, function: Callable[..., Any], *vectors: Blocks, **given: Any) -> Blocks:
        """A function of every block."""
        return [function(vector, *others, **given) for vector, *others in zip(*vectors, strict=True)]

    def total(self, function: Callable[..., Array], *vectors: Blocks) -> Array:
        """The sum of a function over all blocks."""
        return sum_of(*self.each(function, *vectors))

    kept_total = total  # the same, left where the blocks are

    def product(self, vector: Blocks) -> Blocks:
        """K times a vector."""
        return [multiply(self._matrix, vector[0])]

    def columns(self, chosen: NDArray[np.intp]) -> Blocks:
        """Some columns of K."""
        if is_dask(self._matrix):
            return [self._matrix[:, chosen].compute()]
        return [np.asarray(self._matrix[:, chosen], dtype=np.float64)]

    def rows(self, blocks: Blocks, chosen: NDArray[np.intp]) -> Array:
        """Some rows of a vector, in order."""
        some: Array = blocks[0][chosen]
        return some


class Spread:
    """A block of rows for every worker of a cluster."""

    def __init__(self, matrix: Any, client: Any) -> None:
        self._matrix, self._client = matrix, client
        self._workers = sorted(client.nthreads())
        if not self._workers:
            raise ClusterError("the cluster has no workers; start some, then run the same call again")
        rows, tile = len(matrix), matrix.manifest.tile
        self._parts = list(spans(rows, -(-rows // (tile * len(self._workers))) * tile))
        self._workers = self._workers[: len(self._parts)]

    def put(self, values: Array) -> Blocks:
        pairs = zip(self._parts, self._workers, strict=True)
        return [self._client.scatter(values[part], workers=[at], direct=True, hash=False) for part, at in pairs]

    def get(self, blocks: Blocks) -> Array:
        return np.concatenate(self._client.gather(blocks, direct=True))

    def each(self, function: Callable[..., Any], *vectors: Blocks, **given: Any) -> Blocks:
        rows = zip(self._workers, *vectors, strict=True)
        return [self._submit(at, function, *blocks, **given) for at, *blocks in rows]

    def total(self, function: Callable[..., Array], *vectors: Blocks) -> Array:
        return sum_of(*self._client.gather(self.each(function, *vectors), direct=True))

    def kept_total(self, function: Callable[..., Array], *vectors: Blocks) -> Any:
        return self._submit(self._workers[0], sum_of, *self.each(function, *vectors))

    def product(self, vector: Blocks) -> Blocks:
        """Every worker multiplies its share of the tiles; what it finds for other blocks goes to their workers."""
        shares = [
            self._submit(at, multiply_share, self._matrix, self._parts, number, len(self._workers), *vector)
            for number, at in enumerate(self._workers)
        ]
        found = []
        for number, at in enumerate(self._workers):
            pieces = [
                self._submit(other, list.__getitem__, share, number)
                for other, share in zip(self._workers, shares, strict=True)
            ]
            found.append(self._submit(at, sum_of, *pieces))
        return found

    def columns(self, chosen: NDArray[np.intp]) -> Blocks:
        pairs = zip(self._parts, self._workers, strict=True)
        return [self._submit(at, read_columns, self._matrix, part, chosen) for part, at in pairs]

    def rows(self, blocks: Blocks, chosen: NDArray[np.intp]) -> Array:
        taken = [
            self._submit(at, np.take, block, chosen[(chosen >= part.start) & (chosen < part.stop)] - part.start, axis=0)
            for at, block, part in zip(self._workers, blocks, self._parts, strict=True)
        ]
        return self.get(taken)

    def _submit(self, at: str, function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
        # Another worker may take over: if this one dies, Dask computes again what was lost with it.
        return self._client.submit(function, *arguments, workers=[at], allow_other_workers=True, pure=False, **given)


def multiply(K: Any, vectors: Array) -> Array:
    """K @ vectors, (n, k), a tile at a time where K is in a store.

    >>> multiply(np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones((2, 1))).ravel()
    array([3., 4.])
    """
    if is_dask(K):
        return np.asarray((K @ vectors).compute())
    if not is_stored(K):
        return np.asarray(K @ vectors)
    return multiply_tiles(K, K.store.layout.tiles(), vectors)


def multiply_share(K: Any, parts: list[slice], share: int, shares: int, *blocks: Array) -> list[Array]:
    """What one of several workers adds to K times a vector, in blocks of rows."""
    tiles = itertools.islice(K.store.layout.tiles(), share, None, shares)
    product = multiply_tiles(K, tiles, np.concatenate(blocks))
    return [product[part] for part in parts]


def multiply_tiles(K: Any, tiles: Iterable[tuple[int, int]], vectors: Array) -> Array:
    """The part of K @ vectors that some tiles of a symmetric matrix stand for. Each is read once, and ahead."""
    product = np.zeros_like(vectors)
    for rows, columns, tile in K.store.read_finished(tiles):
        product[rows] += tile @ vectors[columns]
        if rows != columns:
            product[columns] += tile.T @ vectors[rows]
    return product


def read_columns(K: Any, part: slice, chosen: NDArray[np.intp]) -> Array:
    """A block of rows of some columns."""
    columns: Array = K[np.ix_(np.arange(part.start, part.stop), chosen)]
    return columns


def sum_of(*values: Array) -> Array:
    """The sum, in this order."""
    return functools.reduce(np.add, values)


def is_dask(K: Any) -> bool:
    """Whether K is an array of Dask."""
    return type(K).__module__.partition(".")[0] == "dask"
