"""The general path of `backends.general` on a GPU: kernels written from the nodes of a graph.

Most nodes act on one element at a time, so only outputs, and values that a window, a pool or several nodes read, are
stored: they are *kept*. Each kept value has one kernel. It computes its node and all nodes between it and other kept
values, with a few lines of C++ for each window, sum and embedding. `nodes.cuh` has the functions that kernels call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import EmbedNode, Graph, Pair, PoolNode, SumNode, WeightsNode, WindowNode
from ..general import Run, Value, index_of, node_pairs, places, pool_rows, window_taps
from .compile import source as device_source
from .duals import dual_lines, indented, real, tables_for
from .fused import Machine, walk

_FEW_TAPS = 16  # of a window, up to which one thread adds all of them


@dataclass(frozen=True, eq=False)
class KeptNode:
    """A node whose value is kept: its pairs of columns, and the kernel that computes it; images and pools have none."""

    place: int
    pairs: tuple[Pair, ...]
    code: str = ""
    reads: tuple[tuple[int, int], ...] = ()  # kept values that it reads: (node, f), at offset f u
    tables: tuple[NDArray[Any], ...] = ()  # arguments of the kernel, in order: places of columns, and tables of duals
    norms: tuple[int, ...] = ()  # nodes whose norms it reads

    @property
    def columns(self) -> NDArray[np.int32]:
        """Columns of the left image and of the right one, (2, pairs)."""
        return np.array([[k for k, _ in self.pairs], [n for _, n in self.pairs]], dtype=np.int32)


@functools.lru_cache(maxsize=64)
def kernels_of(graph: Graph) -> dict[int, KeptNode]:
    """All kept nodes, by their numbers."""
    sources = [source for node in graph.nodes for source in node.sources]
    read = {source for node in graph.nodes if isinstance(node, WindowNode | PoolNode) for source in node.sources}
    read |= {place for place in graph.body if sources.count(place) > 1}  # not computed twice
    pools = {place for place in graph.body if isinstance(graph.nodes[place], PoolNode)}
    places = [place for place in graph.body if place in {0, *read, *pools, *graph.outputs}]
    kept = {place: KeptNode(place, tuple(node_pairs(graph, place))) for place in places}
    written = [place for place in places if place != 0 and place not in pools]
    return kept | {place: NodeWriter(graph, kept, place).kernel() for place in written}


@dataclass
class NodeWriter:
    """Writes the kernel of one kept node."""

    graph: Graph
    kept: dict[int, KeptNode]
    place: int
    lines: list[str] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    tables: list[NDArray[Any]] = field(default_factory=list)
    norms: list[int] = field(default_factory=list)
    written: set[str] = field(default_factory=set)  # variables that the lines define

    def kernel(self) -> KeptNode:
        """The finished kernel; its parameters are reads, tables and norms, in the order in which the lines use them."""
        result = self._value(self.place, top=True)
        self.lines += [f"k[i] = {result}.k;", f"if (t) t[i] = {result}.t;"]
        return self._finished("node", ["real* k", "real* t"])

    def _finished(self, kind: str, outputs: Sequence[str]) -> KeptNode:
        """The kernel `{kind}_{node}` with the lines as its body."""
        parameters, made = [], []
        for i in range(len(self.reads)):
            parameters += [f"const real* k{i}", f"const real* l{i}", f"int rows{i}", f"int columns{i}"]
            made.append(f"const Source s{i} = {{k{i}, l{i}, rows{i}, columns{i}}};")
        for i, table in enumerate(self.tables):
            parameters.append(f"const {'real' if table.dtype.kind == 'f' else 'int'}* t{i}")
        for i in range(len(self.norms)):
            parameters += [f"const real* x{i}", f"const real* z{i}"]
            made.append(f"const Norms n{i} = {{x{i}, z{i}, pairs, columns, height, width, u, itself}};")
        shape = "index elements, int rows, int columns, const int* pairs, int height, int width, int u, int itself"
        code = f"""
