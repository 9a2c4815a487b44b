"""Decisions of a support vector machine, computed from plain arrays so that a model can be saved without pickling.

libsvm has a decision function for every pair of classes. The kernel of a row with the support vectors gives one
decision for each pair. Each decision is a vote for one class; votes, with the sums of decisions to break ties, are the
values of the classes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_PRICE = 10.0  # C for features with a mean squared distance of 1 from their centre


@dataclass(frozen=True, eq=False)
class Separators:
    """A solution of libsvm: coefficients (classes - 1, support vectors), intercepts (pairs,), counts (classes,).

    Support vectors are ordered by class, and `counts` has their number in each class.
    """

    coefficients: Array
    intercepts: Array
    counts: NDArray[np.intp]

    @classmethod
    def of(cls, machine: Any) -> Separators:
        """From a fitted scikit-learn `SVC`."""
        return cls(np.array(machine.dual_coef_), np.array(machine.intercept_), np.array(machine.n_support_, np.intp))

    def pairs(self, K: Array) -> Array:
        """The decision for each pair of classes, (rows, pairs).

        A positive one is for the first class of the pair; but if there are two classes only, for the second.
        """
        ends = np.cumsum(self.counts)
        of_class = [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]
        if len(self.counts) == 2:
            return K @ self.coefficients.T + self.intercepts
        columns = []
        for (i, first), (j, second) in itertools.combinations(enumerate(of_class), 2):
            columns.append(K[:, first] @ self.coefficients[j - 1, first] + K[:, second] @ self.coefficients[i, second])
        return np.stack(columns, axis=1) + self.intercepts

    def decide(self, K: Array) -> Array:
        """The value of each class, (rows, classes), the largest for the winner; for two classes one value, (rows,).

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
        votes += sums / (3 * (np.abs(sums) + 1))  # less than a third of a vote: only breaks ties
        return votes


def scaled_price(K: Array) -> float:
    """A C for a kernel matrix: 10 / (the mean squared distance of features from their centre).

    A machine with an intercept depends on differences between features only. Features of this package's kernels have
    length one and nearly the same direction. With a C for distances near 1, every row would violate its margin.

    >>> round(scaled_price(np.eye(100)), 6)
    10.10101
    """
    spread = float(np.trace(K) / len(K) - K.mean())
    return _PRICE / spread if spread > 0 else _PRICE
