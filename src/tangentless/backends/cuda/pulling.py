"""Gradients of chains on the GPU: plans and C++ of the kernels that pull cotangents back, one for each segment.

A kernel goes down the rows of a segment, computes its steps again, and keeps two derivatives of every dual: the slope,
by the inner product, and the bend, by the logarithm of norms. A few rows later it goes back through the same steps.
`pulling.cuh` says how a block works; `pulled.py` launches the kernels.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph, Pair
from ..chains import STEEPEST
from ..segments import Segment, flat_chain
from .compile import source as device_source
from .duals import indented, pull_lines, real, step_tables
from .offsets import OffsetPlan, plan_offsets

_MOST_THREADS = 1024
_PLACES = "at.row * COLUMNS + here.mine, at.partner * COLUMNS + here.others"  # of cotangents of both images, in `Found`
# Measured on an H200, on 32×32 positions.
_COLUMNS = 32  # of a team, up to which it has several offsets v side by side
_TEAMS = (4, 8, 16)  # of a block, at most: the fewest with which shared memory leaves `_CACHED` bytes
_SKEW = 2  # rows between one team and the next; half of the rows in a turn of the loop
_RESIDENT = 512  # threads of a multiprocessor, each with 128 registers
_SHARED = 227 << 10  # bytes of shared memory of a multiprocessor
_CACHED = 100 << 10  # bytes of it that should be left to the L1 cache, where rows of both images are read repeatedly
_EARLY = 4  # channels up to which a thread reads pixels before a barrier: they need registers
_KEPT = 64  # registers of a thread for values of earlier rows, at most


@dataclass(frozen=True)
class Shape:
    """How the kernel of a segment divides its work; see `pulling.cuh`."""

    columns: int  # of a team: the width, times the number of offsets v side by side
    teams: int  # of a block
    grid: Pair
    reach: Pair  # the largest |u| and |v| that are needed
    groups: int  # blocks among which the offsets v are divided
    stride: int  # from one row of values of a team to the next
    pad: int  # unused places before and after a row of values
    shared_bytes: int  # for two rows of values a team, and for cotangents
    resident: int  # blocks of a multiprocessor at the same time

    @property
    def offsets(self) -> Pair:
        """How many offsets u and v are computed; u and u - H are the same one, and so are v and v - W."""
        down, across = (min(n, 2 * far + 1) for n, far in zip(self.grid, self.reach, strict=True))
        return down, across

    @property
    def team(self) -> int:
        """Threads of a team."""
        return -(-self.columns // 32) * 32

    @property
    def threads(self) -> int:
        return self.teams * self.team


@dataclass(frozen=True, eq=False)
class PullPlan:
    """A chain whose gradient the kernels of this module can compute."""

    forward: OffsetPlan
    segments: tuple[Segment, ...]  # of the way back: those of a `flat_chain`
    flat: bool  # the chain ends in a patch of the whole grid: only pairs of equal positions count there
    both: bool  # for both images of pairs, or for the right ones
    shapes: tuple[Shape, ...]

    def size(self, place: int) -> int:
        """How many cotangents a segment computes for an image."""
        return _counts(self.forward, place) * math.prod(self.segments[place].grid)


@functools.lru_cache(maxsize=64)
def plan_pulling(graph: Graph, precision: str, shared_limit: int, both: bool) -> PullPlan | str:
    """A plan for the gradient, for `both` images or for the right ones, or the reason why it takes the general path."""
    if graph.tangent:
        return "it is a tangent kernel"
    cut = flat_chain(graph)
    if isinstance(cut, str):
        return cut
    segments, flat = cut
    precision = "float64" if graph.steepest > STEEPEST else precision
    for lanes in (4, 2, 1):
        forward = plan_offsets(graph, precision, shared_limit, lanes)
        if isinstance(forward, str):
            return forward
        if forward.lanes != lanes:
            continue
        shapes = tuple(_shape(forward, segments[place], place, both) for place in range(len(segments)))
        found = PullPlan(forward, segments, flat, both, shapes)
        most = max(one.shared_bytes for one in shapes)
        kept = max(_kept(segment) for segment in segments) * lanes * np.dtype(forward.dtype).itemsize // 4
        if lanes == 1 or (most <= shared_limit and kept <= _KEPT):
            break
    if max(one.threads for one in shapes) > _MOST_THREADS:
        return f"its images have more than {_MOST_THREADS} columns"
    if most <= shared_limit:
        return found
    return f"its cotangents take {most >> 10} KiB of shared memory, more than the {shared_limit >> 10} KiB of a block"


def _reach(segment: Segment) -> list[int]:
    """For every step, how many rows after a row entered its window sums are complete."""
    return list(itertools.accumulate(step.window[0] // 2 for step in segment.steps))


def _kept(segment: Segment) -> int:
    """Values that a thread keeps for each pair: sums along rows in both directions, slopes and bends."""
    reach = _reach(segment) or [0]
    return 4 * reach[-1] + sum(4 * (reach[-1] - one) for one in reach)


def _counts(forward: OffsetPlan, place: int) -> int:
    """Cotangents that a segment computes for a position: of pixels, in the first segment, and of norms."""
    embeddings = sum(step.embedding is not None for step in forward.segments[place].steps)
    return embeddings + (place == 0) * forward.graph.channels


def _shape(forward: OffsetPlan, segment: Segment, place: int, both: bool) -> Shape:
    shapes = [_shape_with(forward, segment, place, both, teams) for teams in _TEAMS]
    full = [one for one in shapes if one.resident * one.threads == _RESIDENT] or shapes
    return next((one for one in full if one.resident * one.shared_bytes <= _SHARED - _CACHED), full[-1])


def _shape_with(forward: OffsetPlan, segment: Segment, place: int, both: bool, teams: int) -> Shape:
    (height, width), lanes, item = segment.grid, forward.lanes, np.dtype(forward.dtype).itemsize
    beside = max(1, min(width, _COLUMNS // width))
    rows, others = forward.needed(len(forward.segments) - 1)[place]
    reach = max(map(abs, rows)), max(map(abs, others))
    columns, offsets = beside * width, -(-min(width, 2 * reach[1] + 1) // beside)
    # A team of several warps uses the barrier of the block. All teams must be at different rows of both images.
    most = 1 if columns > _COLUMNS else max(1, min(teams, height // _SKEW))
    groups = -(-offsets // most)
    teams = -(-offsets // groups)
    pad = max((step.window[1] // 2 for step in segment.steps), default=0)
    stride = columns + 2 * pad
    found = _counts(forward, place) * height * columns * (both * lanes + 1)
    shared = (2 * teams * stride * lanes + found) * item
    fitting = max(1, _SHARED // (shared + 1024))
    resident = max(1, min(fitting, _RESIDENT // (teams * -(-columns // 32) * 32)))
    return Shape(columns, teams, segment.grid, reach, groups, stride, pad, shared, resident)


def write_pulling(plan: PullPlan) -> tuple[str, list[list[NDArray[Any]]]]:
    """The source of all kernels, and the tables of the duals of each segment."""
    writers = [_Writer(plan, place) for place in range(len(plan.segments))]
    headers = device_source("offsets.cuh"), device_source("pulling.cuh")
    texts = [plan.forward.preamble, *headers, *(writer.kernel() for writer in writers)]
    return "\n".join(texts), [writer.tables for writer in writers]


@dataclass(frozen=True)
class _Read:
    """A value that a phase needs from memory, and the number of the phase in which it is read, before the barrier."""

    kind: str  # the C++ type of the variable
    name: str
    what: str  # the C++ expression
    phase: int


@dataclass(frozen=True)
class _Phase:
    """What each thread does with the row that entered `late` rows earlier; `number` is also that of its windows."""

    number: int
    late: int
    lines: Sequence[str]
    reads: Sequence[_Read] = ()


class _Writer:
    """Writes the kernel of one segment."""

    def __init__(self, plan: PullPlan, place: int) -> None:
        self.plan, self.forward, self.place = plan, plan.forward, place
        self.segment, self.shape = plan.segments[place], plan.shapes[place]
        self.last = place == len(plan.segments) - 1
        self.reach = _reach(self.segment) or [0]
        self.tables, self.used = step_tables(self.segment, self.forward.dtype, derivatives=1)

    def kernel(self) -> str:
        (height, width), shape, steps = self.segment.grid, self.shape, len(self.segment.steps)
        if steps:
            phases = [self._again(number) for number in range(steps)]
            phases += [self._back(number) for number in reversed(range(steps - 1))]
            phases.append(self._leaving())
            phases.append(_Phase(2 * steps, -1, self._enter(read=True), self._entrance(2 * steps - 1)))  # the next row
            before, step = self._each("BEFORE * HEIGHT - here.team * SKEW", self._enter()), self._step(phases)
        else:
            before, step = [], self._each(self._time(0), [f"const Value g = {self._given()};", *self._leave()])
        parameters = [
            "const Lanes* __restrict__ left_pixels, const real* __restrict__ right_pixels",
            "const Lanes* __restrict__ left_norms, const real* __restrict__ right_norms",
            "const Value* __restrict__ entrance0, const Value* __restrict__ given",
            "Value* __restrict__ pulled, Value* __restrict__ lefts, real* __restrict__ rights",
            *(f"const real* __restrict__ table{i}" for i in range(len(self.tables))),
            "const Unit* units, int itself, index blocks",
        ]
        embeddings = "".join(self._embedding(number) for number in range(steps))
        windows = [f"{self._window(i if i < steps else 2 * steps - 1 - i)} windows{i}" for i in range(2 * steps)]
        delayed = [f"Delayed<{self._delay(i)}> {name}{i}" for i in self._delayed for name in ("slope", "bend")]
        clear = " ".join(f"{one.split()[-1]}.clear();" for one in [*windows, *delayed])
        late = 2 * self.reach[-1] + (shape.teams - 1) * _SKEW
        return f"""
