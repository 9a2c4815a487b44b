"""Rows of vectors, and what their inner products become: distances and gaps, without cancellation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLOSE = 2.0**-10  # a difference below this share of its terms has lost digits
TINY = 1e-300  # the smallest gap of opposite vectors: zero would not show their sign


@dataclass(frozen=True, eq=False)
class Vectors:
    """Rows as a kernel reads them, of length one or as they came, their norms, and the kernel's diagonal."""

    rows: Array
    norms: Array
    diagonal: Array
    tile: ClassVar[int] = 1024

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Vectors:
        return Vectors(self.rows[part], self.norms[part], self.diagonal[part])

    def active(self) -> AbstractContextManager[None]:
        """As that of vectors on a GPU, which is where work on them is done."""
        return nullcontext()

    def upload(self, values: Any) -> Any:
        """As that of vectors on a GPU."""
        return values

    deliver = upload


def read_rows(images: NDArray[Any], *, unit: bool) -> tuple[Array, Array]:
    """Rows (N, C) and their norms; with `unit`, rows of length one, zero where they were zero."""
    return with_norms(np.ascontiguousarray(images, dtype=np.float64), unit=unit)


def with_norms(images: Any, *, unit: bool) -> tuple[Any, Any]:
    """The same of float64 numbers in order, of NumPy or CuPy."""
    rows = images.reshape(len(images), -1)
    norms = np.linalg.norm(rows, axis=1)
    if unit:
        rows = rows / np.where(norms > 0, norms, 1.0)[:, None]
    return rows, norms


def to_distances(products: Array, left: Any, right: Any) -> Array:
    """Squared distances in place of inner products."""
    squares = left.norms**2, right.norms**2
    if isinstance(left, Vectors):
        from .pairs import squared_distances

        squared_distances(products, left.rows, right.rows, *squares)
    else:
        left.replace(products, right, "squared_distances", squares)
    return products


def to_gaps(products: Array, left: Any, right: Any) -> Array:
    """Gaps, as `pairs` defines them, in place of cosines."""
    if isinstance(left, Vectors):
        from .pairs import gaps

        gaps(products, left.rows, right.rows)
    else:
        left.replace(products, right, "gaps", (left.norms, right.norms))
    return products
