"""The vector code of the fused kernel: rows of one or more offsets, each function compiled alone.

Every function here makes a *leaf*: machine code for one choice of lanes, embedding and shape, which the driver in
`sweep` calls by its address. A leaf takes the address of a *frame*, a record of integers that the driver fills.
Places in a frame count elements from the start of the array that the leaf reads or writes there.

Lanes are right images, so every shift along a row is an aligned vector. Sums of three rows are shared between two
neighbouring rows. The order of additions is part of the contract: entries must not depend on how rows are grouped.
"""

from __future__ import annotations

from typing import Any

from .duals import embed
from .simd import (
    Leaf,
    accumulate,
    accumulate_double,
    broadcast,
    integer,
    lane_count,
    load,
    load_left,
    multiply_add,
    store,
    zero,
)

# Fields of a frame. Addresses of arrays, the same for a whole sweep, and channels of a pixel:
RING, SLOTS, TOTAL, TABLE, WEIGHTS, PIXELS, NORMS, RIGHT_PIXELS, RIGHT_NORMS, CHANNELS = range(10)
# Address of a list of offsets v, of which [FIRST, END) are computed; elements from the rings and lines of one of them
# to those of the next; the width of the grid:
OFFSETS, FIRST, END, RINGS, WIDE = range(10, 15)
# Places of a row's left and right norms (or pixels), and of the parameters of the embedding:
X, Z, START = range(15, 18)
# Places of the weight of the rows to add up, and of that of a row beside them; places of that row, D for the first
# result and D2 for the second:
WEIGHT, WEIGHT2, D, D2 = range(18, 22)
# Places of the results of one or two rows, and of their sums before the embedding; how many zeros follow them; the step
# between the columns that are evaluated:
OUT, OUT2, PLAIN, PLAIN2, PADDING, EVERY = range(22, 28)
# Places of one or two lines to read, and how many; the first position of a window along them, and its dilation:
LINE, LINE2, HEIGHT, TAP, DILATION = range(28, 33)
# Places in the slots to which one or two rows are added, for V = 0 and the first column; elements from one V to the
# next; the size of a window; the width that the pool reads:
LOW, LOW2, PLANE, SIZE, CROPPED = range(33, 38)
# What gradients keep of the slots: the address of an array, and the place of a row at offset v = 0:
KEPT, KEEP = range(38, 40)
# Places of the rows to add up; for a second result the first is left out, and one more is added:
MOST_ROWS = 7
ROWS = 40
FRAME_FIELDS = ROWS + MOST_ROWS + 1


