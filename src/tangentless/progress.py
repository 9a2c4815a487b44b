"""Progress on a terminal: a bar with the rate and the time left, for what takes longer than two seconds.

Nothing is shown when the stream is not a terminal, so logs and pipes stay clean. A bar is told `(done, total)`, which
is what kernels report to their argument `progress`, and estimators in the context `reporting`; training adds its state.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[int, int], None]
Bar = Callable[..., None]  # a Progress that also takes a function that says the state in words
SHOWN_AFTER = 2.0  # seconds: what is done sooner needs no bar
REFRESH = 0.5  # seconds between two looks at a state, because reading a loss waits for the device


@contextlib.contextmanager
def progress_bar(
    label: str, *, unit: str = "pairs", stream: TextIO | None = None, after: float = SHOWN_AFTER
) -> Iterator[Bar]:
    """A function of pairs (or other units) done and in all, which draws a bar once `after` seconds have passed.

    A third argument is asked for the state, such as a loss, only where a bar is due to show it.

    >>> import tangentless as tl
    >>> with progress_bar("kernel") as progress:
    ...     K = tl.kernel("relu")([[1.0, 0.0], [0.0, 1.0]], progress=progress)
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield lambda done, total, state=None: None
        return
    bar = make_bar(stream, unit)
    task = bar.add_task(label, total=None)
    # A timer, not the first report: preparation and compilation report nothing, and may take long too.
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


def make_bar(stream: TextIO, unit: str) -> RichProgress:
    """A bar with the share done, the rate in a unit, and the time left; it vanishes at the end."""
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
