"""All stages of a chain, back, for one left image against a vector of right images.

As in the fused kernel, an offset (u, v) between positions is its own stencil problem, lanes are right images, and rows
of a band of neighbouring offsets stream through a stage. The fused kernel has kept what enters each stage. From that,
inner products are computed again, because it is cheaper than to keep them. Every embedding leaves its slopes and bends
(`back_duals`), by which cotangents are multiplied on their way back.

A stage is a sequence of *phases*, there and back. Between two of them lives a ring of a few rows. The phase that writes
a ring adds up three neighbours along the row, if the window that reads it is so wide; the one that reads it adds up
along columns. Centred windows are their own transposes.

Cotangents of pixels and of logarithms of norms are added up in vectors at the positions of either image. Cotangents of
what enters a stage take the place of what was kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .back_duals import embed_both
from .simd import (
    accumulate,
    broadcast,
    choose,
    compiled,
    inlined,
    internal,
    is_paired,
    lane_count,
    load,
    load_left,
    multiply_add,
    reader,
    store,
    zero,
)

# Columns of the tables of stages and steps. Places in rooms count vectors.
HEIGHT, WIDTH, POOL_HEIGHT, POOL_WIDTH, FIRST_STEP, END_STEP, POOLED, STAGE_COLUMNS = range(8)
REACH_HEIGHT, REACH_WIDTH, KIND, PARAMETERS, NORMS, STEP_COLUMNS = range(6)

of_stage, of_step = reader(STAGE_COLUMNS), reader(STEP_COLUMNS)


class View(NamedTuple):
    """Addresses and sizes that all rows share. Places in rings count elements."""

    stages: int
    steps: int
    table: int  # parameters of embeddings
    scales: int  # what turns the sums of every pool into means
    channels: int
    right_pixels: int
    right_norms: int
    right_inverses: int
    rings: int
    band: int  # offsets that take turns
    band_rings: int  # rings of each
    mask: int  # rows of a ring less one
    line: int  # from one row to the next; each follows a vector that no one reads
    zeros: int  # a row of zeros
    along: int  # two rows for windows that reach further than their neighbours
    down: int
    left_scales: int  # cotangents, of logarithms of norms and of pixels
    right_scales: int
    left_pixel_cotangents: int
    right_pixel_cotangents: int


@inlined
def ring_row(view: Any, slot: Any, ring: Any, row: Any) -> Any:
    """Where a ring of an offset of the band holds a row."""
    return ((slot * view.band_rings + ring) * (view.mask + 1) + (row & view.mask)) * view.line


@inlined
def offset_at(view: Any, stage: Any, u: Any, v: Any) -> Any:
    """Where an offset of what enters a stage begins: offsets that differ by the size of the grid share their plane."""
    tall, wide = of_stage(view.stages, stage, HEIGHT), of_stage(view.stages, stage, WIDTH)
    return of_stage(view.stages, stage - 1, POOLED) + ((u % tall) * wide + v % wide) * tall * wide


@inlined
def put_along(view: Any, out: Any, k: Any, width: Any, reach: Any, before: Any, now: Any, value: Any) -> Any:
    """The next value of a row; where three neighbours are added up, their sum goes where the last but one belongs."""
    if reach == 1:
        store(view.rings, out + (k - 1) * width, before + (now + value))
    else:
        store(view.rings, (out if reach == 0 else view.along) + k * width, value)
    return now, value


@internal
def end_row(lanes: Any, view: Any, out: Any, count: Any, reach: Any, before: Any, now: Any) -> None:
    """What a row lacks after its last value."""
    width = lane_count(lanes)
    if reach == 1:
        store(view.rings, out + (count - 1) * width, before + now)
    elif reach > 1:
        for k in range(count):
            value = zero(lanes)
            for other in range(max(0, k - reach), min(count, k + reach + 1)):
                value = value + load(lanes, view.rings, view.along + other * width)
            store(view.rings, out + k * width, value)


@internal
def around(lanes: Any, view: Any, slot: Any, ring: Any, row: Any, rows: Any, count: Any, reach: Any) -> Any:
    """Three rows whose sum is that of the rows a window reaches; zeros stand for those outside."""
    width = lane_count(lanes)
    if reach <= 1:
        above = ring_row(view, slot, ring, row - 1) if reach == 1 and row > 0 else view.zeros
        below = ring_row(view, slot, ring, row + 1) if reach == 1 and row < rows - 1 else view.zeros
        return above, ring_row(view, slot, ring, row), below
    for k in range(count):
        value = zero(lanes)
        for other in range(max(0, row - reach), min(rows, row + reach + 1)):
            value = value + load(lanes, view.rings, ring_row(view, slot, ring, other) + k * width)
        store(view.rings, view.down + k * width, value)
    return view.zeros, view.down, view.zeros


@inlined
def add_three(lanes: Any, view: Any, three: Any, place: Any) -> Any:
    """The sum of three rows at a place."""
    above, here = load(lanes, view.rings, three[0] + place), load(lanes, view.rings, three[1] + place)
    return above + here + load(lanes, view.rings, three[2] + place)


@internal
def enter(
    lanes: Any, view: Any, stage: Any, u: Any, first: Any, end: Any, row: Any, reach: Any, pixels: Any, pooled: Any
) -> None:
    """Inner products of pixels, or what the pool before has collected, into the first ring."""
    width, wide, channels, down = (
        lane_count(lanes),
        of_stage(view.stages, stage, WIDTH),
        view.channels,
        max(0, -u) + row,
    )
    for v in range(first, end):
        count, across, out = wide - abs(v), max(0, -v), ring_row(view, v - first, 0, row)
        x, z = down * wide + across, (down + u) * wide + across + v
        before, now = zero(lanes), zero(lanes)
        if stage > 0:
            source = (offset_at(view, stage, u, v) + x) * width
            for k in range(count):
                value = load(lanes, pooled, source + k * width)
                before, now = put_along(view, out, k, width, reach, before, now, value)
        elif channels == 3:  # without a loop
            for k in range(count):
                p, q = 3 * (x + k), 3 * (z + k) * width
                value = load_left(lanes, pixels, p) * load(lanes, view.right_pixels, q)
                value = multiply_add(load_left(lanes, pixels, p + 1), load(lanes, view.right_pixels, q + width), value)
                other = load(lanes, view.right_pixels, q + 2 * width)
                value = multiply_add(load_left(lanes, pixels, p + 2), other, value)
                before, now = put_along(view, out, k, width, reach, before, now, value)
        else:
            for k in range(count):
                value = zero(lanes)
                for channel in range(channels):
                    one = load_left(lanes, pixels, (x + k) * channels + channel)
                    other = load(lanes, view.right_pixels, ((z + k) * channels + channel) * width)
                    value = multiply_add(one, other, value)
                before, now = put_along(view, out, k, width, reach, before, now, value)
        end_row(lanes, view, out, count, reach, before, now)


@internal
def embed_row(
    lanes: Any,
    kinds: Any,
    view: Any,
    stage: Any,
    step: Any,
    u: Any,
    first: Any,
    end: Any,
    row: Any,
    ring: Any,
    kept: Any,
    norms: Any,
    inverses: Any,
) -> None:
    """A step: its window on one ring and its embedding, into the next ring; slopes and bends into two others."""
    width, wide, down = lane_count(lanes), of_stage(view.stages, stage, WIDTH), max(0, -u) + row
    rows, reach = of_stage(view.stages, stage, HEIGHT) - abs(u), of_step(view.steps, step, REACH_HEIGHT)
    kind, start, norm = (
        of_step(view.steps, step, KIND),
        of_step(view.steps, step, PARAMETERS),
        of_step(view.steps, step, NORMS),
    )
    wider = of_step(view.steps, step + 1, REACH_WIDTH)
    for v in range(first, end):
        count, across, slot = wide - abs(v), max(0, -v), v - first
        three = around(lanes, view, slot, ring, row, rows, count, reach)
        x, z = norm + down * wide + across, (norm + (down + u) * wide + across + v) * width
        out, slopes, bends = (
            ring_row(view, slot, ring + 1, row),
            ring_row(view, slot, kept, row),
            ring_row(view, slot, kept + 1, row),
        )
        before, now, exact = zero(lanes), zero(lanes), is_paired(lanes) and u == 0 and v == 0
        for k in range(count):
            here = k * width
            s = add_three(lanes, view, three, here)
            a = load_left(lanes, norms, x + k) * load(lanes, view.right_norms, z + here)
            r = load_left(lanes, inverses, x + k) * load(lanes, view.right_inverses, z + here)
            s = choose(exact, a, s)  # a feature with itself: its cosine is one, whatever rounding says
            value, slope, bend = embed_both(kinds, kind, view.table, start, s, a, r)
            store(view.rings, slopes + here, slope)
            store(view.rings, bends + here, bend)
            before, now = put_along(view, out, k, width, wider, before, now, value)
        end_row(lanes, view, out, count, wider, before, now)


@inlined
def windows_row(view: Any, stage: Any, u: Any, row: Any) -> Any:
    """Where the pool of a stage holds what a row of offsets (u, v) lies in, the size of its grid and of its windows."""
    high, broad = of_stage(view.stages, stage, POOL_HEIGHT), of_stage(view.stages, stage, POOL_WIDTH)
    tall, wide = of_stage(view.stages, stage, HEIGHT) // high, of_stage(view.stages, stage, WIDTH) // broad
    up = (row + u) // high - row // high
    start = of_stage(view.stages, stage, POOLED) + (up % tall) * wide * tall * wide + (row // high) * wide
    return start, tall, wide, broad


@inlined
def windows_of(windows: Any, v: Any) -> Any:
    """The same for the first position of one v.

    That is in one of two rows, the first for positions before `split` in their window, the other one after it.
    """
    start, tall, wide, broad = windows
    along, column = v // broad, max(0, -v) // broad
    second, start = along + 1, start + column
    first, second = along + wide if along < 0 else along, second + wide if second < 0 else second
    plane = tall * wide
    return start + first * plane, start + second * plane, broad * (along + 1) - v, max(0, -v) - column * broad, broad


@inlined
def next_window(windows: Any) -> Any:
    """The same one position on."""
    first, second, split, phase, broad = windows
    phase += 1
    if phase == broad:
        return first + 1, second + 1, split, 0, broad
    return first, second, split, phase, broad


@internal
def spread(lanes: Any, view: Any, stage: Any, u: Any, first: Any, end: Any, row: Any, pooled: Any) -> None:
    """The cotangents of the pairs of windows that positions lie in, into the first ring."""
    width, wide, pool = (
        lane_count(lanes),
        of_stage(view.stages, stage, WIDTH),
        windows_row(view, stage, u, max(0, -u) + row),
    )
    for v in range(first, end):
        windows, out = windows_of(pool, v), ring_row(view, v - first, 0, row)
        for k in range(wide - abs(v)):
            pair = windows[0] if windows[3] < windows[2] else windows[1]
            store(view.rings, out + k * width, load(lanes, pooled, pair * width))
            windows = next_window(windows)


@internal
def turn(
    lanes: Any,
    kinds: Any,
    view: Any,
    stage: Any,
    step: Any,
    u: Any,
    first: Any,
    end: Any,
    row: Any,
    ring: Any,
    norms: Any,
    inverses: Any,
    pooled: Any,
) -> None:
    """The last step of a stage, there and back, into the next ring: `embed_row`, `spread` and `pull_row` at once."""
    width, wide, down = lane_count(lanes), of_stage(view.stages, stage, WIDTH), max(0, -u) + row
    rows, reach = of_stage(view.stages, stage, HEIGHT) - abs(u), of_step(view.steps, step, REACH_HEIGHT)
    kind, start, norm = (
        of_step(view.steps, step, KIND),
        of_step(view.steps, step, PARAMETERS),
        of_step(view.steps, step, NORMS),
    )
    wider, pool = of_step(view.steps, step, REACH_WIDTH), windows_row(view, stage, u, down)
    for v in range(first, end):
        count, across, slot = wide - abs(v), max(0, -v), v - first
        three = around(lanes, view, slot, ring, row, rows, count, reach)
        x, z = norm + down * wide + across, (norm + (down + u) * wide + across + v) * width
        windows, out = windows_of(pool, v), ring_row(view, slot, ring + 1, row)
        before, now, exact = zero(lanes), zero(lanes), is_paired(lanes) and u == 0 and v == 0
        for k in range(count):
            here = k * width
            s = add_three(lanes, view, three, here)
            a = load_left(lanes, norms, x + k) * load(lanes, view.right_norms, z + here)
            r = load_left(lanes, inverses, x + k) * load(lanes, view.right_inverses, z + here)
            s = choose(exact, a, s)
            _, slope, bend = embed_both(kinds, kind, view.table, start, s, a, r)
            g = load(lanes, pooled, (windows[0] if windows[3] < windows[2] else windows[1]) * width)
            bend = g * bend
            accumulate(view.left_scales, (x + k) * width, bend)
            accumulate(view.right_scales, z + here, bend)
            before, now = put_along(view, out, k, width, wider, before, now, g * slope)
            windows = next_window(windows)
        end_row(lanes, view, out, count, wider, before, now)


@internal
def pull_row(
    lanes: Any, view: Any, stage: Any, step: Any, u: Any, first: Any, end: Any, row: Any, ring: Any, kept: Any
) -> None:
    """Back through the window of the step that follows, and through an embedding, from one ring into the next."""
    width, wide, down = lane_count(lanes), of_stage(view.stages, stage, WIDTH), max(0, -u) + row
    rows, reach = of_stage(view.stages, stage, HEIGHT) - abs(u), of_step(view.steps, step + 1, REACH_HEIGHT)
    norm, wider = of_step(view.steps, step, NORMS), of_step(view.steps, step, REACH_WIDTH)
    for v in range(first, end):
        count, across, slot = wide - abs(v), max(0, -v), v - first
        three = around(lanes, view, slot, ring, row, rows, count, reach)
        x, z = (norm + down * wide + across) * width, (norm + (down + u) * wide + across + v) * width
        out, slopes, bends = (
            ring_row(view, slot, ring + 1, row),
            ring_row(view, slot, kept, row),
            ring_row(view, slot, kept + 1, row),
        )
        before, now = zero(lanes), zero(lanes)
        for k in range(count):
            here = k * width
            g = add_three(lanes, view, three, here)
            bend = g * load(lanes, view.rings, bends + here)
            accumulate(view.left_scales, x + here, bend)
            accumulate(view.right_scales, z + here, bend)
            value = g * load(lanes, view.rings, slopes + here)
            before, now = put_along(view, out, k, width, wider, before, now, value)
        end_row(lanes, view, out, count, wider, before, now)


@internal
def leave_pooled(
    lanes: Any, view: Any, stage: Any, u: Any, first: Any, end: Any, row: Any, ring: Any, reach: Any, pooled: Any
) -> None:
    """The cotangents of what the pool before has collected, from a ring."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    factor = broadcast(lanes, view.scales, stage - 1)
    for v in range(first, end):
        count = wide - abs(v)
        three = around(lanes, view, v - first, ring, row, tall - abs(u), count, reach)
        out = (offset_at(view, stage, u, v) + (max(0, -u) + row) * wide + max(0, -v)) * width
        for k in range(count):
            store(pooled, out + k * width, add_three(lanes, view, three, k * width) * factor)


