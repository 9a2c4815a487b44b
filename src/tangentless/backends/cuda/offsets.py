"""Segments of a graph for kernels that follow one offset after the other: which fit, and how each shares out its work.

`offsets.cuh` says how a block works, and `offset_writer.py` writes the kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...graph import Graph
from ..segmented import Segmented, exceeds, keeps_scales
from ..segments import Exit, Segment, Term, cut

# Measured on an H200, on images of 32×32 to 96×96 positions and sequences.
_TALL = 16  # rows of a thread, at most
_COLUMNS = 64  # beside each other in a plane, at least
_MORE_COLUMNS = 128  # where a thread has one pair, and reads as much of left images as of right ones, if blocks fit
_FEWEST_BLOCKS = 3  # of these columns
_MOST_THREADS = 1024
_SHARED = 228 << 10  # bytes of all blocks of a multiprocessor, with 1 KiB of its own for each
_RESIDENT = 768  # threads of all its blocks: each then has 80 registers
_RESIDENT_OF_ROW = 1024  # on grids of one row, where windows have no rows to keep
_RESIDENT_OF_TALL = 512  # where a thread keeps more than `_LONGEST` numbers
_LAST_GROUPS = 4  # of u in the last segment, whose exit is a single number
_ROOM = {4: 110 << 10, 2: 160 << 10}  # bytes of planes up to which a thread works on so many pairs
_LONGEST = 20  # sums of rows that a thread may keep, of all its pairs, while it computes others
_LONGEST_OF_LINES = 28  # and where it reads them
_WIDE = 5  # columns of windows from which on sums of lines are computed once, and not by all threads that need them
_RUN = 16  # of them that a thread computes, at most
_RUN_OF_WARPS = 12  # and where it keeps them all before it stores the first
_SLIDING_LANES = 2  # pairs of a thread that needs no planes, and works on two columns at two offsets
_RESIDENT_OF_SLIDING = 512  # threads of all its blocks, which then have 128 registers
_SLIDING_WIDTHS = ((20, 32), (40, 64))  # of images that give most threads of a team work
_MOST_SLIDING = 8  # rows that a thread remembers, of all windows
_STACK = 4  # offsets of grids of one row that a thread works on, one after the other
LINES = -1  # the plane of these sums, in the place of a value's number


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """How the kernel of a segment shares out its work."""

    planes: dict[int, int]  # of every value that is kept, by its number
    columns: int
    bands: int
    places: int  # of a row that sums of lines are needed at
    stride: int  # from one row of a plane to the next
    shared_bytes: int  # of all planes
    group: int  # neighbouring u that a block follows
    paired: bool  # with u - height, which has the rows that u leaves
    resident: int  # blocks of a multiprocessor at the same time
    pad: int  # zeros beside the columns of an offset
    stack: int  # rows of a plane that are offsets of a grid of one row, or 0
    by_warps: bool = False  # whether a warp computes all of a row's sums of lines, and exits read a plane without zeros
    slides: bool = False  # whether it needs no planes: `sliding.cuh` says how

    @property
    def threads(self) -> int:
        return min(_MOST_THREADS, -(-self.columns * self.bands // 32) * 32)

    def run(self, height: int) -> int:
        """Places of a row whose sums of lines a thread computes."""
        return min(_RUN, -(-self.places // max(1, self.threads // height)))

    @property
    def team_rows(self) -> int:
        """Rows whose sums of lines a warp computes at once."""
        return next(n for n in (8, 4, 2, 1) if n == 1 or -(-self.places // (32 // n)) <= _RUN_OF_WARPS)


@dataclass(frozen=True, eq=False)
class OffsetPlan(Segmented):
    """A graph that the kernels of offsets can run."""

    lanes: int  # pairs of a thread
    plans: tuple[SegmentPlan, ...]
    begun: bool = False  # a `FirstStage` computes the first segment, whose exits then have one slot

    @property
    def parts(self) -> int:
        """Numbers of a value."""
        return self.lanes * (1 + self.graph.tangent)

    @functools.cached_property
    def norm_count(self) -> int:
        """Norms of one image, and room for a row: threads read one further than they need."""
        return super().norm_count + self.segments[0].grid[1]

    def shared_bytes(self, place: int) -> int:
        """Shared memory of a segment's kernel."""
        plan = self.plans[place]
        totals = 8 * self.parts * plan.threads if place == len(self.segments) - 1 else 0
        return max(plan.shared_bytes, totals)

    def groups(self, place: int, needed: Sequence[int]) -> list[int]:
        """Of u of a segment: all that feed the needed offsets of its exits."""
        segment, size = self.segments[place], self.plans[place].group
        height, paired = segment.grid[0], self.plans[place].paired
        if place == len(self.segments) - 1:
            return list(range((height - 1) // size + 1))
        feeding = {u - slot for one in segment.exits for u in needed for slot in slots(one)}
        return sorted({g % (height // size) for g in feeding} if paired else feeding)

    def followed(self, place: int, needed: set[int]) -> list[int]:
        """Offsets v that a segment follows: all that are in the planes together, so that sums have the same order
        whatever else is needed; strides leave offsets out on purpose."""
        segment, plan = self.segments[place], self.plans[place]
        width = segment.grid[1]
        if any(one.size[1] == 1 for one in segment.exits):
            return sorted(needed)
        beside = plan.stack or plan.columns // width
        return [v for v in range(width) if any(v // beside == other // beside for other in needed)]

    def slot_count(self, place: int, exit_: Exit) -> int:
        """Slots of an exit of a segment."""
        return 1 if self.begun and place == 0 else len(slots(exit_))

    def exit_numbers(self, place: int, exit_: Exit) -> int:
        """Values of an exit between two segments."""
        return self.slot_count(place, exit_) * math.prod(exit_.grid) ** 2

    def entered(self, place: int, number: int, where: str) -> str:
        """The call that reads an entrance of a segment at (u, v, row, k)."""
        before, one = self.segments[place - 1], self.segments[place - 1].exits[number]
        kind = f"{axis_type(one, 0, before)}, WIDTH, {self.slot_count(place - 1, one)}"
        return f"entered<{kind}>(entrance{number} + number * {self.exit_numbers(place - 1, one)}, {where})"


def slots(exit_: Exit) -> range:
    """A group of u, those from stride g on, feeds offsets g + slot of an exit."""
    size, stride = exit_.size[0], exit_.stride[0]
    return range(-((size - 1) // stride), (stride + size - 2) // stride + 1)


def axis_type(exit_: Exit, axis: int, segment: Segment) -> str:
    """The windows of an exit along an axis, as the device code names them."""
    return f"Axis<{exit_.size[axis]}, {exit_.stride[axis]}, {segment.grid[axis]}, {exit_.grid[axis]}>"


@functools.lru_cache(maxsize=64)
def plan_offsets(graph: Graph, precision: str, shared_limit: int, most_lanes: int | None = None) -> OffsetPlan | str:
    """The graph for the kernels of offsets, or the reason why it must take the general path.

    So many pairs of a thread are the most, or None: as many as are fastest.
    """
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    dtype = "float64" if graph.tangent or graph.delicate or keeps_scales(graph) else precision
    if exceeds(segments, dtype):
        return f"a segment sums over more windows than {dtype} can hold"
    sliding = dtype == "float32" and slides(segments) and _follows_most(Segmented(graph, segments, dtype))
    most_lanes = most_lanes or (_SLIDING_LANES if sliding else 4)
    for lanes in (n for n in (4, 2, 1) if n <= most_lanes) if dtype == "float32" else (1,):
        size = lanes * (1 + graph.tangent) * np.dtype(dtype).itemsize
        ends = [(segment is segments[0], segment is segments[-1]) for segment in segments]
        plans = tuple(_plan_widely(segment, size, *end, lanes) for segment, end in zip(segments, ends, strict=True))
        if sliding and lanes <= _SLIDING_LANES:
            plans = (_plan_sliding(segments[0]), *plans[1:])
        found = OffsetPlan(graph, segments, dtype, lanes, plans)
        most = max(found.shared_bytes(place) for place in range(len(segments)))
        if lanes == 1 or (most <= _ROOM[lanes] and all(_keeps_sums(segment, lanes) for segment in segments)):
            break
    if most <= shared_limit:
        return found
    height, width = segments[0].grid
    return (
        f"planes of {height}×{width} positions take {most >> 10} KiB, more than the {shared_limit >> 10} KiB of a block"
    )


def _keeps_sums(segment: Segment, lanes: int) -> bool:
    """Whether a thread has room for the sums of rows from the first to the last of every window."""
    return all(
        lanes * _rows_kept(term) <= (_LONGEST_OF_LINES if sums_lines(segment, number) else _LONGEST)
        for number, step in enumerate(segment.steps)
        for term in step.terms
    )


def _plan_widely(segment: Segment, value_bytes: int, first: bool, last: bool, lanes: int) -> SegmentPlan:
    """With more columns where they pay."""
    wide = _plan_segment(segment, value_bytes, first, last, _MORE_COLUMNS)
    pays = lanes == 1 and _FEWEST_BLOCKS * (wide.shared_bytes + 1024) <= _SHARED
    return wide if pays else _plan_segment(segment, value_bytes, first, last, _COLUMNS)


def _plan_segment(segment: Segment, value_bytes: int, first: bool, last: bool, columns: int) -> SegmentPlan:
    (height, width), planes = segment.grid, _planes(segment, last)
    stack = min(_STACK, width) if height == 1 else 0
    columns = width if stack else width * max(1, min(width, columns // width))
    taps = [abs(tap) for step in segment.steps for term in step.terms for tap in term.taps[1] if abs(tap) < width]
    pad = max(taps, default=0)
    places = columns // width * (width + 2 * pad) - pad
    stride = places + 2 * pad
    if LINES in planes:
        stride += 1 - stride % 2  # threads of neighbouring rows then read from different banks
    fits_warps = pad <= 4 and 16 <= places <= 32 * _RUN_OF_WARPS  # a run is then no shorter than half a window
    by_warps = first and fits_warps and _is_one_window(segment, last)
    shared = max(1, len(set(planes.values()))) * max(height, stack) * stride * value_bytes
    if by_warps:
        planes = {0: 0, LINES: 0, segment.exits[0].value: 1}
        shared = height * (stride + columns) * value_bytes
    fitting = max(1, _SHARED // (shared + 1024))
    most = _RESIDENT if by_warps else _resident(segment, value_bytes)
    threads = min(most // min(fitting, 16), _MOST_THREADS)
    bands = min(height, max(-(-height // _TALL), threads // columns), max(1, _MOST_THREADS // columns))
    group = -(-height // _LAST_GROUPS) if last else segment.exits[0].stride[0]
    resident = max(1, min(fitting, most // (-(-columns * bands // 32) * 32)))
    paired = last or height % group == 0
    return SegmentPlan(planes, columns, bands, places, stride, shared, group, paired, resident, pad, stack, by_warps)


def _plan_sliding(segment: Segment) -> SegmentPlan:
    """Teams of threads have two columns each, and as many of them take turns as make a block of 128 threads at most."""
    width, group = segment.grid[1], segment.exits[0].stride[0]
    columns, bands = 2 * width, 2 if width <= 32 else 1
    resident = _RESIDENT_OF_SLIDING // (-(-columns * bands // 32) * 32)
    return SegmentPlan({}, columns, bands, 0, 0, 16, group, True, resident, 0, 0, slides=True)


def slides(segments: Sequence[Segment]) -> bool:
    """Whether kernels in float32 need no planes for the first segment: equal windows, embeddings, and a 2×2 pool."""
    segment, (height, width) = segments[0], segments[0].grid
    if len(segments) == 1 or len(segment.exits) != 1 or not _is_chain(segment):
        return False
    (one,), windows = segment.exits, [step.terms[0].taps for step in segment.steps]
    tiles = one.size == one.stride == (2, 2) and one.grid == (height // 2, width // 2)
    reaches = [max(taps) for taps in windows[0]]
    full = all(
        list(taps) == list(range(-r, r + 1)) for window in windows for taps, r in zip(window, reaches, strict=True)
    )
    fits = any(low <= width <= high for low, high in _SLIDING_WIDTHS) and width % 4 == height % 2 == 0
    kept = 2 * reaches[0] * len(windows)
    return (
        tiles
        and full
        and fits
        and min(reaches) > 0
        and max(reaches) <= 4
        and max(reaches) < height
        and kept <= _MOST_SLIDING
    )


def _follows_most(plan: Segmented) -> bool:
    """Whether the first segment is needed at half of all offsets or more: with fewer, planes were faster."""
    needed = plan.needed(len(plan.segments) - 1)[0]
    return all(len(some) >= n for some, n in zip(needed, plan.segments[0].grid, strict=True))


def _is_chain(segment: Segment) -> bool:
    """Whether a segment multiplies pixels, and then sums over a window and embeds the sums again and again."""
    values = [0, *(segment.sum_of(number) + 1 for number in range(len(segment.steps)))]
    embeds = all(len(step.terms) == 1 and step.embedding is not None for step in segment.steps)
    chained = embeds and all(step.terms[0].value == value for step, value in zip(segment.steps, values, strict=False))
    return segment.entrances == 1 and len(values) > 1 and chained and segment.exits[0].value == values[-1]


def _is_one_window(segment: Segment, last: bool) -> bool:
    """Whether a segment multiplies pixels, sums over one wide window, embeds the sums, and nothing else."""
    values = {one.value for one in segment.exits}
    alone = segment.entrances == len(segment.steps) == 1 and segment.steps[0].embedding is not None and not last
    return alone and values == {segment.sum_of(0) + 1} and sums_lines(segment, 0)


def _resident(segment: Segment, value_bytes: int) -> int:
    """Threads of a multiprocessor, by the registers that they need."""
    if segment.grid[0] == 1:
        return _RESIDENT_OF_ROW
    tallest = max((_rows_kept(term) for step in segment.steps for term in step.terms), default=1)
    return _RESIDENT_OF_TALL if tallest * value_bytes > 4 * _LONGEST else _RESIDENT


def _rows_kept(term: Term) -> int:
    """Rows from the first to the last of a window."""
    return term.taps[0][-1] - term.taps[0][0] + 1


def _planes(segment: Segment, last: bool) -> dict[int, int]:
    """Planes of values that steps or exits read, each given to another value after its last reader.

    A step that sums lines first has no use for its argument when it stores its own values. Sums of lines have a plane
    for themselves: they fill the zeros beside columns.
    """
    ends: dict[int, int] = {}
    for number, step in enumerate(segment.steps):
        ends |= {term.value: number for term in step.terms}
    if not last:
        ends |= {one.value: len(segment.steps) for one in segment.exits}
    free, planes, held = list[int](), dict[int, int](), 0
    made = [(-1, range(segment.entrances))]
    made += [(number, range(first := segment.sum_of(number), first + 2)) for number in range(len(segment.steps))]
    for step_number, values in made:
        done = [planes[value] for value, end in ends.items() if end == step_number and value in planes]
        lined = step_number >= 0 and sums_lines(segment, step_number)
        free += done if lined else []
        for value in values:
            if value in ends:
                if not free:
                    free.append(held)
                    held += 1
                planes[value] = free.pop()
        free += [] if lined else done
    if any(sums_lines(segment, number) for number in range(len(segment.steps))):
        planes[LINES] = held
    return planes


def sums_lines(segment: Segment, number: int) -> bool:
    """Whether a step sums along lines in a phase of its own."""
    terms = segment.steps[number].terms
    taps = [t for t in terms[0].taps[1] if abs(t) < segment.grid[1]]
    return len(terms) == 1 and segment.grid[0] > 1 and len(taps) >= _WIDE and len(taps) == taps[-1] - taps[0] + 1
