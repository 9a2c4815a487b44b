"""A store: tiles of a matrix and panels of images, each a chunk of a Zarr array with a checksum.

Entries are float64, with the bits of `k(X)` (of kernels of vectors up to rounding, where BLAS sums in another order):
entries of deep kernels are so close to 1 that all information is in `1 - K`, which float64 keeps. Any Zarr reader can
read them. Chunks at the edges are padded with NaN, which also shows how much of a tile was computed before the matrix
was extended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..chunks import ahead
from ..errors import BackendError, StoreDamagedError, StoreError, StoreIncompleteError
from .files import Files
from .manifest import Manifest, read_manifest

Array = NDArray[np.float64]
Tile = tuple[int, int]
_CHECKSUM_BYTES = 4
_ENTRY = np.dtype("<f8")
_BYTES_AHEAD = 64 << 20  # of tiles that are read ahead, or wait to be written


@dataclass(frozen=True)
class Layout:
    """The tiles of a rows × columns matrix; a symmetric one has tiles on and right of the diagonal only.

    The images of one row or column of tiles form a *panel*.

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
        """The numbers of rows and columns of tiles."""
        return -(-self.rows // self.tile), -(-self.columns // self.tile)

    @property
    def count(self) -> int:
        """The number of tiles."""
        height, width = self.grid
        return height * (height + 1) // 2 if self.symmetric else height * width

    @property
    def total_pairs(self) -> int:
        """The number of entries that are computed."""
        return self.rows * (self.rows + 1) // 2 if self.symmetric else self.rows * self.columns

    def extent(self, i: int, j: int) -> tuple[int, int]:
        """(height, width) of a tile, smaller at the far edges."""
        return min(self.tile, self.rows - i * self.tile), min(self.tile, self.columns - j * self.tile)

    def pairs(self, i: int, j: int) -> int:
        """The number of entries of a tile that are computed."""
        height, width = self.extent(i, j)
        return height * (height + 1) // 2 if self.symmetric and i == j else height * width

    def tiles(self, panels: int | None = None) -> Iterator[Tile]:
        """All tiles, in an order that prepares few panels again if only `panels` of them fit into memory.

        The columns are divided into groups of `panels - 2`. Within a group, tiles are in the order of rows, so that the
        panels of the columns stay in memory. Two places are left: for the panels of the present and the last row.
        """
        height, width = self.grid
        group = width if panels is None else max(1, panels - 2)
        for start in range(0, width, group):
            for i in range(height):
                for j in range(max(start, i) if self.symmetric else start, min(start + group, width)):
                    yield i, j


@dataclass(frozen=True)
class Store:
    """Reads and writes the tiles and images at one place."""

    files: Files
    manifest: Manifest

    @classmethod
    def open(cls, files: Files) -> Store:
        """The store at a place, with its manifest read and checked."""
        return cls(files, read_manifest(files))

    @functools.cached_property
    def layout(self) -> Layout:
        """The tiles of the matrix."""
        return Layout(*self.manifest.shape, self.manifest.tile, self.manifest.symmetric)

    @property
    def at_once(self) -> int:
        """The number of tiles to read or write at the same time, within `concurrency` and `_BYTES_AHEAD`."""
        return max(1, min(self.files.concurrency, _BYTES_AHEAD // (self.manifest.tile**2 * _ENTRY.itemsize)))

    def read_tiles(self, tiles: Iterable[Tile]) -> Iterator[tuple[Tile, Array]]:
        """Yield tiles in order, as `read_tile`, read ahead by threads."""
        return ahead(self.read_tile, tiles, self.at_once)

    def read_tile(self, tile: Tile) -> Array:
        """A tile, with its checksum checked; entries of an extension that are not computed yet are NaN."""
        size = self.manifest.tile
        height, width = self.layout.extent(*tile)
        chunk = self._read_chunk(tile_name(tile), (size, size), _ENTRY, f"tile {tile}")
        return chunk[:height, :width]

    def read_finished(self, tiles: Iterable[Tile]) -> Iterator[tuple[slice, slice, Array]]:
        """Yield (rows, columns, values) of tiles in order, read ahead; raises if entries are not computed yet."""
        size = self.manifest.tile
        for (i, j), values in self.read_tiles(tiles):
            self.refuse_unfinished((i, j), values)
            yield slice(i * size, i * size + len(values)), slice(j * size, j * size + values.shape[1]), values

    def refuse_unfinished(self, tile: Tile, part: Array) -> None:
        """Raise `StoreIncompleteError` if a part of a tile has entries that an extension has not computed yet."""
        if np.isnan(part).any():
            raise StoreIncompleteError(
                f"tile {tile} of {self.files.address} does not cover the new rows yet; "
                "run the call that extends the matrix again"
            )

    def write_tile(self, tile: Tile, values: Array) -> None:
        """Write a tile. Once this returns, the tile is durable."""
        if not np.isfinite(values).all():
            raise BackendError(
                f"tile {tile} has NaN or infinite entries from backend {self.manifest.backend!r}, and was not stored; "
                "try precision='float64' in a new store, or another backend"
            )
        self._write_chunk(tile_name(tile), (self.manifest.tile,) * 2, _ENTRY, values, np.nan)

    def finished(self) -> set[Tile]:
        """The tiles that are complete, judged by file length; tiles that an extension enlarged are read."""
        lengths, expected = self.files.sizes("kernel/c"), self.manifest.tile**2 * _ENTRY.itemsize + _CHECKSUM_BYTES
        there = {tile for tile in self.layout.tiles() if lengths.get(tile_name(tile)) == expected}
        cut = ahead(self._is_whole, filter(self.was_cut, there), self.at_once)
        return there - {tile for tile, whole in cut if not whole}

    def known_pairs(self, tile: Tile) -> int:
        """The number of pairs in `known_part`."""
        known = self.known_part(tile)
        if known is None:
            return 0
        return len(known) * (len(known) + 1) // 2 if tile[0] == tile[1] else known.size

    def _is_whole(self, tile: Tile) -> bool:
        values = try_read(self.read_tile, tile)
        return values is not None and not np.isnan(values[-1, -1])

    def known_part(self, tile: Tile) -> Array | None:
        """The part of a tile that was computed before the matrix was extended, if any."""
        values = try_read(self.read_tile, tile) if self.was_cut(tile) else None
        if values is None:
            return None
        width = int(np.count_nonzero(~np.isnan(values[0])))
        return values[:width, :width] if tile[0] == tile[1] else values[:, :width]

    def panels(self, name: str) -> int:
        """The number of panels of a set of images."""
        return -(-self.manifest.sets[name].shape[0] // self.manifest.tile)

    def read_images(self, name: str, panel: int) -> NDArray[Any]:
        """The images of one panel of `x` or `z`."""
        chunk = self._read_chunk(*self._panel(name, panel), f"panel {panel} of the images {name}")
        return chunk[: self.manifest.sets[name].shape[0] - panel * self.manifest.tile]

    def write_images(self, name: str, images: NDArray[Any]) -> None:
        """Write those panels of a set of images that are missing, damaged or different."""

        def write(panel: int) -> None:
            rows = images[panel * self.manifest.tile : (panel + 1) * self.manifest.tile]
            there = try_read(self.read_images, name, panel)
            if there is None or not np.array_equal(there, rows):
                self._write_chunk(*self._panel(name, panel), rows, 0)

        for _ in ahead(write, range(self.panels(name)), self.files.concurrency):
            pass

    def _panel(self, name: str, panel: int) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
        """The file, shape and dtype of a panel of images."""
        data = self.manifest.sets[name]
        shape = (self.manifest.tile, *data.shape[1:])
        return f"{name}/c/{panel}" + "/0" * len(data.shape[1:]), shape, data.stored_dtype

    def was_cut(self, tile: Tile) -> bool:
        """Whether the matrix ended inside this tile before it was extended."""
        size = self.manifest.tile
        return any(count % size and tile[1] == count // size for count in self.manifest.grown_from)

    def _read_chunk(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
        where = f"{what} of {self.files.address}"
        try:
            data = self.files.read(name)
        except FileNotFoundError:
            raise StoreIncompleteError(f"{where} is not there yet; run the call that made the store again") from None
        except StoreError:
            raise
        except OSError as error:
            raise StoreDamagedError(f"{where} cannot be read, {error.strerror}: run repair") from error
        length = math.prod(shape) * dtype.itemsize
        if len(data) != length + _CHECKSUM_BYTES:
            raise StoreDamagedError(f"{where} has {len(data)} bytes, not {length + _CHECKSUM_BYTES}: run repair")
        body = memoryview(data)[:length]
        if _checksum(body) != data[length:]:
            raise StoreDamagedError(f"{where} has a wrong checksum: run repair")
        return np.frombuffer(body, dtype).reshape(shape)

    def _write_chunk(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], values: NDArray[Any], fill: float
    ) -> None:
        chunk = np.ascontiguousarray(values, dtype)
        if chunk.shape != shape:
            chunk = np.full(shape, fill, dtype)
            chunk[tuple(map(slice, values.shape))] = values
        octets = chunk.reshape(-1).view(np.uint8)
        self.files.write(name, octets, _checksum(octets))


def tile_name(tile: Tile) -> str:
    """The file of a tile."""
    return f"kernel/c/{tile[0]}/{tile[1]}"


def try_read(read: Callable[..., NDArray[Any]], *where: Any) -> NDArray[Any] | None:
    """The result of `read_tile` or `read_images`, or None if the file is missing or damaged."""
    try:
        return read(*where)
    except (StoreDamagedError, StoreIncompleteError):
        return None


def _checksum(data: Any) -> bytes:
    """The CRC-32C of a buffer, as Zarr's codec of that name appends it to a chunk."""
    import google_crc32c  # imported here, so that the rest of the package works without it

    return int(google_crc32c.value(np.frombuffer(data, np.uint8))).to_bytes(_CHECKSUM_BYTES, "little")
