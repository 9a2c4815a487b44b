"""Dual functions with what gradients need of them, as vector instructions.

Given s, the inner product, a = A A' and r = 1 / a (0 for zero features), an embedding has

    a value, its slope by s, and its bend, the derivative by log a

    cosine   s r,  r,  -s r                                      normalisation
    arc      p0 s + p1 k,  p0 + p1 slope,  p1 (k - s slope),     k = max(s, 0) + d sqrt(w) Q(w),  d = a - |s|, w = d r
             with slope = 1 - sqrt(w) R(w) for s > 0, else sqrt(w) R(w)
    series   a P(s r),  P'(s r),  value - s slope
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .duals import Emitter


@intrinsic
def embed(typing: Any, tag: Any, kind: Any, table: Any, start: Any, s: Any, a: Any, r: Any) -> Any:
    """The embedded inner products of one vector; `kind` is the place among the tag's kinds."""
    kinds = tag.choices[1:]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, chosen, table_value, start_value, *values = arguments
        emitter = BackEmitter(builder, s, table_value, start_value)
        (value,) = emitter.choose(chosen, kinds, lambda one: emitter.embedded(one, False, *values)[:1])
        return value

    return s(tag, types.intp, types.intp, types.intp, s, a, r), generate


@intrinsic
def embed_both(typing: Any, tag: Any, kind: Any, table: Any, start: Any, s: Any, a: Any, r: Any) -> Any:
    """The same with slopes and bends."""
    kinds = tag.choices[1:]
    result = types.UniTuple(s, 3)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, chosen, table_value, start_value, *values = arguments
        emitter = BackEmitter(builder, s, table_value, start_value)
        found = emitter.choose(chosen, kinds, lambda one: emitter.embedded(one, True, *values))
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

    def embedded(self, kind: tuple[Any, ...], slopes: bool, s: Any, a: Any, r: Any) -> tuple[ir.Value, ...]:
        """The value of an embedding, and with `slopes` its slope and bend."""
        b = self.builder
        name, *lengths = kind
        if name == "linear":
            return s, self.constant(1.0), self.constant(0.0)
        cosine = b.fmul(s, r)
        if name == "cosine":
            return cosine, r, b.fneg(cosine)
        if name == "series":
            value = b.fmul(a, self.polynomial(cosine, 0, lengths[0]))
            if not slopes:
                return (value,)
            slope = self.polynomial(cosine, lengths[0], lengths[1])
            return value, slope, self.multiply_add(b.fneg(s), slope, value)
        assert name == "arc", name
        nothing, straight = self.constant(0.0), lengths[2]
        difference = self.larger(b.fsub(a, self.apply("fabs", s)), nothing)
        gap = b.fmul(difference, r)
        root = self.apply("sqrt", gap)
        far = b.fmul(difference, root)
        positive = self.larger(s, nothing)
        kappa = self.multiply_add(far, self.polynomial(gap, 2, lengths[0]), positive)
        linear, arc = self.parameter(0), self.parameter(1)
        value = kappa if straight else self.multiply_add(arc, kappa, b.fmul(linear, s))
        if not slopes:
            return (value,)
        angle = b.fmul(root, self.polynomial(gap, 2 + lengths[0], lengths[1]))
        up = b.fcmp_ordered(">", s, nothing)
        slope = b.select(up, b.fsub(self.constant(1.0), angle), angle)
        slope = slope if straight else self.multiply_add(arc, slope, linear)
        return value, slope, self.multiply_add(b.fneg(s), slope, value)