namespace segment{self.place} {{
constexpr int HEIGHT = {height}, WIDTH = {width}, COLUMNS = {shape.columns}, TEAM = {shape.team}, TEAMS = {shape.teams};
constexpr int PAD = {shape.pad}, STRIDE = {shape.stride}, COUNT = {_counts(self.forward, self.place)};
constexpr int GROUPS = {shape.groups}, THREADS = THREADS_OF_BLOCK({shape.threads}), EACH = TEAM * TEAMS / THREADS;
constexpr int SKEW = {_SKEW}, LATE = {late}, BEFORE = (LATE + HEIGHT - 1) / HEIGHT;
constexpr int DOWN = {shape.offsets[0]}, ACROSS = {shape.offsets[1]};  // offsets of u and of v
constexpr int FIRST_U = DOWN < HEIGHT ? HEIGHT - DOWN / 2 : 0, FIRST_V = ACROSS < WIDTH ? WIDTH - ACROSS / 2 : 0;
using OwnPlace = Place<WIDTH, ACROSS, FIRST_V, PAD, COLUMNS, TEAM, TEAMS>;
using OwnRow = Row<HEIGHT, DOWN, FIRST_U, BEFORE>;
constexpr bool BOTH = {str(self.plan.both).lower()};
using OwnFound = Found<COUNT, HEIGHT, WIDTH, COLUMNS, THREADS, BOTH>;
struct Walk {{
    Value own;
    Neighbours<PAD> links;
    {" ".join(f"{one};" for one in [*windows, *delayed])}
    __device__ void clear() {{ {clear} }}
}};
{embeddings}
extern "C" __global__ void __launch_bounds__({shape.threads}, {shape.resident}) pull_{self.place}(
    {", ".join(parameters)}) {{
    SHARED(Value, lines);
    Walk walks[EACH];  // in registers
    Sources sources[EACH];
    const Order<TEAM, TEAMS, SKEW, HEIGHT> order(threadIdx.x / TEAM);
    for (index block = blockIdx.x; block < blocks; block += gridDim.x) {{
        const index number = block / GROUPS;
        const Unit unit = units[number];
        const OwnFound found(lines + 2 * TEAMS * STRIDE);
        const int first_v = int(block % GROUPS) * (TEAMS * COLUMNS / WIDTH);
        sync_block();
        for (int i = threadIdx.x; i < 2 * TEAMS * STRIDE; i += THREADS) lines[i] = nothing();
        found.clear();
#pragma unroll
        for (int each = 0; each < EACH; ++each) {{
            const OwnPlace here(threadIdx.x + each * THREADS, first_v);
            walks[each].clear();
            walks[each].links.find(here.k, here.n, WIDTH);
{indented(self._sources(), 12)}
        }}
        sync_block();
{indented(before, 8)}
        for (int start = 0; start < DOWN * HEIGHT + LATE; start += 2 * SKEW) {{
#pragma unroll
            for (int step = 0; step < 2 * SKEW; ++step) {{
                order.wait(step % SKEW);
{indented(step, 16)}
            }}
        }}
        sync_block();
        found.leave(lefts + block * (COUNT * HEIGHT * WIDTH), rights + block * (COUNT * HEIGHT * WIDTH));
    }}
}}
}}
"""

    def _sources(self) -> list[str]:
        """Lines that set the pointers of a thread to its columns in everything that it reads (`Sources`)."""
        pixels, norms = math.prod(self.segment.grid) * self.forward.graph.channels, self.forward.norm_count
        sources = {"line": "2 * here.team * STRIDE + here.column", "given": "given + number"}
        if self.place == 0:
            sources["x"] = f"left_pixels + (index(unit.left / LANES) * {pixels} + here.k)"
            sources["z"] = f"right_pixels + (index(unit.right) * {pixels} + here.n)"
        if any(map(self._embeds, range(len(self.segment.steps)))):
            sources["a"] = f"left_norms + (index(unit.left / LANES) * {norms} + here.k)"
            sources["b"] = f"right_norms + (index(unit.right) * {norms} + here.n)"
        lines = []
        if not self.last:
            one = self.segment.exits[0]
            lines.append(f"const OfWindows<{one.size[1]}, {one.grid[1]}> of(here.k, here.n);")
            sources["given"] += f" * {math.prod(one.grid) ** 2} + (of.U * {math.prod(one.grid)} + of.J)"
        return [*lines, *(f"sources[each].{name} = opaque({value});" for name, value in sources.items())]

    def _embeds(self, number: int) -> bool:
        return self.segment.steps[number].embedding is not None

    @property
    def _delayed(self) -> list[int]:
        """Steps whose slopes and bends are kept until the way back; the last step uses its own at once."""
        return [number for number in range(len(self.segment.steps) - 1) if self._embeds(number)]

    def _delay(self, number: int) -> int:
        """Rows between a step and the way back through the same step."""
        return 2 * (self.reach[-1] - self.reach[number])

    def _window(self, number: int) -> str:
        down, across = (size // 2 for size in self.segment.steps[number].window)
        return f"Windows<{down}, {across}>"

    def _late(self, phase: int) -> int:
        """How many rows before the newest one a phase works on; -1 in the last phase, in which the next row enters."""
        there = [0, *self.reach]
        return [*there[1:], *(2 * there[-1] - one for one in reversed(there[:-1])), -1][phase]

    def _step(self, phases: Sequence[_Phase]) -> list[str]:
        """All phases of a step, each after a barrier of the team, except the last one, in which a row enters."""
        reads = [(phase, read) for phase in phases for read in phase.reads]
        lines = [f"{read.kind} {read.name}{phase.number}[EACH];" for phase, read in reads]
        for phase in phases:
            for reader in phases:
                now = [read for read in reader.reads if read.phase == phase.number]
                if now:
                    taken = [f"{read.name}{reader.number}[each] = {read.what};" for read in now]
                    lines += self._each(self._time(reader.late), taken)
            inner = [f"const {read.kind}& {read.name} = {read.name}{phase.number}[each];" for read in phase.reads]
            if phase.late >= 0:
                lines.append("sync_threads_of_team<TEAM>();")
                inner += [
                    f"const Value* beside = lines + (from.line + {phase.number % 2} * STRIDE);",
                    f"const Value sum = walk.windows{phase.number}.add(walk.own, beside, at, walk.links);",
                ]
            lines += self._each(self._time(phase.late), [*inner, *phase.lines])
        return lines

    def _time(self, late: int) -> str:
        return f"start + step + BEFORE * HEIGHT - here.team * SKEW - ({late})"

    def _each(self, time: str, lines: Sequence[str]) -> list[str]:
        """A loop over a thread's columns, at the row of a time."""
        return [
            "#pragma unroll",
            "for (int each = 0; each < EACH; ++each) {",
            "    const OwnPlace here(threadIdx.x + each * THREADS, first_v);",
            "    if (here.idle) continue;",
            f"    const OwnRow at({time});",
            "    [[maybe_unused]] Walk& walk = walks[each];",
            "    [[maybe_unused]] const Sources& from = sources[each];",
            *(f"    {line}" for line in lines),
            "}",
        ]

    def _hand_on(self, number: int, value: str) -> list[str]:
        """Store a value in the team's row for the threads beside, for the windows with this number."""
        return [f"lines[from.line + {number % 2} * STRIDE] = walk.own = {value};"]

    def _entrance(self, phase: int) -> list[_Read]:
        """What a row that enters reads: pixels, or the exit of the segment before."""
        if self.place == 0:
            return self._pixels(phase)
        one = self.forward.segments[self.place - 1].exits[0]
        read = self.forward.entered(self.place, 0, "at.u(), here.v, at.row, here.k")
        scaled = f"{real(self.forward.exit_scale(self.place - 1, one))} * {read}"
        far = zip(("at.partner - at.row", "here.n - here.k"), self.shape.reach, self.segment.grid, strict=True)
        near = [f"abs({offset}) <= {reach}" for offset, reach, n in far if reach < n - 1]
        if near:  # other offsets are not needed, and were not computed
            scaled = f"{' && '.join(near)} ? {scaled} : nothing()"
        return [_Read("Value", "value", scaled, phase)]

    def _pixels(self, phase: int) -> list[_Read]:
        """Pixels of both images, if they have few channels."""
        grid, channels = math.prod(self.segment.grid), self.forward.graph.channels
        if channels > _EARLY:
            return []
        left = [_Read("Lanes", f"x{c}_", f"(from.x + at.row * WIDTH)[{c * grid}]", phase) for c in range(channels)]
        right = [_Read("real", f"z{c}_", f"(from.z + at.partner * WIDTH)[{c * grid}]", phase) for c in range(channels)]
        return [*left, *right]

    def _each_pixel(self, early: bool, lines: Sequence[str]) -> list[str]:
        """These lines for every channel c, with the pixels `left` and `right`; few channels may be read `early`."""
        grid, channels = math.prod(self.segment.grid), self.forward.graph.channels
        if early and channels <= _EARLY:
            names = "constexpr int c = CHANNEL; const Lanes& left = xCHANNEL_; const real right = zCHANNEL_;"
            bodies = [[line.replace("CHANNEL", str(c)) for line in (names, *lines)] for c in range(channels)]
            return [line for body in bodies for line in ("{", *(f"    {one}" for one in body), "}")]
        return [
            "const Lanes* p = from.x + at.row * WIDTH;",
            "const real* q = from.z + at.partner * WIDTH;",
            f"#pragma unroll {min(4, channels)}",
            f"for (int c = 0; c < {channels}; ++c) {{",
            f"    const Lanes left = p[c * {grid}];",
            f"    const real right = q[c * {grid}];",
            *(f"    {line}" for line in lines),
            "}",
        ]

    def _enter(self, read: bool = False) -> list[str]:
        """Lines with which a row enters: its inner products of pixels, or the exit of the segment before."""
        if self.place:
            lines = [] if read else [f"const Value value = {self._entrance(0)[0].what};"]
        else:
            each = "for (int i = 0; i < LANES; ++i) value.v[i] += left.v[i] * right;"
            lines = ["Value value = nothing();", *self._each_pixel(read, [each])]
        return [*lines, *self._hand_on(0, "value")]

    def _again(self, number: int) -> _Phase:
        """A step of the forward pass; the last step also begins the way back, with the cotangents of the pool."""
        last, lines = number == len(self.segment.steps) - 1, ["const Value& value = sum;"]
        reads = list[_Read]()
        if self._embeds(number):
            place = self.forward.norm_places[self.place, number]
            tables = "".join(f"table{i}, " for i in self.used[number])
            same = "itself && here.v == 0 && at.row == at.partner"
            reads.append(_Read("Lanes", "left", f"(from.a + at.row * WIDTH)[{place}]", number))
            reads.append(_Read("real", "right", f"(from.b + at.partner * WIDTH)[{place}]", number))
            lines = [
                "Value slope, bend;",
                f"const Value value = embed{number}(sum, left, right, {tables}{same}, slope, bend);",
            ]
        if last:
            reads.append(_Read("Value", "g", self._given(), 0))  # far away in memory: read a whole step before its use
            lines += self._pull(number)
            reads += [self._sums(self._norm(number), number)] * self._embeds(number)
        else:
            lines += self._hand_on(number + 1, "value")
            if self._embeds(number):
                lines += [f"walk.{name}{number}.add({name});" for name in ("slope", "bend")]
        return _Phase(number, self._late(number), lines, reads)

    def _back(self, number: int) -> _Phase:
        """The way back through a step: cotangents of its sum from those of the next step's."""
        lines, phase = ["const Value& g = sum;"], 2 * len(self.segment.steps) - 2 - number
        reads = list[_Read]()
        if self._embeds(number):
            lines += [f"const Value& {name} = walk.{name}{number}.due;" for name in ("slope", "bend")]
            reads.append(self._sums(self._norm(number), phase))
        return _Phase(phase, self._late(phase), [*lines, *self._pull(number)], reads)

    def _leaving(self) -> _Phase:
        """The way back to the entrance, with pixels read one phase earlier."""
        phase = 2 * len(self.segment.steps) - 1
        reads = self._pixels(max(0, phase - 1)) if self.place == 0 else []
        sums = [f"const OwnFound::Sums sums{c}_ = found.sums({c}, {_PLACES});" for c in range(len(reads) // 2)]
        return _Phase(phase, self._late(phase), ["const Value& g = sum;", *sums, *self._leave(read=True)], reads)

    def _leave(self, read: bool = False) -> list[str]:
        """Lines that store cotangents g of the entrance: as those of pixels, or of the exit of the segment before."""
        if self.place:
            scale = real(self.forward.exit_scale(self.place - 1, self.forward.segments[self.place - 1].exits[0]))
            where = "(number * HEIGHT + at.u()) * WIDTH + here.v) * (HEIGHT * WIDTH) + at.row * WIDTH + here.k"
            return [f"if (at.used) pulled[({where}] = {scale} * g;"]
        sums = "sumsCHANNEL_" if read and self.forward.graph.channels <= _EARLY else f"found.sums(c, {_PLACES})"
        return self._each_pixel(read, [f"found.add_pixels(c, {_PLACES}, {sums}, g, left, right);"])

    def _given(self) -> str:
        """C++ for the cotangent g of the pool's window that a position is in; zero at rows that are not in use."""
        one = self.segment.exits[0]
        if self.last:
            counts = "at.used && here.v == 0 && at.row == at.partner" if self.plan.flat else "at.used"
            return f"{counts} ? *from.given : nothing()"
        of = f"OfWindows<{one.size[0]}, {one.grid[0]}>(at.row, at.partner)"
        return f"at.used ? from.given[{of}.place({math.prod(one.grid) * one.grid[1]}, {one.grid[1]})] : nothing()"

    def _pull(self, number: int) -> list[str]:
        """Lines that multiply cotangents g by slopes, and add their products with bends to those of norms."""
        to = 2 * len(self.segment.steps) - 1 - number
        if not self._embeds(number):
            return self._hand_on(to, "g")
        which = self._norm(number)
        return [*self._hand_on(to, "g * slope"), f"found.add({which}, {_PLACES}, sums{which}_, g * bend);"]

    def _sums(self, which: int, phase: int) -> _Read:
        """Cotangents of both images so far, of number `which`: no other thread changes them until the next barrier."""
        return _Read("OwnFound::Sums", f"sums{which}_", f"found.sums({which}, {_PLACES})", phase)

    def _norm(self, number: int) -> int:
        """Which of the cotangents of a position (`_counts`) is that of the norm of a step."""
        return sum(map(self._embeds, range(number))) + (self.place == 0) * self.forward.graph.channels

    def _embedding(self, number: int) -> str:
        """The function that embeds the sums of a step, and gives slopes and bends."""
        embedding = self.segment.steps[number].embedding
        if embedding is None:
            return ""
        parameters = "".join(f"const real* table{i}, " for i in range(len(self.used[number])))
        return f"""
__device__ inline Value embed{number}(const Value& sum, const Lanes& left, real right, {parameters}bool same,
                                      Value& slope_out, Value& bend_out) {{
    Value value;
    for (int i = 0; i < LANES; ++i) {{
        const real s = sum.v[i], a = left.v[i] * right;
{indented(pull_lines(embedding, self.forward.dtype), 8)}
        value.v[i] = k, slope_out.v[i] = slope, bend_out.v[i] = bend;
    }}
    return value;
}}
"""
