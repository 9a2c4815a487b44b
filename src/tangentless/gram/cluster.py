"""Computing tiles on a Dask cluster: many processes, GPUs or hosts.

Workers read images from the store and write tiles into it, so that only names of tiles pass through the scheduler. The
tiles of a worker that died are given to others. When the scheduler dies, no finished tile is lost: the same call with
another scheduler continues from there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any, cast

from ..devices import Device
from ..errors import ClusterError, ParameterError, StoreError, TangentlessError
from .compute import Computer, Job, parse_memory
from .manifest import read_manifest
from .progress import Meter
from .store import Store, Tile

logger = logging.getLogger("tangentless")
Report = tuple[int, str, float]  # pairs of a tile, the worker that computed it, and its seconds
_PACKAGE = "tangentless"
_AHEAD = 2  # tiles given to a worker, so that it never waits for the next
_DEATHS = 16  # workers that may die with a tile before it is given up
_IMPATIENCE = 20.0  # seconds without news before the state of the cluster is looked at


@contextlib.contextmanager
def connect(scheduler: Any, choose: Callable[[], Device]) -> Iterator[Cluster]:
    """The cluster of a scheduler's address, a `distributed.Client` or a cluster object. Its workers are checked."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise ParameterError("a cluster needs Dask: pip install 'tangentless[distributed]'") from None
    if isinstance(scheduler, distributed.Client):
        yield _introduce(scheduler, choose)
        return
    try:
        client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:
        raise ClusterError(f"there is no Dask scheduler at {scheduler!r}: {error}") from error
    try:
        yield _introduce(client, choose)
    finally:
        client.close(timeout=5)


@dataclass(frozen=True)
class Cluster:
    """Workers of one version and one device; `memory` is the default budget of each."""

    client: Any
    device: Device
    memory: int

    def compute(self, job: Job, tiles: Sequence[Tile], meter: Meter, check: Callable[[], None]) -> None:
        """Compute tiles into the store, keeping every worker supplied. `check` raises when the store was taken over."""
        job = replace(job, read=None)
        self._check_store(job.store)
        todo, waiting = iter(tiles), _Waiting(self.client, job, meter)
        try:
            while True:
                for tile in itertools.islice(todo, max(0, waiting.places() - len(waiting))):
                    waiting.submit(tile)
                if not waiting:
                    break
                check()
                report = waiting.next_report()
                if report is not None:
                    meter.finish_tile(*report)
        except BaseException:
            waiting.give_up()
            raise
        self.client.run(forget, on_error="ignore")

    def _check_store(self, store: Store) -> None:
        seen = _ask(self.client, sees_store, store)
        blind = [address for address, answer in seen.items() if answer is not True]
        if blind:
            raise ClusterError(
                f"the workers {_listed(blind)} do not see the store at {store.files.address}; it must be on storage "
                "that they share, or at an address such as s3://..."
            )


class _Waiting:
    """The tiles that are with the cluster."""

    def __init__(self, client: Any, job: Job, meter: Meter) -> None:
        self._client, self._job, self._meter = client, job, meter
        self._tiles: dict[Any, Tile] = {}
        self._done: queue.Queue[Any] = queue.Queue()
        self._deaths = Counter[Tile]()

    def __len__(self) -> int:
        return len(self._tiles)

    def places(self) -> int:
        """How many tiles the cluster should have; never zero, so that an adaptive cluster starts workers."""
        with _lost_scheduler():
            if self._client.status != "running":
                raise OSError(f"the client is {self._client.status}")
            return _AHEAD * max(1, len(self._client.nthreads()))

    def submit(self, tile: Tile) -> None:
        future = self._client.submit(compute_tile, self._job, tile, pure=False)
        self._tiles[future] = tile
        future.add_done_callback(self._done.put)

    def next_report(self) -> Report | None:
        """The report of the next tile to end; None if its workers died and it was submitted again."""
        future = self._next_future()
        tile = self._tiles.pop(future)
        try:
            return cast(Report, future.result())
        except Exception as error:  # of the task, its worker or the scheduler: the status tells which
            if future.status != "error":
                raise _scheduler_gone(error) from error
            self._consider(tile, error)
            return None

    def _consider(self, tile: Tile, error: Exception) -> None:
        """Submit a tile again if its worker died; raise any other error."""
        if isinstance(error, ImportError):
            raise ClusterError(f"a worker that joined later lacks {_PACKAGE}: {error}") from error
        if type(error).__name__ != "KilledWorker":
            raise error
        self._deaths[tile] += 1 + int(getattr(error, "allowed_failures", 0))
        if self._deaths[tile] >= _DEATHS:
            raise ClusterError(
                f"tile {tile} was given up, because every worker that took it died ({error}); look for the cause in a "
                "worker's log (out of memory?), then run the same call again"
            ) from error
        self.submit(tile)

    def give_up(self) -> None:
        """Cancel unfinished tiles, unless the scheduler is gone."""
        if self._client.status == "running":
            with contextlib.suppress(Exception):
                self._client.cancel(list(self._tiles))

    def _next_future(self) -> Any:
        while True:
            try:
                return self._done.get(timeout=_IMPATIENCE)
            except queue.Empty:
                self._meter.refresh()
                if self.places() and not self._client.nthreads():
                    logger.warning("the cluster has no workers; waiting for some to join")


