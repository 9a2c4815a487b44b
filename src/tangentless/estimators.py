"""Kernel ridge regression and support vector machines as scikit-learn estimators, on images or kernel matrices.

Ridge regression is trained exactly, by one Cholesky factorisation. The fit also yields leave-one-out predictions and
their score as attributes: an estimate of the error that needs no held-out data. The estimators work in pipelines, grid
searches and the rest of scikit-learn.

>>> import numpy as np
>>> images = np.random.default_rng(0).standard_normal((20, 4, 4, 1))
>>> bright = images.mean(axis=(1, 2, 3)) > 0
>>> model = KernelRidgeClassifier("conv3 relu globalpool normalize relu", backend="reference").fit(images, bright)
>>> float(model.score(images, bright))
1.0
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score
from sklearn.svm import SVC
from sklearn.utils.class_weight import compute_sample_weight

from .backends import AnyDevice, Precision
from .errors import InputError, ParameterError
from .inputs import to_host
from .kernel import AnyKernel
from .labels import LabelledEstimator, NumberEstimator
from .preprocessing import Augmentation
from .preprocessing.rows import input_errors, whole_or_not
from .regression import KernelRidge
from .solve import Separators, fit_scale, is_number, probabilities, scaled_price
from .solve.matrices import check_kernel
from .symmetries import Symmetry

Array = NDArray[np.float64]


class _Classifier(LabelledEstimator):
    """The base of the two classifiers: weights of classes, and classes from decision values."""

    class_weight: Any

    def _read_labelled(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.intp], Array | None]:
        """Checked rows, labels, class numbers (N,) from 0, and weights (N,) of rows times those of their classes."""
        X, y, codes = self._read_labels(X, y)
        weights = _combine(self._read_weights(X, sample_weight), self.class_weight, y)
        _check_classes_left(codes, weights)
        return X, y, codes, weights

    def decision_function(self, X: Any) -> Array:
        raise NotImplementedError

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row."""
        return self._labels(self.decision_function(X))

    def _labels(self, decision: Array) -> NDArray[Any]:
        codes = (decision > 0).astype(np.intp) if decision.ndim == 1 else decision.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels


class KernelRidgeClassifier(_Classifier, KernelRidge):
    """Classification by exact kernel ridge regression on one-hot targets, one column of zeros and ones for each class.

    The class with the largest value is predicted. Zeros and ones are the paper's choice. Adding a constant to all
    targets would shift the values of all classes equally, and so predict the same classes.

    Parameters
    ----------
    kernel
        A name or text form of an architecture, a list of layers, an `Architecture`, a kernel object, or "precomputed":
        then X is the kernel matrix, (N, N) in `fit`, and (M, N) against the training rows in `predict`.
    ridge
        The number added to the diagonal of the kernel matrix. Zero interpolates the training set. "loo" chooses the
        most accurate of 54 ridges by leave-one-out, at the cost of an eigendecomposition.
    flips
        Train as if the mirror image of every training image were there too, with half the kernel entries and an eighth
        of the solver's work of the doubled set. `ridge` means what it means on the doubled set, and leaving an image
        out leaves out its mirror image too. Preprocessing should treat an image and its mirror image alike. This is
        exact for kernels that do not change when both images are mirrored (`Kernel.invariant`). Others, such as those
        with strides, fit the mean over an image and its mirror image instead, and take twice the entries.
    backend, precision, n_jobs
        How the kernel is computed, as in calling it. A matrix computed on a GPU is solved there too: only coefficients
        and leave-one-out values leave it. Predictions use the precision of the fit.
    tilt
        Train on `Y - tilt Y_loo` instead of the targets Y, where Y_loo are the leave-one-out predictions. The paper's
        value is 0.3. "loo" chooses the most accurate tilt from -1 to 1 by the leave-one-out predictions of the tilted
        model itself.
    class_weight
        Weights of the classes: a dictionary, or "balanced" for the inverse of their frequency. They multiply
        `sample_weight`.
    store, storage_options
        A folder or address in which the kernel matrix of the training rows is kept, so that an interrupted `fit`
        continues; and options of fsspec for an address, such as credentials. The options are never printed, and neither
        pickles nor model files of a fitted model hold them.
    landmarks, landmarks_by
        The number m of training rows whose columns stand in for the whole matrix (Nyström): n m kernel entries and
        memory, and time n m^2, where exact training takes n^2 and n^3. They are chosen by "variance" (greedily, see
        `tangentless.choose`) or at "random". `ridge` means the same, and must be above 0.
    verbose
        Show the progress of `fit` and `predict`: a bar, or lines with times if there is no terminal.
    augmentation, ensemble
        Fit `ensemble` members, one after the other, and average their predictions. Each is fitted to its own random
        copies of the training images, or to views of them such as their edges, as the `Augmentation` says. A member
        costs as much as a fit, and only one matrix is in memory at a time. Leaving an image out leaves out all its
        copies; its leave-one-out prediction is the mean over its copies. Ridge and tilt are chosen on the first member,
        and the shares of members that see a view by leave-one-out.
    averaging
        Predict the mean over copies of each row, such as "mirror" or "mirror shifts1" (see `Kernel.symmetrized`), at
        as many times the cost. Leave-one-out values are computed without it.

    Attributes
    ----------
    classes_
        The labels, sorted.
    dual_coef_
        The coefficients of the training rows, or of the landmarks, (N, classes); with an augmentation those of all
        members, (ensemble, N, classes).
    shares_
        The share of each member in the mean of predictions, (ensemble,); of a regressor with several targets,
        (ensemble, targets).
    ridge_, tilt_
        The ridge and the tilt of the fit.
    landmarks_
        The indices of the training rows that are landmarks; None without landmarks.
    scale_
        The calibration: probabilities are `softmax(scale_ * values)`.
    loo_decision_, loo_predictions_, loo_score_
        `decision_function` and `predict` of each training row by a model trained on all others, and the accuracy. If
        ridge, tilt or shares were chosen by leave-one-out, the accuracy is a little optimistic.
    X_fit_, kernel_
        The training rows, or the landmarks, and the kernel object, mirrored if `flips`; None if precomputed.
    precision_
        The precision of the fit.
    n_features_in_
        The number of values in a row: height x width x channels of an image.

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

    def __init__(
        self,
        kernel: AnyKernel = "myrtle5",
        ridge: float | str = 1e-4,
        flips: bool = False,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        tilt: float | str = 0.0,
        class_weight: Any = None,
        store: str | os.PathLike[str] | None = None,
        landmarks: int | None = None,
        landmarks_by: str = "variance",
        verbose: bool = False,
        augmentation: Augmentation | None = None,
        ensemble: int = 1,
        averaging: str | Symmetry | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    @whole_or_not
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and labels y, (N,)."""
        X, y, codes, weights = self._read_labelled(X, y, sample_weight)
        values = self._solve(X, np.eye(len(self.classes_))[codes], weights, "accuracy")
        self.scale_ = fit_scale(values, codes, weights)
        self.loo_decision_ = _decision(values)
        self.loo_predictions_ = self._labels(self.loo_decision_)
        self.loo_score_ = float(accuracy_score(y, self.loo_predictions_, sample_weight=weights))
        return self

    def decision_function(self, X: Any) -> Array:
        """The value of every class, (M, classes); with two classes, the second value minus the first, (M,)."""
        return _decision(self._values(X))

    def saliency(self, X: Any) -> Array:
        """The gradient of the predicted class's value with respect to every pixel, in the shape of X.

        >>> images = np.random.default_rng(0).standard_normal((20, 4, 4, 1))
        >>> bright = images.mean(axis=(1, 2, 3)) > 0
        >>> model = KernelRidgeClassifier("conv3 relu globalpool", backend="reference").fit(images, bright)
        >>> model.saliency(images[:2]).shape
        (2, 4, 4, 1)
        """
        values = self._values(X)
        return self.value_gradient(X, np.eye(values.shape[1])[values.argmax(axis=1)])

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, (M, classes), by temperature scaling fitted to the leave-one-out values."""
        return probabilities(self._values(X), self.scale_)


class KernelRidgeRegressor(NumberEstimator, KernelRidge):
    """Exact kernel ridge regression of one target or many.

    There is no intercept, so centre targets whose mean is far from zero. The parameters are those of
    `KernelRidgeClassifier` except `class_weight`; "loo" chooses ridge and tilt by the squared error.

    Attributes
    ----------
    dual_coef_
        The coefficients of the training rows, of the shape of y, or of the landmarks.
    ridge_, tilt_, landmarks_
        As of `KernelRidgeClassifier`.
    loo_predictions_, loo_score_
        `predict` of each training row by a model trained on all others, and the R^2 of these predictions.
    X_fit_, kernel_, n_features_in_
        As of `KernelRidgeClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> model = KernelRidgeRegressor("relu", ridge=1e-6, backend="reference").fit(X, np.maximum(X[:, 0], 0))
    >>> model.loo_score_ > 0.9
    True
    """

    @whole_or_not
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and targets y, (N,) or (N, targets)."""
        X, targets = self._read_numbers(X, y)
        weights = self._read_weights(X, sample_weight)
        self.loo_predictions_ = self._solve(X, targets, weights, "squared error")
        self.loo_score_ = float(r2_score(targets, self.loo_predictions_, sample_weight=weights))
        return self

    def predict(self, X: Any) -> Array:
        """The predicted targets of each row, (M,) or (M, targets)."""
        return self._values(X)


class KernelSVC(_Classifier):
    """Classification by a support vector machine (hinge loss) on any kernel of this package, fitted by libsvm.

    The matrix must be symmetric, but need not be positive definite. There is no closed-form leave-one-out; for
    probabilities wrap the model in scikit-learn's `CalibratedClassifierCV`.

    Parameters
    ----------
    kernel, flips, backend, precision, n_jobs, class_weight, store, verbose, storage_options
        As of `KernelRidgeClassifier`; `flips` uses the kernel summed over an image and its mirror image.
    C
        The price of a violated margin; a smaller C gives a smoother boundary. "scale" is 10 divided by the mean squared
        distance of the training rows from their centre in feature space: if all entries of K lie near 1, this distance
        is small, and C must be large.

    Attributes
    ----------
    classes_
        The labels, sorted.
    C_
        The price of the fit.
    support_
        The indices of the training rows that are support vectors, sorted by class.
    separators_
        Coefficients, intercepts, and the number of support vectors of each class.
    X_fit_, kernel_
        The support vectors and the kernel object; None with a precomputed kernel.
    n_features_in_
        As of `KernelRidgeClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> model = KernelSVC("relu", C=10.0, backend="reference").fit(X, X[:, 0] > 0)
    >>> float(model.score(X, X[:, 0] > 0)) > 0.9
    True
    """

    C: float | str

    def __init__(
        self,
        kernel: AnyKernel = "myrtle5",
        C: float | str = "scale",
        flips: bool = False,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        class_weight: Any = None,
        store: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    @whole_or_not
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and labels y, (N,)."""
        X, y, codes, weights = self._read_labelled(X, y, sample_weight)
        kept = np.arange(len(X)) if weights is None else np.flatnonzero(weights)
        K = np.asarray(to_host(self._training_matrix(self._device(), X)))  # libsvm runs on the host
        K = K[np.ix_(kept, kept)]
        if self._precomputed:
            check_kernel(K)  # libsvm may never end on one that is not symmetric
        self.C_ = scaled_price(K) if self.C == "scale" else float(self.C)
        with self._shown("support vectors"):
            machine = SVC(C=self.C_, kernel="precomputed").fit(
                K, codes[kept], None if weights is None else weights[kept]
            )
        self.support_ = kept[machine.support_]
        self.separators_ = Separators.of(machine)
        self.X_fit_ = None if self._precomputed else X[self.support_]
        return self

    def decision_function(self, X: Any) -> Array:
        """Values of the classes by votes over pairs of classes, (M, classes); with two classes a signed value, (M,)."""
        rows = self._read(X)
        columns = self.support_ if self.X_fit_ is None else slice(None)
        panels = self._panels(rows, max(1, len(self.support_)))
        return np.concatenate([self.separators_.decide(to_host(panel)[:, columns]) for panel in panels])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.C != "scale" and (not is_number(self.C) or self.C <= 0):
            raise ParameterError(f"C must be a finite number above 0 or 'scale', not {self.C!r}")


def _combine(weights: Array | None, class_weight: Any, y: NDArray[Any]) -> Array | None:
    """Weights of rows times the weights of their classes."""
    if class_weight is None:
        return weights
    with input_errors():
        of_classes: Array = compute_sample_weight(class_weight, y)
    if not (np.isfinite(of_classes).all() and (of_classes >= 0).all()):
        raise ParameterError(f"class weights must be finite numbers of at least 0, not {class_weight!r}")
    return of_classes if weights is None else weights * of_classes


def _check_classes_left(codes: NDArray[np.intp], weights: Array | None) -> None:
    missing = set() if weights is None else set(codes) - set(codes[weights > 0])
    if missing:
        raise InputError(f"{len(missing)} of {codes.max() + 1} classes have no row with a weight above 0; drop them")


def _decision(values: Array) -> Array:
    """The values of classes, (N, classes), as scikit-learn has them: with two classes their difference, (N,)."""
    return values[:, 1] - values[:, 0] if values.shape[1] == 2 else values
