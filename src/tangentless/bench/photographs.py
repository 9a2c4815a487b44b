"""Pieces of photographs: real images of any size, cut from the two sample photographs of scikit-learn.

    python -m tangentless.bench.photographs FILE.npy

writes the photographs themselves, for machines without scikit-learn.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..files import save_array

Photographs = NDArray[Any]  # (N, height, width, 3)
GREY_ROWS = 4  # channels of a sequence: neighbouring rows of grey


def load_photographs() -> Photographs:
    """The photographs of scikit-learn, (2, 427, 640, 3): a temple in China and a flower."""
    from sklearn.datasets import load_sample_images

    return np.stack(load_sample_images().images)


def cut(photographs: Photographs, size: tuple[int, int], count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """At least `count` pieces on a regular grid, and for each piece the index of its photograph.

    The step of the grid is the largest that gives so many pieces; they overlap if it is smaller than their size.

    >>> pieces, numbers = cut(np.zeros((2, 8, 9, 3)), (4, 4), 8)
    >>> pieces.shape, numbers
    ((8, 4, 4, 3), array([0, 0, 0, 0, 1, 1, 1, 1]))
    """
    lengths = photographs.shape[1:3]
    for step in range(max(lengths), 0, -1):
        places = [range(0, length - side + 1, step) for length, side in zip(lengths, size, strict=True)]
        if len(photographs) * math.prod(map(len, places)) >= count:
            corners = list(itertools.product(range(len(photographs)), *places))
            pieces = np.stack([photographs[n, y : y + size[0], x : x + size[1]] for n, y, x in corners])
            return pieces, np.array([n for n, _, _ in corners])
    raise InputError(f"{len(photographs)} photographs of {lengths} pixels have fewer than {count} pieces of {size}")


def has_pieces(shape: tuple[int, ...]) -> bool:
    """Whether `pieces` can make images of this shape."""
    block = math.isqrt(shape[-1] // 3)
    return (len(shape) == 3 and shape[-1] == 3 * block**2 > 0) or (len(shape) == 2 and shape[-1] == GREY_ROWS)


def pieces(photographs: Photographs, shape: tuple[int, ...], count: int) -> NDArray[np.float32]:
    """`count` pieces in random order, every channel standardised.

    Images of 12 or 48 channels have blocks of 2×2 or 4×4 pixels as positions. Sequences of 4 channels are four
    neighbouring rows of a grey photograph.

    >>> random = np.random.default_rng(0).integers(0, 256, (2, 64, 80, 3))
    >>> [pieces(random, shape, 5).shape for shape in ((8, 8, 3), (8, 6, 12), (32, 4))]
    [(5, 8, 8, 3), (5, 8, 6, 12), (5, 32, 4)]
    """
    if len(shape) == 2:
        grey = photographs.mean(axis=-1, keepdims=True)
        found = np.moveaxis(cut(grey, (GREY_ROWS, shape[0]), count)[0][..., 0], 1, 2)
    else:
        height, width, block = *shape[:2], math.isqrt(shape[2] // 3)
        found, _ = cut(photographs, (height * block, width * block), count)
        blocks = found.reshape(-1, height, block, width, block, 3)
        found = np.moveaxis(blocks, 2, 3).reshape(-1, *shape)
    return standardize(found[np.random.default_rng(0).permutation(len(found))[:count]])


def standardize(images: NDArray[Any]) -> NDArray[np.float32]:
    """Scale every channel to mean 0 and deviation 1 over all images."""
    axes = tuple(range(images.ndim - 1))
    scaled: NDArray[np.float32] = ((images - images.mean(axis=axes)) / images.std(axis=axes)).astype(np.float32)
    return scaled


if __name__ == "__main__":
    save_array(Path(sys.argv[1]), load_photographs())
