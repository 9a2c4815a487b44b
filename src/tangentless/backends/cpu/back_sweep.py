"""All stages of a chain, forwards and back, for one left image against a vector of right images.

As in the fused kernel, an offset (u, v) between positions is its own stencil problem, and lanes are right images. Going
forward, each offset's plane of inner products goes through all steps of a stage in the second-level cache, and is added
to what the pool collects for all pairs of pooled positions. Going back, the plane is computed again, because that is
cheaper than to keep it: every embedding leaves two planes, its slopes and bends (`back_duals`), by which cotangents are
multiplied on their way back.

Centred windows are their own transposes. Cotangents of pixels and of logarithms of norms are added up in vectors at the
positions of either image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .back_duals import embed, embed_both
from .simd import (
    accumulate,
    broadcast,
    compiled,
    inlined,
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
    """Addresses and sizes that all rows share."""

    stages: int
    steps: int
    table: int  # parameters of embeddings
    scales: int  # what turns the sums of every pool into means
    channels: int
    itemsize: int
    right_pixels: int
    right_norms: int
    right_inverses: int
    planes: int
    plane: int  # vectors of one
    cotangents: int  # of all pools
    left_scales: int  # cotangents, of logarithms of norms and of pixels
    right_scales: int
    left_pixel_cotangents: int
    right_pixel_cotangents: int
    itself: int  # whether left and right images are the same


@compiled
def enter(lanes: Any, view: Any, stage: Any, u: Any, v: Any, pixels: Any, pooled: Any) -> None:
    """One offset of inner products of pixels, or of what the pool before has collected, into the first plane."""
    width, wide, tall = (
        lane_count(lanes),
        of_stage(view.stages, stage, WIDTH),
        of_stage(view.stages, stage, HEIGHT),
    )
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    channels = view.channels
    for row in range(rows):
        x, z = (down + row) * wide + across, (down + row + u) * wide + across + v
        out = view.planes + row * wide * width * view.itemsize
        if stage == 0 and channels == 3:  # without a loop
            for k in range(count):
                p, q = 3 * (x + k), 3 * (z + k) * width
                value = load_left(lanes, pixels, p) * load(lanes, view.right_pixels, q)
                value = multiply_add(load_left(lanes, pixels, p + 1), load(lanes, view.right_pixels, q + width), value)
                other = load(lanes, view.right_pixels, q + 2 * width)
                store(out, k * width, multiply_add(load_left(lanes, pixels, p + 2), other, value))
        elif stage == 0:
            for k in range(count):
                value = zero(lanes)
                for channel in range(channels):
                    one = load_left(lanes, pixels, (x + k) * channels + channel)
                    other = load(lanes, view.right_pixels, ((z + k) * channels + channel) * width)
                    value = multiply_add(one, other, value)
                store(out, k * width, value)
        else:
            positions, start = tall * wide, of_stage(view.stages, stage - 1, POOLED)
            factor = broadcast(lanes, view.scales, stage - 1)
            for k in range(count):
                store(out, k * width, load(lanes, pooled, (start + (x + k) * positions + z + k) * width) * factor)


@compiled
def widen(lanes: Any, source: Any, out: Any, rows: Any, count: Any, wide: Any, reach: Any) -> None:
    """Sums along rows over a window, zero outside."""
    width = lane_count(lanes)
    for row in range(rows):
        start = row * wide * width
        if reach == 1:
            before, now = zero(lanes), load(lanes, source, start)
            for k in range(1, count):
                value = load(lanes, source, start + k * width)
                store(out, start + (k - 1) * width, before + (now + value))
                before, now = now, value
            store(out, start + (count - 1) * width, before + now)
        else:
            for k in range(count):
                value = zero(lanes)
                for other in range(max(0, k - reach), min(count, k + reach + 1)):
                    value = value + load(lanes, source, start + other * width)
                store(out, start + k * width, value)


@compiled
def widened(lanes: Any, view: Any, stage: Any, step: Any, u: Any, v: Any) -> Any:
    """The plane whose sums down columns are those over a step's window, of the first plane."""
    down, across = of_step(view.steps, step, REACH_HEIGHT), of_step(view.steps, step, REACH_WIDTH)
    if down == 0 and across == 0:
        return view.planes
    source = view.planes + view.plane * lane_count(lanes) * view.itemsize
    wide = of_stage(view.stages, stage, WIDTH)
    rows, count = of_stage(view.stages, stage, HEIGHT) - abs(u), wide - abs(v)
    widen(lanes, view.planes, source, rows, count, wide, across)
    return source


