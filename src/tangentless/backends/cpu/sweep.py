"""The driver of the fused kernel: all stages for one left image against a vector of right images.

Fix the offset (u, v) between a position of the left image and one of the right. A window is then a plain sum over
positions, so every offset is its own small stencil problem through all steps of a stage, on its exact
(H - |u|) × (W - |v|) rectangle.

Rows of one offset stream through the steps of a stage, two at a time. Between two steps only a ring of a few rows is
kept, already summed along the row for the window that reads it. A branch that arrives early waits in a longer ring.
Neighbouring offsets take turns at every step: they read nearly the same rows of either image, which the first of
them brings into the first-level cache.

A pool of size p sends offset u to U = (u + j mod p) // p, where j is the row in the left image. With u ascending, U is
complete after u = p U + p - 1, and at most two U are open at a time; a complete one runs through the next stage at
once. A stride s keeps the offsets s U and every s-th position. The last pool adds up in float64.

The driver has only integers; the vector code in `leaves` is called by address. So the driver is compiled once for all
kernels. Arrays are plain addresses: the reference counting of numba's arrays took most of the time.
"""

from __future__ import annotations

import subprocess
from typing import Any, NamedTuple

import numpy as np

from . import leaves as f
from .compiling import start_python
from .simd import call_address, compiled, inlined, integer, internal, must_compile, put, reader

# Columns of the tables, which `tables` fills. Places in rings, lines and slots count vectors.
(
    HEIGHT,
    WIDTH,
    FIRST_STEP,
    END_STEP,
    FIRST_ENTRANCE,
    END_ENTRANCE,
    FIRST_EXIT,
    END_EXIT,
    DELAY,  # the lag of its last step
    SHIFT,  # 1 if rows enter as 0, (1, 2), (3, 4), ..., so that the last step gets (0, 1), (2, 3), ...
    ROW_STEP,  # the stride of its exits along the height
    NEEDED,  # the place of u = 0 in the flags of needed u
    FIRST_OFFSET,  # its needed v in the list of offsets
    END_OFFSET,
    STAGE_COLUMNS,
) = range(15)
(
    ENTRANCE_LEAF,
    ENTRANCE_DIRECT,  # 1: the leaf writes to the only sink, a ring; 0: to a line
    ENTRANCE_EXIT,  # the exit of the stage before; -1: pixels
    ENTRANCE_SCALE,  # the place of the factor on its slots
    ENTRANCE_KEPT,  # its place in what gradients keep
    ENTRANCE_SINK,  # its sinks
    ENTRANCE_END,
    ENTRANCE_COLUMNS,
) = range(8)
(
    LAG,  # rows by which it is behind the entrances
    STEP_NORMS,
    STEP_PARAMETERS,
    MODE,
    ROW_EVERY,  # which rows and columns are computed: multiples of these
    COLUMN_EVERY,
    PAIRS,  # 1: rows are computed two at a time
    FIRST_CHUNK,
    END_CHUNK,
    FIRST_PLAIN,  # sinks of its sum
    END_PLAIN,
    FIRST_SINK,  # sinks of its value after the embedding
    END_SINK,
    STEP_COLUMNS,
) = range(14)
# The ring, mask, number of rows and weight of a chunk, then those of the row that is added to it:
CHUNK_RING, CHUNK_MASK, CHUNK_ROWS, CHUNK_WEIGHT, ADDED, ADDED_MASK, ADDED_ROW, ADDED_WEIGHT = range(8)
LEAF1, LEAF2 = 8, 9  # code for one row; for two rows where u is even, and, in the next column, where u is odd
PAIR = 11  # to compute two rows: the rows that the first one adds up, relative to it, and one more
SINGLE = PAIR + f.MOST_ROWS + 1  # to compute one row: the rows in the order in which they are added
CHUNK_COLUMNS = SINGLE + f.MOST_ROWS
SINK_KIND, SINK_LEAF, SINK_RING, SINK_MASK, SINK_TAP, SINK_DILATION, SINK_EXIT, SINK_COLUMNS = range(8)
# The place of an exit's slots, its grid, its strides, and the rows and columns that it reads:
EXIT_SLOTS, EXIT_TALL, EXIT_WIDE, EXIT_ROWS, EXIT_ACROSS, CROP_ROWS, CROP_COLUMNS, EXIT_COLUMNS = range(8)

