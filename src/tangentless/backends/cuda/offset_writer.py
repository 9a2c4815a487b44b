"""Writes the kernels of the offset path as C++, from the functions of `offsets.cuh`.

There is one kernel for every segment. It has one loop over rows for every step, and a function for every embedding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from ..segments import Exit, Term
from .compile import source as device_source
from .duals import dual_lines, indented, real, step_tables
from .offsets import LINES, OffsetPlan, axis_type, sums_lines

_UNROLLED = 7  # rows by which loops over rows are unrolled, at most
_AHEAD = 2  # rows by which loops that read pixels are unrolled
_FULL = 8  # rows of a thread up to which a loop that reads sums along rows is unrolled fully
_PASS = 4  # rows by which it is unrolled for a thread that has fewer rows


def write_offsets(plan: OffsetPlan) -> tuple[str, list[list[NDArray[Any]]]]:
    """The source of all kernels, and the tables of the duals of each segment."""
    writers = [SegmentWriter(plan, place) for place in range(len(plan.segments))]
    texts = [
        plan.preamble,
        device_source("norms.cuh"),
        *(writer.kernel() for writer in writers[plan.has_first_stage :]),
    ]
    return "\n".join(texts), [writer.tables for writer in writers]


class SegmentWriter:
    """Writes the kernel of one segment."""

    def __init__(self, plan: OffsetPlan, place: int) -> None:
        self.plan, self.place = plan, place
        self.segment, self.shape = plan.segments[place], plan.plans[place]
        self.last = place == len(plan.segments) - 1
        self.tables, self.used = step_tables(self.segment, plan.dtype, derivatives=int(plan.graph.tangent))

    def kernel(self) -> str:
        if self.shape.slides:
            return self._sliding()
        (height, width), shape = self.segment.grid, self.shape
        phases = [*self._entrances(), *(self._step(number) for number in range(len(self.segment.steps)))]
        embeddings = "".join(self._embedding(number) for number in range(len(self.segment.steps)))
        exits = [] if self.last else self.segment.exits
        opened, closed = self._exits(exits)
        start = "" if shape.by_warps else indented(self._separated, 16)
        framed = 1 if shape.by_warps else len(set(shape.planes.values()))  # planes with zeros
        return f"""
namespace segment{self.place} {{
constexpr int HEIGHT = {height}, WIDTH = {width}, COLUMNS = {shape.columns}, BANDS = {shape.bands};
constexpr int PAD = {shape.pad}, STRIDE = {shape.stride};
constexpr int STACK = {shape.stack}, OFFSETS = STACK ? STACK : COLUMNS / WIDTH;
constexpr int PLANE = (STACK ? STACK : HEIGHT) * STRIDE, ROWS = PLANE / STRIDE * {framed};
constexpr int GROUP = {shape.group}, THREADS = THREADS_OF_BLOCK({shape.threads});
constexpr bool PAIRED = {str(shape.paired).lower()};
constexpr int ITEMS = COLUMNS * BANDS, PARTS_OF_U = PAIRED && HEIGHT > 1 ? 2 : 1;
{embeddings}
extern "C" __global__ void __launch_bounds__({shape.threads}, {shape.resident}) segment_{self.place}(
    {self._parameters(exits)}) {{
    SHARED(Value, planes);
    for (index block = blockIdx.x; block < blocks; block += gridDim.x) {{
        const index number = block / group_count;
        const Unit unit = units[number];
        const int group = groups[block % group_count];
{self._images()}
        sync_block();
        frame<WIDTH, PAD, STRIDE, ROWS, THREADS>(planes);
{opened}
        const int first_u = max(group * GROUP, PAIRED ? 0 : 1 - HEIGHT), last_u = min(group * GROUP + GROUP, HEIGHT);
        for (int u = first_u; u < last_u; ++u) {{
            if (!needed[u + HEIGHT - 1] && !(PAIRED && u > 0 && needed[u - 1])) continue;
            const Rows<HEIGHT, PAIRED> rows(u);
            for (int start = 0; start < offset_count; start += OFFSETS) {{
                const int* here = offsets + start;
                const int count = min(OFFSETS, offset_count - start);
                const {self._column} mine(min(int(threadIdx.x), ITEMS - 1), here, count, rows);
{start}
{"".join(phases)}
{closed}
            }}
        }}
{self._finish()}
    }}
}}
}}
"""

    def _parameters(self, exits: Sequence[Exit]) -> str:
        parameters = [
            "const Lanes* __restrict__ left_pixels, const real* __restrict__ right_pixels",
            "const Lanes* __restrict__ left_norms, const real* __restrict__ right_norms",
            *(f"const Value* __restrict__ entrance{i}" for i in range(self.segment.entrances)),
            *(f"Value* __restrict__ exit{i}" for i in range(len(exits))),
            *(["double* totals"] if self.last else []),
            *(f"const real* __restrict__ table{i}" for i in range(len(self.tables))),
            "const Unit* units, const int* groups, const signed char* needed",
            "const int* __restrict__ offsets, int group_count, int offset_count, int itself, index blocks",
        ]
        return ", ".join(parameters)

    def _sliding(self) -> str:
        """The kernel of a first segment without planes, by `sliding.cuh`."""
        (height, width), shape, (one,), steps = self.segment.grid, self.shape, self.segment.exits, self.segment.steps
        axes = ", ".join(axis_type(one, axis, self.segment) for axis in range(2))
        high, reach = (max(taps) for taps in steps[0].terms[0].taps)
        places = [self.plan.norm_places[0, number] for number in range(len(steps))]
        even = str(not any(number % 2 for number in [*places, self.plan.norm_count])).lower()
        numbers = f"{self.plan.graph.channels}, {len(steps)}, {reach}, {high}, {height}, {width}, {even}, THREADS"
        calls = []
        for number, step in enumerate(steps):
            weight = "" if step.terms[0].weight == 1.0 else f"{real(step.terms[0].weight)} * "
            tables = "".join(f"table{i}, " for i in self.used[number])
            calls.append(f"if (layer == {number}) return embed{number}({weight}sum, left, right, {tables}false);")
        calls.append("return nothing();")
        return f"""
