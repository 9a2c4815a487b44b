"""Preprocessing for networks (pixels from 0 to 1, standardised channels or ZCA), and balanced subsets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..errors import ParameterError
from ..labels import in_turns
from .checks import check_choice
from .recipes import INPUTS, Inputs

Images = NDArray[np.float32]
Transform = Callable[[NDArray[np.uint8]], Images]


def make_transform(inputs: Inputs, images: NDArray[np.uint8], epsilon: float = 1e-4) -> Transform:
    """A function from pixels to inputs: the preprocessing `inputs`, fitted to the training images.

    >>> pixels = make_transform("pixels", np.array([[0, 255]], np.uint8).reshape(1, 1, 2, 1))
    >>> pixels(np.full((1, 1, 2, 1), 51, np.uint8)).ravel()
    array([0.2, 0.2], dtype=float32)
    """
    from ..preprocessing import ZCA, Standardize

    check_choice("inputs", inputs, INPUTS)
    if inputs == "pixels":
        largest = float(images.max()) or 1.0
        return lambda pixels: (pixels / largest).astype(np.float32)
    fitted = (Standardize() if inputs == "standardize" else ZCA(epsilon=epsilon)).fit(images)
    return lambda pixels: fitted.transform(pixels).astype(np.float32)


def balanced(labels: NDArray[np.int64], count: int | None, seed: int | list[int]) -> NDArray[np.intp]:
    """Indices of `count` random images whose class counts differ by at most one. With None, all images in order.

    >>> labels = np.arange(100) % 3
    >>> np.bincount(labels[balanced(labels, 31, seed=0)])
    array([11, 10, 10])
    """
    if count is None or count == len(labels):
        return np.arange(len(labels))
    if not 1 <= count <= len(labels):
        raise ParameterError(f"there are {len(labels):,} training images, so {count:,} cannot be drawn")
    return in_turns(labels, seed)[:count]
