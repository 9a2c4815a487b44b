"""A live bar for training, with loss and accuracy; nothing where the stream is not a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

Report = Callable[[int, float, float], None]  # images done, loss and accuracy of this epoch so far
REFRESH = 0.5  # seconds: to read a loss, the device has to be waited for


@contextlib.contextmanager
def training_bar(label: str, images: int, *, stream: TextIO | None = None) -> Iterator[Report | None]:
    """A function to report to, or None if nobody looks.

    >>> import io
    >>> with training_bar("myrtle5", 100, stream=io.StringIO()) as report:
    ...     report is None
    True
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[state]}"),
        progress.TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
    task = bar.add_task(label, total=images, state="")
    with bar:
        yield lambda done, loss, accuracy: bar.update(
            task, completed=done, state=f"loss {loss:.4g}  accuracy {100 * accuracy:.1f} %"
        )