# Modes of a step. LINES: results go to lines, and from there to all sinks. FUSED: into one ring, as sums of three
# neighbours. HALVES: into the slots of a 2×2 pool.
LINES, FUSED, HALVES = range(3)
# Kinds of sinks, which read lines: rings, WIDEN with sums of three neighbours and TAPS with other windows; and exits,
# PICK for strides, POOL, and TOTAL for the last pool. POOL and TOTAL take two lines at once.
WIDEN, TAPS, PICK, POOL, TOTAL = range(5)
OWN_LINE = -1  # in ADDED: a chunk adds its sum to that of the chunks before it, not to a row of a ring
OUTSIDE = 1 << 40  # a row that no image has, and that therefore reads zeros

of_stage, of_entrance, of_step = reader(STAGE_COLUMNS), reader(ENTRANCE_COLUMNS), reader(STEP_COLUMNS)
of_chunk, of_sink, of_exit = reader(CHUNK_COLUMNS), reader(SINK_COLUMNS), reader(EXIT_COLUMNS)


class View(NamedTuple):
    """Addresses of the tables, and sizes: what the driver reads and never changes."""

    frame: int
    stages: int
    entrances: int
    steps: int
    chunks: int
    sinks: int
    exits: int
    offsets: int  # lists of needed v, one after the other for all stages
    needed: int  # flags of needed u, likewise
    first: int  # offsets u of the first stage to sweep, [first, end)
    end: int
    last: int  # the last stage to run
    lanes: int  # elements of a vector
    channels: int
    stride: int  # between rows of a ring
    margin: int  # before the first position of a row
    line: int  # the first of four lines of an offset: two of values, two of sums before their embedding
    line_stride: int  # from one line to the next
    padding: int  # zeros before and after a line
    rings_size: int  # from the rings and lines of one offset of a band to those of the next
    together: int  # offsets of a band, which take turns
    clear_leaf: int
    kept: int  # address of what gradients keep of the slots, for the first left image
    kept_bytes: int  # from there to that of the next left image


_NO_ROWS = (View(*(0,) * len(View._fields)), 0, 0, (0,) * 4, np.zeros(1), np.zeros((1, 1)), 0)


def compile_driver() -> None:
    """Compile all that is here, or take it from disk, by a call without rows."""
    run_rows(*_NO_ROWS)


def compile_driver_aside() -> subprocess.Popen[bytes] | None:
    """A process that compiles the driver into the cache on disk; None if that is needless or impossible."""
    if not must_compile(run_rows, _NO_ROWS):
        return None
    return start_python(f"from {__name__} import compile_driver; compile_driver()")


@compiled
def run_rows(view: Any, first: Any, end: Any, left: Any, total: Any, totals: Any, column: Any) -> None:
    """Run all stages for left images [first, end), and write the sums of the last pool to totals[row, column:].

    Slots must be zero; a run of all stages leaves them zero. `left` has the addresses of the left images' pixels and
    norms, each followed by the bytes from one image to the next. `total` is a vector of float64 to work with.
    """
    for row in range(first, end):
        put(view.frame, f.PIXELS, left[0] + row * left[1])
        put(view.frame, f.NORMS, left[2] + row * left[3])
        put(view.frame, f.KEPT, view.kept + (row - first) * view.kept_bytes)
        total[:] = 0
        for outermost in range(view.first, view.end):
            u, stage = outermost, np.int64(0)  # typed: a literal would compile everything twice
            while True:
                if integer(view.needed, of_stage(view.stages, stage, NEEDED) + u) != 0:
                    follow_offsets(view, stage, u)
                elif stage > 0:
                    forget(view, stage - 1, u)
                step = of_stage(view.stages, stage, ROW_STEP)
                if stage == view.last or u % step != step - 1:
                    break
                u //= step
                stage += 1
        for lane in range(view.lanes):
            totals[row, column + lane] = total[lane]


