"""Bounded memory: long ranges in slices, results read ahead by threads, and how much memory the machine has."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def spans(length: int, size: int, start: int = 0) -> Iterator[slice]:
    """Consecutive slices of at most `size` from `start` to `length`.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for first in range(start, length, size):
        yield slice(first, min(first + size, length))


def ahead(function: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[tuple[Item, Result]]:
    """Yield `(item, function(item))` in order while `count` threads work ahead; for functions that wait for a disk.

    At most `count + 1` results are held at a time, so memory stays bounded.

    >>> list(ahead(abs, [-1, -2, 3], 2))
    [(-1, 1), (-2, 2), (3, 3)]
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) > count:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def machine_memory() -> int:
    """Bytes of memory of this machine, or the limit of its container if that is lower."""
    if not hasattr(os, "sysconf"):
        return int(_windows_memory().total)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def free_memory() -> int:
    """Bytes that the system reports as available, at most the limit of its container."""
    if not hasattr(os, "sysconf"):
        return int(_windows_memory().free)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # macOS
        return machine_memory()
    available = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
    return machine_memory() if available is None else min(machine_memory(), available * 1024)


class _MemoryStatus(ctypes.Structure):
    """The Windows API's `MEMORYSTATUSEX`."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 5),
    )


def _windows_memory() -> Any:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return status
