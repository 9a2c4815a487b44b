"""Computing tiles on a Dask cluster: many processes, GPUs or hosts.

Workers read images from the store and write tiles into it, so that only names of tiles pass through the scheduler.
Every task is given to one worker by name, and no worker gets a tile before it has answered an introduction: that it has
this version, sees the store, and computes the same bits. Who does not is left out with a warning, and so is a worker
that fails again and again. Tiles of workers that leave, die or fail go to others. When the scheduler dies, no finished
tile is lost: the same call with another scheduler continues from there.
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
from .manifest import knows, read_manifest
from .progress import Meter
from .store import Tile

logger = logging.getLogger("tangentless")
_PACKAGE = "tangentless"
_AHEAD = 2  # tiles given to a worker, so that it never waits for the next
_DEATHS = 16  # workers that may die with a tile before it is given up
_FAILURES = 4  # errors of a tile before the run ends with the last of them
_STRIKES = 3  # errors of a worker in a row before it is left out
_ROUND = 0.5  # seconds between looks at who is there
_IMPATIENCE = 20.0  # seconds without workers between warnings
_SLOW = 3.0  # a tile that takes so many times longer than others is given to an idle worker too


@contextlib.contextmanager
def connect(scheduler: Any, choose: Callable[[], Device], probe: Probe) -> Iterator[Cluster]:
    """The workers of a scheduler that can run, with the device they agree on."""
    with client_of(scheduler) as client:
        yield _meet(client, choose, probe)


@contextlib.contextmanager
def client_of(scheduler: Any) -> Iterator[Any]:
    """A client of a scheduler's address or a cluster object, or the `distributed.Client` that it is already."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise ParameterError("a cluster needs Dask: pip install 'tangentless[distributed]'") from None
    if isinstance(scheduler, distributed.Client):
        yield scheduler
        return
    try:
        client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:
        raise ClusterError(f"there is no Dask scheduler at {scheduler!r}: {error}") from error
    try:
        yield client
    finally:
        client.close(timeout=5)


@dataclass(frozen=True)
class Cluster:
    """Workers with one device. `memory` is the default budget of each, `bits` their fingerprints, most common first."""

    client: Any
    device: Device
    memory: int
    bits: tuple[str, ...]
    probe: Probe

    def compute(self, job: Job, tiles: Sequence[Tile], meter: Meter, check: Callable[[], None]) -> None:
        """Compute tiles into the store, keeping every worker supplied. `check` raises when the store was taken over."""
        dispatch = _Dispatch(self.client, replace(job, read=None), self.probe, meter, deque(tiles))
        try:
            while dispatch.todo or dispatch.out:
                check()
                dispatch.step()
        finally:
            dispatch.give_up()
        self.client.run(forget, on_error="ignore")


@dataclass
class _Worker:
    """What is known of a worker; `reason` says why it was left out."""

    address: str
    hired: bool = False
    reason: str = ""
    strikes: int = 0
    rests_until: float = 0.0
    tiles: set[Tile] = field(default_factory=set)


