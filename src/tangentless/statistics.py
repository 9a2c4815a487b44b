"""Statistics of accuracies: intervals, comparisons of classifiers over many tables, and tests of their differences.

The comparisons of Fernández-Delgado et al. (2014) and Arora et al. (2020): the mean rank (Friedman), the share of
tables on which a classifier reaches 90 or 95 % of the best accuracy (P90, P95), and its mean share of the best accuracy
(PMA). There are also performance profiles (Dolan & Moré, 2002), Wilcoxon's signed rank test of two classifiers,
Nemenyi's critical difference for the mean ranks of several (Demšar, 2006), and Spearman's rank correlation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

Array = NDArray[np.float64]
_CONFIDENCE = 0.95  # of all intervals and tests
_RESAMPLED = 2000  # bootstrap samples of the test images, for the interval of a correlation
_EXACT = 8  # up to this many items, the permutation test goes through all orders


def exact_interval(right: float, rows: float) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of the share `right / rows`; both may be fractions, if a row counts half.

    >>> [round(100 * end, 2) for end in exact_interval(73, 74)]
    [92.7, 99.97]
    """
    from scipy.stats import beta

    tail, wrong = (1 - _CONFIDENCE) / 2, rows - right
    low = float(beta.ppf(tail, right, wrong + 1)) if right > 0 else 0.0
    high = float(beta.ppf(1 - tail, right + 1, wrong)) if wrong > 0 else 1.0
    return low, high


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of two or more values.

    >>> [round(end, 3) for end in mean_interval([0.5, 0.6, 0.7])]
    [0.352, 0.848]
    """
    from scipy.stats import t

    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    reach = float(t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)) * deviation / len(values) ** 0.5
    return mean - reach, mean + reach


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample (ddof 1); None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Score:
    """The number of rows predicted right, with the exact interval of their share.

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
        """The share of rows predicted right."""
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy."""
        return exact_interval(self.right, self.rows)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"accuracy": self.accuracy, "interval": list(self.interval), "right": self.right, "rows": self.rows}


@dataclass(frozen=True)
class Standing:
    """Statistics of one classifier over many tables, all but the rank in per cent."""

    average: float
    deviation: float
    rank: float
    p90: float
    p95: float
    pma: float
    pma_deviation: float


def standings(columns: Mapping[str, Any], others: Any = None) -> dict[str, Standing]:
    """Compare columns of accuracies (per cent, one for each table) with each other and with `others`, (tables, many).

    A NaN in `others`, a missing accuracy, ranks last. Deviations are over all tables (ddof 0).

    >>> both = standings({"a": [90.0, 80.0], "b": [100.0, 70.0]})
    >>> both["a"].average, both["a"].rank, both["a"].p90, both["b"].p90
    (85.0, 1.5, 100.0, 50.0)
    """
    own = np.array([np.asarray(column, float) for column in columns.values()]).T
    if not np.isfinite(own).all():
        raise InputError("an accuracy is missing; leave that table out of all columns")
    everyone = own if others is None else np.concatenate((own, np.asarray(others, float)), axis=1)
    ranks = mean_ranks(everyone)
    best = np.nanmax(everyone, axis=1)
    found = {}
    for place, name in enumerate(columns):
        shares = 100 * own[:, place] / best
        found[name] = Standing(
            average=float(own[:, place].mean()),
            deviation=float(own[:, place].std()),
            rank=float(ranks[place]),
            p90=float(100 * np.mean(own[:, place] >= 0.9 * best)),
            p95=float(100 * np.mean(own[:, place] >= 0.95 * best)),
            pma=float(shares.mean()),
            pma_deviation=float(shares.std()),
        )
    return found


def mean_ranks(accuracies: Any) -> Array:
    """The mean rank of each classifier (column) over tables (rows); 1 is the best, and ties get their mean rank.

    >>> mean_ranks(np.array([[90.0, 80.0, 80.0], [50.0, 60.0, np.nan]]))
    array([1.5 , 1.75, 2.75])
    """
    from scipy.stats import rankdata

    values = np.where(np.isnan(accuracies), -np.inf, accuracies)
    ranks: Array = rankdata(-values, axis=1).mean(axis=0)
    return ranks


def performance_profile(columns: Mapping[str, Any], within: Any) -> dict[str, Array]:
    """The share of tables on which each column is at most `within` points below the best column.

    >>> performance_profile({"a": [90.0, 80.0], "b": [89.0, 85.0]}, [0, 1, 5])["b"]
    array([0.5, 1. , 1. ])
    """
    values = np.array([np.asarray(column, float) for column in columns.values()])
    behind = values.max(axis=0) - values
    return {
        name: (behind[place][:, None] <= np.asarray(within) + 1e-9).mean(axis=0) for place, name in enumerate(columns)
    }


@dataclass(frozen=True)
class Duel:
    """Two classifiers compared: numbers of tables where the first is better, equal or worse, and Wilcoxon's p-value."""

    better: int
    equal: int
    worse: int
    p_value: float


