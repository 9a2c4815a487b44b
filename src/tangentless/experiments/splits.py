"""Which images an experiment trains and tests on, and decision values in the order of all classes of the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..datasets import Dataset
from ..errors import ParameterError

Array = NDArray[np.float64]


def choose(count: int, train: int | None, seed: int) -> NDArray[np.intp]:
    """Indices of random training images: the first of a random order, so smaller sets are part of larger ones.

    >>> bool(np.all(choose(100, 10, seed=0) == choose(100, None, seed=0)[:10]))
    True
    """
    if train is not None and train > count:
        raise ParameterError(f"there are {count:,} training images, and {train:,} are asked for; take fewer")
    return np.random.default_rng(seed).permutation(count)[:train]


def by_class(values: Array, classes: NDArray[np.intp], count: int) -> Array:
    """Decision values with a column for each of `count` classes, also for classes without a training image.

    With two classes, the estimator has one column v; theirs are -v/2 and v/2.

    >>> by_class(np.array([1.0, -3.0]), np.array([0, 2]), 3)
    array([[-0.5,  0. ,  0.5],
           [ 1.5,  0. , -1.5]])
    """
    found = np.zeros((len(values), count))
    found[:, classes] = values if values.ndim == 2 else np.stack([-values, values], axis=1) / 2
    return found


def check_test(dataset: Dataset, test: int | None) -> None:
    """Refuse to test on more images than there are."""
    if test is not None and test > len(dataset.test):
        there = f"{len(dataset.test):,} test images"
        raise ParameterError(f"there are {there}, and {test:,} are asked for; take fewer")
