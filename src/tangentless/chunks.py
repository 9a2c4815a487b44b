"""Long ranges in pieces: whatever works on many rows takes them a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator


def spans(length: int, size: int, start: int = 0) -> Iterator[slice]:
    """Consecutive slices of at most `size` from `start` to `length`.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for first in range(start, length, size):
        yield slice(first, min(first + size, length))
