"""How classifiers stand among one another over many tables, from a column of accuracies in percent for each.

The measures are those of Fernández-Delgado et al. (2014) and Arora et al. (2020): the mean rank (Friedman), how often a
classifier reaches 90 and 95 % of the best accuracy of all (P90, P95), and which share of it on average (PMA). To them
come performance profiles (Dolan & Moré, 2002), and what tells differences from chance: Wilcoxon's signed ranks for two
classifiers, Nemenyi's critical difference for the mean ranks of several (Demšar, 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Array = NDArray[np.float64]
_SUMMARIES = ("min", "max", "mean", "std")  # columns and rows of the published table that are no classifier or table


@dataclass(frozen=True, eq=False)
class Results:
    """Accuracies in percent, (tables, classifiers), NaN where a classifier failed."""

    tables: tuple[str, ...]
    classifiers: tuple[str, ...]
    accuracies: Array

    def take(self, tables: Sequence[str]) -> Results:
        """The rows of some tables, in their order."""
        if missing := [name for name in tables if name not in self.tables]:
            raise InputError(f"the published results have no row for {', '.join(missing)}")
        rows = [self.tables.index(name) for name in tables]
        return Results(tuple(tables), self.classifiers, self.accuracies[rows])


def read_results(path: Path) -> Results:
    """The accuracies of 179 classifiers on 121 tables as Fernández-Delgado et al. publish them, `results.txt`."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not lines or lines[0][:1] != ["problema"]:
        raise InputError(f"{path} is not the table of published results: its first word is not 'problema'")
    names = [name for name in lines[0][1:] if name not in _SUMMARIES]
    rows = [line for line in lines[1:] if len(line) == len(lines[0])]
    try:
        values = [[math.nan if word == "--" else float(word) for word in row[1 : len(names) + 1]] for row in rows]
    except ValueError as error:
        raise InputError(f"{path} holds something other than numbers: {error}") from None
    return Results(tuple(row[0] for row in rows), tuple(names), np.array(values))


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
    """The mean over tables (rows) of each classifier's rank, 1 the best; equal ones share theirs.

    >>> mean_ranks(np.array([[90.0, 80.0, 80.0], [50.0, 60.0, np.nan]]))
    array([1.5 , 1.75, 2.75])
    """
    from scipy.stats import rankdata

    values = np.where(np.isnan(accuracies), -np.inf, accuracies)
    ranks: Array = rankdata(-values, axis=1).mean(axis=0)
    return ranks


def performance_profile(columns: Mapping[str, Any], within: Any) -> dict[str, Array]:
    """The share of tables on which a column is within so many points of the best column there.

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
    """Wilcoxon's signed rank test, two-sided, of two columns; tables without a difference are shared out (Pratt).

    >>> compare([80.0, 70.0, 60.0], [80.0, 70.0, 60.0]).p_value
    1.0
    """
    from scipy.stats import wilcoxon

    differences = np.round(np.asarray(first, float) - np.asarray(second, float), 9)
    p_value = float(wilcoxon(differences, zero_method="pratt").pvalue) if differences.any() else 1.0
    better, equal, worse = (int((np.sign(differences) == sign).sum()) for sign in (1, 0, -1))
    return Duel(better, equal, worse, p_value)


def critical_difference(classifiers: int, tables: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks of so many classifiers that are further apart differ by more than chance.

    >>> round(critical_difference(5, 30), 3)  # 2.728 sqrt(5 · 6 / (6 · 30)), Demšar's table 5
    1.114
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - level, classifiers, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(classifiers * (classifiers + 1) / (6 * tables))
