"""Random patches as filters, the features of Coates and Ng (2012) in the form that is known as a baseline.

Every patch of an image is normalised in mean and contrast, and whitened. A filter is such a patch of a training image,
scaled to length one. With r the inner product of a patch and a filter, and t a threshold, there are two features,
max(r - t, 0) and max(-r - t, 0), each averaged over the cells of a grid.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import ParameterError
from ..preprocessing.parameters import check_above, check_whole
from .base import Map, PatchFeatures, check_filters, check_patch
from .maps import box_cells, draw_patches, normalise_contrast, patch_rows, pool, whitening

_SAMPLED = 100_000  # patches that whitening is fitted to; more if there are more than half as many filters
_FILTERS_AT_ONCE = {"cpu": 1024, "cuda": 4096}


class RandomPatchFeatures(PatchFeatures):
    """Features of Coates and Ng: (N, H, W, C) in, (N, 2 * filters * pool * pool) out; sequences and vectors too.

    Parameters
    ----------
    filters
        The number of filters, each a patch of a training image.
    patch
        The side of a patch in pixels. A vector is one patch.
    pool
        Cells a side of the grid that features are averaged over: 2 gives quadrants.
    overlap
        The share of a cell that belongs to the next one too. On images of 32×32 pixels, 3 cells with an overlap of 0.6
        are windows of 15×15 positions, 6 apart.
    bias
        The threshold t of the features max(r - t, 0) and max(-r - t, 0).
    contrast
        Patches are divided by hypot(standard deviation, contrast), so that those of less contrast, which is noise, are
        not scaled up. In the unit of the pixels; for bytes 3 is usual.
    epsilon
        Added to the eigenvalues of the covariance of the patches, whose mean is near 1, before whitening.
    mirrors
        Average the features of an image and its mirror image. If the mirror images of all filters were filters too,
        this would amount to training on both images.
    random_state
        The seed of the draw of filters; equal numbers give equal features.
    backend, precision
        How features are computed: "cpu", "cuda", "auto" or a `Device`; float32 or float64.
    verbose
        Show the progress of `fit` and `transform`.

    Attributes
    ----------
    filters_
        The matrix that normalised patches are multiplied by, whitening included, (numbers in a patch, filters).
    offsets_
        What is added to the products, (filters,).
    shape_, n_features_in_
        The shape of an image, and the number of its entries.

    Examples
    --------
    >>> images = np.random.default_rng(0).integers(0, 256, (50, 12, 12, 3), dtype=np.uint8)
    >>> RandomPatchFeatures(filters=16).fit_transform(images).shape
    (50, 288)
    """

    def __init__(
        self,
        filters: int = 1024,
        patch: int = 6,
        pool: int = 3,
        overlap: float = 0.6,
        bias: float = 0.5,
        contrast: float = 3.0,
        epsilon: float = 0.1,
        mirrors: bool = False,
        random_state: Any = 0,
        backend: str | Device = "auto",
        precision: Any = "float32",
        verbose: bool = False,
    ) -> None:
        super().__init__(mirrors, random_state, backend, precision, verbose)
        self.filters = filters
        self.patch = patch
        self.pool = pool
        self.overlap = overlap
        self.bias = bias
        self.contrast = contrast
        self.epsilon = epsilon

    def check_parameters(self) -> None:
        super().check_parameters()
        for name in ("filters", "patch", "pool"):
            check_whole(name, getattr(self, name))
        check_above("bias", self.bias, zero=True)
        check_above("contrast", self.contrast, zero=True)
        check_above("epsilon", self.epsilon)
        if check_above("overlap", self.overlap, zero=True) >= 1:
            raise ParameterError(f"overlap must be below 1, where all cells would be one, not {self.overlap!r}")

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        check_patch(shape, self.patch)
        check_filters(self.filters, shape[0], self._positions())
        self._n_features_out = 2 * self.filters * math.prod(min(self.pool, side) for side in self._positions())

    def _positions(self) -> tuple[int, ...]:
        return tuple(side - self.patch + 1 for side in self.shape_[:-1])

    def _array_shapes(self) -> dict[str, tuple[int, ...]]:
        numbers = self.patch ** len(self.shape_[:-1]) * self.shape_[-1]
        return {"filters": (numbers, self.filters), "offsets": (self.filters,)}

    def _widest(self) -> int:
        return math.prod(self._positions()) * min(self.filters, min(_FILTERS_AT_ONCE.values()))

    def _learn(self, images: NDArray[Any], random: np.random.Generator, on: Algebra) -> None:
        rows = draw_patches(images, self.patch, max(2 * self.filters, _SAMPLED), random, contrast=self.contrast)
        mean, white = whitening(rows, self.epsilon)
        # Constant patches come last: they become filters only if there are not enough others.
        chosen = rows[np.argsort(~rows.any(axis=1), kind="stable")[: self.filters]]
        filters = np.where(chosen.any(axis=1, keepdims=True), (chosen - mean) @ white, 0.0)
        lengths = np.linalg.norm(filters, axis=1, keepdims=True)
        self.filters_ = white @ (filters / np.where(lengths > 0, lengths, 1.0)).T
        self.offsets_ = -(mean @ self.filters_)

    def _map(self, on: Algebra, dtype: np.dtype[Any]) -> Map:
        xp, bias = on.xp, float(self.bias)
        filters, offsets = (xp.asarray(one.astype(dtype)) for one in (self.filters_, self.offsets_))
        cells = [xp.asarray(box_cells(side, self.pool, self.overlap).astype(dtype)) for side in self._positions()]
        contrast, blocks = float(self.contrast), list(spans(self.filters, _FILTERS_AT_ONCE[on.name]))

        def features(images: Any) -> Any:
            patches = patch_rows(xp, images, self.patch)
            normalise_contrast(xp, patches, contrast)
            flat = patches.reshape(-1, patches.shape[-1])
            found = xp.empty((len(images), *(len(one) for one in cells), 2, self.filters), dtype)
            for block in blocks:
                responses = (flat @ filters[:, block]).reshape(*patches.shape[:-1], -1)
                # With r = response + offset: max(r - t, 0) = max(response, t - offset) - (t - offset). Means commute
                # with the subtraction, so r needs no array of its own.
                above, below = bias - offsets[block], -bias - offsets[block]
                found[..., 0, block] = pool(xp.maximum(responses, above), cells) - above
                found[..., 1, block] = below - pool(xp.minimum(responses, below, out=responses), cells)
            return found.reshape(len(images), -1)

        return features
