"""Graphs: an architecture compiled for one input shape, the only thing a backend sees.

A graph is a list of nodes in SSA form: every node names the earlier nodes it reads. Shapes, squared norms, work and
memory follow from the nodes. A sequence is an image of height one, and a vector is an image of one position. Nodes on a
single position, usually after the last pool, form the *head*: they act on one number per pair, in float64.

With `tangent=True` the graph is that of the tangent kernel: `Weights` nodes mark the trained layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import bags
from .architecture import Architecture
from .layers import (
    Average,
    Grid,
    Layer,
    Nonlinearity,
    Normalize,
    Residual,
    Stack,
    Sum,
    Windowed,
    Windows,
    check_dual,
)

Array = NDArray[np.float64]
Pair = tuple[int, int]
Axes = tuple[Windows, Windows]  # along the height and the width
Offsets = tuple[frozenset[int], frozenset[int]]  # right position minus left position: rows, columns

STEEPEST = 5.0  # the largest product of slopes of duals at c = 1 with which float32 keeps seven digits


@dataclass(frozen=True)
class InputNode:
    """The images."""

    grid: Pair
    channels: int
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class WindowNode:
    """K' = scale * sum over windows, with zero padding outside the grid."""

    grid: Pair
    sources: tuple[int, ...]
    axes: Axes
    scale: float

    @property
    def centre(self) -> float:
        """The factor that this node applies on a grid of one position: the rest of each window is padding."""
        return self.scale * math.prod(windows.positions(0).count(0) for windows in self.axes)


@dataclass(frozen=True)
class PoolNode:
    """K' = mean of K over window × window; windows lie inside the grid."""

    grid: Pair
    sources: tuple[int, ...]
    axes: Axes

    @property
    def scale(self) -> float:
        """The factor that turns a sum over window × window into a mean."""
        return 1.0 / math.prod(windows.size for windows in self.axes) ** 2


@dataclass(frozen=True)
class EmbedNode:
    """An embedding: K' = A A' f(c), or the cosine c for `Normalize`."""

    grid: Pair
    sources: tuple[int, ...]
    layer: Nonlinearity | Normalize


@dataclass(frozen=True)
class SumNode:
    """K' = sum of weights[i] K_i."""

    grid: Pair
    sources: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class WeightsNode:
    """A trained layer of weights: T' = T + K and K' = K."""

    grid: Pair
    sources: tuple[int, ...]


Node = InputNode | WindowNode | PoolNode | EmbedNode | SumNode | WeightsNode


