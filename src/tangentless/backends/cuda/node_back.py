"""Gradients of the general path on a GPU: backward kernels written from the nodes of a graph.

Each kept value of `nodes.py` has a second kernel. It computes the nodes between the value and other kept ones again,
and pulls cotangents back through them, element by element: to every value that was read, to logarithms of norms, and to
parameters. The kernels of `node_back.cuh` then add up the cotangents that sources, images and pairs get from elements.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bags import Both
from ...forms import TABLE_PIECES, TABLE_TERMS
from ...graph import EmbedNode, Graph, PoolNode, SumNode, WeightsNode, WindowNode
from ...layers import Nonlinearity, Normalize
from ...pullback import Key, add_all
from ..backward import Back, Place
from ..general import each, node_pairs, own_columns, places, pool_rows, readers_of, window_taps
from .compile import source as device_source
from .duals import curve_lines, dual_lines, real, slope_lines
from .fused import Machine
from .nodes import KeptNode, NodeKernels, NodeRun, NodeWriter, kernels_of, pool_taps
from .portable import table_of


@dataclass(frozen=True, eq=False)
class Use:
    """How a kernel read a kept value: at offset `factor` u, by which windows of rows, and by which pairs of columns."""

    source: int
    factor: int
    rows: tuple[int, int, int, int]  # stride, dilation, start and size
    readers: NDArray[np.int32]  # (depth, pairs of the source), see `readers_of`

    @property
    def as_is(self) -> bool:
        """Whether every element was read once, by the element with the same row and pair of columns."""
        return self.rows == (1, 1, 0, 1) and np.array_equal(self.readers, np.arange(self.readers.shape[1])[None])


@dataclass(frozen=True, eq=False)
class PullKernel:
    """The kernel that pulls back the cotangents of a kept value, and its outputs in order."""

    kernel: KeptNode
    uses: tuple[Use, ...]
    embeddings: tuple[int, ...]  # nodes for which it gives cotangents of logarithms of norms
    parameters: tuple[Key, ...]


@functools.lru_cache(maxsize=64)
def pulls_of(graph: Graph) -> dict[int, PullKernel]:
    """The backward kernels of all kept values except images and pools, by node."""
    kept = kernels_of(graph)
    return {place: _PullWriter(graph, kept, place).pull() for place, one in kept.items() if one.code}


@dataclass
class _PullWriter(NodeWriter):
    """Writes the backward kernel of one kept node."""

    order: list[int] = field(default_factory=list)  # nodes as they are computed
    outputs: dict[str, list[str]] = field(default_factory=lambda: {"use": [], "scale": [], "slope": []})
    uses: list[Use] = field(default_factory=list)
    embeddings: list[int] = field(default_factory=list)
    parameters: list[Key] = field(default_factory=list)

    def pull(self) -> PullKernel:
        """The finished kernel; its outputs are cotangents of what it read, logarithms of norms, and parameters."""
        self._value(self.place, top=True)
        self.lines += [f"Value g{place} = {{0, 0}};" for place in self.order[:-1]]
        self.lines.append(f"const Value g{self.place} = {{gk[i], gt ? gt[i] : real(0)}};")
        for place in reversed(self.order):
            self._pull(place)
        outputs = (one for some in self.outputs.values() for one in some)
        kernel = self._finished("pull", ["const real* gk", "const real* gt", *outputs])
        return PullKernel(kernel, tuple(self.uses), tuple(self.embeddings), tuple(self.parameters))

    def _value(self, place: int, top: bool = False) -> str:
        name = super()._value(place, top)
        if place not in self.order:
            self.order.append(place)
        return name

    def _embed(self, node: EmbedNode, place: int) -> None:
        """Write an embedding and its derivatives (`Bend` in node_back.cuh)."""
        tangent = self.graph.tangent
        lines = [
            *self._before(node, 1 + tangent),
            *dual_lines(node.layer, "float64", False),
            *slope_lines(node.layer, "float64"),
            "const real inverse = a > 0 ? reciprocal(a) : real(0);",
            "const real cosine = same ? real(a > 0) : fmin(fmax(s * inverse, real(-1)), real(1));",
        ]
        scales = "-k, -t0 * slope" if isinstance(node.layer, Normalize) else "k - s * slope, 0"
        twist = "0"
        if tangent and isinstance(node.layer, Nonlinearity):
            lines += [*curve_lines(node.layer, "float64"), "const real bent = t0 * curve;"]
            scales, twist = "k - s * slope, -bent * cosine", "bent * inverse"
        lines += [
            f"v{place} = {{k, {'t0 * slope' if tangent else 0}}};",
            f"e{place} = {{slope, {twist}, {scales}, a, cosine}};",
        ]
        self.lines += [f"Value v{place};", f"Bend e{place};", "{", *(f"    {line}" for line in lines), "}"]

    def _pull(self, place: int) -> None:
        """Write the step from the cotangent of a node to those of its sources."""
        node, g = self.graph.nodes[place], f"g{place}"
        if place in self.kept and place != self.place:
            column = places(self._pairs, self._index(place)).astype(np.int32)
            self._use(g, place, 1, (1, 1, 0, 1), column[None])
        elif isinstance(node, WindowNode):
            (source,), rows = node.sources, node.axes[0]
            taps = window_taps(node, self._pairs, self._index(source)).astype(np.int32)
            steps = rows.stride, rows.dilation, rows.start, rows.size
            self._use(g, source, rows.stride, steps, taps, node.scale)
        elif isinstance(node, SumNode):
            for number, (source, weight) in enumerate(zip(node.sources, node.weights, strict=True)):
                self._parameter((place, f"weights[{number}]"), f"{g}.k * v{source}.k + {g}.t * v{source}.t")
                self.lines += [f"g{source}.{part} += {real(weight)} * {g}.{part};" for part in "kt"]
        elif isinstance(node, WeightsNode):
            (source,) = node.sources
            self.lines += [f"g{source}.k += {g}.k + {g}.t;", f"g{source}.t += {g}.t;"]
        else:
            assert isinstance(node, EmbedNode), node
            self._pull_embedding(node, place)

    def _pull_embedding(self, node: EmbedNode, place: int) -> None:
        (source,), g, e = node.sources, f"g{place}", f"e{place}"
        if isinstance(node.layer, Nonlinearity) and not self.graph.tangent:
            for name in node.layer.parameters:
                table = self._table(table_of(node.layer, "parameter_slope", name))
                self._parameter(
                    (place, name), f"{g}.k * {e}.a * tabulated<{TABLE_PIECES}, {TABLE_TERMS}>({table}, {e}.c)"
                )
        output = f"scale{len(self.embeddings)}"
        self.embeddings.append(place)
        self.outputs["scale"].append(f"real* {output}")
        self.lines += [
            f"g{source}.k += {g}.k * {e}.slope + {g}.t * {e}.twist;",
            f"g{source}.t += {g}.t * {e}.slope;",
            f"{output}[i] = {g}.k * {e}.by_kernel + {g}.t * {e}.by_tangent;",
        ]

    def _use(
        self, g: str, source: int, factor: int, rows: tuple[int, int, int, int], taps: NDArray[Any], scale: float = 1.0
    ) -> None:
        number, count = len(self.uses), len(self.kept[source].pairs)
        self.uses.append(Use(source, factor, rows, readers_of(taps, count, -1).astype(np.int32)))
        self.outputs["use"] += [f"real* dk{number}", f"real* dt{number}"]
        self.lines += [
            f"dk{number}[i] = {real(scale)} * {g}.k;",
            f"if (dt{number}) dt{number}[i] = {real(scale)} * {g}.t;",
        ]

    def _parameter(self, key: Key, slope: str) -> None:
        output = f"slope{len(self.parameters)}"
        self.parameters.append(key)
        self.outputs["slope"].append(f"real* {output}")
        self.lines.append(f"if ({output}) {output}[i] = {slope};")


def positions_of(graph: Graph, place: int, side: int) -> NDArray[np.int32]:
    """The numbers of the pairs of columns that a column of one side is in, (offsets, columns), -1 for none."""
    pairs = node_pairs(graph, place)
    offsets = sorted(graph.offsets[place][1])
    found = np.full((len(offsets), graph.nodes[place].grid[1]), -1, dtype=np.int32)
    for number, pair in enumerate(pairs):
        found[offsets.index(pair[1] - pair[0]), pair[side]] = number
    return found


class BackKernels(NodeKernels):
    """The compiled kernels of a graph on one machine, forwards and backwards."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        super().__init__(graph, machine)
        self.pulls = pulls_of(graph)
        tables = {place: pull.kernel.tables for place, pull in self.pulls.items()}
        self.pull_tables = {place: [machine.upload(one) for one in some] for place, some in tables.items()}
        self.readers = {place: [machine.upload(use.readers) for use in pull.uses] for place, pull in self.pulls.items()}
        for place in self.taps:
            (source,) = graph.nodes[place].sources
            readers = readers_of(pool_taps(graph, place), len(self.kept[source].pairs), -1)
            self.readers[place] = [machine.upload(readers.astype(np.int32))]
        listed = [0, *self.pulls]
        self.positions = {(p, side): machine.upload(positions_of(graph, p, side)) for p in listed for side in range(2)}
        self.all_columns = {p: machine.upload(np.arange(len(self.kept[p].pairs), dtype=np.int32)) for p in self.pulls}

    @staticmethod
    def text(graph: Graph) -> str:
        pulls = (pull.kernel.code for pull in pulls_of(graph).values())
        return "\n".join([device_source("node_back.cuh"), *(kept.code for kept in kernels_of(graph).values()), *pulls])

    def __call__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> NodeBack:
        return NodeBack(self, left, right, left_squares, right_squares)

    def accumulate(self, rows: Any, parts: Sequence[tuple[Any, Any]]) -> None:
        """Add parts of pairs to totals of images, in the order of pairs; `rows` are the images of the pairs."""
        arange = self.machine.xp.arange
        order = np.argsort(rows * len(rows) + arange(len(rows)))  # distinct keys: every sort gives the same order
        starts = np.searchsorted(rows[order], arange(len(parts[0][0]) + 1))
        numbered = [self.machine.upload(one.astype(np.int64)) for one in (order, starts)]
        for total, part in [(total, self.machine.upload(part)) for total, part in parts]:
            sizes = np.int64(total.size), total.size // len(total)
            self.launch("add_pairs", total.size, [part, *numbered, total, *sizes])


