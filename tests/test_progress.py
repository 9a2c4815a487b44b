"""Progress bars appear on terminals, after two seconds, and nowhere else."""

from __future__ import annotations

import io
import itertools
import threading

import numpy as np
import pytest

import tangentless as tl
from conftest import wait_until
from tangentless.backends import get_backend
from tangentless.kernel import Kernel
from tangentless.progress import SHOWN_AFTER, Watched, progress_bar
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
            progress(next(done), 100_000)
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


@pytest.mark.parametrize(
    "k", [tl.kernel(TEXT), tl.kernel(TEXT).mirrored(), tl.kernel(TEXT) + tl.kernel("conv3 relu globalpool")]
)
def test_a_watched_backend_reports_all_pairs_and_changes_no_value(k: Kernel):
    X = np.random.default_rng(0).standard_normal((5, 4, 4, 1))
    reports: list[tuple[int, int]] = []
    total = symmetric_pairs(5) * sum(1 for _ in k.leaves())
    watched = Watched(get_backend("reference"), lambda done, whole: reports.append((done, whole)), total)
    np.testing.assert_array_equal(k(X, backend=watched), k(X, backend="reference"))
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_a_watched_backend_passes_reports_on():
    X = np.random.default_rng(0).standard_normal((3, 4, 4, 1))
    inner: list[int] = []
    outer: list[int] = []
    watched = Watched(get_backend("reference"), lambda done, total: inner.append(done), 6)
    tl.kernel(TEXT)(X, backend=watched, progress=lambda done, total: outer.append(done))
    assert inner == outer
    assert inner[-1] == 6
    assert watched.describe(tl.kernel(TEXT).program((4, 4, 1))).startswith("reference")