@dataclass(frozen=True)
class Graph:
    """An architecture, compiled for images of `grid` with `channels`.

    >>> graph = compile_graph(Architecture.parse("myrtle10"), (32, 32), 3)
    >>> [node.grid for node in graph.nodes if isinstance(node, PoolNode)], graph.elements
    ([(16, 16), (8, 8), (1, 1)], 3354624)
    """

    architecture: Architecture
    grid: Grid
    channels: int
    nodes: tuple[Node, ...]
    ends: tuple[tuple[int, Layer, int], ...]  # every layer in order: (depth, layer, its last node)
    tangent: bool = False

    @functools.cached_property
    def outputs(self) -> tuple[int, ...]:
        """Where the head starts: nodes of one position that read larger grids, or an input of one position."""
        return tuple(
            place
            for place, node in enumerate(self.nodes)
            if node.grid == (1, 1) and not (node.sources and all(self._single(source) for source in node.sources))
        )

    @functools.cached_property
    def body(self) -> tuple[int, ...]:
        """The nodes up to the outputs, inclusive."""
        return tuple(place for place in range(len(self.nodes)) if not self._single(place) or place in self.outputs)

    @functools.cached_property
    def head(self) -> tuple[int, ...]:
        """The nodes after the outputs."""
        return tuple(place for place in range(len(self.nodes)) if place not in self.body)

    def _single(self, place: int) -> bool:
        return self.nodes[place].grid == (1, 1)

    @functools.cached_property
    def offsets(self) -> tuple[Offsets, ...]:
        """The offsets at which each node is needed: a window of stride s reads only multiples of s from its source."""
        needed: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in self.nodes]
        for place in reversed(range(len(self.nodes))):
            node = self.nodes[place]
            if place == len(self.nodes) - 1:
                needed[place] = ({0}, {0})
            for source in node.sources:
                for axis in range(2):
                    length = self.nodes[source].grid[axis]
                    read = _source_offsets(node, axis, needed[place][axis])
                    needed[source][axis].update(u for u in read if abs(u) < length)
        return tuple((frozenset(rows), frozenset(columns)) for rows, columns in needed)

    def pairs(self, place: int) -> int:
        """The number of pairs of positions at which a node is needed, for one pair of images."""
        return math.prod(
            sum(length - abs(u) for u in offsets)
            for length, offsets in zip(self.nodes[place].grid, self.offsets[place], strict=True)
        )

    @functools.cached_property
    def elements(self) -> int:
        """Dual functions evaluated for one pair, at least one per pair of pixels: the unit of work in predictions."""
        embeddings = [place for place in self.body if isinstance(self.nodes[place], EmbedNode)]
        return (1 + self.tangent) * max(sum(map(self.pairs, embeddings)), self.pairs(0))

    @property
    def image_numbers(self) -> int:
        """The most numbers stored for a prepared image: its pixels, and norms with inverses at embeddings and pools."""
        norms = sum(math.prod(node.grid) for node in self.nodes if isinstance(node, EmbedNode | PoolNode))
        return math.prod(self.nodes[0].grid) * self.channels + 2 * norms + 8

    @functools.cached_property
    def steepest(self) -> float:
        """The largest product of slopes at c = 1 of the duals up to any node of the body."""
        slopes: list[float] = []  # product of the slopes up to each node: a slope multiplies all errors before it
        for node in self.nodes:
            slope = (
                node.layer.steepness() if isinstance(node, EmbedNode) and isinstance(node.layer, Nonlinearity) else 1.0
            )
            slopes.append(max(1.0, slope) * max((slopes[source] for source in node.sources), default=1.0))
        return max(slopes[place] for place in self.body)

    @functools.cached_property
    def delicate(self) -> str | None:
        """Why float32 does not keep seven digits up to the last pool; None if it does."""
        if self.steepest > STEEPEST:
            return f"duals with slopes of {self.steepest:.3g} at 1, taken together, multiply rounding errors"
        return "its first pool may take small differences of large numbers" if self._cancels else None

    @property
    def _cancels(self) -> bool:
        """Whether terms of either sign may cancel in the first pool, as for inner products of pixels.

        They do not after an embedding with f(0) > 0 or f(-1) > 0: all features then share a component.
        """
        first = next((place for place, node in enumerate(self.nodes) if isinstance(node, PoolNode)), None)
        if first is None or self._single(0):
            return False
        signs = np.array([0.0, -1.0])
        before = [self.nodes[place] for place in self.ancestors(first)]
        layers = [node.layer for node in before if isinstance(node, EmbedNode)]
        return not any(isinstance(layer, Nonlinearity) and layer.dual(signs).max() > 0 for layer in layers)

    def ancestors(self, place: int) -> frozenset[int]:
        """All nodes on which a node depends."""
        found = set(self.nodes[place].sources)
        for before in reversed(range(place)):  # sources precede their readers, so one pass finds all
            if before in found:
                found.update(self.nodes[before].sources)
        return frozenset(found)

    @functools.cached_property
    def degrees(self) -> tuple[int | None, ...]:
        """The power of the images' scale by which each node's features grow: 1, 0, or None if branches differ."""
        found: list[int | None] = []
        for node in self.nodes:
            before = {found[source] for source in node.sources} or {1}
            normalizes = isinstance(node, EmbedNode) and isinstance(node.layer, Normalize)
            found.append(0 if normalizes else before.pop() if len(before) == 1 else None)
        return tuple(found)

    @property
    def scale_free(self) -> bool:
        """Whether the scale of the images cancels: the outputs do not depend on it, or the head normalizes them."""
        after = [node for node in self.nodes if set(node.sources) & set(self.outputs)]
        divides = bool(after) and all(isinstance(n, EmbedNode) and isinstance(n.layer, Normalize) for n in after)
        return divides or all(self.degrees[place] == 0 for place in self.outputs)

    def squares(self, known: Mapping[int, Any]) -> list[Any]:
        """Squared norms at every node, (N, H, W) each, computed from the known ones; None where that is impossible.

        All nodes but pools map squared norms to squared norms. Those of the input come from its pixels, those after a
        pool from the kernel of each image with itself.
        """
        found: list[Any] = []
        for place, node in enumerate(self.nodes):
            before = [found[source] for source in node.sources]
            if place in known:
                found.append(known[place])
            elif not before or any(one is None for one in before):
                found.append(None)
            else:
                found.append(squares_after(node, before))
        return found

    def apply_head(self, values: Sequence[Array], left: Sequence[Array], right: Sequence[Array]) -> Array:
        """Kernel entries (n, m) from inner products at the outputs and squared norms (n,), (m,) there; float64."""
        kernel: Array = self._finish([(value, None) for value in values], left, right)[0]
        return kernel

    def apply_tangent_head(
        self, values: Sequence[Array], tangents: Sequence[Array], left: Sequence[Array], right: Sequence[Array]
    ) -> Array:
        """The same for tangent kernels."""
        tangent: Array = self._finish(list(zip(values, tangents, strict=True)), left, right)[1]
        return tangent

    def _finish(
        self, values: Sequence[tuple[Any, Any]], left: Sequence[Array], right: Sequence[Array]
    ) -> tuple[Any, Any]:
        found = dict(zip(self.outputs, values, strict=True))
        squares = [self.squares(dict(zip(self.outputs, side, strict=True))) for side in (left, right)]
        for place in self.head:
            node = self.nodes[place]
            sources = [found[source] for source in node.sources]
            scale = None
            if isinstance(node, EmbedNode):
                left_norms, right_norms = (np.sqrt(side[node.sources[0]]) for side in squares)
                scale = left_norms[:, None] * right_norms
            found[place] = head_value(node, sources, scale)
        return found[len(self.nodes) - 1]

    def head_diagonal(self, squares: Sequence[Array]) -> Array:
        """k(x, x) from squared norms (N,) at the outputs: exact, because no cosine near 1 is rounded."""
        diagonal: Array = self.squares(dict(zip(self.outputs, squares, strict=True)))[-1]
        return diagonal

    def head_tangent_diagonal(self, squares: Sequence[Array], tangents: Sequence[Array]) -> Array:
        """The same for tangent kernels."""
        known = self.squares(dict(zip(self.outputs, squares, strict=True)))
        diagonal: Array = self.diagonal_values(known, tangents)[len(self.nodes) - 1][1]
        return diagonal

    def diagonal_values(self, squares: Sequence[Any], tangents: Sequence[Any]) -> dict[int, tuple[Any, Any]]:
        """Squared norms and tangents of images with themselves, at the outputs and after every node of the head."""
        found = {place: (squares[place], tangent) for place, tangent in zip(self.outputs, tangents, strict=True)}
        for place in self.head:
            node = self.nodes[place]
            scale = squares[node.sources[0]]
            value = head_value(node, [found[source] for source in node.sources], scale, same=True)
            found[place] = squares[place], value[1]
        return found


