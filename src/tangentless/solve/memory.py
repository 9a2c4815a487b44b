"""What a solution needs, said before it starts: one matrix of float64 and some blocks beside it."""

from __future__ import annotations

from ..errors import DoesNotFit

_ENTRY = 8  # bytes of a float64
_PANEL = 1024  # columns of the inverse of a factor that a CPU computes at once


def memory_needed(rows: int, targets: int = 1, *, block: int | None = None, matrices: int = 1) -> int:
    """Bytes for an exact solution: the matrix, panels of a block's width beside it, and a few copies of the targets.

    A matrix of a single block needs panels too, for leave-one-out.

    >>> f"{memory_needed(50_000, 10, block=4096) / 1e9:.0f} GB"
    '27 GB'
    """
    panels = 3 * min(_PANEL, rows) * rows if block is None or block >= rows else 4 * block * rows
    return _ENTRY * (matrices * rows**2 + panels + 6 * rows * targets)


def check_fits(needed: int, free: int | None, what: str, instead: str) -> None:
    """Refuse what cannot fit, and name the alternative.

    >>> check_fits(20 * 10**9, 16 * 10**9, "50,000 rows", "use a GPU")
    Traceback (most recent call last):
        ...
    tangentless.errors.DoesNotFit: 50,000 rows need 20.0 GB of memory, and 16.0 GB are free; use a GPU
    """
    if free is not None and needed > free:
        raise DoesNotFit(f"{what} need {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; {instead}")
