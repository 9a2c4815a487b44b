"""Reading a matrix from its store as if it were an array in memory.

Slices, index arrays and `np.ix_` read the tiles they touch, and each tile is checked as it is read. A symmetric matrix
reads back whole, though only one triangle is stored. `np.asarray` reads everything; `to_dask` reads on demand.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from .files import Address, find_files
from .manifest import Manifest
from .store import Array, Store

Selection = slice | NDArray[np.intp]
_STRIP = 32  # rows transposed at a time: few enough for the cache


def open_gram(store: Address) -> GramMatrix:
    """The matrix in a store, complete or not.

    >>> import tempfile
    >>> from tangentless.gram import gram
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
    >>> bool(np.all(open_gram(f"{folder.name}/k.zarr")[3:5] == K[:, 3:5].T))
    True
    """
    return GramMatrix(Store.open(find_files(store)))


@dataclass(frozen=True, repr=False)
class GramMatrix:
    """A kernel matrix in a store. Reading what is not computed yet raises `StoreIncompleteError`.

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
        """What this is a matrix of."""
        return self.store.manifest

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
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
        (rows, one_row), (columns, one_column) = (
            _selection(np.ravel(part) if mesh else part, length) for part, length in zip(keys, self.shape, strict=True)
        )
        if not mesh and not any(isinstance(part, slice) for part in keys) and not (one_row or one_column):
            raise InputError("two index arrays pick single entries in NumPy; for a block use K[np.ix_(rows, columns)]")
        values = self._read(rows, columns)
        return values[0 if one_row else slice(None), 0 if one_column else slice(None)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a matrix in a store cannot become an array without a copy")
        return np.asarray(self[:, :], dtype=dtype)

    def diagonal(self) -> Array:
        """The entries k(x_i, z_i)."""
        size, length = self.manifest.tile, min(self.shape)
        parts = [
            np.diagonal(self[start : start + size, start : min(start + size, length)])
            for start in range(0, length, size)
        ]
        return np.concatenate(parts)

    def to_dask(self) -> Any:
        """The matrix as a `dask.array`, a chunk for every tile; needs `tangentless[distributed]`."""
        try:
            array: Any = importlib.import_module("dask.array")
        except ImportError:
            raise ParameterError("to_dask needs Dask: pip install 'tangentless[distributed]'") from None
        name = f"gram-{self.manifest.checksum[:32]}"
        return array.from_array(self, chunks=self.manifest.tile, name=name, asarray=False, fancy=False)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{rows} × {columns} matrix of {self.manifest.kernel} in {self.store.files.address}>"

    def _read(self, rows: Selection, columns: Selection) -> Array:
        height, width = (_length(part, size) for part, size in zip((rows, columns), self.shape, strict=True))
        values = np.empty((height, width))
        size = self.manifest.tile
        column_parts = list(_by_tile(columns, self.shape[1], size))
        for i, here_rows, out_rows in _by_tile(rows, self.shape[0], size):
            for j, here_columns, out_columns in column_parts:
                if self.manifest.symmetric and j < i:
                    tile = self.store.read_tile((j, i)).T
                else:
                    tile = self.store.read_tile((i, j))
                _copy(values, out_rows, out_columns, tile, here_rows, here_columns)
        return values


def _split(key: Any) -> tuple[Any, Any]:
    """The keys of the two axes, an ellipsis standing for the missing ones."""
    parts = [part for part in (key if isinstance(key, tuple) else (key,)) if part is not Ellipsis]
    if len(parts) > 2:
        raise IndexError(f"a matrix has two axes, but {len(parts)} indices were given")
    if isinstance(key, tuple) and key and key[0] is Ellipsis and len(parts) == 1:
        return slice(None), parts[0]
    parts += [slice(None)] * (2 - len(parts))
    return parts[0], parts[1]


def _selection(key: Any, length: int) -> tuple[Selection, bool]:
    """A slice of positive step, or an array of indices in range; and whether the axis is dropped."""
    if isinstance(key, slice):
        start, stop, step = key.indices(length)
        return slice(start, stop, step) if step > 0 else np.arange(start, stop, step), False
    indices = np.arange(length)[key]  # by NumPy's rules, and with its errors
    if indices.ndim > 1:
        raise IndexError(f"an index array has one axis, not shape {indices.shape}")
    return (slice(int(indices), int(indices) + 1, 1), True) if indices.ndim == 0 else (indices, False)


def _is_open_mesh(rows: Any, columns: Any) -> bool:
    """Whether two keys are the column and the row that `np.ix_` makes."""
    shapes = np.shape(rows), np.shape(columns)
    return len(shapes[0]) == len(shapes[1]) == 2 and shapes[0][1] == 1 and shapes[1][0] == 1


def _length(part: Selection, length: int) -> int:
    return len(range(*part.indices(length))) if isinstance(part, slice) else len(part)


def _by_tile(part: Selection, length: int, size: int) -> Iterator[tuple[int, Selection, Selection]]:
    """For each tile that is touched: its number, the indices within it, and where they go in the result."""
    if isinstance(part, slice):
        indices = range(*part.indices(length))
        first = 0
        while first < len(indices):
            tile = indices[first] // size
            last = min(len(indices), -(-((tile + 1) * size - indices.start) // indices.step))
            begin = indices[first] - tile * size
            end = indices[last - 1] - tile * size + 1
            yield tile, slice(begin, end, indices.step), slice(first, last)
            first = last
    else:
        for tile in np.unique(part // size):
            places = np.flatnonzero(part // size == tile)
            yield int(tile), part[places] - tile * size, places


def _copy(
    values: Array, out_rows: Selection, out_columns: Selection, tile: Array, rows: Selection, columns: Selection
) -> None:
    if not (isinstance(out_rows, slice) and isinstance(out_columns, slice)):
        values[np.ix_(_indices(out_rows), _indices(out_columns))] = tile[rows][:, columns]
        return
    target, source = values[out_rows, out_columns], tile[rows, columns]
    strip = _STRIP if abs(source.strides[0]) < abs(source.strides[1]) else source.shape[1]
    for start in range(0, source.shape[1], strip):
        target[:, start : start + strip] = source[:, start : start + strip]


def _indices(part: Selection) -> NDArray[np.intp]:
    return np.arange(part.start, part.stop) if isinstance(part, slice) else part
