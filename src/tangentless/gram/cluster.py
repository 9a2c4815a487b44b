"""Computing tiles on a Dask cluster: many processes, GPUs or hosts.

Workers read images from the store and write tiles into it, so that only the numbers of tiles pass through the
scheduler. Every task is submitted to one named worker. A worker's first task checks that it has the same version of
this package, can read the store, and computes the same bits. A worker that fails the check is left out with a warning,
and so is one whose tiles fail several times in a row. Tiles of workers that leave, die or fail are given to others. If
the scheduler dies, no finished tile is lost: the same call with another scheduler continues.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any

from ..devices import Device
from ..errors import ClusterError, ParameterError, TangentlessError
from .compute import Computer, Job, Probe, parse_memory
from .manifest import has_bits, read_manifest
from .progress import Meter
from .store import Tile

logger = logging.getLogger("tangentless")
_PACKAGE = "tangentless"
_AHEAD = 2  # tiles queued at a worker, so that it never waits for the next
_DEATHS = 16  # workers that died with a tile before the run ends with an error
_FAILURES = 4  # errors of a tile before the run ends with the last of them
_ERRORS_IN_A_ROW = 3  # errors of a worker in a row before it is left out
_POLL = 0.5  # seconds between updates of the list of workers
_WARN_EVERY = 20.0  # seconds between warnings that there are no workers
_SLOW = 3.0  # a tile that takes this many times longer than the mean is also given to an idle worker


@contextlib.contextmanager
def connect(scheduler: Any, choose: Callable[[], Device], probe: Probe) -> Iterator[Cluster]:
    """The workers of a scheduler that can compute, and the device that all of them would use."""
    with client_of(scheduler) as client:
        yield _agree_on_device(client, choose, probe)


@contextlib.contextmanager
def client_of(scheduler: Any) -> Iterator[Any]:
    """A client for a scheduler: an address, a cluster object, or a `distributed.Client`, which is used as it is."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise ParameterError("a cluster needs Dask: pip install 'tangentless[distributed]'") from None
    if isinstance(scheduler, distributed.Client):
        yield scheduler
        return
    try:
        if isinstance(scheduler, str):  # a client of an address that is none would wait a minute to be closed
            importlib.import_module("distributed.comm").resolve_address(scheduler)
        client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:
        raise ClusterError(f"there is no Dask scheduler at {scheduler!r}: {error}") from error
    try:
        yield client
    finally:
        client.close(timeout=5)


@dataclass(frozen=True)
class Cluster:
    """The engine of a cluster, as `Local` is that of this process.

    `memory` is the default budget of each worker in bytes. `bits` are the workers' fingerprints, most common first.
    """

    client: Any
    device: Device
    memory: int
    bits: tuple[str, ...]
    probe: Probe

    def compute(self, job: Job, tiles: Sequence[Tile], meter: Meter, check: Callable[[], None]) -> None:
        """Compute tiles into the store. `check` raises when another process has taken the store over."""
        dispatch = _Dispatch(self.client, replace(job, read=None), self.probe, meter, deque(tiles))
        try:
            while dispatch.todo or dispatch.running:
                check()
                dispatch.step()
        finally:
            dispatch.cancel()
        self.client.run(forget, on_error="ignore")


@dataclass
class _Worker:
    """The state of a worker."""

    address: str
    accepted: bool = False  # it has passed the check, and is not left out
    reason: str = ""  # why it is left out
    errors_in_a_row: int = 0
    paused_until: float = 0.0
    tiles: set[Tile] = field(default_factory=set)  # queued or being computed there