def compare(first: Any, second: Any) -> Duel:
    """Wilcoxon's signed rank test, two-sided, of two columns; ties are ranked by Pratt's method.

    >>> compare([80.0, 70.0, 60.0], [80.0, 70.0, 60.0]).p_value
    1.0
    """
    from scipy.stats import wilcoxon

    differences = np.round(np.asarray(first, float) - np.asarray(second, float), 9)
    p_value = float(wilcoxon(differences, zero_method="pratt").pvalue) if differences.any() else 1.0
    better, equal, worse = (int((np.sign(differences) == sign).sum()) for sign in (1, 0, -1))
    return Duel(better, equal, worse, p_value)


def critical_difference(classifiers: int, tables: int) -> float:
    """Nemenyi's critical difference: mean ranks that differ by more are different at a significance level of 5 %.

    >>> round(critical_difference(5, 30), 3)  # 2.728 sqrt(5 · 6 / (6 · 30)), Demšar's table 5
    1.114
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(_CONFIDENCE, classifiers, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(classifiers * (classifiers + 1) / (6 * tables))


def rank_correlation(kernels: Array, networks: Array, *, seed: int = 0) -> dict[str, Any]:
    """Spearman's rank correlation of the accuracies of kernels and networks, with p-value and 95 % interval.

    Both arguments are hits, (architectures, test images): 1 where a test image is predicted right, or the share of
    trials. The p-value is one-sided, by permutation; the interval is by resampling the test images.

    >>> hits = np.array([[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]], float)
    >>> round(rank_correlation(hits, hits)["spearman"], 9)
    1.0
    """
    from scipy.stats import permutation_test

    across, up = networks.mean(axis=1), kernels.mean(axis=1)
    found = spearman(across, up)
    if np.isnan(found):
        return {"spearman": None, "p": None, "interval": None, "resampled": 0}
    test = permutation_test(
        (up,),
        lambda y: spearman(across, y),
        permutation_type="pairings",
        n_resamples=np.inf if len(across) <= _EXACT else 9999,
        alternative="greater",
        random_state=np.random.default_rng(seed),
    )
    images = networks.shape[1]
    counts = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=_RESAMPLED)
    low, high = np.nanpercentile(spearman(counts @ networks.T, counts @ kernels.T), [2.5, 97.5])
    return {
        "spearman": float(found),
        "p": float(test.pvalue),
        "interval": [float(low), float(high)],
        "resampled": _RESAMPLED,
    }


def spearman(left: Array, right: Array) -> Any:
    """The rank correlation along the last axis; NaN where all values of one side are equal.

    >>> round(float(spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]))), 9)
    0.8
    """
    from scipy.stats import rankdata

    a, b = (rankdata(side, axis=-1) for side in (left, right))
    a, b = (side - side.mean(axis=-1, keepdims=True) for side in (a, b))
    scale = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), scale, out=np.full_like(scale, np.nan), where=scale > 0)
