"""A graph cut into segments, and what every fused path derives from it: places of norms, scales, needed offsets."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph, Pair
from .segments import Exit, Segment

Offsets = tuple[list[int], list[int]]  # the u and the v at which a segment is needed, in order

SMALLEST_NORM = {"float32": 1e-18, "float64": 1e-150}  # of a patch, relative to its image; a smaller one counts as 0
_LARGEST_GAIN = {"float32": 1e25, "float64": 1e250}  # of the window sums of one segment; larger ones may overflow


@dataclass(frozen=True, eq=False)
class Segmented:
    """A graph, its segments, and the floating-point type up to the last pool."""

    graph: Graph
    segments: tuple[Segment, ...]
    dtype: str

    @functools.cached_property
    def norm_places(self) -> dict[Pair, int]:
        """By (segment, step): where the norms before its embedding begin in an image's list of norms."""
        places, used = {}, 0
        for i, segment in enumerate(self.segments):
            for j, step in enumerate(segment.steps):
                if step.embedding is not None:
                    places[i, j] = used
                    used += math.prod(segment.grid)
        return places

    @functools.cached_property
    def norm_count(self) -> int:
        """Number of norms of one image."""
        return sum(math.prod(self.segments[i].grid) for i, _ in self.norm_places)

    @functools.cached_property
    def gains(self) -> tuple[float, ...]:
        """For every segment, the divisor of its exits, which keeps numbers small.

        Branches that a sum joins must have been divided by the same number. Where some of them may be normalised, all
        divisors are 1.
        """
        joined = any(len(step.terms) > 1 for segment in self.segments for step in segment.steps)
        if joined and any(segment.normalizes for segment in self.segments):
            return (1.0,) * len(self.segments)
        return tuple(segment.gain for segment in self.segments)

    def exit_scale(self, segment: int, exit_: Exit) -> float:
        """The factor on the sums of an exit: it turns them into means and divides by the segment's gain."""
        return 1.0 / (math.prod(exit_.size) ** 2 * self.gains[segment])

    def total_scale(self) -> float:
        """The factor that turns the sum over the last pool into the inner product at the output.

        It undoes the gains that no later normalisation has cancelled.
        """
        factor = 1.0 / math.prod(self.segments[-1].exits[0].size) ** 2
        for i in range(len(self.segments) - 1):
            if not any(segment.normalizes for segment in self.segments[i + 1 :]):
                factor *= self.gains[i]
        return factor

    def needed(self, last: int) -> list[Offsets]:
        """For segments 0 to `last`, the offsets that the exits of segment `last` need at offset (0, 0)."""
        needed = [{0}, {0}]
        found: list[Offsets] = []
        for segment in reversed(self.segments[: last + 1]):
            needed = [set().union(*(_feeding(one, axis, needed[axis]) for one in segment.exits)) for axis in range(2)]
            found.insert(0, (sorted(needed[0]), sorted(needed[1])))
        return found


def exceeds(segments: Sequence[Segment], dtype: str) -> bool:
    """Whether sums over windows may overflow a type."""
    return any(segment.gain > _LARGEST_GAIN[dtype] for segment in segments)


def keeps_scales(graph: Graph) -> bool:
    """Whether images must keep their scales: a sum joins a branch that grows with them and one that does not."""
    return any(graph.degrees[place] is None for place in graph.body)


def crop(exit_: Exit) -> Pair:
    """The rows and columns of a grid that an exit reads; those after them are left out."""
    rows, columns = ((n - 1) * s + p for n, s, p in zip(exit_.grid, exit_.stride, exit_.size, strict=True))
    return rows, columns


def _feeding(exit_: Exit, axis: int, needed: set[int]) -> set[int]:
    """The offsets of a segment, along one axis, that an exit reads at its own `needed` offsets."""
    size, stride, length = exit_.size[axis], exit_.stride[axis], crop(exit_)[axis]
    inside = (u for u in needed if abs(u) < exit_.grid[axis])
    around = {u * stride + d for u in inside for d in range(1 - size, size)}
    return {u for u in around if abs(u) < length}