def rows(lanes: Any, dual: Any, height: int, count: int, weighted: bool, plain: bool, widened: bool) -> Leaf:
    """One or two rows of a step (`height`): add up `count` rows, embed the sum, and store the result.

    `weighted`: the sum is WEIGHT times that of the rows, plus WEIGHT2 D. `plain`: the sum is stored, too. `widened`:
    sums of three neighbouring results are stored.
    """

    def run(frame: Any) -> None:
        width, ring, wide = lane_count(lanes), integer(frame, RING), integer(frame, WIDE)
        norms, right_norms = integer(frame, NORMS), integer(frame, RIGHT_NORMS)
        table, start = integer(frame, TABLE), integer(frame, START)
        every = 1 if widened else integer(frame, EVERY)
        weight, weight2 = zero(lanes), zero(lanes)
        if weighted:
            weight = broadcast(lanes, integer(frame, WEIGHTS), integer(frame, WEIGHT))
            weight2 = broadcast(lanes, integer(frame, WEIGHTS), integer(frame, WEIGHT2))
        for i in range(integer(frame, FIRST), integer(frame, END)):
            v, shift = integer(integer(frame, OFFSETS), i), (i - integer(frame, FIRST)) * integer(frame, RINGS)
            length, across = wide - abs(v), max(0, -v)
            x, z = integer(frame, X) + across, integer(frame, Z) + (across + v) * width
            out, before, now = integer(frame, OUT) + shift, zero(lanes), zero(lanes)
            out2, before2, now2 = integer(frame, OUT2) + shift, zero(lanes), zero(lanes)
            for k in range(0, length, every):
                here = k * width
                place = shift + here
                if height == 2:
                    value2 = load(lanes, ring, integer(frame, ROWS + count) + place)
                    if count == 1:
                        value = load(lanes, ring, integer(frame, ROWS) + place)
                    else:
                        middle = load(lanes, ring, integer(frame, ROWS + 1) + place)
                        for j in range(2, count):
                            middle = middle + load(lanes, ring, integer(frame, ROWS + j) + place)
                        value = load(lanes, ring, integer(frame, ROWS) + place) + middle
                        value2 = middle + value2
                    if weighted:
                        further = load(lanes, ring, integer(frame, D2) + place) * weight2
                        value2 = multiply_add(weight, value2, further)
                    if plain:
                        store(ring, integer(frame, PLAIN2) + place, value2)
                else:
                    value = load(lanes, ring, integer(frame, ROWS) + place)
                    for j in range(1, count):
                        value = value + load(lanes, ring, integer(frame, ROWS + j) + place)
                if weighted:
                    value = multiply_add(weight, value, load(lanes, ring, integer(frame, D) + place) * weight2)
                if plain:
                    store(ring, integer(frame, PLAIN) + place, value)
                value = embed(lanes, dual, table, start, norms, right_norms, x + k, z + here, value)
                if height == 2:
                    below = z + wide * width + here
                    value2 = embed(lanes, dual, table, start, norms, right_norms, x + wide + k, below, value2)
                if widened:
                    if height == 2:
                        store(ring, out2 + here - width, before2 + (now2 + value2))
                        before2, now2 = now2, value2
                    store(ring, out + here - width, before + (now + value))
                    before, now = now, value
                else:
                    if height == 2:
                        store(ring, out2 + here, value2)
                    store(ring, out + here, value)
            if widened:
                store(ring, out + (length - 1) * width, before + now)
                if height == 2:
                    store(ring, out2 + (length - 1) * width, before2 + now2)
            else:
                for k in range(length, length + integer(frame, PADDING)):
                    here = k * width
                    store(ring, out + here, zero(lanes))
                    if plain:
                        store(ring, integer(frame, PLAIN) + shift + here, zero(lanes))
                    if height == 2:
                        store(ring, out2 + here, zero(lanes))
                    if height == 2 and plain:
                        store(ring, integer(frame, PLAIN2) + shift + here, zero(lanes))

    return run


def halves(lanes: Any, dual: Any, height: int, shared: bool) -> Leaf:
    """One or two rows of a 3×3 step, added to the slots of a 2×2 pool.

    `shared`: both rows go to one place, as they do where u is even. So do two neighbours along a row where v is even.
    """

    def run(frame: Any) -> None:
        width, ring, wide = lane_count(lanes), integer(frame, RING), integer(frame, WIDE)
        norms, right_norms = integer(frame, NORMS), integer(frame, RIGHT_NORMS)
        table, start, slots = integer(frame, TABLE), integer(frame, START), integer(frame, SLOTS)

        def both(shift: Any, x: Any, z: Any, k: Any) -> Any:
            i = k * width
            a, b = integer(frame, ROWS) + shift + i, integer(frame, ROWS + 1) + shift + i
            c, e = integer(frame, ROWS + 2) + shift + i, integer(frame, ROWS + 3) + shift + i
            if height == 1:
                value = (load(lanes, ring, a) + load(lanes, ring, b)) + load(lanes, ring, c)
                value = embed(lanes, dual, table, start, norms, right_norms, x + k, z + i, value)
                return value, value
            middle = load(lanes, ring, b) + load(lanes, ring, c)
            value = load(lanes, ring, a) + middle
            value = embed(lanes, dual, table, start, norms, right_norms, x + k, z + i, value)
            value2 = middle + load(lanes, ring, e)
            below = z + wide * width + i
            return value, embed(lanes, dual, table, start, norms, right_norms, x + wide + k, below, value2)

        for i in range(integer(frame, FIRST), integer(frame, END)):
            v, shift = integer(integer(frame, OFFSETS), i), (i - integer(frame, FIRST)) * integer(frame, RINGS)
            count, across = wide - abs(v), max(0, -v)
            x, z = integer(frame, X) + across, integer(frame, Z) + (across + v) * width
            low = integer(frame, LOW) + (v >> 1) * integer(frame, PLANE) + (across >> 1) * width
            further = integer(frame, LOW2) - integer(frame, LOW)
            high = low + integer(frame, PLANE)
            if v & 1 == 1 and across & 1 == 1:
                low, high = high, low + width

            if v & 1 == 0:
                for k in range(0, count, 2):
                    value, value2 = both(shift, x, z, k)
                    beside, beside2 = both(shift, x, z, k + 1)
                    if height == 2 and shared:
                        accumulate(slots, low, (value + beside) + (value2 + beside2))
                    else:
                        accumulate(slots, low, value + beside)
                        if height == 2:
                            accumulate(slots, low + further, value2 + beside2)
                    low += width
            else:
                for k in range(count):
                    value, value2 = both(shift, x, z, k)
                    if height == 2 and shared:
                        accumulate(slots, low, value + value2)
                    else:
                        accumulate(slots, low, value)
                        if height == 2:
                            accumulate(slots, low + further, value2)
                    low, high = high, low + width

    return run


