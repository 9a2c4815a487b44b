"""Progress appears after two seconds: a bar on terminals, a line in notebooks, lines with times elsewhere."""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
import re
import sys
import threading
import types

import numpy as np
import pytest
from sklearn.base import clone

import tangentless.progress
from conftest import Terminal, wait_until
from tangentless import fitting
from tangentless.estimators import KernelRidgeClassifier, KernelSVC
from tangentless.preprocessing import ZCA
from tangentless.progress import SHOWN_AFTER, Forecast, progress_bar
from tangentless.timing import symmetric_pairs

TEXT = "conv3 relu globalpool normalize relu"


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


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_nothing_is_written_when_it_is_done_soon(kind):
    stream = kind()
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


def test_where_there_is_no_terminal_lines_are_stamped():
    stream, done = io.StringIO(), itertools.count(1)

    def is_shown():
        progress(next(done), 1_000_000)
        return " left" in stream.getvalue()

    with progress_bar("kernel", stream=stream, after=0.01) as progress:
        wait_until(is_shown)
    line = stream.getvalue().splitlines()[-1]
    assert re.match(r"\d\d:\d\d:\d\d kernel: 0 % of 1,000,000 pairs, [\d,]+ pairs/s, \d+:\d\d:\d\d left", line)


def test_lines_appear_even_while_nothing_is_reported():
    stream = io.StringIO()
    with progress_bar("fitting ZCA", stream=stream, after=0.01):
        wait_until(lambda: stream.getvalue().endswith("fitting ZCA\n"))


def test_notebooks_have_one_line_that_changes(monkeypatch):
    shown = []

    class Handle:
        def display(self, content, raw):
            shown.append(("new", content["text/plain"]))

        def update(self, content, raw):
            shown.append(("again", content["text/plain"]))

    notebook = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel="of a notebook")
    notebook.display = types.SimpleNamespace(DisplayHandle=Handle)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display)
    with progress_bar("kernel", stream=io.StringIO(), after=0.01) as progress:
        progress(1, 4)
        wait_until(lambda: len(shown) > 2)
    assert shown[0] == ("new", "kernel: 25 % of 4 pairs")
    assert {kind for kind, _ in shown[1:]} == {"again"}


def test_what_will_take_minutes_says_so_at_the_start(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr("tangentless.progress.time.monotonic", lambda: clock[0])
    for seconds, told in ((100.0, 0), (1000.0, 1)):
        caplog.clear()
        forecast = Forecast()
        with caplog.at_level("INFO", "tangentless"):
            for done in range(0, 1001, 10):
                forecast(done, 1000)
                clock[0] += seconds / 100
        assert len(caplog.messages) == told
    assert "kernel: 1 % of 1,000 pairs, 1 pairs/s, 0:16:30 left" in caplog.text


@pytest.mark.parametrize(
    "model", [KernelRidgeClassifier(TEXT, backend="reference"), KernelSVC(TEXT, backend="reference")]
)
def test_verbose_estimators_show_what_they_do(model, monkeypatch):
    labels = []

    @contextlib.contextmanager
    def listen(label, **options):
        labels.append(label)
        yield lambda done, total: None

    monkeypatch.setattr(fitting, "progress_bar", listen)
    X = np.random.default_rng(0).standard_normal((6, 4, 4, 1))
    clone(model).fit(X, [0, 1] * 3).predict(X)
    assert not labels
    clone(model).set_params(verbose=True).fit(X, [0, 1] * 3).predict(X)
    assert labels[0] == "training kernel"
    assert labels[-1] == "kernel"
    assert len(labels) == 3  # the one between is the solution


def test_verbose_whitening_shows_what_it_does(monkeypatch):
    labels = []

    @contextlib.contextmanager
    def listen(label, **options):
        labels.append(label)
        yield lambda done, total: labels.append((done, total))

    monkeypatch.setattr(tangentless.progress, "progress_bar", listen)
    ZCA(verbose=True).fit_transform(np.random.default_rng(0).standard_normal((6, 4, 4, 1)))
    assert labels == ["fitting ZCA", "whitening", (6, 6)]


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
        thread.join(timeout=600)  # rich does not wait for its thread to end
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
    assert not reports  # after the context, the model reports no progress