@dataclass
class _Dispatch:
    """Submits tiles to workers, and handles results, errors, and workers that come and go."""

    client: Any
    job: Job
    probe: Probe
    meter: Meter
    todo: deque[Tile]  # tiles that no worker has
    running: dict[Tile, list[Any]] = field(default_factory=dict)  # tiles that workers have, and their tasks
    # Unfinished tasks: worker, tile (None for the check) and time of submission.
    _tasks: dict[Any, tuple[_Worker, Tile | None, float]] = field(default_factory=dict)
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _ended: queue.Queue[Any] = field(default_factory=queue.Queue)  # tasks that ended
    _failures: Counter[Tile] = field(default_factory=Counter)
    _deaths: Counter[Tile] = field(default_factory=Counter)
    _failed_on: dict[Tile, set[str]] = field(default_factory=dict)  # the workers that failed with a tile
    _unread: list[Any] = field(default_factory=list)  # tasks that ended, but whose results have not arrived
    _checked: float = 0.0  # time of the last `_update_workers`
    _last_present: float = field(default_factory=time.monotonic)  # when a worker was there, or of the last warning
    _mean_seconds: float = 0.0  # of a tile
    _request: Any = None  # a task for any worker, which makes an adaptive cluster start one

    def step(self) -> None:
        """Update the list of workers, submit tiles, and wait up to `_POLL` seconds for tasks to end."""
        if time.monotonic() - self._checked > _POLL:
            self._checked = time.monotonic()
            self._update_workers()
            self.meter.refresh()
        self._assign_tiles()
        with contextlib.suppress(queue.Empty):
            self._take_result(self._ended.get(timeout=_POLL))
            while True:
                self._take_result(self._ended.get_nowait())

    def cancel(self) -> None:
        """Cancel all unfinished tasks, unless the scheduler is gone."""
        if self.client.status == "running":
            with contextlib.suppress(Exception):
                self.client.cancel([*self._tasks, *([self._request] if self._request else [])])

    def _update_workers(self) -> None:
        """Submit the check to workers that joined, and requeue the tiles of those that left."""
        with _lost_scheduler():
            if self.client.status != "running":
                raise OSError(f"the client is {self.client.status}")
            present = self.client.nthreads()
        for address in present.keys() - self._workers.keys():
            self._workers[address] = worker = _Worker(address)
            self._submit(worker, None, check_worker, self.job, self.probe, _version())
        for address in self._workers.keys() - present.keys():
            self._drop_tasks(self._workers.pop(address))
        for task in self._unread:
            self._ended.put(task)
        self._unread.clear()
        accepted = [worker for worker in self._workers.values() if worker.accepted]
        if self._workers and all(worker.reason for worker in self._workers.values()):
            raise _no_worker_error({worker.address: worker.reason for worker in self._workers.values()})
        if accepted:
            self._last_present = time.monotonic()
        elif not self._workers:
            if self._request is None or self._request.done():
                self._request = self.client.submit(abs, 0, pure=False)
            if time.monotonic() - self._last_present > _WARN_EVERY:
                self._last_present = time.monotonic()
                logger.warning("the cluster has no workers; waiting for some to join")

    def _drop_tasks(self, worker: _Worker) -> None:
        """Cancel the tasks of a worker that left or is left out, and requeue its tiles."""
        lost = [task for task, (at, _, _) in self._tasks.items() if at is worker]
        for task in lost:
            tile = self._tasks[task][1]
            self._remove_task(task)
            if tile is not None:
                self._count_death(tile, task, f"worker {worker.address} is gone")
        with contextlib.suppress(Exception):
            self.client.cancel(lost)

    def _count_death(self, tile: Tile, task: Any, cause: str) -> None:
        """Count a worker that died with a tile, and requeue the tile; raises at too many."""
        self._deaths[tile] += 1
        if self._deaths[tile] >= _DEATHS:
            raise ClusterError(
                f"tile {tile} was given up: {_DEATHS} workers died while they had it ({cause}); look in a "
                "worker's log for the cause (out of memory?), then run the same call again"
            )
        self._requeue(tile, task)

    def _requeue(self, tile: Tile, task: Any) -> None:
        """Put the tile of a failed task first in the queue, unless another worker has it too."""
        others = [one for one in self.running.pop(tile, []) if one is not task]
        if others:
            self.running[tile] = others
        else:
            self.todo.appendleft(tile)

    def _assign_tiles(self) -> None:
        """Submit tiles until every accepted worker has `_AHEAD` of them, the least busy first."""
        accepted, now = [worker for worker in self._workers.values() if worker.accepted], time.monotonic()
        for _ in range(_AHEAD):
            for worker in sorted(accepted, key=lambda one: len(one.tiles)):
                if len(worker.tiles) < _AHEAD and now >= worker.paused_until:
                    tile = self._tile_for(worker, {one.address for one in accepted})
                    if tile is not None:
                        worker.tiles.add(tile)
                        self._submit(worker, tile, compute_tile, self.job, tile)

    def _tile_for(self, worker: _Worker, accepted: set[str]) -> Tile | None:
        """The next tile for a worker: one that has not failed there, unless it has failed on all accepted workers.

        An idle worker with nothing else to do gets a tile that is late on another one.
        """
        for tile in self.todo:
            failed = self._failed_on.get(tile, set())
            if worker.address not in failed or accepted <= failed:
                self.todo.remove(tile)
                return tile
        if worker.tiles or not self._mean_seconds:
            return None
        late = time.monotonic() - 1.0 - _SLOW * self._mean_seconds
        slow = (tile for at, tile, began in self._tasks.values() if tile and began < late and at is not worker)
        return next((tile for tile in slow if len(self.running[tile]) == 1), None)

    def _submit(self, worker: _Worker, tile: Tile | None, function: Callable[..., Any], *arguments: Any) -> None:
        task = self.client.submit(function, *arguments, workers=[worker.address], pure=False)
        self._tasks[task] = worker, tile, time.monotonic()
        if tile is not None:
            self.running.setdefault(tile, []).append(task)
        task.add_done_callback(self._ended.put)

    def _take_result(self, task: Any) -> None:
        """Take the result of a task, or its error."""
        if task not in self._tasks:
            return  # the worker is gone, or another one was faster
        worker, tile, _ = self._tasks[task]
        try:
            answer = task.result(timeout=_POLL)
        except TimeoutError:  # its worker may have died before the result was sent
            self._unread.append(task)
            return
        except Exception as error:  # from the task, or because the scheduler is gone: the status tells which
            if task.status != "error":
                raise _scheduler_gone(error) from error
            answer = error
        self._remove_task(task)
        if isinstance(answer, Exception):
            self._handle_error(worker, tile, task, answer)
            return
        if tile is None:
            worker.accepted = not answer
            if answer:
                self._exclude(worker, answer)
            return
        worker.errors_in_a_row = 0
        pairs, name, seconds = answer
        self._mean_seconds = seconds if not self._mean_seconds else 0.9 * self._mean_seconds + 0.1 * seconds
        copies = [other for other in self.running.pop(tile) if other is not task]
        for other in copies:
            self._remove_task(other)
        if copies:
            self.client.cancel(copies)
        self.meter.finish_tile(pairs, name, seconds)

    def _remove_task(self, task: Any) -> None:
        worker, tile, _ = self._tasks.pop(task)
        if tile is not None:
            worker.tiles.discard(tile)

    def _handle_error(self, worker: _Worker, tile: Tile | None, task: Any, error: Exception) -> None:
        """Requeue the tile of a failed task, and pause its worker or leave it out."""
        said = f"{type(error).__name__}: {error}"
        if type(error).__name__ == "KilledWorker":
            if tile is not None:
                self._count_death(tile, task, said)
            return
        if tile is None:
            self._exclude(worker, _missing_package(error))
            return
        self._failures[tile] += 1
        if self._failures[tile] >= _FAILURES:
            raise error
        self._failed_on.setdefault(tile, set()).add(worker.address)
        self._requeue(tile, task)
        worker.errors_in_a_row += 1
        worker.paused_until = time.monotonic() + 0.2 * 2**worker.errors_in_a_row
        logger.warning("tile %s failed on worker %s: %s", tile, worker.address, said)
        if worker.errors_in_a_row >= _ERRORS_IN_A_ROW and sum(one.accepted for one in self._workers.values()) > 1:
            self._exclude(worker, f"it failed {worker.errors_in_a_row} times in a row: {said}")

    def _exclude(self, worker: _Worker, reason: str) -> None:
        worker.accepted, worker.reason = False, reason
        logger.warning("worker %s is left out: %s", worker.address, reason)
        self._drop_tasks(worker)


