"""Probabilities from the values of classes, `softmax(scale * values)`, and how good probabilities are.

One number is fitted, by maximum likelihood, to values that were predicted without the row they are compared with, so
no data are held out, no ranking of classes changes, and there is little to overfit (temperature scaling).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from ..errors import InputError

Array = NDArray[np.float64]

# From no opinion to certainty: values of one-hot targets lie about 1 apart.
_SMALLEST, _LARGEST = 1e-2, 1e3


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
