"""Closed forms in which a fast backend can evaluate a dual function, and the polynomials they are built from.

A nonlinearity is defined by its dual function f, in float64 NumPy. A backend that wants to be fast needs f as data
it can turn into its own instructions. Three forms cover the duals in use; each is exact up to the degree of its
polynomial, which the backend picks for the precision it computes in:

    Arc           f(c) = linear c + arc kappa(c),  kappa the ReLU's dual
    Exponential   f(c) = exp(gamma (c - 1))
    Series        f(c) = a polynomial in c

The ReLU's dual has a square-root singularity at c = 1, where kernels of similar images live. With t = 1 - |c|,

    kappa(c) = max(c, 0) + t^(3/2) Q(t),

and Q is smooth on [0, 1], so a short polynomial replaces acos and loses no digits near c = 1. Its slope, which tangent
kernels need, is 1 - acos(c) / pi, and acos(1 - t) / pi = t^(1/2) R(t) with R as smooth.

Any other dual has a table. A dual is a power series with coefficients of at least zero, so it is smooth inside the unit
circle, and only at c = 1 or -1 may it be singular on [-1, 1]. On pieces that halve towards both ends, 1 - |c| from
2^-(k+1) to 2^-k, the nearest singularity is as far away as the piece is wide, and polynomials converge alike on all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Array = NDArray[np.float64]
MAX_DEGREE = 28
TABLE_PIECES = 53  # of either side: 1 - |c| is zero or at least 2^-53
TABLE_TERMS = 20  # of each piece: errors fall by 5.8 with every term
TABLE_TOLERANCE = 1e-11  # of f(1); duals in float64 come out some thousand times better


@dataclass(frozen=True)
class Arc:
    """f(c) = linear c + arc kappa(c)."""

    linear: float = 0.0
    arc: float = 1.0

    def derivative(self, cosine: Array) -> Array:
        """f'."""
        return self.linear + self.arc * (1.0 - np.arccos(cosine) / np.pi)


@dataclass(frozen=True)
class Exponential:
    """f(c) = exp(gamma (c - 1))."""

    gamma: float = 1.0

    def derivative(self, cosine: Array) -> Array:
        """f'."""
        return self.gamma * np.exp(self.gamma * (cosine - 1.0))


@dataclass(frozen=True)
class Series:
    """f(c) = sum of coefficients[k] c^k."""

    coefficients: tuple[float, ...]

    def derivative(self, cosine: Array) -> Array:
        """f'."""
        return np.asarray(np.polynomial.Polynomial(self.coefficients).deriv()(cosine), dtype=np.float64)


Form = Arc | Exponential | Series


def fit(
    function: Callable[[Array], Array], low: float, high: float, tolerance: float, weight: Callable[[Array], Array]
) -> tuple[float, ...] | None:
    """Coefficients of the shortest polynomial with `weight * |error| <= tolerance` on [low, high]; None if too long.

    >>> cubic = fit(lambda x: x**3, -1.0, 1.0, 1e-12, np.ones_like)
    >>> np.round(cubic, 12) + 0.0
    array([0., 0., 0., 1.])
    """
    nodes = np.cos(np.linspace(0.0, np.pi, 400))  # denser at the ends, as a minimax fit wants
    points = low + (high - low) * (nodes + 1) / 2
    weights = weight(points)
    target = function(points)
    checks = np.linspace(low, high, 2001)
    for degree in range(MAX_DEGREE + 1):
        basis = chebyshev.chebvander(nodes, degree)
        fitted, *_ = np.linalg.lstsq(basis * weights[:, None], target * weights, rcond=None)
        polynomial = np.polynomial.Chebyshev(fitted, domain=[low, high]).convert(kind=np.polynomial.Polynomial)
        error = np.abs(polynomial(checks) - function(checks)) * weight(checks)
        if error.max() <= tolerance:
            coefficients = np.zeros(degree + 1)
            coefficients[: len(polynomial.coef)] = polynomial.coef
            return tuple(float(a) for a in coefficients)
    return None


