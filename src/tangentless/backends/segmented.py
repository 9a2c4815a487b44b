"""A graph cut into segments, with what every fused path needs to know of it: norms, scales, needed offsets."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph, Pair
from .segments import Exit, Segment

Offsets = tuple[list[int], list[int]]  # u and v that a segment is needed at

SMALLEST_NORM = {"float32": 1e-18, "float64": 1e-150}  # of a patch, relative to its image; below it counts as black
_LARGEST_GAIN = {"float32": 1e25, "float64": 1e250}  # of one segment's window sums, before they overflow


@dataclass(frozen=True, eq=False)
class Segmented:
    """A graph, its segments, and the type of numbers up to the last pool."""

    graph: Graph
    segments: tuple[Segment, ...]
    dtype: str

    @functools.cached_property
    def norm_places(self) -> dict[Pair, int]:
        """Where an image's norms before the embedding of (segment, step) begin; steps without one have none."""
        places, used = {}, 0
        for i, segment in enumerate(self.segments):
            for j, step in enumerate(segment.steps):
                if step.embedding is not None:
                    places[i, j] = used
                    used += math.prod(segment.grid)
        return places

    @functools.cached_property
    def norm_count(self) -> int:
        """Norms of one image."""
        return sum(math.prod(self.segments[i].grid) for i, _ in self.norm_places)

    @functools.cached_property
    def gains(self) -> tuple[float, ...]:
        """For every segment, by what its exits are divided to keep numbers small.

        All that a sum joins must have been divided alike, so nothing is where some branches are normalised.
        """
        joined = any(len(step.terms) > 1 for segment in self.segments for step in segment.steps)
        if joined and any(segment.normalizes for segment in self.segments):
            return (1.0,) * len(self.segments)
        return tuple(segment.gain for segment in self.segments)

    def exit_scale(self, segment: int, exit_: Exit) -> float:
        """The factor on the sums of an exit that makes them means, divided by the gain."""
        return 1.0 / (math.prod(exit_.size) ** 2 * self.gains[segment])

    def total_scale(self) -> float:
        """The factor on the total that gives the inner product at the output, for images of their true scale."""
        factor = 1.0 / math.prod(self.segments[-1].exits[0].size) ** 2
        for i in range(len(self.segments) - 1):
            if not any(segment.normalizes for segment in self.segments[i + 1 :]):
                factor *= self.gains[i]
        return factor

    def needed(self, last: int) -> list[Offsets]:
        """For segments up to the last one, offsets that are needed to know its exits at equal positions."""
        needed = [{0}, {0}]
        found: list[Offsets] = []
        for segment in reversed(self.segments[: last + 1]):
            needed = [set().union(*(_feeding(one, axis, needed[axis]) for one in segment.exits)) for axis in range(2)]
            found.insert(0, (sorted(needed[0]), sorted(needed[1])))
        return found


def exceeds(segments: Sequence[Segment], dtype: str) -> bool:
    """Whether sums over windows may leave the range of a type."""
    return any(segment.gain > _LARGEST_GAIN[dtype] for segment in segments)


def keeps_scales(graph: Graph) -> bool:
    """Whether images must keep their scales, because sums join what grows with them and what does not."""
    return any(graph.degrees[place] is None for place in graph.body)


def crop(exit_: Exit) -> Pair:
    """The part of a grid that an exit reads."""
    rows, columns = ((n - 1) * s + p for n, s, p in zip(exit_.grid, exit_.stride, exit_.size, strict=True))
    return rows, columns


def _feeding(exit_: Exit, axis: int, needed: set[int]) -> set[int]:
    """Offsets of a segment along an axis that an exit needs for its own offsets."""
    size, stride, length = exit_.size[axis], exit_.stride[axis], crop(exit_)[axis]
    inside = (u for u in needed if abs(u) < exit_.grid[axis])
    around = {u * stride + d for u in inside for d in range(1 - size, size)}
    return {u for u in around if abs(u) < length}