extern "C" __global__ void {kind}_{self.place}({", ".join([*parameters, *outputs])}, {shape}) {{
{indented(made, 4)}
    for (index i = first_element(); i < elements; i += element_step()) {{
        const Place place = place_of(i, rows, columns);
{indented(self.lines, 8)}
    }}
}}
"""
        kept = self.kept[self.place]
        return KeptNode(self.place, kept.pairs, code, tuple(self.reads), tuple(self.tables), tuple(self.norms))

    def _value(self, place: int, top: bool = False) -> str:
        """The name of the variable with a node's value; writes the lines that compute it, if there are none yet."""
        node, name = self.graph.nodes[place], f"v{place}"
        if name in self.written:
            return name
        self.written.add(name)
        if place in self.kept and not top:
            source = self._read(place, 1)
            column = self._table(places(self._pairs, self._index(place)).astype(np.int32))
            self.lines.append(f"const Value {name} = {source}.at(place, place.row, {column}[place.column]);")
        elif isinstance(node, WindowNode):
            self.lines.append(f"const Value {name} = {self._window(node)};")
        elif isinstance(node, SumNode):
            terms = [(float(w), self._value(s)) for w, s in zip(node.weights, node.sources, strict=True)]
            sums = [" + ".join(f"{real(w)} * {v}.{part}" for w, v in terms) for part in "kt"]
            self.lines.append(f"const Value {name} = {{{sums[0]}, {sums[1]}}};")
        elif isinstance(node, WeightsNode):
            source = self._value(node.sources[0])
            self.lines.append(f"const Value {name} = {{{source}.k, {source}.t + {source}.k}};")
        else:
            assert isinstance(node, EmbedNode), node
            self._embed(node, place)
        return name

    @property
    def _pairs(self) -> tuple[Pair, ...]:
        return self.kept[self.place].pairs

    def _index(self, place: int) -> dict[Pair, int]:
        return index_of(self.kept[place].pairs)

    def _read(self, place: int, factor: int) -> str:
        if (place, factor) not in self.reads:
            self.reads.append((place, factor))
        return f"s{self.reads.index((place, factor))}"

    def _table(self, table: NDArray[Any]) -> str:
        self.tables.append(table)
        return f"t{len(self.tables) - 1}"

    def _window(self, node: WindowNode) -> str:
        rows, columns = node.axes
        (place,) = node.sources
        source = self._read(place, rows.stride)
        taps = self._table(window_taps(node, self._pairs, self._index(place)).astype(np.int32))
        sizes = f"{rows.size}, {rows.stride}, {rows.dilation}, {columns.size}"
        return f"window<{sizes}>({source}, {taps}, {rows.start}, columns, place, {real(node.scale)})"

    def _embed(self, node: EmbedNode, place: int) -> None:
        """Write an embedding: the dual of k, and the slope times t."""
        tangent = self.graph.tangent
        lines = [
            *self._before(node, int(tangent)),
            *dual_lines(node.layer, "float64", tangent),
            f"v{place} = {{k, {'t' if tangent else 0}}};",
        ]
        self.lines += [f"Value v{place};", "{", *(f"    {line}" for line in lines), "}"]

    def _before(self, node: EmbedNode, derivatives: int) -> list[str]:
        """Lines that define what the lines of a dual and its first `derivatives` read: see `duals.py`."""
        source = self._value(node.sources[0])
        self.norms.append(node.sources[0])
        n = f"n{len(self.norms) - 1}"
        tables = [self._table(table) for table in tables_for(node.layer, "float64", derivatives)]
        return [
            f"const real s = {source}.k, t0 = {source}.t, a = {n}.product(place);",
            f"const bool same = {n}.same(place);",
            *(f"const real* table{i} = {table};" for i, table in enumerate(tables)),
        ]


