"""How good leave-one-out predictions are: squared error for numbers, accuracy for one-hot targets."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError

Array = NDArray[np.float64]
Criterion = Literal["squared error", "accuracy"]
CRITERIA = ("squared error", "accuracy")


def squared_error(Y: Array, predictions: Array, weights: Array | None = None) -> float:
    """The mean squared error of a prediction, over rows and targets.

    >>> squared_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    2.0
    """
    squares = np.square(Y - predictions).reshape(len(Y), -1).mean(axis=1)
    return float(np.average(squares, weights=weights))


def accuracy(Y: Array, predictions: Array, weights: Array | None = None) -> float:
    """How often the largest prediction is that of the class, the largest target.

    >>> accuracy(np.eye(2), np.array([[0.7, 0.1], [0.6, 0.5]]))
    0.5
    """
    return float(np.average(Y.argmax(axis=1) == predictions.argmax(axis=1), weights=weights))


def check_criterion(criterion: Any, Y: Array) -> None:
    """Refuse what is not a criterion, and accuracy where targets are not of classes."""
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {' or '.join(map(repr, CRITERIA))}, not {criterion!r}")
    if criterion == "accuracy" and (Y.ndim != 2 or Y.shape[1] < 2):
        raise InputError(f"accuracy needs a column of Y for each class, one-hot, but the shape of Y is {Y.shape}")


def rank(criterion: Criterion, Y: Array, predictions: Array, weights: Array | None = None) -> tuple[float, float]:
    """A key that is smaller for better predictions; equal accuracies are told apart by the squared error."""
    error = squared_error(Y, predictions, weights)
    return (-accuracy(Y, predictions, weights) if criterion == "accuracy" else 0.0, error)
