"""A live bar for training, with loss and accuracy; nothing where the stream is not a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from ..progress import make_bar

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH = 0.5  # seconds; not more often, because reading a loss waits for the device


class Report:
    """What training reports to."""

    def __init__(self, bar: Progress, label: str, images: int) -> None:
        self._bar, self._label, self._task = bar, label, bar.add_task(label, total=images)
        self._shown = time.perf_counter()

    def is_due(self) -> bool:
        """Whether the bar should be updated."""
        return time.perf_counter() - self._shown > REFRESH

    def show(self, done: int, loss: float, accuracy: float) -> None:
        """Show the images done, and loss and accuracy of this epoch so far."""
        state = f"{self._label}  loss {loss:.4g}  accuracy {100 * accuracy:.1f} %"
        self._bar.update(self._task, completed=done, description=state)
        self._shown = time.perf_counter()


@contextlib.contextmanager
def training_bar(label: str, images: int, *, stream: TextIO | None = None) -> Iterator[Report | None]:
    """What to report to, or None if the stream is not a terminal.

    >>> import io
    >>> with training_bar("myrtle5", 100, stream=io.StringIO()) as report:
    ...     report is None
    True
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield None
        return
    with make_bar(stream, "images") as bar:
        yield Report(bar, label, images)
