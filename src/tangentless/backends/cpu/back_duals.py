"""Dual functions with their derivatives, as vector instructions.

Given s, the inner product, a = A A' and r = 1 / a (0 for zero features), an embedding has a value, its *slope*, which
is d value / d s, and its *bend*, d value / d log a:

    cosine   s r,  r,  -s r                                      normalisation
    arc      s slope + bend,  p0 + p1 f,  p1 a sqrt(w (2 - w)) / pi,   w = 1 - |s| r
             with f = 1 - sqrt(w) R(w) for s > 0, else sqrt(w) R(w)
    series   a P(s r),  P'(s r),  value - s slope

Where a is zero, so are all three.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .duals import Emitter


@intrinsic
def embed_both(typing: Any, tag: Any, table: Any, start: Any, s: Any, a: Any, r: Any) -> Any:
    """Values, slopes and bends of an embedding, three vectors; the tag has its kind."""
    result = types.UniTuple(s, 3)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, table_value, start_value, *values = arguments
        emitter = BackEmitter(builder, s, table_value, start_value)
        return context.make_tuple(builder, result, emitter.embedded(tag.choices[1:], *values))

    return result(tag, types.intp, types.intp, s, a, r), generate


class BackEmitter(Emitter):
    """Writes the instructions of one kind of embedding."""

    def embedded(self, kind: tuple[Any, ...], s: Any, a: Any, r: Any) -> tuple[ir.Value, ...]:
        """Value, slope and bend."""
        b = self.builder
        name, *lengths = kind
        if name == "linear":
            return s, self.constant(1.0), self.constant(0.0)
        cosine, nothing = b.fmul(s, r), self.constant(0.0)
        if name == "cosine":
            return cosine, r, b.fneg(cosine)
        inside = b.fcmp_ordered(">", a, nothing)
        if name == "series":
            value = b.fmul(a, self.polynomial(cosine, 0, lengths[0]))
            slope = b.select(inside, self.polynomial(cosine, lengths[0], lengths[1]), nothing)
            return value, slope, self.multiply_add(b.fneg(s), slope, value)
        assert name == "arc", name
        straight = lengths[1]  # its slope needs no condition: it is the angle, which is zero
        difference = self.larger(b.fsub(a, self.apply("fabs", s)), nothing)
        gap = b.fmul(difference, r)
        angle = b.fmul(self.apply("sqrt", gap), self.polynomial(gap, 2, lengths[0]))
        up = b.fcmp_ordered(">", s, nothing)
        slope = b.select(up, b.fsub(self.constant(1.0), angle), angle)
        square = self.constant(math.pi**-2)
        sine = b.fmul(gap, self.multiply_add(b.fneg(square), gap, self.constant(2 * math.pi**-2)))
        bend = b.fmul(a, self.apply("sqrt", sine))
        if not straight:
            linear, arc = self.parameter(0), self.parameter(1)
            slope, bend = b.select(inside, self.multiply_add(arc, slope, linear), nothing), b.fmul(arc, bend)
        return self.multiply_add(s, slope, bend), slope, bend
