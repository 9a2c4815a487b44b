"""Progress of work that takes longer than two seconds: a bar on a terminal, one line in a notebook, or lines in a log.

A display is a function that is called with `(done, total)`. Kernels call their argument `progress` like that, and so do
estimators in the context `reporting`; training adds a function that returns its state as text. Rates are measured from
the first report on, so preparation and compilation do not count.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from .aside import announce

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[int, int], None]
Bar = Callable[..., None]  # a Progress with an optional third argument, a function that returns the state as text
SHOWN_AFTER = 2.0  # seconds before a bar appears
# Without a terminal: the wait before the first line of a log, between later ones, and between updates in a notebook,
# in units of `after`.
_FIRST_LINE, _NEXT_LINES, _IN_NOTEBOOKS = 5.0, 30.0, 0.25
LONG = 180.0  # seconds: longer work is announced even if nobody asked for progress
REFRESH = 0.5  # seconds between two readings of a state: reading a loss waits for the device


@contextlib.contextmanager
def progress_bar(
    label: str, *, unit: str = "pairs", stream: TextIO | None = None, after: float = SHOWN_AFTER
) -> Iterator[Bar]:
    """A function `progress(done, total)` that drives a display, which appears after `after` seconds.

    Its optional third argument returns the state, such as a loss, as text. It is called only when a bar is to show it.

    >>> import tangentless as tl
    >>> with progress_bar("kernel") as progress:
    ...     K = tl.kernel("relu")([[1.0, 0.0], [0.0, 1.0]], progress=progress)
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        with _lines(label, unit, stream, after) as progress:
            yield progress
        return
    bar = make_bar(stream, unit)
    task = bar.add_task(label, total=None)
    # A timer starts the bar, not the first report: preparation and compilation take long too, and report nothing.
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    (timer.start if after else bar.start)()
    shown = time.perf_counter()

    def report(done: int, total: int, state: Callable[[], str] | None = None) -> None:
        nonlocal shown
        if state is None:
            bar.update(task, completed=done, total=total)
        elif time.perf_counter() - shown > REFRESH:
            bar.update(task, completed=done, total=total, description=f"{label}  {state()}")
            shown = time.perf_counter()

    try:
        yield report
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()
        if bar.live.is_started:
            bar.stop()


@contextlib.contextmanager
def shown(verbose: bool, label: str, unit: str = "pairs") -> Iterator[Progress]:
    """`progress_bar` if `verbose`, otherwise a function that does nothing."""
    with progress_bar(label, unit=unit) if verbose else contextlib.nullcontext(lambda done, total: None) as progress:
        yield progress


class Pace:
    """Counts reports `(done, total)`; gives the rate, the time left, and a line of text.

    >>> pace = Pace("kernel", "pairs")
    >>> str(pace)
    'kernel'
    >>> pace(250, 1_000)
    >>> str(pace)
    'kernel: 25 % of 1,000 pairs'
    """

    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._first: tuple[float, int] | None = None
        self.done, self.total = 0, 0

    def __call__(self, done: int, total: int, state: Callable[[], str] | None = None) -> None:
        self.done, self.total = done, total
        self._first = self._first or (time.monotonic(), done)

    @property
    def elapsed(self) -> float:
        """Seconds since the first report."""
        return time.monotonic() - self._first[0] if self._first else 0.0

    @property
    def rate(self) -> float:
        """Units per second since the first report, or 0 before there is progress."""
        return (self.done - self._first[1]) / self.elapsed if self._first and self.done > self._first[1] else 0.0

    @property
    def left(self) -> float:
        """Estimated seconds left, or 0 before there is a rate."""
        return (self.total - self.done) / self.rate if self.rate else 0.0

    def __str__(self) -> str:
        share = f": {100 * self.done / self.total:.0f} % of {self.total:,} {self._unit}" if self.total else ""
        pace = f", {self.rate:,.0f} {self._unit}/s, {timedelta(seconds=round(self.left))} left" if self.left else ""
        return f"{self._label}{share}{pace}"


class Forecast(Pace):
    """Announces once how long a kernel matrix will take, if that is longer than `LONG`."""

    def __init__(self) -> None:
        super().__init__("kernel", "pairs")
        self._said = False

    def __call__(self, done: int, total: int, state: Callable[[], str] | None = None) -> None:
        super().__call__(done, total)
        if not self._said and self.elapsed > SHOWN_AFTER and self.rate:
            self._said = True
            if self.left > LONG:
                announce(f"{self}; verbose=True (estimators) or progress= (kernels) shows how far it is")


@contextlib.contextmanager
def _lines(label: str, unit: str, stream: TextIO, after: float) -> Iterator[Bar]:
    """A display without a terminal. A thread writes its lines, so they appear even while nothing is reported."""
    pace, ended, show = Pace(label, unit), threading.Event(), _notebook_line()
    waits = (_FIRST_LINE, _NEXT_LINES) if show is None else (1.0, _IN_NOTEBOOKS)

    def write() -> None:
        wait = waits[0]
        while not ended.wait(wait * (after or SHOWN_AFTER)):
            if show is not None:
                show(str(pace))
            else:
                print(f"{time.strftime('%H:%M:%S')} {pace}", file=stream, flush=True)
            wait = waits[1]

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield pace
    finally:
        ended.set()
        writer.join()


def _notebook_line() -> Callable[[str], None] | None:
    """A function that shows a line in a notebook, replacing the previous one; None outside notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import DisplayHandle

    handle = DisplayHandle()
    drawn = False

    def show(text: str) -> None:
        nonlocal drawn
        (handle.update if drawn else handle.display)({"text/plain": text}, raw=True)
        drawn = True

    return show


def make_bar(stream: TextIO, unit: str) -> RichProgress:
    """A bar with percentage, rate in `unit` per second, and time left; it disappears at the end."""
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "", style="progress.data.speed")

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
        speed_estimate_period=10.0,
    )
