"""What a layer is: a frozen value with a name, a text form, and one of four meanings.

A layer stacks the features of windows, averages them, embeds each feature by a nonlinearity, or adds branches. Each
kind is a base class here; a layer declares the rest once, and everything else in the package is derived from that.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..bags import Embed
from ..errors import ArchitectureError
from ..forms import Form, Series, hermite_series, polynomial, series_of

Array = NDArray[np.float64]
Grid = tuple[int, ...]  # (): one vector; (length,): a sequence; (height, width): an image


@dataclass(frozen=True)
class Windows:
    """Windows along one axis: number j holds the positions `j * stride + start + t * dilation` for t below `size`.

    >>> Windows(size=3, count=4, start=-1).positions(1)  # outside the grid there are zeros
    [0, 1, 2]
    """

    size: int
    count: int
    stride: int = 1
    dilation: int = 1
    start: int = 0

    def positions(self, j: int) -> list[int]:
        """Those of one window."""
        return [j * self.stride + self.start + t * self.dilation for t in range(self.size)]


@dataclass(frozen=True)
class Layer(ABC):
    """One step of an architecture."""

    name: ClassVar[str]

    @property
    def keeps_mirrors(self) -> bool:
        """Whether mirroring or turning what comes in mirrors or turns what comes out, on every grid it accepts."""
        return True

    def __str__(self) -> str:
        """The text form: a whole first parameter joins the name, others stand in parentheses unless they are usual."""
        given = [(field, getattr(self, field.name)) for field in fields(self)]
        joined = ""
        if given and is_whole(given[0][1]):
            joined = str(given.pop(0)[1])
        if len(given) == 1 and not joined:
            return f"{self.name}({format_number(given[0][1])})"
        shown = [f"{field.name}={format_number(value)}" for field, value in given if value != field.default]
        return f"{self.name}{joined}" + (f"({', '.join(shown)})" if shown else "")


class Windowed(Layer):
    """A layer that looks at windows of the grid, alike along every axis."""

    @property
    def keeps_mirrors(self) -> bool:
        return False  # unless a layer knows that its windows are as far from one end of an axis as from the other

    @abstractmethod
    def windows(self, length: int) -> Windows:
        """The windows along an axis of that length; raises `ArchitectureError` where none would fit."""

    def output_grid(self, grid: Grid) -> Grid:
        """The grid after this layer."""
        return tuple(self.windows(length).count for length in grid)


class Stack(Windowed):
    """Concatenate the features of each window: K' sums over windows, and averages them inside a sum."""


class Average(Windowed):
    """Average the features of each window, which must lie inside the grid."""


