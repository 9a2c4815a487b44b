"""How good predictions are: squared error for numbers, accuracy for one-hot targets, likelihoods, and calibration.

Likelihoods are those of a Gaussian process whose covariance is `scale (K + noise I)`. The scale of the largest one has
a closed form, `y' Q y / n` for `Q = (K + noise I)^-1`, so one number, the noise, remains to be searched for. Every
target has a scale of its own; likelihoods are summed over targets.

Probabilities are `softmax(scale * values)` of the values of classes. One number is fitted, by maximum likelihood, to
values that were predicted without the row they are compared with, so no data are held out, no ranking of classes
changes, and there is little to overfit (temperature scaling).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from ..errors import InputError, ParameterError

Array = NDArray[np.float64]
Criterion = Literal["squared error", "accuracy"]
CRITERIA = ("squared error", "accuracy")
_TOLERANCE = 0.01  # of the logarithm of what is maximised: no model is better for more digits
_SMALLEST, _LARGEST = 1e-2, 1e3  # scales from no opinion to certainty: values of one-hot targets lie about 1 apart


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


def member_shares(
    Y: Array, left_out: Sequence[Array], views: Sequence[Any], weights: Array | None = None, *, apart: bool = False
) -> Array:
    """How much each member counts in the mean of predictions, from what all predict for rows left out; the sum is one.

    Members that see the same count alike. Those with a view and those without (None) count as much as makes the squared
    error least: a view that tells little counts little. With `apart`, every column of Y has shares of its own.

    >>> Y = np.array([0.0, 1.0, 2.0])
    >>> member_shares(Y, [Y + [1, 0, 1], Y - [1, 0, 1], Y + 9], [None, "edges", None]).round(3)
    array([0.065, 0.87 , 0.065])
    """
    seen, predicted = np.array([view is not None for view in views]), np.stack(left_out)
    columns: Any = 0 if apart else tuple(range(Y.ndim))  # what is averaged over
    part: Any = (~seen).mean()  # of those without a view, together
    if seen.any() and not seen.all():
        plain, other = predicted[~seen].mean(axis=0), predicted[seen].mean(axis=0)
        counts = np.ones(len(Y)) if weights is None else weights
        across = counts.reshape(-1, *(1,) * (Y.ndim - 1)) * (plain - other)
        square = ((plain - other) * across).sum(axis=columns)
        part = np.clip(((Y - other) * across).sum(axis=columns) / np.where(square > 0, square, 1), 0, 1)
        part = np.where(square > 0, part, 0.5)
    halves = part / max(1, (~seen).sum()), (1 - part) / max(1, seen.sum())
    return np.stack([np.asarray(halves[int(own)]) for own in seen])


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


def fit_scale(values: Array, codes: NDArray[np.intp], weights: Array | None = None) -> float:
    """The scale at which the classes `codes` are most likely, given leave-one-out values, (n, classes).

    >>> values = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.4], [0.6, 0.4]])
    >>> round(fit_scale(values, np.array([0, 1, 0, 1])), 1)
    3.4
    """

    def surprise(logarithm: float) -> float:
        chances = log_softmax(np.exp(logarithm) * values, axis=1)[np.arange(len(codes)), codes]
        return -float(np.average(chances, weights=weights))

    found = minimize_scalar(surprise, bounds=(np.log(_SMALLEST), np.log(_LARGEST)), method="bounded")
    return float(np.exp(found.x))


def probabilities(values: Array, scale: float) -> Array:
    """Probabilities of the classes, (n, classes).

    >>> probabilities(np.array([[0.0, np.log(3.0)]]), 1.0).round(2)
    array([[0.25, 0.75]])
    """
    shares: Array = softmax(scale * values, axis=1)
    return shares


@dataclass(frozen=True, eq=False)
class Calibration:
    """How good probabilities are, and a reliability diagram: `accuracies` against `confidences` in bins of confidence.

    `nll` is the mean of -log of the probability of the true class, `brier` the mean squared distance from the one-hot
    label, `ece` the expected calibration error: the distance of accuracy and confidence in a bin, averaged over images.
    Bins without images hold NaN.
    """

    nll: float
    brier: float
    ece: float
    accuracy: float
    confidences: Array
    accuracies: Array
    counts: NDArray[np.intp]


def calibration(shares: Any, labels: Any, *, classes: Any = None, bins: int = 15) -> Calibration:
    """Measure probabilities of classes, (n, classes), against labels; `classes` names the columns, by default 0, 1, ...

    >>> found = calibration([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]], [0, 1, 1])
    >>> round(found.nll, 3), round(found.brier, 3), round(found.ece, 3)
    (0.415, 0.273, 0.3)
    """
    values, truth = np.asarray(shares, dtype=np.float64), np.asarray(labels)
    names = np.arange(values.shape[1] if values.ndim == 2 else 0) if classes is None else np.asarray(classes)
    if values.ndim != 2 or truth.shape != values.shape[:1] or len(names) != values.shape[1] or not len(values):
        raise InputError(f"probabilities of shape {values.shape} do not go with labels of shape {truth.shape}")
    if not (np.isfinite(values).all() and (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=1e-6)):
        raise InputError("probabilities must be at least 0 and sum to 1 in every row")
    if not np.isin(truth, names).all():
        raise InputError(
            f"there are labels that no column of the probabilities stands for: {np.setdiff1d(truth, names)}"
        )
    hits = truth[:, None] == names
    own = values[hits]
    confidence, right = values.max(axis=1), hits[np.arange(len(values)), values.argmax(axis=1)]
    place = np.minimum((confidence * bins).astype(np.intp), bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        accuracies = np.bincount(place, right, bins) / counts
        confidences = np.bincount(place, confidence, bins) / counts
    gaps = np.abs(np.nan_to_num(accuracies) - np.nan_to_num(confidences))
    return Calibration(
        nll=-float(np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean()),
        brier=float(((values - hits) ** 2).sum(axis=1).mean()),
        ece=float((gaps * counts).sum() / len(values)),
        accuracy=float(right.mean()),
        confidences=confidences,
        accuracies=accuracies,
        counts=counts,
    )
