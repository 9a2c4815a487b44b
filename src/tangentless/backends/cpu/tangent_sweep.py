"""One stage of kernel and tangent kernel together, for one left image against a vector of right images.

As in the fused kernel, an offset (u, v) between positions is its own stencil problem, and lanes are right images. Each
offset's plane of inner products and its plane of tangents go through all steps of the stage in the second-level
cache, and are added to what the pool collects, for all pairs of pooled positions. Everything is float64.

An embedding gives the new inner product and the new tangent at once: they share the square root. Given s, the inner
product, t, the tangent, a = A A' and r = 1 / a (0 for zero features), the kinds are

    linear   s,  t                                    no embedding
    cosine   s r,  t r                                normalisation
    arc      p0 s + p1 (max(s, 0) + d sqrt(w) Q(w)),  (s + t) (p0 + p1 slope),   d = a - |s|, w = d r,
             with slope = 1 - sqrt(w) R(w) for s > 0, else sqrt(w) R(w)
    series   a P(s r),  (s + t) P'(s r)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .duals import Emitter
from .simd import (
    accumulate,
    broadcast,
    compiled,
    integer,
    lane_count,
    load,
    load_left,
    multiply_add,
    store,
    zero,
)

# Entries of a stage's shape, and columns of its table of steps.
HEIGHT, WIDTH, POOL_HEIGHT, POOL_WIDTH, CHANNELS = range(5)
REACH_HEIGHT, REACH_WIDTH, KIND, PARAMETERS, STEP_COLUMNS = range(5)


@compiled
def run_stage(
    lanes: Any,
    embeddings: Any,
    shape: Any,
    steps: Any,
    table: Any,
    left: Any,
    right: Any,
    entrance: Any,
    scale: Any,
    planes: Any,
    collected: Any,
    itself: Any,
) -> None:
    """Add what a stage's pool collects to `collected`, a row of kernel values and one of tangents.

    `left` and `right` are pixels, norms and inverse norms. `entrance` is what the pool before collected, to be scaled,
    or has no columns: then pixels are the entrance. `itself` says that left and right images are the same.
    """
    width = lane_count(lanes)
    tall, wide = shape[HEIGHT], shape[WIDTH]
    size = (tall * wide) * width
    plane = np.int64(planes.ctypes.data)  # typed: an unsigned one would compile everything twice
    for u in range(1 - tall, tall):
        for v in range(1 - wide, wide):
            rows, count, down, across = tall - abs(u), wide - abs(v), max(0, -u), max(0, -v)
            x, z = down * wide + across, (down + u) * wide + across + v
            if entrance.shape[1] == 0:
                enter_pixels(lanes, shape, left[0].ctypes.data, right[0].ctypes.data, plane, rows, count, x, z)
            else:
                kernel, tangent = entrance[0].ctypes.data, entrance[1].ctypes.data
                factor = scale.ctypes.data
                enter_pooled(lanes, shape, kernel, factor, plane, rows, count, x, z)
                enter_pooled(lanes, shape, tangent, factor, plane + size * 8, rows, count, x, z)
            for step in range(len(steps)):
                fresh = step == 0 and entrance.shape[1] == 0  # there are no tangents yet
                source = plane
                if steps[step, REACH_WIDTH] > 0 or steps[step, REACH_HEIGHT] > 0:
                    source = plane + 2 * size * 8
                    widen(lanes, plane, source, rows, count, wide, steps[step, REACH_WIDTH])
                    if not fresh:
                        widen(lanes, plane + size * 8, source + size * 8, rows, count, wide, steps[step, REACH_WIDTH])
                start = step * tall * wide
                embed_rows(
                    lanes,
                    embeddings,
                    steps[step].ctypes.data,
                    table.ctypes.data,
                    left[1].ctypes.data,
                    left[2].ctypes.data,
                    right[1].ctypes.data,
                    right[2].ctypes.data,
                    source,
                    plane,
                    size,
                    rows,
                    count,
                    wide,
                    start + x,
                    start + z,
                    fresh,
                    itself and u == 0 and v == 0,
                )
            collect(lanes, shape, plane, collected[0].ctypes.data, rows, count, down, across, u, v)
            collect(lanes, shape, plane + size * 8, collected[1].ctypes.data, rows, count, down, across, u, v)


@compiled
def enter_pixels(
    lanes: Any, shape: Any, left: Any, right: Any, plane: Any, rows: Any, count: Any, x: Any, z: Any
) -> None:
    """Inner products of pixels, and no tangents."""
    width, wide, channels = lane_count(lanes), shape[WIDTH], shape[CHANNELS]
    tangents = shape[HEIGHT] * wide * width
    for row in range(rows):
        for k in range(count):
            here = row * wide + k
            value = zero(lanes)
            for channel in range(channels):
                one = load_left(lanes, left, (x + here) * channels + channel)
                value = multiply_add(one, load(lanes, right, ((z + here) * channels + channel) * width), value)
            store(plane, here * width, value)
            store(plane, tangents + here * width, zero(lanes))


@compiled
def enter_pooled(
    lanes: Any, shape: Any, pooled: Any, scale: Any, plane: Any, rows: Any, count: Any, x: Any, z: Any
) -> None:
    """One offset of what the pool before has collected."""
    width, wide, factor = lane_count(lanes), shape[WIDTH], broadcast(lanes, scale, 0)
    positions = shape[HEIGHT] * wide
    for row in range(rows):
        for k in range(count):
            here = row * wide + k
            value = load(lanes, pooled, ((x + here) * positions + z + here) * width)
            store(plane, here * width, value * factor)


@compiled
def widen(lanes: Any, plane: Any, out: Any, rows: Any, count: Any, wide: Any, reach: Any) -> None:
    """Sums along rows over a window, zero outside."""
    width = lane_count(lanes)
    for row in range(rows):
        start = row * wide * width
        if reach == 1:
            before, now = zero(lanes), load(lanes, plane, start)
            for k in range(1, count):
                value = load(lanes, plane, start + k * width)
                store(out, start + (k - 1) * width, before + (now + value))
                before, now = now, value
            store(out, start + (count - 1) * width, before + now)
        else:
            for k in range(count):
                value = zero(lanes)
                for other in range(max(0, k - reach), min(count, k + reach + 1)):
                    value = value + load(lanes, plane, start + other * width)
                store(out, start + k * width, value)


@compiled
def embed_rows(
    lanes: Any,
    embeddings: Any,
    step: Any,
    table: Any,
    left_norms: Any,
    left_inverses: Any,
    right_norms: Any,
    right_inverses: Any,
    source: Any,
    plane: Any,
    size: Any,
    rows: Any,
    count: Any,
    wide: Any,
    x: Any,
    z: Any,
    fresh: Any,
    exact: Any,
) -> None:
    """Sums down columns over a step's window, zero outside, then its embedding."""
    width = lane_count(lanes)
    reach, kind, start = integer(step, REACH_HEIGHT), integer(step, KIND), integer(step, PARAMETERS)
    for row in range(rows):
        begin, end = max(0, row - reach), min(rows, row + reach + 1)
        inside = reach == 1 and end - begin == 3
        for k in range(count):
            here = row * wide + k
            s, t = zero(lanes), zero(lanes)
            if inside:  # most rows, without a loop
                i, line = here * width, wide * width
                s = load(lanes, source, i - line) + load(lanes, source, i) + load(lanes, source, i + line)
                if not fresh:
                    i += size
                    t = load(lanes, source, i - line) + load(lanes, source, i) + load(lanes, source, i + line)
            else:
                for other in range(begin, end):
                    i = (other * wide + k) * width
                    s = s + load(lanes, source, i)
                    if not fresh:
                        t = t + load(lanes, source, size + i)
            a = load_left(lanes, left_norms, x + here) * load(lanes, right_norms, (z + here) * width)
            r = load_left(lanes, left_inverses, x + here) * load(lanes, right_inverses, (z + here) * width)
            if exact:  # a feature with itself: its cosine is one, whatever rounding says
                s = a
            value, tangent = embed_both(embeddings, kind, table, start, s, t, a, r)
            store(plane, here * width, value)
            store(plane, size + here * width, tangent)


