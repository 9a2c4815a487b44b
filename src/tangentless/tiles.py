"""Kernel matrices computed tile by tile, from images that one or several kernels have prepared."""

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
    """The kernel matrix between two prepared sets of images; a symmetric one computes each unordered pair once.

    The result is a NumPy or a CuPy array, like `left.diagonal`. Each leaf of the kernel calls `advance(pairs)` with the
    number of pairs that it finished.
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
    """(rows, columns, whether it is a diagonal tile of a symmetric matrix) of every tile, row by row.

    A symmetric matrix has tiles on and right of the diagonal only.
    """
    for rows in spans(len(left), left.tile):
        for columns in spans(len(right), right.tile):
            if not symmetric or columns.start >= rows.start:
                yield rows, columns, symmetric and columns.start == rows.start


def complete(tile: Array, diagonal: Array) -> None:
    """Make a diagonal tile symmetric: copy its upper triangle to the lower one, and set the exact diagonal."""
    right = np.triu(tile, 1)
    whole = right + right.T
    whole.reshape(-1)[:: len(whole) + 1] = diagonal
    tile[...] = whole


def counter(progress: Progress | None, total: int) -> Advance | None:
    """A function of newly finished pairs that adds them up and calls `progress(done, total)`."""
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
    """Images prepared by several kernels, or several copies of the images prepared by one kernel."""

    parts: tuple[Prepared, ...]
    diagonal: Any

    @property
    def tile(self) -> int:
        return min(part.tile for part in self.parts)

    def __len__(self) -> int:
        return len(self.diagonal)

    def __getitem__(self, part: slice) -> Several:
        return Several(tuple(one[part] for one in self.parts), self.diagonal[part])
