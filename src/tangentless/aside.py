"""What a user is told aside from results: notes while something takes long, and how long compiling took."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("tangentless")
_compiling = [0.0]  # seconds of this process


def announce(text: str) -> None:
    """Log a line, and show it on a terminal: programs listen to the logger `tangentless`, people look at the screen."""
    logger.info("%s", text)
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def count_compiling(seconds: float) -> None:
    """Count seconds that went into compiling."""
    _compiling[0] += seconds


def seconds_compiling() -> float:
    """Seconds that this process has spent on compiling; rates leave them out.

    >>> before = seconds_compiling()
    >>> count_compiling(2.0)
    >>> seconds_compiling() - before
    2.0
    """
    return _compiling[0]
