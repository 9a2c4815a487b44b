"""Statistics of accuracies: intervals, how classifiers stand over many tables, and what tells differences from chance.

Standings are those of Fernández-Delgado et al. (2014) and Arora et al. (2020): the mean rank (Friedman), how often a
classifier reaches 90 and 95 % of the best accuracy of all (P90, P95), and which share of it on average (PMA). There are
also performance profiles (Dolan & Moré, 2002), Wilcoxon's signed ranks for two classifiers, Nemenyi's critical
difference for the mean ranks of several (Demšar, 2006), and Spearman's correlation of two orders.
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
_RESAMPLED = 2000  # times that test images are drawn anew, for the interval of a correlation
_EXACT = 8  # items up to which all orders are counted


def exact_interval(right: float, rows: float, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of the share `right / rows`; rows need not be whole, if each counts half.

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


@dataclass(frozen=True)
class Standing:
    """What becomes of one column of accuracies; all but the rank in percent."""

    average: float
    deviation: float
    rank: float
    p90: float
    p95: float
    pma: float
    pma_deviation: float


def standings(columns: Mapping[str, Any], others: Any = None) -> dict[str, Standing]:
    """How columns of accuracies (percent, a row for each table) stand, among themselves and `others`, (tables, many).

    Whoever has no accuracy (NaN) comes last. Deviations are those of the tables at hand, not of a sample of them.

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
    """The mean rank of each classifier (column) over tables (rows); 1 is the best, and equal ones share the mean.

    >>> mean_ranks(np.array([[90.0, 80.0, 80.0], [50.0, 60.0, np.nan]]))
    array([1.5 , 1.75, 2.75])
    """
    from scipy.stats import rankdata

    values = np.where(np.isnan(accuracies), -np.inf, accuracies)
    ranks: Array = rankdata(-values, axis=1).mean(axis=0)
    return ranks


def performance_profile(columns: Mapping[str, Any], within: Any) -> dict[str, Array]:
    """The share of tables on which a column is within some points of the best column there.

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
    """Two classifiers table by table: how often the first was better, equal and worse, and Wilcoxon's p-value."""

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


def critical_difference(classifiers: int, tables: int, level: float = 0.05) -> float:
    """Nemenyi's critical difference: mean ranks that are further apart differ by more than chance.

    >>> round(critical_difference(5, 30), 3)  # 2.728 sqrt(5 · 6 / (6 · 30)), Demšar's table 5
    1.114
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - level, classifiers, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(classifiers * (classifiers + 1) / (6 * tables))


def rank_correlation(kernels: Array, networks: Array, *, seed: int = 0) -> dict[str, Any]:
    """Spearman's correlation of accuracies, from hits (items, test images) on two sides; with p-value and interval.

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
    """The correlation of ranks along the last axis; NaN where all of one side are equal.

    >>> round(float(spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]))), 9)
    0.8
    """
    from scipy.stats import rankdata

    a, b = (rankdata(side, axis=-1) for side in (left, right))
    a, b = (side - side.mean(axis=-1, keepdims=True) for side in (a, b))
    scale = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), scale, out=np.full_like(scale, np.nan), where=scale > 0)
