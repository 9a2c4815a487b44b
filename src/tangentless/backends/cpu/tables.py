"""The tables that drive the fused kernel: where rings and slots are, which rows each step adds up, and by which leaf.

The values of a segment wait in *rings*, one for each window along the row with which steps read them. The *lag* of a
step is the number of rows by which it is behind the entrances, so that all rows it reads are there; a value that is
there early has a longer ring.

A step adds up its terms in *chunks*: some rows of one ring, plus one row of another ring or the sum of the chunks
before. Most steps are one chunk.

A value is read by *sinks*: rings, exits, or the total of the last pool.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..segmented import Offsets, crop
from ..segments import Segment, Term
from . import leaves as f
from . import sweep as t
from .compiling import compiling
from .duals import Lowered, dual_tag
from .plan import Fused, aligned_zeros, slot_count
from .simd import lanes_tag, leaf

_MARGIN = 1  # vectors before the first position of a row in a ring
_MOST_TOGETHER = 16  # offsets v that take turns
_RINGS_BYTES = 512 << 10  # of the rings of all of these: half of a second-level cache
_LINEAR = Lowered(("linear", 0), ())  # of all chunks of a step but the last: their sums are not embedded yet
_THREE = (-1, 0, 1)  # positions of a centred window of three


@dataclass(frozen=True)
class Ring:
    """Rows of a value, each summed along the row over a window."""

    place: int  # its first row, counted over all rings
    mask: int  # its number of rows, a power of two, minus one


@dataclass(frozen=True)
class Chunk:
    """Rows of a term that are added up, and another term, of one row, that is added to them."""

    term: Term
    rows: tuple[int, ...]  # relative to the row of the result
    beside: Term | None = None

    @property
    def contiguous(self) -> bool:
        return self.rows == tuple(range(self.rows[0], self.rows[-1] + 1))


class Scratch:
    """The memory that one thread writes, and the view for the driver."""

    def __init__(self, tables: Tables, needed: list[Offsets]) -> None:
        dtype, width = tables.fused.dtype, tables.fused.width
        self.ring = aligned_zeros((tables.scratch_rows * width,), dtype)
        self.slots = aligned_zeros((max(1, tables.slots) * width,), dtype)
        self.total = aligned_zeros((width,), "float64")
        self.frame = np.zeros(f.FRAME_FIELDS, np.int64)
        self._kept = tables  # alive: its arrays are read by address
        arrays = (self.ring, self.slots, self.total, tables.parameters, tables.weights)
        self.frame[: len(arrays)] = [array.ctypes.data for array in arrays]
        self.frame[f.CHANNELS] = tables.fused.graph.channels
        self.view, self._offsets = tables.view(self.frame, needed)
        self.frame[f.OFFSETS] = self.view.offsets

    def keep(self, rows: NDArray[Any]) -> None:
        """Copy what enters the segments to `rows`, a row for each left image; the caller must keep the array alive."""
        self.view = self.view._replace(kept=rows.ctypes.data, kept_bytes=rows.strides[0])

    def set_right(self, pixels: NDArray[Any], norms: NDArray[Any]) -> None:
        """Choose the block of right images; the caller must keep the arrays alive."""
        self.frame[[f.RIGHT_PIXELS, f.RIGHT_NORMS]] = pixels.ctypes.data, norms.ctypes.data


class Tables:
    """All tables of a graph, for pairs of images or (`paired`) for images with themselves.

    `kept`: leaves also copy what enters each segment, for gradients.
    """

    def __init__(self, fused: Fused, paired: bool, kept: bool) -> None:
        self.fused, self.paired, self.kept = fused, paired, kept
        self.stages, self.entrances, self.steps = list[list[int]](), list[list[int]](), list[list[int]]()
        self.chunks, self.sinks, self.exits = list[list[int]](), list[list[int]](), list[list[int]]()
        self.tag = lanes_tag(fused.dtype, fused.width, paired)
        self.plain_tag = lanes_tag(fused.dtype, fused.width, paired=False)
        self._weights, parameters = [1.0], [0.0]
        self.stride = max(segment.grid[1] for segment in fused.segments) + 2 * _MARGIN
        self.slots, self.ring_rows, self.padding, self.kept_vectors = 0, 1, 0, 0
        for i, segment in enumerate(fused.segments):
            first = len(self.exits)
            self._add_exits(segment, final=i == len(fused.segments) - 1)
            layout = _Layout(segment)
            self.ring_rows = max(self.ring_rows, layout.rows)
            entrances = self._add_entrances(i, segment, layout, first)
            steps = len(self.steps)
            shift = layout.lags[-1] & 1 if segment.steps else 0  # the last step then gets rows (0, 1), (2, 3), ...
            for j, lowered in enumerate(fused.lowered[i]):
                start = len(parameters)
                parameters += lowered.parameters
                self._add_step(i, j, layout, first, start, shift)
            stride = max(one.stride[0] for one in segment.exits)
            bounds = [steps, len(self.steps), *entrances, first, len(self.exits)]
            self.stages.append([*segment.grid, *bounds, max(layout.lags), shift, stride])
        self.parameters = np.array(parameters, fused.dtype)
        self.weights = np.array(self._weights, fused.dtype)
        self.line_stride = self.stride + 2 * self.padding
        rings_bytes = self.ring_rows * self.stride * fused.width * np.dtype(fused.dtype).itemsize
        self.together = max(1, min(_MOST_TOGETHER, _RINGS_BYTES // rings_bytes))
        self.rings_size = self.ring_rows * self.stride + 4 * self.line_stride
        self.scratch_rows = self.together * self.rings_size + _MARGIN
        self._arrays = [
            np.array(rows or [[0]], np.int64)
            for rows in (self.entrances, self.steps, self.chunks, self.sinks, self.exits)
        ]
        self._clear = leaf(f.clear, self.plain_tag).address

    def view(self, frame: NDArray[np.int64], needed: list[Offsets]) -> tuple[t.View, list[NDArray[np.int64]]]:
        """The view of a sweep through the first `len(needed)` segments, and the arrays to keep alive for it."""
        stages, offsets, flags = [], list[int](), list[int]()
        stop = needed[-1][0][-1]  # the last u of the first stage: it completes the last needed u of every stage
        for place in range(len(needed) - 2, -1, -1):
            step = self.stages[place][t.ROW_STEP]
            stop = max(needed[place][0][-1], step * stop + step - 1)
        first, end = needed[0][0][0], stop + 1
        low, high = first, stop
        for row, (u, v) in zip(self.stages, needed, strict=False):
            low, high = min(low, u[0]), max(high, u[-1])
            stages.append([*row, len(flags) - low, len(offsets), len(offsets) + len(v)])
            flags += [int(one in set(u)) for one in range(low, high + 1)]
            offsets += v
            low, high = low // row[t.ROW_STEP], high // row[t.ROW_STEP]
        arrays = [np.array(stages, np.int64), np.array(offsets, np.int64), np.array(flags, np.int64)]
        tables = [one.ctypes.data for one in (arrays[0], *self._arrays, arrays[1], arrays[2])]
        fused = self.fused
        names = t.View._fields[1 : 1 + len(tables)]
        view = t.View(
            frame=frame.ctypes.data,
            **dict(zip(names, tables, strict=True)),
            first=first,
            end=end,
            last=len(needed) - 1,
            lanes=fused.width,
            channels=fused.graph.channels,
            stride=self.stride,
            margin=_MARGIN,
            line=self.ring_rows * self.stride + self.padding,
            line_stride=self.line_stride,
            padding=self.padding,
            rings_size=self.rings_size,
            together=self.together,
            clear_leaf=self._clear,
            kept=0,
            kept_bytes=0,
        )
        return view, arrays

    def slots_of(self, scratch: Scratch, segment: int, number: int) -> NDArray[Any]:
        """The slots of an exit of a segment at offset (0, 0), (positions, elements of a vector)."""
        row = self.exits[self.stages[segment][t.FIRST_EXIT] + number]
        tall, wide = row[t.EXIT_TALL], row[t.EXIT_WIDE]
        place = row[t.EXIT_SLOTS] + wide * tall * wide
        return scratch.slots.reshape(-1, self.fused.width)[place : place + tall * wide]

    def _add_exits(self, segment: Segment, final: bool) -> None:
        """Add the exits of a segment; those of the last one, `final`, need no slots."""
        for one in segment.exits:
            self.exits.append([self.slots, *one.grid, *one.stride, *crop(one)])
            self.slots += 0 if final else slot_count(one)

    def _add_entrances(self, place: int, segment: Segment, layout: _Layout, first: int) -> list[int]:
        """Add the entrances of segment number `place`, whose exits start at number `first`; returns [begin, end)."""
        begin = len(self.entrances)
        for number in range(segment.entrances):
            sinks = self._add_sinks(place, layout, number, first)
            exit_, scale, kept = -1, 0, self.kept_vectors
            widened = sinks[1] - sinks[0] == 1 and self.sinks[sinks[0]][t.SINK_KIND] == t.WIDEN
            direct = place == 0 and widened and not self.paired
            if place == 0:
                colours = direct and self.fused.graph.channels == 3
                code = leaf(f.colours, self.tag) if colours else leaf(f.pixels, self.tag, direct)
            else:
                exit_ = self.stages[place - 1][t.FIRST_EXIT] + number
                before = self.fused.segments[place - 1].exits[number]
                scale = self._weight(self.fused.exit_scale(place - 1, before))
                code = leaf(f.take, self.plain_tag, self.kept)
                self.kept_vectors += math.prod(segment.grid) ** 2
            self.entrances.append([code.address, int(direct), exit_, scale, kept, *sinks])
        return [begin, len(self.entrances)]

    def _add_step(self, place: int, number: int, layout: _Layout, first: int, parameters: int, shift: int) -> None:
        """Add a step of segment number `place`; the parameters of its embedding start at number `parameters`."""
        segment, lowered = self.fused.segments[place], self.fused.lowered[place][number]
        step, value = segment.steps[number], segment.sum_of(number)
        lag = layout.lags[number]
        if step.embedding is None:
            plain, sinks = [0, 0], self._add_sinks(place, layout, value, first)
        else:
            plain, sinks = (self._add_sinks(place, layout, one, first) for one in (value, value + 1))
        chunks = _chunks(step.terms)
        kinds = [[row[t.SINK_KIND] for row in self.sinks[slice(*some)]] for some in (plain, sinks)]
        simple = len(chunks) == 1 and not self.paired
        mode = t.LINES
        if simple and kinds[1] == [t.WIDEN] and (not kinds[0] or self._copied(plain)):
            mode = t.FUSED
        elif simple and not kinds[0] and self._halved(place, sinks, chunks[0]) and (lag + shift) % 2 == 0:
            mode = t.HALVES
        every = _every(segment, layout, (value, value + 1))
        total = kinds[1] == [t.TOTAL]
        pairs = every == (1, 1) and not total and all(chunk.contiguous for chunk in chunks)
        begin = len(self.chunks)
        for i, chunk in enumerate(chunks):
            dual = lowered if i == len(chunks) - 1 else _LINEAR
            stored = bool(kinds[0]) and i == len(chunks) - 1
            self._add_chunk(chunk, layout, i, dual, stored, mode, total, pairs)
        norms = self.fused.norm_places.get((place, number), 0)
        bounds = (begin, len(self.chunks), *plain, *sinks)
        self.steps.append([lag, norms, parameters, mode, *every, int(pairs), *bounds])

    def _add_chunk(
        self,
        chunk: Chunk,
        layout: _Layout,
        number: int,
        dual: Lowered,
        plain: bool,
        mode: int,
        natural: bool,
        pairs: bool,
    ) -> None:
        """Add chunk `number` of a step, with `dual` after it.

        `plain`: the sum is stored, too. `natural`: rows are added in their order. `pairs`: two rows may be computed at
        once; the first row of the window is then added last, so that both share the sum of the others.
        """
        ring = layout.rings[chunk.term.value, chunk.term.taps[1]]
        rows = list(chunk.rows)
        empty = [t.OUTSIDE] * (f.MOST_ROWS - len(rows))
        single = rows if natural else [*rows[1:], rows[0]]  # the first row is added last, as for pairs of rows
        added, mask, row, weight = t.OWN_LINE, 0, 0, 0
        if number == 0 and chunk.beside is not None:
            beside = layout.rings[chunk.beside.value, chunk.beside.taps[1]]
            added, mask, row = beside.place * self.stride + _MARGIN, beside.mask, chunk.beside.taps[0][0]
            weight = self._weight(chunk.beside.weight)
        weighted = chunk.term.weight != 1.0 or number > 0 or chunk.beside is not None
        if weighted and number == 0 and chunk.beside is None:  # the leaf adds a row all the same: it reads zeros
            added, row = ring.place * self.stride + _MARGIN, t.OUTSIDE
        tag = self.plain_tag if dual.kind[0] == "linear" else self.tag  # without an embedding, norms are not read
        makers: list[tuple[Any, ...]]
        if mode == t.HALVES:
            makers = [(f.halves, tag, dual_tag(dual), *choice) for choice in ((1, False), (2, True), (2, False))]
        else:
            choices = (len(rows), weighted, plain, mode == t.FUSED)
            makers = [(f.rows, tag, dual_tag(dual), height, *choices) for height in ((1, 2, 2) if pairs else (1, 1, 1))]
        own = ring.place * self.stride + _MARGIN, ring.mask, len(rows), self._weight(chunk.term.weight)
        codes = [leaf(*one).address for one in makers]
        rows_of_pair = [*rows, rows[-1] + 1, *empty]
        self.chunks.append([*own, added, mask, row, weight, *codes, *rows_of_pair, *single, *empty])

    def _add_sinks(self, place: int, layout: _Layout, value: int, first: int) -> list[int]:
        """Add all sinks of a value to their table; returns their numbers [first, end)."""
        begin = len(self.sinks)
        for (source, columns), ring in layout.rings.items():
            if source == value:
                self.sinks.append(self._ring_sink(columns, ring))
        final = place == len(self.fused.segments) - 1
        for number, one in enumerate(self.fused.segments[place].exits):
            if one.value == value:
                kind = t.TOTAL if final else t.POOL if one.size == one.stride else t.PICK
                code = {t.TOTAL: f.total, t.POOL: f.pool, t.PICK: f.pick}[kind]
                self.sinks.append([kind, leaf(code, self.plain_tag).address, 0, 0, 0, 0, first + number])
        return [begin, len(self.sinks)]

    def _ring_sink(self, columns: tuple[int, ...], ring: Ring) -> list[int]:
        place = [ring.place * self.stride + _MARGIN, ring.mask]
        if columns == _THREE:
            return [t.WIDEN, leaf(f.widen, self.plain_tag).address, *place, 0, 0, 0]
        self.padding = max(self.padding, *map(abs, columns))
        dilation = columns[1] - columns[0] if len(columns) > 1 else 1
        code = leaf(f.taps, self.plain_tag, len(columns))
        return [t.TAPS, code.address, *place, columns[0], dilation, 0]

    def _copied(self, sinks: Sequence[int]) -> bool:
        """Whether the only sink of a value is a ring that takes it as it is."""
        copy = [t.TAPS, leaf(f.taps, self.plain_tag, 1).address]
        return [(row[:2], row[t.SINK_TAP]) for row in self.sinks[slice(*sinks)]] == [(copy, 0)]

    def _halved(self, place: int, sinks: Sequence[int], chunk: Chunk) -> bool:
        """Whether the only sink of a 3×3 step is a 2×2 pool that tiles its grid."""
        if [row[t.SINK_KIND] for row in self.sinks[slice(*sinks)]] != [t.POOL]:
            return False
        segment, plain = self.fused.segments[place], chunk.term.weight == 1.0 and chunk.beside is None
        exit_ = segment.exits[self.sinks[sinks[0]][t.SINK_EXIT] - len(self.exits)]  # the segment's exits are the last
        return plain and chunk.rows == _THREE and exit_.stride == (2, 2) and crop(exit_) == segment.grid

    def _weight(self, weight: float) -> int:
        """The place of a weight in the list of all weights."""
        if weight not in self._weights:
            self._weights.append(weight)
        return self._weights.index(weight)


@functools.lru_cache(maxsize=64)
def tables_of(fused: Fused, kept: bool = False) -> tuple[Tables, Tables]:
    """Tables for pairs of images, and for images with themselves; compiles all their code."""

    def compile_all() -> tuple[Tables, Tables]:
        aside = t.compile_driver_aside()
        pairs, alone = (Tables(fused, paired, kept) for paired in (False, True))
        if aside is not None:
            aside.wait()
        t.compile_driver()
        return pairs, alone

    return compiling(compile_all)


class _Layout:
    """Lags of the steps of a segment, and its rings.

    `lags` are by step. `rings` are by value and window along the row. Row 0 before all rings is zero, for rows outside
    the image; `rows` counts it and those of all rings.
    """

    def __init__(self, segment: Segment) -> None:
        lags = [0] * segment.entrances
        for step in segment.steps:
            lag = max(lags[term.value] + max(0, *term.taps[0]) for term in step.terms)
            lags += [lag, lag]
        self.lags = lags[segment.entrances :: 2] or [0]
        lengths: dict[tuple[int, tuple[int, ...]], int] = {}
        for step, lag in zip(segment.steps, self.lags, strict=False):
            for term in step.terms:
                key = term.value, term.taps[1]
                length = lag - lags[term.value] - min(0, *term.taps[0]) + 2
                lengths[key] = max(lengths.get(key, 0), length)
        self.rings: dict[tuple[int, tuple[int, ...]], Ring] = {}
        self.rows = 1
        for key, length in lengths.items():
            rows = 1 << (length - 1).bit_length()
            self.rings[key] = Ring(self.rows, rows - 1)
            self.rows += rows


def _chunks(terms: tuple[Term, ...]) -> list[Chunk]:
    """The chunks of a sum, of at most MOST_ROWS rows; the first chunk also adds the first term of a single row."""
    tall = [term for term in terms if len(term.taps[0]) > 1] or list(terms[:1])
    flat = [term for term in terms if term not in tall]
    most = f.MOST_ROWS
    chunks = [Chunk(term, term.taps[0][i : i + most]) for term in tall for i in range(0, len(term.taps[0]), most)]
    if flat:
        chunks[0] = Chunk(chunks[0].term, chunks[0].rows, flat[0])
    return chunks + [Chunk(term, term.taps[0]) for term in flat[1:]]


def _every(segment: Segment, layout: _Layout, values: tuple[int, int]) -> tuple[int, int]:
    """Every how many rows and columns a step is needed: the strides where only these read it, else 1."""
    exits = [one for one in segment.exits if one.value in values]
    read = any(source in values for source, _ in layout.rings)
    strides = {one.stride for one in exits}
    if read or len(strides) != 1 or any(one.size != (1, 1) for one in exits):
        return 1, 1
    return strides.pop()
