"""Mirror images: left and right exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError


def mirror(images: NDArray[Any]) -> NDArray[Any]:
    """Images (N, H, W, C) mirrored left to right, or sequences (N, L, C) reversed; a view of the input.

    >>> mirror(np.arange(3).reshape(1, 1, 3, 1)).ravel()
    array([2, 1, 0])
    """
    if images.ndim not in (3, 4):
        raise InputError(
            f"only images (N, H, W, C) and sequences (N, L, C) have mirror images, not arrays of shape {images.shape}"
        )
    return np.flip(images, axis=-2)


def add_mirrors(images: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """All images followed by all mirror images, with their labels: twice as many rows.

    For estimators prefer `flips=True`: it gives the same predictions from a matrix of a quarter the size.

    >>> images, labels = add_mirrors(np.arange(3).reshape(1, 1, 3, 1), np.array([7]))
    >>> images.reshape(2, 3).tolist(), labels.tolist()
    ([[0, 1, 2], [2, 1, 0]], [7, 7])
    """
    return np.concatenate([images, mirror(images)]), np.concatenate([labels, labels])
