"""Dual functions and their derivatives as lines of C++, for kernels that are written from a graph.

The lines call functions of `duals.cuh` and share these variables:

    s, t0    the inner product and the tangent before the embedding
    a        the product of the norms of both sides; where it is zero, all results are
    same     whether the two features are the same
    c        the cosine s / a, in [-1, 1]
    k, t     the inner product and the tangent after the embedding
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from ...forms import TABLE_PIECES, TABLE_TERMS, TOLERANCE, Arc, Exponential, Form, Series, lower, lower_slope, slopes
from ...layers import Nonlinearity, Normalize
from ..segments import Segment
from .portable import exact_form, table_of

# Of slopes in gradients: in float32 a term less than for values changes them less than rounding does, and 3e-6, which
# leaves out another one, would let errors grow to 1.5e-4 over the layers of Myrtle10.
PULL_TOLERANCE = {**TOLERANCE, "float32": 3e-7}


def form_of(layer: Nonlinearity, dtype: str) -> Form | None:
    """The closed form of a nonlinearity, if it is accurate enough for a dtype; else None."""
    exact = exact_form(layer)
    if exact is not None or dtype == "float64":
        return exact
    form = layer.form()
    return form if form is not None and lower(form, TOLERANCE[dtype]) is not None else None


def tables_for(layer: Nonlinearity | Normalize, dtype: str, derivatives: int) -> list[NDArray[Any]]:
    """Tables that the lines of a dual and its first `derivatives` read: table0, table1, ...; none for closed forms."""
    if isinstance(layer, Normalize) or form_of(layer, dtype) is not None:
        return []
    return [table_of(layer, what).astype(dtype) for what in ("dual", "derivative", "curvature")[: 1 + derivatives]]


def step_tables(segment: Segment, dtype: str, derivatives: int) -> tuple[list[NDArray[Any]], list[range]]:
    """The tables of all embeddings of a segment, and for each of its steps the numbers of those that it reads."""
    tables: list[NDArray[Any]] = []
    used: list[range] = []
    for step in segment.steps:
        first = len(tables)
        if step.embedding is not None:
            tables += tables_for(step.embedding, dtype, derivatives)
        used.append(range(first, len(tables)))
    return tables, used


def dual_lines(layer: Nonlinearity | Normalize, dtype: str, tangent: bool) -> Iterator[str]:
    """C++ for k, and with `tangent` for t."""
    if isinstance(layer, Normalize):
        yield "const real r = a > 0 ? reciprocal(a) : real(0);"
        yield "const real k = same ? real(a > 0) : fmin(fmax(s * r, real(-1)), real(1));"
    else:
        yield from _value_lines(form_of(layer, dtype), dtype)
    if tangent:
        yield from slope_lines(layer, dtype)
        yield "const real t = t0 * slope;"


def _value_lines(form: Form | None, dtype: str) -> Iterator[str]:
    if isinstance(form, Arc):  # without c, which would lose digits of s
        lowered = lower(form, TOLERANCE[dtype])
        assert lowered is not None
        yield from _distance_lines()
        yield array("arc", lowered.coefficients)
        bend = "positive(s) + d * q * polynomial(arc, w)"
        yield f"const real k = {_weighed((form.linear, 's'), (form.arc, f'({bend})'))};"
        return
    yield "const real r = a > 0 ? reciprocal(a) : real(0);"
    yield "const real c = same ? real(1) : fmin(fmax(s * r, real(-1)), real(1));"
    if isinstance(form, Exponential):
        rate = real(form.gamma / math.log(2.0))
        yield f"const real k = a * power({rate} * c - {rate});"
    elif isinstance(form, Series):
        yield f"{array('powers', form.coefficients)}"
        yield "const real k = a * polynomial(powers, c);"
    else:
        yield f"const real k = a * {_tabulated(0)};"


def slope_lines(layer: Nonlinearity | Normalize, dtype: str) -> Iterator[str]:
    """C++ for `slope`, the derivative of k by s, after the lines of k."""
    if isinstance(layer, Normalize):
        yield "const real slope = r;"
        return
    form = form_of(layer, dtype)
    if isinstance(form, Arc):
        angle = lower_slope(form, TOLERANCE[dtype])
        assert angle is not None
        yield f"{array('angle', angle.coefficients)}"
        yield "const real part = q * polynomial(angle, w);"
        slope = f"{real(form.linear)} + {real(form.arc)} * (s > 0 ? 1 - part : part)"
    elif isinstance(form, Exponential):
        rate = real(form.gamma / math.log(2.0))
        slope = f"{real(form.gamma)} * power({rate} * c - {rate})"
    elif isinstance(form, Series):
        yield f"{array('slopes', slopes(form.coefficients))}"
        slope = "polynomial(slopes, c)"
    else:
        slope = _tabulated(1)
    yield f"const real slope = a > 0 ? {slope} : real(0);"


def pull_lines(layer: Nonlinearity | Normalize, dtype: str) -> list[str]:
    """C++ for k, `slope`, and `bend`: the derivative of k by the logarithm of a, which is k - s slope."""
    form = None if isinstance(layer, Normalize) else form_of(layer, dtype)
    if isinstance(form, Arc):  # at the angle t, the bend is a sin(t) / pi, and sin(t)² = 1 - c² = w (2 - w)
        angle, scale = lower_slope(form, PULL_TOLERANCE[dtype]), form.arc / math.pi
        assert angle is not None
        sine = f"{'-' if scale < 0 else ''}root(w * ({real(2 * scale**2)} - {real(scale**2)} * w))"
        return [
            *_distance_lines(),
            f"{array('angle', angle.coefficients)}",
            "const real part = q * polynomial(angle, w), full = fmin(s, a) > 0 ? 1 - part : part;",
            f"const real slope = {_weighed((form.linear, 'real(a > 0)'), (form.arc, 'full'))};",
            f"const real bend = a * {sine}, k = s * slope + bend;",
        ]
    bend = "-k" if isinstance(layer, Normalize) else "k - s * slope"
    return [*dual_lines(layer, dtype, tangent=False), *slope_lines(layer, dtype), f"const real bend = {bend};"]


def _distance_lines() -> Iterator[str]:
    """C++ for d = a - |s|, w = d / a = 1 - |c|, and its root q.

    Where a is zero, d / a is NaN, and `positive` gives 0. For the same feature w must be 0: `less` = 2 makes
    the argument of `positive` negative, which costs no instruction.
    """
    yield "const real d = a - magnitude(s), less = same ? real(2) : real(0);"
    yield "const real w = positive(d * reciprocal(a) - less), q = root(w);"


def curve_lines(layer: Nonlinearity | Normalize, dtype: str) -> Iterator[str]:
    """C++ for `curve`, the second derivative of the dual by the cosine, after the lines of the slope."""
    form = None if isinstance(layer, Normalize) else form_of(layer, dtype)
    if isinstance(layer, Normalize):
        curve = "0"
    elif isinstance(form, Arc):  # 1 - c² = w (2 - w); infinite at c = 1 and -1, where zero is taken
        curve = f"w > 0 ? {real(form.arc / math.pi)} * reciprocal(root(w * (2 - w))) : real(0)"
    elif isinstance(form, Exponential):
        curve = f"{real(form.gamma)} * slope"
    elif isinstance(form, Series):
        yield f"{array('curves', slopes(slopes(form.coefficients)))}"
        curve = "polynomial(curves, c)"
    else:
        curve = _tabulated(2)
    yield f"const real curve = {curve};"


def _tabulated(table: int) -> str:
    return f"tabulated<{TABLE_PIECES}, {TABLE_TERMS}>(table{table}, c)"


def _weighed(*terms: tuple[float, str]) -> str:
    """C++ for a sum of (factor, term); terms with factor 0, and factors of 1, are left out."""
    return " + ".join(text if factor == 1 else f"{real(factor)} * {text}" for factor, text in terms if factor)


def real(value: float) -> str:
    """A C++ literal of type `real`, with all digits."""
    return f"real({float(value)!r})"


def array(name: str, values: Sequence[float]) -> str:
    """C++ for a constant array of type `real`."""
    return f"const real {name}[{len(values)}] = {{{', '.join(real(v) for v in values)}}};"


def indented(lines: Sequence[str], by: int) -> str:
    """Lines as one text, indented by so many spaces."""
    return "\n".join(" " * by + line for line in lines)