@dataclass
class _Dispatch:
    """Gives tiles to workers and follows what becomes of them."""

    client: Any
    job: Job
    probe: Probe
    meter: Meter
    todo: deque[Tile]
    out: dict[Tile, list[Any]] = field(default_factory=dict)  # tiles at workers, with their tasks
    _tasks: dict[Any, tuple[_Worker, Tile | None, float]] = field(default_factory=dict)  # None: an introduction
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _ended: queue.Queue[Any] = field(default_factory=queue.Queue)
    _failures: Counter[Tile] = field(default_factory=Counter)
    _deaths: Counter[Tile] = field(default_factory=Counter)
    _shunned: dict[Tile, set[str]] = field(default_factory=dict)  # the workers that failed with a tile
    _late: list[Any] = field(default_factory=list)  # tasks that ended, and whose results are not there yet
    _looked: float = 0.0
    _news: float = field(default_factory=time.monotonic)
    _mean: float = 0.0  # seconds of a tile
    _call: Any = None  # a task for anyone, which makes an adaptive cluster start a worker

    def step(self) -> None:
        """Look who is there, hand out tiles, and wait a moment for a task to end."""
        if time.monotonic() - self._looked > _ROUND:
            self._looked = time.monotonic()
            self._muster()
            self.meter.refresh()
        self._hand_out()
        with contextlib.suppress(queue.Empty):
            self._settle(self._ended.get(timeout=_ROUND))
            while True:
                self._settle(self._ended.get_nowait())

    def give_up(self) -> None:
        """Cancel what is unfinished, unless the scheduler is gone."""
        if self.client.status == "running":
            with contextlib.suppress(Exception):
                self.client.cancel([*self._tasks, *([self._call] if self._call else [])])

    def _muster(self) -> None:
        """Introduce those who joined, and take the tiles of those who left."""
        with _lost_scheduler():
            if self.client.status != "running":
                raise OSError(f"the client is {self.client.status}")
            present = self.client.nthreads()
        for address in present.keys() - self._workers.keys():
            self._workers[address] = worker = _Worker(address)
            self._submit(worker, None, enlist, self.job, self.probe, _version())
        for address in self._workers.keys() - present.keys():
            self._dismiss(self._workers.pop(address))
        for task in self._late:
            self._ended.put(task)
        self._late.clear()
        hired = [worker for worker in self._workers.values() if worker.hired]
        if self._workers and all(worker.reason for worker in self._workers.values()):
            raise _nobody({worker.address: worker.reason for worker in self._workers.values()})
        if hired:
            self._news = time.monotonic()
        elif not self._workers:
            if self._call is None or self._call.done():
                self._call = self.client.submit(abs, 0, pure=False)
            if time.monotonic() - self._news > _IMPATIENCE:
                self._news = time.monotonic()
                logger.warning("the cluster has no workers; waiting for some to join")

    def _dismiss(self, worker: _Worker) -> None:
        lost = [task for task, (at, _, _) in self._tasks.items() if at is worker]
        for task in lost:
            tile = self._tasks[task][1]
            self._end(task)
            if tile is not None:
                self._bury(tile, task, f"worker {worker.address} is gone")
        with contextlib.suppress(Exception):
            self.client.cancel(lost)

    def _bury(self, tile: Tile, task: Any, cause: str) -> None:
        """Count the death of a worker with a tile, and put the tile back."""
        self._deaths[tile] += 1
        if self._deaths[tile] >= _DEATHS:
            raise ClusterError(
                f"tile {tile} was given up, because every worker that took it died ({cause}); look for the cause in a "
                "worker's log (out of memory?), then run the same call again"
            )
        self._put_back(tile, task)

    def _put_back(self, tile: Tile, task: Any) -> None:
        others = [one for one in self.out.pop(tile, []) if one is not task]
        if others:
            self.out[tile] = others  # another worker has it too
        else:
            self.todo.appendleft(tile)

    def _hand_out(self) -> None:
        hired, now = [worker for worker in self._workers.values() if worker.hired], time.monotonic()
        for _ in range(_AHEAD):
            for worker in sorted(hired, key=lambda one: len(one.tiles)):
                if len(worker.tiles) < _AHEAD and now >= worker.rests_until:
                    tile = self._tile_for(worker, {one.address for one in hired})
                    if tile is not None:
                        worker.tiles.add(tile)
                        self._submit(worker, tile, compute_tile, self.job, tile)

    def _tile_for(self, worker: _Worker, hired: set[str]) -> Tile | None:
        """The next tile that it did not fail with, unless all did, or a copy of one that is late elsewhere."""
        for tile in self.todo:
            failed = self._shunned.get(tile, set())
            if worker.address not in failed or hired <= failed:
                self.todo.remove(tile)
                return tile
        if worker.tiles or not self._mean:
            return None
        late = time.monotonic() - 1.0 - _SLOW * self._mean
        slow = (tile for at, tile, began in self._tasks.values() if tile and began < late and at is not worker)
        return next((tile for tile in slow if len(self.out[tile]) == 1), None)

    def _submit(self, worker: _Worker, tile: Tile | None, function: Callable[..., Any], *arguments: Any) -> None:
        task = self.client.submit(function, *arguments, workers=[worker.address], pure=False)
        self._tasks[task] = worker, tile, time.monotonic()
        if tile is not None:
            self.out.setdefault(tile, []).append(task)
        task.add_done_callback(self._ended.put)

    def _settle(self, task: Any) -> None:
        """Take the result of a task, or its error."""
        if task not in self._tasks:
            return  # of a worker that is gone, or another was quicker
        worker, tile, _ = self._tasks[task]
        try:
            answer = task.result(timeout=_ROUND)
        except TimeoutError:  # it ended, but its worker may have died before it could say so
            self._late.append(task)
            return
        except Exception as error:  # of the task, its worker or the scheduler: the status tells which
            if task.status != "error":
                raise _scheduler_gone(error) from error
            answer = error
        self._end(task)
        if isinstance(answer, Exception):
            self._judge(worker, tile, task, answer)
            return
        if tile is None:
            worker.hired = not answer
            if answer:
                self._leave_out(worker, answer)
            return
        worker.strikes = 0
        pairs, name, seconds = answer
        self._mean = seconds if not self._mean else 0.9 * self._mean + 0.1 * seconds
        copies = [other for other in self.out.pop(tile) if other is not task]
        for other in copies:
            self._end(other)
        if copies:
            self.client.cancel(copies)
        self.meter.finish_tile(pairs, name, seconds)

    def _end(self, task: Any) -> None:
        worker, tile, _ = self._tasks.pop(task)
        if tile is not None:
            worker.tiles.discard(tile)

    def _judge(self, worker: _Worker, tile: Tile | None, task: Any, error: Exception) -> None:
        """What follows from an error: a worker is left out or rests, and its tile goes to another."""
        said = f"{type(error).__name__}: {error}"
        if type(error).__name__ == "KilledWorker":
            if tile is not None:
                self._bury(tile, task, said)
            return
        if tile is None:
            self._leave_out(worker, _lacking(error))
            return
        self._failures[tile] += 1
        if self._failures[tile] >= _FAILURES:
            raise error
        self._shunned.setdefault(tile, set()).add(worker.address)
        self._put_back(tile, task)
        worker.strikes += 1
        worker.rests_until = time.monotonic() + 0.2 * 2**worker.strikes
        logger.warning("tile %s failed on worker %s: %s", tile, worker.address, said)
        if worker.strikes >= _STRIKES and sum(one.hired for one in self._workers.values()) > 1:
            self._leave_out(worker, f"it failed {worker.strikes} times in a row: {said}")

    def _leave_out(self, worker: _Worker, reason: str) -> None:
        worker.hired, worker.reason = False, reason
        logger.warning("worker %s is left out: %s", worker.address, reason)
        self._dismiss(worker)


