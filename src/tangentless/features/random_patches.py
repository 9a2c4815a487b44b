"""Random patches as filters, the features of Coates and Ng (2012) in the form that is known as a baseline.

Every patch of an image loses its mean and is brought to one contrast, and is whitened. Its response to a filter, which
is another such patch drawn from the training images and scaled to length one, gives two features: how far it lies above
a threshold, and how far below the negative one. They are averaged over the cells of a grid.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from .base import Map, PatchFeatures, check_above, check_filters, check_patch, check_whole
from .maps import draw_patches, even_cells, even_out, patch_rows, pool, whitening

_SAMPLED = 100_000  # patches that whitening is fitted to, at least
_FILTERS_AT_ONCE = {"cpu": 1024, "cuda": 4096}


class RandomPatchFeatures(PatchFeatures):
    """Features of Coates and Ng: (N, H, W, C) in, (N, 2 * filters * pool * pool) out; sequences and vectors too.

    Parameters
    ----------
    filters
        How many patches of the training images to respond to.
    patch
        Pixels a side of a patch. A vector is one patch.
    pool
        Cells a side of the grid that responses are averaged over: 2 gives quadrants.
    bias
        The threshold that a response has to pass.
    contrast
        The smallest standard deviation, in the unit of the pixels, that a patch is scaled up from: what has less is
        noise. For bytes 3 is usual.
    epsilon
        What whitening adds to the eigenvalues of the patches' covariance; their mean is near 1.
    mirrors
        Average over an image and its mirror image: the features that training on both would learn with, if the
        filters' mirror images were filters too.
    random_state
        What the draw of filters starts from; equal numbers give equal features.
    backend, precision
        How features are computed: "cpu", "cuda", "auto" or a `Device`; float32 or float64.
    verbose
        Show how far `fit` and `transform` are.

    Attributes
    ----------
    filters_
        What patches of one contrast are multiplied by, whitening included, (numbers in a patch, filters).
    offsets_
        What is added to the products, (filters,).
    shape_, n_features_in_
        The shape of an image, and how many numbers that is.

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
        bias: float = 1.0,
        contrast: float = 3.0,
        epsilon: float = 0.01,
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
        # Patches of one colour come last: they are filters only if there are no others.
        chosen = rows[np.argsort(~rows.any(axis=1), kind="stable")[: self.filters]]
        filters = np.where(chosen.any(axis=1, keepdims=True), (chosen - mean) @ white, 0.0)
        lengths = np.linalg.norm(filters, axis=1, keepdims=True)
        self.filters_ = white @ (filters / np.where(lengths > 0, lengths, 1.0)).T
        self.offsets_ = -(mean @ self.filters_)

    def _map(self, on: Algebra, dtype: np.dtype[Any]) -> Map:
        xp, bias = on.xp, float(self.bias)
        filters, offsets = (xp.asarray(one.astype(dtype)) for one in (self.filters_, self.offsets_))
        cells = [xp.asarray(even_cells(side, self.pool).astype(dtype)) for side in self._positions()]
        contrast, blocks = float(self.contrast), list(spans(self.filters, _FILTERS_AT_ONCE[on.name]))

        def features(images: Any) -> Any:
            patches = patch_rows(xp, images, self.patch)
            even_out(xp, patches, contrast)
            flat = patches.reshape(-1, patches.shape[-1])
            found = xp.empty((len(images), *(len(one) for one in cells), 2, self.filters), dtype)
            for block in blocks:
                responses = (flat @ filters[:, block]).reshape(*patches.shape[:-1], -1)
                # max(r, t) - t is what lies above a threshold t: offsets and thresholds need no array of their own.
                above, below = bias - offsets[block], -bias - offsets[block]
                found[..., 0, block] = pool(xp.maximum(responses, above), cells) - above
                found[..., 1, block] = below - pool(xp.minimum(responses, below, out=responses), cells)
            return found.reshape(len(images), -1)

        return features
