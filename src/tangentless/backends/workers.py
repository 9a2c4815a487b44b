"""Threads that share out tasks, report each one they finish, and stop early after an error or an interrupt."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

from ..errors import ParameterError
from ..layers import is_whole
from . import Advance

Task = TypeVar("Task")


def count_workers(n_jobs: int | None) -> int:
    """Threads to use: all cores this process may run on for None and -1.

    >>> count_workers(3)
    3
    """
    if n_jobs is None or n_jobs == -1:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not is_whole(n_jobs) or n_jobs < 1:
        raise ParameterError(
            f"n_jobs is a number of threads of at least 1, or -1 or None for all cores, not {n_jobs!r}"
        )
    return int(n_jobs)


def run_parallel(
    tasks: Iterator[Task],
    work: Callable[[Task, Any], int],
    scratch: Callable[[], Any],
    n_jobs: int,
    advance: Advance | None,
) -> None:
    """Run `work(task, room)` for every task, with a `room = scratch()` for each thread.

    What `work` returns is passed to `advance` in the calling thread. After an error in any thread, or an interrupt of
    the calling one, running tasks end, no other is started, and the error is raised.
    """
    if n_jobs == 1:  # in the calling thread: `work` may use its current GPU and stream
        room = scratch()
        for task in tasks:
            done = work(task, room)
            if advance is not None:
                advance(done)
        return
    reports: SimpleQueue[int | BaseException | None] = SimpleQueue()
    lock, stop = threading.Lock(), threading.Event()

    def next_task() -> Task | None:
        with lock:
            return None if stop.is_set() else next(tasks, None)

    def loop() -> None:
        try:
            room = scratch()
            while (task := next_task()) is not None:
                reports.put(work(task, room))
        except BaseException as error:  # reported to the calling thread, which raises it
            reports.put(error)
        reports.put(None)

    threads = [threading.Thread(target=loop, name=f"tangentless-{i}", daemon=True) for i in range(n_jobs)]
    for thread in threads:
        thread.start()
    running = n_jobs
    try:
        while running:
            report = reports.get()
            if report is None:
                running -= 1
            elif isinstance(report, BaseException):
                raise report
            elif advance is not None:
                advance(report)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
