"""The steps of all features of patches: patches as rows, contrast, whitening, and pooling into cells.

Arrays of images are (N, *grid, channels), of NumPy or CuPy; `xp` is their module. A vector has a grid without axes, and
is one patch. Pooling multiplies by a matrix along each axis of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_FLAT = 1e-6  # a patch is constant if its standard deviation is below this share of its mean


def patch_rows(xp: Any, images: Any, size: int) -> Any:
    """A copy of all patches of size×size pixels, (N, *positions, size * size * channels)."""
    grid = tuple(side - size + 1 for side in images.shape[1:-1])
    rows = xp.empty((len(images), *grid, *(size,) * len(grid), images.shape[-1]), images.dtype)
    for shift in np.ndindex(*(size,) * len(grid)):
        window = tuple(slice(start, start + side) for start, side in zip(shift, grid, strict=True))
        rows[(..., *shift, slice(None))] = images[(slice(None), *window)]
    return rows.reshape(len(images), *grid, -1)


def normalise_contrast(xp: Any, rows: Any, contrast: float) -> None:
    """Subtract the mean of each patch and divide by hypot(standard deviation, contrast), in place.

    Constant patches become zero.
    """
    means = rows.mean(axis=-1, keepdims=True)
    rows -= means
    deviations = xp.sqrt(xp.square(rows).mean(axis=-1, keepdims=True))
    # Rounding may leave a small rest of a constant patch, which scaling must not turn into a pattern.
    deviations = xp.where(deviations > _FLAT * xp.abs(means), xp.hypot(deviations, contrast), np.inf)
    rows /= deviations.astype(rows.dtype, copy=False)


def whitening(rows: Array, epsilon: float) -> tuple[Array, Array]:
    """The mean of the patches and their whitening matrix, `V (E + epsilon)^(-1/2) V'` of their covariance V E V'."""
    mean = rows.mean(axis=0)
    centred = rows - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(rows))
    return mean, (vectors * (np.maximum(values, 0) + epsilon) ** -0.5) @ vectors.T


def draw_patches(
    images: NDArray[Any], size: int, count: int, random: np.random.Generator, *, contrast: float | None = None
) -> Array:
    """Different random patches, (count, size * size * channels), or all if there are fewer than `count`."""
    grid = tuple(side - size + 1 for side in images.shape[1:-1])
    total = len(images) * math.prod(grid)
    places = np.unravel_index(random.choice(total, min(count, total), replace=False), (len(images), *grid))
    image, *corner = (place.reshape(-1, *(1,) * len(grid)) for place in places)
    offsets = np.ogrid[tuple(slice(size) for _ in grid)]
    window = tuple(start + offset for start, offset in zip(corner, offsets, strict=True))
    rows: Array = images[(image, *window)].astype(np.float64).reshape(len(image), -1)
    if contrast is not None:
        normalise_contrast(np, rows, contrast)
    return rows


def box_cells(side: int, cells: int, overlap: float) -> Array:
    """Means over windows of equal size that cover a line, (cells, side).

    Neighbouring windows have the share `overlap` of their places in common, up to rounding, and start at least one
    place apart.

    >>> box_cells(5, 2, overlap=0.0).round(2)
    array([[0.33, 0.33, 0.33, 0.  , 0.  ],
           [0.  , 0.  , 0.33, 0.33, 0.33]])
    """
    cells = min(cells, side)
    length = side / (1 + (cells - 1) * (1 - overlap)) - 1e-9  # less what rounding adds to whole numbers
    size = min(math.ceil(length), side - cells + 1)
    starts = np.linspace(0, side - size, cells).round()[:, None]
    places = np.arange(side)
    return ((places >= starts) & (places < starts + size)) / size


def gaussian_cells(side: int, step: float) -> Array:
    """Weights of Gaussian windows about a step apart on a line, (cells, side). The weights of a cell add up to one."""
    cells = count_gaussian_cells(side, step)
    centres = (np.arange(cells) + 0.5) * side / cells - 0.5
    weights = np.exp(-(((np.arange(side) - centres[:, None]) / step) ** 2))
    pooled: Array = weights / weights.sum(axis=1, keepdims=True)
    return pooled


def count_gaussian_cells(side: int, step: float) -> int:
    """The number of cells of `gaussian_cells`."""
    return max(1, round(side / step))


def pool(values: Any, weights: Sequence[Any]) -> Any:
    """Pooled maps, (N, *cells, channels), from maps (N, *grid, channels) and a matrix (cells, side) for each axis."""
    grid = values.shape[1:-1]
    count, channels = len(values), values.shape[-1]
    for axis, matrix in enumerate(weights):
        rest = math.prod(grid[axis + 1 :]) * channels
        values = matrix @ values.reshape(-1, grid[axis], rest)
    return values.reshape(count, *(len(matrix) for matrix in weights), channels)