@internal
def leave_pixels(
    lanes: Any, view: Any, u: Any, first: Any, end: Any, row: Any, ring: Any, reach: Any, pixels: Any
) -> None:
    """The cotangents of the pixels of both sides, from a ring."""
    width, wide, channels, down = lane_count(lanes), of_stage(view.stages, 0, WIDTH), view.channels, max(0, -u) + row
    rows = of_stage(view.stages, 0, HEIGHT) - abs(u)
    lefts, rights = view.left_pixel_cotangents, view.right_pixel_cotangents
    for v in range(first, end):
        count, across = wide - abs(v), max(0, -v)
        three = around(lanes, view, v - first, ring, row, rows, count, reach)
        x, z = down * wide + across, (down + u) * wide + across + v
        if channels == 3:  # without a loop
            for k in range(count):
                g = add_three(lanes, view, three, k * width)
                p, q = 3 * (x + k), 3 * (z + k) * width
                accumulate(lefts, p * width, g * load(lanes, view.right_pixels, q))
                accumulate(lefts, (p + 1) * width, g * load(lanes, view.right_pixels, q + width))
                accumulate(lefts, (p + 2) * width, g * load(lanes, view.right_pixels, q + 2 * width))
                accumulate(rights, q, g * load_left(lanes, pixels, p))
                accumulate(rights, q + width, g * load_left(lanes, pixels, p + 1))
                accumulate(rights, q + 2 * width, g * load_left(lanes, pixels, p + 2))
            continue
        for k in range(count):
            g = add_three(lanes, view, three, k * width)
            for channel in range(channels):
                p, q = (x + k) * channels + channel, ((z + k) * channels + channel) * width
                accumulate(lefts, p * width, g * load(lanes, view.right_pixels, q))
                accumulate(rights, q, g * load_left(lanes, pixels, p))


