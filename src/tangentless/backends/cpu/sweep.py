"""The fused kernel: all layers of all stages for one left image against a vector of right images.

Fix the offset (u, v) between a position of the left image and one of the right. A convolution is then a plain box
filter over positions, so every offset is its own small stencil problem through all steps up to the next pool. Lanes
are right *images*: every shift is an aligned vector, and each offset runs its exact (H - |u|) × (W - |v|)
rectangle.

Rows of one offset stream through the steps of a stage, two at a time. Between two steps only a ring of a few rows
lives, already summed along the row, so a 3×3 window costs two more additions per element. Neighbouring offsets take
turns at every step: they read nearly the same rows of either image, which the first of them brings into the
first-level cache.

A pool of size p sends offset u to U = (u + j mod p) // p. Sweeping u upwards, U is complete after u = p U + p - 1,
and at most two U are open at a time; a complete one runs through the next stage at once. The last pool adds up in
float64.

Inside, arrays are plain addresses: counting references to them, which numba does for arrays, took most of the time.
The two entrances, `run_rows` and `run_self`, take arrays and keep them alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .duals import embed
from .simd import (
    accumulate,
    accumulate_double,
    broadcast,
    compiled,
    inlined,
    integer,
    lane_count,
    load,
    load_left,
    multiply_add,
    store,
    zero,
)

# Columns of the table of stages, and of the table of steps.
HEIGHT, WIDTH, POOL_HEIGHT, POOL_WIDTH, POOLED_HEIGHT, POOLED_WIDTH, FIRST_STEP, STEPS, NORMS, SLOTS, STAGE_COLUMNS = (
    range(11)
)
REACH_HEIGHT, REACH_WIDTH, KIND, PARAMETERS, RING, RING_MASK, LAG, STEP_COLUMNS = range(8)


class View(NamedTuple):
    """Addresses of all arrays, and the sizes that do not change during a sweep."""

    stages: int
    steps: int
    table: int
    scales: int
    ring: int
    line: int
    slots: int
    total: int
    pixels: int
    norms: int  # each beside its inverse, here and of the right images
    right_pixels: int
    right_norms: int
    stage_count: int
    channels: int
    margin: int
    stride: int
    rings: int


class Band(NamedTuple):
    """Neighbouring offsets, (u, left) to (u, right - 1), which take turns. Each has rings of its own."""

    u: int
    left: int
    right: int


class Offset(NamedTuple):
    """One of them, and how far its rings are from those of the first."""

    u: int
    v: int
    shift: int


class Dual(NamedTuple):
    """An embedding: its place among the kinds, and that of its parameters in the table."""

    kind: int
    parameters: int


class Window(NamedTuple):
    """Where two rows of a 3×3 step begin: norms of both sides, and the four rows of the ring they sum over.

    Of norms these are the rows of whole images, and of the ring those of the first offset, until it is `moved`.
    """

    x: int
    z: int
    above: int
    here: int
    below: int
    further: int


@compiled
def run_rows(
    lanes: Any,
    duals: Any,
    plan: Any,
    left: Any,
    right: Any,
    first: Any,
    end: Any,
    block: Any,
    scratch: Any,
    totals: Any,
) -> None:
    """Sums after the last pool of left images [first, end) against one block of right ones, into `totals`."""
    for row in range(first, end):
        view = look(plan, left, row, right, block, scratch)
        sweep(lanes, duals, view, plan.reach, plan.together, scratch)
        for lane in range(plan.lanes):
            totals[row, block * plan.lanes + lane] = scratch.total[lane]


@compiled
def run_self(
    lanes: Any, duals: Any, plan: Any, images: Any, first: Any, end: Any, reach: Any, scratch: Any, squares: Any
) -> None:
    """Each image with itself, for blocks [first, end): sums in the last pool followed, at the diagonal."""
    stage = len(reach) - 1
    for block in range(first, end):
        view = look(plan, images, block, images, block, scratch)
        sweep(lanes, duals, view, reach, plan.together, scratch)
        if stage == len(plan.stages) - 1:
            for lane in range(plan.lanes):
                squares[block, lane] = scratch.total[lane]
        else:
            start = slot_start(lanes, view, stage, 0, 0, 0, 0)
            for i in range(squares.shape[1]):
                squares[block, i] = scratch.slots[start + i]


@compiled
def look(plan: Any, left: Any, row: Any, right: Any, block: Any, scratch: Any) -> Any:
    """The addresses for one left image and one block of right images."""
    return View(
        plan.stages.ctypes.data,
        plan.steps.ctypes.data,
        plan.table.ctypes.data,
        plan.scales.ctypes.data,
        scratch.ring.ctypes.data,
        scratch.line.ctypes.data,
        scratch.slots.ctypes.data,
        scratch.total.ctypes.data,
        left[0][row].ctypes.data,
        left[1][row].ctypes.data,
        right[0][block].ctypes.data,
        right[1][block].ctypes.data,
        len(plan.stages),
        plan.channels,
        plan.margin,
        plan.stride,
        plan.rings,
    )


@compiled
def sweep(lanes: Any, duals: Any, view: Any, reach: Any, together: Any, scratch: Any) -> None:
    """Run the first `len(reach)` stages over all offsets within reach, so many of them together.

    The result is in the slots of the last of them, or, after the program's last pool, in the total.
    """
    scratch.slots[:] = 0
    scratch.total[:] = 0
    for outermost in range(-reach[0, 0], reach[0, 0] + 1):
        u, stage = outermost, np.int64(0)  # typed: a literal would compile everything twice
        while True:
            for v in range(-reach[stage, 1], reach[stage, 1] + 1, together):
                band = Band(u, v, min(v + together, reach[stage, 1] + 1))
                follow_offsets(lanes, duals, view, stage, band)
            pool = of_stage(view, stage, POOL_HEIGHT)
            if stage == len(reach) - 1 or u % pool != pool - 1:
                break
            u //= pool
            if abs(u) > reach[stage + 1, 0]:  # no one reads it: it must not leak into the next of its parity
                wide = of_stage(view, stage, POOLED_WIDTH)
                scratch.slots[
                    slot_start(lanes, view, stage, u, -wide, 0, 0) : slot_start(lanes, view, stage, u, wide + 1, 0, 0)
                ] = 0
                break
            stage += 1


@compiled
def follow_offsets(lanes: Any, duals: Any, view: Any, stage: Any, band: Any) -> None:
    """Stream the rows of a few offsets through the steps of one stage."""
    first, count = of_stage(view, stage, FIRST_STEP), of_stage(view, stage, STEPS)
    rows = of_stage(view, stage, HEIGHT) - abs(band.u)
    delay = of_step(view, first + count - 1, LAG)
    shift = delay & 1  # so that the last step sees rows in even pairs
    for t in range((rows + delay + shift + 1) // 2):
        newest = 2 * t - shift
        for row in range(max(newest, 0), min(newest + 2, rows)):
            enter_row(lanes, view, stage, band, row)
        for step in range(first, first + count):
            row = newest - of_step(view, step, LAG)
            begin, end = max(row, 0), min(row + 2, rows)
            if begin < end:
                step_rows(lanes, duals, view, stage, step, band, begin, end, rows)


@inlined
def enter_row(lanes: Any, view: Any, stage: Any, band: Any, row: Any) -> None:
    """Put one row of inner products at the entrance of a stage into its first ring: of pixels, or out of a pool."""
    width, wide, channels = lane_count(lanes), of_stage(view, stage, WIDTH), view.channels
    down, step = max(0, -band.u) + row, of_stage(view, stage, FIRST_STEP)
    x, z = down * wide * channels, (down + band.u) * wide * channels * width
    direct, begin = stage == 0 and of_step(view, step, REACH_WIDTH) == 1, band.left
    if direct and channels == 3:
        while begin + 1 < band.right:
            out = ring_row(lanes, view, step, row) + rings_of(lanes, view, band, begin)
            two_colour_rows(lanes, view, wide, begin, x, z, out)
            begin += 2
    for v in range(begin, band.right):
        offset = Offset(band.u, v, rings_of(lanes, view, band, v))
        count, across = wide - abs(v), max(0, -v)
        if direct:
            out = ring_row(lanes, view, step, row) + offset.shift
            before, now = zero(lanes), zero(lanes)
            for k in range(count):
                value = pixel_product(lanes, view, x, z, across + k, across + k + v)
                store(view.ring, out + (k - 1) * width, before + (now + value))
                before, now = now, value
            store(view.ring, out + (count - 1) * width, before + now)
            continue
        if stage == 0:
            for k in range(count):
                value = pixel_product(lanes, view, x, z, across + k, across + k + v)
                store(view.line, (view.margin + k) * width, value)
        else:
            start = slot_start(lanes, view, stage - 1, band.u, v, down, across)
            scale = broadcast(lanes, view.scales, stage)
            for k in range(count):
                value = load(lanes, view.slots, start + k * width)
                store(view.slots, start + k * width, zero(lanes))
                store(view.line, (view.margin + k) * width, value * scale)
        widen_line(lanes, view, offset, step, row, count)


@inlined
def two_colour_rows(lanes: Any, view: Any, wide: Any, v: Any, x: Any, z: Any, out: Any) -> None:
    """A row of inner products of offset v and of v + 1: what takes the time is to load pixels, and they share them."""
    width, across, both = lane_count(lanes), max(0, -v), wide - max(abs(v), abs(v + 1))
    out2 = out + view.rings * width
    before, now = zero(lanes), zero(lanes)
    before2, now2 = zero(lanes), zero(lanes)
    if v < 0:  # v + 1 begins a position before v; otherwise v ends one after v + 1
        now2 = pixel_product(lanes, view, x, z, across - 1, across + v)
        out2 += width
    place = z + (across + v) * 3 * width
    red, green, blue = load_colours(lanes, view, place)
    for k in range(both):
        i = x + 3 * (across + k)
        a, b = load_left(lanes, view.pixels, i), load_left(lanes, view.pixels, i + 1)
        c = load_left(lanes, view.pixels, i + 2)
        value = multiply_add(c, blue, multiply_add(b, green, a * red))
        store(view.ring, out + (k - 1) * width, before + (now + value))
        before, now = now, value
        red, green, blue = load_colours(lanes, view, place + (k + 1) * 3 * width)
        value = multiply_add(c, blue, multiply_add(b, green, a * red))
        store(view.ring, out2 + (k - 1) * width, before2 + (now2 + value))
        before2, now2 = now2, value
    if v >= 0:
        value = pixel_product(lanes, view, x, z, both, wide - 1)
        store(view.ring, out + (both - 1) * width, before + (now + value))
        before, now = now, value
        out += width
    store(view.ring, out + (both - 1) * width, before + now)
    store(view.ring, out2 + (both - 1) * width, before2 + now2)


@inlined
def load_colours(lanes: Any, view: Any, z: Any) -> Any:
    """Three channels of a pixel of the right images."""
    width, pixels = lane_count(lanes), view.right_pixels
    return load(lanes, pixels, z), load(lanes, pixels, z + width), load(lanes, pixels, z + 2 * width)


@inlined
def pixel_product(lanes: Any, view: Any, x: Any, z: Any, k: Any, m: Any) -> Any:
    """The inner products of pixel k of the left image's row x with pixel m of the right images' row z."""
    width, channels = lane_count(lanes), view.channels
    x, z = x + k * channels, z + m * channels * width
    value = load_left(lanes, view.pixels, x) * load(lanes, view.right_pixels, z)
    for channel in range(1, channels):
        right = load(lanes, view.right_pixels, z + channel * width)
        value = multiply_add(load_left(lanes, view.pixels, x + channel), right, value)
    return value


@inlined
def step_rows(
    lanes: Any, duals: Any, view: Any, stage: Any, step: Any, band: Any, begin: Any, end: Any, rows: Any
) -> None:
    """Evaluate one or two rows of a step, and hand them to the next step's ring, to the pool or to the total."""
    width, wide = lane_count(lanes), of_stage(view, stage, WIDTH)
    u, down = band.u, max(0, -band.u) + begin
    first = of_stage(view, stage, FIRST_STEP)
    norms = of_stage(view, stage, NORMS) + (step - first) * of_stage(view, stage, HEIGHT) * wide
    x, z = norms + down * wide, (norms + (down + u) * wide) * width
    dual = Dual(of_step(view, step, KIND), of_step(view, step, PARAMETERS))
    last = step == first + of_stage(view, stage, STEPS) - 1
    if of_step(view, step, REACH_HEIGHT) == 1:
        window = Window(
            x,
            z,
            ring_or_nothing(lanes, view, step, begin - 1, rows),
            ring_row(lanes, view, step, begin),
            ring_or_nothing(lanes, view, step, begin + 1, rows),
            ring_or_nothing(lanes, view, step, begin + 2, rows),
        )
        if not last and of_step(view, step + 1, REACH_WIDTH) == 1:
            if end - begin == 2:
                rows_to_ring(lanes, duals, view, 2, dual, window, wide, band, step + 1, begin)
            else:
                rows_to_ring(lanes, duals, view, 1, dual, window, wide, band, step + 1, begin)
            return
        if last and stage < view.stage_count - 1:
            if end - begin == 1:
                rows_to_pool(lanes, duals, view, 1, dual, window, stage, band, down)
            elif of_stage(view, stage, POOL_HEIGHT) != 2 or of_stage(view, stage, POOL_WIDTH) != 2:
                rows_to_pool(lanes, duals, view, 2, dual, window, stage, band, down)
            elif u & 1 == 0:
                rows_to_halves(lanes, duals, view, 2, dual, window, stage, band, down)
            else:
                rows_to_halves(lanes, duals, view, 1, dual, window, stage, band, down)
            return
    for v in range(band.left, band.right):
        offset = Offset(u, v, rings_of(lanes, view, band, v))
        count, across = wide - abs(v), max(0, -v)
        for row in range(begin, end):
            sum_rows(lanes, view, offset, step, row, rows, count)
            a = x + (row - begin) * wide + across
            b = z + ((row - begin) * wide + across + v) * width
            for k in range(count):
                i = (view.margin + k) * width
                store(view.line, i, embedded(lanes, duals, view, dual, a + k, b + k * width, load(lanes, view.line, i)))
            leave_line(lanes, view, stage, offset, step, row)


