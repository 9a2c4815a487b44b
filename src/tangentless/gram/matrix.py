"""Reading a matrix from its store as if it were an array in memory.

Slices, index arrays and `np.ix_` read the tiles that they overlap; each tile is checked when it is read. A symmetric
matrix has all its entries, though only one triangle is stored. `np.asarray` reads everything; `to_dask` reads on
demand.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..chunks import spans
from ..errors import InputError, ParameterError
from ..markup import html_table, tag
from .files import Address, Options, find_files
from .manifest import Manifest
from .store import Array, Store, Tile

Indices = NDArray[np.intp]
Selection = slice | Indices
Place = tuple[Selection, Selection]  # indices in a tile, and their places in the result
_STRIP = 32  # columns of a transposed tile that are copied at a time: few enough for the cache


def open_gram(store: Address, *, storage_options: Options | None = None) -> GramMatrix:
    """The matrix in a store, complete or not. `storage_options` are for addresses that fsspec opens.

    >>> import tempfile
    >>> from tangentless.gram import gram
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
    >>> bool(np.all(open_gram(f"{folder.name}/k.zarr")[3:5] == K[:, 3:5].T))
    True
    """
    return GramMatrix(Store.open(find_files(store, storage_options)))


@dataclass(frozen=True, repr=False)
class GramMatrix:
    """A kernel matrix in a store. Reading entries that are not computed yet raises `StoreIncompleteError`.

    >>> import tempfile
    >>> from tangentless.gram import gram
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.eye(40), store=f"{folder.name}/k.zarr", backend="reference", tile=16)
    >>> K.shape, K[3, :2].shape, K[np.ix_([1, 2], [5, 6, 7])].shape, K[::10].shape
    ((40, 40), (2,), (2, 3), (4, 40))
    """

    store: Store
    dtype: ClassVar[np.dtype[np.float64]] = np.dtype(np.float64)
    ndim: ClassVar[int] = 2

    @property
    def manifest(self) -> Manifest:
        """The kernel, the data, and how entries are computed."""
        return self.store.manifest

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.manifest.shape

    @property
    def nbytes(self) -> int:
        """The bytes of the whole matrix in memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        keys = _split(key)
        mesh = _is_open_mesh(*keys)
        rows, columns = (
            _indices(np.ravel(part) if mesh else part, length) for part, length in zip(keys, self.shape, strict=True)
        )
        if not mesh and not any(isinstance(part, slice) for part in keys) and rows.ndim == columns.ndim == 1:
            raise InputError("two index arrays pick single entries in NumPy; for a block use K[np.ix_(rows, columns)]")
        return self._read(np.atleast_1d(rows), np.atleast_1d(columns)).reshape(rows.shape + columns.shape)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a matrix in a store cannot become an array without a copy")
        return np.asarray(self[:, :], dtype=dtype)

    def diagonal(self) -> Array:
        """The entries k(x_i, z_i)."""
        tiles = ((place, place) for place in range(min(self.store.layout.grid)))
        return np.concatenate([np.diagonal(values) for _, _, values in self.store.read_finished(tiles)])

    def to_dask(self) -> Any:
        """The matrix as a `dask.array`, a chunk for every tile; needs `tangentless[distributed]`."""
        try:
            array: Any = importlib.import_module("dask.array")
        except ImportError:
            raise ParameterError("to_dask needs Dask: pip install 'tangentless[distributed]'") from None
        name, layout = f"gram-{self.manifest.to_json()['checksum'][:32]}", self.store.layout
        tasks: dict[Any, Any] = {(name, *tile): (self._block, tile) for tile in layout.tiles()}
        if layout.symmetric:  # a stored tile is read once, for both triangles
            tasks |= {(name, j, i): (np.transpose, (name, i, j)) for i, j in layout.tiles() if i < j}
        chunks = tuple(
            tuple(part.stop - part.start for part in spans(length, self.manifest.tile)) for length in self.shape
        )
        return array.Array(tasks, name, chunks, dtype=self.dtype)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{rows} × {columns} matrix of {self.manifest.kernel} in {self.store.files.address}>"

    def _repr_html_(self) -> str:
        """A table of facts and a bar of the finished tiles, for notebooks."""
        manifest, done, tiles = self.manifest, len(self.store.finished()), self.store.layout.count
        facts = {
            "matrix": " × ".join(f"{side:,}" for side in self.shape) + (", symmetric" if manifest.symmetric else ""),
            "kernel": manifest.kernel,
            "store": self.store.files.address,
            "tiles": f"{done:,} of {tiles:,}, {100 * done / tiles:.1f} %",
        }
        bar = tag(
            "progress", max=tiles, value=done, aria_label="tiles that are there", style="width:20em;max-width:100%"
        )
        return tag("div", html_table(("store", ""), facts.items()), bar)

    def _block(self, tile: Tile) -> Array:
        size = self.manifest.tile
        rows, columns = (slice(number * size, (number + 1) * size) for number in tile)
        block: Array = self[rows, columns]
        return block

    def _read(self, rows: Indices, columns: Indices) -> Array:
        values = np.empty((len(rows), len(columns)))
        size, symmetric = self.manifest.tile, self.manifest.symmetric
        parts: dict[Tile, list[tuple[bool, Place, Place]]] = {}  # by stored tile, which is read once for both triangles
        for (i, row), (j, column) in itertools.product(_by_tile(rows, size), list(_by_tile(columns, size))):
            flipped = symmetric and j < i
            parts.setdefault((j, i) if flipped else (i, j), []).append((flipped, row, column))
        for tile, stored in self.store.read_tiles(parts):
            for flipped, (here_rows, out_rows), (here_columns, out_columns) in parts[tile]:
                part = (stored.T if flipped else stored)[here_rows][:, here_columns]
                self.store.refuse_unfinished(tile, part)
                _copy(values, out_rows, out_columns, part)
        return values