class NodeBack(NodeRun, Back):
    """A run forwards and backwards, by the kernels of a graph."""

    kernels: BackKernels

    def pull(self, place: int, u: int, cotangent: Both, memo: dict[Place, Both]) -> Sequence[tuple[int, int, Both]]:
        if place == 0:
            self._pull_pixels(u, cotangent[0])
            return []
        pull, like = self.kernels.pulls[place], cotangent[0]
        uses = [each(np.empty_like, cotangent) for _ in pull.uses]
        scales = [np.empty_like(like) for _ in pull.embeddings]
        slopes = [np.empty_like(like) if self.slopes else None for _ in pull.parameters]
        outputs = *cotangent, *(part for use in uses for part in use), *scales, *slopes
        self._run("pull", pull.kernel, self.kernels.pull_tables[place], u, memo, outputs)
        for embedding, values in zip(pull.embeddings, scales, strict=True):
            self._add_scales(place, embedding, u, values)
        for key, values in zip(pull.parameters, slopes, strict=True):
            if values is not None:
                add_all(self.parameters, {key: self._totals(place, values)})
        parts = []
        for use, readers, part in zip(pull.uses, self.kernels.readers[place], uses, strict=True):
            at = use.factor * u
            stride, dilation, start, size = use.rows
            steps = stride, dilation, start, 0, size, 1.0
            back = part if use.as_is else self._spread(use.source, at, readers, [(steps, part)])
            parts.append((use.source, at, back))
        return parts

    def spread(self, place: int, node: PoolNode, u: int, pulled: Mapping[int, Both]) -> Both:
        rows, (source,) = node.axes[0], node.sources
        parts = [((rows.stride, rows.dilation, *pool_rows(node, u, U), node.scale), both) for U, both in pulled.items()]
        return self._spread(source, u, self.kernels.readers[place][0], parts)

    def output_as_value(self, place: int, cotangent: Both) -> Both:
        return each(lambda numbers: self.kernels.machine.upload(numbers).reshape(-1, 1, 1), cotangent)

    def squares_as_value(self, place: int, squares: Any) -> Both:
        value = self._new(place, 0, filled=True)
        value[..., own_columns(self.graph, place)] = squares
        return value, np.zeros_like(value) if self.graph.tangent else None

    def _spread(self, source: int, u: int, readers: Any, parts: Sequence[tuple[tuple[Any, ...], Both]]) -> Both:
        """The cotangent of a source at offset u, from (stride, dilation, rows, scale) of windows and cotangents."""
        found = []
        for which in range(1 + self.graph.tangent):
            out = self._new(source, u)
            for number, ((*rows, scale), both) in enumerate(parts):
                sizes = *both[which].shape[1:], len(readers), *rows, np.float64(scale), int(number > 0)
                self._launch("spread", out, both[which], readers, sizes=sizes)
            found.append(out)
        return found[0], found[1] if self.graph.tangent else None

    def _pull_pixels(self, u: int, cotangent: Any) -> None:
        (height, width), channels = self.graph.nodes[0].grid, self.graph.channels
        columns, count = self.kernels.columns[0], cotangent.shape[2]
        for side in self.sides:
            if side not in self.pixels:
                self.pixels[side] = np.zeros_like(self.left)
            places, others = self.kernels.positions[0, side], self.left if side else self.right
            first, other_first = _first_rows(u, side), _first_rows(u, 1 - side)
            elements = len(cotangent) * cotangent.shape[1] * width * channels
            sizes = cotangent.shape[1], width, count, len(places), height, channels, first, other_first
            arrays = cotangent, places, columns[1 - side], others, self.pixels[side]
            self.kernels.launch("add_pixels", elements, [*arrays, np.int64(elements), *sizes])

    def _add_scales(self, place: int, embedding: int, u: int, values: Any) -> None:
        """Add cotangents of logarithms of norms to those of each side."""
        height, width = self.graph.nodes[embedding].grid
        for side in self.sides:
            if (embedding, side) not in self.scales:
                self.scales[embedding, side] = np.zeros_like(values, shape=(len(values), height, width))
            places = self.kernels.positions[place, side]
            elements = len(values) * values.shape[1] * width
            sizes = values.shape[1], width, values.shape[2], len(places), height, _first_rows(u, side)
            arrays = values, places, self.scales[embedding, side]
            self.kernels.launch("add_positions", elements, [*arrays, np.int64(elements), *sizes])

    def _totals(self, place: int, values: Any) -> Any:
        """The sum of the values of every pair of images, (pairs,)."""
        columns = self.kernels.all_columns[place]
        part = np.empty_like(values, shape=(len(values), 1, values.shape[2]), order="C")
        self._launch("add_rows", part, values, columns, sizes=(*values.shape[1:], 1, 1, 0, 0, values.shape[1]))
        return self._folded(part).reshape(-1)


def _first_rows(u: int, side: int) -> int:
    """The row of the left (0) or right (1) image at which values at offset u begin."""
    return max(0, u if side else -u)
