"""The general path backwards: the gradient of any graph, kernel or tangent kernel, in float64.

The forward run keeps the values of pools. The way back takes the pools from the last to the first. For each offset u of
rows it recomputes the values between two pools, which is cheaper than keeping them, and pulls cotangents back through
these nodes, one by one, to the pool before or to the pixels. Cotangents of squared norms are collected per image;
`finish` pulls them back once, through each image's pair with itself.

`Back` is this walk. A device implements four methods: `pull` for a node, `spread` for a pool, and `output_as_value` and
`squares_as_value`, which bring cotangents into the layout of a node's value. Each image's cotangents are added pair by
pair in one order, so bits do not depend on batches or threads.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..bags import Both, to_squares
from ..chunks import spans
from ..graph import EmbedNode, Graph, PoolNode
from ..pullback import (
    Cotangents,
    Key,
    add_all,
    add_both,
    parameters_of,
    pull_head,
    pull_head_diagonal,
    pull_squares,
)
from . import Advance, OfImages
from .general import GeneralImages, Run, batch_size, pixels_of, reads_rows
from .workers import run_parallel

Place = tuple[int, int]  # a node, and an offset u of rows


class Begin(Protocol):
    """What a device provides: it starts a run, and it adds the cotangents of pairs to those of images."""

    def __call__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> Back: ...

    def accumulate(self, rows: Any, parts: Sequence[tuple[Any, Any]]) -> None:
        """For each (total, part), add part[k] to total[rows[k]], k in order; an image may have several pairs."""


class Back(Run):
    """One batch of pairs: `outputs` runs forwards, then `pull_outputs` runs back."""

    def __init__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
        super().__init__(graph, left, right, left_squares, right_squares)
        self.slopes: bool = False  # whether cotangents of parameters are wanted
        self.sides: tuple[int, ...] = (0, 1)  # sides whose cotangents are wanted: left images (0), right images (1)
        # Cotangents found so far:
        self.parameters: dict[Key, Any] = {}  # of parameters, (pairs,)
        self.pixels: dict[int, Any] = {}  # of pixels, by side, (pairs, H, W, C)
        self.scales: dict[tuple[int, int], Any] = {}  # of logarithms of norms, by embedding and side, (pairs, H, W)
        self._pulled: dict[int, dict[int, Both]] = {}  # of values of pools, by pool and offset

    def pull_outputs(self, cotangents: Mapping[int, Both], squares: Mapping[int, Any] | None = None) -> None:
        """Pull back the cotangents of the outputs, (pairs,) each.

        For images paired with themselves, `squares` are the cotangents of known squared norms, by node; they are pulled
        back, too.
        """
        self._norms.clear()
        self._squares.clear()
        for place in self.graph.outputs:
            given = cotangents.get(place)
            if squares is not None and place in squares and not self._is_pool(place):
                given = add_both(given, self.with_zero_tangent(squares[place].reshape(-1)))
            if given is not None:
                self._pull_nodes(place, 0, self.output_as_value(place, given))
        for place in reversed(self.graph.body):
            if self._is_pool(place):
                self._pull_pool(place, squares)
        if squares is not None:
            own = squares.get(0, 0.0) + self._known_squares(self.slopes).get(0, 0.0)
            if not isinstance(own, float):
                add_all(self.pixels, {0: 2.0 * self.left * own[..., None]})

    def _pull_pool(self, place: int, squares: Mapping[int, Any] | None) -> None:
        """Pull the cotangents of a pool back, one offset of its source's rows after the other."""
        node = self.graph.nodes[place]
        assert isinstance(node, PoolNode)
        (source,) = node.sources
        pulled = self._pulled.pop(place, {})
        if squares is not None:
            own = squares.get(place, 0.0) + self._known_squares().get(place, 0.0)
            if not isinstance(own, float):
                pulled[0] = add_both(pulled.get(0), self.squares_as_value(place, own))
        for u in sorted(self.graph.offsets[source][0]):
            targets = [U for U in sorted(pulled) if reads_rows(node, u, U)]
            if targets:
                self._pull_nodes(source, u, self.spread(place, node, u, {U: pulled[U] for U in targets}))

    def _pull_nodes(self, place: int, u: int, cotangent: Both) -> None:
        """Pull a cotangent back from a node through all nodes it was computed from, up to pools and pixels."""
        if place in self._pooled:
            self._add_to_pool(place, u, cotangent)
            return
        memo: dict[Place, Both] = {}
        self.value(place, u, memo)
        waiting: dict[Place, Both] = {(place, u): cotangent}
        for here in reversed(memo):  # `memo` lists a value after those it was computed from
            if here not in waiting:
                continue
            for source, at, part in self.pull(*here, waiting.pop(here), memo):
                if source in self._pooled:
                    self._add_to_pool(source, at, part)
                else:
                    waiting[source, at] = add_both(waiting.get((source, at)), part)

    def _add_to_pool(self, place: int, u: int, cotangent: Both) -> None:
        """Add to the cotangents of a pool's value at offset u."""
        pulled = self._pulled.setdefault(place, {})
        pulled[u] = add_both(pulled.get(u), cotangent)

    def _known_squares(self, last: bool = False) -> dict[int, Any]:
        """Cotangents of an image's known squared norms, from those of its norms before embeddings found so far.

        With `last`, set once when all norms have theirs, cotangents of parameters are added as well.
        """
        squares = self.graph.squares(self.known)
        given = square_cotangents(self.graph, squares, self.scales)
        return pull_squares(self.graph, squares, given, self.known, self.parameters if last else None)

    def _is_pool(self, place: int) -> bool:
        return isinstance(self.graph.nodes[place], PoolNode)

    @abstractmethod
    def pull(self, place: int, u: int, cotangent: Both, memo: dict[Place, Both]) -> Sequence[tuple[int, int, Both]]:
        """Pull the cotangent of a node's value at offset u back to what it read: (source, its offset, its cotangent).

        Cotangents of pixels, logarithms of norms and parameters are added to `pixels`, `scales` and `parameters`.
        """

    @abstractmethod
    def spread(self, place: int, node: PoolNode, u: int, pulled: Mapping[int, Both]) -> Both:
        """The cotangent of a pool's source at offset u from those of the pool by offset; `collect` transposed."""

    @abstractmethod
    def output_as_value(self, place: int, cotangent: Both) -> Both:
        """The cotangents of an output, (pairs,), in the layout of its value."""

    @abstractmethod
    def squares_as_value(self, place: int, squares: Any) -> Both:
        """Cotangents of a pool's squared norms, (N, H, W), in the layout of its value at offset 0."""