@inlined
def rings_of(lanes: Any, view: Any, band: Any, v: Any) -> Any:
    """How far the rings of one of the offsets are from those of the first."""
    return (v - band.left) * view.rings * lane_count(lanes)


@inlined
def moved(lanes: Any, view: Any, window: Any, band: Any, v: Any) -> Any:
    """The window of one of the offsets."""
    across, shift = max(0, -v), rings_of(lanes, view, band, v)
    return Window(
        window.x + across,
        window.z + (across + v) * lane_count(lanes),
        window.above + shift,
        window.here + shift,
        window.below + shift,
        window.further + shift,
    )


@inlined
def embedded(lanes: Any, duals: Any, view: Any, dual: Any, x: Any, z: Any, value: Any) -> Any:
    """The embedding of inner products at a position of the left image, x, and of the right ones, z."""
    a = load_left(lanes, view.norms, 2 * x) * load(lanes, view.right_norms, 2 * z)
    r = load_left(lanes, view.norms, 2 * x + 1) * load(lanes, view.right_norms, 2 * z + lane_count(lanes))
    return embed(duals, dual.kind, view.table, dual.parameters, value, a, r)


@inlined
def rows_to_ring(
    lanes: Any, duals: Any, view: Any, height: Any, dual: Any, window: Any, wide: Any, band: Any, step: Any, row: Any
) -> None:
    """One or two rows of a 3×3 step into the ring of a following 3×3 step: where most of the time goes.

    The height is a constant of each call, and calls are inlined.
    """
    width = lane_count(lanes)
    for v in range(band.left, band.right):
        count, shift = wide - abs(v), rings_of(lanes, view, band, v)
        here = moved(lanes, view, window, band, v)
        out, out2 = ring_row(lanes, view, step, row) + shift, ring_row(lanes, view, step, row + 1) + shift
        before, now = zero(lanes), zero(lanes)
        before2, now2 = zero(lanes), zero(lanes)
        for k in range(count):
            i = k * width
            if height == 2:
                value, value2 = two_rows(lanes, duals, view, dual, here, wide, k)
                store(view.ring, out2 + i - width, before2 + (now2 + value2))
                before2, now2 = now2, value2
            else:
                value = one_row(lanes, duals, view, dual, here, k)
            store(view.ring, out + i - width, before + (now + value))
            before, now = now, value
        store(view.ring, out + (count - 1) * width, before + now)
        if height == 2:
            store(view.ring, out2 + (count - 1) * width, before2 + now2)