@functools.cache
def arc_polynomial(tolerance: float) -> tuple[float, ...]:
    """Coefficients of Q, with `t^(3/2) |error| <= tolerance` on [0, 1]."""
    coefficients = fit(_arc_remainder, 0.0, 1.0, tolerance, lambda t: t**1.5)
    assert coefficients is not None, "Q is analytic beyond [0, 1]"
    return coefficients


@functools.cache
def arc_powers(powers: tuple[float, ...], near: tuple[float, float] | None = None) -> tuple[float, ...]:
    """Coefficients of Q as a sum of few powers of t, best everywhere or for t `near` a mean, within a spread.

    >>> t = np.linspace(0.0, 1.0, 101)
    >>> def errors(powers, near=None):
    ...     return np.abs(t[:, None] ** powers @ arc_powers(powers, near) - _arc_remainder(t)) * t**1.5
    >>> [bool(errors(powers).max() < 1e-7) for powers in ((0, 1, 2, 3, 5), (0, 1, 2, 4), (0, 1, 2.5))]
    [True, True, False]
    >>> bool(errors((0, 1, 2.5), (0.7, 0.1))[60:81].max() < 1e-6)
    True
    """
    t = (1 + np.cos(np.linspace(0.0, np.pi, 2001))) / 2
    weights = t**1.5
    if near is not None:
        weights *= np.sqrt(np.exp(-0.5 * ((t - near[0]) / near[1]) ** 2) + 1e-3)  # the last: for all other t
    fitted, *_ = np.linalg.lstsq(t[:, None] ** powers * weights[:, None], _arc_remainder(t) * weights, rcond=None)
    return tuple(float(a) for a in fitted)