# On the workers


def describe_worker(
    choose: Callable[[], Device], probe: Probe, version: str, dask_worker: Any = None
) -> tuple[Device, int, str] | str:
    """(device, memory budget in bytes, fingerprint) of this worker, or a text that says why it cannot compute.

    Dask passes `dask_worker`.
    """
    limit, memory = dask_worker.memory_manager.memory_limit, parse_memory(None)
    if version != _version():
        return _missing_package(f"found {_version()}", version)
    try:
        device = choose()
        if device.given is not None:
            return "on a cluster a backend is given by name, since every worker makes its own"
        return device, min(memory, limit // 2) if limit else memory, probe(device)
    except Exception as error:
        return f"it cannot run the backend: {type(error).__name__}: {error}"


def check_worker(job: Job, probe: Probe, version: str) -> str:
    """Why this worker must not compute tiles, or an empty text. Its first task."""
    store = job.store
    if version != _version():
        return _missing_package(f"found {_version()}", version)
    try:
        if read_manifest(store.files) != store.manifest:
            return f"it sees another store at {store.files.address}"
    except Exception as error:
        where = f"the store at {store.files.address}, which must be on storage that all workers share"
        return f"it does not see {where}: {type(error).__name__}: {error}"
    try:
        bits = probe(_own_device(job))
    except Exception as error:
        return f"it cannot run the backend: {type(error).__name__}: {error}"
    if store.manifest.bits and not has_bits(store.manifest.bits, bits):
        return f"it computes other bits, {bits}, than those in the store, {', '.join(store.manifest.bits)}"
    return ""


def compute_tile(job: Job, tile: Tile) -> tuple[int, str, float] | Exception:
    """Compute a tile into the store, with all threads of this worker; returns (pairs, name of the worker, seconds).

    Errors are returned, not raised: the client may be unable to unpickle the traceback of a raised one.
    """
    try:
        computer, lock = _session(job)
        began = time.monotonic()
        pairs = job.store.layout.pairs(*tile) - job.store.known_pairs(tile)
        with lock:  # one tile at a time, while others are written
            values = computer.compute(tile)
        job.store.write_tile(tile, values)
        return pairs, str(_worker().name), time.monotonic() - began
    except TangentlessError as error:
        return error.with_traceback(None)
    except Exception as error:
        return ClusterError(f"tile {tile}: {type(error).__name__}: {error}")


def forget() -> None:
    """Free the prepared images of this worker."""
    _session.cache_clear()


@functools.lru_cache(maxsize=1)
def _session(job: Job) -> tuple[Computer, threading.Lock]:
    """What a worker keeps from tile to tile."""
    return Computer(replace(job, device=_own_device(job))), threading.Lock()


def _own_device(job: Job) -> Device:
    return replace(job.device, n_jobs=job.device.n_jobs or _worker().state.nthreads)


def _worker() -> Any:
    distributed: Any = importlib.import_module("distributed")
    return distributed.get_worker()


# Before there is a store


def _agree_on_device(client: Any, choose: Callable[[], Device], probe: Probe) -> Cluster:
    """Ask all present workers for device, memory and bits; those that cannot compute are ignored unless it is all."""
    answers: dict[str, Any] = {}
    with _lost_scheduler():
        while not answers:
            client.submit(abs, 0, pure=False).exception()  # waits for a worker; an adaptive cluster starts one for it
            found = client.run(describe_worker, choose, probe, _version(), on_error="return")
            answers = {at: answer for at, answer in found.items() if not isinstance(answer, OSError)}  # the worker died
    able = [answer for answer in answers.values() if isinstance(answer, tuple)]
    if not able:
        raise _no_worker_error({at: a if isinstance(a, str) else _missing_package(a) for at, a in answers.items()})
    devices = {device for device, _, _ in able}
    if len(devices) > 1:
        names = sorted(device.name for device in devices)
        raise ClusterError(f"the workers would compute with different backends, {', '.join(names)}; give one: backend=")
    bits = Counter(fingerprint for _, _, fingerprint in able)
    return Cluster(
        client,
        able[0][0],
        min(memory for _, memory, _ in able),
        tuple(one for one, _ in bits.most_common()),
        probe,
    )


def _no_worker_error(reasons: dict[str, str]) -> ClusterError:
    shown = ", ".join(sorted(reasons)[:4]) + (f" and {len(reasons) - 4} more" if len(reasons) > 4 else "")
    return ClusterError(f"none of the workers {shown} can take part: {next(iter(reasons.values()))}")


@contextlib.contextmanager
def _lost_scheduler() -> Iterator[None]:
    """Turn errors of a lost connection into a `ClusterError`."""
    try:
        yield
    except (OSError, CancelledError) as error:
        raise _scheduler_gone(error) from error


def _scheduler_gone(error: Exception) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler is gone ({str(error) or type(error).__name__}). Every tile that was finished is in the "
        "store: run the same call again with another scheduler"
    )


def _missing_package(what: object, version: str = "") -> str:
    return f"it lacks {_PACKAGE} {version or _version()}: {what}; install the same version there"


def _version() -> str:
    from .. import __version__

    return __version__
