"""Convolutional kernel networks (Mairal et al. 2014, in the form of Mairal 2016), learnt without labels.

A layer maps a patch x to the vector |x| κ(Z'Z)^(-1/2) κ(Z'x / |x|). The columns of Z are anchors of length one, and
κ(u) = exp((u - 1) / width²) acts on each entry. Inner products of such vectors approximate |x| |y| κ(cos(x, y)), and
are exact at the anchors (Nyström). Anchors are the centres of spherical k-means of patches. The maps are then averaged
under Gaussian windows, and are the input of the next layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import ParameterError
from ..preprocessing.parameters import check_above, check_whole
from .base import NUMBERS_AT_ONCE, Map, PatchFeatures, check_filters, check_patch
from .maps import count_gaussian_cells, draw_patches, gaussian_cells, normalise_contrast, patch_rows, pool, whitening

_SAMPLED = 50_000  # patches that anchors are learnt from: at least so many,
_PATCHES_AN_ANCHOR = 50  # and at least so many for each anchor
_ROUNDS = 10  # iterations of k-means
_SMALLEST = 1e-6  # added to the eigenvalues of κ(Z'Z), the largest of which is at least 1


@dataclass(frozen=True)
class _Layer:
    """The sizes of one layer."""

    filters: int
    patch: int
    pool: int
    grid: tuple[int, ...]  # of its input maps
    channels: int  # of its input maps

    @property
    def positions(self) -> tuple[int, ...]:
        """The grid of positions of patches."""
        return tuple(side - self.patch + 1 for side in self.grid)

    @property
    def cells(self) -> list[NDArray[np.float64]]:
        """The matrices of the pooling, one for each axis of the grid."""
        return [gaussian_cells(side, self.pool) for side in self.positions]

    @property
    def pooled(self) -> tuple[int, ...]:
        """The grid after pooling: that of the next layer."""
        return tuple(count_gaussian_cells(side, self.pool) for side in self.positions)

    @property
    def numbers(self) -> int:
        """Numbers in a patch."""
        return int(self.patch ** len(self.grid) * self.channels)

    @property
    def widest(self) -> int:
        """Intermediate numbers per image: patches, responses and their products."""
        return math.prod(self.positions) * (2 * self.filters + self.numbers)


class ConvolutionalKernelNetwork(PatchFeatures):
    """An unsupervised convolutional kernel network: (N, H, W, C) in, (N, cells * last filters) out.

    Parameters
    ----------
    filters
        The number of anchors of each layer. As many layers as entries.
    patches
        The side of the patches of each layer, in pixels of its input. A vector is one patch.
    pools
        The distance between the Gaussian windows of each layer's pooling, in pixels of its maps.
    width
        The width of κ: with smaller widths, only more similar patches have similar features.
    contrast
        Normalise patches of pixels to mean 0 and contrast 1: the divisor is hypot(standard deviation, contrast). None
        leaves them as they are.
    epsilon
        Whiten patches of pixels, with this added to the eigenvalues of their covariance. None does not whiten them.
    mirrors, random_state, backend, precision, verbose
        As in `RandomPatchFeatures`.

    Attributes
    ----------
    anchors0_, roots0_, ...
        For each layer its anchors, (numbers in a patch, filters), and κ(Z'Z)^(-1/2), (filters, filters).
    mean_, white_
        The mean that whitening subtracts from patches of pixels, and the matrix that it multiplies them by; of length
        0 without whitening.
    shape_, n_features_in_
        The shape of an image, and the number of its entries.

    Examples
    --------
    >>> images = np.random.default_rng(0).random((30, 12, 12, 1))
    >>> ConvolutionalKernelNetwork((8, 16), (3, 3), (2, 2)).fit_transform(images).shape
    (30, 64)
    """

    def __init__(
        self,
        filters: tuple[int, ...] = (64, 512),
        patches: tuple[int, ...] = (5, 3),
        pools: tuple[int, ...] = (2, 3),
        width: float = 0.5,
        contrast: float | None = None,
        epsilon: float | None = None,
        mirrors: bool = False,
        random_state: Any = 0,
        backend: str | Device = "auto",
        precision: Any = "float32",
        verbose: bool = False,
    ) -> None:
        super().__init__(mirrors, random_state, backend, precision, verbose)
        self.filters = filters
        self.patches = patches
        self.pools = pools
        self.width = width
        self.contrast = contrast
        self.epsilon = epsilon

    def check_parameters(self) -> None:
        super().check_parameters()
        given = {name: getattr(self, name) for name in ("filters", "patches", "pools")}
        if not all(isinstance(one, tuple | list) and one for one in given.values()):
            raise ParameterError(
                "filters, patches and pools must be tuples, one number for each layer, such as (64, 512)"
            )
        if len({len(one) for one in given.values()}) > 1:
            raise ParameterError(f"filters, patches and pools must be of one length, the number of layers, not {given}")
        for name, values in given.items():
            for value in values:
                check_whole(name, value)
        check_above("width", self.width)
        if self.contrast is not None:
            check_above("contrast", self.contrast, zero=True)
        if self.epsilon is not None:
            check_above("epsilon", self.epsilon)

    def _layers(self) -> Iterator[_Layer]:
        grid, channels = self.shape_[:-1], self.shape_[-1]
        for place, (filters, patch, step) in enumerate(zip(self.filters, self.patches, self.pools, strict=True)):
            check_patch((0, *grid, channels), patch, "the images" if place == 0 else f"the maps of layer {place}")
            layer = _Layer(filters, patch, step, grid, channels)
            yield layer
            grid, channels = layer.pooled, filters

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        for layer in self._layers():
            check_filters(layer.filters, shape[0], layer.positions)
        self._n_features_out = layer.filters * math.prod(layer.pooled)

    def _array_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for place, layer in enumerate(self._layers()):
            if place == 0:
                numbers = 0 if self.epsilon is None else layer.numbers
                shapes |= {"mean": (numbers,), "white": (numbers, numbers)}
            shapes[f"anchors{place}"] = (layer.numbers, layer.filters)
            shapes[f"roots{place}"] = (layer.filters, layer.filters)
        return shapes

    def _widest(self) -> int:
        return max(layer.widest for layer in self._layers())

    def _learn(self, images: NDArray[Any], random: np.random.Generator, on: Algebra) -> None:
        layers = list(self._layers())
        self.mean_, self.white_ = np.zeros(0), np.zeros((0, 0))
        for place, layer in enumerate(layers):
            wanted = max(_SAMPLED, _PATCHES_AN_ANCHOR * layer.filters)
            # Enough images to draw a quarter of their patches: neighbouring patches are much alike.
            some = -(-4 * wanted // math.prod(layer.positions))
            seen = images[random.choice(len(images), min(len(images), some), replace=False)]
            maps = seen if place == 0 else self._maps(on, seen, layers[:place])
            rows = draw_patches(maps, layer.patch, wanted, random, contrast=self.contrast if place == 0 else None)
            if place == 0 and self.epsilon is not None:
                self.mean_, self.white_ = whitening(rows, self.epsilon)
                rows = (rows - self.mean_) @ self.white_
            anchors = spherical_means(on, rows, layer.filters, random)
            values, vectors = on.eigen(on.xp.exp((anchors @ anchors.T - 1) / self.width**2))
            root = (vectors * (on.xp.maximum(values, 0) + _SMALLEST) ** -0.5) @ vectors.T
            setattr(self, f"anchors{place}_", np.ascontiguousarray(on.download(anchors).T))
            setattr(self, f"roots{place}_", on.download(root))

    def _maps(self, on: Algebra, images: NDArray[Any], layers: list[_Layer]) -> NDArray[np.float32]:
        """The maps after some layers, (N, *grid, filters), on the host."""
        last, found = layers[-1], []
        compute = self._map(on, np.dtype(np.float32), layers)
        for part in spans(len(images), max(1, NUMBERS_AT_ONCE[on.name] // self._widest())):
            found.append(on.download(compute(on.upload(images[part]).astype(np.float32))))
        return np.concatenate(found).reshape(len(images), *last.pooled, last.filters)

    def _map(self, on: Algebra, dtype: np.dtype[Any], layers: list[_Layer] | None = None) -> Map:
        xp, steps = on.xp, []
        for place, layer in enumerate(self._layers() if layers is None else layers):
            names = f"anchors{place}_", f"roots{place}_"
            anchors, root = (xp.asarray(getattr(self, name).astype(dtype)) for name in names)
            steps.append((layer.patch, anchors, root, [xp.asarray(one.astype(dtype)) for one in layer.cells]))
        mean, white = (xp.asarray(one.astype(dtype)) for one in (self.mean_, self.white_))
        sharpness = float(self.width**-2)

        def features(images: Any) -> Any:
            for place, (patch, anchors, root, cells) in enumerate(steps):
                rows = patch_rows(xp, images, patch)
                grid, rows = rows.shape[:-1], rows.reshape(-1, rows.shape[-1])
                if place == 0 and self.contrast is not None:
                    normalise_contrast(xp, rows, self.contrast)
                if place == 0 and self.epsilon is not None:
                    rows = (rows - mean) @ white
                lengths = xp.sqrt(xp.square(rows).sum(axis=1, keepdims=True))
                rows /= xp.where(lengths > 0, lengths, 1.0).astype(dtype, copy=False)
                alike = rows @ anchors
                alike -= 1.0
                alike *= sharpness
                found = xp.exp(alike, out=alike) @ root
                found *= lengths
                images = pool(found.reshape(*grid, -1), cells)
            return images.reshape(len(images), -1)

        return features


def spherical_means(on: Algebra, rows: NDArray[Any], count: int, random: np.random.Generator) -> Any:
    """k-means by the cosine: centres of length one, (count, numbers).

    A centre without members becomes a random row. Rows of zeros are left out, unless too few rows remain. Members are
    summed by a product with a matrix of zeros and ones, so results do not depend on the order in which threads finish.
    """
    xp = on.xp
    lengths = np.linalg.norm(rows, axis=1)
    rows = rows[lengths > 0] / lengths[lengths > 0, None]
    if len(rows) < count:  # few patches, or constant images: repeated anchors and anchors of zeros do no harm
        rows = np.concatenate([rows, np.zeros((count - len(rows), rows.shape[1]))])
    units = on.upload(rows)
    centres = units[random.choice(len(rows), count, replace=False)]
    for _ in range(_ROUNDS):
        totals = xp.zeros_like(centres)
        for part in spans(len(rows), max(1, NUMBERS_AT_ONCE[on.name] // count)):
            nearest = (units[part] @ centres.T).argmax(axis=1)
            members = (nearest == xp.arange(count)[:, None]).astype(units.dtype)
            totals += members @ units[part]
        lengths = xp.linalg.norm(totals, axis=1, keepdims=True)
        spare = units[random.choice(len(rows), count, replace=False)]
        centres = xp.where(lengths > 0, totals / xp.where(lengths > 0, lengths, 1.0), spare)
    return centres