@inlined
def rows_to_halves(
    lanes: Any, duals: Any, view: Any, shared: Any, dual: Any, window: Any, stage: Any, band: Any, down: Any
) -> None:
    """Two rows of a 3×3 step into a 2×2 pool, where 1 or 2 of them share a place, as u is odd or even; so do columns.

    The former is a constant of each call.
    """
    width, wide = lane_count(lanes), of_stage(view, stage, WIDTH)
    plane = of_stage(view, stage, POOLED_HEIGHT) * of_stage(view, stage, POOLED_WIDTH) * width
    for v in range(band.left, band.right):
        count, across = wide - abs(v), max(0, -v)
        here = moved(lanes, view, window, band, v)
        low = pool_start(lanes, view, stage, band.u, v, down, across)
        further = pool_start(lanes, view, stage, band.u, v, down + 1, across) - low
        if v & 1 == 0:
            for k in range(0, count, 2):
                value, value2 = two_rows(lanes, duals, view, dual, here, wide, k)
                beside, beside2 = two_rows(lanes, duals, view, dual, here, wide, k + 1)
                put_two(view, shared, low, further, value + beside, value2 + beside2)
                low += width
        else:
            high = low + plane
            if across & 1 == 1:
                low, high = high, low + width
            for k in range(count):
                value, value2 = two_rows(lanes, duals, view, dual, here, wide, k)
                put_two(view, shared, low, further, value, value2)
                low, high = high, low + width


