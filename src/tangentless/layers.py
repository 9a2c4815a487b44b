"""The layers an architecture is made of.

A layer says once what it means: which of the three operations on bags it is, over which subsets of a grid, or with
which dual function. Every backend, the text form and the random network of the same shape are derived from that.
A new nonlinearity is one small class with a `dual`; it then runs everywhere and passes every shared test.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .bags import Concat, Downsample, Embed, Operation, grid_index
from .errors import ArchitectureError, ParameterError
from .forms import Arc, Exponential, Form, Series, series_of

Array = NDArray[np.float64]
Grid = tuple[int, ...]  # (): one vector; (length,): a sequence; (height, width): an image


@dataclass(frozen=True)
class Layer(ABC):
    """One step of an architecture."""

    name: ClassVar[str]

    def output_grid(self, grid: Grid) -> Grid:
        """The grid after this layer; raises `ArchitectureError` where the layer does not fit."""
        return grid

    @abstractmethod
    def operation(self, grid: Grid) -> Operation:
        """The operation on bags indexed by this grid."""

    def __str__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        if not values:
            return self.name
        if len(values) == 1 and is_whole(values[0]):
            return f"{self.name}{values[0]}"
        return f"{self.name}({', '.join(_number(value) for value in values)})"


class Window(Layer):
    """A layer that looks at windows of the grid."""

    @abstractmethod
    def window(self, grid: Grid) -> Grid:
        """The size of one window on this grid."""


@dataclass(frozen=True)
class Conv(Window):
    """A convolution with zero padding: concatenate the features of the window around every position.

    >>> str(Conv(3)), Conv(3).output_grid((32, 32))
    ('conv3', (32, 32))
    """

    size: int = 3
    name: ClassVar[str] = "conv"

    def __post_init__(self) -> None:
        if not is_whole(self.size) or self.size < 1 or self.size % 2 == 0:
            raise ParameterError(f"conv needs an odd size of at least 1, such as conv3, not {self.size!r}")

    def output_grid(self, grid: Grid) -> Grid:
        if not grid:
            raise ArchitectureError(
                f"{self} needs a sequence or an image, but its input is a single vector; "
                "put it before the global pool, or leave it out"
            )
        return grid

    def window(self, grid: Grid) -> Grid:
        return (self.size,) * len(grid)

    def operation(self, grid: Grid) -> Concat:
        reach = range(-(self.size // 2), self.size // 2 + 1)
        steps = list(itertools.product(reach, repeat=len(grid)))
        inside = set(grid_index(grid))

        def neighbour(index: Grid, step: Grid) -> Grid | None:
            moved = tuple(i + d for i, d in zip(index, step, strict=True))
            return moved if moved in inside else None

        index = grid_index(grid)
        return Concat(index, {i: [neighbour(i, step) for step in steps] for i in index})


@dataclass(frozen=True)
class Pool(Window):
    """Average pooling over disjoint windows.

    >>> Pool(2).output_grid((32, 28))
    (16, 14)
    """

    size: int = 2
    name: ClassVar[str] = "pool"

    def __post_init__(self) -> None:
        if not is_whole(self.size) or self.size < 1:
            raise ParameterError(f"pool needs a size of at least 1, such as pool2, not {self.size!r}")

    def output_grid(self, grid: Grid) -> Grid:
        if any(length % self.size for length in grid):
            fitting = [f"pool{p}" for p in range(2, min(grid) + 1) if all(n % p == 0 for n in grid)]
            raise ArchitectureError(
                f"{self} does not divide its {format_grid(grid)} input; "
                f"what would fit: {', '.join([*fitting, 'globalpool'])}"
            )
        return tuple(length // self.size for length in grid)

    def window(self, grid: Grid) -> Grid:
        return (self.size,) * len(grid)

    def operation(self, grid: Grid) -> Downsample:
        return _pooling(grid, self.window(grid))


@dataclass(frozen=True)
class GlobalPool(Window):
    """The average over the whole grid.

    >>> GlobalPool().output_grid((7, 7))
    (1, 1)
    """

    name: ClassVar[str] = "globalpool"

    def output_grid(self, grid: Grid) -> Grid:
        return (1,) * len(grid)

    def window(self, grid: Grid) -> Grid:
        return grid

    def operation(self, grid: Grid) -> Downsample:
        return _pooling(grid, grid)


@dataclass(frozen=True)
class Normalize(Layer):
    """Divide every feature by its norm; zero stays zero."""

    name: ClassVar[str] = "normalize"

    def operation(self, grid: Grid) -> Embed:
        return Embed(lambda c: c, keep_norms=False, series=(0.0, 1.0), derivative=np.ones_like, trained=False)


class Nonlinearity(Layer):
    """An embedding that keeps norms: `A A' f(c)`, with f the dual of an activation.

    Define `dual`. If a short polynomial can stand for it, fast backends take it from there; otherwise give a `form`,
    or the general path runs it.
    """

    @abstractmethod
    def dual(self, cosine: Array) -> Array:
        """f, for cosines in [-1, 1]."""

    @abstractmethod
    def activation(self, preactivation: Any) -> Any:
        """The activation with this dual: `E[a(u) a(v)] = f(c)` for standard Gaussian u, v of correlation c.

        Write it with arithmetic and methods that NumPy arrays and PyTorch tensors share, such as `clip`: networks of
        this shape train with the same declaration.
        """

    def usual_activation(self, preactivation: Any) -> Any:
        """The activation without the factor that keeps norms, as networks elsewhere have it."""
        return self.activation(preactivation)

    def form(self) -> Form | None:
        """The dual as data for the fast backends."""
        return series_of(self.dual)

    def derivative(self, cosine: Array) -> Array:
        """That of f, which tangent kernels need: taken from the form, unless defined otherwise."""
        form = self.form()
        if form is None:
            raise ArchitectureError(
                f"the derivative of the dual of {self} is not known, so it has no tangent kernel; "
                "define its method derivative"
            )
        return form.derivative(cosine)

    def series(self) -> tuple[float, ...] | None:
        """Coefficients of f as a power series, where a finite one is exact."""
        return None

    def gain(self) -> float:
        """f(1), by which squared norms grow."""
        return float(self.dual(np.ones(1))[0])

    def steepness(self) -> float:
        """The slope of f at 1, where kernels of similar images live."""
        below = 1.0 - 1e-6
        return (self.gain() - float(self.dual(np.array([below]))[0])) / (1.0 - below)

    def operation(self, grid: Grid) -> Embed:
        return Embed(self.dual, series=self.series(), derivative=self.derivative)


@dataclass(frozen=True)
class ReLU(Nonlinearity):
    """The arc-cosine kernel of order one, of sqrt(2) max(x, 0).

    >>> ReLU().dual(np.array([-1.0, 0.0, 1.0])).round(6)
    array([0.     , 0.31831, 1.     ])
    """

    name: ClassVar[str] = "relu"

    def dual(self, cosine: Array) -> Array:
        return (np.sqrt(1 - cosine * cosine) + cosine * (np.pi - np.arccos(cosine))) / np.pi

    def activation(self, preactivation: Any) -> Any:
        return math.sqrt(2.0) * self.usual_activation(preactivation)

    def usual_activation(self, preactivation: Any) -> Any:
        return preactivation.clip(min=0.0)

    def form(self) -> Form:
        return Arc()


@dataclass(frozen=True)
class LeakyReLU(Nonlinearity):
    """The dual of max(x, slope x), scaled so that f(1) = 1.

    >>> float(LeakyReLU(1.0).dual(np.array(0.3)))  # slope 1 is linear
    0.3
    """

    slope: float = 0.1
    name: ClassVar[str] = "leakyrelu"

    def __post_init__(self) -> None:
        if not is_real(self.slope) or not 0 <= self.slope <= 1:
            raise ParameterError(f"leakyrelu needs a slope from 0 to 1, not {self.slope!r}")

    def dual(self, cosine: Array) -> Array:
        form = self.form()
        return form.linear * cosine + form.arc * ReLU().dual(cosine)

    def activation(self, preactivation: Any) -> Any:
        return math.sqrt(2.0 / (1.0 + self.slope**2)) * self.usual_activation(preactivation)

    def usual_activation(self, preactivation: Any) -> Any:
        return preactivation.clip(min=0.0) + self.slope * preactivation.clip(max=0.0)

    def form(self) -> Arc:
        total = 1.0 + self.slope**2
        return Arc(linear=2.0 * self.slope / total, arc=(1.0 - self.slope) ** 2 / total)


@dataclass(frozen=True)
class Gaussian(Nonlinearity):
    """exp(gamma (c - 1)): the Gaussian kernel of normalised features, and the dual of an exponential activation.

    >>> str(Gaussian()), str(Gaussian(0.5))
    ('gaussian', 'gaussian(0.5)')
    """

    gamma: float = 1.0
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if not is_real(self.gamma) or not 0 < self.gamma <= 1e9:
            raise ParameterError(f"gaussian needs a gamma above 0 and at most 1e9, not {self.gamma!r}")

    def dual(self, cosine: Array) -> Array:
        return np.exp(self.gamma * (cosine - 1.0))

    def activation(self, preactivation: Any) -> Any:
        return math.e ** (math.sqrt(self.gamma) * preactivation - self.gamma)

    def form(self) -> Form:
        return Exponential(self.gamma)

    def __str__(self) -> str:
        return self.name if self.gamma == 1.0 else super().__str__()


@dataclass(frozen=True)
class Polynomial(Nonlinearity):
    """c^degree, of the normalised Hermite polynomial of that degree.

    >>> Polynomial(3).dual(np.array([0.5])), str(Polynomial(3))
    (array([0.125]), 'polynomial3')
    """

    degree: int = 2
    name: ClassVar[str] = "polynomial"

    def __post_init__(self) -> None:
        if not is_whole(self.degree) or self.degree < 1:
            raise ParameterError(f"polynomial needs a degree of at least 1, not {self.degree!r}")

    def dual(self, cosine: Array) -> Array:
        return cosine**self.degree

    def activation(self, preactivation: Any) -> Any:
        before, polynomial = 1.0, preactivation  # Hermite polynomials of degree 0 and 1
        for k in range(1, self.degree):
            before, polynomial = polynomial, preactivation * polynomial - k * before
        return polynomial / math.sqrt(math.factorial(self.degree))

    def form(self) -> Form:
        return Series(self.series())

    def series(self) -> tuple[float, ...]:
        return (0.0,) * self.degree + (1.0,)


LAYERS: dict[str, type[Layer]] = {
    layer.name: layer for layer in (Conv, Pool, GlobalPool, ReLU, LeakyReLU, Gaussian, Polynomial, Normalize)
}


def format_grid(grid: Grid) -> str:
    """`32×32` for an image, `16` for a sequence, `vector` for no grid at all."""
    return "×".join(map(str, grid)) if grid else "vector"


def _pooling(grid: Grid, window: Grid) -> Downsample:
    subsets: dict[Grid, list[Grid]] = {}
    for index in grid_index(grid):
        subsets.setdefault(tuple(i // w for i, w in zip(index, window, strict=True)), []).append(index)
    return Downsample(grid_index(grid), subsets)


def _number(value: float) -> str:
    text = repr(float(value))
    return text.removesuffix(".0")


def is_whole(value: object) -> bool:
    """Whether a parameter is a whole number, of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether a parameter is a real number, of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
