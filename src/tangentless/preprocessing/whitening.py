"""The three forms of a whitening: a matrix, a matrix of low rank, and a filter for patches.

All whiten by `V (E + epsilon)^(-1/2) V'`, with the eigenvectors V and eigenvalues E of the second moments `U' U / r` of
r rows U of length one, each of D numbers.

- `Dense` holds the matrix, (D, D).
- `LowRank`, for r < D, uses that it equals `epsilon^(-1/2) I - U' B U` with a matrix B of (r, r), so that nothing of
  size D x D is computed or kept.
- `Patches` whitens patches instead of images, so it does not depend on the size of the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..errors import DoesNotFit, InputError
from .mirrors import mirror

Array = NDArray[np.float64]
Apply = Callable[[Any], Any]
_NUMBERS_AT_ONCE = 2**22  # numbers in a chunk of images that are cut into patches


@dataclass(frozen=True, eq=False)
class Dense:
    """The matrix itself, (D, D)."""

    whitening: Array

    def on(self, on: Algebra) -> Apply:
        """A function on the device that whitens rows of length one, (n, D) to (n, D)."""
        there = on.xp.asarray(self.whitening)
        return lambda unit: on.product(unit, there)


@dataclass(frozen=True, eq=False)
class LowRank:
    """The matrix `scale I - U' inner U`; the rows of U are the images, without their means and of length one.

    If `inner` has twice as many rows as there are images, U has their mirror images after them.
    """

    images: NDArray[Any]
    inner: Array  # (r, r)
    scale: Array  # (1,)

    def on(self, on: Algebra) -> Apply:
        """A function on the device that whitens rows of length one, (n, D) to (n, D)."""
        unit = _unit_rows(on, self.images, mirrors=len(self.inner) > len(self.images))
        right = on.product(on.xp.asarray(self.inner), unit)
        scale = float(self.scale[0])
        return lambda rows: scale * rows - on.product(on.product(rows, unit.T), right)


@dataclass(frozen=True, eq=False)
class Patches:
    """A filter: a pixel becomes the mean of its values in all whitened p×p patches that cover it."""

    filters: Array  # (2 p - 1, 2 p - 1, C out, C in)
    shape: tuple[int, ...]  # of an image

    def on(self, on: Algebra) -> Apply:
        """A function on the device that whitens rows of length one, (n, D) to (n, D).

        It pads images by reflection, and multiplies by the filter in Fourier space.
        """
        xp, margin = on.xp, len(self.filters) // 2
        grid = self.shape[0] + 2 * margin, self.shape[1] + 2 * margin
        spectrum = xp.conj(xp.fft.rfft2(xp.asarray(self.filters), grid, axes=(0, 1)))
        patch = (margin + 1) ** 2 * self.shape[2]

        def apply(unit: Any) -> Any:
            images = _patch_scale(unit, patch).reshape(-1, *self.shape)
            padded = xp.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), mode="reflect")
            answer = xp.einsum("nyxi,yxoi->nyxo", xp.fft.rfft2(padded, axes=(1, 2)), spectrum)
            white = xp.fft.irfft2(answer, grid, axes=(1, 2))
            return white[:, : self.shape[0], : self.shape[1]].reshape(len(unit), -1)

        return apply


Form = Dense | LowRank | Patches


def fit_whole(on: Algebra, chunks: Iterable[NDArray[Any]], epsilon: float, mirrors: bool) -> Dense | LowRank | None:
    """The whitening of whole images: `LowRank` for fewer rows than numbers in an image. None without any chunk."""
    held: list[NDArray[Any]] = []
    total, count = None, 0
    for images in chunks:
        count += len(images)
        if total is None:
            held.append(images.copy())
            if count * (1 + mirrors) < images[0].size:
                continue
            _check_memory(on, 4 * images[0].size ** 2, images.shape)
        for one in held or [images]:
            total = on.add_square(total, to_unit(on, one))
        held = []
    if total is not None:
        return Dense(_inverse_root(on, total, count, epsilon, images.shape[1:] if mirrors else None))
    return _low_rank(on, np.concatenate(held), epsilon, mirrors) if held else None


def fit_patches(on: Algebra, chunks: Iterable[NDArray[Any]], epsilon: float, mirrors: bool, p: int) -> Patches | None:
    """The whitening of p×p patches, fitted to patches at a stride of half a patch. None without any chunk."""
    total, count, shape = None, 0, (0, 0, 0)
    for images in chunks:
        shape = images.shape[1:]
        if len(shape) != 3 or p > min(shape[:2]):
            raise InputError(f"patch={p} needs images (N, H, W, C) of at least {p}×{p}, not rows of shape {shape}")
        for part in spans(len(images), max(1, _NUMBERS_AT_ONCE // math.prod(shape))):
            unit = _patch_scale(to_unit(on, images[part]), p * p * shape[2]).reshape(-1, *shape)
            windows = on.xp.lib.stride_tricks.sliding_window_view(unit, (p, p), axis=(1, 2))
            step = max(1, p // 2)
            rows = windows[:, ::step, ::step].transpose(0, 1, 2, 4, 5, 3).reshape(-1, p * p * shape[2])
            total = on.add_square(total, on.xp.ascontiguousarray(rows))
            count += len(rows)
    if total is None:
        return None
    patch = (p, p, shape[2])
    root = _inverse_root(on, total, count, epsilon, patch if mirrors else None).reshape(*patch, *patch)
    filters = np.zeros((2 * p - 1, 2 * p - 1, shape[2], shape[2]))
    for down, across in np.ndindex(p, p):
        there = slice(p - 1 - down, 2 * p - 1 - down), slice(p - 1 - across, 2 * p - 1 - across)
        filters[there] += root[down, across].transpose(1, 2, 0, 3) / p**2
    return Patches(filters, shape)


def to_unit(on: Algebra, images: NDArray[Any]) -> Any:
    """Each image as a row, minus its mean and scaled to length one. A constant image becomes zero."""
    xp = on.xp
    flat = xp.asarray(images.reshape(len(images), -1)).astype(np.float64)
    means = flat.mean(axis=1, keepdims=True)
    flat -= means
    lengths = xp.linalg.norm(flat, axis=1, keepdims=True)
    # Rounding may leave a small rest of a constant image: it counts as zero, or scaling would make noise of it.
    rounding = 1e-12 * flat.shape[1] ** 0.5 * xp.abs(means)
    flat /= xp.where(lengths > rounding, lengths, np.inf)
    return flat


def _low_rank(on: Algebra, images: NDArray[Any], epsilon: float, mirrors: bool) -> LowRank:
    rows = len(images) * (1 + mirrors)
    _check_memory(on, rows * (2 * images[0].size + 4 * rows), images.shape)
    unit = _unit_rows(on, images, mirrors)
    values, vectors = on.eigen(on.product(unit, unit.T) / rows)
    roots = on.xp.sqrt(on.xp.maximum(values, 0) + epsilon)
    # Equals (epsilon^(-1/2) - (E + epsilon)^(-1/2)) / E / rows, without cancellation and without division by E = 0.
    weights = 1 / (rows * math.sqrt(epsilon) * roots * (roots + math.sqrt(epsilon)))
    inner = on.download(on.product(vectors * weights, vectors.T))
    return LowRank(images, np.ascontiguousarray((inner + inner.T) / 2), np.array([epsilon**-0.5]))


def _unit_rows(on: Algebra, images: NDArray[Any], mirrors: bool) -> Any:
    rows = [to_unit(on, one) for one in (images, *([mirror(images)] if mirrors else []))]
    return on.xp.concatenate(rows)


def _patch_scale(unit: Any, patch: int) -> Any:
    """Scale unit rows so that patches of so many numbers have a mean squared length of about one.

    Whole images have length one too, so epsilon means the same for both.
    """
    return unit * math.sqrt(unit.shape[1] / patch)


def _inverse_root(on: Algebra, total: Any, count: int, epsilon: float, mirrored: tuple[int, ...] | None) -> Array:
    """`V (E + epsilon)^(-1/2) V'` of the second moments of `count` rows; `total` is their sum by `add_square`.

    If `mirrored` is the shape of a row, the mirror images of the rows count too. Their moments are a permutation.
    """
    moments = on.fill(total)
    if mirrored is not None:
        there = on.xp.asarray(mirror(np.arange(len(moments)).reshape(1, *mirrored)).ravel())
        moments = (moments + moments[there][:, there]) / 2
    values, vectors = on.eigen(moments / count)
    # (E + epsilon)^(-1/4) on both sides: root root' is symmetric, and BLAS computes one triangle only.
    root = vectors * (on.xp.maximum(values, 0) + epsilon) ** -0.25
    product = on.download(on.fill(on.add_square(None, root.T)))
    return np.ascontiguousarray((product + product.T) / 2)


def _check_memory(on: Algebra, numbers: int, shape: tuple[int, ...]) -> None:
    if 8 * numbers > on.free_bytes():
        raise DoesNotFit(
            f"whitening whole images of shape {shape[1:]} takes {8 * numbers / 1e9:,.0f} GB, but only "
            f"{on.free_bytes() / 1e9:,.0f} GB are free; whiten patches, ZCA(patch=8), or make the images smaller"
        )
