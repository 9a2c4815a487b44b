"""Matrices filled tile by tile, and what tiles are made from: prepared images, of one kernel or of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import Advance, AnyDevice, OfImages, Prepared
from .chunks import spans
from .graph import Graph

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]


def fill(
    kernel: Any, device: AnyDevice, left: Any, right: Any, *, symmetric: bool, advance: Advance | None = None
) -> Array:
    """The matrix between two prepared sets, tile by tile; of a symmetric one, each unordered pair once.

    It is the kind of array that the diagonal is: NumPy's functions hand arrays on a GPU to CuPy's. `advance` is told
    how many pairs were finished, once for each leaf of the kernel.
    """
    values: Array = np.empty_like(left.diagonal, shape=(len(left), len(right)))
    for rows, columns, upper in tile_spans(left, right, symmetric=symmetric):
        tile = kernel.block(device, left[rows], right[columns], upper=upper, advance=advance)
        if upper:
            complete(tile, left[rows].diagonal)
        values[rows, columns] = tile
        if symmetric and not upper:
            values[columns, rows] = tile.T
    return values


def tile_spans(left: Any, right: Any, *, symmetric: bool) -> Iterator[tuple[slice, slice, bool]]:
    """Rows and columns of every tile, row by row, and whether it is on the diagonal of a symmetric matrix.

    Of a symmetric matrix, these are the tiles on and right of the diagonal.
    """
    for rows in spans(len(left), left.tile):
        for columns in spans(len(right), right.tile):
            if not symmetric or columns.start >= rows.start:
                yield rows, columns, symmetric and columns.start == rows.start


def complete(tile: Array, diagonal: Array) -> None:
    """Copy the part right of the diagonal to the left of it, and put the exact diagonal in."""
    right = np.triu(tile, 1)
    whole = right + right.T
    whole.reshape(-1)[:: len(whole) + 1] = diagonal
    tile[...] = whole


def counter(progress: Progress | None, total: int) -> Advance | None:
    """What counts finished pairs for `progress(done, total)`."""
    if progress is None:
        return None
    done = 0

    def advance(pairs: int) -> None:
        nonlocal done
        done += pairs
        progress(done, total)

    return advance


@dataclass(frozen=True)
class Leaf(OfImages):
    """A backend's images with the graph they were prepared for."""

    graph: Graph
    images: Prepared

    @property
    def diagonal(self) -> Any:
        return self.images.diagonal

    def __getitem__(self, part: slice) -> Leaf:
        return Leaf(self.graph, self.images[part])


@dataclass(frozen=True)
class Several:
    """What several kernels know of the same images, or one kernel of several copies of them."""

    parts: tuple[Prepared, ...]
    diagonal: Any

    @property
    def tile(self) -> int:
        return min(part.tile for part in self.parts)

    def __len__(self) -> int:
        return len(self.diagonal)

    def __getitem__(self, part: slice) -> Several:
        return Several(tuple(one[part] for one in self.parts), self.diagonal[part])
