"""Scores of predictions: squared error for numbers, accuracy for one-hot targets, likelihoods, and calibration.

Likelihoods are those of a Gaussian process with the covariance `scale (K + noise I)`. The best scale has a closed form,
`y' Q y / n` for `Q = (K + noise I)^-1`, so only the noise has to be searched for. Every target has its own scale;
log-likelihoods are summed over targets.

Probabilities are `softmax(scale * values)` (temperature scaling). The scale is the one of maximum likelihood for
leave-one-out values, so no data are held out. One number has little room to overfit, and no ranking of classes changes.
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
from ..layers import is_whole

Array = NDArray[np.float64]
Criterion = Literal["squared error", "accuracy"]
CRITERIA = ("squared error", "accuracy")
_TOLERANCE = 0.01  # of the logarithm of the argument of `maximise`: more digits make no model better
_SMALLEST, _LARGEST = 1e-2, 1e3  # bounds of the scale of `softmax`: values for one-hot targets differ by about 1


def squared_error(Y: Array, predictions: Array, weights: Array | None = None) -> float:
    """The mean squared error of a prediction, over rows and targets.

    >>> squared_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    2.0
    """
    squares = np.square(Y - predictions).reshape(len(Y), -1).mean(axis=1)
    return float(np.average(squares, weights=weights))


def accuracy(Y: Array, predictions: Array, weights: Array | None = None) -> float:
    """The share of rows whose largest prediction is in the column of the largest target.

    >>> accuracy(np.eye(2), np.array([[0.7, 0.1], [0.6, 0.5]]))
    0.5
    """
    return float(np.average(Y.argmax(axis=1) == predictions.argmax(axis=1), weights=weights))


def member_shares(
    Y: Array, left_out: Sequence[Array], views: Sequence[Any], weights: Array | None = None, *, apart: bool = False
) -> Array:
    """The shares of members of an ensemble, (members,), of the smallest squared error of leave-one-out predictions.

    There are two groups, members with a view and those without one (None). The members of a group have equal shares,
    and all shares sum to 1. `left_out` holds the leave-one-out predictions of each member. With `apart`, every column
    of Y has its own shares, (members, columns).

    >>> Y = np.array([0.0, 1.0, 2.0])
    >>> member_shares(Y, [Y + [1, 0, 1], Y - [1, 0, 1], Y + 9], [None, "edges", None]).round(3)
    array([0.065, 0.87 , 0.065])
    """
    seen, predicted = np.array([view is not None for view in views]), np.stack(left_out)
    columns: Any = 0 if apart else tuple(range(Y.ndim))  # axes to sum over
    part: Any = (~seen).mean()  # the sum of the shares without a view
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
    """Raise unless this is a criterion, and for "accuracy" unless Y has a column for each of at least two classes."""
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {' or '.join(map(repr, CRITERIA))}, not {criterion!r}")
    if criterion == "accuracy" and (Y.ndim != 2 or Y.shape[1] < 2):
        raise InputError(f"accuracy needs a column of Y for each class, one-hot, but the shape of Y is {Y.shape}")


def rank(criterion: Criterion, Y: Array, predictions: Array, weights: Array | None = None) -> tuple[float, float]:
    """A sort key that is smaller for better predictions; equal accuracies are ordered by squared error."""
    error = squared_error(Y, predictions, weights)
    return (-accuracy(Y, predictions, weights) if criterion == "accuracy" else 0.0, error)


def log_likelihood(misfits: Array, log_determinant: float, rows: int, scale: Array) -> float:
    """The log marginal likelihood, summed over targets, with `misfits` `y' Q y` and the determinant of `K + noise I`.

    >>> round(log_likelihood(np.array([1.0]), 0.0, 1, np.array([1.0])), 6)  # the standard normal density at 1
    -1.418939
    """
    terms = misfits / scale + rows * (np.log(scale) + math.log(2 * math.pi)) + log_determinant
    return -0.5 * float(np.sum(terms))


def log_density(residuals: Array, inverse_diagonal: Array, scale: Array) -> float:
    """The sum of the log-densities of all targets under their leave-one-out predictions.

    `residuals`, (n, targets), are targets less their leave-one-out predictions. The variance of a prediction is
    `scale / inverse_diagonal`, where `inverse_diagonal`, (n,), is the diagonal of Q.
    """
    variances = scale / inverse_diagonal[:, None]
    return -0.5 * float(np.sum(residuals**2 / variances + np.log(2 * math.pi * variances)))


def maximise(value: Callable[[float], float], grid: Array) -> float:
    """The argument that maximises a function: the best point of a grid, refined between its neighbours in logarithms.

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
    """The scale of `probabilities` at which the true classes `codes` are most likely; values are (n, classes).

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
    """Probabilities of classes, (n, classes), from their values.

    >>> probabilities(np.array([[0.0, np.log(3.0)]]), 1.0).round(2)
    array([[0.25, 0.75]])
    """
    shares: Array = softmax(scale * values, axis=1)
    return shares


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of probabilities, and a reliability diagram: `accuracies` against `confidences` in bins of confidence.

    `nll` is the mean of -log p of the true class, `brier` the mean squared distance from the one-hot label, `ece` the
    expected calibration error: the distance between accuracy and confidence of a bin, averaged over images. `counts`
    are the images of each bin; bins without any hold NaN.
    """

    nll: float
    brier: float
    ece: float
    accuracy: float
    confidences: Array
    accuracies: Array
    counts: NDArray[np.intp]


def calibration(shares: Any, labels: Any, *, classes: Any = None, bins: int = 15) -> Calibration:
    """Score probabilities, (n, classes), against labels; `classes` names the columns, by default 0, 1, ...

    >>> found = calibration([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]], [0, 1, 1])
    >>> round(found.nll, 3), round(found.brier, 3), round(found.ece, 3)
    (0.415, 0.273, 0.3)
    """
    values, truth = np.asarray(shares, dtype=np.float64), np.asarray(labels)
    names = np.arange(values.shape[1] if values.ndim == 2 else 0) if classes is None else np.asarray(classes)
    if values.ndim != 2 or truth.shape != values.shape[:1] or not len(values):
        raise InputError(f"probabilities of shape {values.shape} do not go with labels of shape {truth.shape}")
    if names.shape != values.shape[1:]:
        raise InputError(f"classes names each of {values.shape[1]} columns of probabilities, not {classes!r}")
    if len(np.unique(names)) < len(names):
        raise InputError(f"classes names a column twice: {names.tolist()}")
    if not is_whole(bins) or bins < 1:
        raise ParameterError(f"bins is a whole number from 1, not {bins!r}")
    if not (np.isfinite(values).all() and (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=1e-6)):
        raise InputError("probabilities must be at least 0 and sum to 1 in every row")
    if not np.isin(truth, names).all():
        raise InputError(
            f"no column of the probabilities stands for labels {np.setdiff1d(truth, names)}; name columns by classes="
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
