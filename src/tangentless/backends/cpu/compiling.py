"""Compiling, told as soon as it begins, kept out of rates, and left at once on Ctrl-C.

The first call of a new kind of kernel waits for the compiler. That works in a thread of its own, because an interrupt
does not reach a thread that is inside LLVM; a compiler that is interrupted ends its work behind the scenes. Numba
compiles in one thread at a time, so a second core helps only in a process of its own.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba.core import event

from ...aside import announce, count_compiling
from ..workers import count_workers

T = TypeVar("T")
_SECONDS = 8


class _Announcer(event.Listener):
    """Speaks once, when the compiler starts its first pass; code from the disk cache does not start one."""

    def __init__(self) -> None:
        self.silent = True

    def on_start(self, event: Any) -> None:
        if self.silent:
            self.silent = False
            announce(f"compiling for this processor (once per kind of kernel, about {_SECONDS} s) …")

    def on_end(self, event: Any) -> None:
        pass


def compiling(work: Callable[[], T]) -> T:
    """What `work` returns, which compiles; compiling is announced, and an interrupt is raised at once."""
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # raised again in the calling thread
            errors.append(error)

    announcer, start = _Announcer(), time.perf_counter()
    with event.install_listener("numba:run_pass", announcer):
        thread = threading.Thread(target=run, name="tangentless-compiler", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)  # a join without an end would not hear the interrupt everywhere
    if not announcer.silent:
        count_compiling(time.perf_counter() - start)
    if errors:
        raise errors[0]
    return outcome[0]


def started_aside(code: str) -> subprocess.Popen[bytes] | None:
    """A process that runs Python code meanwhile, or None where there is no core for it or no interpreter to start."""
    if count_workers(None) == 1 or not Path(sys.executable or "").stem.startswith("python"):
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, nothing = [sys.executable, "-c", code], subprocess.DEVNULL
    try:
        return subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError:  # processes may be forbidden
        return None


@functools.cache
def say_nothing_is_kept() -> None:
    """Say, once, that compiled code cannot be kept."""
    announce(
        "compiled code cannot be kept, so every process compiles again: there is no folder to write it to; "
        "set NUMBA_CACHE_DIR to one"
    )
