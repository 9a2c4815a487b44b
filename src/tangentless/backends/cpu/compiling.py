"""Says that code is being compiled, as soon as it is, because the first call of a new kind of kernel waits for it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

logger = logging.getLogger("tangentless")
_MESSAGE = "compiling for this processor (once per kind of kernel, about %d s) …"
_SECONDS = 8


class _Announcer(event.Listener):
    """Speaks once, when the compiler starts its first pass; code from the disk cache does not start one."""

    def __init__(self) -> None:
        self.silent = True

    def on_start(self, event: Any) -> None:
        if self.silent:
            self.silent = False
            logger.info(_MESSAGE, _SECONDS)
            if sys.stderr.isatty():
                print(_MESSAGE % _SECONDS, file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def announced() -> Iterator[None]:
    """Within, whatever is compiled is announced."""
    with event.install_listener("numba:run_pass", _Announcer()):
        yield
