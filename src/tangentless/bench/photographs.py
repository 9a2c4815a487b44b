"""Pieces of photographs: real images of any size, cut from the two samples that scikit-learn has.

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
    """Those of scikit-learn: a temple in China and a flower, 427×640 pixels each."""
    from sklearn.datasets import load_sample_images

    return np.stack(load_sample_images().images)


def cut(photographs: Photographs, size: tuple[int, int], count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """At least `count` pieces at the places of a regular grid, and the number of the photograph of each.

    They overlap where there are not enough otherwise.

    >>> pieces, numbers = cut(np.zeros((2, 8, 9, 3)), (4, 4), 8)
    >>> pieces.shape, numbers
    ((8, 4, 4, 3), array([0, 0, 0, 0, 1, 1, 1, 1]))
    """
    lengths = photographs.shape[1:3]
    for step in range(max(size), 0, -1):
        places = [range(0, length - side + 1, step) for length, side in zip(lengths, size, strict=True)]
        if len(photographs) * math.prod(map(len, places)) >= count:
            corners = list(itertools.product(range(len(photographs)), *places))
            pieces = np.stack([photographs[n, y : y + size[0], x : x + size[1]] for n, y, x in corners])
            return pieces, np.array([n for n, _, _ in corners])
    raise InputError(f"{len(photographs)} photographs of {lengths} pixels have fewer than {count} pieces of {size}")


def has_pieces(shape: tuple[int, ...]) -> bool:
    """Whether `pieces` has some of this shape."""
    block = math.isqrt(shape[-1] // 3)
    return (len(shape) == 3 and shape[-1] == 3 * block**2 > 0) or (len(shape) == 2 and shape[-1] == GREY_ROWS)


def pieces(photographs: Photographs, shape: tuple[int, ...], count: int, seed: int = 0) -> NDArray[np.float32]:
    """So many pieces in random order, every channel standardised.

    Images of 12 or 48 channels are made of blocks of 2×2 or 4×4 pixels; sequences of 4 channels are neighbouring rows.

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
    return standardize(found[np.random.default_rng(seed).permutation(len(found))[:count]])


def standardize(images: NDArray[Any]) -> NDArray[np.float32]:
    """Mean zero and deviation one in every channel, over all images."""
    axes = tuple(range(images.ndim - 1))
    scaled: NDArray[np.float32] = ((images - images.mean(axis=axes)) / images.std(axis=axes)).astype(np.float32)
    return scaled


if __name__ == "__main__":
    save_array(Path(sys.argv[1]), load_photographs())
