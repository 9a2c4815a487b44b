"""Plans for the offset path: which graphs it can run, and how the kernel of each segment divides its work.

A block works on one offset u between rows after the other, and for each u on several offsets v between columns at once.
`offsets.cuh` says how; `offset_writer.py` writes the kernels.
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
_COLUMNS = 64  # of a plane, up to which it holds several offsets v side by side
_MORE_COLUMNS = 128  # the same where a thread has one pair, if `_FEWEST_BLOCKS` such blocks fit into shared memory
_FEWEST_BLOCKS = 3
_MOST_THREADS = 1024
_SHARED = 228 << 10  # bytes of a multiprocessor, of which each block takes 1 KiB more than it asks for
_RESIDENT = 768  # threads of a multiprocessor, each with 80 registers
_RESIDENT_OF_ROW = 1024  # the same on grids of one row, where a thread keeps no sums of rows
_RESIDENT_OF_TALL = 512  # the same where a thread keeps more than `_LONGEST` numbers
_LAST_GROUPS = 4  # of u in the last segment, whose exit is a single number
_ROOM = {4: 110 << 10, 2: 160 << 10}  # by pairs of a thread: bytes of planes up to which it has so many
_LONGEST = 20  # sums along rows that a thread may keep, of all its pairs, if it computes them
_LONGEST_OF_LINES = 28  # the same if it reads them from the plane LINES
_WIDE = 5  # columns of a window from which on each sum along a row is computed once, and stored in the plane LINES
_RUN = 16  # places whose sums along a row a thread computes, at most
_RUN_OF_WARPS = 12  # the same if it computes all of them before it stores the first
_SLIDING_LANES = 2  # pairs of a thread in sliding kernels, which works on two columns at two offsets
_RESIDENT_OF_SLIDING = 512  # threads of a multiprocessor in sliding kernels, each with 128 registers
_SLIDING_WIDTHS = ((20, 32), (40, 64))  # ranges of widths with which few threads of a sliding team are idle
_MOST_SLIDING = 8  # rows that a thread of a sliding kernel remembers, of all windows
_STACK = 4  # offsets v in a plane on grids of one row: a thread works on them one after the other
LINES = -1  # key of the plane with sums along rows, among the numbers of values


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """How the kernel of a segment divides its work, and its planes in shared memory; see `offsets.cuh`."""

    planes: dict[int, int]  # number of a value that is stored, or LINES -> number of its plane
    columns: int  # of a plane without its zeros: the width, times the number of offsets v side by side
    bands: int  # of rows, each the work of another thread
    places: int  # of a row where sums along rows are needed
    stride: int  # from one row of a plane to the next
    shared_bytes: int  # of all planes
    group: int  # consecutive u that a block works on
    paired: bool  # u and u - height share a plane: each uses the rows that have no partner at the other offset
    resident: int  # blocks of a multiprocessor at the same time
    pad: int  # zeros beside the columns of an offset
    stack: int  # on grids of one row, offsets v in a plane, a row each; else 0
    by_warps: bool = False  # a warp computes all sums along a row, and exits read a plane without zeros
    slides: bool = False  # a kernel without planes: see `sliding.cuh`

    @property
    def threads(self) -> int:
        return min(_MOST_THREADS, -(-self.columns * self.bands // 32) * 32)

    def run(self, height: int) -> int:
        """Places of a row at which a thread computes sums along the row."""
        return min(_RUN, -(-self.places // max(1, self.threads // height)))

    @property
    def team_rows(self) -> int:
        """Rows along which a warp computes sums at the same time."""
        return next(n for n in (8, 4, 2, 1) if n == 1 or -(-self.places // (32 // n)) <= _RUN_OF_WARPS)


@dataclass(frozen=True, eq=False)
class OffsetPlan(Segmented):
    """A graph that the offset path can run."""

    lanes: int  # pairs of a thread
    plans: tuple[SegmentPlan, ...]
    has_first_stage: bool = False  # a `FirstStage` computes the first segment; its exits then have one slot

    @property
    def parts(self) -> int:
        """Numbers of a `Value` of the device code: an inner product for each lane, and tangents."""
        return self.lanes * (1 + self.graph.tangent)

    @property
    def preamble(self) -> str:
        """C++ that `offsets.cuh` needs before it: the type `real`, pairs of a thread, and numbers of a `Value`."""
        number = {"float32": "float", "float64": "double"}[self.dtype]
        return f"typedef {number} real;\nconstexpr int LANES = {self.lanes}, PARTS = {self.parts};\n"

    @functools.cached_property
    def norm_count(self) -> int:
        """Norms of one image, and room for one more row: threads read one row ahead."""
        return super().norm_count + self.segments[0].grid[1]

    def shared_bytes(self, place: int) -> int:
        """Shared memory of a segment's kernel."""
        plan = self.plans[place]
        totals = 8 * self.parts * plan.threads if place == len(self.segments) - 1 else 0
        return max(plan.shared_bytes, totals)

    def groups(self, place: int, needed: Sequence[int]) -> list[int]:
        """Groups of u of a segment that feed the needed offsets of its exits."""
        segment, size = self.segments[place], self.plans[place].group
        height, paired = segment.grid[0], self.plans[place].paired
        if place == len(self.segments) - 1:
            return list(range((height - 1) // size + 1))
        feeding = {u - slot for one in segment.exits for u in needed for slot in slots(one)}
        return sorted({g % (height // size) for g in feeding} if paired else feeding)

    def column_offsets(self, place: int, needed: set[int]) -> list[int]:
        """Offsets v that a segment computes: all that share planes with a needed one.

        The order of sums then does not depend on what is needed. With strides, only the needed offsets.
        """
        segment, plan = self.segments[place], self.plans[place]
        width = segment.grid[1]
        if any(one.size[1] == 1 for one in segment.exits):
            return sorted(needed)
        beside = plan.stack or plan.columns // width
        return [v for v in range(width) if any(v // beside == other // beside for other in needed)]

    def slot_count(self, place: int, exit_: Exit) -> int:
        """Slots of an exit of a segment: see `slots`."""
        return 1 if self.has_first_stage and place == 0 else len(slots(exit_))

    def exit_numbers(self, place: int, exit_: Exit) -> int:
        """Values of an exit in the scratch memory between two segments, in all slots."""
        return self.slot_count(place, exit_) * math.prod(exit_.grid) ** 2

    def entered(self, place: int, number: int, where: str) -> str:
        """C++ that reads an entrance of a segment; `where` are the arguments u, v, row, k."""
        before, one = self.segments[place - 1], self.segments[place - 1].exits[number]
        kind = f"{axis_type(one, 0, before)}, WIDTH, {self.slot_count(place - 1, one)}"
        return f"entered<{kind}>(entrance{number} + number * {self.exit_numbers(place - 1, one)}, {where})"


def slots(exit_: Exit) -> range:
    """Slots of an exit, with sums of their own: group g of u, from g stride to (g + 1) stride, feeds U = g + slot."""
    size, stride = exit_.size[0], exit_.stride[0]
    return range(-((size - 1) // stride), (stride + size - 2) // stride + 1)


def axis_type(exit_: Exit, axis: int, segment: Segment) -> str:
    """The windows of an exit along an axis, as a type of the device code."""
    return f"Axis<{exit_.size[axis]}, {exit_.stride[axis]}, {segment.grid[axis]}, {exit_.grid[axis]}>"


@functools.lru_cache(maxsize=64)
def plan_offsets(graph: Graph, precision: str, shared_limit: int, most_lanes: int | None = None) -> OffsetPlan | str:
    """A plan for the offset path, or the reason why the graph must take the general path.

    A thread works on at most `most_lanes` pairs; None: on as many as are fastest.
    """
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    dtype = "float64" if graph.tangent or graph.delicate or keeps_scales(graph) else precision
    if exceeds(segments, dtype):
        return f"sums over the windows of a segment may exceed the range of {dtype}"
    sliding = dtype == "float32" and slides(segments) and _needs_most_offsets(Segmented(graph, segments, dtype))
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
    needs = f"planes of {height}×{width} positions take {most >> 10} KiB of shared memory"
    return f"{needs}, more than the {shared_limit >> 10} KiB of a block"


def _keeps_sums(segment: Segment, lanes: int) -> bool:
    """Whether a thread has registers for one sum along a row for every row of every window."""
    return all(
        lanes * _rows_kept(term) <= (_LONGEST_OF_LINES if sums_lines(segment, number) else _LONGEST)
        for number, step in enumerate(segment.steps)
        for term in step.terms
    )


def _plan_widely(segment: Segment, value_bytes: int, first: bool, last: bool, lanes: int) -> SegmentPlan:
    """The plan of a segment, with more columns side by side where that is faster."""
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
    """A plan without planes: the threads of a team have two columns each, and a block has at most 128 threads."""
    width, group = segment.grid[1], segment.exits[0].stride[0]
    columns, bands = 2 * width, 2 if width <= 32 else 1
    resident = _RESIDENT_OF_SLIDING // (-(-columns * bands // 32) * 32)
    return SegmentPlan({}, columns, bands, 0, 0, 16, group, True, resident, 0, 0, slides=True)


def slides(segments: Sequence[Segment]) -> bool:
    """Whether `sliding.cuh` can run the first segment: equal dense windows, each embedded, then a 2×2 pool."""
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


def _needs_most_offsets(plan: Segmented) -> bool:
    """Whether the first segment is needed at half of all offsets or more; with fewer, planes were faster."""
    needed = plan.needed(len(plan.segments) - 1)[0]
    return all(len(some) >= n for some, n in zip(needed, plan.segments[0].grid, strict=True))


def _is_chain(segment: Segment) -> bool:
    """Whether a segment multiplies pixels, then in each step sums the last value over windows and embeds the sums."""
    values = [0, *(segment.sum_of(number) + 1 for number in range(len(segment.steps)))]
    embeds = all(len(step.terms) == 1 and step.embedding is not None for step in segment.steps)
    chained = embeds and all(step.terms[0].value == value for step, value in zip(segment.steps, values, strict=False))
    return segment.entrances == 1 and len(values) > 1 and chained and segment.exits[0].value == values[-1]


def _is_one_window(segment: Segment, last: bool) -> bool:
    """Whether a segment only multiplies pixels, sums over one wide window and embeds the sums."""
    values = {one.value for one in segment.exits}
    alone = segment.entrances == len(segment.steps) == 1 and segment.steps[0].embedding is not None and not last
    return alone and values == {segment.sum_of(0) + 1} and sums_lines(segment, 0)


def _resident(segment: Segment, value_bytes: int) -> int:
    """Threads of a multiprocessor for which there are enough registers."""
    if segment.grid[0] == 1:
        return _RESIDENT_OF_ROW
    tallest = max((_rows_kept(term) for step in segment.steps for term in step.terms), default=1)
    return _RESIDENT_OF_TALL if tallest * value_bytes > 4 * _LONGEST else _RESIDENT


def _rows_kept(term: Term) -> int:
    """Rows from the first to the last of a window."""
    return term.taps[0][-1] - term.taps[0][0] + 1


def _planes(segment: Segment, last: bool) -> dict[int, int]:
    """Planes of the values that steps or exits read. A plane is reused once its value has been read for the last time.

    A step that stores sums along rows has read its argument before it stores its own values, so these may reuse its
    plane. Sums along rows have a plane of their own, because they overwrite the zeros beside columns.
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
    """Whether a step stores sums along rows in the plane LINES first."""
    terms = segment.steps[number].terms
    taps = [t for t in terms[0].taps[1] if abs(t) < segment.grid[1]]
    return len(terms) == 1 and segment.grid[0] > 1 and len(taps) >= _WIDE and len(taps) == taps[-1] - taps[0] + 1
