"""Writes the kernels of fused gradients as C++, from the functions of `pulling.cuh`.

There is one kernel for every segment. It goes down the rows of the segment, computes its steps again, and keeps two
derivatives of every dual: the slope, by the inner product, and the bend, by the logarithm of norms. A few rows later it
goes back through the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .compile import source as device_source
from .duals import indented, pull_lines, real, step_tables
from .pulling import ROUND, PullPlan, count_cotangents, early_channels, reached, rounds_ahead


def write_pulling(plan: PullPlan) -> tuple[str, list[list[NDArray[Any]]]]:
    """The source of all kernels, and the tables of the duals of each segment."""
    writers = [PullWriter(plan, place) for place in range(len(plan.segments))]
    headers = device_source("offsets.cuh"), device_source("pulling.cuh")
    texts = [plan.forward.preamble, *headers, *(writer.kernel() for writer in writers)]
    return "\n".join(texts), [writer.tables for writer in writers]


@dataclass(frozen=True)
class _Read:
    """A value that a phase needs from memory, and the number of the phase at whose beginning it is read."""

    kind: str  # the C++ type of the variable
    name: str
    what: str  # the C++ expression
    phase: int


@dataclass(frozen=True)
class _Phase:
    """What each thread does with the row of an age; `number` is also that of its windows."""

    number: int
    age: int
    lines: Sequence[str]
    reads: Sequence[_Read] = ()


class PullWriter:
    """Writes the kernel of one segment."""

    def __init__(self, plan: PullPlan, place: int) -> None:
        self.plan, self.forward, self.place = plan, plan.forward, place
        self.segment, self.shape = plan.segments[place], plan.shapes[place]
        self.last = place == len(plan.segments) - 1
        self.reach = reached(self.segment) or [0]
        self.tables, self.used = step_tables(self.segment, self.forward.dtype, derivatives=1)
        self.early = early_channels(self.forward, self.segment, place)
        # Pixels that are read late, and a patch of the whole grid, are met at one offset u only.
        assert self.shape.span == 1 or not ((place == 0 and not self.early) or (plan.flat and self.last))

    def kernel(self) -> str:
        (height, width), shape, steps = self.segment.grid, self.shape, len(self.segment.steps)
        if steps:
            phases = [self._again(number) for number in range(steps)]
            phases += [self._back(number) for number in reversed(range(steps - 1))]
            phases.append(self._leaving())
            phases.append(_Phase(2 * steps, -1, self._enter(), self._entrance(2 * steps - 1)))  # the next row
        else:
            phases = [_Phase(0, -1, [f"const Own g = {self._given(-1)};", *self._leave(-1)])]
        parameters = [
            "const Lanes* __restrict__ left_planes, const real* __restrict__ right_planes",
            "const Value* __restrict__ entrance0, const Value* __restrict__ given",
            "Value* __restrict__ pulled, Value* __restrict__ lefts, real* __restrict__ rights",
            *(f"const real* __restrict__ table{i}" for i in range(len(self.tables))),
            "const Unit* units, int itself, index blocks",
        ]
        count, oldest = count_cotangents(self.forward, self.place), 2 * self.reach[-1]
        embeddings = "".join(self._embedding(number) for number in range(steps))
        windows = [f"{self._window(i if i < steps else 2 * steps - 1 - i)} windows{i}" for i in range(2 * steps)]
        delayed = [f"Delayed<{self._delay(i)}, SPAN> {name}{i}" for i in self._delayed for name in ("slope", "bend")]
        rights = [f"norm{number}" for number in range(steps) if self._embeds(number)]
        rights += [f"{name}{c}" for name in ("entering", "leaving") for c in range(self.early)]
        clear = " ".join(f"{one.split()[-1]}.clear();" for one in [*windows, *delayed])
        clear += " ".join(f" {name} = {{}};" for name in rights)
        return f"""
