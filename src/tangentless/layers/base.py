"""The base classes of layers. A layer is a frozen dataclass with a name and a text form.

A layer stacks the features of windows (`Stack`), averages them (`Average`), embeds each feature (`Nonlinearity`), or
adds branches (`branches.Sum`). A subclass declares what is particular to it; the rest of the package derives from that.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from ..bags import Embed
from ..errors import ArchitectureError
from ..forms import Form, Series, hermite_series, polynomial, series_of

Array = NDArray[np.float64]
# Weights of values at multiples of a step, whose sum is the step times the derivative up to the seventh order.
_CENTRAL = {-3: -1 / 60, -2: 0.15, -1: -0.75, 1: 0.75, 2: -0.15, 3: 1 / 60}
_ONE_SIDED = {0: -49 / 20, 1: 6.0, 2: -15 / 2, 3: 20 / 3, 4: -15 / 4, 5: 6 / 5, 6: -1 / 6}
Grid = tuple[int, ...]  # (): one vector; (length,): a sequence; (height, width): an image


@dataclass(frozen=True)
class Windows:
    """Windows along one axis: window j covers the positions `j * stride + start + t * dilation`, 0 <= t < size.

    >>> Windows(size=3, count=4, start=-1).positions(1)  # outside the grid there are zeros
    [0, 1, 2]
    """

    size: int
    count: int
    stride: int = 1
    dilation: int = 1
    start: int = 0

    def positions(self, j: int) -> list[int]:
        """The positions of window j, some of which may lie outside the grid."""
        return [j * self.stride + self.start + t * self.dilation for t in range(self.size)]


@dataclass(frozen=True)
class Layer(ABC):
    """One step of an architecture."""

    name: ClassVar[str]

    @property
    def keeps_mirrors(self) -> bool:
        """Whether mirroring or turning the input mirrors or turns the output, on every grid that the layer accepts."""
        return True

    def __str__(self) -> str:
        """The text form: a first parameter 0, 1, 2, ... joins the name; others follow in parentheses unless default.

        A single parameter that is not an integer is always shown.
        """
        given = [(field, getattr(self, field.name)) for field in fields(self)]
        joined = ""
        if given and is_whole(given[0][1]) and given[0][1] >= 0:
            joined = str(given.pop(0)[1])
        if len(given) == 1 and not joined:
            return f"{self.name}({format_number(given[0][1])})"
        shown = [f"{field.name}={format_number(value)}" for field, value in given if value != field.default]
        return f"{self.name}{joined}" + (f"({', '.join(shown)})" if shown else "")


class Windowed(Layer):
    """A layer that acts on windows of the grid, by the same rule along every axis."""

    @property
    def keeps_mirrors(self) -> bool:
        return False  # subclasses say when their windows are symmetric about the centre of an axis

    @abstractmethod
    def windows(self, length: int) -> Windows:
        """The windows along an axis of that length; raises `ArchitectureError` if none fit."""

    def output_grid(self, grid: Grid) -> Grid:
        """The grid after this layer; raises `ArchitectureError` where `windows` returns what cannot be used."""
        after = []
        for length in grid:
            windows = _check_windows(self, self.windows(length), length)
            self._check_places(windows, length)
            after.append(windows.count)
        return tuple(after)

    @abstractmethod
    def _check_places(self, windows: Windows, length: int) -> None:
        """Raise `ArchitectureError` unless windows lie on an axis of that length as this kind of layer needs them."""


class Stack(Windowed):
    """Concatenate the features of each window: K' is the sum over the window, or the average inside a `Sum`.

    Window j belongs to position `j * stride`, which must lie inside the grid; the window itself may reach beyond it.
    """

    def _check_places(self, windows: Windows, length: int) -> None:
        if (windows.count - 1) * windows.stride >= length:
            raise ArchitectureError(
                f"{self} has {windows.count} windows, {windows.stride} apart, on an axis of {length}; the last of them "
                f"must belong to a position inside it, so there are at most {-(-length // windows.stride)}"
            )


class Average(Windowed):
    """Average the features of each window, which must lie inside the grid."""

    def _check_places(self, windows: Windows, length: int) -> None:
        first, last = windows.positions(0)[0], windows.positions(windows.count - 1)[-1]
        if first < 0 or last >= length:
            raise ArchitectureError(
                f"{self} reads the positions {first} to {last} of an axis of {length}; windows of a layer that "
                "averages must lie inside the grid"
            )


class Nonlinearity(Layer):
    """An embedding that keeps norms: `A A' f(c)`, with f the dual of an activation.

    Define `activation`. The dual is computed from it, unless you define `dual` too. The fused paths of the backends run
    a dual that a short polynomial approximates, or one with a `form`; the general path runs any other.
    """

    @abstractmethod
    def activation(self, preactivation: Any) -> Any:
        """The activation with this dual: `E[a(u) a(v)] = f(c)` for standard Gaussian u, v of correlation c.

        Use only arithmetic and methods that NumPy arrays and PyTorch tensors share, such as `clip`: PyTorch networks
        call it too.
        """

    def dual(self, cosine: Array) -> Array:
        """f, for cosines in [-1, 1]: by default computed from the Hermite series of the activation."""
        return polynomial(_hermite_series(self), cosine)

    def usual_activation(self, preactivation: Any) -> Any:
        """The activation as networks usually define it, without the factor that makes f(1) = 1."""
        return self.activation(preactivation)

    def form(self) -> Form | None:
        """The dual as data for the fused paths; None if there is no short form."""
        return series_of(self.dual)

    def derivative(self, cosine: Array) -> Array:
        """f', which tangent kernels and gradients need: that of the Hermite series or the form, unless overridden."""
        return self._known_form("derivative").derivative(cosine)

    def curvature(self, cosine: Array) -> Array:
        """f'', which gradients of tangent kernels need; computed in the same way."""
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
        """The derivative of f by a real parameter: differences of sixth order, unless overridden.

        They are central, or one-sided at an end of the parameter's range.
        """
        value = getattr(self, name)
        step = 0.01 * max(abs(value), 1e-6)

        def slope(weights: dict[int, float], sign: int) -> Array:
            values = (w * replace(self, **{name: value + sign * k * step}).dual(cosine) for k, w in weights.items())
            total: Array = sum(values) * (sign / step)
            return total

        try:
            return slope(_CENTRAL, 1)
        except ValueError as error:
            for sign in (-1, 1):
                with contextlib.suppress(ValueError):
                    return slope(_ONE_SIDED, sign)
            raise error

    def gain_slope(self, name: str) -> float:
        """The derivative of `gain` by a real parameter."""
        return float(self.parameter_slope(name, np.ones(1))[0])

    def series(self) -> tuple[float, ...] | None:
        """Coefficients of f as a power series, if a finite one is exact."""
        return None

    def gain(self) -> float:
        """f(1), the factor by which squared norms grow."""
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
        """Squared norms after this layer."""
        return squares * self.gain()