class NodeKernels:
    """The compiled kernels of a graph on one machine, and their tables in its memory. Calling it starts a run."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self.kept = kernels_of(graph)
        self._launch = machine.load_text(self.text(graph))
        self.columns = {place: machine.upload(one.columns) for place, one in self.kept.items()}
        self.tables = {place: [machine.upload(table) for table in one.tables] for place, one in self.kept.items()}
        pools = [place for place in graph.body if isinstance(graph.nodes[place], PoolNode)]
        self.taps = {place: machine.upload(pool_taps(graph, place)) for place in pools}

    @staticmethod
    def text(graph: Graph) -> str:
        """The source of all kernels."""
        return "\n".join([device_source("nodes.cuh"), *(kept.code for kept in kernels_of(graph).values())])

    def launch(self, name: str, elements: int, arguments: Sequence[Any]) -> None:
        """Launch a kernel for so many elements."""
        walk(self._launch, name, elements, arguments)

    def __call__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> NodeRun:
        return NodeRun(self, left, right, left_squares, right_squares)


class NodeRun(Run):
    """A run by the kernels of a graph, on one machine."""

    def __init__(self, kernels: NodeKernels, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
        upload = kernels.machine.upload
        sides = upload(left), None if right is None else upload(right)
        super().__init__(kernels.graph, *sides, left_squares, right_squares)
        self.kernels = kernels

    def _new(self, place: int, u: int, filled: bool = False) -> Any:
        shape = len(self.left), self.graph.nodes[place].grid[0] - abs(u), len(self.kernels.kept[place].pairs)
        make = np.zeros_like if filled else np.empty_like
        return make(self.left, dtype=np.float64, shape=shape, order="C")

    def _products(self, u: int) -> Value:
        out, (height, width) = self._new(0, u), self.graph.nodes[0].grid
        sides = self.left, self.right, self.kernels.columns[0]
        self._launch("products", out, *sides, sizes=(height, width, self.graph.channels, u))
        return out, np.zeros_like(out) if self.graph.tangent else None

    def compute(self, place: int, u: int, memo: dict[tuple[int, int], Value]) -> Value:
        if place == 0:
            return self._products(u)
        kernel = self._new(place, u)
        tangent = self._new(place, u) if self.graph.tangent else None
        self._run("node", self.kernels.kept[place], self.kernels.tables[place], u, memo, [kernel, tangent])
        return kernel, tangent

    def _run(
        self,
        kind: str,
        kept: KeptNode,
        tables: Sequence[Any],
        u: int,
        memo: dict[tuple[int, int], Value],
        outputs: Sequence[Any],
    ) -> None:
        """Launch a kernel that was written from a node; its first output has the shape of the node's value."""
        arguments: list[Any] = []
        for source, factor in kept.reads:
            kernel, tangent = self.value(source, factor * u, memo)
            arguments += [kernel, tangent, np.int32(kernel.shape[1]), np.int32(kernel.shape[2])]
        arguments += tables
        for source in kept.norms:
            arguments += [self.norms(source, 0), self.norms(source, 1)]
        arguments += outputs
        first, (height, width) = outputs[0], self.graph.nodes[kept.place].grid
        sizes = *first.shape[1:], self.kernels.columns[kept.place], height, width, u, int(self.itself)
        self.kernels.launch(f"{kind}_{kept.place}", first.size, [*arguments, np.int64(first.size), *sizes])

    def laid_out(self, place: int, side: int, norms: Any) -> Any:
        return self.kernels.machine.upload(norms)

    def _launch(self, name: str, out: Any, *arrays: Any, sizes: tuple[Any, ...]) -> None:
        """Launch a kernel of `nodes.cuh` or `node_back.cuh` that fills `out`, (pairs, rows, columns)."""
        self.kernels.launch(name, out.size, [*arrays, out, np.int64(out.size), *out.shape[1:], *sizes])

    def collect(
        self, place: int, node: PoolNode, value: Value, u: int, targets: list[int], found: dict[int, Value]
    ) -> None:
        for U in targets:
            if U not in found:
                kernel, tangent = (None if part is None else self._new(place, U, filled=True) for part in value)
                found[U] = kernel, tangent
            for part, total in zip(value, found[U], strict=True):
                if part is not None:
                    self._add(place, node, part, total, u, U)

    def _add(self, place: int, node: PoolNode, value: Any, total: Any, u: int, target: int) -> None:
        rows, taps = node.axes[0], self.kernels.taps[place]
        start, first, last = pool_rows(node, u, target)
        windows = len(taps)
        if total.shape[2] > 1 or windows <= _FEW_TAPS:
            sizes = *value.shape[1:], windows, rows.stride, rows.dilation, start, first, last, np.float64(node.scale)
            self._launch("pool", total, value, taps, sizes=sizes)
            return
        part = np.empty_like(value, shape=(*total.shape[:2], windows), order="C")
        steps = rows.stride, rows.dilation
        self._launch("add_rows", part, value, taps, sizes=(*value.shape[1:], *steps, start, first, last))
        total += node.scale * self._folded(part)

    def _folded(self, part: Any) -> Any:
        """Sums along the last axis, in an order that depends on its length alone."""
        while (count := part.shape[2]) > 1:
            half = (count + 1) // 2
            folded = np.empty_like(part, shape=(*part.shape[:2], half), order="C")
            self.kernels.launch("fold", folded.size, [part, folded, np.int64(folded.size), count, half])
            part = folded
        return part


def pool_taps(graph: Graph, place: int) -> NDArray[np.int32]:
    """Which pairs of columns of its source a pool reads, or -1: (pairs of positions in a window, pairs of columns)."""
    node = graph.nodes[place]
    assert isinstance(node, PoolNode)
    kept = kernels_of(graph)
    return window_taps(node, kept[place].pairs, index_of(kept[node.sources[0]].pairs)).astype(np.int32)