# On the workers


def introduce(
    choose: Callable[[], Device], probe: Probe, version: str, dask_worker: Any = None
) -> tuple[Device, int, str] | str:
    """The device, memory budget and fingerprint of this worker, or why it cannot run; Dask passes `dask_worker`."""
    limit, memory = dask_worker.memory_manager.memory_limit, parse_memory(None)
    if version != _version():
        return _lacking(f"found {_version()}", version)
    try:
        device = choose()
        if device.given is not None:
            return "on a cluster a backend is given by name, since every worker makes its own"
        return device, min(memory, limit // 2) if limit else memory, probe(device)
    except Exception as error:
        return f"it cannot run the backend: {type(error).__name__}: {error}"


def enlist(job: Job, probe: Probe, version: str) -> str:
    """Why this worker must not take part, or nothing. Runs on a worker before its first tile."""
    store = job.store
    if version != _version():
        return _lacking(f"found {_version()}", version)
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
    if store.manifest.bits and not knows(store.manifest.bits, bits):
        return f"it computes other bits, {bits}, than those in the store, {', '.join(store.manifest.bits)}"
    return ""


def compute_tile(job: Job, tile: Tile) -> tuple[int, str, float] | Exception:
    """Compute a tile into the store, with all threads of this worker; returns its pairs, the worker, and seconds.

    An error is returned too: one that is raised may never arrive, where the client cannot read its traceback.
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
    """Drop what this worker has prepared; runs on a worker."""
    _session.cache_clear()


@functools.lru_cache(maxsize=1)
def _session(job: Job) -> tuple[Computer, threading.Lock]:
    """What a worker keeps between tiles."""
    return Computer(replace(job, device=_own_device(job))), threading.Lock()


def _own_device(job: Job) -> Device:
    return replace(job.device, n_jobs=job.device.n_jobs or _worker().state.nthreads)


def _worker() -> Any:
    distributed: Any = importlib.import_module("distributed")
    return distributed.get_worker()


# Before there is a store


def _meet(client: Any, choose: Callable[[], Device], probe: Probe) -> Cluster:
    """Ask all workers that are there; those that can run decide on the device, the memory and the bits."""
    answers: dict[str, Any] = {}
    with _lost_scheduler():
        while not answers:
            client.submit(abs, 0, pure=False).exception()  # waits for a worker; an adaptive cluster starts one for it
            found = client.run(introduce, choose, probe, _version(), on_error="return")
            answers = {at: answer for at, answer in found.items() if not isinstance(answer, OSError)}  # it died
    able = [answer for answer in answers.values() if isinstance(answer, tuple)]
    if not able:
        raise _nobody({at: a if isinstance(a, str) else _lacking(a) for at, a in answers.items()})
    devices = Counter(device for device, _, _ in able)
    if len(devices) > 1:
        names = sorted(device.name for device in devices)
        raise ClusterError(f"the workers would compute with different backends, {', '.join(names)}; name one")
    bits = Counter(print_ for _, _, print_ in able)
    return Cluster(
        client,
        able[0][0],
        min(memory for _, memory, _ in able),
        tuple(one for one, _ in bits.most_common()),
        probe,
    )


def _nobody(reasons: dict[str, str]) -> ClusterError:
    shown = ", ".join(sorted(reasons)[:4]) + (f" and {len(reasons) - 4} more" if len(reasons) > 4 else "")
    return ClusterError(f"none of the workers {shown} can take part: {next(iter(reasons.values()))}")


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


def _lacking(what: object, version: str = "") -> str:
    return f"it lacks {_PACKAGE} {version or _version()}: {what}; install the same version there"


def _version() -> str:
    from .. import __version__

    return __version__