class ClosedForm(Nonlinearity):
    """A nonlinearity whose dual is given by its `form`."""

    @abstractmethod
    def form(self) -> Form:
        """The dual as data."""

    def dual(self, cosine: Array) -> Array:
        return self.form().value(cosine)


@functools.lru_cache(maxsize=256)
def check_dual(layer: Nonlinearity) -> None:
    """Refuse a function that is no dual: it exceeds f(1), or its matrix of points on a circle is not definite."""
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


def is_own(layer: Layer) -> bool:
    """Whether a layer is of the user's own, and not the package's."""
    return type(layer).__module__.partition(".")[0] != __name__.partition(".")[0]


def _check_windows(layer: Windowed, found: object, length: int) -> Windows:
    """What a layer, maybe a user's, returned from `windows`; an `ArchitectureError` if it cannot be used."""
    valid = isinstance(found, Windows) and all(is_whole(getattr(found, field.name)) for field in fields(found))
    if not valid or min(found.size, found.count, found.stride, found.dilation) < 1:  # type: ignore[attr-defined]
        raise ArchitectureError(
            f"windows of {layer} must return Windows(size, count, stride, dilation, start), whole numbers of which all "
            f"but start are at least 1, not {found!r}, for an axis of {length}"
        )
    return cast(Windows, found)


@functools.lru_cache(maxsize=256)
def _hermite_series(layer: Nonlinearity) -> tuple[float, ...]:
    series, rest = hermite_series(layer.activation)
    if rest > 1e-12:
        raise ArchitectureError(
            f"the dual of {layer} cannot be computed from its activation alone: {rest:.1g} of its mean square is "
            "beyond what quadrature reaches, as for activations with a kink or a jump; "
            + ("define its method dual" if is_own(layer) else "use a smaller scale")
        )
    return series


def format_number(value: float | None) -> str:
    """The shortest text of a parameter."""
    return repr(float(value)).removesuffix(".0") if value is not None else "none"