def square_cotangents(graph: Graph, squares: Sequence[Any], scales: Mapping[Any, Any]) -> dict[int, Any]:
    """Cotangents of squared norms, by the node that has them, from those of the logarithms of norms.

    The keys of `scales` are embeddings, or embeddings with sides, which are added up.
    """
    found: dict[int, Any] = {}
    for key, total in scales.items():
        (source,) = graph.nodes[key[0] if isinstance(key, tuple) else key].sources
        add_all(found, {source: to_squares(total, squares[source])})
    return found


@dataclass(frozen=True, eq=False)
class GeneralGradient(OfImages):
    """Prepared images, and their cotangents so far. `totals` has these keys:

    ("pixels",)         of pixels, (N, H, W, C)
    ("diagonal",)       of k(x, x), (N,)
    (node,)             of the logarithms of the norms before an embedding, (N, H, W)
    ("squares", node)   of the squared norms at an output, (N,)
    ("parameter", key)  of a parameter of a layer, (N,)
    """

    graph: Graph
    images: GeneralImages
    begin: Begin
    n_jobs: int
    batch: int | None
    wanted: bool
    totals: dict[Any, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[Key, Any]:
        """Cotangents of parameters, (N,) each."""
        return {key[1]: total for key, total in self.totals.items() if key[0] == "parameter"}

    def __getitem__(self, part: slice) -> GeneralGradient:
        totals = {key: total[part] for key, total in self.totals.items()}
        return replace(self, images=self.images[part], totals=totals)

    def unwanted(self) -> GeneralGradient:
        """The same images, of which no cotangents are wanted."""
        return replace(self, wanted=False, totals={key: np.zeros_like(total) for key, total in self.totals.items()})

    def add(self, rows: Any, parts: Mapping[Any, Any]) -> None:
        """Add cotangents of pairs, by keys of `totals`, to those of the images `rows`."""
        self.begin.accumulate(rows, [(self.totals[key], part) for key, part in parts.items()])

    def pull_diagonal(self, cotangent: Any) -> None:
        """Add cotangents of k(x, x)."""
        self.totals["diagonal",][...] += cotangent

    def finish(self) -> Any:
        """Pull back through each image's pair with itself; returns the cotangents of all pixels, (N, *grid, C)."""
        if self.graph.nodes[0].grid == (1, 1):
            squares = self.images.squares[0].reshape(-1)
            found = self._pull_head(slice(None), [squares], [np.zeros_like(squares)])
            by = self.totals["squares", 0] + found.left.get(0, 0.0)
            self.totals["pixels",][...] += 2.0 * pixels_of(self.graph, self.images.images) * by.reshape(-1, 1, 1, 1)
        else:
            parts = spans(len(self), batch_size(self.graph, self.images.images, self.batch))
            run_parallel(parts, lambda part, _: self._finish(part), lambda: None, self.n_jobs, None)
        return self.totals["pixels",].reshape(self.images.images.shape)

    def _finish(self, part: slice) -> int:
        """The same for some images; returns 0, because these pairs count for no progress."""
        graph, totals = self.graph, self.totals
        run = self.begin(graph, pixels_of(graph, self.images.images[part]), None, None, None)
        run.slopes = bool(self.parameters)
        tangents = [tangent for _, tangent in run.outputs()]
        ends = [run.known[place].reshape(-1) for place in graph.outputs]
        head = self._pull_head(part, ends, tangents)
        squares = graph.squares(run.known)
        scales = {key[0]: by[part] for key, by in totals.items() if isinstance(key[0], int)}  # of norms, by embedding
        given = square_cotangents(graph, squares, scales)
        for place in graph.outputs:
            by = totals["squares", place][part] + head.left.get(place, 0.0)
            add_all(given, {place: by.reshape(run.known[place].shape)})
        slopes: dict[Key, Any] = {}
        known = pull_squares(graph, squares, given, run.known, slopes if run.slopes else None)
        run.pull_outputs(head.values, known)
        for pixels in run.pixels.values():
            totals["pixels",][part] += pixels
        for some in (run.parameters, slopes):
            self._add_parameters(part, some)
        return 0

    def _pull_head(self, part: slice, squares: Sequence[Any], tangents: Sequence[Any]) -> Cotangents:
        cotangent = self.totals["diagonal",][part]
        found = pull_head_diagonal(self.graph, squares, tangents, cotangent, bool(self.parameters))
        self._add_parameters(part, found.parameters)
        return found

    def _add_parameters(self, part: slice, slopes: Mapping[Key, Any]) -> None:
        for key, total in self.parameters.items():
            if key in slopes:
                total[part] += slopes[key]


def general_gradient(
    graph: Graph,
    prepared: GeneralImages,
    begin: Begin,
    *,
    parameters: bool,
    wanted: bool,
    n_jobs: int = 1,
    batch: int | None = None,
) -> GeneralGradient:
    """Images for `pull_general`, with all cotangents zero."""
    count, body = len(prepared), [(place, graph.nodes[place]) for place in graph.body]
    shapes: dict[Any, tuple[int, ...]] = {("pixels",): (*graph.nodes[0].grid, graph.channels), ("diagonal",): ()}
    shapes |= {(place,): node.grid for place, node in body if isinstance(node, EmbedNode)}
    shapes |= {("squares", place): () for place in graph.outputs}
    if parameters:
        shapes |= {("parameter", key): () for key in parameters_of(graph).values()}
    totals = {key: np.zeros_like(prepared.diagonal, shape=(count, *shape)) for key, shape in shapes.items()}
    return GeneralGradient(graph, prepared, begin, n_jobs, batch, wanted, totals)


def pull_general(
    left: GeneralGradient,
    right: GeneralGradient,
    cotangent: Any,
    *,
    upper: bool,
    advance: Advance | None,
    batch: int | None = None,
    done: int = 0,
) -> None:
    """Pull back the cotangents (n, m) of the entries between two sets, and add the results to both.

    Entries whose cotangent is zero are skipped, and of the others the first `done`, which an earlier call has added. At
    most `batch` pairs are computed at a time.
    """
    graph = left.graph
    if graph.nodes[0].grid == (1, 1):
        _pull_vectors(left, right, cotangent)
        if advance is not None:
            advance(len(left) * (len(left) - 1) // 2 if upper else cotangent.size)
        return
    rows, columns = (one[done:] for one in np.nonzero(cotangent))
    order = InOrder(lambda part, found: _add_found(left, right, rows[part], columns[part], found))

    def work(task: tuple[int, slice], _: None) -> int:
        number, part = task
        order.put(number, part, _pull_batch(left, right, rows[part], columns[part], cotangent))
        return len(rows[part])

    size = batch_size(graph, left.images.images, left.batch if batch is None else batch)
    run_parallel(enumerate(spans(len(rows), size)), work, lambda: None, left.n_jobs, advance)
    if advance is not None:
        advance((len(left) * (len(left) - 1) // 2 if upper else cotangent.size) - done - len(rows))


def _pull_batch(left: GeneralGradient, right: GeneralGradient, rows: Any, columns: Any, cotangent: Any) -> Any:
    """Cotangents that some pairs give to the left and to the right images, by keys of `totals`; parameters are left."""
    graph, one, other = left.graph, left.images[rows], right.images[columns]
    sides = (pixels_of(graph, one.images), pixels_of(graph, other.images))
    run = left.begin(graph, *sides, one.squares, other.squares)
    run.slopes, run.sides = bool(left.parameters), tuple(i for i, one in enumerate((left, right)) if one.wanted)
    values = run.outputs()
    ends = [[side.squares[place].reshape(-1) for place in graph.outputs] for side in (one, other)]
    found = pull_head(graph, values, ends[0], ends[1], cotangent[rows, columns], run.slopes)
    run.pull_outputs(found.values)
    parts: list[dict[Any, Any]] = [{}, {}]
    for side, squares in enumerate((found.left, found.right)):
        parts[side] = {("squares", place): by for place, by in squares.items()}
        parts[side] |= {(place,): by for (place, of), by in run.scales.items() if of == side}
        parts[side] |= {("pixels",): run.pixels[side]} if side in run.sides else {}
    add_all(run.parameters, found.parameters)
    parts[0] |= {("parameter", key): run.parameters[key] for key in left.parameters if key in run.parameters}
    return parts


def _add_found(left: GeneralGradient, right: GeneralGradient, rows: Any, columns: Any, found: Any) -> None:
    """Add the cotangents of a batch to both sides, columns first.

    Pairs (i, j), i < j, of a symmetric tile come row by row, so an image has all its pairs as a column before those as
    a row. With columns first, the order of additions to an image does not depend on where batches end.
    """
    if right.wanted:
        right.add(columns, found[1])
    if left.wanted:
        left.add(rows, found[0])


def _pull_vectors(left: GeneralGradient, right: GeneralGradient, cotangent: Any) -> None:
    """`pull_general` for images of one position, whose inner products are one matrix product."""
    graph = left.graph
    one, other = (pixels_of(graph, side.images.images).reshape(len(side), -1) for side in (left, right))
    products, flat = one @ other.T, (len(left), len(right))
    ends = np.repeat(left.images.squares[0], len(right)), np.tile(right.images.squares[0].reshape(-1), len(left))
    values = products.reshape(-1), np.zeros_like(products.reshape(-1)) if graph.tangent else None
    found = pull_head(graph, [values], [ends[0]], [ends[1]], cotangent.reshape(-1), bool(left.parameters))
    by = found.values[0][0].reshape(flat)
    left.totals["pixels",][...] += (by @ other).reshape(left.totals["pixels",].shape)
    right.totals["pixels",][...] += (by.T @ one).reshape(right.totals["pixels",].shape)
    left.totals["squares", 0][...] += found.left[0].reshape(flat).sum(axis=1) if 0 in found.left else 0.0
    right.totals["squares", 0][...] += found.right[0].reshape(flat).sum(axis=0) if 0 in found.right else 0.0
    for key, total in left.parameters.items():
        total += found.parameters[key].reshape(flat).sum(axis=1) if key in found.parameters else 0.0


class InOrder:
    """Adds the results of tasks in the order of the tasks, whatever the order in which threads finish them."""

    def __init__(self, add: Callable[[Any, Any], None]) -> None:
        self._add, self._next, self._lock = add, 0, threading.Lock()
        self._waiting: dict[int, tuple[Any, Any]] = {}

    def put(self, number: int, part: Any, found: Any) -> None:
        """Take the results of task `number`; add them and those that waited for them, or let them wait."""
        with self._lock:
            self._waiting[number] = part, found
            while self._next in self._waiting:
                self._add(*self._waiting.pop(self._next))
                self._next += 1
