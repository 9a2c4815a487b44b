"""Gradients of chains on the GPU: for every segment a kernel that pulls cotangents back, offset by offset.

`pulling.cuh` says how a block works. The kernel of a segment goes through the same steps as the one of `offsets.py`.
It keeps the slope and the bend of every dual, its derivatives by the inner product and by the logarithm of norms, and
comes back through them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...layers import Normalize
from ..chains import STEEPEST
from ..segments import chain
from .compile import source as device_source
from .duals import dual_lines, indented, real, slope_lines, tables_for
from .offsets import OffsetPlan, axis_type, plan_offsets

GROUPS = 4  # of u, each followed by a block
# Measured on an H200.
_COLUMNS = 32  # beside each other in a plane, at least
_THREADS = 256  # of a block, at most
_RESIDENT = 512  # threads of all blocks of a multiprocessor: each then has 128 registers
_SHARED = 227 << 10  # bytes of all blocks of a multiprocessor
_ROOM = {4: 113 << 10, 2: 227 << 10}  # bytes of shared memory up to which a thread works on so many pairs


@dataclass(frozen=True)
class Shape:
    """How the kernel of a segment shares out its work."""

    columns: int  # of the planes, some offsets v beside each other
    bands: int  # of rows, one for each thread of a column
    stride: int  # from one row of a plane to the next
    shared_bytes: int  # of planes, and of cotangents
    group: int  # neighbouring u that a block follows
    resident: int  # blocks of a multiprocessor at the same time
    pad: int  # zeros beside the columns of an offset
    plane_count: int

    @property
    def threads(self) -> int:
        return -(-self.columns * self.bands // 32) * 32


@dataclass(frozen=True, eq=False)
class PullPlan:
    """A chain whose gradient the kernels of offsets can compute; `both`: for left and right images."""

    forward: OffsetPlan
    both: bool
    shapes: tuple[Shape, ...]

    def size(self, place: int) -> int:
        """Cotangents that a segment finds for an image."""
        return _counts(self.forward, place) * math.prod(self.forward.segments[place].grid)


@functools.lru_cache(maxsize=64)
def plan_pulling(graph: Graph, precision: str, shared_limit: int, both: bool) -> PullPlan | str:
    """A plan for the gradient, or the reason why it must take the general path."""
    segments = chain(graph)
    if graph.tangent:
        return "it is a tangent kernel"
    if isinstance(segments, str):
        return segments
    precision = "float64" if graph.steepest > STEEPEST else precision
    for lanes in (4, 2, 1):
        forward = plan_offsets(graph, precision, shared_limit, lanes)
        if isinstance(forward, str):
            return forward
        if forward.lanes != lanes:
            continue
        shapes = tuple(_shape(forward, place, both) for place in range(len(segments)))
        found, most = PullPlan(forward, both, shapes), max(one.shared_bytes for one in shapes)
        if lanes == 1 or most <= min(_ROOM[lanes], shared_limit):
            break
    if most <= shared_limit:
        return found
    return f"its planes and cotangents take {most >> 10} KiB, more than the {shared_limit >> 10} KiB of a block"


def _counts(forward: OffsetPlan, place: int) -> int:
    """Numbers a position whose cotangents a segment finds: pixels of the first one, and norms."""
    embeddings = sum(step.embedding is not None for step in forward.segments[place].steps)
    return embeddings + (place == 0) * forward.graph.channels


def _shape(forward: OffsetPlan, place: int, both: bool) -> Shape:
    segment, lanes, item = forward.segments[place], forward.lanes, np.dtype(forward.dtype).itemsize
    height, width = segment.grid
    columns = width * max(1, min(width, _COLUMNS // width))
    pad = max((abs(tap) for step in segment.steps for term in step.terms for tap in term.taps[1]), default=0)
    stride = pad + columns // width * (width + 2 * pad)
    planes = 2 if segment.steps else 1  # by turns
    room = planes * height * stride * lanes + _counts(forward, place) * height * columns * (both * lanes + 1)
    fitting = max(1, _SHARED // (room * item + 1024))
    bands = max(1, min(height, _THREADS // columns))
    resident = max(1, min(fitting, _RESIDENT // (-(-columns * bands // 32) * 32)))
    return Shape(columns, bands, stride, room * item, -(-height // GROUPS), resident, pad, planes)


def write_pulling(plan: PullPlan) -> tuple[str, list[list[NDArray[Any]]]]:
    """The source of all kernels, and for each segment the tables of its duals."""
    forward = plan.forward
    number = {"float32": "float", "float64": "double"}[forward.dtype]
    head = f"typedef {number} real;\nconstexpr int LANES = {forward.lanes}, PARTS = {forward.parts};\n"
    writers = [_Writer(plan, place) for place in range(len(forward.segments))]
    texts = [head, device_source("offsets.cuh"), device_source("pulling.cuh"), *(writer.kernel() for writer in writers)]
    return "\n".join(texts), [writer.tables for writer in writers]


class _Writer:
    """Writes the kernel of one segment."""

    def __init__(self, plan: PullPlan, place: int) -> None:
        self.plan, self.forward, self.place = plan, plan.forward, place
        self.segment, self.shape = self.forward.segments[place], plan.shapes[place]
        self.last = place == len(self.forward.segments) - 1
        self.tables: list[NDArray[Any]] = []
        self.used: list[range] = []  # tables of every step
        for step in self.segment.steps:
            first = len(self.tables)
            if step.embedding is not None:
                self.tables += tables_for(step.embedding, self.forward.dtype, derivatives=1)
            self.used.append(range(first, len(self.tables)))

    def kernel(self) -> str:
        (height, width), shape, steps = self.segment.grid, self.shape, len(self.segment.steps)
        phases = [self._enter(), *(self._again(number) for number in range(steps))]
        phases += [self._back(number) for number in reversed(range(steps - 1))]
        phases.append(self._leave())
        parameters = [
            "const Lanes* __restrict__ left_pixels, const real* __restrict__ right_pixels",
            "const Lanes* __restrict__ left_norms, const real* __restrict__ right_norms",
            "const Value* __restrict__ entrance, const Value* __restrict__ given",
            "Value* __restrict__ pulled, Value* __restrict__ lefts, real* __restrict__ rights",
            *(f"const real* __restrict__ table{i}" for i in range(len(self.tables))),
            "const Unit* units, const int* __restrict__ offsets, int itself, index blocks",
        ]
        pixels, norms = math.prod(self.segment.grid) * self.forward.graph.channels, self.forward.norm_count
        embeddings = "".join(self._embedding(number) for number in range(steps))
        kept = "".join(f" Value slope{i}[TALL], bend{i}[TALL];" for i in range(steps - 1) if self._embeds(i))
        return f"""
