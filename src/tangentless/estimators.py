"""Kernel ridge regression as scikit-learn estimators: from images or a precomputed matrix to predictions.

Training is exact, one Cholesky factorisation, and leaves leave-one-out predictions and their score behind as fitted
attributes: an estimate of the error that needs no held-out data. Pipelines, grids and the rest of scikit-learn apply.

>>> import numpy as np
>>> images = np.random.default_rng(0).standard_normal((20, 4, 4, 1))
>>> bright = images.mean(axis=(1, 2, 3)) > 0
>>> model = KernelRidgeClassifier("conv3 relu globalpool normalize relu", backend="reference").fit(images, bright)
>>> float(model.score(images, bright))
1.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from .architecture import Architecture
from .backends import Backend, Precision
from .errors import InputError, ParameterError
from .kernel import Kernel
from .kernel import kernel as kernel_of
from .layers import Layer
from .solve import check_ridge, check_targets, solve_ridge

Array = NDArray[np.float64]

_ENTRIES_AT_ONCE = 2**24  # kernel entries held while predicting: 128 MiB


class _KernelRidge(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """What the two estimators share: parameters, the kernel they stand for, and the linear algebra."""

    def __init__(
        self,
        kernel: str | Architecture | Iterable[Layer] | Kernel = "myrtle5",
        ridge: float = 1e-4,
        flips: bool = False,
        backend: str | Backend = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.ridge = ridge
        self.flips = flips
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs

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
        """Parameters, rows and targets, checked before any kernel is computed."""
        check_ridge(self.ridge)
        if self._precomputed and self.flips:
            raise ParameterError(
                "flips=True needs images, and a precomputed matrix has none; compute the matrix with kernel.mirrored()"
            )
        with _input_errors():
            # A single row leaves nothing to predict it from. Of images, the kernel checks that they are finite.
            options |= {"allow_nd": True, "ensure_min_samples": 2, "ensure_all_finite": self._precomputed}
            X, y = validate_data(self, X, y, **options)
        self.n_features_in_ = math.prod(X.shape[1:])
        return X, y

    def _read_rows(self, X: Any) -> NDArray[Any]:
        """Rows to predict, of the shape of the training rows."""
        expected = (len(self.dual_coef_),) if self.X_fit_ is None else self.X_fit_.shape[1:]
        with _input_errors():
            if len(expected) == 1:
                rows: NDArray[Any] = validate_data(self, X, reset=False, ensure_all_finite=self.X_fit_ is None)
            else:
                rows = check_array(X, allow_nd=True, ensure_2d=False, ensure_all_finite=False)
        if rows.shape[1:] != expected:
            fitted = f"{type(self).__name__} was fitted to rows of shape {expected}"
            raise InputError(f"X holds rows of shape {rows.shape[1:]}, but {fitted}")
        return rows

    def _solve(self, X: NDArray[Any], targets: Array) -> Array:
        """Fit the coefficients; returns the leave-one-out values of the targets."""
        self.kernel_ = None if self._precomputed else self._kernel_object()
        self.X_fit_ = None if self._precomputed else X
        solution = solve_ridge(self._matrix(X), targets, self.ridge, overwrite=not self._precomputed)
        self.dual_coef_ = solution.coefficients
        return solution.leave_one_out

    def _kernel_object(self) -> Kernel:
        base = self.kernel if isinstance(self.kernel, Kernel) else kernel_of(self.kernel)
        # The sum over an image and its mirror, not their average: a ridge then means what it does on the doubled set.
        return 2.0 * base.mirrored() if self.flips else base

    def _matrix(self, X: NDArray[Any], Z: NDArray[Any] | None = None) -> NDArray[Any]:
        """The kernel matrix of the rows of X, with themselves or with those of Z."""
        if self.kernel_ is None:
            return X
        matrix: Array = self.kernel_(X, Z, backend=self.backend, precision=self.precision, n_jobs=self.n_jobs)
        return matrix

    def _values(self, X: Any) -> Array:
        """Predicted targets, for as many rows at a time as bounded memory allows."""
        check_is_fitted(self)
        rows = self._read_rows(X)
        step = max(1, _ENTRIES_AT_ONCE // len(self.dual_coef_))
        parts = [self._matrix(rows[i : i + step], self.X_fit_) @ self.dual_coef_ for i in range(0, len(rows), step)]
        return np.concatenate(parts)


class KernelRidgeClassifier(ClassifierMixin, _KernelRidge):  # type: ignore[misc]
    """Classification by exact kernel ridge regression on one-hot targets, one column of zeros and ones for each class.

    The class with the largest value is predicted. Zeros and ones are the paper's choice; targets centred by adding one
    constant to all of them would shift all values of a row alike, and so predict the same classes.

    Parameters
    ----------
    kernel
        A name or text form of an architecture, a list of layers, an `Architecture`, a kernel object, or "precomputed":
        then X is the kernel matrix, (N, N) in `fit`, and (M, N) against the training rows in `predict`.
    ridge
        What is added to the diagonal of the kernel matrix. Zero is allowed: the training set is then interpolated.
    flips
        Train as if the mirror image of every training image were there too: exactly, at half the kernel evaluations and
        an eighth of the solve. `ridge` means what it means on that doubled set, and leaving an image out leaves out its
        mirror image too. Preprocessing should treat an image and its mirror image alike.
    backend, precision, n_jobs
        How the kernel is computed, as in calling it.

    Attributes
    ----------
    classes_
        The labels, sorted.
    dual_coef_
        The coefficients of the training rows, (N, classes).
    loo_decision_, loo_predictions_, loo_score_
        `decision_function` and `predict` of each training row by a model trained on all others, and the accuracy.
    X_fit_, kernel_
        The training rows and the kernel object, mirrored if `flips`; None with a precomputed kernel.
    n_features_in_
        How many numbers describe a row: height x width x channels of an image.

    Examples
    --------
    >>> images = np.random.default_rng(0).standard_normal((30, 4, 4, 1))
    >>> labels = np.where(images.mean(axis=(1, 2, 3)) > 0, "light", "dark")
    >>> model = KernelRidgeClassifier("conv3 relu globalpool normalize relu", backend="reference").fit(images, labels)
    >>> model.predict(images[:3])
    array(['dark', 'dark', 'light'], dtype='<U5')
    >>> model.loo_score_ > 0.8
    True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and labels y, (N,)."""
        _check_labelled(y)
        X, y = self._read_training(X, y)
        with _input_errors():
            check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"all labels are of one class, {self.classes_[0]!r}; a classifier needs at least two")
        one_hot = np.eye(len(self.classes_))[codes]
        self.loo_decision_ = _decision(self._solve(X, one_hot))
        self.loo_predictions_ = self._labels(self.loo_decision_)
        self.loo_score_ = float(accuracy_score(y, self.loo_predictions_))
        return self

    def decision_function(self, X: Any) -> Array:
        """The value of every class, (M, classes); for two classes that of the second less that of the first, (M,)."""
        return _decision(self._values(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row."""
        return self._labels(self.decision_function(X))

    def _labels(self, decision: Array) -> NDArray[Any]:
        codes = (decision > 0).astype(np.intp) if decision.ndim == 1 else decision.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels


class KernelRidgeRegressor(RegressorMixin, _KernelRidge):  # type: ignore[misc]
    """Exact kernel ridge regression of one target or many.

    There is no intercept, so centre targets whose mean is far from zero. The parameters are those of
    `KernelRidgeClassifier`.

    Attributes
    ----------
    dual_coef_
        The coefficients of the training rows, of the shape of y.
    loo_predictions_, loo_score_
        `predict` of each training row by a model trained on all others, and its R^2.
    X_fit_, kernel_, n_features_in_
        As of `KernelRidgeClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> model = KernelRidgeRegressor("relu", ridge=1e-6, backend="reference").fit(X, np.maximum(X[:, 0], 0))
    >>> model.loo_score_ > 0.9
    True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and targets y, (N,) or (N, targets)."""
        X, y = self._read_training(X, y, multi_output=True, y_numeric=True)
        self.loo_predictions_ = self._solve(X, check_targets(y, len(X)))
        self.loo_score_ = float(r2_score(y, self.loo_predictions_))
        return self

    def predict(self, X: Any) -> Array:
        """The targets of each row."""
        return self._values(X)


def _decision(values: Array) -> Array:
    """Scikit-learn's form of the values of classes: two of them become their difference."""
    return values[:, 1] - values[:, 0] if values.shape[1] == 2 else values


def _check_labelled(y: Any) -> None:
    """Refuse missing labels among text or objects, where NumPy would turn them into text or fail to sort them."""
    if isinstance(y, list | tuple) or getattr(y, "dtype", None) == np.dtype(object):
        for row, label in enumerate(y):
            if label is None or (isinstance(label, Real) and label != label):
                raise InputError(f"y contains {label} in row {row}; label that row or drop it")


@contextmanager
def _input_errors() -> Iterator[None]:
    """Scikit-learn's complaints about data, as the typed error of this package."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None
