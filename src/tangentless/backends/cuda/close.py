"""Close pairs: where float32 leaves few digits of 1 - cosine, cosines come from float64 instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

EQUAL = 1e-15  # 1 - cosine of images with themselves, where float32 is exact
MOST_KEPT = 1 << 30  # bytes of preparations in float64 that a set of images keeps: 20,000 images of 32×32×3


class Side(Protocol):
    """Prepared images: their squared norms after the last pool, and pixels (N, *grid, C) of some of them."""

    @property
    def squares(self) -> Any: ...

    @property
    def kept(self) -> Kept: ...

    def pixels_of(self, chosen: Any) -> Any: ...


class Exact(Protocol):
    """What computes in float64."""

    def prepare_all(self, images: Any, batch: int) -> Any:
        """Images (N, *grid, C), so many pairs at once."""
        ...

    def join(self, parts: list[Any]) -> Any:
        """One set of prepared images from several."""
        ...

    def cosines(self, left: Any, right: Any, rows: Any, columns: Any) -> Any:
        """Cosines after the last pool of some pairs of prepared images, given by their numbers on both sides."""
        ...


FindExact = Callable[[], Exact | None]  # compiled when the first close pair is met; None where float64 does not fit


class _Store:
    """Images in float64, and where each of a set is among them, or -1."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.images: Any = None
        self.places: Any = None

    def places_up_to(self, last: int, xp: Any) -> Any:
        """A copy, so that an error leaves all as it was."""
        places = xp.full(last + 1, -1) if self.places is None else self.places
        return xp.concatenate([places, xp.full(max(0, last + 1 - len(places)), -1)])


@dataclass(frozen=True, eq=False)
class Kept:
    """What was prepared in float64 of a set of images, each when a close pair first has it, for all slices of the set.

    A self pair in float64 costs as much as a pair. More than `MOST_KEPT` bytes are not kept: those of before then go.
    """

    first: int = 0  # image of the set that number 0 here is
    store: _Store = field(default_factory=_Store)

    def part(self, numbers: range) -> Kept:
        """That of a slice of the images; nothing is kept for one that leaves some out."""
        return Kept(self.first + numbers.start, self.store) if numbers.step == 1 else Kept()

    def prepared(self, side: Side, chosen: Any, exact: Exact, batch: int, xp: Any) -> Any:
        """Some images of a side in float64."""
        store, numbers = self.store, self.first + chosen
        with store.lock:
            places, images = store.places_up_to(int(numbers.max()), xp), store.images
            missing = xp.nonzero(places[numbers] < 0)[0]
            if images is not None and len(missing) and (1 + len(missing) / len(images)) * images.nbytes > MOST_KEPT:
                images, missing = None, xp.arange(len(chosen))
                places[:] = -1
            if len(missing):
                fresh = exact.prepare_all(side.pixels_of(chosen[missing]), batch)
                start = 0 if images is None else len(images)
                images = fresh if images is None else exact.join([images, fresh])
                places[numbers[missing]] = xp.arange(start, len(images))
            if images.nbytes > MOST_KEPT:
                store.images, store.places = None, None
            else:
                store.images, store.places = images, places
            return images.take(places[numbers])


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
        differ = (left.pixels_of(here[0]) != right.pixels_of(here[1])).reshape(len(here[0]), -1).any(axis=1)
        cosines = xp.ones(len(here[0]))  # of equal images
        other = xp.nonzero(differ)[0]
        if len(other):
            (some, row), (others, column) = (xp.unique(one[other], return_inverse=True) for one in here)
            sides = (left, some), (right, others)
            first, second = (side.kept.prepared(side, chosen, exact, batch, xp) for side, chosen in sides)
            cosines[other] = exact.cosines(first, second, row, column)
        products[here] = cosines * norms[here]
