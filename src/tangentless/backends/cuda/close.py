"""Close pairs: where float32 leaves few digits of 1 - cosine, cosines come from float64 instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

EQUAL = 1e-15  # 1 - cosine of images with themselves, where float32 is exact


class Side(Protocol):
    """Prepared images: their squared norms after the last pool, and pixels (N, *grid, C) of some of them."""

    @property
    def squares(self) -> Any: ...

    def pixels_of(self, chosen: Any) -> Any: ...


class Exact(Protocol):
    """What computes in float64."""

    def cosines(self, left: Any, right: Any, rows: Any, columns: Any, batch: int) -> Any:
        """Cosines after the last pool of some pairs of images, given by their numbers on both sides."""
        ...


FindExact = Callable[[], Exact | None]  # compiled when the first close pair is met; None where float64 does not fit


def refine(products: Any, left: Side, right: Side, close: float, find_exact: FindExact, batch: int, xp: Any) -> None:
    """Take cosines from float64, so many at once, where 1 - cosine is below `close`.

    Norms stay, so that they agree with the diagonal.
    """
    norms = xp.sqrt(left.squares)[:, None] * xp.sqrt(right.squares)
    distances = norms - products
    rows, columns = xp.nonzero((distances < close * norms) & (abs(distances) > EQUAL * norms))
    exact = find_exact() if len(rows) else None
    if exact is None:
        return
    for start in range(0, len(rows), batch):
        here = rows[start : start + batch], columns[start : start + batch]
        (some, row), (others, column) = (xp.unique(one, return_inverse=True) for one in here)
        x, z = left.pixels_of(some), right.pixels_of(others)
        cosines = xp.ones(len(row))  # of equal images
        other = xp.nonzero((x[row] != z[column]).reshape(len(row), -1).any(axis=1))[0]
        if len(other):
            cosines[other] = exact.cosines(x, z, row[other], column[other], batch)
        products[here] = cosines * norms[here]