namespace segment{self.place} {{
constexpr int HEIGHT = {height}, WIDTH = {width}, COLUMNS = {shape.columns}, TEAM = {shape.team}, TEAMS = {shape.teams};
constexpr int PAD = {shape.pad}, STRIDE = {shape.stride}, COUNT = {count}, OLDEST = {oldest}, SPAN = {shape.span};
constexpr int GROUPS = {shape.groups}, THREADS = THREADS_OF_BLOCK({shape.threads}), EACH = TEAM * TEAMS / THREADS;
constexpr int DOWN = {shape.offsets[0]}, ACROSS = {shape.offsets[1]};  // offsets of u and of v
constexpr int FIRST_U = DOWN < HEIGHT ? HEIGHT - DOWN / 2 : 0, FIRST_V = ACROSS < WIDTH ? WIDTH - ACROSS / 2 : 0;
constexpr int WALK = DOWN / SPAN * (HEIGHT + SPAN - 1), STEPS = WALK + OLDEST + SPAN, ROUND = {ROUND};
constexpr bool BOTH = {str(self.plan.both).lower()}, SHUFFLES = {str(shape.shuffles).lower()} && !ON_HOST;
constexpr int LINES = {0 if shape.shuffles else 1} || ON_HOST ? 2 * TEAMS * STRIDE : 0;
using Own = Values<SPAN>;
using OwnPlace = Place<WIDTH, ACROSS, FIRST_V, PAD, COLUMNS, TEAM, TEAMS>;
using OwnPlanes = Planes<COUNT, HEIGHT, WIDTH, COLUMNS, THREADS, BOTH, {str(shape.staged).lower()}>;
struct Walk {{
    Own own;
    Track<HEIGHT, FIRST_U, SPAN, COLUMNS, OLDEST> rows;
    Neighbours<PAD> links;
    const Value* given;  // the thread's columns of it
    int alone;  // how far apart places are at equal positions of an image with itself; impossible in other pairs
    int line;  // the thread's place in the first of its team's two rows of shared memory, which windows use in turn
    real carried[COUNT > 0 ? COUNT : 1];
    {" ".join(f"{one};" for one in [*windows, *delayed, *(f"Numbers<SPAN> {name}" for name in rights)])}
    __device__ void clear() {{
        own.clear();
        {clear}
        for (real& one : carried) one = 0;
    }}
}};
{embeddings}
extern "C" __global__ void __launch_bounds__({shape.threads}, {shape.resident}) pull_{self.place}(
    {", ".join(parameters)}) {{
    SHARED(Own, lines);
    Walk walks[EACH];  // in registers
    for (index block = blockIdx.x; block < blocks; block += gridDim.x) {{
        const index number = block / GROUPS;
        const Unit unit = units[number];
        const OwnPlanes planes(reinterpret_cast<Value*>(lines + LINES),
                               left_planes + index(unit.left / LANES) * (COUNT * OwnPlanes::LEFT),
                               right_planes + index(unit.right) * (COUNT * OwnPlanes::RIGHT));
        Turns<TEAM, TEAMS, {rounds_ahead(height)}> turns(planes.end());
        const int first_v = int(block % GROUPS) * (TEAMS * COLUMNS / WIDTH);
        sync_block();
        turns.clear();
        for (int i = threadIdx.x; i < LINES; i += THREADS) lines[i].clear();
        planes.fill();
#pragma unroll
        for (int each = 0; each < EACH; ++each) {{
            const OwnPlace here(threadIdx.x + each * THREADS, first_v);
            Walk& walk = walks[each];
            walk.clear();
            walk.rows.start(here.mine, here.others);
            walk.links.find(here.k, here.n, WIDTH);
            walk.alone = opaque(itself && here.v == 0 ? COLUMNS * int(sizeof(Lanes)) : 1 << 30);
            walk.line = opaque(2 * here.team * STRIDE + here.column);
{indented(self._columns(), 12)}
        }}
        sync_block();
        for (int round = 0; round < (STEPS + ROUND - 1) / ROUND + (IN_STEP ? TEAMS - 1 : 0); ++round) {{
            turns.wait(round);
#pragma unroll
            for (int step = 0; step < ROUND; ++step) {{
{indented(self._step(phases), 16)}
            }}
            turns.finish(round);
        }}
        sync_block();
        planes.leave(lefts + block * (COUNT * HEIGHT * WIDTH), rights + block * (COUNT * HEIGHT * WIDTH));
    }}
}}
}}
"""

    def _columns(self) -> list[str]:
        """Lines that find the thread's columns in the cotangents `given`."""
        place, lines = "number", list[str]()
        if not self.last:
            one = self.segment.exits[0]
            lines.append(f"const OfWindows<{one.size[1]}, {one.grid[1]}> of(here.k, here.n);")
            place += f" * {math.prod(one.grid) ** 2} + (of.U * {math.prod(one.grid)} + of.J)"
        return [*lines, f"walk.given = opaque(given + {place});"]

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
        return f"Windows<{down}, {across}, SPAN, SHUFFLES>"

    def _age(self, phase: int) -> int:
        """The age of the row that a phase works on; -1 in the last phase, in which the next row enters."""
        there = [0, *self.reach]
        return [*there[1:], *(2 * there[-1] - one for one in reversed(there[:-1])), -1][phase]

    def _step(self, phases: Sequence[_Phase]) -> list[str]:
        """All phases of a step. Where threads do not shuffle, a barrier precedes each but the last: a row enters."""
        reads = [(phase, read) for phase in phases for read in phase.reads]
        lines = [f"{read.kind} {read.name}{phase.number}[EACH];" for phase, read in reads]
        lines += self._each(["walk.rows.enter(time < WALK, here.mine, here.others);"])
        for phase in phases:
            taken = [
                f"{read.name}{reader.number}[each] = {read.what};"
                for reader in phases
                for read in reader.reads
                if read.phase == phase.number
            ]
            lines += self._each(taken) if taken else []
            inner = [f"const {read.kind}& {read.name} = {read.name}{phase.number}[each];" for read in phase.reads]
            if phase.age >= 0:
                lines.append("if constexpr (!SHUFFLES) sync_threads_of_team<TEAM>();")
                at = f"lines + (walk.line + {phase.number % 2} * STRIDE)"
                inner.append(
                    f"const Own sum = walk.windows{phase.number}.add(walk.own, {at}, rows, {phase.age}, walk.links);"
                )
            lines += self._each([*inner, *phase.lines])
        return lines

    def _each(self, lines: Sequence[str]) -> list[str]:
        """A loop over a thread's columns."""
        return [
            "#pragma unroll",
            "for (int each = 0; each < EACH; ++each) {",
            "    const OwnPlace here(threadIdx.x + each * THREADS, first_v);",
            "    const int time = (round - (IN_STEP ? here.team : 0)) * ROUND + step;",
            "    if (here.idle || (IN_STEP && time < 0)) continue;",
            "    Walk& walk = walks[each];",
            "    [[maybe_unused]] const auto& rows = walk.rows;",
            *(f"    {line}" for line in lines),
            "}",
        ]

    def _hand_on(self, number: int, value: str) -> list[str]:
        """Keep a value for the windows with this number, of this thread and of those beside it."""
        return [
            f"walk.own = {value};",
            f"if constexpr (!SHUFFLES) lines[walk.line + {number % 2} * STRIDE] = walk.own;",
        ]

    def _entrance(self, phase: int) -> list[_Read]:
        """What a row that enters reads: pixels, or the exit of the segment before."""
        if self.place == 0:
            return self._pixels(phase, -1)
        one = self.forward.segments[self.place - 1].exits[0]
        reads = list[_Read]()
        for s in range(self.shape.span):
            read = self.forward.entered(self.place, 0, f"rows.offset(-1, {s}), here.v, rows.of_left(-1), here.k")
            scaled = f"{real(self.forward.exit_scale(self.place - 1, one))} * {read}"
            far = zip(
                (f"int(rows.of_right(-1, {s}) - rows.of_left(-1))", "here.n - here.k"),
                self.shape.reach,
                self.segment.grid,
                strict=True,
            )
            near = [f"abs({offset}) <= {reach}" for offset, reach, n in far if reach < n - 1]
            if near:  # other offsets are not needed, and were not computed
                scaled = f"{' && '.join(near)} ? {scaled} : nothing()"
            reads.append(_Read("Value", f"value{s}_", scaled, phase))
        return reads

    def _pixels(self, phase: int, age: int) -> list[_Read]:
        """Pixels of both images, if they have few channels."""
        left = [_Read("Lanes", f"x{c}_", self._near(c, age), phase) for c in range(self.early)]
        right = [_Read("real", f"z{c}_", self._far(c, age), phase) for c in range(self.early)]
        return [*left, *right]

    def _near(self, which: int | str, age: int) -> str:
        """The number `which` of the left images."""
        return f"planes.left({which}, rows.left({age}))"

    def _far(self, which: int | str, age: int) -> str:
        """The number `which` of the right image at the last of the offsets u."""
        return f"planes.right({which}, rows.right({age}, SPAN - 1))"

    def _each_pixel(self, age: int, lines: Sequence[str], leaving: bool = False) -> list[str]:
        """These lines for every channel c, with its pixels and, if they are leaving, with the cotangents `so_far`."""
        channels = self.forward.graph.channels
        if not self.early:
            sums = [f"    const auto so_far = {self._sums('c', 0, age).what};"] * leaving
            return [
                f"#pragma unroll {min(4, channels)}",
                f"for (int c = 0; c < {channels}; ++c) {{",
                f"    const Lanes left = {self._near('c', age)};",
                f"    const Numbers<SPAN> right = {{{self._far('c', age)}}};",
                *sums,
                *(f"    {line}" for line in lines),
                "}",
            ]
        blocks, kept = list[str](), "leaving" if leaving else "entering"
        for c in range(channels):
            sums = [f"    const auto& so_far = sums{c}_;"] * leaving
            blocks += [
                "{",
                f"    constexpr int c = {c};",
                f"    const Lanes& left = x{c}_;",
                f"    const Numbers<SPAN>& right = walk.{kept}{c}.add(z{c}_);",
                *sums,
                *(f"    {line}" for line in lines),
                "}",
            ]
        return blocks

    def _enter(self) -> list[str]:
        """Lines with which a row enters: its inner products of pixels, or the exit of the segment before."""
        if self.place:
            values = ", ".join(f"value{s}_" for s in range(self.shape.span))
            return self._hand_on(0, f"{{{values}}}")
        products = [
            "for (int s = 0; s < SPAN; ++s)",
            "    for (int i = 0; i < LANES; ++i) value.at[s].v[i] += left.v[i] * right.at[s];",
        ]
        return ["Own value;", "value.clear();", *self._each_pixel(-1, products), *self._hand_on(0, "value")]

    def _again(self, number: int) -> _Phase:
        """A step of the forward pass; the last step also begins the way back, with the cotangents of the pool."""
        last, age, lines = number == len(self.segment.steps) - 1, self._age(number), ["const Own& value = sum;"]
        reads = list[_Read]()
        if self._embeds(number):
            which, tables = self._norm(number), "".join(f"table{i}, " for i in self.used[number])
            same = f"s == 0 && rows.apart({age}) == walk.alone"
            reads.append(_Read("Lanes", "left", self._near(which, age), number))
            reads.append(_Read("real", "right", self._far(which, age), number))
            arguments = f"sum.at[s], left, rights.at[s], {tables}{same}, slope.at[s], bend.at[s]"
            lines = [
                f"const Numbers<SPAN>& rights = walk.norm{number}.add(right);",
                "Own slope, bend;" if last else "Own value, slope, bend;",
                "#pragma unroll",
                f"for (int s = 0; s < SPAN; ++s) {'' if last else 'value.at[s] = '}embed{number}({arguments});",
            ]
        if last:
            reads.append(_Read("Own", "g", self._given(age), 0))  # far away in memory: read a whole step before its use
            lines += self._pull(number, age)
            reads += [self._sums(self._norm(number), number, age)] * self._embeds(number)
        else:
            lines += self._hand_on(number + 1, "value")
            if self._embeds(number):
                lines += [f"walk.{name}{number}.add({name});" for name in ("slope", "bend")]
        return _Phase(number, age, lines, reads)

    def _back(self, number: int) -> _Phase:
        """The way back through a step: cotangents of its sum from those of the next step's."""
        lines, phase = ["const Own& g = sum;"], 2 * len(self.segment.steps) - 2 - number
        reads, age = list[_Read](), self._age(phase)
        if self._embeds(number):
            lines += [f"const Own& {name} = walk.{name}{number}.due;" for name in ("slope", "bend")]
            reads.append(self._sums(self._norm(number), phase, age))
        return _Phase(phase, age, [*lines, *self._pull(number, age)], reads)

    def _leaving(self) -> _Phase:
        """The way back to the entrance, with pixels read one phase earlier."""
        phase = 2 * len(self.segment.steps) - 1
        age = self._age(phase)
        reads = self._pixels(max(0, phase - 1), age) if self.place == 0 else []
        sums = [self._sums(c, phase, age) for c in range(self.early)]
        lines = [f"const {one.kind} {one.name} = {one.what};" for one in sums]
        return _Phase(phase, age, ["const Own& g = sum;", *lines, *self._leave(age)], reads)

    def _leave(self, age: int) -> list[str]:
        """Lines that store cotangents g of the entrance: as those of pixels, or of the exit of the segment before."""
        if not self.place:
            places = f"rows.left({age}), rows.right({age})"
            add = f"planes.add_pixels(c, {places}, so_far, g, left, right, walk.carried[c]);"
            return self._each_pixel(age, [add], leaving=True)
        scale = real(self.forward.exit_scale(self.place - 1, self.forward.segments[self.place - 1].exits[0]))
        offset = f"(number * HEIGHT + rows.offset({age}, s)) * WIDTH + here.v"
        place = f"({offset}) * (HEIGHT * WIDTH) + rows.of_left({age}) * WIDTH + here.k"
        return ["for (int s = 0; s < SPAN; ++s)", f"    if (rows.exists({age})) pulled[{place}] = {scale} * g.at[s];"]

    def _given(self, age: int) -> str:
        """C++ for the cotangents g of the pool's windows that a position is in; see `_columns`."""
        one = self.segment.exits[0]
        if self.last:
            g = "*walk.given"
            counts = [f"here.v == 0 && rows.apart({age}) == rows.LEFT"] if self.plan.flat else []
        else:
            of = f"OfWindows<{one.size[0]}, {one.grid[0]}>(rows.of_left({age}), rows.of_right({age}, S))"
            g, counts = f"walk.given[{of}.place({math.prod(one.grid) * one.grid[1]}, {one.grid[1]})]", []
        if not self.segment.steps or not self._embeds(len(self.segment.steps) - 1):
            counts.append(f"rows.exists({age})")  # an embedding has no slope in the row of zeros
        if counts:
            g = f"{' && '.join(counts)} ? {g} : nothing()"
        return f"{{{', '.join(g.replace('S)', f'{s})') for s in range(self.shape.span))}}}"

    def _pull(self, number: int, age: int) -> list[str]:
        """Lines that multiply cotangents g by slopes, and add their products with bends to those of norms."""
        to = 2 * len(self.segment.steps) - 1 - number
        if not self._embeds(number):
            return self._hand_on(to, "g")
        which = self._norm(number)
        place = f"{which}, rows.left({age}), rows.right({age})"
        return [*self._hand_on(to, "g * slope"), f"planes.add({place}, sums{which}_, g * bend, walk.carried[{which}]);"]

    def _sums(self, which: int | str, phase: int, age: int) -> _Read:
        """Cotangents of both images so far, of number `which`: while a team is in a round, only it changes them."""
        what = f"planes.sums({which}, rows.left({age}), rows.right({age}))"
        return _Read("OwnPlanes::Sums", f"sums{which}_", what, phase)

    def _norm(self, number: int) -> int:
        """The plane of the norm of a step."""
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
