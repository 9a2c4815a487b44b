"""Where the vectors of conjugate gradients live: in this process, or in blocks of rows on the workers of a cluster.

`InProcess` and `OnCluster` have the same methods, so that the algorithm is written once. On a cluster, vectors stay on
the workers: blocks move from worker to worker, and the client only receives sums over all rows, such as one number per
column.
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
Blocks = list[Any]  # the blocks of rows of an (n, k) array: arrays in this process, Dask futures on a cluster


@contextlib.contextmanager
def find_place(matrix: Any, scheduler: Any) -> Iterator[Place]:
    """The workers of a Dask scheduler, or this process without one."""
    if scheduler is None:
        yield InProcess(matrix)
        return
    if not is_stored(matrix):
        raise InputError(
            "on a cluster K must be a matrix in a store that all workers can read, as returned by open_gram"
        )
    with client_of(scheduler) as client:
        yield OnCluster(matrix, client)


class InProcess:
    """One block with all rows, in this process."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    def put(self, values: Array) -> Blocks:
        """An array, split into blocks."""
        return [values]

    def get(self, blocks: Blocks) -> Array:
        """The array that blocks form."""
        whole: Array = blocks[0]
        return whole

    def each(self, function: Callable[..., Any], *vectors: Blocks, **given: Any) -> Blocks:
        """Apply a function block by block, to the same block of every vector; the results are blocks again."""
        return [function(vector, *others, **given) for vector, *others in zip(*vectors, strict=True)]

    def total(self, function: Callable[..., Array], *vectors: Blocks) -> Array:
        """The sum over all blocks of a function, which is applied as by `each`."""
        return sum_of(*self.each(function, *vectors))

    kept_total = total  # on a cluster, `kept_total` leaves the sum on a worker, as an argument for `each`

    def product(self, vector: Blocks) -> Blocks:
        """K @ vector."""
        return [multiply(self._matrix, vector[0])]

    def columns(self, chosen: NDArray[np.intp]) -> Blocks:
        """Some columns of K, (n, chosen), in blocks."""
        if is_dask(self._matrix):
            return [self._matrix[:, chosen].compute()]
        return [np.asarray(self._matrix[:, chosen], dtype=np.float64)]

    def rows(self, blocks: Blocks, chosen: NDArray[np.intp]) -> Array:
        """Some rows of a vector as an array; on a cluster `chosen` must ascend."""
        some: Array = blocks[0][chosen]
        return some


class OnCluster:
    """One block of rows on every worker of a cluster."""

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
        """K @ vector. Every worker multiplies a share of the tiles, and sends each block of the sum to its worker."""
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
        # Another worker may take over: if this one dies, Dask recomputes there what was lost.
        return self._client.submit(function, *arguments, workers=[at], allow_other_workers=True, pure=False, **given)


Place = InProcess | OnCluster


def multiply(K: Any, vectors: Array) -> Array:
    """K @ vectors, (n, k); a matrix in a store is read tile by tile.

    >>> multiply(np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones((2, 1))).ravel()
    array([3., 4.])
    """
    if is_dask(K):
        return np.asarray((K @ vectors).compute())
    if not is_stored(K):
        return np.asarray(K @ vectors)
    return multiply_tiles(K, K.store.layout.tiles(), vectors)


def multiply_share(K: Any, parts: list[slice], share: int, shares: int, *blocks: Array) -> list[Array]:
    """The part of K @ vector that comes from every `shares`-th tile, in blocks of rows."""
    tiles = itertools.islice(K.store.layout.tiles(), share, None, shares)
    product = multiply_tiles(K, tiles, np.concatenate(blocks))
    return [product[part] for part in parts]


def multiply_tiles(K: Any, tiles: Iterable[tuple[int, int]], vectors: Array) -> Array:
    """The part of K @ vectors that comes from some tiles of a symmetric matrix and their mirror images."""
    product = np.zeros_like(vectors)
    for rows, columns, tile in K.store.read_finished(tiles):
        product[rows] += tile @ vectors[columns]
        if rows != columns:
            product[columns] += tile.T @ vectors[rows]
    return product


def read_columns(K: Any, part: slice, chosen: NDArray[np.intp]) -> Array:
    """Some columns of K, for a block of rows."""
    columns: Array = K[np.ix_(np.arange(part.start, part.stop), chosen)]
    return columns


def sum_of(*values: Array) -> Array:
    """The sum of arrays, added from first to last."""
    return functools.reduce(np.add, values)


def is_dask(K: Any) -> bool:
    """Whether K is a `dask.array`."""
    return type(K).__module__.partition(".")[0] == "dask"
