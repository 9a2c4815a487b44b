"""Gradients of chains on the GPU: for every segment a kernel that pulls cotangents back, offset by offset.

`pulling.cuh` says how a block works. The kernel of a segment goes through the same steps as the one of `offsets.py`, keeps
the slope and the bend of every dual (its derivatives by the inner product and by the logarithm of norms), and comes back
through them.
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
from ..segments import Segment, Term, chain
from .compile import source as device_source
from .duals import dual_lines, indented, real, tables_for
from .offsets import OffsetPlan, SegmentPlan, Writer, plan_offsets

STEEPEST = 2.0  # slope of the duals at c = 1 up to which float32 keeps four digits of gradients
GROUPS = 4  # of u, each followed by a block
# Measured on an H200.
_COLUMNS = 32  # beside each other in a plane, at least
_THREADS = 512  # of a block, at most
_SHARED = 227 << 10  # bytes of all blocks of a multiprocessor
_ROOM = {4: 113 << 10, 2: 227 << 10}  # bytes of shared memory up to which a thread works on so many pairs


@dataclass(frozen=True, eq=False)
class PullPlan:
    """A chain whose gradient the kernels of offsets can compute; `both`: for left and right images."""

    forward: OffsetPlan
    both: bool
    shapes: tuple[SegmentPlan, ...]

    def counts(self, place: int) -> int:
        """Numbers a position whose cotangents a segment finds: pixels of the first one, and norms."""
        steps = self.forward.segments[place].steps
        return sum(step.embedding is not None for step in steps) + (place == 0) * self.forward.graph.channels

    def size(self, place: int) -> int:
        """Cotangents that a segment finds for an image."""
        return self.counts(place) * math.prod(self.forward.segments[place].grid)

    def start(self, place: int) -> int:
        """Where they begin among all of an image."""
        return sum(self.size(before) for before in range(place))

    def shared_bytes(self, place: int) -> int:
        return self.shapes[place].shared_bytes


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


def _shape(forward: OffsetPlan, place: int, both: bool) -> SegmentPlan:
    segment, lanes, item = forward.segments[place], forward.lanes, np.dtype(forward.dtype).itemsize
    (height, width), planes = segment.grid, _planes(segment)
    columns = width * max(1, min(width, _COLUMNS // width))
    pad = max((abs(tap) for step in segment.steps for term in step.terms for tap in term.taps[1]), default=0)
    stride = pad + columns // width * (width + 2 * pad)
    numbers = sum(step.embedding is not None for step in segment.steps) + (place == 0) * forward.graph.channels
    room = (max(planes.values()) + 1) * height * stride * lanes + numbers * height * columns * (both * lanes + 1)
    fitting = max(1, _SHARED // (room * item + 1024))
    bands = max(1, min(height, _THREADS // columns))
    resident = max(1, min(fitting, 1024 // (-(-columns * bands // 32) * 32)))
    return SegmentPlan(planes, columns, bands, stride, room * item, -(-height // GROUPS), True, resident, pad)


def _planes(segment: Segment) -> dict[int, int]:
    """Planes of values, by number: two by turns; and of what is kept until cotangents come back.

    Those of a step's slopes, bends and cotangents have the numbers -1 - 3 step, -2 - 3 step and -3 - 3 step.
    """
    planes, kept = {0: 0}, 2
    for number, step in enumerate(segment.steps):
        planes[_cotangent(number)] = planes[_value(segment, number)] = (number + 1) % 2
        if step.embedding is not None and number < len(segment.steps) - 1:
            planes[_slope(number)], planes[_bend(number)] = kept, kept + 1
            kept += 2
    return planes


def _value(segment: Segment, number: int) -> int:
    """The number of the value that a step has made."""
    return segment.sum_of(number) + (segment.steps[number].embedding is not None)


def _slope(number: int) -> int:
    return -1 - 3 * number


def _bend(number: int) -> int:
    return -2 - 3 * number


def _cotangent(number: int) -> int:
    return -3 - 3 * number


def write_pulling(plan: PullPlan) -> tuple[str, list[list[NDArray[Any]]]]:
    """The source of all kernels, and for each segment the tables of its duals."""
    forward = plan.forward
    number = {"float32": "float", "float64": "double"}[forward.dtype]
    head = f"typedef {number} real;\nconstexpr int LANES = {forward.lanes}, PARTS = {forward.parts};\n"
    writers = [_Writer(plan, place) for place in range(len(forward.segments))]
    texts = [head, device_source("offsets.cuh"), device_source("pulling.cuh"), *(writer.kernel() for writer in writers)]
    return "\n".join(texts), [writer.tables for writer in writers]


class _Writer(Writer):
    """Writes the kernel of one segment."""

    def __init__(self, plan: PullPlan, place: int) -> None:
        super().__init__(plan.forward, place)
        self.pull, self.final, self.last = plan, self.last, False  # no step adds to a total here
        self.shape = plan.shapes[place]
        self.tables, self.used = [], []
        for step in self.segment.steps:
            first = len(self.tables)
            if step.embedding is not None:
                self.tables += tables_for(step.embedding, plan.forward.dtype, tangent=True)
            self.used.append(range(first, len(self.tables)))

    def kernel(self) -> str:
        (height, width), shape, steps = self.segment.grid, self.shape, len(self.segment.steps)
        phases = [*self._entrances()]
        phases += [self._again(number) for number in range(steps)]
        phases += [self._back(number) for number in reversed(range(steps - 1))]
        phases.append(self._leave())
        parameters = [
            "const Lanes* __restrict__ left_pixels, const real* __restrict__ right_pixels",
            "const Lanes* __restrict__ left_norms, const real* __restrict__ right_norms",
            "const Value* __restrict__ entrance0, const Value* __restrict__ given",
            "Value* __restrict__ pulled, Value* __restrict__ lefts, real* __restrict__ rights",
            *(f"const real* __restrict__ table{i}" for i in range(len(self.tables))),
            "const Unit* units, const int* __restrict__ offsets, int itself, index blocks",
        ]
        embeddings = "".join(self._embedding(number) for number in range(steps))
        return f"""
