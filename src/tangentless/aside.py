"""What a user is told besides results: notes about long steps, and the time that compiling took."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("tangentless")
_compiling = [0.0]  # seconds that this process has spent on compiling; a list, so that functions can change it


def announce(text: str) -> None:
    """Log a line to the logger `tangentless`, and print it to the error stream if that is a terminal."""
    logger.info("%s", text)
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def count_compiling(seconds: float) -> None:
    """Add to the seconds spent on compiling."""
    _compiling[0] += seconds


def seconds_compiling() -> float:
    """Seconds that this process has spent on compiling. Speeds (pairs a second) do not count them.

    >>> before = seconds_compiling()
    >>> count_compiling(2.0)
    >>> seconds_compiling() - before
    2.0
    """
    return _compiling[0]