def head_value(node: Node, sources: Sequence[tuple[Any, Any]], scale: Any, same: Any = None) -> tuple[Any, Any]:
    """Inner products and tangents (None: not wanted) after a node that acts on each number alone; arrays of any shape.

    Those are all nodes of the head, and before it embeddings, sums and weights. `scale` holds the products of norms
    before an embedding; `same` is that of `Embed.on_tangents`.
    """
    (kernel, tangent), *_ = sources
    if isinstance(node, WindowNode):
        return kernel * node.centre, None if tangent is None else tangent * node.centre
    if isinstance(node, WeightsNode):
        return kernel, None if tangent is None else tangent + kernel
    if isinstance(node, SumNode):
        add = bags.Sum(node.weights).on_kernels
        return add([k for k, _ in sources]), None if tangent is None else add([t for _, t in sources])
    assert isinstance(node, EmbedNode), node
    embedding = node.layer.embedding()
    after = None if tangent is None else embedding.on_tangents(tangent, kernel, scale, same)
    return embedding.on_values(kernel, scale), after


def squares_after(node: Node, before: Sequence[Array]) -> Any:
    """Squared norms after a node that is not a pool, from those before it."""
    (first, *_) = before
    if isinstance(node, WindowNode):
        if first.ndim == 1:  # a single position
            return first * node.centre
        return window_sums(first, node.axes) * node.scale if node.scale != 1.0 else window_sums(first, node.axes)
    if isinstance(node, EmbedNode):
        return node.layer.squares(first)
    if isinstance(node, SumNode):
        return bags.Sum(node.weights).on_kernels(before)
    return first if isinstance(node, WeightsNode) else None


