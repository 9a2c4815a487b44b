"""The base class of all estimators: it checks parameters and rows, and computes kernel matrices."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .backends import AnyDevice, Precision
from .chunks import spans
from .devices import Device
from .errors import InputError, ParameterError
from .inputs import check_switch, put_beside, to_host, without_tensor
from .kernel import AnyKernel as AnyKernel
from .kernel import Kernel, kernel_of
from .preprocessing.rows import input_errors, read_rows
from .progress import progress_bar
from .symmetries import MIRROR
from .tiles import Progress

Array = NDArray[np.float64]

ENTRIES_AT_ONCE = 2**24  # kernel entries held while predicting: 128 MiB


class Hidden(dict[str, Any]):
    """A dictionary of options that is never printed: scikit-learn prints parameters, and these may hold credentials.

    >>> {"storage_options": Hidden(secret="x")}
    {'storage_options': <hidden>}
    """

    def __repr__(self) -> str:
        return "<hidden>"


class KernelEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """The base of all estimators: checked parameters and rows, the kernel object, its matrices in bounded memory."""

    kernel: AnyKernel
    flips: bool
    backend: str | AnyDevice
    precision: Precision
    n_jobs: int | None
    store: str | os.PathLike[str] | None
    verbose: bool
    kernel_: Any
    _progress: Progress | None = None  # set by `reporting` alone
    _kept: list[Array] | None = None  # set by `keeping_matrix` alone

    def _set_parameters(self, given: Mapping[str, Any]) -> None:
        """Store the `locals()` of a constructor: scikit-learn wants each parameter as an attribute of its name."""
        for name, value in given.items():
            if name != "self":
                setattr(self, name, value)

    @property
    def storage_options(self) -> Mapping[str, Any] | None:
        """Options of fsspec for the address `store`, such as credentials; never printed."""
        given: Mapping[str, Any] | None = vars(self)["storage_options"]
        return given

    @storage_options.setter
    def storage_options(self, given: Mapping[str, Any] | None) -> None:
        # A `Hidden` is kept as it is: `sklearn.base.clone` checks that a parameter is the object it passed.
        if isinstance(given, Mapping) and not isinstance(given, Hidden):
            given = Hidden(given)
        self.__dict__["storage_options"] = given

    def __getstate__(self) -> Any:
        """Leave credentials out of the pickle of a fitted model; an unfitted one may be fitted by another process."""
        state = super().__getstate__()
        return {**state, "storage_options": None} if hasattr(self, "kernel_") else state

    @contextmanager
    def reporting(self, progress: Progress) -> Iterator[Self]:
        """A context in which fitting and predicting call `progress(done, total)`, in pairs of images.

        >>> from tangentless import KernelRidgeClassifier
        >>> model, seen = KernelRidgeClassifier("relu", backend="reference"), []
        >>> with model.reporting(lambda done, total: seen.append((done, total))):
        ...     _ = model.fit(np.eye(4), [0, 1, 0, 1])
        >>> seen[-1]
        (10, 10)
        """
        self._progress = progress
        try:
            yield self
        finally:
            del self._progress

    @contextmanager
    def keeping_matrix(self) -> Iterator[list[Array]]:
        """A context in which `fit` appends a copy of its first kernel matrix, (N, N), to the list; reports need it.

        >>> from tangentless import KernelRidgeClassifier
        >>> model = KernelRidgeClassifier("relu", backend="reference")
        >>> with model.keeping_matrix() as kept:
        ...     _ = model.fit(np.eye(4), [0, 1, 0, 1])
        >>> kept[0].shape
        (4, 4)
        """
        kept: list[Array] = []
        self._kept = kept
        try:
            yield kept
        finally:
            del self._kept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.input_tags.pairwise = self._precomputed
        return tags

    @property
    def _precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _read_training(self, X: Any, y: Any, **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Check parameters, and return checked rows and targets; no kernel is computed yet."""
        self._check_parameters()
        with input_errors():
            # Leave-one-out needs two rows. Only a precomputed matrix is checked for NaN here; the kernel checks images.
            options |= {"allow_nd": True, "ensure_min_samples": 2, "ensure_all_finite": self._precomputed}
            X, y = validate_data(self, without_tensor(X), without_tensor(y), **options)
        if self._precomputed and X.shape[0] != X.shape[-1]:
            raise InputError(f"K must be a square matrix, (n, n), but its shape is {X.shape}")
        self.n_features_in_ = math.prod(X.shape[1:])
        return X, y

    def _check_parameters(self) -> None:
        check_switch("flips", self.flips)
        if self._precomputed and self.flips:
            raise ParameterError(
                "flips=True needs images, and a precomputed matrix has none; compute the matrix with kernel.mirrored()"
            )
        if self._precomputed and self.store is not None:
            raise ParameterError("store keeps a matrix that is computed here, and a precomputed one is not")
        if not isinstance(self.storage_options, Mapping | None):
            raise ParameterError('storage_options is a dictionary, such as {"key": ..., "secret": ...}')
        if self.store is None and self.storage_options:
            raise ParameterError("storage_options are for an address given as store=..., and there is none")

    def _read_weights(self, X: NDArray[Any], sample_weight: Any) -> Array | None:
        if sample_weight is None:
            return None
        with input_errors():
            weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weights.any():
            raise InputError("all sample weights are zero; at least two rows must count")
        return weights

    def _kernel_object(self, view: str | None = None) -> Kernel:
        """The kernel of images, or of a view of them; with flips, of images and their mirror images."""
        base = kernel_of(self.kernel)
        base = base if view is None else base.seen(view)
        # The sum over an image and its mirror image, not the mean: so a ridge means the same as on the doubled set.
        return 2.0 * base.symmetrized(MIRROR) if self.flips else base

    def _prepare_kernel(self, device: Device) -> None:
        self.kernel_ = None if self._precomputed else self._kernel_object()
        self.precision_ = device.precision

    def _training_matrix(self, device: Device, X: NDArray[Any]) -> Any:
        """The kernel matrix (N, N) of the training rows, in the memory of the device or, with `store`, in the store."""
        self._prepare_kernel(device)
        return self._keep_copy(X if self.kernel_ is None else self._matrix(self.kernel_, device, X, store=self.store))

    def _keep_copy(self, K: Any) -> Any:
        """Return K; inside `keeping_matrix` also keep a copy of the first one."""
        if self._kept is not None and not self._kept:  # an ensemble keeps the matrix of its first member
            self._kept.append(np.array(to_host(K)))  # a copy, since the solver overwrites K
        return K

    def _matrix(
        self, kernel: Kernel, device: Device, X: NDArray[Any], others: NDArray[Any] | None = None, *, store: Any
    ) -> Any:
        """k(X, others), or k(X, X) without others, in the memory of the device or in a store."""
        if store is None:
            with device.algebra.working(), self._shown("training kernel") as progress:
                return kernel.on_device(device, X, others, progress=progress)
        from .gram import gram

        options: dict[str, Any] = {
            "precision": device.precision,
            "n_jobs": device.n_jobs,
            "progress": bool(self.verbose),
            "storage_options": self.storage_options,
        }
        return gram(kernel, X, others, store=store, backend=device.given or device.name, **options)

    def _device(self) -> Device:
        """The device that the parameters name. For a precomputed matrix, "auto" means the CPU."""
        backend = "cpu" if self._precomputed and self.backend == "auto" else self.backend
        return Device.of(backend, self.precision, self.n_jobs)

    def _fitted_device(self) -> Device:
        """The device that the parameters name, in the precision of the fit: that parameter may have changed since."""
        return self._device().at(self.precision_)

    def _read(self, X: Any) -> NDArray[Any]:
        """Check rows to predict for: the model must be fitted, and their shape must be that of the training rows."""
        check_is_fitted(self)
        shape = (self.n_features_in_,) if self.X_fit_ is None else self.X_fit_.shape[1:]
        return read_rows(self, X, shape, finite=self.X_fit_ is None)  # the kernel checks that images are finite

    def _panels(self, rows: Any, columns: int, known: Any = None, kernel: Kernel | None = None) -> Iterator[Any]:
        """Yield k(rows, known) in panels of rows, each of at most `ENTRIES_AT_ONCE` entries; they stay on the device.

        `rows` come from `_read`, and have `columns` kernel values each; `known` is by default X_fit_.
        """
        known, kernel = self.X_fit_ if known is None else known, self.kernel_ if kernel is None else kernel
        device = self._fitted_device()
        with self._shown("kernel") as progress:
            for part in spans(len(rows), max(1, ENTRIES_AT_ONCE // columns)):
                if kernel is None:
                    yield rows[part]
                else:
                    report = progress and _continued(progress, part, len(rows))
                    yield kernel.on_device(device, rows[part], known, progress=report)

    @contextmanager
    def _shown(self, label: str) -> Iterator[Progress | None]:
        """The function that is told progress: that of `reporting`, a display if `verbose`, or None."""
        if self._progress is not None or not self.verbose:
            yield self._progress
            return
        with progress_bar(label) as progress:
            yield progress


def part_of(K: Any, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Any:
    """K[rows][:, columns], on the device where K is."""
    return K[tuple(put_beside(places, K) for places in np.ix_(rows, columns))]


def _continued(progress: Progress, part: slice, rows: int) -> Progress:
    """Turn the progress of the rows in `part` into progress over all rows."""

    def report(done: int, total: int) -> None:
        pairs = total // (part.stop - part.start)  # pairs of one row
        progress(part.start * pairs + done, rows * pairs)

    return report