@inlined
def column_sum(lanes: Any, source: Any, here: Any, line: Any, above: Any, below: Any) -> Any:
    """The sum of a vector, and of some above and below it."""
    if above == 1 and below == 1:  # most rows, without a loop
        return load(lanes, source, here - line) + load(lanes, source, here) + load(lanes, source, here + line)
    value = load(lanes, source, here)
    for other in range(1, above + 1):
        value = value + load(lanes, source, here - other * line)
    for other in range(1, below + 1):
        value = value + load(lanes, source, here + other * line)
    return value


@compiled
def embed_plane(
    lanes: Any,
    kinds: Any,
    view: Any,
    stage: Any,
    step: Any,
    u: Any,
    v: Any,
    norms: Any,
    inverses: Any,
    kept: Any,
) -> None:
    """A step on the first plane: its window and its embedding; slopes and bends go to planes `kept` and the next."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    source = widened(lanes, view, stage, step, u, v)
    reach, kind = of_step(view.steps, step, REACH_HEIGHT), of_step(view.steps, step, KIND)
    start, before = of_step(view.steps, step, PARAMETERS), of_step(view.steps, step, NORMS)
    slopes = view.planes + kept * view.plane * width * view.itemsize
    bends = slopes + view.plane * width * view.itemsize
    exact = view.itself != 0 and u == 0 and v == 0
    line = wide * width
    for row in range(rows):
        above, below = min(reach, row), min(reach, rows - 1 - row)
        x = before + (down + row) * wide + across
        z = (before + (down + row + u) * wide + across + v) * width
        for k in range(count):
            here = row * line + k * width
            s = column_sum(lanes, source, here, line, above, below)
            a = load_left(lanes, norms, x + k) * load(lanes, view.right_norms, z + k * width)
            r = load_left(lanes, inverses, x + k) * load(lanes, view.right_inverses, z + k * width)
            if exact:  # a feature with itself: its cosine is one, whatever rounding says
                s = a
            if kept == 0:
                store(view.planes, here, embed(kinds, kind, view.table, start, s, a, r))
            else:
                value, slope, bend = embed_both(kinds, kind, view.table, start, s, a, r)
                store(view.planes, here, value)
                store(slopes, here, slope)
                store(bends, here, bend)


@inlined
def pools_of(view: Any, stage: Any) -> Any:
    """Height and width of a window of the pool of a stage, windows in a row and in all, and where their pairs start."""
    high, broad = of_stage(view.stages, stage, POOL_HEIGHT), of_stage(view.stages, stage, POOL_WIDTH)
    columns = of_stage(view.stages, stage, WIDTH) // broad
    windows = (of_stage(view.stages, stage, HEIGHT) // high) * columns
    return high, broad, columns, windows, of_stage(view.stages, stage, POOLED)


@inlined
def first_pair(pools: Any, row: Any, other_row: Any, column: Any, other_column: Any) -> Any:
    """The pair of windows that two positions lie in, and how far across each they are."""
    high, broad, columns, windows, start = pools
    one, other = (row // high) * columns + column // broad, (other_row // high) * columns + other_column // broad
    return start + one * windows + other, column % broad, other_column % broad


@inlined
def next_pair(pools: Any, pair: Any, left: Any, right: Any) -> Any:
    """The same one position on."""
    broad, windows = pools[1], pools[3]
    left, right = left + 1, right + 1
    if left == broad:
        pair, left = pair + windows, 0
    if right == broad:
        pair, right = pair + 1, 0
    return pair, left, right


@compiled
def collect(lanes: Any, view: Any, stage: Any, u: Any, v: Any, pooled: Any) -> None:
    """Add the first plane to the pairs of windows its positions lie in; neighbours of one pair are added up first."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    pools = pools_of(view, stage)
    for row in range(rows):
        pair, left, right = first_pair(pools, down + row, down + row + u, across, across + v)
        total = zero(lanes)
        for k in range(count):
            total = total + load(lanes, view.planes, (row * wide + k) * width)
            following, left, right = next_pair(pools, pair, left, right)
            if following != pair or k == count - 1:
                accumulate(pooled, pair * width, total)
                total = zero(lanes)
                pair = following