def widen(lanes: Any) -> Leaf:
    """Sums of three neighbours along a line."""

    def run(frame: Any) -> None:
        width, ring, first = lane_count(lanes), integer(frame, RING), integer(frame, FIRST)
        for i in range(first, integer(frame, END)):
            shift = (i - first) * integer(frame, RINGS)
            line, out = integer(frame, LINE) + shift, integer(frame, OUT) + shift
            count = integer(frame, WIDE) - abs(integer(integer(frame, OFFSETS), i))
            before, now = zero(lanes), zero(lanes)
            for k in range(count):
                value = load(lanes, ring, line + k * width)
                store(ring, out + (k - 1) * width, before + (now + value))
                before, now = now, value
            store(ring, out + (count - 1) * width, before + now)

    return run


def taps(lanes: Any, count: int) -> Leaf:
    """Sums of `count` positions along a line, which has zeros around it."""

    def run(frame: Any) -> None:
        width, ring, first = lane_count(lanes), integer(frame, RING), integer(frame, FIRST)
        step = integer(frame, DILATION) * width
        for i in range(first, integer(frame, END)):
            shift = (i - first) * integer(frame, RINGS)
            line, out = integer(frame, LINE) + shift + integer(frame, TAP) * width, integer(frame, OUT) + shift
            for k in range(integer(frame, WIDE) - abs(integer(integer(frame, OFFSETS), i))):
                value = load(lanes, ring, line + k * width)
                for j in range(1, count):
                    value = value + load(lanes, ring, line + k * width + j * step)
                store(ring, out + k * width, value)

    return run


