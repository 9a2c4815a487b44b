"""Closed forms of dual functions, and the one lowering of them to coefficients.

A nonlinearity is defined by its dual function f, in float64 NumPy. A fast backend needs f as data from which it can
generate its own instructions. Three forms cover the duals in use:

    Arc           f(c) = linear c + arc kappa(c),  kappa the ReLU's dual
    Exponential   f(c) = exp(gamma (c - 1))
    Series        f(c) = a polynomial in c

`lower` turns a form and a tolerance into coefficients, and backends only emit instructions for them. The tolerance
holds for every cosine from -1 to 1, and so for all images.

The ReLU's dual has a square-root singularity at c = 1, where kernels of similar images live. With t = 1 - |c|,

    kappa(c) = max(c, 0) + t^(3/2) Q(t),

where Q is smooth on [0, 1]: a short polynomial replaces acos and loses no digits near c = 1. The slope of kappa, which
tangent kernels need, is 1 - acos(c) / pi, and acos(1 - t) / pi = t^(1/2) R(t), where R is smooth too.

Any other dual is tabulated. A dual is a power series with nonnegative coefficients, so it is smooth inside the unit
circle, and on [-1, 1] only c = 1 and c = -1 can be singular. The table has pieces that halve towards both ends:
2^-(k+1) <= 1 - |c| <= 2^-k. Each piece is as far from the nearest singularity as it is wide, so polynomials converge
equally fast on all pieces.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Largest error of a lowered dual, for every cosine and on every backend. float32: two roundings of a number near one,
# so a dual adds about as much error as the multiplication by norms around it. float64: what the polynomials reach.
TOLERANCE = {"float32": 1e-7, "float64": 2e-15}
MAX_DEGREE = 28
_SERIES_TOLERANCE = 1e-9  # the largest error of a polynomial that replaces a dual
_MOST_HERMITE = 400  # the most Hermite coefficients of an activation
_FINEST = 5e-16  # the smallest tolerance that a fit reaches in float64
TABLE_PIECES = 53  # on either side of 0: in float64, 1 - |c| is zero or at least 2^-53
TABLE_TERMS = 20  # coefficients of a piece: each one divides the error by 5.8
TABLE_TOLERANCE = 1e-11  # relative to the largest |f|; tables of duals are about a thousand times more exact


@dataclass(frozen=True)
class Arc:
    """f(c) = linear c + arc kappa(c)."""

    linear: float = 0.0
    arc: float = 1.0

    def value(self, cosine: Array) -> Array:
        """f, on arrays of NumPy or CuPy."""
        kappa = (np.sqrt(1.0 - cosine * cosine) + cosine * (np.pi - np.arccos(cosine))) / np.pi
        return self.linear * cosine + self.arc * kappa

    def derivative(self, cosine: Array) -> Array:
        """f'."""
        return self.linear + self.arc * (1.0 - np.arccos(cosine) / np.pi)

    def curvature(self, cosine: Array) -> Array:
        """f''; 0 at -1 and 1, where it is infinite."""
        square = 1.0 - cosine * cosine
        return self.arc * np.where(square > 0, 1.0 / (np.pi * np.sqrt(np.where(square > 0, square, 1.0))), 0.0)


@dataclass(frozen=True)
class Exponential:
    """f(c) = exp(gamma (c - 1))."""

    gamma: float = 1.0

    def value(self, cosine: Array) -> Array:
        """f, on arrays of NumPy or CuPy."""
        return np.exp(self.gamma * (cosine - 1.0))

    def derivative(self, cosine: Array) -> Array:
        """f'."""
        return self.gamma * np.exp(self.gamma * (cosine - 1.0))

    def curvature(self, cosine: Array) -> Array:
        """f''."""
        return self.gamma**2 * np.exp(self.gamma * (cosine - 1.0))


@dataclass(frozen=True)
class Series:
    """f(c) = sum of coefficients[k] c^k; `error` bounds the error where the coefficients come from a fit."""

    coefficients: tuple[float, ...]
    error: float = 0.0

    def value(self, cosine: Array) -> Array:
        """f, on arrays of NumPy or CuPy."""
        return polynomial(self.coefficients, cosine)

    def derivative(self, cosine: Array) -> Array:
        """f'."""
        return polynomial(slopes(self.coefficients), cosine)

    def curvature(self, cosine: Array) -> Array:
        """f''."""
        return polynomial(slopes(slopes(self.coefficients)), cosine)