namespace segment0 {{
constexpr int THREADS = THREADS_OF_BLOCK({shape.threads});
{"".join(self._embedding(number) for number in range(len(steps)))}
extern "C" __global__ void __launch_bounds__({shape.threads}, {shape.resident}) segment_0(
    {self._parameters(self.segment.exits)}) {{
    for (index block = blockIdx.x; block < blocks; block += gridDim.x) {{
        const index number = block / group_count;
        const Unit unit = units[number];
        const int group = groups[block % group_count];
{self._images()}
        const Exit<{axes}, THREADS> out = {{exit0 + number * {self.plan.exit_numbers(0, one)}}};
        const auto embed = [&](int layer, const Value& sum, const Lanes& left, real right) {{
{indented(calls, 12)}
        }};
        const Sliding<{numbers}> sliding = {{x, z, a, b, {{{", ".join(map(str, places))}}}}};
        sliding.run(out, group, needed, offsets, offset_count, embed);
    }}
}}
}}
"""

    _separated = ("sync_block();", "separate<WIDTH, PAD, STRIDE, STACK, ROWS, THREADS>(planes, here, count);")

    @property
    def _column(self) -> str:
        """The C++ type of the columns that a thread works on."""
        return "Stack<WIDTH, PAD, STRIDE, OFFSETS>" if self.shape.stack else "Column<WIDTH, PAD, COLUMNS, BANDS>"

    def _images(self) -> str:
        """Pointers to the pixels and norms of a unit's images, and in the last segment its totals."""
        pixels, norms = math.prod(self.segment.grid) * self.plan.graph.channels, self.plan.norm_count
        lines = [
            f"const Lanes* __restrict__ a = left_norms + index(unit.left / LANES) * {norms};",
            f"const real* __restrict__ b = right_norms + index(unit.right) * {norms};",
        ]
        if self.place == 0:
            lines.append(f"const Lanes* __restrict__ x = left_pixels + index(unit.left / LANES) * {pixels};")
            lines.append(f"const real* __restrict__ z = right_pixels + index(unit.right) * {pixels};")
        if self.last:
            lines.append("double total[PARTS] = {};")
        return indented(lines, 8)

    def _exits(self, exits: Sequence[Exit]) -> tuple[str, str]:
        """Lines that declare and clear exits, and lines that add to them."""
        opened, closed = [], []
        for i, one in enumerate(exits):
            values = f"exit{i} + number * {self.plan.exit_numbers(self.place, one)}"
            plane = f"planes + {self.shape.planes[one.value]} * PLANE"
            down, across = (axis_type(one, axis, self.segment) for axis in range(2))
            if self._stores_once:
                opened.append(f"RowExit<{across}, STACK, THREADS> out{i}({values});")
                closed.append(f"out{i}.template add<STRIDE, PAD>({plane}, here[0]);")
            else:
                opened.append(f"const Exit<{down}, {across}, THREADS> out{i} = {{{values}}};")
                opened.append(f"out{i}.clear(group);")
                layout = "COLUMNS, 0, 0" if self.shape.by_warps else "STRIDE, PAD, STACK"
                closed.append(f"out{i}.add<{layout}>({plane}, group, u, here, count);")
        if closed:
            closed.insert(0, "sync_block();")
        if self.shape.by_warps:
            opened.append("sync_block();  // warps read zeros that other warps stored")
        return indented(opened, 8), indented(closed, 16)

    @property
    def _stores_once(self) -> bool:
        """Whether exits store every sum once, when it is complete: for pools of two positions of a row (`RowExit`)."""
        stack, width = self.shape.stack, self.segment.grid[1]
        pairs = all(one.size == one.stride == (1, 2) and one.grid == (1, width // 2) for one in self.segment.exits)
        return pairs and not self.last and stack > 0 and stack % 2 == width % stack == 0

    def _finish(self) -> str:
        if self._stores_once:
            return indented([f"out{i}.finish();" for i in range(len(self.segment.exits))], 8)
        if not self.last:
            return ""
        lines = [
            "sync_block();",
            "add_up<THREADS>(total, reinterpret_cast<double*>(planes));",
            "if (threadIdx.x == 0)",
            "    for (int i = 0; i < PARTS; ++i) totals[block * PARTS + i] = total[i];",
        ]
        return indented(lines, 8)

    def _phase(self, before: Sequence[str], loop: Sequence[str]) -> str:
        """A barrier, then a loop over a thread's columns that runs the lines `before` and `loop` for each part of u.

        Both know the column, the offset, the rows [low, high) of the part, and the thread's [first, last) of them.
        """
        inner = [
            "sync_block();",
            "for (int item = threadIdx.x; item < ITEMS; item += THREADS) {",
            "    const auto own = THREADS >= ITEMS ? mine : decltype(mine)(item, here, count, rows);",
            *(f"    {line}" for line in (self._of_stack if self.shape.stack else self._of_parts)),
            *(f"        {line}" for line in [*before, *loop]),
            "    }",
            "}",
        ]
        return indented(inner, 16) + "\n"

    _of_parts = (
        "for (int part = 0; part < PARTS_OF_U; ++part) {",
        "    const auto& column = own;",
        "    const int low = rows.low(part), high = rows.high(part), offset = rows.offset(part);",
        "    const int first = max(column.first, low), last = min(column.last, high);",
        "    if (first >= last) continue;",
    )
    _of_stack = (  # all, also those beyond the last offset, so that the compiler can interleave their instructions
        "#pragma unroll",
        "for (int which = 0; which < STACK; ++which) {",
        "    const auto column = own[which];",
        "    constexpr int low = 0, high = 1, offset = 0, first = 0, last = 1;",
    )

    def _entrances(self) -> Iterator[str]:
        grid = math.prod(self.segment.grid)
        for i in range(self.segment.entrances):
            before = [self._plane(i)]
            after: list[str] = []
            if self.shape.by_warps:
                yield self._lines_of_products()
                continue
            if self._multiplies_together:
                yield self._pixels()
                continue
            if self.place == 0:
                before.append("const Lanes* p = x + first * WIDTH + column.k;")
                before.append("const real* q = z + (first + offset) * WIDTH + column.n;")
                lines = [
                    "Value value = nothing();",
                    f"#pragma unroll {min(4, self.plan.graph.channels)}",
                    f"for (int c = 0; c < {self.plan.graph.channels}; ++c) {{",
                    f"    const Lanes left = p[c * {grid}];",
                    f"    const real right = q[c * {grid}];",
                    "    for (int i = 0; i < LANES; ++i) value.v[i] += left.v[i] * right;",
                    "}",
                ]
                after = ["p += WIDTH, q += WIDTH;"]
            else:
                scale = real(self.plan.exit_scale(self.place - 1, self.plan.segments[self.place - 1].exits[i]))
                read = self.plan.entered(self.place, i, "u, column.v, row, column.k")
                lines = [f"const Value value = {scale} * {read};"]
            yield self._phase(before, self._rows(_AHEAD, [*lines, *self._keep(i, "value"), *after]))

    @property
    def _multiplies_together(self) -> bool:
        """Whether a thread multiplies pixels at all offsets v of the plane, so that it reads left pixels once."""
        beside = 1 if self.shape.stack else self.shape.columns // self.segment.grid[1]
        kept = 0 in self.shape.planes and not (self.last and self.segment.exits[0].value == 0)
        return self.place == 0 and kept and beside > 1

    def _pixels(self) -> str:
        """Inner products of pixels at all offsets v of the plane; a thread reads the pixels of left images once."""
        grid, channels = math.prod(self.segment.grid), self.plan.graph.channels
        lines = [
            "sync_block();",
            "for (int item = threadIdx.x; item < ITEMS; item += THREADS) {",
            "    const Stack<WIDTH, PAD, WIDTH + 2 * PAD, OFFSETS> own(item % WIDTH, here, count, rows);",
            "    constexpr int TALL = (HEIGHT + BANDS * OFFSETS - 1) / (BANDS * OFFSETS);",
            "    const int top = rows.begin + item / WIDTH * TALL;",
            "    for (int part = 0; part < PARTS_OF_U; ++part) {",
            "        const int first = max(top, rows.low(part)), last = min(top + TALL, rows.high(part));",
            "        const Lanes* p = x + first * WIDTH + item % WIDTH;",
            "        const real* q = z + (first + rows.offset(part)) * WIDTH;",
            f"        Value* to = planes + {self.shape.planes[0]} * PLANE + first * STRIDE;",
            f"#pragma unroll {_AHEAD}",
            "        for (int row = first; row < last; ++row, p += WIDTH, q += WIDTH, to += STRIDE) {",
            "            Value values[OFFSETS];",
            "            for (int which = 0; which < OFFSETS; ++which) values[which] = nothing();",
            f"#pragma unroll {min(4, channels)}",
            f"            for (int c = 0; c < {channels}; ++c) {{",
            f"                const Lanes left = p[c * {grid}];",
            "#pragma unroll",
            "                for (int which = 0; which < OFFSETS; ++which) {",
            f"                    const real right = q[own[which].n + c * {grid}];",
            "                    for (int i = 0; i < LANES; ++i) values[which].v[i] += left.v[i] * right;",
            "                }",
            "            }",
            "#pragma unroll",
            "            for (int which = 0; which < OFFSETS; ++which) to[own[which].place] = values[which];",
            "        }",
            "    }",
            "}",
        ]
        return indented(lines, 16) + "\n"

    def _lines_of_products(self) -> str:
        """Inner products of pixels and their sums along rows, each row by one warp, without barriers of the block."""
        taps = [t for t in self.segment.steps[0].terms[0].taps[1] if abs(t) < self.segment.grid[1]]
        rows = self.shape.team_rows
        numbers = f"{taps[0]}, {taps[-1]}, {rows}, {-(-self.shape.places // (32 // rows))}, {self.shape.places}"
        call = f"line_sums<{self.plan.graph.channels}, {numbers}, HEIGHT, WIDTH, OFFSETS, STRIDE, PAD, THREADS>"
        return indented([f"{call}(x, z, planes, here, count, rows);"], 16) + "\n"

    def _rows(self, unrolled: int, lines: Sequence[str]) -> list[str]:
        loop = [f"#pragma unroll {unrolled}", "for (int row = first; row < last; ++row) {"]
        return [*loop, *(f"    {line}" for line in lines), "}"]

    def _plane(self, value: int) -> str:
        """A pointer to where a thread stores a value; empty if it has no plane."""
        if value not in self.shape.planes:
            return ""
        place = "first * STRIDE + column.place"
        if self.shape.by_warps:
            place = "first * COLUMNS + item % COLUMNS"
        return f"Value* to{value} = planes + {self.shape.planes[value]} * PLANE + {place};"

    def _keep(self, value: int, name: str, in_full: bool = False) -> list[str]:
        """Lines that store a value in its plane, or add it to the total."""
        lines = []
        if value in self.shape.planes:
            stride = "COLUMNS" if self.shape.by_warps else "STRIDE"
            lines.append(f"{'if (i < sure || row < last) ' if in_full else ''}*to{value} = {name};")
            lines.append(f"to{value} += {stride};")
        if self.last and self.segment.exits[0].value == value:
            rows, columns = self.segment.exits[0].size
            inside = ["which < count"] if self.shape.stack else []
            if rows < self.segment.grid[0]:
                inside.append(f"row < {rows} && row + offset < {rows}")
            if columns < self.segment.grid[1]:
                inside.append(f"column.k < {columns} && column.n < {columns}")
            add = f"for (int i = 0; i < PARTS; ++i) total[i] += {name}.v[i];"
            lines.append(f"if ({' && '.join(inside)}) {add}" if inside else add)
        return lines

    def _step(self, number: int) -> str:
        step, sum_place = self.segment.steps[number], self.segment.sum_of(number)
        before, body, after, longest = self._sum(number)
        before += [self._plane(sum_place), self._plane(sum_place + 1)]
        in_full = self._in_full(number)
        body += self._keep(sum_place, "sum", in_full)
        lines = self._lines(step.terms[0]) if sums_lines(self.segment, number) and not self.shape.by_warps else ""
        if step.embedding is not None:
            body += [f"const Value value = {self._embedded(number)};", *self._keep(sum_place + 1, "value", in_full)]
        loop = [*body, *after]
        return lines + self._phase(before, self._full(loop) if in_full else self._rows(min(longest, _UNROLLED), loop))

    @property
    def _tall(self) -> int:
        """Rows of a thread."""
        return -(-self.segment.grid[0] // self.shape.bands)

    def _in_full(self, number: int) -> bool:
        """Whether the loop over a thread's rows is unrolled fully in a step."""
        return sums_lines(self.segment, number) and self._tall <= _FULL and not self.last

    def _full(self, lines: Sequence[str]) -> list[str]:
        """A fully unrolled loop over the rows of a thread, and one in passes of a few rows for shorter parts."""
        inner = [f"    {line}" for line in lines]
        return [
            f"if (last - first == {self._tall}) {{",
            f"    constexpr int sure = {self._tall};",
            "    int row = first;",
            "#pragma unroll",
            "    for (int i = 0; i < sure; ++i, ++row) {",
            *(f"    {line}" for line in inner),
            "    }",
            "} else {",
            "    constexpr int sure = 0;",
            "    int row = first;",
            "#pragma unroll 1",
            "    while (row < last) {",
            "#pragma unroll",
            f"        for (int i = 0; i < {_PASS}; ++i, ++row) {{",
            *(f"        {line}" for line in inner),
            "        }",
            "    }",
            "}",
        ]

    def _lines(self, term: Term) -> str:
        """Sums along rows for the windows of a term, at all places, stored in the plane LINES."""
        width, shape = self.segment.grid[1], self.shape
        taps = [t for t in term.taps[1] if abs(t) < width]
        numbers = f"{taps[0]}, {taps[-1]}, {shape.run(self.segment.grid[0])}, {shape.places}"
        planes = f"planes + {shape.planes[term.value]} * PLANE, planes + {shape.planes[LINES]} * PLANE"
        call = f"add_lines<{numbers}, HEIGHT, STRIDE, PAD, THREADS>({planes});"
        return indented(["sync_block();", call], 16) + "\n"

    def _sum(self, number: int) -> tuple[list[str], list[str], list[str], int]:
        """Lines before, in and at the end of a step's loop over rows, for `sum` and norms; its tallest window."""
        step = self.segment.steps[number]
        before, body, after, longest = list[str](), list[str](), list[str](), 1
        sums = []
        for i, term in enumerate(step.terms):
            longest = max(longest, self._term(number, i, before, body, after))
            weight = "" if term.weight == 1.0 else f"{real(term.weight)} * "
            sums.append(f"{weight}s{i}")
        total = " + ".join(sums)
        body.append(f"const Value sum = {f'weighed({total})' if step.weighs else total};")
        if step.embedding is not None:
            place = self.plan.norm_places[self.place, number]
            before.append(f"const Lanes* l = a + {place} + first * WIDTH + column.k;")
            before.append(f"const real* r = b + {place} + (first + offset) * WIDTH + column.n;")
            if self._reads_ahead(number):
                before.append("Lanes next_left = *l;")
                before.append("real next_right = *r;")
                body.insert(0, "const Lanes left = next_left;")
                body.insert(1, "const real right = next_right;")
                body.insert(2, "next_left = l[WIDTH], next_right = r[WIDTH];")
            after.append("l += WIDTH, r += WIDTH;")
        return before, body, after, longest

    def _embedded(self, number: int) -> str:
        """The call of a step's dual."""
        tables = "".join(f"table{i}, " for i in self.used[number])
        norms = "left, right" if self._reads_ahead(number) else "*l, *r"
        if self._in_full(number):
            norms = "i < sure || row < last ? *l : Lanes(), i < sure || row < last ? *r : real(0)"
        return f"embed{number}(sum, {norms}, {tables}{self._same()})"

    def _reads_ahead(self, number: int) -> bool:
        """Whether a thread reads norms one row ahead."""
        return not self.shape.stack and not self._in_full(number)

    def _same(self) -> str:
        """C++ that tells whether the two features are the same: an image with itself, at equal positions."""
        return "itself && offset == 0 && column.k == column.n" if self.plan.graph.tangent else "false"

    def _term(self, number: int, i: int, before: list[str], body: list[str], after: list[str]) -> int:
        """Add lines for the sum over a window, s{i}, from the sums along its rows, h{i}_t; returns how many rows."""
        term = self.segment.steps[number].terms[i]
        lined, in_full = sums_lines(self.segment, number), self._in_full(number)
        taps = [[t for t in axis if abs(t) < n] for axis, n in zip(term.taps, self.segment.grid, strict=True)]
        low, high = min(taps[0]), max(taps[0])
        if lined:
            taps[1] = [0]
        start = f"planes + {self.shape.planes[LINES if lined else term.value]} * PLANE + (first + {high}) * STRIDE"
        before.append(f"const Value* f{i} = {start} + column.place;")
        for t in range(low, high):
            line = " + ".join(f"f{i}[{t - high} * STRIDE + {tap}]" for tap in taps[1])
            inside = f"first + {t} >= low" if t < 0 else f"first + {t} < high" if t > 0 else "true"
            before.append(f"Value h{i}_{t - low} = {inside} ? {line} : nothing();")
        line = " + ".join(f"f{i}[{tap}]" for tap in taps[1])
        inside = f"row + {high} < high" if high > 0 else f"row + {high} >= low" if high < 0 else "true"
        if in_full and high > 0:
            inside = f"i + {high} < sure || {inside}"
        body.append(f"const Value h{i}_{high - low} = {inside} ? {line} : nothing();")
        after.append(f"f{i} += STRIDE;")
        if lined and len(taps[0]) == high - low + 1 > 3:  # sums of two rows, p{i}: the next window needs all but one
            pairs, last = high - low, f"h{i}_{high - low}"
            before += [f"Value p{i}_{t} = h{i}_{t} + h{i}_{t + 1};" for t in range(pairs - 1)]
            body.append(f"const Value p{i}_{pairs - 1} = h{i}_{pairs - 1} + {last};")
            parts = [*(f"p{i}_{t}" for t in range(0, pairs, 2)), *([last] if pairs % 2 == 0 else [])]
            after += [f"p{i}_{t} = p{i}_{t + 1};" for t in range(pairs - 1)] + [f"h{i}_{pairs - 1} = {last};"]
        else:
            parts = [f"h{i}_{t - low}" for t in taps[0]]
            after += [f"h{i}_{t - low} = h{i}_{t - low + 1};" for t in range(low, high)]
        body.append(f"const Value s{i} = {' + '.join(parts)};")
        return high - low + 1

    def _embedding(self, number: int) -> str:
        """The function that embeds the sums of a step, given the norms of both sides."""
        embedding = self.segment.steps[number].embedding
        if embedding is None:
            return ""
        parameters = "".join(f"const real* table{i}, " for i in range(len(self.used[number])))
        lines = dual_lines(embedding, self.plan.dtype, self.plan.graph.tangent)
        keep = ["value.v[i] = k;", *(["value.v[LANES + i] = t;"] if self.plan.graph.tangent else [])]
        tangent = ["const real t0 = sum.v[LANES + i];"] if self.plan.graph.tangent else []
        return f"""
__device__ inline Value embed{number}(const Value& sum, const Lanes left, real right, {parameters}bool same) {{
    Value value;
    for (int i = 0; i < LANES; ++i) {{
        const real s = sum.v[i], a = left.v[i] * right;
{indented([*tangent, *lines, *keep], 8)}
    }}
    return value;
}}
"""