@compiled
def collect(
    lanes: Any,
    shape: Any,
    plane: Any,
    out: Any,
    rows: Any,
    count: Any,
    down: Any,
    across: Any,
    u: Any,
    v: Any,
) -> None:
    """Add a plane to the pairs of windows its positions lie in; neighbours of one pair are added up first."""
    width, tall, wide = lane_count(lanes), shape[POOL_HEIGHT], shape[POOL_WIDTH]
    pooled_wide = shape[WIDTH] // wide
    pooled = (shape[HEIGHT] // tall) * pooled_wide
    for row in range(rows):
        j, m = (down + row) // tall, (down + row + u) // tall
        index = (j * pooled_wide + across // wide) * pooled + m * pooled_wide + (across + v) // wide
        left, right = across % wide, (across + v) % wide  # places within the windows
        total = zero(lanes)
        for k in range(count):
            total = total + load(lanes, plane, (row * shape[WIDTH] + k) * width)
            left += 1
            right += 1
            if left == wide or right == wide or k == count - 1:
                accumulate(out, index * width, total)
                total = zero(lanes)
                if left == wide:
                    index, left = index + pooled, 0
                if right == wide:
                    index, right = index + 1, 0


@intrinsic
def embed_both(typing: Any, tag: Any, kind: Any, table: Any, start: Any, s: Any, t: Any, a: Any, r: Any) -> Any:
    """The embedded inner products of one vector, and their tangents; `kind` is the place among the tag's kinds."""
    kinds = tag.choices[1:]
    result = types.UniTuple(s, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, chosen, table_value, start_value, *values = arguments
        emitter = _TangentEmitter(builder, s, table_value, start_value)
        both = emitter.choose(chosen, kinds, lambda one: emitter.emit(one, *values))
        return context.make_tuple(builder, result, both)

    return result(tag, types.intp, types.intp, types.intp, s, t, a, r), generate


class _TangentEmitter(Emitter):
    """Writes the instructions of one kind."""

    def emit(self, kind: tuple[Any, ...], s: Any, t: Any, a: Any, r: Any) -> tuple[ir.Value, ir.Value]:
        b = self.builder
        name, *lengths = kind
        if name == "linear":
            return s, t
        if name == "cosine":
            return b.fmul(s, r), b.fmul(t, r)
        both = b.fadd(s, t)
        if name == "series":
            cosine = b.fmul(s, r)
            slope = self.polynomial(cosine, lengths[0], lengths[1])
            return b.fmul(a, self.polynomial(cosine, 0, lengths[0])), b.fmul(both, slope)
        assert name == "arc", name
        nothing = self.constant(0.0)
        difference = b.fsub(a, self.apply("fabs", s))
        gap = self.larger(b.fmul(difference, r), nothing)
        root = self.apply("sqrt", gap)
        positive = b.fcmp_ordered(">", s, nothing)
        far = b.fmul(b.fmul(difference, root), self.polynomial(gap, 2, lengths[0]))
        kappa = b.fadd(b.select(positive, s, nothing), far)
        angle = b.fmul(root, self.polynomial(gap, 2 + lengths[0], lengths[1]))
        slope = b.select(positive, b.fsub(self.constant(1.0), angle), angle)
        linear, arc = self.parameter(0), self.parameter(1)
        value = self.multiply_add(arc, kappa, b.fmul(linear, s))
        return value, b.fmul(both, self.multiply_add(arc, slope, linear))
