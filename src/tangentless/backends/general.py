"""The general path: any graph, kernel or tangent kernel, in float64, by NumPy here and by kernels of its own on GPUs.

Fix the offset u between rows of the two images. Rows of all nodes then move together: a value is an array (pairs of
images, rows, pairs of columns), and nodes are interpreted one by one. Pairs of columns are those at needed offsets,
listed once a node; a window or a pool reads its source's list through index tables, so any stride, dilation and size
is one gather. Only pools mix offsets: each one collects its values for all needed u before what follows it runs.

Sums are made in a fixed order from gathers and element-wise operations alone, so bits do not depend on batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..chunks import spans
from ..errors import BackendError
from ..graph import EmbedNode, Graph, InputNode, Pair, PoolNode, SumNode, WeightsNode, WindowNode, head_value, tap_range
from ..layers import Windows, format_grid
from . import Advance
from .workers import run_parallel

Array = NDArray[np.float64]
Value = tuple[Any, Any]  # inner products and tangents; None where these are zero or not wanted
_MOST_BYTES = 1 << 33  # of one pair of images
_PLANE_BYTES = 1 << 20  # of one value: within a cache
_PLANE_BYTES_OF_GPU = 1 << 28  # enough to fill it


@dataclass(frozen=True, eq=False)
class GeneralImages:
    """Images, squared norms at the input and after every pool, and k(x, x)."""

    graph: Graph
    images: Any
    squares: dict[int, Any]  # (N, H, W) by node
    diagonal: Any

    @property
    def tile(self) -> int:
        return 256

    def __len__(self) -> int:
        return len(self.diagonal)

    def __getitem__(self, part: Any) -> GeneralImages:
        squares = {place: one[part] for place, one in self.squares.items()}
        return GeneralImages(self.graph, self.images[part], squares, self.diagonal[part])


class Run(Protocol):
    """One batch of pairs through a graph. Without right images, each left one with itself; norms are found then."""

    known: dict[int, Any]  # squared norms of the left images at the input and after pools

    def outputs(self) -> list[Value]:
        """The values at the outputs, one number a pair of images."""
        ...


Start = Callable[[Graph, Any, Any, Any, Any], Run]  # graph, left and right images, squared norms of both


def prepare_general(
    graph: Graph, images: Any, n_jobs: int = 1, batch: int | None = None, start: Start | None = None
) -> GeneralImages:
    """Squared norms and the diagonal, from each image's kernel with itself; at most `batch` of them at a time."""
    begin = _Run if start is None else start
    parts: dict[int, tuple[dict[int, Any], Any]] = {}

    def work(part: slice, _: None) -> int:
        run = begin(graph, _pixels(graph, images[part]), None, None, None)
        values = run.outputs()
        squares = [run.known[place].reshape(-1) for place in graph.outputs]
        if graph.tangent:
            diagonal = graph.head_tangent_diagonal(squares, [_zero_if_none(*value) for value in values])
        else:
            diagonal = graph.head_diagonal(squares)
        parts[part.start] = run.known, diagonal
        return 0

    run_parallel(spans(len(images), _batch(graph, images, batch)), work, lambda: None, n_jobs, None)
    ordered = [parts[first] for first in sorted(parts)]
    squares = {place: np.concatenate([known[place] for known, _ in ordered]) for place in ordered[0][0]}
    return GeneralImages(graph, images, squares, np.concatenate([diagonal for _, diagonal in ordered]))


