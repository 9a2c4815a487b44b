"""Vectors prepared for a kernel, and their inner products turned into distances or gaps without cancellation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLOSE = 2.0**-10  # a difference below this share of its terms has lost too many digits
TINY = 1e-300  # the smallest absolute gap of opposite vectors: zero would lose the sign


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors on the CPU, prepared for a kernel. `GpuVectors` is the same on a GPU."""

    rows: Array  # (N, C), scaled to length one for kernels of the angle
    norms: Array  # before scaling, (N,)
    diagonal: Array  # k(x, x), (N,)
    tile: ClassVar[int] = 1024

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Vectors:
        return Vectors(self.rows[part], self.norms[part], self.diagonal[part])

    def active(self) -> AbstractContextManager[None]:
        """A context for work on the rows; only `GpuVectors` need one."""
        return nullcontext()

    def upload(self, values: Any) -> Any:
        """The values themselves: they are where the rows are. `GpuVectors` copy them to the GPU."""
        return values

    deliver = upload


def read_rows(images: NDArray[Any], *, unit: bool) -> tuple[Array, Array]:
    """Rows (N, C) and their norms (N,). With `unit`, rows are scaled to length one; zero rows stay zero."""
    return with_norms(np.ascontiguousarray(images, dtype=np.float64), unit=unit)


def with_norms(images: Any, *, unit: bool) -> tuple[Any, Any]:
    """As `read_rows`, for contiguous float64 arrays of NumPy or CuPy."""
    rows = images.reshape(len(images), -1)
    norms = np.linalg.norm(rows, axis=1)
    if unit:
        rows = rows / np.where(norms > 0, norms, 1.0)[:, None]
    return rows, norms


def to_distances(products: Array, left: Any, right: Any) -> Array:
    """Replace inner products by squared distances, in place."""
    squares = left.norms**2, right.norms**2
    if isinstance(left, Vectors):
        from .pairs import squared_distances

        squared_distances(products, left.rows, right.rows, *squares)
    else:
        left.replace_products(products, right, "squared_distances", squares)
    return products


def to_gaps(products: Array, left: Any, right: Any) -> Array:
    """Replace cosines by gaps, in place; `pairs` defines gaps."""
    if isinstance(left, Vectors):
        from .pairs import gaps

        gaps(products, left.rows, right.rows)
    else:
        left.replace_products(products, right, "gaps", (left.norms, right.norms))
    return products
