"""Segments: a graph cut where its resolution changes, for the fused kernels.

Within a segment the offset between a position of the left image and one of the right stays fixed, so a segment can be
streamed offset by offset. It consists of *steps*: a weighted sum of windows, then an embedding. It ends in one or more
*exits*, which pool or subsample values; exit k of a segment is entrance k of the next one.

    entrances -> step -> step -> ... -> exits (pools, strides) -> entrances of the next segment

A pool of size p adds up p positions of either image along an axis. A stride s keeps every s-th position, so only
offsets that are multiples of s are needed. The window of a strided convolution is a step of its own before the exit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import (
    Axes,
    EmbedNode,
    Graph,
    InputNode,
    Node,
    Pair,
    PoolNode,
    SumNode,
    WeightsNode,
    WindowNode,
    window_sums,
)
from ..layers import Nonlinearity, Normalize, Windows

Array = NDArray[np.float64]
Embedding = Nonlinearity | Normalize | None
Weights = tuple[float, ...]  # one per position along an axis; their mean is 1


@dataclass(frozen=True)
class Term:
    """A term of a step's sum: `weight` times the sums of a value over windows of stride 1."""

    value: int
    axes: Axes
    weight: float = 1.0

    @property
    def taps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions that a window adds up, along the height and along the width, relative to its own position."""
        rows, columns = (tuple(windows.positions(0)) for windows in self.axes)
        return rows, columns


@dataclass(frozen=True)
class Step:
    """A sum of terms, then an embedding, or none."""

    terms: tuple[Term, ...]
    embedding: Embedding
    weighs: bool = False  # a layer of weights stands between sum and embedding: it adds kernels to tangents

    @property
    def window(self) -> Pair:
        """The size of the first term's windows."""
        rows, columns = self.terms[0].axes
        return rows.size, columns.size


@dataclass(frozen=True)
class Exit:
    """What the next segment reads: means of a value over windows of `size`, one every `stride`, `grid` of them."""

    value: int
    size: Pair
    stride: Pair
    grid: Pair
    pooled: bool  # more than one position per window, so squared norms need each image's kernel with itself
    weights: tuple[Weights, Weights] | None = None  # along the height and the width of a window; None: all are 1

    @property
    def tiles(self) -> bool:
        """Whether windows are disjoint without gaps, or are single positions."""
        return self.size in ((1, 1), self.stride)

    def weigh(self, norms: Any, xp: Any) -> Any:
        """Norms (N, H, W) before the pool, times its weights, with which a plain pool computes the weighted one."""
        if self.weights is None:
            return norms
        rows, columns = map(xp.asarray, self.weights)
        return norms * (rows[:, None] * columns)


