"""The tiles of a matrix: how large they are, in which order they come, and what memory they take.

A tile is the unit that is computed, written, checked and lost. It should take about a minute of two processor cores, or
seconds of a GPU, so that little is lost with a process; and there should not be more files than a file system likes.
The images of a row or column of tiles form a *panel*, prepared once and kept as long as the memory budget allows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..devices import machine_memory
from ..errors import ParameterError
from ..kernel import Kernel

_SMALLEST, _USUAL, _LARGEST = 16, 1024, 2048
_WORK = {"cuda": 2e13}  # embeddings in a tile, by backend
_WORK_ELSEWHERE = 2.5e11
_FILES = 20_000
_TILE_ROWS = 4
_TILES_HELD = 3  # one being computed, one being written, one on the way
_WORKSPACE = 256 << 20  # what a backend may take for one block, where the budget allows
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class Layout:
    """The tiles of a rows × columns matrix; of a symmetric one, those on and right of the diagonal.

    >>> layout = Layout(5, 5, 2, symmetric=True)
    >>> list(layout.tiles())
    [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    >>> layout.extent(1, 2), layout.pairs(1, 2), layout.total_pairs
    ((2, 1), 2, 15)
    """

    rows: int
    columns: int
    tile: int
    symmetric: bool

    @property
    def grid(self) -> tuple[int, int]:
        """How many rows and columns of tiles there are."""
        return -(-self.rows // self.tile), -(-self.columns // self.tile)

    @property
    def count(self) -> int:
        """How many tiles there are."""
        height, width = self.grid
        return height * (height + 1) // 2 if self.symmetric else height * width

    @property
    def total_pairs(self) -> int:
        """How many entries are computed."""
        return self.rows * (self.rows + 1) // 2 if self.symmetric else self.rows * self.columns

    def extent(self, i: int, j: int) -> tuple[int, int]:
        """The size of a tile, less at the far edges."""
        return min(self.tile, self.rows - i * self.tile), min(self.tile, self.columns - j * self.tile)

    def pairs(self, i: int, j: int) -> int:
        """How many entries of a tile are computed."""
        height, width = self.extent(i, j)
        return height * (height + 1) // 2 if self.symmetric and i == j else height * width

    def tiles(self, panels: int | None = None) -> Iterator[tuple[int, int]]:
        """All tiles, in an order that prepares few panels when only so many are kept.

        A group of columns stays while every row passes by it once; two places are left for the row that comes and
        the one that goes.
        """
        height, width = self.grid
        group = width if panels is None else max(1, panels - 2)
        for start in range(0, width, group):
            for i in range(height):
                for j in range(max(start, i) if self.symmetric else start, min(start + group, width)):
                    yield i, j


def choose_tile(kernel: Kernel, shape: tuple[int, ...], size: tuple[int, int], backend: str, memory: int) -> int:
    """A tile size, a power of two, for a matrix of some size: from the work of a pair, and the memory.

    >>> from tangentless import kernel
    >>> choose_tile(kernel("myrtle10"), (32, 32, 3), (50_000, 50_000), "cpu", 4 << 30)
    256
    >>> choose_tile(kernel("myrtle10"), (32, 32, 3), (50_000, 50_000), "cuda", 4 << 30)
    1024
    """
    elements = max(1, sum(leaf.elements(shape) for leaf in kernel.leaves()))
    by_work = math.sqrt(_WORK.get(backend, _WORK_ELSEWHERE) / elements)
    by_files = math.sqrt(math.prod(size) / _FILES)
    by_rows = max(size) / _TILE_ROWS
    wanted = min(_LARGEST, max(_SMALLEST, by_files, min(_USUAL, by_work, by_rows)))
    tile = 1 << int(math.log2(wanted))
    while tile > _SMALLEST and _least_memory(tile, _image_bytes(kernel, shape)) > memory:
        tile //= 2
    return tile


def plan_memory(kernel: Kernel, shape: tuple[int, ...], tile: int, memory: int) -> int:
    """How many prepared panels fit beside the tiles in flight; at least two must."""
    image = _image_bytes(kernel, shape)
    least = _least_memory(tile, image)
    if memory < least:
        raise ParameterError(
            f"a memory budget of {memory:,} bytes is too small for tiles of {tile} images: it takes {least:,}; "
            "give more memory, or start a new store with a smaller tile"
        )
    room = memory - _TILES_HELD * 8 * tile**2
    panels = max(room - _WORKSPACE, room // 2) // (tile * image)
    return max(2, panels)


def parse_memory(memory: int | str | None) -> int:
    """Bytes, from a number, a text such as `4GB` or `512MiB`, or None: a quarter of what the machine has.

    >>> parse_memory("1.5GB"), parse_memory("512 MiB")
    (1500000000, 536870912)
    """
    if memory is None:
        return machine_memory() // 4
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if match is None or match[2] not in _UNITS:
        raise ParameterError(f"a memory budget is a number of bytes or a text such as '4GB', not {memory!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def _least_memory(tile: int, image_bytes: int) -> int:
    return _TILES_HELD * 8 * tile**2 + 2 * tile * image_bytes


def _image_bytes(kernel: Kernel, shape: tuple[int, ...]) -> int:
    """What an image takes at most, in float64: its pixels, and what every kernel prepares of it."""
    return 8 * (math.prod(shape) + sum(leaf.image_numbers(shape) for leaf in kernel.leaves()))