@inlined
def put_two(view: Any, shared: Any, start: Any, further: Any, value: Any, value2: Any) -> None:
    """Add what two rows have to one or to two places."""
    if shared == 2:
        accumulate(view.slots, start, value + value2)
    else:
        accumulate(view.slots, start, value)
        accumulate(view.slots, start + further, value2)


@inlined
def rows_to_pool(
    lanes: Any, duals: Any, view: Any, height: Any, dual: Any, window: Any, stage: Any, band: Any, down: Any
) -> None:
    """One or two rows of a 3×3 step into any pool: V for the first positions of each window, V + 1 beyond the split."""
    width, wide = lane_count(lanes), of_stage(view, stage, WIDTH)
    size = of_stage(view, stage, POOL_WIDTH)
    plane = of_stage(view, stage, POOLED_HEIGHT) * of_stage(view, stage, POOLED_WIDTH) * width
    for v in range(band.left, band.right):
        count, across = wide - abs(v), max(0, -v)
        here = moved(lanes, view, window, band, v)
        low = pool_start(lanes, view, stage, band.u, v, down, across)
        low2 = pool_start(lanes, view, stage, band.u, v, down + 1, across)
        split, phase = size - v % size, across % size
        total, total2 = zero(lanes), zero(lanes)
        for k in range(count):
            if height == 2:
                value, value2 = two_rows(lanes, duals, view, dual, here, wide, k)
                total2 = total2 + value2
            else:
                value = one_row(lanes, duals, view, dual, here, k)
            total = total + value
            phase += 1
            if phase in (split, size) or k == count - 1:
                above_split = plane if phase > split else 0
                if height == 2 and low == low2:
                    total = total + total2
                elif height == 2:
                    accumulate(view.slots, low2 + above_split, total2)
                accumulate(view.slots, low + above_split, total)
                total, total2 = zero(lanes), zero(lanes)
                if phase == size:
                    phase = 0
                    low += width
                    low2 += width