class Nonlinearity(Layer):
    """An embedding that keeps norms: `A A' f(c)`, with f the dual of an activation.

    Define `activation`, and the dual is computed from it; or define `dual` too where it is known. If a short
    polynomial can stand for it, fast backends take it from there; otherwise give a `form`, or the general path runs it.
    """

    @abstractmethod
    def activation(self, preactivation: Any) -> Any:
        """The activation with this dual: `E[a(u) a(v)] = f(c)` for standard Gaussian u, v of correlation c.

        Write it with arithmetic and methods that NumPy arrays and PyTorch tensors share, such as `clip`: networks of
        this shape train with the same declaration.
        """

    def dual(self, cosine: Array) -> Array:
        """f, for cosines in [-1, 1]: by default from the activation, as its series of Hermite polynomials."""
        return polynomial(_hermite_series(self), cosine)

    def usual_activation(self, preactivation: Any) -> Any:
        """The activation without the factor that keeps norms, as networks elsewhere have it."""
        return self.activation(preactivation)

    def form(self) -> Form | None:
        """The dual as data for the fast backends."""
        return series_of(self.dual)

    def derivative(self, cosine: Array) -> Array:
        """f', which tangent kernels and gradients need: of the series or the form, unless defined otherwise."""
        return self._known_form("derivative").derivative(cosine)

    def curvature(self, cosine: Array) -> Array:
        """f'', which gradients of tangent kernels need, in the same way."""
        return self._known_form("curvature").curvature(cosine)

    def _known_form(self, wanted: str) -> Form:
        from_activation = type(self).dual is Nonlinearity.dual
        form = Series(_hermite_series(self)) if from_activation else self.form()
        if form is None:
            raise ArchitectureError(
                f"the {wanted} of the dual of {self} is not known, so it has no tangent kernel and no gradient; "
                f"define its method {wanted}"
            )
        return form

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its real parameters."""
        return tuple(field.name for field in fields(self) if field.type in (float, "float"))

    def parameter_slope(self, name: str, cosine: Array) -> Array:
        """The derivative of f by a real parameter: by differences of sixth order, unless defined otherwise."""
        value = getattr(self, name)
        step = 0.01 * max(abs(value), 1e-6)
        weights = {1: 0.75, 2: -0.15, 3: 1 / 60}
        total = 0.0 * cosine
        for k, weight in weights.items():
            above, below = (replace(self, **{name: value + sign * k * step}).dual(cosine) for sign in (1, -1))
            total = total + weight / step * (above - below)
        return total

    def series(self) -> tuple[float, ...] | None:
        """Coefficients of f as a power series, where a finite one is exact."""
        return None

    def gain(self) -> float:
        """f(1), by which squared norms grow."""
        return self._gain

    @functools.cached_property
    def _gain(self) -> float:
        return float(self.dual(np.ones(1))[0])

    def steepness(self) -> float:
        """The slope of f at 1, where kernels of similar images live."""
        below = 1.0 - 1e-6
        return (self.gain() - float(self.dual(np.array([below]))[0])) / (1.0 - below)

    def embedding(self) -> Embed:
        """The operation on bags."""
        return Embed(self.dual, series=self.series(), derivative=self.derivative, curvature=self.curvature)

    def squares(self, squares: Array) -> Array:
        """Squared norms after it."""
        return squares * self.gain()


class ClosedForm(Nonlinearity):
    """A nonlinearity whose dual is the closed form that it gives."""

    @abstractmethod
    def form(self) -> Form:
        """The dual as data."""

    def dual(self, cosine: Array) -> Array:
        return self.form().value(cosine)


@functools.lru_cache(maxsize=256)
def check_dual(layer: Nonlinearity) -> None:
    """Refuse what is no dual function: larger than at one, or not positive definite between points of a circle."""
    cosines = np.cos(2 * np.pi * np.arange(256) / 256)
    with np.errstate(all="ignore"):
        values = np.asarray(layer.dual(np.clip(cosines, -1.0, 1.0)), dtype=np.float64)
    if values.shape != cosines.shape or not np.isfinite(values).all():
        raise ArchitectureError(f"the dual of {layer} must give a finite number for every cosine from -1 to 1")
    if not values[0] > 0 or np.abs(values).max() > values[0] * (1 + 1e-9):
        raise ArchitectureError(
            f"the dual of {layer} is {values[0]:.3g} at 1 and reaches {np.abs(values).max():.3g} elsewhere, but "
            "|f(c)| <= f(1) holds for every dual function; check its formula"
        )
    spectrum = np.fft.rfft(values).real
    if spectrum.min() < -1e-9 * values[0] * len(values):
        raise ArchitectureError(
            f"the dual of {layer} is not positive definite (an eigenvalue of {spectrum.min() / len(values):.2g} "
            "between points of a circle), so it belongs to no activation; check its formula, or define activation alone"
        )


def format_grid(grid: Grid) -> str:
    """`32×32` for an image, `16` for a sequence, `vector` for no grid at all."""
    return "×".join(map(str, grid)) if grid else "vector"


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a parameter is a whole number, of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Whether a parameter is a real number, of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


@functools.lru_cache(maxsize=256)
def _hermite_series(layer: Nonlinearity) -> tuple[float, ...]:
    series, rest = hermite_series(layer.activation)
    if rest > 1e-12:
        raise ArchitectureError(
            f"the dual of {layer} cannot be computed from its activation alone: {rest:.1g} of its mean square is "
            "beyond what quadrature reaches, as for activations with a kink or a jump; define its method dual"
        )
    return series


def format_number(value: float | None) -> str:
    """The shortest text of a parameter."""
    return repr(float(value)).removesuffix(".0") if value is not None else "none"
