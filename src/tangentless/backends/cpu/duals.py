"""Dual functions as vector instructions.

An embedding is lowered to a *kind*, which chooses instructions at compile time, and *parameters*, which are data at
run time: all slopes of a leaky ReLU share their code. Every kind maps s, the inner product, to the embedded one,
given a = A A' and r = scale / a (0 for zero features), where the embedding chooses the scale:

    linear   s                                        no embedding
    cosine   s r                                      normalisation
    relu     max(s, 0) + d sqrt(y) P(y)               with d = a - |s|, y = d r: no cancellation near |c| = 1
    leaky    p0 s + p1 (max(s, 0) + d sqrt(y) P(y))
    exp      a P(s r)
    exp2     a 2^(p0 s r - p0)                         split into an integer power and a polynomial
    series   a P(s r)

For tangent kernels a vector has twice the lanes: kernel values, then tangents t. A tangent becomes t f'(c), or
(t + s) f'(c) where a layer of weights stands before the embedding. The slope f' is a polynomial too, in y (with
sqrt(y)) or in s r.

Multiplications take the time; additions run beside them. The scale makes the leading coefficient of P one. Its five
highest terms then cost two multiplications instead of four (Knuth, The Art of Computer Programming, 4.6.4), in `relu`,
`leaky` and `exp`, whose coefficients keep that well-conditioned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...forms import MAX_DEGREE, TOLERANCE, Arc, Exponential, at_unit_scale, lower_slope
from ...forms import lower as lower_form
from ...layers import Nonlinearity, Normalize
from ..segments import Embedding, Step
from .simd import (
    CONTRACT,
    Tag,
    VectorType,
    call,
    constant,
    element,
    host_features,
    load_lanes,
    load_value,
    quick_roots,
    splat,
    suffix,
)

_SHARE = {"float32": 0.1, "float64": 1.0}  # of the tolerance: in float32 a longer polynomial takes no more time
Product = Callable[[bool], ir.Value]  # the product of both norms or, for True, of their inverses
_LONGEST_SERIES = 12  # coefficients; with more, range reduction is cheaper


@dataclass(frozen=True)
class Lowered:
    """An embedding as its kind, its parameters, and its scale of r.

    A kind is (name, length of the polynomial). For tangent kernels it goes on: where the slope's parameters begin, how
    many they are, and whether a layer of weights precedes.
    """

    kind: tuple[Any, ...]
    parameters: tuple[float, ...]
    scale: float = 1.0


def lower_step(step: Step, dtype: str, tangent: bool) -> Lowered | None:
    """The embedding of a step, for tangent kernels with its slope, or None if no form is known for it."""
    value = lower(step.embedding, dtype)
    if value is None or not tangent:
        return value
    slope: tuple[float, ...] = ()
    if isinstance(step.embedding, Nonlinearity):
        form = step.embedding.form()
        lowered = None if form is None else lower_slope(form, TOLERANCE[dtype])
        if lowered is None:
            return None
        power = 0.5 if lowered.kind == "angle" else 0.0
        slope = tuple(c / value.scale ** (k + power) for k, c in enumerate(lowered.coefficients))
    tail = len(value.parameters), len(slope), step.weighs
    return replace(value, kind=(*value.kind, *tail), parameters=value.parameters + slope)


def lower(embedding: Embedding, dtype: str) -> Lowered | None:
    """An embedding without tangents, or None if no form is known for it."""
    if embedding is None:
        return Lowered(("linear", 0), ())
    if isinstance(embedding, Normalize):
        return Lowered(("cosine", 0), ())
    form = embedding.form()
    if form is None:
        return None
    exact = dtype == "float64" and isinstance(form, Exponential) and form.gamma <= 2
    longest = MAX_DEGREE + 1 if exact else _LONGEST_SERIES
    lowered = lower_form(form, _SHARE[dtype] * TOLERANCE[dtype], longest=longest)
    if lowered is None:
        return None
    coefficients = lowered.coefficients
    if lowered.kind == "arc":
        scale, polynomial = _adapt(coefficients, power=0.5)
        if form == Arc():
            return Lowered(("relu", len(polynomial)), polynomial, scale)
        return Lowered(("leaky", len(polynomial)), (lowered.linear, lowered.arc, *polynomial), scale)
    if lowered.kind == "exp2":
        return Lowered(("exp2", len(coefficients)), (lowered.rate, *coefficients))
    if isinstance(form, Exponential) and len(coefficients) >= 5:
        scale, polynomial = _adapt(coefficients, power=0.0)
        return Lowered(("exp", len(polynomial)), polynomial, scale)
    return Lowered(("series", len(coefficients)), coefficients) if len(coefficients) <= 32 else None


def _adapt(coefficients: tuple[float, ...], power: float) -> tuple[float, tuple[float, ...]]:
    """A scale and parameters p that evaluate a polynomial with fewer multiplications. With y = scale x,

    x^power sum of coefficients[k] x^k = y^power P(y),
    P(y) = (... (H y + p4) y + ...) y + p[-1],  H = (z + y + p2) z + p3,  z = (y + p0) y + p1.
    """
    scale, scaled = at_unit_scale(coefficients, [k + power for k in range(len(coefficients))])
    *rest, m0, m1, m2, m3, _ = scaled
    p0 = (m3 - 1) / 2
    middle = m2 - p0 * p0 - p0
    p1 = m1 - p0 * middle
    p2 = middle - 2 * p1
    return scale, (p0, p1, p2, m0 - p1 * (p1 + p2), *reversed(rest))


def dual_tag(lowered: Lowered) -> Tag:
    """The tag that chooses the instructions of a kind."""
    return Tag(("dual", *lowered.kind))


@intrinsic
def embed(
    typing: Any,
    lanes: Any,
    dual: Any,
    table: Any,
    start: Any,
    left_norms: Any,
    right_norms: Any,
    x: Any,
    z: Any,
    s: Any,
) -> Any:
    """The embedded inner products of one vector, at place x of the left image's norms and z of the right ones'.

    Every norm is followed by its inverse. Parameters begin at `start` of the table.
    """
    _, name, length, *tangent = dual.choices

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, table_value, start_value, left, right, i, j, value = arguments
        if name == "linear" and not any(tangent):
            return value
        one, width = ir.Constant(i.type, 1), ir.Constant(j.type, s.lanes)

        def product(inverse: bool) -> ir.Value:
            """The product of both sides' norms, or of their inverses."""
            places = [builder.shl(place, one) for place in (i, j)]
            if inverse:
                places = [builder.add(place, beside) for place, beside in zip(places, (one, width), strict=True)]
            sides = load_value(builder, lanes, left, places[0]), load_lanes(builder, s, right, places[1])
            return builder.fmul(*sides, flags=() if tangent else CONTRACT)

        if tangent:
            itself = builder.icmp_signed("==", builder.mul(i, width), j) if lanes.choices[3] else None
            emitter = Emitter(builder, VectorType(s.dtype, s.lanes // 2), table_value, start_value)
            return emitter.emit_both((name, length), tangent, value, product, itself)
        return Emitter(builder, s, table_value, start_value).emit((name, length), value, product)

    return s(lanes, dual, *(types.intp,) * 6, s), generate


class Emitter:
    """Writes the vector instructions of one kind, which take their parameters from a table."""

    def __init__(self, builder: ir.IRBuilder, vector: VectorType, table: ir.Value, start: ir.Value) -> None:
        self.builder, self.vector = builder, vector
        self._table, self._start = table, start

    def parameter(self, k: int) -> ir.Value:
        """A parameter, in all lanes."""
        builder = self.builder
        index = builder.add(self._start, ir.Constant(self._start.type, k))
        loaded = builder.load(element(builder, self.vector.dtype, self._table, index))
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))  # so that it leaves the loop
        return splat(builder, self.vector, loaded)

    def polynomial(self, x: ir.Value, first: int, length: int) -> ir.Value:
        """The polynomial in x of `length` parameters from number `first` on, lowest power first."""
        value = self.parameter(first + length - 1)
        for k in range(length - 2, -1, -1):
            value = self.multiply_add(value, x, self.parameter(first + k))
        return value

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a b + c, rounded once where the processor can."""
        return call(self.builder, f"llvm.fmuladd.{suffix(self.vector)}", self.vector.llvm, a, b, c)

    def apply(self, name: str, value: ir.Value) -> ir.Value:
        """A function of LLVM, such as sqrt."""
        return call(self.builder, f"llvm.{name}.{suffix(self.vector)}", self.vector.llvm, value)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of a and b in every lane; b where one is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def constant(self, value: float) -> ir.Constant:
        """A number, in all lanes."""
        return constant(self.vector, value)

    def emit(self, kind: tuple[str, int], s: ir.Value, product: Product) -> ir.Value:
        """The embedded inner product; `product` computes a or r where it is called: to hold them costs a register."""
        name, length = kind
        b = self.builder
        if name == "linear":
            return s
        if name in ("relu", "leaky"):
            a, r = product(False), product(True)
            if name == "relu":
                return self._arc(s, a, r, first=0, length=length)
            arc = b.fmul(self.parameter(1), self._arc(s, a, r, first=2, length=length))
            return self.multiply_add(self.parameter(0), s, arc)
        cosine = b.fmul(s, product(True))
        if name == "cosine":
            return cosine
        if name == "exp2":
            value = self._exp2(cosine, length)
        else:
            value = (self._adapted if name == "exp" else self.polynomial)(cosine, first=0, length=length)
        return b.fmul(product(False), value)

    def emit_both(
        self, kind: tuple[str, int], tangent: list[int], value: Any, product: Product, itself: ir.Value | None
    ) -> ir.Value:
        """Kernel values and tangents after the embedding, in one vector, from those before it.

        `itself`: whether an image is paired with itself at one position, or None if images are different. A feature
        with itself has the cosine one, but rounding may give less: near one, slopes lose half their digits.
        """
        b, (first, length, weighs) = self.builder, tangent
        (s, t), (a, _), (r, _) = (self._halves(one) for one in (value, product(False), product(True)))
        t = b.fadd(s, t) if weighs else t
        if kind[0] != "linear":
            s = s if itself is None else b.select(itself, a, s)
            t = b.fmul(t, r if kind[0] == "cosine" else self._slope(kind[0], s, a, r, first, length))
        value = self.emit(kind, s, lambda inverse: r if inverse else a)
        return b.shuffle_vector(value, t, self._places(0, 2 * self.vector.lanes))

    def _halves(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        lanes = self.vector.lanes
        low, high = (self.builder.shuffle_vector(value, value, self._places(k, lanes)) for k in (0, lanes))
        return low, high

    def _places(self, first: int, count: int) -> ir.Constant:
        return ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(first, first + count)))

    def _slope(self, name: str, s: ir.Value, a: ir.Value, r: ir.Value, first: int, length: int) -> ir.Value:
        b = self.builder
        if name not in ("relu", "leaky"):
            return self.polynomial(b.fmul(s, r), first, length)
        _, y, root = self._distance(s, a, r)
        angle = b.fmul(root, self.polynomial(y, first, length))
        positive = b.fcmp_ordered(">", s, self.constant(0.0))
        slope = b.select(positive, b.fsub(self.constant(1.0), angle), angle)
        return slope if name == "relu" else self.multiply_add(self.parameter(1), slope, self.parameter(0))

    def _arc(self, s: ir.Value, a: ir.Value, r: ir.Value, first: int, length: int) -> ir.Value:
        d, y, root = self._distance(s, a, r)
        positive = self.larger(s, self.constant(0.0))
        return self.multiply_add(self.builder.fmul(d, root), self._adapted(y, first, length), positive)

    def _distance(self, s: ir.Value, a: ir.Value, r: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """d = a - |s|, y = d r, and sqrt(y)."""
        b = self.builder
        d = b.fsub(a, self.apply("fabs", s), flags=CONTRACT)
        d = self.larger(d, self.constant(0.0))
        if "avx512f" in host_features() and suffix(self.vector) == "v16f32" and not quick_roots():
            y = self.multiply_add(d, r, self.constant(1e-30))
            root = self._root_by_newton(y)
        else:
            y = b.fmul(d, r)
            root = self.apply("sqrt", y)
        return d, y, root

    def _root_by_newton(self, w: ir.Value) -> ir.Value:
        """sqrt(w) from the 14-bit reciprocal root and a Newton step: on Intel's, half the cost of the instruction."""
        b = self.builder
        mask = ir.IntType(16)
        estimate = call(
            b, "llvm.x86.avx512.rsqrt14.ps.512", self.vector.llvm, w, self.constant(0.0), ir.Constant(mask, -1)
        )
        root = b.fmul(w, estimate)
        half = b.fmul(root, self.constant(0.5))
        return b.fmul(half, self.multiply_add(b.fneg(root), estimate, self.constant(3.0)))

    def _exp2(self, c: ir.Value, length: int) -> ir.Value:
        b, vector = self.builder, self.vector
        smallest, mantissa = (-126.0, 23) if vector.dtype == "float32" else (-1022.0, 52)
        exponent = self.multiply_add(self.parameter(0), c, b.fneg(self.parameter(0)))
        exponent = self.larger(exponent, self.constant(smallest))
        whole = self.apply("rint", exponent)
        power = self.polynomial(b.fsub(exponent, whole), first=1, length=length)
        integers = vector.llvm_integers
        shift = ir.Constant(integers, [mantissa] * vector.lanes)
        bits = b.add(b.bitcast(power, integers), b.shl(b.fptosi(whole, integers), shift))
        return b.bitcast(bits, vector.llvm)

    def _adapted(self, y: ir.Value, first: int, length: int) -> ir.Value:
        """P of `_adapt`."""
        b = self.builder
        z = self.multiply_add(b.fadd(y, self.parameter(first)), y, self.parameter(first + 1))
        value = self.multiply_add(b.fadd(z, b.fadd(y, self.parameter(first + 2))), z, self.parameter(first + 3))
        for k in range(first + 4, first + length):
            value = self.multiply_add(value, y, self.parameter(k))
        return value
