"""ZCA whitening, as the paper's kernels need it.

The mean of each image is subtracted, and the image scaled to length one. Then all are multiplied by one symmetric
matrix, after which they still look like images: `V (E + epsilon)^(-1/2) V'`, with the eigenvectors V and eigenvalues E
of their second moments `X' X / N`. The moments are summed over chunks of a few thousand images, so neither the images
in float64 nor their random copies fill the memory. If there are fewer images than numbers in an image, the images are
kept instead of the matrix (see `whitening.LowRank`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from ..algebra import CpuAlgebra
from ..devices import Device
from ..errors import InputError, ParameterError
from ..inputs import check_switch
from ..progress import shown
from .parameters import check_above, check_whole
from .randaugment import RandAugment
from .rows import KeepsInputs, parts, read_rows, set_shape, whole_or_not
from .whitening import Dense, Form, LowRank, fit_patches, fit_whole, to_unit

Array = NDArray[np.float64]
_BACKENDS = ("cpu", "cuda")


class ZCA(OneToOneFeatureMixin, KeepsInputs, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Whitening that keeps the shape and look of images: (N, H, W, C), sequences (N, L, C) or vectors (N, C).

    Parameters
    ----------
    epsilon
        Added to the eigenvalues: directions with smaller eigenvalues stay small. The paper uses 1e-5 for kernels on
        CIFAR-10, and 1e-4 for CIFAR-100.
    mirrors
        Fit to the mirror image of every image too. Whitening then commutes with mirroring, as training with
        `flips=True` requires. Vectors have no mirror images.
    copies
        Fit to so many random copies of every image too ("ZCA augmentation"; the paper uses 20). Images must be bytes.
    augmentation
        What makes the copies; None means `RandAugment()`.
    backend
        "cpu", "cuda" for one NVIDIA GPU, or a `Device`. Arithmetic is float64 on both.
    patch
        Whiten patches of so many pixels a side, for example 8, instead of whole images. Each pixel becomes the mean of
        its values in all patches that cover it. This is one filter for all positions, so it suits photographs of any
        size.
    verbose
        Show progress: a bar, or lines where there is no terminal.

    Attributes
    ----------
    whitening_
        The matrix, (D, D) for D numbers in an image, computed on access; symmetric, except with `patch`.
    form_
        What is stored of it: a matrix, fewer than D images, or a filter.
    shape_
        The shape of an image.
    n_features_in_
        D.

    Examples
    --------
    >>> images = np.random.default_rng(0).standard_normal((500, 4, 4, 1)).cumsum(axis=1)  # neighbours are alike
    >>> white = ZCA(epsilon=1e-6).fit_transform(images).reshape(500, 16)
    >>> moments = white.T @ white / 500
    >>> bool(np.abs(np.linalg.eigvalsh(moments)[1:] - 1).max() < 0.01)  # the first is 0: images have no mean
    True
    """

    def __init__(
        self,
        epsilon: float = 1e-5,
        mirrors: bool = False,
        copies: int = 0,
        augmentation: RandAugment | None = None,
        backend: str | Device = "cpu",
        patch: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.mirrors = mirrors
        self.copies = copies
        self.augmentation = augmentation
        self.backend = backend
        self.patch = patch
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the whitening to images X."""
        return self.fit_batches([X])

    @whole_or_not
    def fit_batches(self, batches: Iterable[Any]) -> Self:
        """Fit the whitening to batches of images, of which only one at a time is in memory."""
        self.check_parameters()
        on, chunks = Device.of(self.backend).algebra, self._chunks(batches)
        with on.working(), shown(self.verbose, "fitting ZCA"):
            if self.patch is None:
                form: Form | None = fit_whole(on, chunks, self.epsilon, self.mirrors)
            else:
                form = fit_patches(on, chunks, self.epsilon, self.mirrors, self.patch)
        if form is None:
            raise InputError("there are no batches to fit to; give at least one")
        self.form_ = form
        if isinstance(form, LowRank) and form.images.ndim == 4:
            warnings.warn(
                f"{len(form.images)} images are few for whitening {self.n_features_in_:,} numbers each: test images "
                "then differ from them, and leave-one-out scores are too good; use patches (patch=4) or a larger "
                "epsilon",
                stacklevel=4,
            )
        return self

    @property
    def whitening_(self) -> Array:
        """The whitening as a matrix, (D, D)."""
        check_is_fitted(self)
        if isinstance(self.form_, Dense):
            return self.form_.whitening
        rows: Array = self.form_.on(CpuAlgebra())(np.eye(self.n_features_in_))
        return (rows + rows.T) / 2 if isinstance(self.form_, LowRank) else rows

    def transform(self, X: Any) -> Array:
        """Whitened images, float64, in the shape of X."""
        check_is_fitted(self)
        on = Device.of(self.backend).algebra
        rows = read_rows(self, X, self.shape_)
        white = np.empty((len(rows), self.n_features_in_))
        with on.working(), shown(self.verbose, "whitening", "images") as progress:
            whiten = self.form_.on(on)
            for part in parts(len(rows), self.n_features_in_):
                white[part] = on.download(whiten(to_unit(on, rows[part])))
                progress(part.stop, len(rows))
        return white.reshape(rows.shape)

    def check_parameters(self) -> None:
        """Refuse parameters outside their ranges; `fit` does so too."""
        check_above("epsilon", self.epsilon)
        check_whole("copies", self.copies, least=0)
        if self.augmentation is not None and not isinstance(self.augmentation, RandAugment):
            raise ParameterError(f"augmentation must be a RandAugment or None, not {self.augmentation!r}")
        if self.backend not in _BACKENDS and not isinstance(self.backend, Device):
            raise ParameterError(
                f"the backend of ZCA must be {' or '.join(map(repr, _BACKENDS))} or a Device, not {self.backend!r}"
            )
        if self.patch is not None:
            check_whole("patch", self.patch)
        check_switch("mirrors", self.mirrors)

    def _chunks(self, batches: Iterable[Any]) -> Iterator[NDArray[Any]]:
        """All images to fit to, a chunk at a time. The first batch sets the shape."""
        for number, X in enumerate(batches):
            rows = read_rows(self, X, self.shape_ if number else None)
            if number == 0:
                set_shape(self, rows.shape[1:])
            yield from self._with_copies(rows, number)

    def _with_copies(self, rows: NDArray[Any], batch: int) -> Iterator[NDArray[Any]]:
        """The images and their random copies, a chunk at a time."""
        for part in parts(len(rows)):
            yield rows[part]
        augmentation = RandAugment() if self.augmentation is None else self.augmentation
        for copy in range(self.copies):
            yield from augmentation.chunks(rows, copy, batch)
