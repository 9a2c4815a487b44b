"""The general path: any graph, kernel or tangent kernel, in float64, by NumPy here and by its own kernels on GPUs.

Nodes are interpreted one by one, for one offset u between rows of the two images at a time. The value of a node at
offset u is an array (pairs of images, rows, pairs of columns). Its last axis lists the pairs of columns whose offset is
needed, the same for all u. A window or a pool reads its source's list through index tables, so any stride, dilation and
size is a few gathers. Only pools mix offsets u: a pool is computed at all needed u before the nodes after it.

All sums consist of gathers and element-wise additions in a fixed order, so bits do not depend on batches.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..chunks import spans
from ..errors import BackendError
from ..graph import EmbedNode, Graph, InputNode, Pair, PoolNode, WindowNode, head_value, window_sums
from ..layers import Windows, format_grid
from . import Advance
from .workers import run_parallel

Array = NDArray[np.float64]
Value = tuple[Any, Any]  # inner products, and tangents or None where these are not wanted
_MOST_BYTES = 1 << 33  # of one pair of images; larger ones are refused
_PLANE_BYTES = 1 << 20  # of one value of a batch: it stays in a cache
_PLANE_BYTES_OF_GPU = 1 << 28  # the same on a GPU: enough work to fill it


@dataclass(frozen=True, eq=False)
class GeneralImages:
    """Images, squared norms at the input and after every pool, and k(x, x)."""

    graph: Graph
    images: Any
    squares: dict[int, Any]  # (N, H, W) by node
    diagonal: Any
    tile: ClassVar[int] = 256

    def __len__(self) -> int:
        return len(self.diagonal)

    def __getitem__(self, part: Any) -> GeneralImages:
        squares = {place: one[part] for place, one in self.squares.items()}
        return GeneralImages(self.graph, self.images[part], squares, self.diagonal[part])


class Run(ABC):
    """One batch of pairs through a graph.

    With `right` None, each left image is paired with itself. Its squared norms are then computed on the way, into
    `known`: (N, H, W), by node, at the input and after every pool.
    """

    def __init__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
        self.graph, self.itself = graph, right is None
        self.left, self.right = left, left if right is None else right
        self.known: dict[int, Any] = {0: pixel_squares(left)} if self.itself else left_squares
        self._right_known = self.known if self.itself else right_squares
        self._pooled: dict[int, dict[int, Value]] = {}
        self._norms: dict[tuple[int, int], Any] = {}
        self._squares: dict[int, list[Any]] = {}

    def outputs(self) -> list[Value]:
        """The values at the outputs, (pairs,) each."""
        for place in self.graph.body:
            if isinstance(self.graph.nodes[place], PoolNode):
                self._pool(place)
                self._norms.clear()
                if self.itself:
                    self._squares.clear()
        found = []
        for place in self.graph.outputs:
            value = self.value(place, 0, {})
            if self.itself:
                self.known.setdefault(place, value[0][:, :, :1])
            found.append(each(lambda v: v[:, 0, 0], value))
        return found

    def value(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> Value:
        """A node's value at offset u of rows; `memo` keeps values that several nodes read."""
        if place in self._pooled:
            return self._pooled[place][u]
        if (place, u) not in memo:
            memo[place, u] = self.compute(place, u, memo)
        return memo[place, u]

    def norms(self, place: int, side: int) -> Any:
        """Norms at a node of the left (0) or right (1) images, in the layout of `laid_out`."""
        if (place, side) not in self._norms:
            if side not in self._squares:
                self._squares[side] = self.graph.squares(self._right_known if side else self.known)
            self._norms[place, side] = self.laid_out(place, side, np.sqrt(self._squares[side][place]))
        return self._norms[place, side]

    def _pool(self, place: int) -> None:
        """Compute a pool's values at all needed offsets of rows, adding its source's offsets in ascending order."""
        node = self.graph.nodes[place]
        assert isinstance(node, PoolNode)
        (source,) = node.sources
        found: dict[int, Value] = {}
        for u in sorted(self.graph.offsets[source][0]):
            targets = [U for U in self.graph.offsets[place][0] if reads_rows(node, u, U)]
            if targets:
                self.collect(place, node, self.value(source, u, {}), u, targets, found)
        self._pooled[place] = found
        if self.itself:  # the diagonal of columns at u = 0
            self.known[place] = found[0][0][..., own_columns(self.graph, place)]

    def with_zero_tangent(self, kernel: Any) -> Value:
        """A value, or a cotangent, whose tangent part is zero, or None for a graph without tangents."""
        return kernel, np.zeros_like(kernel) if self.graph.tangent else None

    @abstractmethod
    def compute(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> Value:
        """The value of a node other than a pool, from those it reads."""

    @abstractmethod
    def collect(
        self, place: int, node: PoolNode, value: Value, u: int, targets: list[int], found: dict[int, Value]
    ) -> None:
        """Add the source's value at offset u to those of the pool at the target offsets, which `found` holds."""

    @abstractmethod
    def laid_out(self, place: int, side: int, norms: Any) -> Any:
        """Norms (N, H, W) in the layout that `compute` reads."""


Start = Callable[[Graph, Any, Any, Any, Any], Run]  # graph, left and right images, squared norms of both


def prepare_general(
    graph: Graph, images: Any, n_jobs: int = 1, batch: int | None = None, start: Start | None = None
) -> GeneralImages:
    """Squared norms and k(x, x), from each image's kernel with itself; at most `batch` images at a time."""
    begin = NumpyRun if start is None else start
    parts: dict[int, tuple[dict[int, Any], Any]] = {}

    def work(part: slice, _: None) -> int:
        run = begin(graph, pixels_of(graph, images[part]), None, None, None)
        values = run.outputs()
        squares = [run.known[place].reshape(-1) for place in graph.outputs]
        if graph.tangent:
            diagonal = graph.head_tangent_diagonal(squares, [tangent for _, tangent in values])
        else:
            diagonal = graph.head_diagonal(squares)
        parts[part.start] = run.known, diagonal
        return 0

    run_parallel(spans(len(images), batch_size(graph, images, batch)), work, lambda: None, n_jobs, None)
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
    graph, begin = left.graph, NumpyRun if start is None else start
    count = len(graph.outputs)
    if graph.nodes[0].grid == (1, 1):
        flat = [pixels_of(graph, side.images).reshape(len(side), -1) for side in (left, right)]
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
            run = begin(graph, pixels_of(graph, one.images), pixels_of(graph, other.images), one.squares, other.squares)
            for place, (kernel, tangent) in enumerate(run.outputs()):
                values[place, i, j] = kernel
                if tangent is not None:
                    tangents[place, i, j] = tangent
            return len(i)

        run_parallel(spans(len(pairs[0]), batch_size(graph, left.images, batch)), work, lambda: None, n_jobs, advance)
    ends = [[side.squares[place].reshape(-1) for place in graph.outputs] for side in (left, right)]
    if graph.tangent:
        return graph.apply_tangent_head(list(values), list(tangents), *ends)
    return graph.apply_head(list(values), *ends)


class NumpyRun(Run):
    """A run by NumPy: every node is an operation on whole arrays."""

    def __init__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
        super().__init__(graph, left, right, left_squares, right_squares)
        self.tables = tables_of(graph)
        self._pixels: dict[tuple[int, int], Any] = {}

    def collect(
        self, place: int, node: PoolNode, value: Value, u: int, targets: list[int], found: dict[int, Value]
    ) -> None:
        kernel, tangent = each(lambda v: self.tables[place].sum(v) * node.scale, value)
        for U in targets:
            before = found.get(U, (None, None))
            after = None if tangent is None else _add_rows(tangent, before[1], node, u, U)
            found[U] = _add_rows(kernel, before[0], node, u, U), after

    def compute(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> Value:
        node, table = self.graph.nodes[place], self.tables[place]
        if isinstance(node, InputNode):
            return self.with_zero_tangent(self._products(u))
        if isinstance(node, WindowNode):
            source = self.value(node.sources[0], u * node.axes[0].stride, memo)
            rows = replace(node.axes[0], count=node.axes[0].count - abs(u))
            axes = rows, Windows(1, len(table.left) + 1)  # along columns, the table adds up
            return each(lambda v: window_sums(table.sum(v), axes) * node.scale, source)
        sources = self.sources(place, u, memo)
        if not isinstance(node, EmbedNode):
            return head_value(node, sources, None)
        scale = self.scale(node, u, table.beside[0])
        return head_value(node, sources, scale, table.same if self.itself and u == 0 else None)

    def sources(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> list[Value]:
        """The values that a sum, an embedding or a layer of weights reads, at its own pairs of columns."""
        return [
            each(functools.partial(take_columns, columns=columns), self.value(source, u, memo))
            for source, columns in zip(self.graph.nodes[place].sources, self.tables[place].beside, strict=True)
        ]

    def scale(self, node: EmbedNode, u: int, columns: Any) -> Any:
        """Products A A' of the norms before an embedding, (pairs, rows, pairs of columns)."""
        left, right = (take_columns(self.norms(node.sources[0], side), columns) for side in range(2))
        return left[:, rows_at(node.grid[0], u)] * right[:, rows_at(node.grid[0], -u)]

    def laid_out(self, place: int, side: int, norms: Any) -> Any:
        return self.tables[place].spread(norms, side)

    def _products(self, u: int) -> Any:
        """Inner products of pixels at offset u of rows."""
        height = self.graph.nodes[0].grid[0]
        if self.itself and self.graph.nodes[0].grid == (1, 1):  # vectors have too many channels for the loop below
            return self.known[0]
        total = None
        for channel in range(self.graph.channels):
            left = self._side(channel, 0)[:, rows_at(height, u)]
            product = left * self._side(channel, 1)[:, rows_at(height, -u)]
            total = product if total is None else total + product
        return total

    def _side(self, channel: int, side: int) -> Any:
        """One channel of the left (0) or right (1) images, (N, H, pairs of columns)."""
        if (channel, side) not in self._pixels:
            images = self.right if side else self.left
            self._pixels[channel, side] = self.tables[0].spread(images[..., channel], side)
        return self._pixels[channel, side]


@dataclass(frozen=True, eq=False)
class _Table:
    """A node's pairs of columns (k, n), and where they are in the lists of its sources.

    One more column, the last of every value, is always zero: it stands for pairs outside the grid.
    """

    left: Any  # k of every pair
    right: Any  # n of every pair
    taps: tuple[Any, ...]  # of windows and pools: index arrays, whose gathers from the source are added up
    beside: tuple[Any, ...]  # of other nodes: for each source, the indices of the same pairs; None: the same list
    same: Any  # which pairs are a column with itself

    def spread(self, values: Any, side: int) -> Any:
        """Values (N, H, W) of the left (0) or right (1) images at every pair of columns."""
        columns = self.right if side else self.left
        spread = np.zeros_like(values, dtype=np.float64, shape=(*values.shape[:-1], len(columns) + 1))
        spread[..., :-1] = values[..., columns]
        return spread

    def sum(self, values: Any) -> Any:
        """Sums of a source's values over the window or pool at every pair of columns."""
        if len(self.left) == 1:  # one pair adds up everything: by halves, which is few operations on long arrays
            total = _fold(values[..., self.taps[0]])
        else:
            total = values[..., self.taps[0]]
            for tap in self.taps[1:]:
                total = total + values[..., tap]
        padded = np.zeros_like(values, shape=(*total.shape[:-1], total.shape[-1] + 1))
        padded[..., :-1] = total
        return padded


@functools.lru_cache(maxsize=64)
def tables_of(graph: Graph) -> tuple[_Table, ...]:
    """The tables of all nodes."""
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
        tables.append(_Table(left, right, tuple(taps), tuple(beside), np.append(left == right, False)))
        index.append(index_of(pairs))
    return tuple(tables)


def node_pairs(graph: Graph, place: int) -> list[Pair]:
    """The pairs of columns (k, k + v) at which a node's value is needed, offset v by offset."""
    width = graph.nodes[place].grid[1]
    offsets = sorted(graph.offsets[place][1])
    return [(k, k + v) for v in offsets for k in range(max(0, -v), min(width, width - v))]


def own_columns(graph: Graph, place: int) -> list[int]:
    """The indices of the pairs (k, k), in order of k, in a node's list of pairs of columns."""
    return [i for i, (k, n) in enumerate(node_pairs(graph, place)) if k == n]


def index_of(pairs: Sequence[Pair]) -> dict[Pair, int]:
    """The index of each pair in a list."""
    return {pair: place for place, pair in enumerate(pairs)}


def places(pairs: Sequence[Pair], source: dict[Pair, int]) -> NDArray[np.intp]:
    """The indices of some pairs in a list, given by its `index_of`."""
    return np.array([source[pair] for pair in pairs], dtype=np.intp)


def window_taps(node: WindowNode | PoolNode, pairs: Sequence[Pair], source: dict[Pair, int]) -> NDArray[np.intp]:
    """Indices (taps, pairs) in the source's list, -1 for pairs that are not there.

    A tap of a window is one of its positions, the same in both images; a tap of a pool is a pair of positions.
    """
    windows = node.axes[1]
    sizes = range(windows.size)
    steps = [(a, b) for a in sizes for b in sizes] if isinstance(node, PoolNode) else [(a, a) for a in sizes]
    reads = [[(windows.positions(k)[a], windows.positions(n)[b]) for k, n in pairs] for a, b in steps]
    return np.array([[source.get(read, -1) for read in some] for some in reads], dtype=np.intp)


def readers_of(taps: Iterable[Any], count: int, none: int) -> NDArray[np.intp]:
    """For each of `count` places, its readers in order, then `none`: (depth, count).

    `taps` (taps, readers) has the places that each reader reads; those outside [0, count) are not there.

    >>> readers_of(np.array([[0, 1], [1, -1]]), 3, -1)
    array([[ 0,  1, -1],
           [-1,  0, -1]])
    """
    lists: list[list[int]] = [[] for _ in range(count)]
    for tap in taps:
        for reader, read in enumerate(tap):
            if 0 <= read < count:
                lists[read].append(reader)
    depth = max(1, *map(len, lists))
    return np.array([some + [none] * (depth - len(some)) for some in lists], dtype=np.intp).T.copy()


def take_columns(values: Any, columns: Any) -> Any:
    """Values at some pairs of columns; None: at all of them."""
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


def _add_rows(values: Any, total: Any, node: PoolNode, u: int, target: int) -> Any:
    """Add a source's rows at offset u to those of its pool at the target offset; `total` None: these are zero."""
    if total is None:
        total = np.zeros_like(values, shape=(len(values), node.grid[0] - abs(target), values.shape[2]))
    for part in pooled_rows(node, u, target):
        total += values[:, part]
    return total


def pooled_rows(node: PoolNode, u: int, target: int) -> Iterator[slice]:
    """Rows of a pool's source at offset u that belong to the pool's rows at the target offset: a slice per addition."""
    rows, count = node.axes[0], node.grid[0] - abs(target)
    start, first, last = pool_rows(node, u, target)
    for begin in range(start + first * rows.dilation, start + last * rows.dilation, rows.dilation):
        yield slice(begin, begin + (count - 1) * rows.stride + 1, rows.stride)


def reads_rows(node: PoolNode, u: int, target: int) -> bool:
    """Whether a pool reads rows of its source at offset u for a target offset."""
    _, first, last = pool_rows(node, u, target)
    return first < last


def pool_rows(node: PoolNode, u: int, target: int) -> tuple[int, int, int]:
    """Which rows of its source at offset u a pool reads for a target offset: (start, first, last).

    Row r of the pool reads the rows start + r stride + a dilation, for a in [first, last).
    """
    rows = node.axes[0]
    apart, rest = divmod(u - target * rows.stride, rows.dilation)
    first, last = max(0, -apart), min(rows.size, rows.size - apart)
    return rows.positions(max(0, -target))[0] - max(0, -u), first, first if rest else last


def each(function: Callable[[Any], Any], value: Value) -> Value:
    """Apply a linear function to inner products, and to tangents where there are some."""
    return function(value[0]), None if value[1] is None else function(value[1])


def rows_at(height: int, u: int) -> slice:
    """The rows of the left image that have a partner at offset u; with -u, these partners in the right image."""
    return slice(max(0, -u), height - max(0, u))


def pixels_of(graph: Graph, images: Any) -> Any:
    """Images as (N, H, W, C), whatever their rank, in float64."""
    return images.astype(np.float64).reshape(len(images), *graph.nodes[0].grid, graph.channels)


def pixel_squares(pixels: Any) -> Any:
    """Squared norms of pixels, added channel by channel: np.sum may choose another order for another batch."""
    return functools.reduce(lambda a, b: a + b, (pixels[..., c] ** 2 for c in range(pixels.shape[-1])))


def pair_bytes(graph: Graph) -> int:
    """Bytes of one pair of images while it is computed: a few values, and those of all pools."""
    pools = [place for place in graph.body if isinstance(graph.nodes[place], PoolNode)]
    return 8 * (1 + graph.tangent) * (4 * _largest(graph) + sum(map(graph.pairs, pools)))


def batch_size(graph: Graph, images: Any, most: int | None) -> int:
    """Pairs at a time: as many as keep a value of the largest node within `_PLANE_BYTES`, and at most `most`."""
    needed = pair_bytes(graph)
    if needed > _MOST_BYTES:
        raise BackendError(
            f"one pair of {format_grid(graph.nodes[0].grid)} images takes {needed / 1e9:.0f} GB on the general path, "
            f"more than {_MOST_BYTES / 1e9:.0f} GB; pool earlier, or over larger windows, or use strides or patches"
        )
    plane = _PLANE_BYTES if isinstance(images, np.ndarray) else _PLANE_BYTES_OF_GPU
    fitting = max(1, plane // (8 * _largest(graph)))
    return fitting if most is None else min(fitting, most)


def _largest(graph: Graph) -> int:
    """Numbers in a value of the largest node, for one pair of images at one offset."""
    return max(graph.nodes[place].grid[0] * (len(node_pairs(graph, place)) + 1) for place in graph.body)
