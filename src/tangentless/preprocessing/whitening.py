"""The three forms of a whitening: a matrix, what few images are enough to say it, and a filter for patches.

All are `V (E + epsilon)^(-1/2) V'` for the eigenvectors V and eigenvalues E of second moments `U' U / r` of rows U of
length one. Of r < D rows of D numbers, that is `epsilon^(-1/2) I - U' B U` with a matrix B of r rows, so nothing of
size D x D is computed or kept. A filter takes the moments of patches, and so does not depend on the size of images.
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
_NUMBERS_AT_ONCE = 2**22  # of images that are cut into patches


@dataclass(frozen=True, eq=False)
class Dense:
    """The matrix itself, (D, D)."""

    whitening: Array

    def on(self, on: Algebra) -> Apply:
        """What whitens rows of length one, there."""
        there = on.xp.asarray(self.whitening)
        return lambda unit: on.product(unit, there)


@dataclass(frozen=True, eq=False)
class LowRank:
    """`scale I - U' inner U`, U the images (and then their mirror images, if inner has twice the rows) as unit rows."""

    images: NDArray[Any]
    inner: Array
    scale: Array  # (1,)

    def on(self, on: Algebra) -> Apply:
        """What whitens rows of length one, there."""
        unit = _unit_rows(on, self.images, mirrors=len(self.inner) > len(self.images))
        right = on.product(on.xp.asarray(self.inner), unit)
        scale = float(self.scale[0])
        return lambda rows: scale * rows - on.product(on.product(rows, unit.T), right)


@dataclass(frozen=True, eq=False)
class Patches:
    """A filter, (2 p - 1, 2 p - 1, C out, C in): the mean over all patches that cover a pixel of the patch whitened."""

    filters: Array
    shape: tuple[int, ...]

    def on(self, on: Algebra) -> Apply:
        """What whitens rows of length one, there; images are continued by reflection at their edges."""
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
    """Whitening of images as a whole: of low rank where there are fewer of them than numbers in one; None of none."""
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
        moments = _mirrored(on, on.fill(total), images.shape[1:]) if mirrors else on.fill(total)
        return Dense(_inverse_root(on, moments / count, epsilon))
    return _low_rank(on, np.concatenate(held), epsilon, mirrors) if held else None


def fit_patches(on: Algebra, chunks: Iterable[NDArray[Any]], epsilon: float, mirrors: bool, p: int) -> Patches | None:
    """Whitening of p×p patches: those that begin at every half patch, down and across; None of no images."""
    total, count, shape = None, 0, (0, 0, 0)
    for images in chunks:
        shape = images.shape[1:]
        if len(shape) != 3 or p > min(shape[:2]):
            raise InputError(f"patch={p} whitens images (N, H, W, C) of at least {p}×{p}, not rows of shape {shape}")
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
    moments = _mirrored(on, on.fill(total), patch) if mirrors else on.fill(total)
    root = _inverse_root(on, moments / count, epsilon).reshape(*patch, *patch)
    filters = np.zeros((2 * p - 1, 2 * p - 1, shape[2], shape[2]))
    for down, across in np.ndindex(p, p):
        there = slice(p - 1 - down, 2 * p - 1 - down), slice(p - 1 - across, 2 * p - 1 - across)
        filters[there] += root[down, across].transpose(1, 2, 0, 3) / p**2
    return Patches(filters, shape)


def to_unit(on: Algebra, images: NDArray[Any]) -> Any:
    """Each image as a row without its mean, of length one; an image of one colour becomes zero."""
    xp = on.xp
    flat = xp.asarray(images.reshape(len(images), -1)).astype(np.float64)
    means = flat.mean(axis=1, keepdims=True)
    flat -= means
    lengths = xp.linalg.norm(flat, axis=1, keepdims=True)
    # Of one colour, rounding may leave a little, which whitening would make the brightest image of all.
    rounding = 1e-12 * flat.shape[1] ** 0.5 * xp.abs(means)
    flat /= xp.where(lengths > rounding, lengths, np.inf)
    return flat


def _low_rank(on: Algebra, images: NDArray[Any], epsilon: float, mirrors: bool) -> LowRank:
    rows = len(images) * (1 + mirrors)
    _check_memory(on, rows * (2 * images[0].size + 4 * rows), images.shape)
    unit = _unit_rows(on, images, mirrors)
    values, vectors = on.eigen(on.product(unit, unit.T) / rows)
    roots = on.xp.sqrt(on.xp.maximum(values, 0) + epsilon)
    # (epsilon^(-1/2) - (E + epsilon)^(-1/2)) / E, without the difference and the division by what may be zero
    weights = 1 / (rows * math.sqrt(epsilon) * roots * (roots + math.sqrt(epsilon)))
    inner = on.download(on.product(vectors * weights, vectors.T))
    return LowRank(images, np.ascontiguousarray((inner + inner.T) / 2), np.array([epsilon**-0.5]))


def _unit_rows(on: Algebra, images: NDArray[Any], mirrors: bool) -> Any:
    rows = [to_unit(on, one) for one in (images, *([mirror(images)] if mirrors else []))]
    return on.xp.concatenate(rows)


def _patch_scale(unit: Any, patch: int) -> Any:
    """Images whose patches have a mean squared length of one, as whole images have: epsilon means the same to both."""
    return unit * math.sqrt(unit.shape[1] / patch)


def _mirrored(on: Algebra, moments: Any, shape: tuple[int, ...]) -> Any:
    """Moments of the images and their mirror images: the same numbers in other places."""
    there = on.xp.asarray(mirror(np.arange(len(moments)).reshape(1, *shape)).ravel())
    return (moments + moments[there][:, there]) / 2


def _inverse_root(on: Algebra, moments: Any, epsilon: float) -> Array:
    values, vectors = on.eigen(moments)
    # A root times its transpose: half the work where BLAS computes one triangle only.
    root = vectors * (on.xp.maximum(values, 0) + epsilon) ** -0.25
    product = on.download(on.fill(on.add_square(None, root.T)))
    return np.ascontiguousarray((product + product.T) / 2)


def _check_memory(on: Algebra, numbers: int, shape: tuple[int, ...]) -> None:
    if 8 * numbers > on.free_bytes():
        raise DoesNotFit(
            f"whitening images of shape {shape[1:]} as a whole takes {8 * numbers / 1e9:,.0f} GB, and only "
            f"{on.free_bytes() / 1e9:,.0f} GB are free; whiten patches, ZCA(patch=8), or make the images smaller"
        )