namespace segment{self.place} {{
constexpr int HEIGHT = {height}, WIDTH = {width}, COLUMNS = {shape.columns}, BANDS = {shape.bands};
constexpr int PAD = {shape.pad}, STRIDE = {shape.stride}, PLANE = HEIGHT * STRIDE;
constexpr int ROWS = HEIGHT * {max(shape.planes.values()) + 1}, COUNT = {self.pull.counts(self.place)};
constexpr int GROUP = {shape.group}, GROUPS = {GROUPS}, THREADS = THREADS_OF_BLOCK({shape.threads});
constexpr bool PAIRED = true, BOTH = {str(self.pull.both).lower()};
{embeddings}
extern "C" __global__ void __launch_bounds__({shape.threads}, {shape.resident}) pull_{self.place}(
    {", ".join(parameters)}) {{
    SHARED(Value, planes);
    for (index block = blockIdx.x; block < blocks; block += gridDim.x) {{
        const index number = block / GROUPS;
        const Unit unit = units[number];
{self._images()}
        const Found<COUNT, HEIGHT, WIDTH, COLUMNS, THREADS, BOTH> found(planes + ROWS * STRIDE);
        sync_block();
        frame<WIDTH, PAD, STRIDE, ROWS, THREADS>(planes);
        found.clear();
        const int first_u = int(block % GROUPS) * GROUP, last_u = min(first_u + GROUP, HEIGHT);
        for (int u = first_u; u < last_u; ++u) {{
            const Rows<HEIGHT, PAIRED> rows(u);
            for (int start = 0; start < WIDTH; start += COLUMNS / WIDTH) {{
                const int* here = offsets + start;
                const int count = min(COLUMNS / WIDTH, WIDTH - start);
                sync_block();
                separate<WIDTH, PAD, STRIDE, ROWS, THREADS>(planes, here, count);
{"".join(phases)}
            }}
        }}
        sync_block();
        found.leave(lefts + block * (COUNT * HEIGHT * WIDTH), rights + block * (COUNT * HEIGHT * WIDTH));
    }}
}}
}}
"""

    def _again(self, number: int) -> str:
        """A step, as it was computed before; the last one then has the cotangents of the pool."""
        step, last = self.segment.steps[number], number == len(self.segment.steps) - 1
        before, body, after, longest = self._sum(number)
        if step.embedding is None:
            body.append("const Value value = sum;")
        else:
            body += ["Value slope, bend;", f"const Value value = {self._embedded(number)};"]
        if last:
            before += [*self._places(), *self._given()]
            body += self._pulled(number)
            before.append(self._plane(_cotangent(number), "to"))
        else:
            before.append(self._plane(_value(self.segment, number), "next"))
            body.append("*next = value, next += STRIDE;")
            if step.embedding is not None:
                before += [self._plane(_slope(number), "slopes"), self._plane(_bend(number), "bends")]
                body.append("*slopes = slope, slopes += STRIDE, *bends = bend, bends += STRIDE;")
        return self._phase(before, self._rows(min(longest, 7), [*body, *after]))

    def _back(self, number: int) -> str:
        """Cotangents of a step's sum from those of the next one's, which a step's window has spread."""
        before, body, after, longest = self._spread(number + 1)
        before += [*self._places(), self._plane(_cotangent(number), "to")]
        body.append("const Value g = s0;")
        if self.segment.steps[number].embedding is not None:
            before += [self._plane(_slope(number), "slopes"), self._plane(_bend(number), "bends")]
            body.append("const Value slope = *slopes, bend = *bends;")
            after.append("slopes += STRIDE, bends += STRIDE;")
        body += self._pulled(number, given=False)
        return self._phase(before, self._rows(min(longest, 7), [*body, *after]))

    def _leave(self) -> str:
        """Cotangents of the entrance: of pixels, or of what the pool before has collected."""
        if self.segment.steps:
            before, body, after, longest = self._spread(0)
            body.append("const Value g = s0;")
        else:
            before, body, after, longest = self._given(), [f"const Value g = {self._at_windows()};"], [], 1
        before += self._places()
        if self.place:
            scale = real(self.plan.exit_scale(self.place - 1, self.plan.segments[self.place - 1].exits[0]))
            size = "HEIGHT * WIDTH * HEIGHT * WIDTH"
            before.append(
                f"Value* out = pulled + number * ({size}) + ((u * WIDTH + column.v) * HEIGHT + first) * WIDTH + column.k;"
            )
            body.append(f"*out = {scale} * g, out += WIDTH;")
        else:
            grid = math.prod(self.segment.grid)
            before.append("const Lanes* p = x + first * WIDTH + column.k;")
            before.append("const real* q = z + (first + offset) * WIDTH + column.n;")
            body.append(f"for (int c = 0; c < {self.plan.graph.channels}; ++c)")
            body.append(f"    found.add_pixels(c, mine, others, g, p[c * {grid}], q[c * {grid}]);")
            after.append("p += WIDTH, q += WIDTH;")
        after.append("mine += COLUMNS, others += COLUMNS;")
        return self._phase(before, self._rows(min(longest, 7), [*body, *after]))

    def _spread(self, number: int) -> tuple[list[str], list[str], list[str], int]:
        """Lines that spread the cotangents of a step's sum over its window, as s0: centred windows transpose to themselves."""
        before, body, after = list[str](), list[str](), list[str]()
        term = Term(_cotangent(number), self.segment.steps[number].terms[0].axes)
        return before, body, after, self._term(0, term, before, body, after)

    def _places(self) -> list[str]:
        return [
            "int mine = first * COLUMNS + item % COLUMNS;",
            "int others = mine + offset * COLUMNS + column.n - column.k;",
        ]

    def _given(self) -> list[str]:
        """Where the cotangents of the pool are."""
        if self.final:
            return ["const Value g0 = given[number];"]
        size = math.prod(self.segment.exits[0].grid) ** 2
        return [f"const Value* windows = given + number * {size};"]

    def _at_windows(self) -> str:
        if self.final:
            return "g0"
        one = self.segment.exits[0]
        sizes = ", ".join(map(str, (*one.size, *one.grid)))
        return f"windows[of_windows<{sizes}>(row, row + offset, column.k, column.n)]"

    def _pulled(self, number: int, given: bool = True) -> list[str]:
        """Multiply cotangents g by slopes, and add their products with bends to those of norms."""
        lines = [f"const Value g = {self._at_windows()};"] if given else []
        if self.segment.steps[number].embedding is None:
            return [*lines, "*to = g, to += STRIDE;", "mine += COLUMNS, others += COLUMNS;"]
        before = sum(step.embedding is not None for step in self.segment.steps[:number])
        which = before + (self.place == 0) * self.plan.graph.channels
        return [
            *lines,
            "*to = g * slope, to += STRIDE;",
            f"found.add({which}, mine, others, g * bend);",
            "mine += COLUMNS, others += COLUMNS;",
        ]

    def _plane(self, value: int, name: str | None = None) -> str:
        plane = self.shape.planes.get(value)
        if plane is None:
            return ""
        return f"Value* {name or f'to{value}'} = planes + {plane} * PLANE + first * STRIDE + column.place;"

    def _same(self) -> str:
        return "itself && offset == 0 && column.k == column.n, slope, bend"

    def _embedding(self, number: int) -> str:
        """The function that embeds a value, with its slope and bend."""
        embedding = self.segment.steps[number].embedding
        if embedding is None:
            return ""
        parameters = "".join(f"const real* table{i}, " for i in range(len(self.used[number])))
        lines: Sequence[str] = [*dual_lines(embedding, self.plan.dtype, tangent=True)]
        bend = "-k" if isinstance(embedding, Normalize) else "k - s * t"
        return f"""
__device__ inline Value embed{number}(const Value& sum, const Lanes left, real right, {parameters}bool same, Value& slope,
                                      Value& bend) {{
    Value value;
    for (int i = 0; i < LANES; ++i) {{
        const real s = sum.v[i], a = left.v[i] * right, t0 = 1;
{indented(lines, 8)}
        value.v[i] = k, slope.v[i] = t, bend.v[i] = {bend};
    }}
    return value;
}}
"""
