"""The statistics of classifiers over many tables, against the published ones."""

import csv
import os
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from tangentless.datasets.tables import read_results, read_table
from tangentless.errors import InputError
from tangentless.statistics import (
    compare,
    critical_difference,
    exact_interval,
    mean_ranks,
    performance_profile,
    standings,
)

TABLES = Path(os.environ.get("TANGENTLESS_DATA", "no-data")) / "uci"
needs_data = pytest.mark.skipif(
    not (TABLES / "results.txt").is_file(), reason="TANGENTLESS_DATA has no uci/results.txt"
)


def paper_columns():
    with resources.files("tangentless.experiments").joinpath("uci_paper.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    return rows, {name: [float(row[name]) for row in rows] for name in ("ntk", "gaussian")}


def test_columns_of_the_paper_have_its_averages():
    rows, columns = paper_columns()
    found = standings(columns)
    assert len(rows) == 90
    assert (round(found["ntk"].average, 1), round(found["ntk"].deviation, 1)) == (83.2, 13.5)
    assert (round(found["gaussian"].average, 1), round(found["gaussian"].deviation, 1)) == (83.4, 13.4)


@needs_data
def test_columns_of_the_paper_reproduce_its_table():
    rows, columns = paper_columns()
    others = read_results(TABLES / "results.txt").take([row["table"] for row in rows])
    assert len(others.classifiers) == 179
    found = standings(columns, others.accuracies)
    ntk, gaussian = found["ntk"], found["gaussian"]
    assert [round(value, 1) for value in (ntk.p90, ntk.p95, ntk.pma, ntk.pma_deviation)] == [96.7, 83.3, 97.3, 3.8]
    assert [round(value, 1) for value in (gaussian.p90, gaussian.p95, gaussian.pma, gaussian.pma_deviation)] == [
        95.6,
        83.3,
        97.5,
        3.7,
    ]
    # The paper prints 14.3 and 11.6.
    assert (round(ntk.rank, 1), round(gaussian.rank, 1)) == (14.2, 11.2)


@needs_data
def test_intervals_of_the_paper_count_every_test_row_half():
    rows, _ = paper_columns()
    for row in rows:
        table = read_table(row["table"], TABLES)
        tests = sum(len(fold.test) for fold in table.folds)
        for name in ("ntk", "gaussian"):
            right = round(float(row[name]) / 100 * tests)
            interval = exact_interval(right / 2, tests / 2)
            assert np.allclose(
                100 * np.array(interval), [float(row[f"{name}_low"]), float(row[f"{name}_high"])], atol=0.011
            ), row


def test_failures_rank_last_and_ties_share_ranks():
    accuracies = np.array([[70.0, 70.0, np.nan], [60.0, 50.0, 40.0]])
    assert mean_ranks(accuracies).tolist() == [1.25, 1.75, 3.0]


def test_missing_accuracy_is_refused_and_not_averaged_away():
    with pytest.raises(InputError, match="missing"):
        standings({"a": [90.0, np.nan]})


def test_best_of_others_counts_for_shares():
    found = standings({"a": [90.0]}, np.array([[100.0, np.nan]]))["a"]
    assert (found.pma, found.p90, found.p95, found.rank) == (90.0, 100.0, 0.0, 2.0)


def test_profile_rises_to_one_and_starts_at_the_share_of_wins():
    profile = performance_profile({"a": [90.0, 80.0, 70.0], "b": [80.0, 80.0, 75.0]}, [0, 5, 10])
    assert profile["a"].tolist() == [2 / 3, 1.0, 1.0]
    assert profile["b"].tolist() == [2 / 3, 2 / 3, 1.0]


def test_duel_counts_wins_and_detects_a_steady_difference():
    first = np.linspace(60, 90, 30)
    steady = compare(first, first - 1)
    assert (steady.better, steady.equal, steady.worse) == (30, 0, 0)
    assert steady.p_value < 1e-5
    noise = np.random.default_rng(0).standard_normal(30)
    assert compare(first, first + noise).p_value > 0.05


def test_critical_difference_is_that_of_the_textbook():
    # Demšar (2006), table 5: q_0.05 is 1.960, 2.343 and 3.164 for 2, 3 and 10 classifiers.
    for classifiers, quantile in ((2, 1.960), (3, 2.343), (10, 3.164)):
        expected = quantile * np.sqrt(classifiers * (classifiers + 1) / (6 * 20))
        assert critical_difference(classifiers, 20) == pytest.approx(expected, rel=1e-3)


def test_results_that_are_none_are_refused(tmp_path):
    path = tmp_path / "results.txt"
    path.write_text("table a b\niris 1 2\n")
    with pytest.raises(InputError, match="problema"):
        read_results(path)
    path.write_text("problema a b min max mean std\niris 90.0 -- 90 90 90 0\nmean x y\n")
    results = read_results(path)
    assert results.tables == ("iris",)
    assert results.classifiers == ("a", "b")
    assert np.isnan(results.accuracies[0, 1])
    with pytest.raises(InputError, match="no row for wine"):
        results.take(["wine"])