def pool(lanes: Any) -> Leaf:
    """Add one or two lines to the slots of a pool: the first positions of a window to offset V, the others to V + 1."""

    def run(frame: Any) -> None:
        width, ring, slots = lane_count(lanes), integer(frame, RING), integer(frame, SLOTS)
        first, size, plane = integer(frame, FIRST), integer(frame, SIZE), integer(frame, PLANE)
        both = integer(frame, HEIGHT) == 2
        for i in range(first, integer(frame, END)):
            v, shift = integer(integer(frame, OFFSETS), i), (i - first) * integer(frame, RINGS)
            across, count = max(0, -v), integer(frame, CROPPED) - abs(v)
            place = (v // size) * plane + (across // size) * width
            low, low2 = integer(frame, LOW) + place, integer(frame, LOW2) + place
            line, line2 = integer(frame, LINE) + shift, integer(frame, LINE2) + shift
            split, phase = size - v % size, across % size
            total, total2 = zero(lanes), zero(lanes)
            for k in range(count):
                total = total + load(lanes, ring, line + k * width)
                if both:
                    total2 = total2 + load(lanes, ring, line2 + k * width)
                phase += 1
                if phase in (split, size) or k == count - 1:
                    beyond = plane if phase > split else 0
                    if both and low == low2:
                        total = total + total2
                    elif both:
                        accumulate(slots, low2 + beyond, total2)
                    accumulate(slots, low + beyond, total)
                    total, total2 = zero(lanes), zero(lanes)
                    if phase == size:
                        phase = 0
                        low += width
                        low2 += width

    return run


def pick(lanes: Any) -> Leaf:
    """Store every SIZE-th position of a line in the slots of a stride, for offsets v that are multiples of SIZE."""

    def run(frame: Any) -> None:
        width, ring, slots = lane_count(lanes), integer(frame, RING), integer(frame, SLOTS)
        first, size = integer(frame, FIRST), integer(frame, SIZE)
        for i in range(first, integer(frame, END)):
            v, line = integer(integer(frame, OFFSETS), i), integer(frame, LINE) + (i - first) * integer(frame, RINGS)
            out = integer(frame, LOW) + (v // size) * integer(frame, PLANE) + (max(0, -v) // size) * width
            if v % size == 0:
                for k in range(0, integer(frame, CROPPED) - abs(v), size):
                    store(slots, out, load(lanes, ring, line + k * width))
                    out += width

    return run


def total(lanes: Any) -> Leaf:
    """Add the positions of one or two lines to TOTAL, which is float64."""

    def run(frame: Any) -> None:
        width, ring, first = lane_count(lanes), integer(frame, RING), integer(frame, FIRST)
        for i in range(first, integer(frame, END)):
            shift = (i - first) * integer(frame, RINGS)
            count = integer(frame, CROPPED) - abs(integer(integer(frame, OFFSETS), i))
            for j in range(integer(frame, HEIGHT) if count > 0 else 0):
                line = shift + (integer(frame, LINE) if j == 0 else integer(frame, LINE2))
                value = load(lanes, ring, line)
                for k in range(1, count):
                    value = value + load(lanes, ring, line + k * width)
                accumulate_double(integer(frame, TOTAL), 0, value)

    return run


def take(lanes: Any, kept: bool) -> Leaf:
    """Take lines out of the slots, scaled, and set these to zero; `kept`: store them in what gradients keep, too."""

    def run(frame: Any) -> None:
        width, ring, slots = lane_count(lanes), integer(frame, RING), integer(frame, SLOTS)
        first, scale = integer(frame, FIRST), broadcast(lanes, integer(frame, WEIGHTS), integer(frame, WEIGHT))
        for i in range(first, integer(frame, END)):
            v, out = integer(integer(frame, OFFSETS), i), integer(frame, OUT) + (i - first) * integer(frame, RINGS)
            source = integer(frame, LOW) + v * integer(frame, PLANE) + max(0, -v) * width
            count = integer(frame, WIDE) - abs(v)
            keep = integer(frame, KEEP) + (v % integer(frame, WIDE)) * integer(frame, PLANE) + max(0, -v) * width
            for k in range(count):
                value = load(lanes, slots, source + k * width) * scale
                store(slots, source + k * width, zero(lanes))
                store(ring, out + k * width, value)
                if kept:
                    store(integer(frame, KEPT), keep + k * width, value)
            for k in range(count, count + integer(frame, PADDING)):
                store(ring, out + k * width, zero(lanes))

    return run


def clear(lanes: Any) -> Leaf:
    """Set the slots [LOW, LOW2) to zero."""

    def run(frame: Any) -> None:
        for i in range(integer(frame, LOW), integer(frame, LOW2), lane_count(lanes)):
            store(integer(frame, SLOTS), i, zero(lanes))

    return run


def pixels(lanes: Any, widened: bool) -> Leaf:
    """A row of inner products of pixels, of several offsets; `widened`: of sums of three neighbours of them."""

    def run(frame: Any) -> None:
        width, ring, channels = lane_count(lanes), integer(frame, RING), integer(frame, CHANNELS)
        left, right = integer(frame, PIXELS), integer(frame, RIGHT_PIXELS)
        for i in range(integer(frame, FIRST), integer(frame, END)):
            v = integer(integer(frame, OFFSETS), i)
            out = integer(frame, OUT) + (i - integer(frame, FIRST)) * integer(frame, RINGS)
            count, across = integer(frame, WIDE) - abs(v), max(0, -v)
            x, z = integer(frame, X) + across * channels, integer(frame, Z) + (across + v) * channels * width
            before, now = zero(lanes), zero(lanes)
            for k in range(count):
                value = load_left(lanes, left, x) * load(lanes, right, z)
                for channel in range(1, channels):
                    other = load(lanes, right, z + channel * width)
                    value = multiply_add(load_left(lanes, left, x + channel), other, value)
                x += channels
                z += channels * width
                if widened:
                    store(ring, out + (k - 1) * width, before + (now + value))
                    before, now = now, value
                else:
                    store(ring, out + k * width, value)
            if widened:  # into a ring, whose rows have no room for the zeros of a line
                store(ring, out + (count - 1) * width, before + now)
            else:
                for k in range(count, count + integer(frame, PADDING)):
                    store(ring, out + k * width, zero(lanes))

    return run


def colours(lanes: Any) -> Leaf:
    """A row of sums of three neighbouring inner products of pixels with three channels, of several offsets.

    Loading pixels takes the time, so neighbouring offsets, v and v + 1, share loads.
    """

    def run(frame: Any) -> None:
        width, ring, wide = lane_count(lanes), integer(frame, RING), integer(frame, WIDE)
        left, right, first = integer(frame, PIXELS), integer(frame, RIGHT_PIXELS), integer(frame, FIRST)
        x, z, i = integer(frame, X), integer(frame, Z), first

        def product(k: Any, m: Any) -> Any:
            p, q = x + 3 * k, z + 3 * m * width
            value = load_left(lanes, left, p) * load(lanes, right, q)
            value = multiply_add(load_left(lanes, left, p + 1), load(lanes, right, q + width), value)
            return multiply_add(load_left(lanes, left, p + 2), load(lanes, right, q + 2 * width), value)

        while i < integer(frame, END):
            v = integer(integer(frame, OFFSETS), i)
            out = integer(frame, OUT) + (i - first) * integer(frame, RINGS)
            out2 = out + integer(frame, RINGS)
            pair = i + 1 < integer(frame, END) and integer(integer(frame, OFFSETS), i + 1) == v + 1
            across, count = max(0, -v), wide - (max(abs(v), abs(v + 1)) if pair else abs(v))
            before, now = zero(lanes), zero(lanes)
            before2, now2 = zero(lanes), zero(lanes)
            if not pair:
                for k in range(count):
                    value = product(across + k, across + k + v)
                    store(ring, out + (k - 1) * width, before + (now + value))
                    before, now = now, value
                store(ring, out + (count - 1) * width, before + now)
                i += 1
                continue
            if v < 0:  # v + 1 begins a position before v; otherwise v ends one after v + 1
                now2 = product(across - 1, across + v)
                out2 += width
            place = z + (across + v) * 3 * width
            red, green = load(lanes, right, place), load(lanes, right, place + width)
            blue = load(lanes, right, place + 2 * width)
            for k in range(count):
                p = x + 3 * (across + k)
                a, b, c = load_left(lanes, left, p), load_left(lanes, left, p + 1), load_left(lanes, left, p + 2)
                value = multiply_add(c, blue, multiply_add(b, green, a * red))
                store(ring, out + (k - 1) * width, before + (now + value))
                before, now = now, value
                place += 3 * width
                red, green = load(lanes, right, place), load(lanes, right, place + width)
                blue = load(lanes, right, place + 2 * width)
                value = multiply_add(c, blue, multiply_add(b, green, a * red))
                store(ring, out2 + (k - 1) * width, before2 + (now2 + value))
                before2, now2 = now2, value
            if v >= 0:
                value = product(count, wide - 1)
                store(ring, out + (count - 1) * width, before + (now + value))
                before, now = now, value
                out += width
            store(ring, out + (count - 1) * width, before + now)
            store(ring, out2 + (count - 1) * width, before2 + now2)
            i += 2

    return run