@dataclass(frozen=True)
class Segment:
    """Steps on one grid.

    Values are numbered: the entrances first, then two per step, its sum and its value after the embedding.
    """

    grid: Pair
    entrances: int
    steps: tuple[Step, ...]
    exits: tuple[Exit, ...]

    def sum_of(self, step: int) -> int:
        """The number of a step's sum."""
        return self.entrances + 2 * step

    @property
    def normalizes(self) -> bool:
        """Whether a step normalises, that is, divides by norms."""
        return any(isinstance(step.embedding, Normalize) for step in self.steps)

    @property
    def pool(self) -> Pair:
        """The size of the windows at the first exit."""
        return self.exits[0].size

    @property
    def is_chain(self) -> bool:
        """Whether it is a chain of centred windows that ends in one pool whose windows tile the grid."""
        value = 0
        for number, step in enumerate(self.steps):
            rows, columns = (Windows(k, n, start=-(k // 2)) for k, n in zip(step.window, self.grid, strict=True))
            if step.terms != (Term(value, (rows, columns)),):
                return False
            value = self.sum_of(number) + (step.embedding is not None)
        one = self.exits[0]
        tiles = one.size == one.stride and tuple(n * p for n, p in zip(one.grid, one.size, strict=True)) == self.grid
        return tiles and one.value == value and self.entrances == len(self.exits) == 1

    def before_patch(self) -> Segment | None:
        """For a segment that ends in a patch of its whole grid: the same with a pool instead; None for others."""
        last, one = self.steps[-1] if self.steps else None, self.exits[0]
        whole = tuple(Windows(n, n) for n in self.grid)
        if last is None or last.embedding is not None or one.size != (1, 1) or one.grid != (1, 1):
            return None
        (term, *others), value = last.terms, self.sum_of(len(self.steps) - 1)
        if others or term.axes != whole or term.weight != 1.0 or one.value != value or len(self.exits) > 1:
            return None
        return Segment(
            self.grid, self.entrances, self.steps[:-1], (Exit(term.value, self.grid, self.grid, (1, 1), True),)
        )

    @property
    def gain(self) -> float:
        """An upper bound of how much sums over windows multiply values, from the entrances to any value."""
        gains = [1.0] * self.entrances
        for step in self.steps:
            size = [math.prod(windows.size for windows in term.axes) for term in step.terms]
            gain = sum(gains[term.value] * n * term.weight for term, n in zip(step.terms, size, strict=True))
            gains += [gain, gain]
        return max(gains)

    def squares(self, entrances: Sequence[Array], sums: Callable[[Any, Axes], Any] = window_sums) -> list[Array]:
        """Squared norms of every value, (N, H, W), from those at the entrances; `sums` adds up windows.

        Squared norms after a sum or an embedding follow from those before it, so no kernel is needed here.
        """
        values = list(entrances)
        for step in self.steps:
            total: Any = 0.0
            for term in step.terms:
                part = sums(values[term.value], term.axes)
                part = part if term.weight == 1.0 else term.weight * part
                total = part if isinstance(total, float) else total + part
            values += [total, total if step.embedding is None else step.embedding.squares(total)]
        return values

    def norms(self, squares: Array) -> Array:
        """For a chain: norms before each step's embedding, (N, steps, H, W), from squared norms at the entrance."""
        values = self.squares([squares])
        return np.sqrt(np.stack([values[self.sum_of(number)] for number in range(len(self.steps))], axis=1))


@functools.lru_cache(maxsize=256)
def cut(graph: Graph) -> tuple[Segment, ...] | str:
    """The segments of a graph, or the reason why it cannot be cut into segments."""
    if graph.nodes[0].grid == (1, 1):
        return "it has no grid"
    if len(graph.outputs) != 1:
        return "several values leave its last grid"
    try:
        return _Cutter(graph).segments()
    except _UncutError as reason:
        return str(reason)


def chain(graph: Graph) -> tuple[Segment, ...] | str:
    """The segments of a graph that is a plain chain, or the reason why it is not one."""
    return _chained(cut(graph))


def patched_chain(graph: Graph) -> tuple[tuple[Segment, ...], Pair] | str:
    """The segments of a graph that is a plain chain after patches, and the size of a patch; or why it is not one.

    A size of (1, 1) means that there are no patches. Successive pools at the end are joined, see `with_one_pool`.
    """
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    rest, patch = without_patch(with_one_pool(segments))
    found = _chained(rest)
    return found if isinstance(found, str) else (found, patch)


def with_one_pool(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Segments with one pool of the whole grid, with weights, in place of several successive pools at the end.

    The mean of the means of overlapping windows is a weighted mean: a position counts once per window that contains it.
    """
    while len(segments) > 1 and not segments[-1].steps and len(segments[-2].exits) == 1:
        *others, before, last = segments
        (first,), (final,) = before.exits, last.exits
        if final.size != last.grid or not first.pooled:
            break
        weights = _weights_before(first, 0, before, final), _weights_before(first, 1, before, final)
        alike = all(set(axis) == {1.0} for axis in weights)
        exits = (Exit(first.value, before.grid, before.grid, (1, 1), True, None if alike else weights),)
        segments = (*others, replace(before, exits=exits))
    return segments


def _weights_before(pool: Exit, axis: int, segment: Segment, final: Exit) -> Weights:
    """Weights of the positions along an axis of a segment, whose `pool` is averaged by a `final` pool."""
    after = np.ones(pool.grid[axis]) if final.weights is None else np.array(final.weights[axis])
    weights = np.zeros(segment.grid[axis])
    for window, weight in enumerate(after):
        start = window * pool.stride[axis]
        weights[start : start + pool.size[axis]] += weight
    return tuple((weights / weights.mean()).tolist())


def flat_chain(graph: Graph) -> tuple[tuple[Segment, ...], bool] | str:
    """The segments of a plain chain, and whether it is flat; or why it is not a plain chain.

    A flat chain ends in a patch of the whole grid. Its last segment is returned with a pool in place of the patch.
    """
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    before = segments[-1].before_patch()
    found = _chained(segments if before is None else (*segments[:-1], before))
    return found if isinstance(found, str) else (found, before is not None)


def _chained(segments: tuple[Segment, ...] | str) -> tuple[Segment, ...] | str:
    if isinstance(segments, str) or all(segment.is_chain for segment in segments):
        return segments
    return "it is no plain chain: it has strides, dilations, patches, sums, or pools that leave positions out"


def without_patch(segments: tuple[Segment, ...]) -> tuple[tuple[Segment, ...], Pair]:
    """Segments without a first one that only cuts images into patches, and the size of these patches.

    The pixels of a patch become the channels of one larger pixel; `patched` makes such images.
    """
    first = segments[0]
    if len(segments) > 1 and len(first.steps) == len(first.exits) == 1 and first.steps[0].embedding is None:
        (step,), (one,) = first.steps, first.exits
        rows, columns = (Windows(k, n) for k, n in zip(step.window, first.grid, strict=True))
        tiles = tuple(n * p for n, p in zip(one.grid, one.stride, strict=True)) == first.grid
        if step.terms == (Term(0, (rows, columns)),) and one.stride == step.window and tiles and not one.pooled:
            return segments[1:], one.stride
    return segments, (1, 1)


def patched(images: Any, patch: Pair) -> Any:
    """Images (N, H, W, C) with each patch as one pixel, (N, H / tall, W / wide, tall wide C)."""
    if patch == (1, 1):
        return images
    count, height, width, channels = images.shape
    tall, wide = patch
    pieces = images.reshape(count, height // tall, tall, width // wide, wide, channels)
    return np.moveaxis(pieces, 3, 2).reshape(count, height // tall, width // wide, tall * wide * channels)


class _UncutError(Exception):
    """The reason why a graph cannot be cut."""


class _Cutter:
    """Walks through the nodes of a graph once, level by level, and collects the steps of each segment.

    The level of a node is the number of its segment. Nodes that only add (windows, sums, weights) are kept as terms in
    `sums`; they become a step when an embedding, another window or an exit reads them.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.levels = graph, dict[int, int]()
        self.readers: dict[int, list[int]] = {place: [] for place in graph.body}
        for place in graph.body:
            for source in graph.nodes[place].sources:
                self.readers[source].append(place)
        self.sums: dict[int, tuple[Term, ...]] = {}  # by node: its value as a sum over values of its segment
        self.grids: list[Pair] = []
        self.entrances: list[int] = []
        self.steps: list[list[Step]] = []
        self.exits: list[list[Exit]] = []

    def segments(self) -> tuple[Segment, ...]:
        for place in self.graph.body:
            self._set_level(place)
        for level in range(max(self.levels.values())):
            places = [place for place in self.graph.body if self.levels[place] == level]
            self.grids.append(self.graph.nodes[places[0]].grid)
            self.entrances.append(sum(map(self._enters, places)))
            self.steps.append([])
            self.exits.append([])
            for number, place in enumerate(filter(self._enters, places)):
                self.sums[place] = (self._term(number, level),)
            for place in places:
                if self.graph.nodes[place].grid != self.grids[level]:
                    raise _UncutError("branches of different resolution run beside each other")
                if place not in self.sums:
                    self._node(place, level)
            for place in self.graph.body:
                if self.levels[place] == level + 1 and self._enters(place):
                    self._exit(place, level)
            self._check_strides(level)
        parts = zip(self.grids, self.entrances, self.steps, self.exits, strict=True)
        return tuple(Segment(grid, n, tuple(steps), tuple(exits)) for grid, n, steps, exits in parts)

    def _enters(self, place: int) -> bool:
        """Whether a node starts a segment: the images, a pool, or a window that changes the grid."""
        node = self.graph.nodes[place]
        if isinstance(node, WindowNode):
            before = self.graph.nodes[node.sources[0]].grid
            return any(w.stride != 1 or w.count != n for w, n in zip(node.axes, before, strict=True))
        return isinstance(node, PoolNode | InputNode)

    def _set_level(self, place: int) -> None:
        levels = {self.levels[source] for source in self.graph.nodes[place].sources}
        if len(levels) > 1:
            raise _UncutError("a sum joins branches with different numbers of pools and strides")
        self.levels[place] = max(levels, default=-1) + self._enters(place)

    def _node(self, place: int, level: int) -> None:
        """Write a node as a sum of terms, and turn it into a step if it embeds or if several nodes read it."""
        node = self.graph.nodes[place]
        if isinstance(node, EmbedNode):
            (source,) = node.sources
            self._step(place, level, self.sums[source], node.layer, self._weighs_embedding(source))
            return
        if isinstance(node, WeightsNode):
            self.sums[place] = self.sums[node.sources[0]]
            if not self._weighs_embedding(place):
                self._step(place, level, self.sums[place], weighs=True)
            return
        self.sums[place] = self._sum(node, level)
        reading = [one for one in self.readers[place] if isinstance(self.graph.nodes[one], EmbedNode)]
        if len(self.readers[place]) > 1 and not self._is_value(self.sums[place]):
            embed = self.graph.nodes[reading[0]] if reading else None
            embedding = embed.layer if isinstance(embed, EmbedNode) else None
            number = self._step(reading[0] if reading else place, level, self.sums[place], embedding)
            self.sums[place] = (self._term(number, level),)

    def _sum(self, node: Node, level: int) -> tuple[Term, ...]:
        if isinstance(node, SumNode):
            weights: dict[tuple[int, Axes], float] = {}
            for source, weight in zip(node.sources, node.weights, strict=True):
                for term in self.sums[source]:
                    key = term.value, term.axes
                    weights[key] = weights.get(key, 0.0) + weight * term.weight
            return tuple(Term(*key, weight) for key, weight in weights.items())
        assert isinstance(node, WindowNode), node
        return (Term(self._value(node.sources[0], level), node.axes, node.scale),)

    def _weighs_embedding(self, place: int) -> bool:
        """Whether a node is a layer of weights that only an embedding reads: it becomes part of that one's step."""
        readers = [type(self.graph.nodes[one]) for one in self.readers[place]]
        return isinstance(self.graph.nodes[place], WeightsNode) and readers == [EmbedNode]

    def _step(
        self, place: int, level: int, terms: tuple[Term, ...], embedding: Embedding = None, weighs: bool = False
    ) -> int:
        """Add a step whose value after the embedding is that of a node; returns the number of the step's sum."""
        number = self.entrances[level] + 2 * len(self.steps[level])
        self.steps[level].append(Step(terms, embedding, weighs))
        self.sums[place] = (self._term(number + (embedding is not None), level),)
        return number

    def _value(self, place: int, level: int) -> int:
        """The number of a node's value; a node that is still a sum becomes a step."""
        if not self._is_value(self.sums[place]):
            self._step(place, level, self.sums[place])
        return self.sums[place][0].value

    def _exit(self, place: int, level: int) -> None:
        node = self.graph.nodes[place]
        assert isinstance(node, PoolNode | WindowNode), node
        value = self._value(node.sources[0], level)
        stride = node.axes[0].stride, node.axes[1].stride
        size = (1, 1)
        if isinstance(node, PoolNode):
            size = node.axes[0].size, node.axes[1].size
            stride = _stride(node.axes[0]), _stride(node.axes[1])
            if any(w.start != 0 or w.dilation != 1 for w in node.axes):
                raise _UncutError("the windows of a pool are not blocks of positions")
        else:
            dense = tuple(
                Windows(w.size, n, 1, w.dilation, w.start) for w, n in zip(node.axes, self.grids[level], strict=True)
            )
            term = Term(value, (dense[0], dense[1]), node.scale)
            if term != self._term(value, level):
                value = self._step(place, level, (term,))
        pooled = isinstance(node, PoolNode) and size != (1, 1)
        self.exits[level].append(Exit(value, size, stride, node.grid, pooled))

    def _check_strides(self, level: int) -> None:
        exits = self.exits[level]
        for axis in range(2):
            if len({one.stride[axis] for one in exits if one.grid[axis] > 1}) > 1:
                raise _UncutError("branches beside each other have different strides")

    def _term(self, value: int, level: int) -> Term:
        height, width = self.grids[level]
        return Term(value, (Windows(1, height), Windows(1, width)))

    def _is_value(self, terms: tuple[Term, ...]) -> bool:
        return len(terms) == 1 and terms[0].weight == 1.0 and terms[0].taps == ((0,), (0,))


def _stride(windows: Windows) -> int:
    """The stride of a pool's windows; for a single window, its size, so that it tiles what it reads."""
    return windows.size if windows.count == 1 else windows.stride
