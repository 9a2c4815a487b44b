"""The progress bar on a terminal: one bar, and below it a line for each worker of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .progress import Show, Snapshot, format_pace

_WORKERS_SHOWN = 16


@contextlib.contextmanager
def bar(stream: TextIO) -> Iterator[Show]:
    """A function that draws a snapshot in place."""
    with Live(console=Console(file=stream), refresh_per_second=10, transient=False) as live:
        yield lambda snapshot: live.update(draw(snapshot))


def draw(snapshot: Snapshot) -> Group:
    """The bar, with its figures, and the workers.

    >>> from rich.console import Console
    >>> Console(width=90).print(draw(Snapshot(2, 10, 500, 1000, 50.0)))  # doctest: +ELLIPSIS
    ━━━...  50.0 %  2 of 10 tiles  50 pairs/s, 0:00:10 left
    """
    line = Table.grid(padding=(0, 2))
    line.add_row(
        ProgressBar(total=snapshot.pairs, completed=snapshot.pairs_done, width=30),
        Text(f"{100 * snapshot.pairs_done / snapshot.pairs:.1f} %"),
        Text(f"{snapshot.tiles_done:,} of {snapshot.tiles:,} tiles"),
        Text(format_pace(snapshot)),
    )
    workers = Table.grid(padding=(0, 2))
    paces = sorted(snapshot.workers.items())
    for name, pace in paces[:_WORKERS_SHOWN]:
        workers.add_row(f"  {name}", f"{pace.tiles:,} tiles", f"{pace.pairs_per_second:,.0f} pairs/s")
    if len(paces) > _WORKERS_SHOWN:
        workers.add_row(f"  and {len(paces) - _WORKERS_SHOWN} more")
    return Group(line, workers)
