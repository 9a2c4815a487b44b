"""Progress bars appear on terminals, after two seconds, and nowhere else."""

from __future__ import annotations

import io
import itertools
import pickle
import threading

import numpy as np
import pytest
from sklearn.base import clone

from conftest import wait_until
from tangentless import fitting
from tangentless.estimators import KernelRidgeClassifier, KernelSVC
from tangentless.progress import SHOWN_AFTER, progress_bar
from tangentless.timing import symmetric_pairs

TEXT = "conv3 relu globalpool normalize relu"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show_until(*words: str, unit: str = "pairs") -> None:
    """Report more and more pairs until the bar shows all these words."""
    stream, done = Terminal(), itertools.count(1)
    with progress_bar("kernel", unit=unit, stream=stream, after=0.01) as progress:

        def is_shown() -> bool:
            progress(next(done), 1_000)
            return all(word in stream.getvalue() for word in words)

        wait_until(is_shown)


def test_two_seconds_is_when_bars_appear():
    assert SHOWN_AFTER == 2.0


def test_nothing_is_written_when_not_on_a_terminal():
    stream = io.StringIO()
    with progress_bar("kernel", stream=stream, after=0.0) as progress:
        progress(1, 2)
    assert stream.getvalue() == ""


def test_nothing_is_written_when_it_is_done_soon():
    stream = Terminal()
    with progress_bar("kernel", stream=stream, after=3600.0) as progress:
        progress(1, 2)
    assert stream.getvalue() == ""


def test_a_bar_shows_label_rate_and_time_left():
    show_until("kernel", " pairs/s", "0:0")


def test_a_rate_is_in_the_unit_that_is_counted():
    show_until(" kB/s", unit="kB")


def test_a_bar_appears_even_while_nothing_is_reported():
    stream = Terminal()
    with progress_bar("prepare", stream=stream, after=0.01):
        wait_until(lambda: "prepare" in stream.getvalue())


def test_an_error_ends_the_bar_and_its_thread():
    before = set(threading.enumerate())

    def fail() -> None:
        stream = Terminal()
        with progress_bar("kernel", stream=stream, after=0.01):
            wait_until(stream.getvalue)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    new = [thread for thread in threading.enumerate() if thread not in before]
    ours = [thread for thread in new if isinstance(thread, threading.Timer) or "rich" in type(thread).__module__]
    for thread in ours:
        thread.join(timeout=600)  # rich tells its thread to end and does not wait for it
    assert not [thread for thread in ours if thread.is_alive()]


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("kind", [KernelRidgeClassifier, KernelSVC])
def test_fitting_and_predicting_report_all_pairs_and_change_no_value(kind, flips, monkeypatch):
    monkeypatch.setattr(fitting, "ENTRIES_AT_ONCE", 12)  # a few rows at a time
    X, labels = np.random.default_rng(0).standard_normal((6, 4, 4, 1)), [0, 1, 2, 0, 1, 2]
    model, reports = kind(TEXT, flips=flips, backend="reference"), []
    expected = clone(model).fit(X, labels).decision_function(X)
    with model.reporting(lambda done, total: reports.append((done, total))):
        model.fit(X, labels)
        total = symmetric_pairs(6) * (1 + flips)
        assert reports[-1] == (total, total)
        reports.clear()
        np.testing.assert_array_equal(model.decision_function(X), expected)
    total = len(X) * len(model.X_fit_) * (1 + flips)
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert {whole for _, whole in reports} == {total}
    reports.clear()
    pickle.loads(pickle.dumps(model)).predict(X)
    assert not reports  # what reports is gone with its context
