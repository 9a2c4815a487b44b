"""Dual functions with what gradients need of them, as vector instructions.

Given s, the inner product, a = A A' and r = 1 / a (0 for zero features), an embedding has

    a value, its slope by s, and its bend, the derivative by log a

    cosine   s r,  r,  -s r                                      normalisation
    arc      s slope + bend,  p0 + p1 f,  p1 a sqrt(w (2 - w)) / pi,   w = 1 - |s| r
             with f = 1 - sqrt(w) R(w) for s > 0, else sqrt(w) R(w)
    series   a P(s r),  P'(s r),  value - s slope
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .duals import Emitter


@intrinsic
def embed_both(typing: Any, tag: Any, kind: Any, table: Any, start: Any, s: Any, a: Any, r: Any) -> Any:
    """Embedded inner products of one vector, slopes and bends; `kind` is the place among the tag's kinds."""
    kinds = tag.choices[1:]
    result = types.UniTuple(s, 3)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, chosen, table_value, start_value, *values = arguments
        emitter = BackEmitter(builder, s, table_value, start_value)
        found = emitter.choose(chosen, kinds, lambda one: emitter.embedded(one, *values))
        return context.make_tuple(builder, result, found)

    return result(tag, types.intp, types.intp, types.intp, s, a, r), generate


class BackEmitter(Emitter):
    """Writes the instructions of all kinds, of which one is chosen at run time."""

    def choose(
        self, chosen: ir.Value, kinds: Sequence[Any], emit: Callable[[Any], tuple[ir.Value, ...]]
    ) -> tuple[ir.Value, ...]:
        """The vectors that `emit` gives for the kind which is chosen."""
        builder = self.builder
        if len(kinds) == 1:
            return emit(kinds[0])
        done = builder.append_basic_block("embedded")
        switch = builder.switch(chosen, done)
        slots: list[ir.Value] = []
        for place, one in enumerate(kinds):
            block = builder.append_basic_block(f"{one[0]}{place}")
            switch.add_case(ir.Constant(chosen.type, place), block)
            builder.position_at_end(block)
            values = emit(one)
            slots = slots or [self._stack_slot() for _ in values]
            for slot, value in zip(slots, values, strict=True):
                builder.store(value, slot)
            builder.branch(done)
        builder.position_at_end(done)
        return tuple(builder.load(slot) for slot in slots)

    def _stack_slot(self) -> ir.Value:
        """Room for a vector in the entry block, where LLVM can turn it into a register."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(self.vector.llvm)

    def embedded(self, kind: tuple[Any, ...], s: Any, a: Any, r: Any) -> tuple[ir.Value, ...]:
        """The value of an embedding, its slope and its bend."""
        b = self.builder
        name, *lengths = kind
        if name == "linear":
            return s, self.constant(1.0), self.constant(0.0)
        cosine = b.fmul(s, r)
        if name == "cosine":
            return cosine, r, b.fneg(cosine)
        if name == "series":
            value = b.fmul(a, self.polynomial(cosine, 0, lengths[0]))
            slope = self.polynomial(cosine, lengths[0], lengths[1])
            return value, slope, self.multiply_add(b.fneg(s), slope, value)
        assert name == "arc", name
        nothing, straight = self.constant(0.0), lengths[1]
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
            slope, bend = self.multiply_add(arc, slope, linear), b.fmul(arc, bend)
        return self.multiply_add(s, slope, bend), slope, bend