@inlined
def one_row(lanes: Any, duals: Any, view: Any, dual: Any, window: Any, k: Any) -> Any:
    """A row of a 3×3 step, at one position."""
    i = k * lane_count(lanes)
    value = load(lanes, view.ring, window.here + i) + load(lanes, view.ring, window.below + i)
    value = load(lanes, view.ring, window.above + i) + value
    return embedded(lanes, duals, view, dual, window.x + k, window.z + i, value)


@inlined
def two_rows(lanes: Any, duals: Any, view: Any, dual: Any, window: Any, wide: Any, k: Any) -> Any:
    """Two rows of a 3×3 step, at one position."""
    width = lane_count(lanes)
    i = k * width
    x, z = window.x + k, window.z + i
    middle = load(lanes, view.ring, window.here + i) + load(lanes, view.ring, window.below + i)
    value = embedded(lanes, duals, view, dual, x, z, load(lanes, view.ring, window.above + i) + middle)
    value2 = middle + load(lanes, view.ring, window.further + i)
    return value, embedded(lanes, duals, view, dual, x + wide, z + wide * width, value2)


@inlined
def sum_rows(lanes: Any, view: Any, offset: Any, step: Any, row: Any, rows: Any, count: Any) -> None:
    """The window sums of one row, from the ring into the line."""
    width, reach = lane_count(lanes), of_step(view, step, REACH_HEIGHT)
    begin, end = max(0, row - reach), min(rows, row + reach + 1)
    source = ring_row(lanes, view, step, begin) + offset.shift
    for k in range(count):
        store(view.line, (view.margin + k) * width, load(lanes, view.ring, source + k * width))
    for other in range(begin + 1, end):
        source = ring_row(lanes, view, step, other) + offset.shift
        for k in range(count):
            accumulate(view.line, (view.margin + k) * width, load(lanes, view.ring, source + k * width))