@inlined
def follow_offsets(lanes: Any, kinds: Any, view: Any, stage: Any, u: Any, first: Any, left: Any, pooled: Any) -> None:
    """Stream the rows of a band of offsets (u, v) through all phases of a stage, each as late as its window asks."""
    start, last, end = (
        of_stage(view.stages, stage, FIRST_STEP),
        of_stage(view.stages, stage, END_STEP),
        min(first + view.band, of_stage(view.stages, stage, WIDTH)),
    )
    pixels, norms, inverses = left
    rows, lag, down, across, slopes = of_stage(view.stages, stage, HEIGHT) - abs(u), 0, 0, 0, 2 * (last - start)
    if start < last:
        down, across = of_step(view.steps, start, REACH_HEIGHT), of_step(view.steps, start, REACH_WIDTH)
    for step in range(start, last):
        lag += 2 * of_step(view.steps, step, REACH_HEIGHT)
    for newest in range(rows + lag):
        row, ring = newest, 0
        if row < rows and start < last:
            enter(lanes, view, stage, u, first, end, row, across, pixels, pooled)
        elif row < rows:
            spread(lanes, view, stage, u, first, end, row, pooled)
        for step in range(start, last):
            row -= of_step(view.steps, step, REACH_HEIGHT)
            kept = slopes + 2 * (step - start)
            if 0 <= row < rows and step < last - 1:
                embed_row(lanes, kinds, view, stage, step, u, first, end, row, ring, kept, norms, inverses)
            elif 0 <= row < rows:
                turn(lanes, kinds, view, stage, step, u, first, end, row, ring, norms, inverses, pooled)
            ring += 1
        for step in range(last - 2, start - 1, -1):
            row -= of_step(view.steps, step + 1, REACH_HEIGHT)
            if 0 <= row < rows:
                pull_row(lanes, view, stage, step, u, first, end, row, ring, slopes + 2 * (step - start))
            ring += 1
        row -= down
        if 0 <= row < rows and stage == 0:
            leave_pixels(lanes, view, u, first, end, row, ring, down, pixels)
        elif 0 <= row < rows:
            leave_pooled(lanes, view, stage, u, first, end, row, ring, down, pooled)


