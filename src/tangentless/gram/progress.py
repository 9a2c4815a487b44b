"""Progress of a run: share done, rate and time left; as a bar, a line per minute, or JSON.

The bar on a terminal has a line below it for each worker of a cluster.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ..errors import ParameterError

if TYPE_CHECKING:
    from rich.table import Table

Show = Callable[["Snapshot"], None]
ProgressOption = bool | Literal["json"] | Show
_WORKERS_SHOWN = 16


@dataclass(frozen=True)
class WorkerPace:
    """The tiles and pairs that one worker has computed in this run, and the seconds it took."""

    tiles: int = 0
    pairs: int = 0
    seconds: float = 0.0

    @property
    def pairs_per_second(self) -> float:
        """The rate while it was computing."""
        return self.pairs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Snapshot:
    """The state of a run: tiles and pairs done and in all, and the rate since the run began.

    >>> snapshot = Snapshot(tiles_done=2, tiles=10, pairs_done=200.0, pairs=1000, pairs_per_second=50.0)
    >>> snapshot.seconds_left
    16.0
    >>> print(snapshot)
    2 of 10 tiles, 20.0 % of 1,000 pairs, 50 pairs/s, 0:00:16 left
    """

    tiles_done: int
    tiles: int
    pairs_done: float
    pairs: int
    pairs_per_second: float = 0.0
    workers: dict[str, WorkerPace] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float | None:
        """The time left at the rate so far; None before there is a rate."""
        left = self.pairs - self.pairs_done
        return left / self.pairs_per_second if self.pairs_per_second else (None if left else 0.0)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        values = {**asdict(self), "seconds_left": self.seconds_left}
        values["workers"] = {
            name: {**asdict(pace), "pairs_per_second": pace.pairs_per_second} for name, pace in self.workers.items()
        }
        return values

    def __str__(self) -> str:
        share, left = 100 * self.pairs_done / self.pairs, self.seconds_left
        text = f"{self.tiles_done:,} of {self.tiles:,} tiles, {share:.1f} % of {self.pairs:,} pairs, "
        text += "no pace yet" if left is None else f"{self.pairs_per_second:,.0f} pairs/s"
        if left:
            text += f", {timedelta(seconds=round(left))} left"
        return text + (f", {len(self.workers)} workers" if self.workers else "")


def check_option(option: ProgressOption) -> None:
    """Raise `ParameterError` for a wrong `progress` argument, before any work is done."""
    if not (callable(option) or option == "json" or isinstance(option, bool)):
        raise ParameterError(f"progress is True, False, 'json' or a function, not {option!r}")


class Meter:
    """Counts tiles and pairs, and calls `show` at most once in `every` seconds."""

    def __init__(self, start: Snapshot, show: Show, every: float) -> None:
        self._start = self.now = start
        self._show, self._every = show, every
        self._began = self._shown = time.monotonic()

    def advance(self, pairs: float) -> None:
        """Count pairs of an unfinished tile."""
        self.now = replace(self.now, pairs_done=self.now.pairs_done + pairs)
        self.refresh()

    def finish_tile(self, pairs: float = 0, worker: str = "", seconds: float = 0.0) -> None:
        """Count a tile that is in the store, and those of its pairs that `advance` has not counted."""
        workers = dict(self.now.workers)
        if worker:
            pace = workers.get(worker, WorkerPace())
            workers[worker] = WorkerPace(pace.tiles + 1, pace.pairs + int(pairs), pace.seconds + seconds)
        self.now = replace(
            self.now, tiles_done=self.now.tiles_done + 1, pairs_done=self.now.pairs_done + pairs, workers=workers
        )
        self.refresh(force=self.now.tiles_done == self.now.tiles)

    def refresh(self, *, force: bool = False) -> None:
        """Show the state if `every` seconds have passed, or with `force`."""
        moment = time.monotonic()
        if not force and moment - self._shown < self._every:
            return
        self._shown = moment
        done, elapsed = self.now.pairs_done - self._start.pairs_done, moment - self._began
        self.now = replace(self.now, pairs_per_second=done / elapsed if elapsed else 0.0)
        self._show(self.now)


@contextlib.contextmanager
def metered(start: Snapshot, option: ProgressOption, stream: TextIO | None = None) -> Iterator[Meter]:
    """A meter with a display. True is a bar on a terminal and a line per minute elsewhere."""
    stream = stream or (sys.stdout if option == "json" else sys.stderr)
    if callable(option):
        yield Meter(start, option, 0.0)
    elif option == "json":
        yield Meter(
            start, lambda now: print(json.dumps({"event": "progress", **now.to_json()}), file=stream, flush=True), 1.0
        )
    elif not option:
        yield Meter(start, lambda now: None, float("inf"))
    elif stream.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(file=stream), refresh_per_second=10) as live:
            yield Meter(start, lambda now: live.update(draw(now)), 0.1)
    else:
        yield Meter(start, lambda now: print(time.strftime("%H:%M:%S"), now, file=stream, flush=True), 60.0)


def draw(snapshot: Snapshot) -> Table:
    """The bar, the text of the snapshot below it, and a line for each worker.

    >>> from rich.console import Console
    >>> Console(width=90).print(draw(Snapshot(2, 10, 500, 1000, 50.0)))  # doctest: +ELLIPSIS
    ━━━...
    2 of 10 tiles, 50.0 % of 1,000 pairs, 50 pairs/s, 0:00:10 left
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    shown = Table.grid()
    shown.add_row(ProgressBar(total=snapshot.pairs, completed=snapshot.pairs_done, width=60))
    lines = [str(snapshot)]
    for name, pace in sorted(snapshot.workers.items())[:_WORKERS_SHOWN]:
        lines.append(f"  {name}  {pace.tiles:,} tiles  {pace.pairs_per_second:,.0f} pairs/s")
    if len(snapshot.workers) > _WORKERS_SHOWN:
        lines.append(f"  and {len(snapshot.workers) - _WORKERS_SHOWN} more")
    shown.add_row(Text("\n".join(lines)))
    return shown
