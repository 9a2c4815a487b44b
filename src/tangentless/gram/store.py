"""A store: tiles and images as checksummed chunks of Zarr arrays, read and written one at a time.

Entries are kept as float64. Those of a deep kernel lie so near to 1 that all they tell is in `1 - K`; float64 keeps it,
any Zarr reader sees the kernel itself, and the bytes are those of `k(X)`. A chunk at the edge is filled up with NaN,
which also tells how much of a tile was known before the matrix was extended.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BackendError, StoreDamagedError, StoreIncompleteError
from .checksum import crc32c
from .files import Files
from .manifest import Manifest
from .metadata import read_manifest, sets
from .tiles import Layout

Array = NDArray[np.float64]
Tile = tuple[int, int]
_CHECKSUM_BYTES = 4
_ENTRY = np.dtype("<f8")


@dataclass(frozen=True)
class Store:
    """The tiles and images at one place."""

    files: Files
    manifest: Manifest

    @classmethod
    def open(cls, files: Files) -> Store:
        """The store at a place, its metadata checked."""
        return cls(files, read_manifest(files))

    @functools.cached_property
    def layout(self) -> Layout:
        """The tiles of the matrix."""
        return Layout(*self.manifest.shape, self.manifest.tile, self.manifest.symmetric)

    @property
    def chunk_bytes(self) -> int:
        """The length of a tile's file."""
        return self.manifest.tile**2 * _ENTRY.itemsize + _CHECKSUM_BYTES

    def read_tile(self, tile: Tile) -> Array:
        """A finished tile, checked."""
        values = self.read_unfinished_tile(tile)
        if np.isnan(values[-1, -1]):
            raise StoreIncompleteError(f"tile {tile} of {self.files.address} does not cover the new rows yet")
        return values

    def read_unfinished_tile(self, tile: Tile) -> Array:
        """A tile that may be NaN where the matrix was extended since."""
        size = self.manifest.tile
        height, width = self.layout.extent(*tile)
        chunk = self._read_chunk(tile_name(tile), (size, size), _ENTRY, f"tile {tile}")
        return chunk[:height, :width]

    def write_tile(self, tile: Tile, values: Array) -> None:
        """Put a tile in place; when this returns it is there for good."""
        if not np.isfinite(values).all():
            raise BackendError(
                f"tile {tile} came out with NaN or infinite entries on backend {self.manifest.backend!r}; not stored"
            )
        self._write_chunk(tile_name(tile), values, (self.manifest.tile,) * 2, _ENTRY, np.nan)

    def finished(self) -> set[Tile]:
        """The tiles that are in place, by their names and lengths; those an extension concerns are looked into."""
        lengths = self.files.sizes("kernel/c")
        there = {tile for tile in self.layout.tiles() if lengths.get(tile_name(tile)) == self.chunk_bytes}
        return there - {tile for tile in there if self._was_cut(tile) and not self.covers(tile)}

    def known_pairs(self, tile: Tile) -> int:
        """How many pairs of an unfinished tile need not be computed."""
        known = self.known_part(tile)
        if known is None:
            return 0
        return len(known) * (len(known) + 1) // 2 if tile[0] == tile[1] else known.size

    def covers(self, tile: Tile) -> bool:
        """Whether a tile is whole and reaches the present edge of the matrix."""
        try:
            self.read_tile(tile)
        except (StoreDamagedError, StoreIncompleteError):
            return False
        return True

    def known_part(self, tile: Tile) -> Array | None:
        """What is known of a tile that was at the edge before the matrix was extended."""
        if not self._was_cut(tile):
            return None
        try:
            values = self.read_unfinished_tile(tile)
        except (StoreDamagedError, StoreIncompleteError):
            return None
        width = int(np.count_nonzero(~np.isnan(values[0])))
        return values[:width, :width] if tile[0] == tile[1] else values[:, :width]

    def panels(self, name: str) -> int:
        """How many panels a set of images has."""
        return -(-sets(self.manifest)[name].shape[0] // self.manifest.tile)

    def read_images(self, name: str, panel: int) -> NDArray[Any]:
        """The images of one panel of `x` or `z`."""
        data, size = sets(self.manifest)[name], self.manifest.tile
        shape = (size, *data.shape[1:])
        chunk = self._read_chunk(
            panel_name(name, panel, len(shape)), shape, data.stored_dtype, f"panel {panel} of the images {name}"
        )
        return chunk[: data.shape[0] - panel * size]

    def write_images(self, name: str, images: NDArray[Any]) -> None:
        """Keep a set of images, panel by panel, except those that are there."""
        data, size = sets(self.manifest)[name], self.manifest.tile
        shape = (size, *data.shape[1:])
        for panel in range(self.panels(name)):
            rows = images[panel * size : (panel + 1) * size]
            try:
                known = np.array_equal(self.read_images(name, panel), rows)
            except (StoreDamagedError, StoreIncompleteError):
                known = False
            if not known:
                self._write_chunk(panel_name(name, panel, len(shape)), rows, shape, data.stored_dtype, 0)

    def _was_cut(self, tile: Tile) -> bool:
        size = self.manifest.tile
        return any(count % size and tile[1] == count // size for count in self.manifest.grown_from)

    def _read_chunk(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
        where = f"{what} of {self.files.address}"
        try:
            data = self.files.read(name)
        except FileNotFoundError:
            raise StoreIncompleteError(f"{where} is not there yet; run the call that made the store again") from None
        except OSError as error:
            raise StoreDamagedError(f"{where} cannot be read, {error.strerror}: run repair") from error
        length = math.prod(shape) * dtype.itemsize
        if len(data) != length + _CHECKSUM_BYTES:
            raise StoreDamagedError(f"{where} has {len(data)} bytes, not {length + _CHECKSUM_BYTES}: run repair")
        body = memoryview(data)[:length]
        if crc32c(body) != int.from_bytes(data[length:], "little"):
            raise StoreDamagedError(f"{where} has a wrong checksum: run repair")
        return np.frombuffer(body, dtype).reshape(shape)

    def _write_chunk(
        self, name: str, values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], fill: float
    ) -> None:
        chunk = np.ascontiguousarray(values, dtype)
        if chunk.shape != shape:
            chunk = np.full(shape, fill, dtype)
            chunk[tuple(map(slice, values.shape))] = values
        octets = chunk.reshape(-1).view(np.uint8)
        self.files.write(name, octets, crc32c(octets).to_bytes(_CHECKSUM_BYTES, "little"))


def tile_name(tile: Tile) -> str:
    """The file of a tile."""
    return f"kernel/c/{tile[0]}/{tile[1]}"


def panel_name(name: str, panel: int, axes: int) -> str:
    """The file of a panel of images."""
    return f"{name}/c/{panel}" + "/0" * (axes - 1)
