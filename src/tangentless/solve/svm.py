"""The decisions of a support vector machine from its parts: plain arrays, so that a model can be kept without pickling.

libsvm separates every pair of classes by a function of its own. A row of kernel values against the support vectors
gives one decision for each pair; votes, with the decisions to break ties, give one value for each class.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_PRICE = 10.0  # of a violated margin, for features at a mean squared distance of 1 from their centre


@dataclass(frozen=True, eq=False)
class Separators:
    """What libsvm found: support vectors in the order of their classes, (classes - 1, support) coefficients."""

    coefficients: Array
    intercepts: Array
    counts: NDArray[np.intp]

    @classmethod
    def of(cls, machine: Any) -> Separators:
        """Those of a fitted scikit-learn `SVC`."""
        return cls(np.array(machine.dual_coef_), np.array(machine.intercept_), np.array(machine.n_support_, np.intp))

    def pairs(self, K: Array) -> Array:
        """A decision for each pair of classes, (rows, pairs); positive is the first class, but of two, the second."""
        ends = np.cumsum(self.counts)
        of_class = [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]
        if len(self.counts) == 2:
            return K @ self.coefficients.T + self.intercepts
        columns = []
        for (i, first), (j, second) in itertools.combinations(enumerate(of_class), 2):
            columns.append(K[:, first] @ self.coefficients[j - 1, first] + K[:, second] @ self.coefficients[i, second])
        return np.stack(columns, axis=1) + self.intercepts

    def decide(self, K: Array) -> Array:
        """A value for each class, (rows, classes), the largest that of the winner; of two classes one value, (rows,).

        >>> halves = Separators(np.array([[1.0, -1.0]]), np.array([0.25]), np.array([1, 1]))
        >>> halves.decide(np.array([[1.0, 0.0], [0.0, 1.0]]))
        array([ 1.25, -0.75])
        """
        decisions, classes = self.pairs(K), len(self.counts)
        if classes == 2:
            return decisions[:, 0]
        votes, sums = np.zeros((len(K), classes)), np.zeros((len(K), classes))
        for decision, (i, j) in zip(decisions.T, itertools.combinations(range(classes), 2), strict=True):
            sums[:, i] += decision
            sums[:, j] -= decision
            votes[:, i] += decision >= 0
            votes[:, j] += decision < 0
        votes += sums / (3 * (np.abs(sums) + 1))  # less than a third of a vote, so that it only breaks ties
        return votes


def scaled_price(K: Array) -> float:
    """A price C of violated margins that suits a kernel matrix: 10 over the mean squared distance from the centre.

    A machine with an intercept sees differences between features only. Kernels of this package have features of length
    one that point nearly the same way: a C made for distances near 1 lets every row violate its margin.

    >>> round(scaled_price(np.eye(100)), 6)
    10.10101
    """
    spread = float(np.trace(K) / len(K) - K.mean())
    return _PRICE / spread if spread > 0 else _PRICE
