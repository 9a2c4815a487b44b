"""Close pairs: where 1 - cosine is small, float32 leaves few digits of it, so the cosine is computed in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

EQUAL = 1e-15  # 1 - cosine of an image with itself is below this: float32 is exact there
MOST_KEPT = 1 << 30  # bytes of images prepared in float64 that a set of images caches: 20,000 of 32×32×3


class Side(Protocol):
    """Prepared images on one side of pairs: what `refine` needs of them."""

    @property
    def squares(self) -> Any:
        """Squared norms after the last pool, (N,)."""
        ...

    @property
    def exact_cache(self) -> ExactCache: ...

    def pixels_of(self, chosen: Any) -> Any:
        """Pixels of the images with these numbers, (len(chosen), *grid, C), in float64."""
        ...


class Exact(Protocol):
    """The path that computes in float64."""

    def prepare_all(self, images: Any, batch: int) -> Any:
        """Images (N, *grid, C) prepared, in the memory that `batch` pairs take."""
        ...

    def join(self, parts: list[Any]) -> Any:
        """One set of prepared images from several."""
        ...

    def cosines(self, left: Any, right: Any, rows: Any, columns: Any) -> Any:
        """Cosines after the last pool of the pairs (left[rows[i]], right[columns[i]])."""
        ...


FindExact = Callable[[], Exact | None]  # compiles it when first called; None if float64 does not fit into shared memory


class _Store:
    """Images prepared in float64; `places[i]` is the index of image i of the set among them, or -1."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.images: Any = None
        self.places: Any = None

    def places_up_to(self, last: int, xp: Any) -> Any:
        """A copy of `places`, long enough for image `last`. A copy, so that an error leaves the store unchanged."""
        places = xp.full(last + 1, -1) if self.places is None else self.places
        return xp.concatenate([places, xp.full(max(0, last + 1 - len(places)), -1)])


@dataclass(frozen=True, eq=False)
class ExactCache:
    """A cache of images prepared in float64, shared by all slices of a set of images.

    An image is prepared when it is first in a close pair: preparing it costs as much as a pair. If new images would
    take the cache over `MOST_KEPT` bytes, it is emptied first.
    """

    first: int = 0  # where this slice begins in the set
    store: _Store = field(default_factory=_Store)

    def part(self, numbers: range) -> ExactCache:
        """The cache for a slice of the images; an empty one if the slice has steps."""
        return ExactCache(self.first + numbers.start, self.store) if numbers.step == 1 else ExactCache()

    def prepared(self, side: Side, chosen: Any, exact: Exact, batch: int, xp: Any) -> Any:
        """The images of a side with these numbers, prepared in float64."""
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
    """Replace inner products (n, m), in place, where 1 - cosine is below `close`: cosines from float64 times the norms.

    `batch` pairs are computed at once. Norms are not recomputed, so that products agree with the diagonal.
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
        cosines = xp.ones(len(here[0]))  # right for images with equal pixels
        other = xp.nonzero(differ)[0]
        if len(other):
            (some, row), (others, column) = (xp.unique(one[other], return_inverse=True) for one in here)
            sides = (left, some), (right, others)
            first, second = (side.exact_cache.prepared(side, chosen, exact, batch, xp) for side, chosen in sides)
            cosines[other] = exact.cosines(first, second, row, column)
        products[here] = cosines * norms[here]
