"""Labels at the door of classifiers: classes, sorted, and the number of each row's class."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from .errors import InputError
from .fitting import KernelEstimator
from .preprocessing.rows import input_errors


class LabelledEstimator(ClassifierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """What all classifiers share."""

    def _read_labels(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.intp]]:
        """Rows, their labels, and the labels as numbers of classes."""
        check_labelled(y)
        X, y = self._read_training(X, y)
        self.classes_, codes = read_classes(y)
        return X, y, codes


def read_classes(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The classes, sorted, and the number of each row's class.

    >>> read_classes(np.array(["b", "a", "b"]))
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    with input_errors():
        check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"all labels are of one class, {classes.tolist()[0]!r}; a classifier needs at least two")
    return classes, codes


def check_labelled(y: Any) -> None:
    """Refuse missing labels among text or objects, where NumPy would turn them into text or fail to sort them."""
    if isinstance(y, list | tuple) or getattr(y, "dtype", None) == np.dtype(object):
        for row, label in enumerate(y):
            if label is None or (isinstance(label, Real) and label != label):
                raise InputError(f"y contains {label} in row {row}; label that row or drop it")