@internal
def forget(view: Any, stage: Any, u: Any) -> None:
    """Set the slots of an unneeded offset to zero: the next offset of its parity uses them."""
    for exit_ in range(of_stage(view.stages, stage, FIRST_EXIT), of_stage(view.stages, stage, END_EXIT)):
        wide = of_exit(view.exits, exit_, EXIT_WIDE)
        plane = of_exit(view.exits, exit_, EXIT_TALL) * wide
        middle = slot_place(view, exit_, u, 0)
        put(view.frame, f.LOW, (middle - wide * plane) * view.lanes)
        put(view.frame, f.LOW2, (middle + (wide + 1) * plane) * view.lanes)
        call_address(view.clear_leaf, view.frame)


@internal
def follow_offsets(view: Any, stage: Any, u: Any) -> None:
    """Stream the rows of offsets (u, v), a band of v at a time, through the steps of one stage."""
    frame, rows = view.frame, of_stage(view.stages, stage, HEIGHT) - abs(u)
    delay, shift = of_stage(view.stages, stage, DELAY), of_stage(view.stages, stage, SHIFT)
    first, last = of_stage(view.stages, stage, FIRST_OFFSET), of_stage(view.stages, stage, END_OFFSET)
    put(frame, f.WIDE, of_stage(view.stages, stage, WIDTH))
    put(frame, f.RINGS, view.rings_size * view.lanes)
    put(frame, f.PADDING, view.padding)
    while first < last:
        put(frame, f.FIRST, first)
        put(frame, f.END, min(first + view.together, last))
        for t in range((rows + delay + shift + 1) // 2):
            newest = 2 * t - shift
            for row in range(max(newest, 0), min(newest + 2, rows)):
                entrance = of_stage(view.stages, stage, FIRST_ENTRANCE)
                while entrance < of_stage(view.stages, stage, END_ENTRANCE):
                    enter_row(view, stage, entrance, u, row)
                    entrance += 1
            for step in range(of_stage(view.stages, stage, FIRST_STEP), of_stage(view.stages, stage, END_STEP)):
                row = newest - of_step(view.steps, step, LAG)
                top, bottom = max(row, 0), min(row + 2, rows)
                if top < bottom:
                    step_rows(view, stage, step, u, top, bottom, rows)
        first += view.together


@internal
def enter_row(view: Any, stage: Any, entrance: Any, u: Any, row: Any) -> None:
    """Write a row at an entrance of a stage, of inner products of pixels or from slots, to the rings that read it."""
    frame, lanes, down = view.frame, view.lanes, max(0, -u) + row
    wide, exit_ = of_stage(view.stages, stage, WIDTH), of_entrance(view.entrances, entrance, ENTRANCE_EXIT)
    put(frame, f.X, down * wide * view.channels)
    put(frame, f.Z, (down + u) * wide * view.channels * lanes)
    if exit_ >= 0:
        put(frame, f.PLANE, of_exit(view.exits, exit_, EXIT_TALL) * wide * lanes)
        put(frame, f.LOW, (slot_place(view, exit_, u, 0) + down * wide) * lanes)
        put(frame, f.WEIGHT, of_entrance(view.entrances, entrance, ENTRANCE_SCALE))
        tall, kept = of_stage(view.stages, stage, HEIGHT), of_entrance(view.entrances, entrance, ENTRANCE_KEPT)
        put(frame, f.KEEP, (kept + ((u % tall) * wide * tall + down) * wide) * lanes)
    leaf = of_entrance(view.entrances, entrance, ENTRANCE_LEAF)
    sink = of_entrance(view.entrances, entrance, ENTRANCE_SINK)
    if of_entrance(view.entrances, entrance, ENTRANCE_DIRECT) != 0:
        ring, mask = of_sink(view.sinks, sink, SINK_RING), of_sink(view.sinks, sink, SINK_MASK)
        put(frame, f.OUT, ring_place(view, ring, mask, row))
        call_address(leaf, frame)
        return
    put(frame, f.OUT, view.line * lanes)
    call_address(leaf, frame)
    last = of_entrance(view.entrances, entrance, ENTRANCE_END)
    hand_on(view, sink, last, u, row, np.int64(1), view.line * lanes)


@internal
def step_rows(view: Any, stage: Any, step: Any, u: Any, top: Any, bottom: Any, rows: Any) -> None:
    """Compute rows [top, bottom) of a step, one or two, and write them to all sinks."""
    frame, lanes = view.frame, view.lanes
    put(frame, f.START, of_step(view.steps, step, STEP_PARAMETERS))
    put(frame, f.EVERY, of_step(view.steps, step, COLUMN_EVERY))
    row, line, wide = top, view.line * lanes, of_stage(view.stages, stage, WIDTH)
    while row < bottom:
        height = 2 if of_step(view.steps, step, PAIRS) != 0 and row + 1 < bottom else 1
        if row % of_step(view.steps, step, ROW_EVERY) == 0:
            norms, down = of_step(view.steps, step, STEP_NORMS), max(0, -u) + row
            put(frame, f.X, norms + down * wide)
            put(frame, f.Z, (norms + (down + u) * wide) * lanes)
            if of_step(view.steps, step, MODE) != LINES:
                set_sinks(view, step, u, row)
            else:
                set_lines(view, line + (row - top) * view.line_stride * lanes)
            for chunk in range(of_step(view.steps, step, FIRST_CHUNK), of_step(view.steps, step, END_CHUNK)):
                set_chunk(view, chunk, row, height, rows, line + (row - top) * view.line_stride * lanes)
                leaf = LEAF1 if height == 1 else LEAF2 + (u & 1)
                call_address(of_chunk(view.chunks, chunk, leaf), frame)
        row += height
    if of_step(view.steps, step, MODE) == LINES:
        first, end = of_step(view.steps, step, FIRST_PLAIN), of_step(view.steps, step, END_PLAIN)
        hand_on(view, first, end, u, top, bottom - top, line + 2 * view.line_stride * lanes)
        first, end = of_step(view.steps, step, FIRST_SINK), of_step(view.steps, step, END_SINK)
        hand_on(view, first, end, u, top, bottom - top, line)


@inlined
def set_lines(view: Any, line: Any) -> None:
    """Let leaves write results and sums to lines, which `hand_on` reads."""
    frame, stride = view.frame, view.line_stride * view.lanes
    put(frame, f.OUT, line)
    put(frame, f.OUT2, line + stride)
    put(frame, f.PLAIN, line + 2 * stride)
    put(frame, f.PLAIN2, line + 3 * stride)


@inlined
def set_sinks(view: Any, step: Any, u: Any, row: Any) -> None:
    """Let leaves write results to their only sink, a ring or a pool, and sums, if they are read, to their only ring."""
    frame, sink, plain = view.frame, of_step(view.steps, step, FIRST_SINK), of_step(view.steps, step, FIRST_PLAIN)
    if of_step(view.steps, step, MODE) == HALVES:
        set_pool(view, of_sink(view.sinks, sink, SINK_EXIT), u, row)
        return
    ring, mask = of_sink(view.sinks, sink, SINK_RING), of_sink(view.sinks, sink, SINK_MASK)
    put(frame, f.OUT, ring_place(view, ring, mask, row))
    put(frame, f.OUT2, ring_place(view, ring, mask, row + 1))
    if plain < of_step(view.steps, step, END_PLAIN):
        ring, mask = of_sink(view.sinks, plain, SINK_RING), of_sink(view.sinks, plain, SINK_MASK)
        put(frame, f.PLAIN, ring_place(view, ring, mask, row))
        put(frame, f.PLAIN2, ring_place(view, ring, mask, row + 1))


@internal
def hand_on(view: Any, sink: Any, last: Any, u: Any, row: Any, height: Any, line: Any) -> None:
    """Write one or two lines to sinks [sink, last)."""
    frame, stride = view.frame, view.line_stride * view.lanes
    while sink < last:
        kind, leaf = of_sink(view.sinks, sink, SINK_KIND), of_sink(view.sinks, sink, SINK_LEAF)
        exit_, down, inside = of_sink(view.sinks, sink, SINK_EXIT), max(0, -u) + row, height
        if kind >= PICK:
            put(frame, f.CROPPED, of_exit(view.exits, exit_, CROP_COLUMNS))
            inside = min(height, of_exit(view.exits, exit_, CROP_ROWS) - abs(u) - row)
        put(frame, f.TAP, of_sink(view.sinks, sink, SINK_TAP))
        put(frame, f.DILATION, of_sink(view.sinks, sink, SINK_DILATION))
        put(frame, f.LINE2, line + stride)
        put(frame, f.HEIGHT, inside)
        for r in range(max(0, inside)):
            put(frame, f.LINE, line + r * stride)
            if PICK <= kind < TOTAL:
                tall = of_exit(view.exits, exit_, EXIT_ROWS)
                if kind == PICK and (u % tall != 0 or (down + r) % tall != 0):
                    continue
                set_pool(view, exit_, u, row + r)
            elif kind != TOTAL:
                ring, mask = of_sink(view.sinks, sink, SINK_RING), of_sink(view.sinks, sink, SINK_MASK)
                put(frame, f.OUT, ring_place(view, ring, mask, row + r))
            call_address(leaf, frame)
            if kind >= POOL:
                break
        sink += 1


@internal
def set_chunk(view: Any, chunk: Any, row: Any, height: Any, rows: Any, line: Any) -> None:
    """Tell a leaf which rows of a ring a chunk adds up, for one or two results, and which row it adds to them."""
    frame, count = view.frame, of_chunk(view.chunks, chunk, CHUNK_ROWS)
    ring, mask = of_chunk(view.chunks, chunk, CHUNK_RING), of_chunk(view.chunks, chunk, CHUNK_MASK)
    first = PAIR if height == 2 else SINGLE
    for j in range(count + height - 1):
        put(frame, f.ROWS + j, ring_or_zeros(view, ring, mask, row + of_chunk(view.chunks, chunk, first + j), rows))
    put(frame, f.WEIGHT, of_chunk(view.chunks, chunk, CHUNK_WEIGHT))
    put(frame, f.WEIGHT2, of_chunk(view.chunks, chunk, ADDED_WEIGHT))
    added, mask = of_chunk(view.chunks, chunk, ADDED), of_chunk(view.chunks, chunk, ADDED_MASK)
    row += of_chunk(view.chunks, chunk, ADDED_ROW)
    if added == OWN_LINE:
        put(frame, f.D, line)
        put(frame, f.D2, line + view.line_stride * view.lanes)
    else:
        put(frame, f.D, ring_or_zeros(view, added, mask, row, rows))
        put(frame, f.D2, ring_or_zeros(view, added, mask, row + 1, rows))


@inlined
def set_pool(view: Any, exit_: Any, u: Any, row: Any) -> None:
    """Tell a leaf to which slots of an exit two rows of offset u belong, for V = 0 and the first column."""
    size, wide, down = of_exit(view.exits, exit_, EXIT_ROWS), of_exit(view.exits, exit_, EXIT_WIDE), max(0, -u) + row
    low = slot_place(view, exit_, (u + down % size) // size, down // size * wide)
    low2 = slot_place(view, exit_, (u + (down + 1) % size) // size, (down + 1) // size * wide)
    put(view.frame, f.LOW, low * view.lanes)
    put(view.frame, f.LOW2, low2 * view.lanes)
    put(view.frame, f.PLANE, of_exit(view.exits, exit_, EXIT_TALL) * wide * view.lanes)
    put(view.frame, f.SIZE, of_exit(view.exits, exit_, EXIT_ACROSS))


@inlined
def slot_place(view: Any, exit_: Any, u: Any, position: Any) -> Any:
    """The place of a position in the slots for offset (u, 0) of an exit; two u at a time have slots, by parity."""
    tall, wide = of_exit(view.exits, exit_, EXIT_TALL), of_exit(view.exits, exit_, EXIT_WIDE)
    return of_exit(view.exits, exit_, EXIT_SLOTS) + ((u & 1) * (2 * wide + 1) + wide) * tall * wide + position


@inlined
def ring_place(view: Any, ring: Any, mask: Any, row: Any) -> Any:
    """The place of a row in a ring, for the first offset of a band."""
    return (ring + (row & mask) * view.stride) * view.lanes


@inlined
def ring_or_zeros(view: Any, ring: Any, mask: Any, row: Any, rows: Any) -> Any:
    """The same; for a row outside the image, the place of the row of zeros."""
    return ring_place(view, ring, mask, row) if 0 <= row < rows else view.margin * view.lanes