@compiled
def leave_line(lanes: Any, view: Any, stage: Any, offset: Any, step: Any, row: Any) -> None:
    """Hand a finished row on: to the next step's ring, to the pool, or to the total."""
    width, count = lane_count(lanes), of_stage(view, stage, WIDTH) - abs(offset.v)
    if step < of_stage(view, stage, FIRST_STEP) + of_stage(view, stage, STEPS) - 1:
        widen_line(lanes, view, offset, step + 1, row, count)
    elif stage < view.stage_count - 1:
        pool_line(lanes, view, stage, offset, max(0, -offset.u) + row)
    else:
        value = load(lanes, view.line, view.margin * width)
        for k in range(1, count):
            value = value + load(lanes, view.line, (view.margin + k) * width)
        accumulate_double(view.total, 0, value)


@compiled
def widen_line(lanes: Any, view: Any, offset: Any, step: Any, row: Any, count: Any) -> None:
    """Sums along a row over a step's window, zero outside, into its ring."""
    width, reach = lane_count(lanes), of_step(view, step, REACH_WIDTH)
    out = ring_row(lanes, view, step, row) + offset.shift
    if reach == 1:
        before, now = zero(lanes), zero(lanes)
        for k in range(count):
            value = load(lanes, view.line, (view.margin + k) * width)
            store(view.ring, out + (k - 1) * width, before + (now + value))
            before, now = now, value
        store(view.ring, out + (count - 1) * width, before + now)
        return
    for k in range(count):
        begin, end = max(0, k - reach), min(count, k + reach + 1)
        value = load(lanes, view.line, (view.margin + begin) * width)
        for other in range(begin + 1, end):
            value = value + load(lanes, view.line, (view.margin + other) * width)
        store(view.ring, out + k * width, value)


@compiled
def pool_line(lanes: Any, view: Any, stage: Any, offset: Any, down: Any) -> None:
    """Add one row to the pooled offsets it feeds."""
    width, wide = lane_count(lanes), of_stage(view, stage, WIDTH)
    u, v = offset.u, offset.v
    count, across = wide - abs(v), max(0, -v)
    size = of_stage(view, stage, POOL_WIDTH)
    plane = of_stage(view, stage, POOLED_HEIGHT) * of_stage(view, stage, POOLED_WIDTH) * width
    low = pool_start(lanes, view, stage, u, v, down, across)
    split, phase = size - v % size, across % size
    for k in range(count):
        target = low + (plane if phase >= split else 0)
        accumulate(view.slots, target, load(lanes, view.line, (view.margin + k) * width))
        phase += 1
        if phase == size:
            phase = 0
            low += width


@inlined
def pool_start(lanes: Any, view: Any, stage: Any, u: Any, v: Any, down: Any, across: Any) -> Any:
    """Where the pool holds what a row of offset (u, v) feeds, from its first position on, before the split."""
    tall, size = of_stage(view, stage, POOL_HEIGHT), of_stage(view, stage, POOL_WIDTH)
    return slot_start(lanes, view, stage, (u + down % tall) // tall, v // size, down // tall, across // size)


@inlined
def slot_start(lanes: Any, view: Any, stage: Any, u: Any, v: Any, down: Any, across: Any) -> Any:
    """Where a pooled offset (u, v) is held at a position; only two u are open at a time, so parity tells them apart."""
    tall, wide = of_stage(view, stage, POOLED_HEIGHT), of_stage(view, stage, POOLED_WIDTH)
    plane = (u & 1) * (2 * wide + 1) + v + wide
    return (of_stage(view, stage, SLOTS) + (plane * tall + down) * wide + across) * lane_count(lanes)


@inlined
def ring_row(lanes: Any, view: Any, step: Any, row: Any) -> Any:
    """Where a step's ring holds a row, for the first offset."""
    return (of_step(view, step, RING) + (row & of_step(view, step, RING_MASK)) * view.stride) * lane_count(lanes)


@inlined
def ring_or_nothing(lanes: Any, view: Any, step: Any, row: Any, rows: Any) -> Any:
    """The same, or the row of zeros for one outside the image."""
    return ring_row(lanes, view, step, row) if 0 <= row < rows else view.margin * lane_count(lanes)


@inlined
def of_stage(view: Any, stage: Any, column: Any) -> Any:
    """An entry of the table of stages."""
    return integer(view.stages, stage * STAGE_COLUMNS + column)


@inlined
def of_step(view: Any, step: Any, column: Any) -> Any:
    """An entry of the table of steps."""
    return integer(view.steps, step * STEP_COLUMNS + column)