namespace segment{self.place} {{
constexpr int HEIGHT = {height}, WIDTH = {width}, COLUMNS = {shape.columns}, BANDS = {shape.bands};
constexpr int TALL = (HEIGHT + BANDS - 1) / BANDS, PAD = {shape.pad}, STRIDE = {shape.stride}, PLANE = HEIGHT * STRIDE;
constexpr int ROWS = HEIGHT * {shape.plane_count}, COUNT = {_counts(self.forward, self.place)};
constexpr int GROUP = {shape.group}, GROUPS = {GROUPS}, THREADS = THREADS_OF_BLOCK({shape.threads});
constexpr int EACH = (COLUMNS * BANDS + THREADS - 1) / THREADS, BESIDE = COLUMNS / WIDTH;
constexpr bool BOTH = {str(self.plan.both).lower()};
struct Kept {{{kept} }};
{embeddings}
extern "C" __global__ void __launch_bounds__({shape.threads}, {shape.resident}) pull_{self.place}(
    {", ".join(parameters)}) {{
    SHARED(Value, planes);
    [[maybe_unused]] Kept kept[EACH];  // by position of a thread, in registers
    for (index block = blockIdx.x; block < blocks; block += gridDim.x) {{
        const index number = block / GROUPS;
        const Unit unit = units[number];
        const Lanes* __restrict__ a = left_norms + index(unit.left / LANES) * {norms};
        const real* __restrict__ b = right_norms + index(unit.right) * {norms};
        const Lanes* __restrict__ x = left_pixels + index(unit.left / LANES) * {pixels};
        const real* __restrict__ z = right_pixels + index(unit.right) * {pixels};
        const Found<COUNT, HEIGHT, WIDTH, COLUMNS, THREADS, BOTH> found(planes + ROWS * STRIDE);
        sync_block();
        frame<WIDTH, PAD, STRIDE, ROWS, THREADS>(planes);
        found.clear();
        const int first_u = int(block % GROUPS) * GROUP, last_u = min(first_u + GROUP, HEIGHT);
        for (int u = first_u; u < last_u; ++u)
            for (int start = 0; start < WIDTH; start += BESIDE) {{
                sync_block();
                separate<WIDTH, PAD, STRIDE, ROWS, THREADS>(planes, offsets + start, min(BESIDE, WIDTH - start));
{"".join(phases)}
            }}
        sync_block();
        found.leave(lefts + block * (COUNT * HEIGHT * WIDTH), rights + block * (COUNT * HEIGHT * WIDTH));
    }}
}}
}}
"""

    def _embeds(self, number: int) -> bool:
        return self.segment.steps[number].embedding is not None

    def _phase(self, lines: Sequence[str]) -> str:
        """What each thread does at its positions, after all threads have finished what was before."""
        inner = [
            "sync_block();",
            "#pragma unroll",
            "for (int each = 0; each < EACH; ++each) {",
            "    const Place<HEIGHT, WIDTH, PAD, COLUMNS, TALL> here(threadIdx.x + each * THREADS, start, u);",
            "    if (here.idle) continue;",
            *(f"    {line}" for line in lines),
            "}",
        ]
        return indented(inner, 16) + "\n"

    def _rows(self, lines: Sequence[str]) -> list[str]:
        head = [
            "#pragma unroll",
            "for (int t = 0; t < TALL; ++t) {",
            "    const int row = here.first + t;",
            "    if (!here.has(row)) continue;",
        ]
        return [*head, *(f"    {line}" for line in lines), "}"]

    def _windows(self, number: int, plane: int, lines: Sequence[str]) -> list[str]:
        """Lines for the sums over a step's windows: of values, and of cotangents, since centred ones are symmetric."""
        down, across = (size // 2 for size in self.segment.steps[number].window)
        plane_of = f"planes + {plane} * PLANE"
        return [
            f"windows<{down}, {across}, TALL, STRIDE>({plane_of}, here, [&](int row, const Value& sum) {{",
            *(f"    {line}" for line in lines),
            "});",
        ]

    def _enter(self) -> str:
        """Inner products of pixels, or what the pool before has collected, into the first plane."""
        grid, channels = math.prod(self.segment.grid), self.forward.graph.channels
        if self.place == 0:
            lines = [
                "const Lanes* p = x + row * WIDTH + here.k;",
                "const real* q = z + here.partner(row) * WIDTH + here.n;",
                "Value value = nothing();",
                f"#pragma unroll {min(4, channels)}",
                f"for (int c = 0; c < {channels}; ++c)",
                f"    for (int i = 0; i < LANES; ++i) value.v[i] += p[c * {grid}].v[i] * q[c * {grid}];",
            ]
        else:
            before = self.forward.segments[self.place - 1]
            one, values = before.exits[0], f"entrance + number * {self.forward.exit_numbers(before.exits[0])}"
            read = f"entered<{axis_type(one, 0, before)}, WIDTH>({values}, u, here.v, row, here.k)"
            lines = [f"const Value value = {real(self.forward.exit_scale(self.place - 1, one))} * {read};"]
        return self._phase(self._rows([*lines, "planes[row * STRIDE + here.column] = value;"]))

    def _again(self, number: int) -> str:
        """A step, as it was computed before; the last one then has the cotangents of the pool."""
        last, lines = number == len(self.segment.steps) - 1, ["const Value value = sum;"]
        if self._embeds(number):
            place = self.forward.norm_places[self.place, number]
            tables = "".join(f"table{i}, " for i in self.used[number])
            same = "itself && here.v == 0 && u == 0"
            lines = [
                f"const Lanes left = a[{place} + row * WIDTH + here.k];",
                f"const real right = b[{place} + here.partner(row) * WIDTH + here.n];",
                "Value slope, bend;",
                f"const Value value = embed{number}(sum, left, right, {tables}{same}, slope, bend);",
            ]
        if last:
            lines += [f"const Value g = {self._given()};", *self._pull(number)]
        else:
            lines.append(f"planes[{(number + 1) % 2} * PLANE + row * STRIDE + here.column] = value;")
            if self._embeds(number):
                names = "slope", "bend"
                lines += [f"kept[each].{name}{number}[row - here.first] = {name};" for name in names]
        return self._phase(self._windows(number, number % 2, lines))

    def _back(self, number: int) -> str:
        """Cotangents of a step's sum from those of the next one's."""
        lines = ["const Value& g = sum;"]
        if self._embeds(number):
            lines.append(f"const Value slope = kept[each].slope{number}[row - here.first];")
            lines.append(f"const Value bend = kept[each].bend{number}[row - here.first];")
        return self._phase(self._windows(number + 1, number % 2, [*lines, *self._pull(number)]))

    def _leave(self) -> str:
        """Cotangents of the entrance: of pixels, or of what the pool before has collected."""
        lines = ["const Value& g = sum;"] if self.segment.steps else [f"const Value g = {self._given()};"]
        if self.place:
            scale = real(self.forward.exit_scale(self.place - 1, self.forward.segments[self.place - 1].exits[0]))
            where = "(number * (HEIGHT * WIDTH) + u * WIDTH + here.v) * (HEIGHT * WIDTH) + row * WIDTH + here.k"
            lines.append(f"pulled[{where}] = {scale} * g;")
        else:
            grid = math.prod(self.segment.grid)
            lines += [
                "const Lanes* p = x + row * WIDTH + here.k;",
                "const real* q = z + here.partner(row) * WIDTH + here.n;",
                f"for (int c = 0; c < {self.forward.graph.channels}; ++c)",
                f"    found.add_pixels(c, here.mine(row), here.others(row), g, p[c * {grid}], q[c * {grid}]);",
            ]
        return self._phase(self._windows(0, 1, lines) if self.segment.steps else self._rows(lines))

    def _given(self) -> str:
        """The cotangent of the pool that a position lies in."""
        if self.last:
            return "given[number]"
        one = self.segment.exits[0]
        sizes = ", ".join(map(str, (*one.size, *one.grid)))
        at = f"of_windows<{sizes}>(row, here.partner(row), here.k, here.n)"
        return f"given[number * {math.prod(one.grid) ** 2} + {at}]"

    def _pull(self, number: int) -> list[str]:
        """Multiply cotangents g by slopes, and add their products with bends to those of norms."""
        to = f"planes[{(number + 1) % 2} * PLANE + row * STRIDE + here.column]"
        if not self._embeds(number):
            return [f"{to} = g;"]
        which = sum(map(self._embeds, range(number))) + (self.place == 0) * self.forward.graph.channels
        return [f"{to} = g * slope;", f"found.add({which}, here.mine(row), here.others(row), g * bend);"]

    def _embedding(self, number: int) -> str:
        """The function that embeds a value, with its slope and bend."""
        embedding = self.segment.steps[number].embedding
        if embedding is None:
            return ""
        parameters = "".join(f"const real* table{i}, " for i in range(len(self.used[number])))
        dtype = self.forward.dtype
        lines = [*dual_lines(embedding, dtype, tangent=False), *slope_lines(embedding, dtype)]
        bend = "-k" if isinstance(embedding, Normalize) else "k - s * slope"
        return f"""
__device__ inline Value embed{number}(const Value& sum, const Lanes& left, real right, {parameters}bool same,
                                      Value& slope_out, Value& bend_out) {{
    Value value;
    for (int i = 0; i < LANES; ++i) {{
        const real s = sum.v[i], a = left.v[i] * right;
{indented(lines, 8)}
        value.v[i] = k, slope_out.v[i] = slope, bend_out.v[i] = {bend};
    }}
    return value;
}}
"""
