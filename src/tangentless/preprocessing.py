"""Preprocessing of images: ZCA whitening, as the kernels of the paper want it.

Each image loses its own mean and is scaled to length one; then all are whitened by one symmetric matrix, which leaves
them images: `V (E + epsilon)^(-1/2) V'` for the eigenvectors V and eigenvalues E of their second moments `X' X / N`.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from .errors import InputError, ParameterError
from .solve import is_number

Array = NDArray[np.float64]

_ROWS_AT_ONCE = 4096  # images in float64 beside the result: 100 MB of CIFAR-10


class ZCA(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Whitening that keeps images images: (N, H, W, C) in, the same shape out; sequences and vectors too.

    Parameters
    ----------
    epsilon
        What is added to the eigenvalues: directions with less than that are left small. The paper has 1e-5 for kernels
        on CIFAR-10, and 1e-4 for CIFAR-100.
    mirrors
        Count the mirror image of every image too. Whitening then commutes with mirroring, which training with
        `flips=True` relies on. Vectors have no mirror images: leave it off for them.

    Attributes
    ----------
    whitening_
        The matrix, (D, D) for D numbers in an image, symmetric.
    shape_
        The shape of an image.
    n_features_in_
        D.

    Examples
    --------
    >>> images = np.random.default_rng(0).standard_normal((500, 4, 4, 1)).cumsum(axis=1)  # neighbours are alike
    >>> white = ZCA(epsilon=1e-6).fit_transform(images).reshape(500, 16)
    >>> moments = white.T @ white / 500
    >>> bool(np.abs(np.linalg.eigvalsh(moments)[1:] - 1).max() < 0.01)  # the mean of each image is gone: 15 of 16
    True
    """

    def __init__(self, epsilon: float = 1e-5, mirrors: bool = False) -> None:
        self.epsilon = epsilon
        self.mirrors = mirrors

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the whitening matrix of images X."""
        self._check_parameters()
        rows = self._read(X, reset=True)
        self.shape_ = rows.shape[1:]
        self.n_features_in_ = math.prod(self.shape_)
        if self.mirrors and len(self.shape_) < 2:
            raise InputError("vectors have no mirror image; mirrors=True needs sequences or images")
        moments = np.zeros((self.n_features_in_, self.n_features_in_))
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            for images in (part, np.flip(part, axis=-2)) if self.mirrors else (part,):
                unit = _to_unit(images)
                moments += unit.T @ unit
        moments /= len(rows) * (2 if self.mirrors else 1)
        values, vectors = eigh(moments, overwrite_a=True, check_finite=False)
        whitening = (vectors / np.sqrt(np.maximum(values, 0) + self.epsilon)) @ vectors.T
        self.whitening_ = (whitening + whitening.T) / 2
        return self

    def transform(self, X: Any) -> Array:
        """Whitened images, float64, of the shape that came."""
        check_is_fitted(self)
        rows = self._read(X, reset=False)
        if rows.shape[1:] != self.shape_:
            raise InputError(f"X holds images of shape {rows.shape[1:]}, but ZCA was fitted to {self.shape_}")
        white = np.empty((len(rows), self.n_features_in_))
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            white[part] = _to_unit(rows[part]) @ self.whitening_
        return white.reshape(rows.shape)

    def _check_parameters(self) -> None:
        if not is_number(self.epsilon) or self.epsilon <= 0:
            raise ParameterError(f"epsilon must be a finite number above 0, not {self.epsilon!r}")

    def _read(self, X: Any, *, reset: bool) -> NDArray[Any]:
        try:
            if reset or len(self.shape_) == 1:
                rows: NDArray[Any] = validate_data(self, X, reset=reset, allow_nd=reset)
            else:
                rows = check_array(X, allow_nd=True, ensure_2d=False)
        except ValueError as error:
            raise InputError(str(error)) from None
        if not 2 <= rows.ndim <= 4:
            raise InputError(f"X must hold images (N, H, W, C), sequences or vectors, but its shape is {rows.shape}")
        return rows


def _to_unit(images: NDArray[Any]) -> Array:
    """Each image as a row without its mean, of length one; an image of one colour becomes zero."""
    flat: Array = images.reshape(len(images), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    flat /= np.where(lengths > 0, lengths, 1.0)
    return flat
