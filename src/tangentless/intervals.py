"""Confidence intervals, 95 % unless told otherwise: of a share of right answers, and of a mean over trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def exact_interval(right: float, rows: float, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of the share `right / rows`; rows may be fractions, where each counts half.

    >>> [round(100 * end, 2) for end in exact_interval(73, 74)]
    [92.7, 99.97]
    """
    from scipy.stats import beta

    tail, wrong = (1 - confidence) / 2, rows - right
    low = float(beta.ppf(tail, right, wrong + 1)) if right > 0 else 0.0
    high = float(beta.ppf(1 - tail, right + 1, wrong)) if wrong > 0 else 1.0
    return low, high


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of two or more values.

    >>> [round(end, 3) for end in mean_interval([0.5, 0.6, 0.7])]
    [0.352, 0.848]
    """
    from scipy.stats import t

    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    reach = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * deviation / len(values) ** 0.5
    return mean - reach, mean + reach


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None where there is one value only."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Score:
    """How many of some rows were right, with the exact interval of the share.

    >>> score = Score.of([1, 2, 2, 0], [1, 2, 2, 2])
    >>> score.accuracy, [round(end, 3) for end in score.interval]
    (0.75, [0.194, 0.994])
    """

    right: int
    rows: int

    @classmethod
    def of(cls, predicted: Any, truth: Any) -> Score:
        """The score of predicted labels."""
        hits = np.asarray(predicted) == np.asarray(truth)
        return cls(int(hits.sum()), hits.size)

    @property
    def accuracy(self) -> float:
        """The share that was right."""
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share lies."""
        return exact_interval(self.right, self.rows)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"accuracy": self.accuracy, "interval": list(self.interval), "right": self.right, "rows": self.rows}
