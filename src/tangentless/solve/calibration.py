"""Probabilities from the values of classes: `softmax(scale * values)`, the scale fitted to leave-one-out values.

One number is fitted, by maximum likelihood, to values that were predicted without the row they are compared with, so
no data are held out, no ranking of classes changes, and there is little to overfit (temperature scaling).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

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
