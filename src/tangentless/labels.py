"""The targets of estimators: labels of classifiers, which become class numbers, and numbers of regressors; checks."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from .errors import InputError
from .fitting import KernelEstimator
from .preprocessing.rows import input_errors
from .solve import check_targets


class LabelledEstimator(ClassifierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Base class of classifiers."""

    def _read_labels(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.intp]]:
        """Rows, their labels, and the class numbers of the labels; sets `classes_`."""
        check_labelled(y)
        X, y = self._read_training(X, y)
        self.classes_, codes = read_classes(y)
        return X, y, codes


class NumberEstimator(RegressorMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Base class of regressors."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _read_numbers(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Rows and their targets, (N,) or (N, targets)."""
        X, y = self._read_training(X, y, multi_output=True, y_numeric=True)
        targets = check_targets(y, len(X))
        check_varied(targets)
        return X, targets


def check_varied(targets: NDArray[Any]) -> None:
    """Refuse targets that are all the same."""
    if (targets == targets[0]).all():
        raise InputError(f"all rows have the same target, {targets[0]}; a regressor needs at least two different ones")


def read_classes(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The classes, sorted, and for each row the index of its class.

    >>> read_classes(np.array(["b", "a", "b"]))
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    try:
        with input_errors():
            check_classification_targets(y)
    except InputError as error:
        hint = "For numbers fit a KernelRidgeRegressor, on the command line with --regression."
        raise InputError(f"{error} {hint}") from None
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"all labels are of one class, {classes.tolist()[0]!r}; a classifier needs at least two")
    return classes, codes


def in_turns(codes: NDArray[Any], seed: int | list[int]) -> NDArray[np.intp]:
    """A random order of rows in which classes take turns: their counts in any first rows differ by at most one.

    >>> codes = np.arange(100) % 3
    >>> np.bincount(codes[in_turns(codes, seed=0)[:31]])
    array([11, 10, 10])
    """
    order = np.random.default_rng(seed).permutation(len(codes))
    drawn = codes[order]
    within = np.empty(len(codes), np.intp)  # for each row, how many of its class come before it
    for code in np.unique(codes):
        members = drawn == code
        within[members] = np.arange(members.sum())
    return np.asarray(order[np.lexsort((drawn, within))])


def check_labelled(y: Any) -> None:
    """Refuse None, NaN and mixed types in lists and object arrays: NumPy makes text of them, or fails to sort them."""
    if isinstance(y, list | tuple) or getattr(y, "dtype", None) == np.dtype(object):
        for row, label in enumerate(y):
            if label is None or (isinstance(label, Real) and label != label):
                raise InputError(f"y contains {label} in row {row}; label that row or drop it")
    if getattr(y, "dtype", None) == np.dtype(object):
        try:
            np.unique(np.asarray(y))
        except TypeError:
            kinds = ", ".join(sorted({type(label).__name__ for label in np.ravel(y)}))
            raise InputError(f"y mixes labels of types {kinds}; convert all to one, as by y.astype(str)") from None
