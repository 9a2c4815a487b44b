"""The vector code of fused gradients: the phases of a stage, each for one row of all offsets of a band.

As in `leaves`, every function here makes a leaf: machine code, compiled alone, for one choice of lanes and embedding.
The driver in `back_sweep` calls it by its address, with the address of a frame. A new kind of embedding compiles only
the phases that embed. Places in rings count elements.
"""

from __future__ import annotations

from typing import Any

from .back_duals import embed_both
from .simd import (
    Leaf,
    accumulate,
    add_lanes,
    broadcast,
    choose,
    inlined,
    integer,
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

# Columns of the tables of stages and steps. Places count vectors; the reach of a window of size k is k // 2.
HEIGHT, WIDTH, POOL_HEIGHT, POOL_WIDTH, FIRST_STEP, END_STEP, POOL_PLACE, STAGE_COLUMNS = range(8)
REACH_HEIGHT, REACH_WIDTH, PARAMETERS, NORM_PLACE, EMBED_LEAF, TURN_LEAF, STEP_COLUMNS = range(7)

# Fields of a frame. Addresses of the tables, of the parameters of embeddings, and of the factors that turn the sums of
# every pool into means; channels:
STAGES, STEPS, TABLE, SCALES, CHANNELS = range(5)
# Addresses of the right images:
RIGHT_PIXELS, RIGHT_NORMS, RIGHT_INVERSES = range(5, 8)
# Rings: their address, rings of each offset of a band, rows of a ring minus one, and elements from one row to the next;
# the vector before a row is never read. Places of a row of zeros, and of two rows for sums over windows with a reach
# above 1, along the row and across rows:
RINGS, BAND_RINGS, MASK, LINE, ZEROS, ALONG, DOWN = range(8, 15)
# Addresses of the cotangents of pixels and of logarithms of norms, and how many of both an image has:
LEFT_FOUND, RIGHT_FOUND, LEFT_SCALES, RIGHT_SCALES, COUNT = range(15, 20)
# Addresses of a left image, of what enters its stages, and of its results:
PIXELS, NORMS, INVERSES, POOLED, OUT = range(20, 25)
# What to do: a row of offsets (U, v), v in [FIRST, END), in a stage and a step; the ring to read, the ring of slopes,
# which that of bends follows, and the reach of the first step's window, for the phases before and after all steps:
STAGE, STEP, U, FIRST, END, ROW, RING, SLOPES, REACH = range(25, 34)
FRAME_FIELDS = 34

of_stage, of_step = reader(STAGE_COLUMNS), reader(STEP_COLUMNS)


@inlined
def ring_row(frame: Any, slot: Any, ring: Any, row: Any) -> Any:
    """The place of a row in a ring of one offset of the band, number `slot`."""
    mask = integer(frame, MASK)
    return ((slot * integer(frame, BAND_RINGS) + ring) * (mask + 1) + (row & mask)) * integer(frame, LINE)


@inlined
def offset_at(frame: Any, stage: Any, u: Any, v: Any) -> Any:
    """The place of the plane (H, W) of an offset in what enters a stage.

    Offsets u and u - H use different rows, and v and v - W different columns, so they share a plane.
    """
    stages = integer(frame, STAGES)
    tall, wide = of_stage(stages, stage, HEIGHT), of_stage(stages, stage, WIDTH)
    return of_stage(stages, stage - 1, POOL_PLACE) + ((u % tall) * wide + v % wide) * tall * wide


@inlined
def put_along(frame: Any, out: Any, k: Any, width: Any, reach: Any, before: Any, now: Any, value: Any) -> Any:
    """Store the next value of a row; with reach 1, the sum of three neighbours instead, at the middle one's place.

    With a larger reach, values go to a row of their own, which `end_row` adds up.
    """
    if reach == 1:
        store(integer(frame, RINGS), out + (k - 1) * width, before + (now + value))
    else:
        store(integer(frame, RINGS), (out if reach == 0 else integer(frame, ALONG)) + k * width, value)
    return now, value


@internal
def end_row(lanes: Any, frame: Any, out: Any, count: Any, reach: Any, before: Any, now: Any) -> None:
    """Store what is missing after the last value of a row: the last sum of three, or all sums of more than three."""
    width, rings = lane_count(lanes), integer(frame, RINGS)
    if reach == 1:
        store(rings, out + (count - 1) * width, before + now)
    elif reach > 1:
        for k in range(count):
            value = zero(lanes)
            for other in range(max(0, k - reach), min(count, k + reach + 1)):
                value = value + load(lanes, rings, integer(frame, ALONG) + other * width)
            store(rings, out + k * width, value)


@internal
def around(lanes: Any, frame: Any, slot: Any, ring: Any, row: Any, rows: Any, count: Any, reach: Any) -> Any:
    """Places of three rows whose sum is that of all rows in a window; rows outside the image are zero."""
    width, rings, zeros = lane_count(lanes), integer(frame, RINGS), integer(frame, ZEROS)
    if reach <= 1:
        above = ring_row(frame, slot, ring, row - 1) if reach == 1 and row > 0 else zeros
        below = ring_row(frame, slot, ring, row + 1) if reach == 1 and row < rows - 1 else zeros
        return above, ring_row(frame, slot, ring, row), below
    for k in range(count):
        value = zero(lanes)
        for other in range(max(0, row - reach), min(rows, row + reach + 1)):
            value = value + load(lanes, rings, ring_row(frame, slot, ring, other) + k * width)
        store(rings, integer(frame, DOWN) + k * width, value)
    return zeros, integer(frame, DOWN), zeros


@inlined
def add_three(lanes: Any, rings: Any, three: Any, place: Any) -> Any:
    """The sum of three rows at a place."""
    above, here = load(lanes, rings, three[0] + place), load(lanes, rings, three[1] + place)
    return above + here + load(lanes, rings, three[2] + place)


@inlined
def to_embed(lanes: Any, frame: Any, s: Any, x: Any, z: Any, exact: Any) -> Any:
    """What an embedding reads at place x of the left norms and z of the right ones: s, a = A A' and r = 1 / a.

    `exact`: a feature with itself, so s is set to a; rounding might give a cosine other than one.
    """
    a = load_left(lanes, integer(frame, NORMS), x) * load(lanes, integer(frame, RIGHT_NORMS), z)
    r = load_left(lanes, integer(frame, INVERSES), x) * load(lanes, integer(frame, RIGHT_INVERSES), z)
    return choose(exact, a, s), a, r


@inlined
def windows_row(frame: Any, stage: Any, u: Any, row: Any) -> Any:
    """For a row of the left image at offset u: its row of pairs of windows in the stage's pool, at V = 0 and column 0.

    Returns its place, the height and width of the pool's grid, and the width of a window.
    """
    stages = integer(frame, STAGES)
    high, broad = of_stage(stages, stage, POOL_HEIGHT), of_stage(stages, stage, POOL_WIDTH)
    tall, wide = of_stage(stages, stage, HEIGHT) // high, of_stage(stages, stage, WIDTH) // broad
    up = (row + u) // high - row // high
    start = of_stage(stages, stage, POOL_PLACE) + (up % tall) * wide * tall * wide + (row // high) * wide
    return start, tall, wide, broad


@inlined
def windows_of(windows: Any, v: Any) -> Any:
    """For the first position of offset v: its pair of windows.

    Windows of paired positions are V = v // broad apart, or V + 1 where the phase, the position within the left window,
    is `split` or more. Returns the places for either, the split, the phase, and the width of a window.
    """
    start, tall, wide, broad = windows
    along, column = v // broad, max(0, -v) // broad
    second, start = along + 1, start + column
    first, second = along + wide if along < 0 else along, second + wide if second < 0 else second
    plane = tall * wide
    return start + first * plane, start + second * plane, broad * (along + 1) - v, max(0, -v) - column * broad, broad


@inlined
def next_window(windows: Any) -> Any:
    """The same for the next position."""
    first, second, split, phase, broad = windows
    phase += 1
    if phase == broad:
        return first + 1, second + 1, split, 0, broad
    return first, second, split, phase, broad


def enter_pixels(lanes: Any, colours: bool) -> Leaf:
    """Inner products of pixels, into the first ring; `colours`: of three channels, without a loop."""

    def run(frame: Any) -> None:
        width, wide = lane_count(lanes), of_stage(integer(frame, STAGES), 0, WIDTH)
        u, row, reach, channels = (
            integer(frame, U),
            integer(frame, ROW),
            integer(frame, REACH),
            integer(frame, CHANNELS),
        )
        pixels, right, down = integer(frame, PIXELS), integer(frame, RIGHT_PIXELS), max(0, -u) + row
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, across, out = wide - abs(v), max(0, -v), ring_row(frame, v - integer(frame, FIRST), 0, row)
            x, z = down * wide + across, (down + u) * wide + across + v
            before, now = zero(lanes), zero(lanes)
            for k in range(count):
                if colours:
                    p, q = 3 * (x + k), 3 * (z + k) * width
                    value = load_left(lanes, pixels, p) * load(lanes, right, q)
                    value = multiply_add(load_left(lanes, pixels, p + 1), load(lanes, right, q + width), value)
                    value = multiply_add(load_left(lanes, pixels, p + 2), load(lanes, right, q + 2 * width), value)
                else:
                    value = zero(lanes)
                    for channel in range(channels):
                        one = load_left(lanes, pixels, (x + k) * channels + channel)
                        other = load(lanes, right, ((z + k) * channels + channel) * width)
                        value = multiply_add(one, other, value)
                before, now = put_along(frame, out, k, width, reach, before, now, value)
            end_row(lanes, frame, out, count, reach, before, now)

    return run


def enter_pooled(lanes: Any) -> Leaf:
    """Values of the pool before the stage, into the first ring."""

    def run(frame: Any) -> None:
        width, stage, u, row = lane_count(lanes), integer(frame, STAGE), integer(frame, U), integer(frame, ROW)
        wide, reach = of_stage(integer(frame, STAGES), stage, WIDTH), integer(frame, REACH)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, out = wide - abs(v), ring_row(frame, v - integer(frame, FIRST), 0, row)
            source = (offset_at(frame, stage, u, v) + (max(0, -u) + row) * wide + max(0, -v)) * width
            before, now = zero(lanes), zero(lanes)
            for k in range(count):
                value = load(lanes, integer(frame, POOLED), source + k * width)
                before, now = put_along(frame, out, k, width, reach, before, now, value)
            end_row(lanes, frame, out, count, reach, before, now)

    return run


def embed_row(lanes: Any, kind: Any) -> Leaf:
    """A step: sums over its window, from one ring, embedded, into the next ring; slopes and bends into two others."""

    def run(frame: Any) -> None:
        width, stages, steps = lane_count(lanes), integer(frame, STAGES), integer(frame, STEPS)
        stage, step, u, row = integer(frame, STAGE), integer(frame, STEP), integer(frame, U), integer(frame, ROW)
        wide, rows, down = of_stage(stages, stage, WIDTH), of_stage(stages, stage, HEIGHT) - abs(u), max(0, -u) + row
        reach, wider = of_step(steps, step, REACH_HEIGHT), of_step(steps, step + 1, REACH_WIDTH)
        start, norm = of_step(steps, step, PARAMETERS), of_step(steps, step, NORM_PLACE)
        rings, ring, kept = integer(frame, RINGS), integer(frame, RING), integer(frame, SLOPES)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, across, slot = wide - abs(v), max(0, -v), v - integer(frame, FIRST)
            three = around(lanes, frame, slot, ring, row, rows, count, reach)
            x, z = norm + down * wide + across, (norm + (down + u) * wide + across + v) * width
            out = ring_row(frame, slot, ring + 1, row)
            slopes, bends = ring_row(frame, slot, kept, row), ring_row(frame, slot, kept + 1, row)
            before, now, exact = zero(lanes), zero(lanes), is_paired(lanes) and u == 0 and v == 0
            for k in range(count):
                here = k * width
                s, a, r = to_embed(lanes, frame, add_three(lanes, rings, three, here), x + k, z + here, exact)
                value, slope, bend = embed_both(kind, integer(frame, TABLE), start, s, a, r)
                store(rings, slopes + here, slope)
                store(rings, bends + here, bend)
                before, now = put_along(frame, out, k, width, wider, before, now, value)
            end_row(lanes, frame, out, count, wider, before, now)

    return run


def spread(lanes: Any) -> Leaf:
    """For a stage without steps: the cotangent of each position's pair of windows, into the first ring."""

    def run(frame: Any) -> None:
        width, stage, u, row = lane_count(lanes), integer(frame, STAGE), integer(frame, U), integer(frame, ROW)
        wide, pool = of_stage(integer(frame, STAGES), stage, WIDTH), windows_row(frame, stage, u, max(0, -u) + row)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            windows, out = windows_of(pool, v), ring_row(frame, v - integer(frame, FIRST), 0, row)
            for k in range(wide - abs(v)):
                pair = windows[0] if windows[3] < windows[2] else windows[1]
                store(integer(frame, RINGS), out + k * width, load(lanes, integer(frame, POOLED), pair * width))
                windows = next_window(windows)

    return run


def turn(lanes: Any, kind: Any) -> Leaf:
    """The last step of a stage, forwards and back: `embed_row`, `spread` and `pull_row` at once."""

    def run(frame: Any) -> None:
        width, stages, steps = lane_count(lanes), integer(frame, STAGES), integer(frame, STEPS)
        stage, step, u, row = integer(frame, STAGE), integer(frame, STEP), integer(frame, U), integer(frame, ROW)
        wide, rows, down = of_stage(stages, stage, WIDTH), of_stage(stages, stage, HEIGHT) - abs(u), max(0, -u) + row
        reach, wider = of_step(steps, step, REACH_HEIGHT), of_step(steps, step, REACH_WIDTH)
        start, norm = of_step(steps, step, PARAMETERS), of_step(steps, step, NORM_PLACE)
        rings, ring, pool = integer(frame, RINGS), integer(frame, RING), windows_row(frame, stage, u, down)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, across, slot = wide - abs(v), max(0, -v), v - integer(frame, FIRST)
            three = around(lanes, frame, slot, ring, row, rows, count, reach)
            x, z = norm + down * wide + across, (norm + (down + u) * wide + across + v) * width
            windows, out = windows_of(pool, v), ring_row(frame, slot, ring + 1, row)
            before, now, exact = zero(lanes), zero(lanes), is_paired(lanes) and u == 0 and v == 0
            for k in range(count):
                here = k * width
                s, a, r = to_embed(lanes, frame, add_three(lanes, rings, three, here), x + k, z + here, exact)
                _, slope, bend = embed_both(kind, integer(frame, TABLE), start, s, a, r)
                pair = windows[0] if windows[3] < windows[2] else windows[1]
                g = load(lanes, integer(frame, POOLED), pair * width)
                bend = g * bend
                accumulate(integer(frame, LEFT_SCALES), (x + k) * width, bend)
                accumulate(integer(frame, RIGHT_SCALES), z + here, bend)
                before, now = put_along(frame, out, k, width, wider, before, now, g * slope)
                windows = next_window(windows)
            end_row(lanes, frame, out, count, wider, before, now)

    return run


def pull_row(lanes: Any) -> Leaf:
    """Back through the window of the step after, and through an embedding, from one ring into the next."""

    def run(frame: Any) -> None:
        width, stages, steps = lane_count(lanes), integer(frame, STAGES), integer(frame, STEPS)
        stage, step, u, row = integer(frame, STAGE), integer(frame, STEP), integer(frame, U), integer(frame, ROW)
        wide, rows, down = of_stage(stages, stage, WIDTH), of_stage(stages, stage, HEIGHT) - abs(u), max(0, -u) + row
        reach, wider = of_step(steps, step + 1, REACH_HEIGHT), of_step(steps, step, REACH_WIDTH)
        norm, rings = of_step(steps, step, NORM_PLACE), integer(frame, RINGS)
        ring, kept = integer(frame, RING), integer(frame, SLOPES)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, across, slot = wide - abs(v), max(0, -v), v - integer(frame, FIRST)
            three = around(lanes, frame, slot, ring, row, rows, count, reach)
            x, z = (norm + down * wide + across) * width, (norm + (down + u) * wide + across + v) * width
            out = ring_row(frame, slot, ring + 1, row)
            slopes, bends = ring_row(frame, slot, kept, row), ring_row(frame, slot, kept + 1, row)
            before, now = zero(lanes), zero(lanes)
            for k in range(count):
                here = k * width
                g = add_three(lanes, rings, three, here)
                bend = g * load(lanes, rings, bends + here)
                accumulate(integer(frame, LEFT_SCALES), x + here, bend)
                accumulate(integer(frame, RIGHT_SCALES), z + here, bend)
                value = g * load(lanes, rings, slopes + here)
                before, now = put_along(frame, out, k, width, wider, before, now, value)
            end_row(lanes, frame, out, count, wider, before, now)

    return run


def leave_pooled(lanes: Any) -> Leaf:
    """From a ring to the cotangents of the pool before the stage; they overwrite its values."""

    def run(frame: Any) -> None:
        width, stages, reach = lane_count(lanes), integer(frame, STAGES), integer(frame, REACH)
        stage, u, row = integer(frame, STAGE), integer(frame, U), integer(frame, ROW)
        wide, rows = of_stage(stages, stage, WIDTH), of_stage(stages, stage, HEIGHT) - abs(u)
        factor = broadcast(lanes, integer(frame, SCALES), stage - 1)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, slot = wide - abs(v), v - integer(frame, FIRST)
            three = around(lanes, frame, slot, integer(frame, RING), row, rows, count, reach)
            out = (offset_at(frame, stage, u, v) + (max(0, -u) + row) * wide + max(0, -v)) * width
            for k in range(count):
                value = add_three(lanes, integer(frame, RINGS), three, k * width)
                store(integer(frame, POOLED), out + k * width, value * factor)

    return run


def leave_pixels(lanes: Any, colours: bool) -> Leaf:
    """From a ring to the cotangents of both images' pixels; `colours`: of three channels, without a loop."""

    def run(frame: Any) -> None:
        width, stages, reach = lane_count(lanes), integer(frame, STAGES), integer(frame, REACH)
        u, row, channels = integer(frame, U), integer(frame, ROW), integer(frame, CHANNELS)
        wide, rows = of_stage(stages, 0, WIDTH), of_stage(stages, 0, HEIGHT) - abs(u)
        pixels, right, down = integer(frame, PIXELS), integer(frame, RIGHT_PIXELS), max(0, -u) + row
        lefts, rights = integer(frame, LEFT_FOUND), integer(frame, RIGHT_FOUND)
        for v in range(integer(frame, FIRST), integer(frame, END)):
            count, across, slot = wide - abs(v), max(0, -v), v - integer(frame, FIRST)
            three = around(lanes, frame, slot, integer(frame, RING), row, rows, count, reach)
            x, z = down * wide + across, (down + u) * wide + across + v
            for k in range(count):
                g = add_three(lanes, integer(frame, RINGS), three, k * width)
                if colours:
                    p, q = 3 * (x + k), 3 * (z + k) * width
                    accumulate(lefts, p * width, g * load(lanes, right, q))
                    accumulate(lefts, (p + 1) * width, g * load(lanes, right, q + width))
                    accumulate(lefts, (p + 2) * width, g * load(lanes, right, q + 2 * width))
                    accumulate(rights, q, g * load_left(lanes, pixels, p))
                    accumulate(rights, q + width, g * load_left(lanes, pixels, p + 1))
                    accumulate(rights, q + 2 * width, g * load_left(lanes, pixels, p + 2))
                else:
                    for channel in range(channels):
                        p, q = (x + k) * channels + channel, ((z + k) * channels + channel) * width
                        accumulate(lefts, p * width, g * load(lanes, right, q))
                        accumulate(rights, q, g * load_left(lanes, pixels, p))

    return run


def gather(lanes: Any) -> Leaf:
    """Add up the lanes of a left image's cotangents, as float64 into OUT, and set them to zero."""

    def run(frame: Any) -> None:
        width, found, out = lane_count(lanes), integer(frame, LEFT_FOUND), integer(frame, OUT)
        for place in range(integer(frame, COUNT)):
            store(out, place, add_lanes(load(lanes, found, place * width)))
            store(found, place * width, zero(lanes))

    return run
