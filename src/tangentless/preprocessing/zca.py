"""ZCA whitening, as the kernels of the paper want it.

Each image loses its own mean and is scaled to length one; then all are whitened by one symmetric matrix, which leaves
them images: `V (E + epsilon)^(-1/2) V'` for the eigenvectors V and eigenvalues E of their second moments `X' X / N`.
The moments are summed over a few thousand images at a time, so that neither the images in float64 nor augmented copies
of them are ever in memory at once. Those of the mirror images are the same numbers in other places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..algebra import Algebra
from ..devices import Device
from ..errors import InputError, ParameterError
from ..solve import is_number
from .mirrors import mirror
from .randaugment import RandAugment
from .rows import parts, read_rows

Array = NDArray[np.float64]
_BACKENDS = ("cpu", "cuda")


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
    copies
        Count as many random copies of every image too ("ZCA augmentation"; the paper has 20). Images must be bytes.
    augmentation
        What makes the copies: `RandAugment()` if None.
    backend
        "cpu", "cuda" for one NVIDIA GPU, or a `Device`. Moments, eigenvectors and products are float64 on either.

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

    def __init__(
        self,
        epsilon: float = 1e-5,
        mirrors: bool = False,
        copies: int = 0,
        augmentation: RandAugment | None = None,
        backend: str | Device = "cpu",
    ) -> None:
        self.epsilon = epsilon
        self.mirrors = mirrors
        self.copies = copies
        self.augmentation = augmentation
        self.backend = backend

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the whitening matrix of images X."""
        return self.fit_batches([X])

    def fit_batches(self, batches: Iterable[Any]) -> Self:
        """Learn the whitening matrix of images that come in batches, of which only one is in memory at a time."""
        self.check_parameters()
        on = Device.of(self.backend).algebra
        with on.working():
            moments = _Moments(on)
            for number, X in enumerate(batches):
                rows = read_rows(self, X, self.shape_ if number else None)
                if number == 0:
                    self._set_shape(rows.shape[1:])
                for images in self._with_copies(rows, number):
                    moments.add(images)
            if not moments.count:
                raise InputError("there are no batches to fit to")
            places = mirror(np.arange(self.n_features_in_).reshape(1, *self.shape_)).ravel() if self.mirrors else None
            self.whitening_ = moments.whitening(self.epsilon, places)
        return self

    def transform(self, X: Any) -> Array:
        """Whitened images, float64, of the shape that came."""
        check_is_fitted(self)
        on = Device.of(self.backend).algebra
        rows = read_rows(self, X, self.shape_)
        white = np.empty((len(rows), self.n_features_in_))
        with on.working():
            whitening = on.xp.asarray(self.whitening_)
            for part in parts(len(rows)):
                unit = _to_unit(on, rows[part])
                white[part] = on.download(on.product(unit, whitening))
        return white.reshape(rows.shape)

    def check_parameters(self) -> None:
        """Refuse parameters outside their ranges; `fit` does so too."""
        if not is_number(self.epsilon) or self.epsilon <= 0:
            raise ParameterError(f"epsilon must be a finite number above 0, not {self.epsilon!r}")
        if not isinstance(self.copies, int | np.integer) or self.copies < 0:
            raise ParameterError(f"copies must be a whole number from 0, not {self.copies!r}")
        if self.augmentation is not None and not isinstance(self.augmentation, RandAugment):
            raise ParameterError(f"augmentation must be a RandAugment or None, not {self.augmentation!r}")
        if self.backend not in _BACKENDS and not isinstance(self.backend, Device):
            raise ParameterError(f"ZCA has backend {', '.join(map(repr, _BACKENDS))} or a Device, not {self.backend!r}")

    def _set_shape(self, shape: tuple[int, ...]) -> None:
        self.shape_ = shape
        self.n_features_in_ = math.prod(shape)
        if self.mirrors and len(shape) < 2:
            raise InputError("vectors have no mirror image; mirrors=True needs sequences or images")

    def _with_copies(self, rows: NDArray[Any], batch: int) -> Iterator[NDArray[Any]]:
        """The images and their random copies, a chunk at a time."""
        for part in parts(len(rows)):
            yield rows[part]
        augmentation = RandAugment() if self.augmentation is None else self.augmentation
        for copy in range(self.copies):
            yield from augmentation.chunks(rows, copy, batch)


class _Moments:
    """The sum of x x' over images x."""

    def __init__(self, on: Algebra) -> None:
        self.on, self.count = on, 0
        self._sum: Any = None

    def add(self, images: NDArray[Any]) -> None:
        self._sum = self.on.add_square(self._sum, _to_unit(self.on, images))
        self.count += len(images)

    def whitening(self, epsilon: float, mirrored: NDArray[Any] | None) -> Array:
        """`V (E + epsilon)^(-1/2) V'`; with the mirrored places given, of the images and their mirror images."""
        xp, moments = self.on.xp, self.on.fill(self._sum)
        if mirrored is not None:
            there = xp.asarray(mirrored)
            moments = (moments + moments[there][:, there]) / 2
        moments /= self.count
        values, vectors = self.on.eigen(moments)
        # A root times its transpose: half the work where BLAS computes one triangle only.
        root = vectors * (xp.maximum(values, 0) + epsilon) ** -0.25
        product = self.on.download(self.on.fill(self.on.add_square(None, root.T)))
        return np.ascontiguousarray((product + product.T) / 2)


def _to_unit(on: Algebra, images: NDArray[Any]) -> Any:
    """Each image as a row without its mean, of length one; an image of one colour becomes zero."""
    xp = on.xp
    flat = xp.asarray(images.reshape(len(images), -1)).astype(np.float64)
    means = flat.mean(axis=1, keepdims=True)
    flat -= means
    lengths = xp.linalg.norm(flat, axis=1, keepdims=True)
    # Of one colour, rounding may leave a little, which whitening would make the brightest image of all.
    rounding = 1e-12 * flat.shape[1] ** 0.5 * xp.abs(means)
    flat /= xp.where(lengths > rounding, lengths, np.inf)
    return flat