Form = Arc | Exponential | Series


def polynomial(coefficients: Sequence[float], points: Array) -> Array:
    """A polynomial, lowest power first, at points of any array module.

    >>> polynomial((1.0, 2.0, 3.0), np.array([0.0, 2.0]))
    array([ 1., 17.])
    """
    total = 0.0 * points + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * points + coefficient
    return total


def least_squares(basis: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
    """The x with the least |basis @ x - target|, in extended precision.

    The last digits of LAPACK, BLAS and the float64 math functions depend on the processor. This is Gram-Schmidt in a
    fixed order, and its errors in extended precision disappear when a backend rounds the coefficients.

    >>> least_squares(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0, 5.0])).astype(float)
    array([1., 2.])
    """
    columns = [np.asarray(column, np.longdouble) for column in basis.T]
    count, rest = len(columns), np.asarray(target, np.longdouble)
    upper, right = np.zeros((count, count), np.longdouble), np.zeros(count, np.longdouble)
    for i, column in enumerate(columns):
        for _ in range(2):  # the second pass removes what rounding left
            for j in range(i):
                part = np.sum(columns[j] * column)
                upper[j, i] += part
                column = column - part * columns[j]
        upper[i, i] = np.sqrt(np.sum(column * column))
        columns[i] = column / upper[i, i]
        right[i] = np.sum(columns[i] * rest)
        rest = rest - right[i] * columns[i]
    for i in reversed(range(count)):
        right[i] = (right[i] - np.sum(upper[i, i + 1 :] * right[i + 1 :])) / upper[i, i]
    return right


def fit(
    function: Callable[[Array], Array], low: float, high: float, tolerance: float, weight: Callable[[Array], Array]
) -> tuple[float, ...] | None:
    """Coefficients of the shortest polynomial with `weight * |error| <= tolerance` on [low, high]; None if too long.

    >>> cubic = fit(lambda x: x**3, -1.0, 1.0, 1e-12, np.ones_like)
    >>> np.round(cubic, 12) + 0.0
    array([0., 0., 0., 1.])
    """
    nodes = np.cos(np.linspace(0.0, np.pi, 400, dtype=np.longdouble))  # denser at the ends, as in a minimax fit
    points = low + (high - low) * (nodes + 1) / 2
    weights = weight(points)
    target = function(points)
    checks = np.linspace(low, high, 2001)
    for degree in range(MAX_DEGREE + 1):
        basis = chebyshev.chebvander(nodes, degree)
        fitted = least_squares(basis * weights[:, None], target * weights)
        fitted_polynomial = np.polynomial.Chebyshev(fitted, domain=[low, high]).convert(kind=np.polynomial.Polynomial)
        error = np.abs(fitted_polynomial(checks) - function(checks)) * weight(checks)
        if error.max() <= tolerance:
            coefficients = np.zeros(degree + 1)
            coefficients[: len(fitted_polynomial.coef)] = fitted_polynomial.coef
            return tuple(float(a) for a in coefficients)
    return None


@functools.cache
def arc_polynomial(tolerance: float) -> tuple[float, ...]:
    """Coefficients of Q, with `t^(3/2) |error| <= tolerance` on [0, 1]."""
    coefficients = fit(_arc_remainder, 0.0, 1.0, max(tolerance, _FINEST), lambda t: t**1.5)
    assert coefficients is not None, "Q is analytic beyond [0, 1]"
    return coefficients


@functools.cache
def arc_powers(powers: tuple[int, ...], tolerance: float) -> tuple[float, ...] | None:
    """Coefficients of Q as a sum of these powers of t, or None if their error on [0, 1] exceeds the tolerance.

    >>> [arc_powers(powers, 1e-7) is None for powers in ((0, 1, 2, 3), (0, 1, 2, 4))]
    [True, False]
    """
    t = (1 + np.cos(np.linspace(0.0, np.pi, 2001, dtype=np.longdouble))) / 2
    basis, target = t[:, None] ** powers * t[:, None] ** 1.5, _arc_remainder(t) * t**1.5
    fitted = least_squares(basis, target)
    return tuple(float(a) for a in fitted) if np.abs(basis @ fitted - target).max() <= tolerance else None


def at_unit_scale(coefficients: Sequence[float], powers: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """A scale s, and b with b[-1] = 1, so that sum of b[k] (s x)^powers[k] = sum of coefficients[k] x^powers[k].

    >>> at_unit_scale((1.0, 2.0, 16.0), (0, 1, 4))
    (2.0, (1.0, 1.0, 1.0))
    """
    scale = coefficients[-1] ** (1 / powers[-1])
    return scale, tuple(c / scale**power for c, power in zip(coefficients, powers, strict=True))


@functools.cache
def angle_polynomial(tolerance: float) -> tuple[float, ...]:
    """Coefficients of R, with `t^(1/2) |error| <= tolerance` on [0, 1]."""
    coefficients = fit(_angle_remainder, 0.0, 1.0, max(tolerance, _FINEST), np.sqrt)
    assert coefficients is not None, "R is analytic beyond [0, 1]"
    return coefficients


@functools.cache
def exponential_series(gamma: float, tolerance: float) -> tuple[float, ...] | None:
    """Coefficients of exp(gamma (c - 1)) on [-1, 1], or None if that takes a degree above MAX_DEGREE."""
    return fit(lambda c: np.exp(gamma * (c - 1)), -1.0, 1.0, tolerance, np.ones_like)


@functools.cache
def exp2_polynomial(tolerance: float) -> tuple[float, ...]:
    """Coefficients of 2^x on [-1/2, 1/2]."""
    coefficients = fit(np.exp2, -0.5, 0.5, tolerance, np.ones_like)
    assert coefficients is not None, "2^x is entire"
    return coefficients


Kind = Literal["arc", "angle", "exp2", "series"]


@dataclass(frozen=True)
class Lowered:
    """A dual function or its slope, as numbers that a backend writes into its code. With t = 1 - |c|,

    arc       linear c + arc (max(c, 0) + t^(3/2) Q(t)),  Q(t) = sum of coefficients[k] t^powers[k]
    angle     linear + arc (1 - acos(c) / pi),  acos(1 - t) / pi = t^(1/2) R(t),  R(t) as Q(t) above
    exp2      2^(rate (c - 1)),  2^x = sum of coefficients[k] x^powers[k] on [-1/2, 1/2]
    series    sum of coefficients[k] c^powers[k]
    """

    kind: Kind
    coefficients: tuple[float, ...]
    powers: tuple[int, ...]
    linear: float = 0.0
    arc: float = 1.0
    rate: float = 0.0


def lower(
    form: Form,
    tolerance: float,
    *,
    longest: int = MAX_DEGREE + 1,
    arcs: Sequence[tuple[int, ...]] = (),
) -> Lowered | None:
    """Coefficients with an error of at most `tolerance` at every cosine, or None for a series that is less exact.

    A backend says what is cheap for it. An exponential becomes a series of at most `longest` terms, or else a power of
    two. An arc uses the first tuple of powers in `arcs` that is exact enough, or else all powers up to a degree.

    >>> lower(Arc(), 1e-7).powers, lower(Arc(), 1e-7, arcs=[(0, 1, 2, 4)]).powers
    ((0, 1, 2, 3, 4), (0, 1, 2, 4))
    >>> lower(Exponential(1.0), 1e-7).kind, lower(Exponential(1.0), 1e-7, longest=4).kind
    ('series', 'exp2')
    """
    if isinstance(form, Arc):
        tolerance /= max(1.0, abs(form.arc))
        for powers in arcs:
            coefficients = arc_powers(powers, tolerance)
            if coefficients is not None:
                return Lowered("arc", coefficients, powers, form.linear, form.arc)
        return replace(_polynomial("arc", arc_polynomial(tolerance)), linear=form.linear, arc=form.arc)
    if isinstance(form, Exponential):
        series = exponential_series(form.gamma, tolerance)
        if series is not None and len(series) <= longest:
            return _polynomial("series", series)
        return replace(_polynomial("exp2", exp2_polynomial(tolerance)), rate=form.gamma / math.log(2.0))
    return _polynomial("series", form.coefficients) if form.error <= tolerance else None


def lower_slope(form: Form, tolerance: float) -> Lowered | None:
    """As `lower`, for f', which tangent kernels need; None also for an exponential that has no short series.

    >>> lower_slope(Series((0.0, 0.0, 1.0)), 1e-12).coefficients
    (0.0, 2.0)
    """
    if isinstance(form, Arc):
        angle = angle_polynomial(tolerance / max(1.0, abs(form.arc)))
        return replace(_polynomial("angle", angle), linear=form.linear, arc=form.arc)
    lowered = lower(form, tolerance)
    if lowered is None or lowered.kind != "series":
        return None
    return _polynomial("series", slopes(lowered.coefficients))


def _polynomial(kind: Kind, coefficients: tuple[float, ...]) -> Lowered:
    return Lowered(kind, coefficients, tuple(range(len(coefficients))))


def slopes(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of a polynomial's derivative.

    >>> slopes((1.0, 2.0, 3.0)), slopes((1.0,))
    ((2.0, 6.0), (0.0,))
    """
    return tuple(k * a for k, a in enumerate(coefficients))[1:] or (0.0,)


def series_of(dual: Callable[[Array], Array]) -> Series | None:
    """The dual as a polynomial in c, if a short one is exact to 1e-9 on [-1, 1].

    >>> series_of(lambda c: np.exp(c - 1)) is None, series_of(lambda c: np.arccos(c)) is None
    (False, True)
    """
    coefficients = fit(dual, -1.0, 1.0, _SERIES_TOLERANCE, np.ones_like)
    return None if coefficients is None else Series(coefficients, _SERIES_TOLERANCE)


def hermite_series(activation: Callable[[Array], Array]) -> tuple[tuple[float, ...], float]:
    """The dual of an activation as a power series, and the share of f(1) that the series leaves out.

    With a_k the coefficients of the activation in normalised Hermite polynomials, f(c) = sum of a_k^2 c^k. The a_k are
    integrals against a Gaussian, computed by the trapezoidal rule. For activations that are analytic in a strip around
    the real axis, such as tanh, it converges faster than Gauss-Hermite quadrature.

    >>> series, rest = hermite_series(np.sin)
    >>> [round(a, 9) for a in series[:4]], rest < 1e-12  # exp(-1) sinh(c)
    ([0.0, 0.367879441, 0.0, 0.06131324], True)
    """
    points, weights = _gaussian_rule()
    values = np.asarray(activation(points), dtype=np.float64) * np.sqrt(weights)
    square = float(values @ values)
    if not np.isfinite(square) or square == 0:
        return (0.0,), 1.0
    before, polynomial, series, total = np.zeros_like(points), np.sqrt(weights), [], 0.0
    for k in range(_MOST_HERMITE):
        series.append(float(values @ polynomial) ** 2)
        total += series[-1]
        if square - total <= 1e-15 * square and k % 2:
            break
        following = (points * polynomial - math.sqrt(k) * before) / math.sqrt(k + 1)
        before, polynomial = polynomial, following
    return tuple(series), max(0.0, 1.0 - total / square)


def hermite_mean_square(activation: Callable[[Array], Array]) -> float:
    """E[a(u)^2] of a standard Gaussian u.

    >>> round(hermite_mean_square(np.sin), 12)  # (1 - exp(-2)) / 2
    0.432332358382
    """
    points, weights = _gaussian_rule()
    return float(np.square(np.asarray(activation(points), dtype=np.float64)) @ weights)


@functools.cache
def _gaussian_rule() -> tuple[Array, Array]:
    """Points and weights of the trapezoidal rule against a standard Gaussian, from -30 to 30.

    Even the tiny weights far out matter: Hermite polynomials of high degree grow as the Gaussian falls. The mass beyond
    30 is lost to rounding in float64.
    """
    points = np.linspace(-30.0, 30.0, 6001)
    return points, np.exp(-points * points / 2) * (points[1] - points[0]) / math.sqrt(2 * math.pi)


def tabulate(dual: Callable[[Array], Array]) -> Array | None:
    """The dual as polynomials, (2, TABLE_PIECES + 1, TABLE_TERMS), or None if they miss TABLE_TOLERANCE.

    [0, k] holds the coefficients for 2^-(k+1) <= 1 - c <= 2^-k, lowest power first. The polynomial's variable,
    2^(k+2) (1 - c) - 3, runs from -1 to 1. The last piece is the constant f(1). [1, k] is the same for f(-c).

    >>> table = tabulate(np.arcsin)
    >>> table.shape, tabulate(lambda c: np.abs(c - 0.3)) is None
    ((2, 54, 20), True)
    >>> from numpy.polynomial.polynomial import polyval
    >>> bool(abs(polyval(2**2 * (1 - 0.4) - 3, table[0, 0]) - math.asin(0.4)) < 1e-15)
    True
    """
    table = np.zeros((2, TABLE_PIECES + 1, TABLE_TERMS))
    table[:, -1, 0] = dual(np.array([1.0, -1.0]))
    sizes, errors = [np.abs(table[:, -1, 0])], []
    for sign, side in ((1.0, table[0]), (-1.0, table[1])):
        for k in range(TABLE_PIECES):
            nodes, checks = (_representable(places, k) for places in (_NODES, _CHECKS))
            values, expected = (dual(sign * (1.0 - (places + 3) * 2.0 ** -(k + 2))) for places in (nodes, checks))
            fitted = np.linalg.solve(chebyshev.chebvander(nodes, len(nodes) - 1), values)
            errors.append(np.abs(chebyshev.chebval(checks, fitted) - expected))
            sizes.append(np.abs(expected))
            coefficients = chebyshev.cheb2poly(fitted)
            side[k, : len(coefficients)] = coefficients
    largest = np.concatenate(sizes).max()
    return table if np.isfinite(largest) and np.concatenate(errors).max() <= TABLE_TOLERANCE * largest else None


def from_table(table: Any, cosine: Any) -> Any:
    """f(c) from its table, on arrays of NumPy or CuPy; the floating-point exponent of 1 - |c| selects the piece.

    >>> cosine = np.array([-1.0, -0.3, 0.0, 0.9999, 1.0])
    >>> bool(np.abs(from_table(tabulate(np.arcsin), cosine) - np.arcsin(cosine)).max() < 1e-14)
    True
    """
    distance = 1.0 - np.abs(cosine)
    _, exponents = np.frexp(distance)
    piece = np.where(distance > 0, np.clip(-exponents, 0, TABLE_PIECES), TABLE_PIECES)
    place = np.ldexp(distance, piece + 2) - 3.0
    row = piece + (TABLE_PIECES + 1) * (cosine < 0)
    columns = table.reshape(-1, TABLE_TERMS).T
    value = columns[-1][row]
    for column in columns[-2::-1]:
        value = value * place + column[row]
    return value


_NODES = np.cos(np.pi * (np.arange(TABLE_TERMS) + 0.5) / TABLE_TERMS)
_CHECKS = np.cos(np.pi * np.arange(TABLE_TERMS + 1) / TABLE_TERMS)  # between the nodes, and the ends


def _representable(places: Array, k: int) -> Array:
    """Places in piece k, from -1 to 1, moved to the nearest float64 cosines; the last pieces contain only a few."""
    scale = 2.0 ** (k + 2)
    cosines = 1.0 - (places + 3) / scale
    return np.unique((1.0 - cosines) * scale - 3)


def _angle_remainder(t: Array, integrated: bool = False) -> Array:
    """R(t), or Q(t) if `integrated`, from the series of acos in t: its terms are positive, so nothing cancels."""
    total = np.zeros_like(t)
    for k in range(64, -1, -1):
        total = total * t + math.comb(2 * k, k) / (8.0**k * (2 * k + 1) * (k + 1.5 if integrated else 1.0))
    return total * math.sqrt(2.0) / math.pi


_arc_remainder = functools.partial(_angle_remainder, integrated=True)  # Q(t): kappa(1 - t) integrates acos(1 - t)