def at_unit_scale(coefficients: Sequence[float], powers: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """A scale, and the coefficients of the same sum of powers in terms of `scale` x, of which the last one is 1.

    >>> at_unit_scale((1.0, 2.0, 16.0), (0, 1, 4))
    (2.0, (1.0, 1.0, 1.0))
    """
    scale = coefficients[-1] ** (1 / powers[-1])
    return scale, tuple(c / scale**power for c, power in zip(coefficients, powers, strict=True))


@functools.cache
def angle_polynomial(tolerance: float) -> tuple[float, ...]:
    """Coefficients of R, with `t^(1/2) |error| <= tolerance` on [0, 1]."""
    coefficients = fit(_angle_remainder, 0.0, 1.0, tolerance, np.sqrt)
    assert coefficients is not None, "R is analytic beyond [0, 1]"
    return coefficients


@functools.cache
def exponential_series(gamma: float, tolerance: float) -> tuple[float, ...] | None:
    """Coefficients of exp(gamma (c - 1)) on [-1, 1], or None where a polynomial would be long."""
    return fit(lambda c: np.exp(gamma * (c - 1)), -1.0, 1.0, tolerance, np.ones_like)


@functools.cache
def exp2_polynomial(tolerance: float) -> tuple[float, ...]:
    """Coefficients of 2^x on [-1/2, 1/2]."""
    coefficients = fit(np.exp2, -0.5, 0.5, tolerance, np.ones_like)
    assert coefficients is not None, "2^x is entire"
    return coefficients


def series_of(dual: Callable[[Array], Array], tolerance: float = 1e-9) -> Series | None:
    """The dual as a polynomial in c, if a short one reaches the tolerance on [-1, 1].

    >>> series_of(lambda c: np.exp(c - 1)) is None, series_of(lambda c: np.arccos(c)) is None
    (False, True)
    """
    coefficients = fit(dual, -1.0, 1.0, tolerance, np.ones_like)
    return None if coefficients is None else Series(coefficients)


def hermite_series(activation: Callable[[Array], Array], most: int = 400) -> tuple[tuple[float, ...], float]:
    """The dual of an activation as a power series, and the share of f(1) that the series leaves out.

    With a_k the coefficients of the activation in normalised Hermite polynomials, f(c) = sum of a_k^2 c^k. They are
    integrals against a Gaussian, by the trapezoidal rule: for activations that are analytic in a strip, such as tanh, it
    converges faster with the step than Gauss-Hermite quadrature does with the nodes.

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
    for k in range(most):
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
    """Points and weights of the trapezoidal rule against a standard Gaussian, whose mass beyond 30 float64 rounds off.

    Weights that small still matter to Hermite polynomials of high degree, which grow as the Gaussian falls.
    """
    points = np.linspace(-30.0, 30.0, 6001)
    return points, np.exp(-points * points / 2) * (points[1] - points[0]) / math.sqrt(2 * math.pi)


def tabulate(dual: Callable[[Array], Array]) -> Array | None:
    """The dual piece by piece, (2, TABLE_PIECES + 1, TABLE_TERMS), or None where polynomials do not reach it.

    [0, k] are coefficients on 2^-(k+1) <= 1 - c <= 2^-k, of a polynomial in 2^(k+2) (1 - c) - 3, which runs from -1 to
    1; the last piece is the constant f(1). [1, k] is the same for -c.

    >>> table = tabulate(np.arcsin)
    >>> table.shape, tabulate(lambda c: np.abs(c - 0.3)) is None
    ((2, 54, 20), True)
    >>> from numpy.polynomial.polynomial import polyval
    >>> bool(abs(polyval(2**2 * (1 - 0.4) - 3, table[0, 0]) - math.asin(0.4)) < 1e-15)
    True
    """
    table = np.zeros((2, TABLE_PIECES + 1, TABLE_TERMS))
    table[:, -1, 0] = dual(np.array([1.0, -1.0]))
    tolerance = TABLE_TOLERANCE * float(np.abs(table[:, -1, 0]).max())
    for sign, side in ((1.0, table[0]), (-1.0, table[1])):
        for k in range(TABLE_PIECES):
            nodes, checks = (_reached(places, k) for places in (_NODES, _CHECKS))
            values, expected = (dual(sign * (1.0 - (places + 3) * 2.0 ** -(k + 2))) for places in (nodes, checks))
            fitted = np.linalg.solve(chebyshev.chebvander(nodes, len(nodes) - 1), values)
            error = np.abs(chebyshev.chebval(checks, fitted) - expected).max()
            if not error <= tolerance:
                return None
            coefficients = chebyshev.cheb2poly(fitted)
            side[k, : len(coefficients)] = coefficients
    return table


_NODES = np.cos(np.pi * (np.arange(TABLE_TERMS) + 0.5) / TABLE_TERMS)
_CHECKS = np.cos(np.pi * np.arange(TABLE_TERMS + 1) / TABLE_TERMS)  # between the nodes, and the ends


def _reached(places: Array, k: int) -> Array:
    """The places of a piece, from -1 to 1, where float64 can put a cosine next to them; the last pieces have few."""
    scale = 2.0 ** (k + 2)
    cosines = 1.0 - (places + 3) / scale
    return np.unique((1.0 - cosines) * scale - 3)


def _arc_remainder(t: Array) -> Array:
    """Q(t), summed without cancellation: kappa(1 - t) integrates acos, whose series in t has positive terms."""
    total = np.zeros_like(t)
    for k in range(64, -1, -1):
        total = total * t + math.comb(2 * k, k) / (8.0**k * (2 * k + 1) * (k + 1.5))
    return total * math.sqrt(2.0) / math.pi


def _angle_remainder(t: Array) -> Array:
    """R(t), from the same series."""
    total = np.zeros_like(t)
    for k in range(64, -1, -1):
        total = total * t + math.comb(2 * k, k) / (8.0**k * (2 * k + 1))
    return total * math.sqrt(2.0) / math.pi