def window_sums(values: Any, axes: Axes) -> Any:
    """Zero-padded sums over windows along the last two axes; the positions nearest to the centre are added first.

    >>> centred = Windows(size=3, count=2, start=-1), Windows(size=3, count=3, start=-1)
    >>> window_sums(np.ones((1, 2, 3)), centred)
    array([[[4., 6., 4.],
            [4., 6., 4.]]])
    """
    for axis, windows in zip((-2, -1), axes, strict=True):
        if windows == Windows(1, values.shape[axis]):
            continue
        taps = sorted((windows.start + t * windows.dilation for t in range(windows.size)), key=lambda d: (abs(d), d))
        rows = np.moveaxis(values, axis, 0)
        shape = (*values.shape[:axis], windows.count, *values.shape[values.ndim + axis + 1 :])
        total = np.zeros_like(values, shape=shape)
        sums = np.moveaxis(total, axis, 0)
        for tap in taps:
            first, last = tap_range(windows, tap, len(rows))
            if first < last:
                begin = first * windows.stride + tap
                sums[first:last] += rows[begin : begin + (last - first - 1) * windows.stride + 1 : windows.stride]
        values = total
    return values


def tap_range(windows: Windows, tap: int, length: int) -> Pair:
    """The windows [first, last) that have position `tap` inside an axis; `tap` is relative to j * stride."""
    first = max(0, -(tap // windows.stride))
    return first, max(first, min(windows.count, (length - 1 - tap) // windows.stride + 1))


@functools.lru_cache(maxsize=256)
def compile_graph(architecture: Architecture, grid: Grid, channels: int, tangent: bool = False) -> Graph:
    """The nodes of an architecture for one input shape; raises where a layer does not fit."""
    architecture.grids(grid)  # raises an error that names a layer that does not fit
    builder = _Builder(grid, channels, tangent)
    value = builder.layers(architecture.layers, _Value(0, "features"), inside=False)
    if tangent:
        builder.weigh(_Value(value.node, "features"))  # the readout
    return Graph(architecture, grid, channels, tuple(builder.nodes), tuple(builder.ends), tangent)


@dataclass(frozen=True)
class _Value:
    """A node, and its meaning in a network: features, windows of features, or outputs of a layer of weights."""

    node: int
    kind: str  # "features", "windows" or "outputs"
    layers: frozenset[int] = frozenset()  # the `WeightsNode`s whose outputs it adds up


class _Builder:
    """Adds the nodes of one layer after the other."""

    def __init__(self, grid: Grid, channels: int, tangent: bool) -> None:
        self.rank, self.tangent = len(grid), tangent
        self.nodes: list[Node] = [InputNode(_height_and_width(grid), channels)]
        self.ends: list[tuple[int, Layer, int]] = []

    def layers(self, layers: Sequence[Layer], value: _Value, inside: bool, depth: int = 0) -> _Value:
        for layer in layers:
            place = len(self.ends)
            value = self.layer(layer, value, inside, depth)
            self.ends.insert(place, (depth, layer, value.node))
        return value

    def layer(self, layer: Layer, value: _Value, inside: bool, depth: int) -> _Value:
        grid = self.nodes[value.node].grid
        if isinstance(layer, Windowed):
            return self._window(layer, value, grid, inside)
        if isinstance(layer, Nonlinearity):
            check_dual(layer)
            return _Value(self._add(EmbedNode(grid, (self.weigh(value).node,), layer)), "features")
        if isinstance(layer, Normalize):
            return replace(value, node=self._add(EmbedNode(grid, (value.node,), layer)))
        assert isinstance(layer, Sum | Residual), layer
        return self._sum(layer.as_sum() if isinstance(layer, Residual) else layer, value, depth)

    def weigh(self, value: _Value) -> _Value:
        """Add a trained layer of weights, unless the value is already the output of one or T is not wanted."""
        if not self.tangent or value.kind == "outputs":
            return value
        node = self._add(WeightsNode(self.nodes[value.node].grid, (value.node,)))
        return _Value(node, "outputs", frozenset({node}))

    def _window(self, layer: Windowed, value: _Value, grid: Pair, inside: bool) -> _Value:
        axes = axes_of(layer, grid, self.rank)
        after = (axes[0].count, axes[1].count)
        assert isinstance(layer, Stack | Average), layer
        seen = _Value(value.node, "windows") if isinstance(layer, Stack) else value
        size = math.prod(windows.size for windows in axes)
        scale = 1.0 / size if inside and isinstance(layer, Stack) else 1.0
        changes = [_changes(windows, length) for windows, length in zip(axes, grid, strict=True)]
        if scale == 1.0 and not any(changes):
            return seen
        if isinstance(layer, Stack):
            return replace(seen, node=self._add(WindowNode(after, (value.node,), axes, scale)))
        return replace(seen, node=self._add(PoolNode(after, (value.node,), axes)))

    def _sum(self, layer: Sum, value: _Value, depth: int) -> _Value:
        """The sum of branches, which for a network is one of two things.

        If every branch ends in layers of weights of its own, their outputs add up: the sum needs no further weights.
        Otherwise, the branches are features side by side, to which the next layer of weights applies.
        """
        entrance = self.weigh(value) if value.kind == "windows" else value
        ends = []
        for branch in layer.branches:
            end = self.layers(branch, entrance, True, depth + 1)
            ends.append(self.weigh(end) if end.kind == "windows" else end)
        weights = frozenset[int]().union(*(end.layers for end in ends))
        disjoint = len(weights) == sum(len(end.layers) for end in ends)
        kind = "outputs" if disjoint and all(end.kind == "outputs" for end in ends) else "features"
        node = SumNode(self.nodes[ends[0].node].grid, tuple(end.node for end in ends), layer.weights)
        return _Value(self._add(node), kind, weights if kind == "outputs" else frozenset())

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1


def axes_of(layer: Windowed, grid: Pair, rank: int) -> Axes:
    """The windows of a layer along height and width; axes that the input does not have are of length one."""
    points = (Windows(1, 1),) * (2 - rank)
    rows, columns = (*points, *(layer.windows(length) for length in grid[2 - rank :]))
    return rows, columns


def _changes(windows: Windows, length: int) -> bool:
    """Whether windows change their input. On an axis of length one, the padding around the position is ignored."""
    if length == 1 and windows.count == 1:
        return windows.positions(0).count(0) != 1
    return windows != Windows(1, length)


def _source_offsets(node: Node, axis: int, needed: Iterable[int]) -> set[int]:
    """The offsets at which a node reads its source, to have its own value at the `needed` ones."""
    if isinstance(node, WindowNode):
        return {u * node.axes[axis].stride for u in needed}
    if isinstance(node, PoolNode):
        windows = node.axes[axis]
        apart = range(1 - windows.size, windows.size)
        return {u * windows.stride + d * windows.dilation for u in needed for d in apart}
    return set(needed)


def _height_and_width(grid: Grid) -> Pair:
    height, width = (1,) * (2 - len(grid)) + grid
    return height, width
