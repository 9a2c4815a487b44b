"""How good predictions are: squared error for numbers, accuracy for one-hot targets, and the likelihood of targets.

Likelihoods are those of a Gaussian process whose covariance is `scale (K + noise I)`. The scale of the largest one has
a closed form, `y' Q y / n` for `Q = (K + noise I)^-1`, so one number, the noise, remains to be searched for. Every
target has a scale of its own; likelihoods are summed over targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ..errors import InputError, ParameterError

Array = NDArray[np.float64]
Criterion = Literal["squared error", "accuracy"]
CRITERIA = ("squared error", "accuracy")
_TOLERANCE = 0.01  # of the logarithm of what is maximised: no model is better for more digits


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


def log_likelihood(misfits: Array, log_determinant: float, rows: int, scale: Array) -> float:
    """The logarithm of the marginal likelihood, from `y' Q y` of each target and the determinant of `K + noise I`.

    >>> round(log_likelihood(np.array([1.0]), 0.0, 1, np.array([1.0])), 6)  # the standard normal density at 1
    -1.418939
    """
    terms = misfits / scale + rows * (np.log(scale) + math.log(2 * math.pi)) + log_determinant
    return -0.5 * float(np.sum(terms))


def log_density(misses: Array, shrinkage: Array, scale: Array) -> float:
    """The logarithm of the densities of all targets, (n, targets), each predicted from the others.

    `misses` are targets less their leave-one-out predictions, `scale / shrinkage` the variances of these.
    """
    variances = scale / shrinkage[:, None]
    return -0.5 * float(np.sum(misses**2 / variances + np.log(2 * math.pi * variances)))


def maximise(value: Callable[[float], float], grid: Array) -> float:
    """Where a function is largest: the best point of a grid, improved between its neighbours on a logarithmic scale.

    >>> round(maximise(lambda x: -((np.log10(x) - 0.3) ** 2), np.array([0.1, 1.0, 10.0])), 1)
    2.0
    """
    values = [value(float(point)) for point in grid]
    place = int(np.argmax(values))
    best, low, high = float(grid[place]), grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    if not (0 < low < high and math.isfinite(values[place])):
        return best
    bounds = math.log(low), math.log(high)
    found = minimize_scalar(
        lambda x: -value(math.exp(x)), bounds=bounds, method="bounded", options={"xatol": _TOLERANCE}
    )
    return float(math.exp(found.x)) if -found.fun > values[place] else best