@compiled
def spread(lanes: Any, view: Any, stage: Any, u: Any, v: Any) -> None:
    """The cotangents of the pairs of windows that the positions of one offset lie in, into the first plane."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    pools = pools_of(view, stage)
    for row in range(rows):
        pair, left, right = first_pair(pools, down + row, down + row + u, across, across + v)
        for k in range(count):
            store(view.planes, (row * wide + k) * width, load(lanes, view.cotangents, pair * width))
            pair, left, right = next_pair(pools, pair, left, right)


@compiled
def turn(lanes: Any, kinds: Any, view: Any, stage: Any, step: Any, u: Any, v: Any, norms: Any, inverses: Any) -> None:
    """The last step of a stage, there and back: `embed_plane`, `spread` and `pull_step` at once."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    source, pools = widened(lanes, view, stage, step, u, v), pools_of(view, stage)
    reach, kind = of_step(view.steps, step, REACH_HEIGHT), of_step(view.steps, step, KIND)
    start, before = of_step(view.steps, step, PARAMETERS), of_step(view.steps, step, NORMS)
    exact = view.itself != 0 and u == 0 and v == 0
    line = wide * width
    for row in range(rows):
        above, below = min(reach, row), min(reach, rows - 1 - row)
        x = before + (down + row) * wide + across
        z = (before + (down + row + u) * wide + across + v) * width
        pair, left, right = first_pair(pools, down + row, down + row + u, across, across + v)
        for k in range(count):
            here = row * line + k * width
            s = column_sum(lanes, source, here, line, above, below)
            a = load_left(lanes, norms, x + k) * load(lanes, view.right_norms, z + k * width)
            r = load_left(lanes, inverses, x + k) * load(lanes, view.right_inverses, z + k * width)
            if exact:
                s = a
            _, slope, bend = embed_both(kinds, kind, view.table, start, s, a, r)
            g = load(lanes, view.cotangents, pair * width)
            store(view.planes, here, g * slope)
            bend = g * bend
            accumulate(view.left_scales, (x + k) * width, bend)
            accumulate(view.right_scales, z + k * width, bend)
            pair, left, right = next_pair(pools, pair, left, right)


@compiled
def pull_step(lanes: Any, view: Any, stage: Any, step: Any, u: Any, v: Any, kept: Any) -> None:
    """The first plane back through the window of the step that follows, and through an embedding."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    source = widened(lanes, view, stage, step + 1, u, v)
    reach = of_step(view.steps, step + 1, REACH_HEIGHT)
    before = of_step(view.steps, step, NORMS)
    slopes = view.planes + kept * view.plane * width * view.itemsize
    bends = slopes + view.plane * width * view.itemsize
    line = wide * width
    for row in range(rows):
        above, below = min(reach, row), min(reach, rows - 1 - row)
        x = (before + (down + row) * wide + across) * width
        z = (before + (down + row + u) * wide + across + v) * width
        for k in range(count):
            here = row * line + k * width
            g = column_sum(lanes, source, here, line, above, below)
            store(view.planes, here, g * load(lanes, slopes, here))
            bend = g * load(lanes, bends, here)
            accumulate(view.left_scales, x + k * width, bend)
            accumulate(view.right_scales, z + k * width, bend)


@compiled
def leave_pooled(lanes: Any, view: Any, stage: Any, u: Any, v: Any) -> None:
    """The cotangents of one offset of what the pool before has collected."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, stage, WIDTH), of_stage(view.stages, stage, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    source, reach, step = view.planes, 0, of_stage(view.stages, stage, FIRST_STEP)
    if step < of_stage(view.stages, stage, END_STEP):
        source, reach = widened(lanes, view, stage, step, u, v), of_step(view.steps, step, REACH_HEIGHT)
    positions, start = tall * wide, of_stage(view.stages, stage - 1, POOLED)
    factor, line = broadcast(lanes, view.scales, stage - 1), wide * width
    for row in range(rows):
        above, below = min(reach, row), min(reach, rows - 1 - row)
        x, z = (down + row) * wide + across, (down + row + u) * wide + across + v
        for k in range(count):
            g = column_sum(lanes, source, row * line + k * width, line, above, below)
            store(view.cotangents, (start + (x + k) * positions + z + k) * width, g * factor)