def compute_tile(job: Job, tile: Tile) -> Report:
    """Compute a tile into the store; runs on a worker, one tile at a time with all its threads.

    The tile may exist already: if a worker dies between writing a tile and reporting it, Dask repeats the task.
    """
    computer, lock = _session(job)
    with lock:
        began = time.monotonic()
        pairs = job.store.layout.pairs(*tile) - job.store.known_pairs(tile)
        if not job.store.covers(tile):
            job.store.write_tile(tile, computer.compute(tile))
        return pairs, str(_worker().name), time.monotonic() - began


def sees_store(store: Store) -> bool:
    """Whether this worker finds the store; runs on a worker."""
    try:
        return read_manifest(store.files) == store.manifest
    except StoreError:
        return False


def introduce(choose: Callable[[], Device], dask_worker: Any = None) -> tuple[Device, int] | TangentlessError:
    """The device and the memory budget of this worker, or why it cannot run; Dask passes `dask_worker`."""
    limit, memory = dask_worker.memory_manager.memory_limit, parse_memory(None)
    try:
        device = choose()
        if device.given is not None:
            raise ParameterError("on a cluster a backend is given by name, since every worker makes its own")
        device.backend.name  # noqa: B018 (refuses now what cannot run here)
        return device, min(memory, limit // 2) if limit else memory
    except TangentlessError as error:
        return error


def forget() -> None:
    """Drop what this worker has prepared; runs on a worker."""
    _session.cache_clear()


@functools.lru_cache(maxsize=1)
def _session(job: Job) -> tuple[Computer, threading.Lock]:
    """What a worker keeps between tiles."""
    device = replace(job.device, n_jobs=job.device.n_jobs or _worker().state.nthreads)
    return Computer(replace(job, device=device)), threading.Lock()


def _introduce(client: Any, choose: Callable[[], Device]) -> Cluster:
    """Check that every worker has this version of the package and can run the backend."""
    from .. import __version__ as here

    versions = _ask(client, eval, f"__import__({_PACKAGE!r}).__version__")  # a builtin needs no package there
    without = {address: answer for address, answer in versions.items() if answer != here}
    if without:
        raise ClusterError(
            f"the workers {_listed(without)} lack {_PACKAGE} {here}: {_first(without)}; install the same version there"
        )
    answers = _ask(client, introduce, choose)
    unable = {address: answer for address, answer in answers.items() if isinstance(answer, BaseException)}
    if unable:
        raise ClusterError(f"the workers {_listed(unable)} cannot run the backend: {_first(unable)}")
    devices = {device for device, _ in answers.values()}
    if len(devices) > 1:
        names = sorted(device.name for device in devices)
        raise ClusterError(f"the workers would compute with different backends, {', '.join(names)}; name one")
    return Cluster(client, devices.pop(), min(memory for _, memory in answers.values()))


def _ask(client: Any, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The answers of all workers, errors included, by address. Waits for at least one; skips those that died."""
    answers: dict[str, Any] = {}
    with _lost_scheduler():
        while not answers:
            client.submit(abs, 0, pure=False).exception()  # waits for a worker; an adaptive cluster starts one for it
            found = client.run(function, *arguments, on_error="return")
            answers = {address: answer for address, answer in found.items() if not isinstance(answer, OSError)}
    return answers


@contextlib.contextmanager
def _lost_scheduler() -> Iterator[None]:
    try:
        yield
    except (OSError, CancelledError) as error:
        raise _scheduler_gone(error) from error


def _scheduler_gone(error: Exception) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler is gone ({str(error) or type(error).__name__}). Every tile that was finished is in the "
        "store: run the same call again with another scheduler"
    )


def _worker() -> Any:
    distributed: Any = importlib.import_module("distributed")
    return distributed.get_worker()


def _listed(addresses: Collection[str]) -> str:
    shown = ", ".join(sorted(addresses)[:4])
    return shown if len(addresses) <= 4 else f"{shown} and {len(addresses) - 4} more"


def _first(answers: dict[str, Any]) -> str:
    answer = next(iter(answers.values()))
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, BaseException) else f"found {answer}"