def general_block(
    left: GeneralImages,
    right: GeneralImages,
    *,
    upper: bool,
    advance: Advance | None,
    n_jobs: int = 1,
    batch: int | None = None,
    start: Start | None = None,
) -> Any:
    """Entries between two prepared sets; at most `batch` pairs at a time."""
    graph, begin = left.graph, _Run if start is None else start
    count = len(graph.outputs)
    if graph.nodes[0].grid == (1, 1):
        flat = [_pixels(graph, side.images).reshape(len(side), -1) for side in (left, right)]
        values = (flat[0] @ flat[1].T)[None]
        tangents = np.zeros_like(values)
        if advance is not None:
            advance(len(left) * (len(left) + 1) // 2 if upper else values.size)
    else:
        values, tangents = np.zeros_like(left.diagonal, shape=(2, count, len(left), len(right)))
        pairs = np.triu_indices(len(left)) if upper else np.indices((len(left), len(right))).reshape(2, -1)

        def work(part: slice, _: None) -> int:
            i, j = pairs[0][part], pairs[1][part]
            one, other = left[i], right[j]
            run = begin(graph, _pixels(graph, one.images), _pixels(graph, other.images), one.squares, other.squares)
            for place, value in enumerate(run.outputs()):
                values[place, i, j] = value[0]
                tangents[place, i, j] = _zero_if_none(*value)
            return len(i)

        run_parallel(spans(len(pairs[0]), _batch(graph, left.images, batch)), work, lambda: None, n_jobs, advance)
    ends = [[side.squares[place].reshape(-1) for place in graph.outputs] for side in (left, right)]
    if graph.tangent:
        return graph.apply_tangent_head(list(values), list(tangents), *ends)
    return graph.apply_head(list(values), *ends)


class _Run:
    """One batch of pairs through the graph. Without right images, each left one with itself; norms are found then."""

    def __init__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
        self.graph, self.tables = graph, _tables(graph)
        self.itself = right is None
        self.left, self.right = left, left if right is None else right
        self.known: dict[int, Any] = {0: pixel_squares(left)} if self.itself else left_squares
        self._right_known = self.known if self.itself else right_squares
        self._pooled: dict[int, dict[int, Value]] = {}
        self._columns: dict[tuple[int, int], Any] = {}
        self._squares: dict[tuple[int, int], list[Any]] = {}

    def outputs(self) -> list[Value]:
        """The values at the outputs, one number a pair of images."""
        for place in self.graph.body:
            if isinstance(self.graph.nodes[place], PoolNode):
                self._pool(place)
                self._columns.clear()
        found = []
        for place in self.graph.outputs:
            value, tangent = self._value(place, 0, {})
            if self.itself and place not in self.known:
                self.known[place] = value[:, :, :1]
            found.append((value[:, 0, 0], None if tangent is None else tangent[:, 0, 0]))
        return found

    def _pool(self, place: int) -> None:
        """Collect a pool's values at all needed offsets of rows, from those of its source."""
        node = self.graph.nodes[place]
        assert isinstance(node, PoolNode)
        (source,), rows = node.sources, node.axes[0]
        found: dict[int, Value] = {}
        targets = self.graph.offsets[place][0]
        for u in sorted(self.graph.offsets[source][0]):
            reached = [U for U in targets if abs(u - U * rows.stride) < rows.size]
            if not reached:
                continue
            value = self._gather(place, self._value(source, u, {}))
            for U in reached:
                kernel, tangent = found.get(U, (None, None))
                kernel = _add_rows(value[0], kernel, node, u, U)
                found[U] = kernel, None if value[1] is None else _add_rows(value[1], tangent, node, u, U)
        self._pooled[place] = {U: _each(lambda v: v * node.scale, value) for U, value in found.items()}
        if self.itself:  # the diagonal of columns at u = 0
            values = self._pooled[place][0][0]
            self.known[place] = values[:, :, self.tables[place].own]

    def _value(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> Value:
        """A node's value at one offset of rows."""
        if place in self._pooled:
            return self._pooled[place][u]
        if (place, u) not in memo:
            memo[place, u] = self._compute(place, u, memo)
        return memo[place, u]

    def _compute(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> Value:
        node = self.graph.nodes[place]
        if isinstance(node, InputNode):
            return self._products(u), None
        if isinstance(node, WindowNode):
            source = self._value(node.sources[0], u * node.axes[0].stride, memo)
            gathered = self._gather(place, source)
            return _each(lambda v: _sum_rows(v, node.axes[0], u) * node.scale, gathered)
        sources = [
            _each(functools.partial(_take, columns=columns), self._value(source, u, memo))
            for source, columns in zip(node.sources, self.tables[place].beside, strict=True)
        ]
        if isinstance(node, WeightsNode):
            kernel, tangent = sources[0]
            return kernel, kernel if tangent is None else tangent + kernel
        if isinstance(node, SumNode) and self.graph.tangent:
            sources = [(kernel, _zero_if_none(kernel, tangent)) for kernel, tangent in sources]
        if not isinstance(node, EmbedNode):
            return head_value(node, sources, None)
        (kernel, tangent), before = sources[0], node.sources[0]
        height, columns = node.grid[0], self.tables[place].beside[0]
        left, right = (_take(self._norms(before, side), columns) for side in range(2))
        scale = left[:, _rows(height, u)] * right[:, _rows(height, -u)]
        same = self.tables[place].same if self.itself and u == 0 else None
        return head_value(node, [(kernel, tangent)], scale, same)

    def _gather(self, place: int, value: Value) -> Value:
        """Sums over a node's windows along pairs of columns."""
        return _each(self.tables[place].sum, value)

    def _products(self, u: int) -> Any:
        """Inner products of pixels."""
        height = self.graph.nodes[0].grid[0]
        total = None
        for channel in range(self.graph.channels):
            left = self._side(0, channel, 0)[:, _rows(height, u)]
            product = left * self._side(0, channel, 1)[:, _rows(height, -u)]
            total = product if total is None else total + product
        return total

    def _norms(self, place: int, side: int) -> Any:
        """Norms at a node, for its list of pairs of columns."""
        if (place, side) not in self._columns:
            known = self._right_known if side else self.known
            if (side, len(known)) not in self._squares:
                self._squares[side, len(known)] = self.graph.squares(known)
            squares = self._squares[side, len(known)][place]
            self._columns[place, side] = self.tables[place].spread(np.sqrt(squares), side)
        return self._columns[place, side]

    def _side(self, place: int, channel: int, side: int) -> Any:
        key = -1 - channel, side
        if key not in self._columns:
            self._columns[key] = self.tables[place].spread((self.right if side else self.left)[..., channel], side)
        return self._columns[key]


@dataclass(frozen=True, eq=False)
class _Table:
    """A node's pairs of columns (k, n), a void one last, which is always zero; where each window reads its source's."""

    left: Any
    right: Any
    taps: tuple[Any, ...]
    beside: tuple[Any, ...]  # where the same pairs stand among those of each source; None: in the same places
    same: Any  # which pairs are a column with itself
    own: Any  # where these stand

    def spread(self, values: Any, side: int) -> Any:
        """(N, H, W) at one side of every pair."""
        columns = self.right if side else self.left
        spread = np.zeros_like(values, dtype=np.float64, shape=(*values.shape[:-1], len(columns) + 1))
        spread[..., :-1] = values[..., columns]
        return spread

    def sum(self, values: Any) -> Any:
        """Of a source's values, over the window or pool at every pair."""
        if len(self.left) == 1:  # everything into one pair: by halves, which is few operations on long arrays
            total = _fold(values[..., self.taps[0]])
        else:
            total = values[..., self.taps[0]]
            for tap in self.taps[1:]:
                total = total + values[..., tap]
        padded = np.zeros_like(values, shape=(*total.shape[:-1], total.shape[-1] + 1))
        padded[..., :-1] = total
        return padded


@functools.lru_cache(maxsize=64)
def _tables(graph: Graph) -> tuple[_Table, ...]:
    """Of every node."""
    tables: list[_Table] = []
    index: list[dict[Pair, int]] = []
    for place, node in enumerate(graph.nodes):
        pairs = node_pairs(graph, place)
        sources = [index[source] for source in node.sources]
        taps: list[Any] = []
        beside: list[Any] = [None] * len(sources)
        if isinstance(node, WindowNode | PoolNode):
            table = window_taps(node, pairs, sources[0])
            table = np.where(table < 0, len(sources[0]), table)
            taps = [table[:, 0]] if len(pairs) == 1 else list(table)
        else:
            other = [list(one) != pairs for one in sources]
            beside = [np.append(places(pairs, s), len(s)) if o else None for s, o in zip(sources, other, strict=True)]
        left, right = (np.array([pair[side] for pair in pairs], dtype=np.intp) for side in range(2))
        own = np.flatnonzero(left == right)  # of offset zero, so in order
        same = np.append(left == right, False)
        tables.append(_Table(left, right, tuple(taps), tuple(beside), same, own))
        index.append(index_of(pairs))
    return tuple(tables)


def node_pairs(graph: Graph, place: int) -> list[Pair]:
    """The pairs of columns at which a node's value is needed, offset by offset."""
    width = graph.nodes[place].grid[1]
    offsets = sorted(graph.offsets[place][1])
    return [(k, k + v) for v in offsets for k in range(max(0, -v), min(width, width - v))]


def index_of(pairs: Sequence[Pair]) -> dict[Pair, int]:
    """Where each pair stands in a list."""
    return {pair: place for place, pair in enumerate(pairs)}


def places(pairs: Sequence[Pair], source: dict[Pair, int]) -> NDArray[np.intp]:
    """Where pairs stand in a longer list."""
    return np.array([source[pair] for pair in pairs], dtype=np.intp)


def window_taps(node: WindowNode | PoolNode, pairs: Sequence[Pair], source: dict[Pair, int]) -> NDArray[np.intp]:
    """For every pair of positions in a window, where each pair of columns reads it in the source's list, or -1."""
    windows = node.axes[1]
    sizes = range(windows.size)
    steps = [(a, b) for a in sizes for b in sizes] if isinstance(node, PoolNode) else [(a, a) for a in sizes]
    reads = [[(windows.positions(k)[a], windows.positions(n)[b]) for k, n in pairs] for a, b in steps]
    return np.array([[source.get(read, -1) for read in some] for some in reads], dtype=np.intp)


def _take(values: Any, columns: Any) -> Any:
    return values if columns is None else values[..., columns]


def _fold(values: Any) -> Any:
    """The sum along the last axis, in an order that depends on its length alone."""
    while (length := values.shape[-1]) > 1:
        half = length // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        if length % 2:
            folded[..., :1] += values[..., -1:]
        values = folded
    return values


def _sum_rows(values: Any, rows: Windows, target: int) -> Any:
    """Window sums along rows, from the source's rows at the offset `stride * target` to those at the target."""
    height = values.shape[1]
    count = rows.count - abs(target)
    if rows == Windows(1, rows.count):
        return values
    total = np.zeros_like(values, shape=(len(values), count, values.shape[2]))
    local = Windows(rows.size, count, rows.stride, rows.dilation, rows.start)
    for tap in range(rows.size):
        shift = rows.start + tap * rows.dilation
        first, last = tap_range(local, shift, height)
        if first < last:
            begin = first * rows.stride + shift
            total[:, first:last] += values[:, begin : begin + (last - first - 1) * rows.stride + 1 : rows.stride]
    return total


def _add_rows(values: Any, total: Any, node: PoolNode, u: int, target: int) -> Any:
    """Add rows at offset u to those that a pool has at the target offset."""
    rows, (height, _) = node.axes[0], node.grid
    if total is None:
        total = np.zeros_like(values, shape=(len(values), height - abs(target), values.shape[2]))
    first, start = max(0, -target), max(0, -u)
    for a in range(rows.size):
        if 0 <= u + a - target * rows.stride < rows.size:
            begin = first * rows.stride + a - start
            total += values[:, begin : begin + (total.shape[1] - 1) * rows.stride + 1 : rows.stride]
    return total


def _each(function: Callable[[Any], Any], value: Value) -> Value:
    """A linear function of inner products, and of tangents where there are some."""
    return function(value[0]), None if value[1] is None else function(value[1])


def _zero_if_none(kernel: Any, tangent: Any) -> Any:
    return np.zeros_like(kernel) if tangent is None else tangent


def _rows(height: int, u: int) -> slice:
    """Rows of the left image that have a partner at offset u; with -u, the partners."""
    return slice(max(0, -u), height - max(0, u))


def _pixels(graph: Graph, images: Any) -> Any:
    """Images as (N, H, W, C), whatever their rank, in float64."""
    return images.astype(np.float64).reshape(len(images), *graph.nodes[0].grid, graph.channels)


def pixel_squares(pixels: Any) -> Any:
    """Squared norms of pixels, channel by channel: a reduction may add in another order for another batch."""
    return functools.reduce(lambda a, b: a + b, (pixels[..., c] ** 2 for c in range(pixels.shape[-1])))


def pair_bytes(graph: Graph) -> int:
    """What one pair of images takes while it is computed: a few values, and all that pools have collected."""
    pools = [place for place in graph.body if isinstance(graph.nodes[place], PoolNode)]
    kept = sum(_columns(graph, place) * _pairs_of_rows(graph, place) for place in pools)
    return 8 * (1 + graph.tangent) * (4 * _largest(graph) + kept)


def _batch(graph: Graph, images: Any, most: int | None) -> int:
    """Pairs at a time: one value of the largest node takes so many bytes."""
    needed = pair_bytes(graph)
    if needed > _MOST_BYTES:
        raise BackendError(
            f"one pair of {format_grid(graph.nodes[0].grid)} images takes {needed / 1e9:.0f} GB on the general path, "
            f"more than {_MOST_BYTES / 1e9:.0f} GB; pool earlier or further, or use strides or patches"
        )
    plane = _PLANE_BYTES if isinstance(images, np.ndarray) else _PLANE_BYTES_OF_GPU
    fitting = max(1, plane // (8 * _largest(graph)))
    return fitting if most is None else min(fitting, most)


def _largest(graph: Graph) -> int:
    """Numbers of a value at one offset, at the largest node."""
    return max(graph.nodes[place].grid[0] * _columns(graph, place) for place in graph.body)


def _columns(graph: Graph, place: int) -> int:
    return 1 + sum(graph.nodes[place].grid[1] - abs(v) for v in graph.offsets[place][1])


def _pairs_of_rows(graph: Graph, place: int) -> int:
    return sum(graph.nodes[place].grid[0] - abs(u) for u in graph.offsets[place][0])