@compiled
def backward_rows(
    lanes: Any,
    kinds: Any,
    view: Any,
    low: Any,
    high: Any,
    left: Any,
    first: Any,
    end: Any,
    pooled: Any,
    row_bytes: Any,
    seeds: Any,
    wanted: Any,
    room: Any,
    out: Any,
) -> None:
    """Back through stages [low, high) from the last, for left images [first, end): to pixels, pools and norms.

    `left` has the addresses of the images' pixels, norms and inverses, each with the bytes from one image to the next;
    `pooled` what was kept of the first of them.

    With rows in `out`, each image starts from its `seeds`, the cotangents of the last pool, (rows, lanes), unless it
    is not `wanted`; `room`, where what left images get is added up in vectors, then goes to its row. What the right
    ones get stays.
    """
    width = lane_count(lanes)
    alone = len(out) == 0
    for row in range(first, end):
        own = pooled + (row - first) * row_bytes
        if not alone:
            if wanted[row - first] == 0:
                continue
            room[:] = 0
            seed = load(lanes, seeds, (row - first) * width)
            store(own, of_stage(view.stages, high - 1, POOLED) * width, seed)
        image = left[0] + row * left[1], left[2] + row * left[3], left[4] + row * left[5]
        for stage in range(high - 1, low - 1, -1):
            tall, wide = of_stage(view.stages, stage, HEIGHT), of_stage(view.stages, stage, WIDTH)
            for u in range(1 - tall, tall):
                for v in range(1 - wide, wide, view.band):
                    follow_offsets(lanes, kinds, view, stage, u, v, image, own)
        if not alone:
            for place in range(out.shape[1]):
                total = 0.0
                for lane in range(width):
                    total += room[place * width + lane]
                out[row - first, place] = total
