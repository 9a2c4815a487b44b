"""Standardisation: each channel to mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError, ParameterError
from .parameters import check_above
from .rows import KeepsInputs, parts, read_rows, set_shape, whole_or_not

Array = NDArray[np.float64]
Values = Sequence[float] | Array | None

CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010), "scale": 255.0}
"""The paper's standardisation of CIFAR-10, where it does not whiten: `Standardize(**CIFAR10)`."""


class Standardize(OneToOneFeatureMixin, KeepsInputs, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """(x / scale - mean) / std for each channel: (N, H, W, C) in, float64 of the same shape out.

    Parameters
    ----------
    mean, std
        One number for each channel, or None to compute them from the training images.
    scale
        A divisor for all values: 255 for bytes if mean and std are those of values from 0 to 1.

    Attributes
    ----------
    mean_, std_
        The mean and the divisor of each channel, (C,). A constant channel has the divisor 1.
    scale_
        The scale of the fit.
    shape_, n_features_in_
        The shape of an image, and the number of its entries.

    Examples
    --------
    >>> images = np.random.default_rng(0).integers(0, 256, (100, 4, 4, 3), dtype=np.uint8)
    >>> standard = Standardize().fit_transform(images)
    >>> bool(np.allclose(standard.mean(axis=(0, 1, 2)), 0)), bool(np.allclose(standard.std(axis=(0, 1, 2)), 1))
    (True, True)
    >>> Standardize(**CIFAR10).fit(images).mean_
    array([0.4914, 0.4822, 0.4465])
    """

    def __init__(self, mean: Values = None, std: Values = None, scale: float = 1.0) -> None:
        self.mean = mean
        self.std = std
        self.scale = scale

    @whole_or_not
    def fit(self, X: Any, y: Any = None) -> Self:
        """Compute the mean and standard deviation of each channel of X, unless they are given."""
        rows = read_rows(self, X)
        set_shape(self, rows.shape[1:])
        mean, std = self.check_parameters()
        self.scale_ = float(self.scale)
        self.mean_ = self._means(rows) if mean is None else mean
        self.std_ = self._deviations(rows) if std is None else std
        return self

    def transform(self, X: Any) -> Array:
        """Standardised images, float64."""
        check_is_fitted(self)
        rows = read_rows(self, X, self.shape_)
        result = np.empty(rows.shape)
        for part in parts(len(rows)):
            np.divide(rows[part], self.scale_, out=result[part])
            result[part] -= self.mean_
            result[part] /= self.std_
        return result

    def check_parameters(self) -> tuple[Array | None, Array | None]:
        """Refuse parameters that do not fit the images, and return mean and std as arrays or None."""
        check_above("scale", self.scale)
        mean, std = self._given("mean"), self._given("std")
        if std is not None and not (std > 0).all():
            raise ParameterError(f"every std must be above 0, not {self.std!r}")
        return mean, std

    def _given(self, name: str) -> Array | None:
        values = getattr(self, name)
        if values is None:
            return None
        try:
            array: Array = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise ParameterError(f"{name} must be one number for each channel, not {values!r}") from None
        if array.shape != self.shape_[-1:] or not np.isfinite(array).all():
            raise InputError(f"{name} must be {self.shape_[-1]} numbers, one for each channel, not {values!r}")
        return array

    def _means(self, rows: NDArray[Any], of: Callable[[Array], Array] = lambda values: values) -> Array:
        """The mean over all images and pixels of a function of the scaled values, (channels,)."""
        channels = self.shape_[-1]
        total: Array = np.zeros(channels)
        for part in parts(len(rows)):
            total += of(rows[part].reshape(-1, channels) / self.scale).sum(axis=0)
        return np.asarray(total / (rows.size // channels))

    def _deviations(self, rows: NDArray[Any]) -> Array:
        """Standard deviations (channels,), about the computed means even if `mean` is given.

        This is a second pass over the images: from sums of squares, digits would cancel.
        """
        means = self._means(rows)
        deviations = np.sqrt(self._means(rows, lambda values: np.square(values - means)))
        # Rounding may leave a small deviation of a constant channel.
        return np.where(deviations > 1e-12 * np.abs(means), deviations, 1.0)
