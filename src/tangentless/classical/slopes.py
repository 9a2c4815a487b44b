"""Gradients of kernels of vectors, by two matrix products.

A subclass gives the derivatives of entries such that the gradient of k(x, z) by x is `by_product z + by_length x`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..backends import AnyDevice, OfImages
from ..gradients import Branches, Slopes, Tile
from ..kernel import Elementary

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VectorGradient(OfImages):
    """Prepared vectors with the sums of cotangents so far."""

    images: Any  # Vectors, or GpuVectors with all arrays here on the same GPU
    shape: tuple[int, ...]  # of an image
    rows: Any  # cotangents of the rows, (N, C)
    parameters: dict[str, Any]  # cotangents of parameters, (N,) each

    def __getitem__(self, part: slice) -> VectorGradient:
        slopes = {name: one[part] for name, one in self.parameters.items()}
        return VectorGradient(self.images[part], self.shape, self.rows[part], slopes)

    def unwanted(self) -> VectorGradient:
        """The same vectors with separate sums, which are thrown away."""
        slopes = {name: np.zeros_like(one) for name, one in self.parameters.items()}
        return VectorGradient(self.images, self.shape, np.zeros_like(self.rows), slopes)


class DifferentiableVectors(Elementary):
    """The gradient protocol of `gradients`, for kernels that give the derivatives of their entries."""

    unit: ClassVar[bool]

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        prepared: Any = self.prepare(device, images)
        with prepared.active():
            slopes = {name: np.zeros_like(prepared.norms) for name in self.parameters} if parameters else {}
            part = VectorGradient(prepared, images.shape[1:], np.zeros_like(prepared.rows), slopes)
        return Branches((part,), lambda parts, _: parts[0], prepared.diagonal)

    def pullback(self, tile: Tile) -> None:
        (left,), (right,) = tile.left.parts, tile.right.parts
        near, far = left.images, right.images
        with near.active():
            cotangent = near.upload(tile.cotangent)
            by_product, by_length, slopes = self._slopes(near.rows @ far.rows.T, near, far)
            by_product, by_length = cotangent * by_product, cotangent * by_length
            left.rows[...] += by_product @ far.rows + by_length.sum(axis=1)[:, None] * near.rows
            right.rows[...] += by_product.T @ near.rows + by_length.sum(axis=0)[:, None] * far.rows
            for name, total in left.parameters.items():
                total += (cotangent * slopes[name]).sum(axis=1)
        if tile.advance is not None:
            pairs = len(left) * (len(left) - 1) // 2 if tile.upper else tile.cotangent.size
            tile.advance(pairs)

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        (part,) = images.parts
        with part.images.active():
            by, (by_length, slopes) = part.images.upload(cotangent), self._diagonal_slopes(part.images)
            part.rows[...] += (2.0 * by * by_length)[:, None] * part.images.rows
            for name, total in part.parameters.items():
                total += by * slopes[name]

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        (part,) = images.parts
        vectors = part.images
        with vectors.active():
            lengths = np.where(vectors.norms > 0, vectors.norms, 1.0) if self.unit else np.ones_like(vectors.norms)
            pixels = (part.rows / lengths[:, None]).reshape(len(part), *part.shape)
            slopes = {name: vectors.deliver(total) for name, total in part.parameters.items()}
            return vectors.deliver(pixels), slopes

    parameters: ClassVar[tuple[str, ...]] = ()  # the names of real parameters

    @abstractmethod
    def _slopes(self, products: Array, left: Any, right: Any) -> tuple[Array, Array, dict[str, Array]]:
        """Derivatives of entries, (left, right) each: `by_product`, `by_length`, and a dictionary by parameter.

        The gradient by a row x is `by_product z + by_length x`, for kernels of the angle divided by the norm of x. At a
        kink, such as that of tangent kernels between parallel rows, the infinite slope counts as zero. `products` may
        be overwritten.
        """

    @abstractmethod
    def _diagonal_slopes(self, vectors: Any) -> tuple[Array, dict[str, Array]]:
        """`by_product + by_length` on the diagonal, (N,), and the derivatives of k(x, x) by parameter."""
