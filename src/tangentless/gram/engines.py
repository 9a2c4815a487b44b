"""Where tiles are computed: in this process, or on a cluster. Either takes a job, and sees its tiles into the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from ..backends import Backend, Precision, get_backend
from .compute import Job
from .progress import Meter
from .store import Tile
from .tiles import parse_memory


class Engine(Protocol):
    """Something that computes tiles."""

    @property
    def backend(self) -> str:
        """The name of the arithmetic, which the manifest records."""
        ...

    @property
    def memory(self) -> int:
        """What a process may hold, if nothing else is said."""
        ...

    def compute(self, job: Job, tiles: Sequence[Tile], meter: Meter, check: Callable[[], None]) -> None:
        """Compute tiles into the store; `check` raises when the store is no longer ours to write."""
        ...


@dataclass(frozen=True)
class Local:
    """This process. A thread writes one tile while the next is computed."""

    arithmetic: Backend

    @property
    def backend(self) -> str:
        return self.arithmetic.name

    @property
    def memory(self) -> int:
        return parse_memory(None)

    def compute(self, job: Job, tiles: Sequence[Tile], meter: Meter, check: Callable[[], None]) -> None:
        computer = job.start(self.arithmetic)
        writing: Future[None] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="tile-writer") as writer:
            for tile in tiles:
                check()
                values = computer.compute(tile, meter.advance)
                _await(writing, meter)
                writing = writer.submit(job.store.write_tile, tile, values)
            _await(writing, meter)


@contextlib.contextmanager
def find_engine(scheduler: Any, backend: str | Backend, precision: Precision, n_jobs: int | None) -> Iterator[Engine]:
    """This process, or the cluster of a Dask scheduler."""
    if scheduler is None:
        yield Local(get_backend(backend, precision, n_jobs))
    else:
        from .cluster import connect

        with connect(scheduler, backend, precision, n_jobs) as cluster:
            yield cluster


def _await(writing: Future[None] | None, meter: Meter) -> None:
    if writing is not None:
        writing.result()
        meter.finish_tile()