def _split(key: Any) -> tuple[Any, Any]:
    """The keys of rows and columns; missing ones and an ellipsis become `:`."""
    parts = [part for part in (key if isinstance(key, tuple) else (key,)) if part is not Ellipsis]
    if len(parts) > 2:
        raise IndexError(f"a matrix has two axes, but {len(parts)} indices were given")
    if isinstance(key, tuple) and key and key[0] is Ellipsis and len(parts) == 1:
        return slice(None), parts[0]
    parts += [slice(None)] * (2 - len(parts))
    return parts[0], parts[1]


def _indices(key: Any, length: int) -> Indices:
    """The indices that a key selects, by NumPy's rules and with its errors; of shape () for an integer."""
    indices = np.asarray(np.arange(length)[key])
    if indices.ndim > 1:
        raise IndexError(f"an index array has one axis, not shape {indices.shape}")
    return indices


def _is_open_mesh(rows: Any, columns: Any) -> bool:
    """Whether two keys are of shapes (n, 1) and (1, m), as from `np.ix_`."""
    shapes = np.shape(rows), np.shape(columns)
    return len(shapes[0]) == len(shapes[1]) == 2 and shapes[0][1] == 1 and shapes[1][0] == 1


def _by_tile(indices: Indices, size: int) -> Iterator[tuple[int, Place]]:
    """Yield the number of each tile that the indices touch, and which of its rows or columns they select."""
    tiles = indices // size
    for tile in np.unique(tiles):
        places = np.flatnonzero(tiles == tile)
        yield int(tile), (_as_slice(indices[places] - tile * size), _as_slice(places))


def _as_slice(indices: Indices) -> Selection:
    """A slice instead of indices at equal, positive steps, because NumPy copies slices much faster."""
    step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
    if step > 0 and (np.diff(indices) == step).all():
        return slice(int(indices[0]), int(indices[-1]) + 1, step)
    return indices


def _copy(values: Array, rows: Selection, columns: Selection, source: Array) -> None:
    """values[rows, columns] = source, in strips of columns if the source is transposed."""
    if not (isinstance(rows, slice) and isinstance(columns, slice)):
        values[np.ix_(np.r_[rows], np.r_[columns])] = source
        return
    target = values[rows, columns]
    strip = _STRIP if abs(source.strides[0]) < abs(source.strides[1]) else source.shape[1]
    for start in range(0, source.shape[1], strip):
        target[:, start : start + strip] = source[:, start : start + strip]