@compiled
def leave_pixels(lanes: Any, view: Any, u: Any, v: Any, pixels: Any) -> None:
    """The cotangents of the pixels of both sides from one offset of their inner products."""
    width, wide, tall = lane_count(lanes), of_stage(view.stages, 0, WIDTH), of_stage(view.stages, 0, HEIGHT)
    rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
    source, reach, step = view.planes, 0, of_stage(view.stages, 0, FIRST_STEP)
    if step < of_stage(view.stages, 0, END_STEP):
        source, reach = widened(lanes, view, 0, step, u, v), of_step(view.steps, step, REACH_HEIGHT)
    channels, line = view.channels, wide * width
    for row in range(rows):
        above, below = min(reach, row), min(reach, rows - 1 - row)
        x, z = (down + row) * wide + across, (down + row + u) * wide + across + v
        lefts, rights = view.left_pixel_cotangents, view.right_pixel_cotangents
        if channels == 3:  # without a loop
            for k in range(count):
                g = column_sum(lanes, source, row * line + k * width, line, above, below)
                p, q = 3 * (x + k), 3 * (z + k) * width
                accumulate(lefts, p * width, g * load(lanes, view.right_pixels, q))
                accumulate(lefts, (p + 1) * width, g * load(lanes, view.right_pixels, q + width))
                accumulate(lefts, (p + 2) * width, g * load(lanes, view.right_pixels, q + 2 * width))
                accumulate(rights, q, g * load_left(lanes, pixels, p))
                accumulate(rights, q + width, g * load_left(lanes, pixels, p + 1))
                accumulate(rights, q + 2 * width, g * load_left(lanes, pixels, p + 2))
            continue
        for k in range(count):
            g = column_sum(lanes, source, row * line + k * width, line, above, below)
            for channel in range(channels):
                p, q = (x + k) * channels + channel, ((z + k) * channels + channel) * width
                accumulate(lefts, p * width, g * load(lanes, view.right_pixels, q))
                accumulate(rights, q, g * load_left(lanes, pixels, p))


@compiled
def forward_rows(
    lanes: Any, kinds: Any, view: Any, low: Any, high: Any, left: Any, first: Any, end: Any, pooled: Any, row_bytes: Any
) -> None:
    """Stages [low, high) for left images [first, end): what pools collect is added to rows of the room for them.

    `left` has the addresses of the images' pixels, norms and inverses, each with the bytes from one image to the next.
    """
    for row in range(first, end):
        pixels, norms, inverses = left[0] + row * left[1], left[2] + row * left[3], left[4] + row * left[5]
        room = pooled + (row - first) * row_bytes
        for stage in range(low, high):
            tall, wide = of_stage(view.stages, stage, HEIGHT), of_stage(view.stages, stage, WIDTH)
            for u in range(1 - tall, tall):
                for v in range(1 - wide, wide):
                    enter(lanes, view, stage, u, v, pixels, room)
                    for step in range(of_stage(view.stages, stage, FIRST_STEP), of_stage(view.stages, stage, END_STEP)):
                        embed_plane(lanes, kinds, view, stage, step, u, v, norms, inverses, 0)
                    collect(lanes, view, stage, u, v, room)


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
    """The same back, through stages [low, high) from the last: to pixels, or to the pool before, and to norms.

    With rows in `out`, each image starts from its `seeds`, the cotangents of the last pool, (rows, lanes), unless it
    is not `wanted`; `room`, where what left images get is added up in vectors, then goes to its row. What the right
    ones get stays.
    """
    width = lane_count(lanes)
    alone = len(out) == 0
    for row in range(first, end):
        if not alone:
            if wanted[row - first] == 0:
                continue
            room[:] = 0
            store(
                view.cotangents,
                of_stage(view.stages, high - 1, POOLED) * width,
                load(lanes, seeds, (row - first) * width),
            )
        pixels, norms, inverses = left[0] + row * left[1], left[2] + row * left[3], left[4] + row * left[5]
        for stage in range(high - 1, low - 1, -1):
            tall, wide = of_stage(view.stages, stage, HEIGHT), of_stage(view.stages, stage, WIDTH)
            start, last = of_stage(view.stages, stage, FIRST_STEP), of_stage(view.stages, stage, END_STEP)
            for u in range(1 - tall, tall):
                for v in range(1 - wide, wide):
                    enter(lanes, view, stage, u, v, pixels, pooled + (row - first) * row_bytes)
                    for step in range(start, last - 1):
                        embed_plane(lanes, kinds, view, stage, step, u, v, norms, inverses, 2 + 2 * (step - start))
                    if start < last:
                        turn(lanes, kinds, view, stage, last - 1, u, v, norms, inverses)
                    else:
                        spread(lanes, view, stage, u, v)
                    for step in range(last - 2, start - 1, -1):
                        pull_step(lanes, view, stage, step, u, v, 2 + 2 * (step - start))
                    if stage == 0:
                        leave_pixels(lanes, view, u, v, pixels)
                    else:
                        leave_pooled(lanes, view, stage, u, v)
        if not alone:
            for place in range(out.shape[1]):
                total = 0.0
                for lane in range(width):
                    total += room[place * width + lane]
                out[row - first, place] = total
