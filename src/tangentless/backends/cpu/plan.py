"""What the fused kernel can take, and the sizes that do not depend on how it is compiled."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph, Pair
from ..segments import Exit, Segment, cut
from .duals import Lowered, lower_step

Offsets = tuple[list[int], list[int]]  # u and v that a segment is needed at

_LARGEST_GAIN = {"float32": 1e25, "float64": 1e250}  # of one segment's window sums, before they overflow
_LARGEST_SLOTS = 400 << 20  # bytes one thread may hold between segments


@dataclass(frozen=True, eq=False)
class Fused:
    """A graph that the fused kernel can run."""

    graph: Graph
    segments: tuple[Segment, ...]
    dtype: str
    lanes: int
    lowered: tuple[tuple[Lowered, ...], ...]  # for every segment, of every step

    @property
    def width(self) -> int:
        """Elements of a vector: a lane for every right image, and, of tangent kernels, as many lanes of tangents."""
        return self.lanes * (1 + self.graph.tangent)

    def parts(self, vectors: NDArray[Any]) -> list[NDArray[Any]]:
        """Kernel values, and tangents where there are some, (n, m, lanes), of vectors (n, m, width) or (n, m width)."""
        return np.split(vectors.reshape(len(vectors), -1, self.width), self.width // self.lanes, axis=-1)

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

    @property
    def image_bytes(self) -> int:
        """Bytes of one image while it is computed with."""
        pixels = math.prod(self.segments[0].grid) * self.graph.channels
        return (pixels + 2 * self.norm_count) * np.dtype(self.dtype).itemsize

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


@functools.lru_cache(maxsize=64)
def fuse(graph: Graph, dtype: str, lanes: int) -> Fused | str:
    """The graph for the fused kernel, or the reason why it must take the general path."""
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    lowered = []
    for segment in segments:
        forms = [lower_step(step, dtype, graph.tangent) for step in segment.steps]
        if None in forms:
            return f"no fast form is known for {segment.steps[forms.index(None)].embedding}"
        lowered.append(tuple(one for one in forms if one is not None))
    if any(segment.gain > _LARGEST_GAIN[dtype] for segment in segments):
        return f"a segment sums over more windows than {dtype} can hold"
    slots = sum(map(slot_count, (one for segment in segments[:-1] for one in segment.exits)))
    if slots * lanes * (1 + graph.tangent) * np.dtype(dtype).itemsize > _LARGEST_SLOTS:
        height, width = segments[0].grid
        return f"its {height}×{width} images need more room between segments than a thread may take"
    return Fused(graph, segments, dtype, lanes, tuple(lowered))


def keeps_scales(graph: Graph) -> bool:
    """Whether images must keep their scales, because sums join what grows with them and what does not."""
    return any(graph.degrees[place] is None for place in graph.body)


def slot_count(exit_: Exit) -> int:
    """Vectors that hold an exit: two u at a time, and all v."""
    tall, wide = exit_.grid
    return 2 * (2 * wide + 1) * tall * wide


def crop(exit_: Exit) -> Pair:
    """The part of a grid that an exit reads."""
    rows, columns = ((n - 1) * s + p for n, s, p in zip(exit_.grid, exit_.stride, exit_.size, strict=True))
    return rows, columns


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Zeros that start at a cache line: unaligned vectors cost a third of the speed."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(size + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


def _feeding(exit_: Exit, axis: int, needed: set[int]) -> set[int]:
    """Offsets of a segment along an axis that an exit needs for its own offsets."""
    size, stride, length = exit_.size[axis], exit_.stride[axis], crop(exit_)[axis]
    inside = (u for u in needed if abs(u) < exit_.grid[axis])
    around = {u * stride + d for u in inside for d in range(1 - size, size)}
    return {u for u in around if abs(u) < length}
