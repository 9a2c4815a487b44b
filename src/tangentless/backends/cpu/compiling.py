"""Compiling: announced as soon as it begins, left out of measured rates, and interrupted at once by Ctrl-C.

The first call of a new kind of kernel waits for the compiler. That runs in a thread of its own, because an interrupt
does not reach a thread that is inside LLVM; after an interrupt, the compiler ends its work in the background. Numba
compiles in one thread at a time, so only another process can use a second core.
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
_SECONDS = 8  # what compiling takes, as announced


class _Announcer(event.Listener):
    """Announces compiling once, when the first pass of the compiler starts; code from the disk cache starts none."""

    def __init__(self) -> None:
        self.silent = True

    def on_start(self, event: Any) -> None:
        if self.silent:
            self.silent = False
            announce(f"compiling for this processor (once per kind of kernel, about {_SECONDS} s) …")

    def on_end(self, event: Any) -> None:
        pass


def compiling(work: Callable[[], T]) -> T:
    """Call `work`, which may compile: that is announced, and an interrupt is raised at once. Returns its result."""
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
            thread.join(0.05)  # on some systems an interrupt does not end a join without a timeout
    if not announcer.silent:
        count_compiling(time.perf_counter() - start)
    if errors:
        raise errors[0]
    return outcome[0]


def start_python(code: str) -> subprocess.Popen[bytes] | None:
    """A new process that runs Python code, or None if there is one core only or no interpreter to start."""
    if count_workers(None) == 1 or not Path(sys.executable or "").stem.startswith("python"):
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, nothing = [sys.executable, "-c", code], subprocess.DEVNULL
    try:
        return subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError:  # processes may be forbidden
        return None


@functools.cache
def announce_no_cache() -> None:
    """Announce, once, that compiled code cannot be kept on disk."""
    announce(
        "there is no folder in which compiled code can be kept, so every process compiles again; "
        "set NUMBA_CACHE_DIR to a folder that can be written to"
    )
