"""The nonlinearities: first those of the paper, then others that are usual in networks.

Each is one small class: an activation, and its dual function where a closed form is known.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..bags import Embed
from ..errors import ArchitectureError, ParameterError
from ..forms import Arc, Exponential, Form, Series, hermite_mean_square
from .base import Array, ClosedForm, Layer, Nonlinearity, is_real, is_whole


@dataclass(frozen=True)
class Normalize(Layer):
    """Divide every feature by its norm; zero stays zero."""

    name: ClassVar[str] = "normalize"

    def embedding(self) -> Embed:
        """The operation on bags."""
        return Embed(lambda c: c, keep_norms=False, series=(0.0, 1.0), derivative=np.ones_like, curvature=np.zeros_like)

    def squares(self, squares: Array) -> Array:
        """Squared norms after this layer."""
        return (squares > 0).astype(np.float64)


@dataclass(frozen=True)
class ReLU(ClosedForm):
    """The arc-cosine kernel of order one: the dual of sqrt(2) max(x, 0).

    >>> ReLU().dual(np.array([-1.0, 0.0, 1.0])).round(6)
    array([0.     , 0.31831, 1.     ])
    """

    name: ClassVar[str] = "relu"

    def activation(self, preactivation: Any) -> Any:
        return math.sqrt(2.0) * self.usual_activation(preactivation)

    def usual_activation(self, preactivation: Any) -> Any:
        return preactivation.clip(min=0.0)

    def form(self) -> Form:
        return Arc()


@dataclass(frozen=True)
class LeakyReLU(ClosedForm):
    """The dual of max(x, slope x), scaled so that f(1) = 1.

    >>> float(LeakyReLU(1.0).dual(np.array(0.3)))  # slope 1 is linear
    0.3
    """

    slope: float = 0.1
    name: ClassVar[str] = "leakyrelu"

    def __post_init__(self) -> None:
        if not is_real(self.slope) or not 0 <= self.slope <= 1:
            raise ParameterError(f"leakyrelu needs a slope from 0 to 1, not {self.slope!r}")

    def activation(self, preactivation: Any) -> Any:
        return math.sqrt(2.0 / (1.0 + self.slope**2)) * self.usual_activation(preactivation)

    def usual_activation(self, preactivation: Any) -> Any:
        return preactivation.clip(min=0.0) + self.slope * preactivation.clip(max=0.0)

    def form(self) -> Arc:
        total = 1.0 + self.slope**2
        return Arc(linear=2.0 * self.slope / total, arc=(1.0 - self.slope) ** 2 / total)

    def parameter_slope(self, name: str, cosine: Array) -> Array:
        # The derivatives of the form's `linear` and `arc` by the slope differ in sign only.
        linear = 2.0 * (1.0 - self.slope**2) / (1.0 + self.slope**2) ** 2
        return linear * (cosine - ReLU().dual(cosine))


@dataclass(frozen=True)
class Gaussian(ClosedForm):
    """exp(gamma (c - 1)): the Gaussian kernel of normalised features, and the dual of an exponential activation.

    >>> str(Gaussian()), str(Gaussian(0.5))
    ('gaussian', 'gaussian(0.5)')
    """

    gamma: float = 1.0
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if not is_real(self.gamma) or not 0 < self.gamma <= 1e9:
            raise ParameterError(f"gaussian needs a gamma above 0 and at most 1e9, not {self.gamma!r}")

    def activation(self, preactivation: Any) -> Any:
        return math.e ** (math.sqrt(self.gamma) * preactivation - self.gamma)

    def form(self) -> Form:
        return Exponential(self.gamma)

    def parameter_slope(self, name: str, cosine: Array) -> Array:
        return (cosine - 1.0) * self.dual(cosine)

    def __str__(self) -> str:
        return self.name if self.gamma == 1.0 else super().__str__()


@dataclass(frozen=True)
class Polynomial(Nonlinearity):
    """c^degree: the dual of the normalised Hermite polynomial of that degree.

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


@dataclass(frozen=True)
class _Scaled(Nonlinearity):
    """A nonlinearity with a factor on its input: `erf(2)` is erf(2 x), normalised so that f(1) = 1."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not is_real(self.scale) or not 0 < self.scale <= 100:
            raise ParameterError(f"{self.name} needs a scale above 0 and at most 100, not {self.scale!r}")

    def activation(self, preactivation: Any) -> Any:
        return self.usual_activation(preactivation) / math.sqrt(self._mean_square)

    @functools.cached_property
    def _mean_square(self) -> float:
        return hermite_mean_square(self.usual_activation)

    def __str__(self) -> str:
        return self.name if self.scale == 1.0 else super().__str__()


@dataclass(frozen=True)
class Erf(_Scaled):
    """The arc-sine kernel, the dual of erf: asin(r c) / asin(r), with r = 2 scale² / (1 + 2 scale²).

    >>> float(Erf().dual(np.array(0.5)).round(6))
    0.465704
    """

    name: ClassVar[str] = "erf"

    def dual(self, cosine: Array) -> Array:
        return np.arcsin(self._share * cosine) / math.asin(self._share)

    def derivative(self, cosine: Array) -> Array:
        return self._share / (math.asin(self._share) * np.sqrt(1 - (self._share * cosine) ** 2))

    def curvature(self, cosine: Array) -> Array:
        return self.derivative(cosine) * self._share**2 * cosine / (1 - (self._share * cosine) ** 2)

    @property
    def _share(self) -> float:
        return 2 * self.scale**2 / (1 + 2 * self.scale**2)

    def usual_activation(self, preactivation: Any) -> Any:
        return _apply("erf", self.scale * preactivation)


@dataclass(frozen=True)
class GELU(_Scaled):
    """The dual of x Phi(x), Phi the distribution function of a standard Gaussian."""

    name: ClassVar[str] = "gelu"

    def usual_activation(self, preactivation: Any) -> Any:
        scaled = self.scale * preactivation
        return 0.5 * scaled * (1.0 + _apply("erf", scaled / math.sqrt(2.0)))


@dataclass(frozen=True)
class Tanh(_Scaled):
    """The dual of tanh."""

    name: ClassVar[str] = "tanh"

    def usual_activation(self, preactivation: Any) -> Any:
        return 1.0 - 2.0 / (1.0 + math.e ** (2.0 * self.scale * preactivation))


@dataclass(frozen=True)
class Sin(_Scaled):
    """The dual of sin(scale x): sinh(scale² c) / sinh(scale²).

    >>> str(Sin(2.0)), float(Sin().dual(np.array(0.0)))
    ('sin(2)', 0.0)
    """

    name: ClassVar[str] = "sin"

    def dual(self, cosine: Array) -> Array:
        square = self.scale**2
        return (np.exp(square * (cosine - 1)) - np.exp(-square * (cosine + 1))) / -math.expm1(-2 * square)

    def derivative(self, cosine: Array) -> Array:
        return self.scale**2 / math.tanh(self.scale**2) * Cos(self.scale).dual(cosine)

    def curvature(self, cosine: Array) -> Array:
        return self.scale**4 * self.dual(cosine)

    def usual_activation(self, preactivation: Any) -> Any:
        return _apply("sin", self.scale * preactivation)


@dataclass(frozen=True)
class Cos(_Scaled):
    """The dual of cos(scale x): cosh(scale² c) / cosh(scale²)."""

    name: ClassVar[str] = "cos"

    def dual(self, cosine: Array) -> Array:
        square = self.scale**2
        return (np.exp(square * (cosine - 1)) + np.exp(-square * (cosine + 1))) / (1 + math.exp(-2 * square))

    def derivative(self, cosine: Array) -> Array:
        return self.scale**2 * math.tanh(self.scale**2) * Sin(self.scale).dual(cosine)

    def curvature(self, cosine: Array) -> Array:
        return self.scale**4 * self.dual(cosine)

    def usual_activation(self, preactivation: Any) -> Any:
        return _apply("cos", self.scale * preactivation)


@dataclass(frozen=True)
class Abs(ClosedForm):
    """The dual of `|x|`, which is the sum of two ReLUs, of x and of -x.

    >>> Abs().dual(np.array([-1.0, 1.0]))
    array([1., 1.])
    """

    name: ClassVar[str] = "abs"

    def activation(self, preactivation: Any) -> Any:
        return abs(preactivation)

    def form(self) -> Form:
        return Arc(linear=-1.0, arc=2.0)


@dataclass(frozen=True)
class Step(Nonlinearity):
    """The arc-cosine kernel of order zero: the dual of sqrt(2) for x > 0, else 0. It has no tangent and no gradient.

    >>> Step().dual(np.array([-1.0, 0.0, 1.0]))
    array([0. , 0.5, 1. ])
    """

    name: ClassVar[str] = "step"

    def dual(self, cosine: Array) -> Array:
        return 1.0 - np.arccos(cosine) / np.pi

    def activation(self, preactivation: Any) -> Any:
        return math.sqrt(2.0) * (preactivation > 0) * (0.0 * preactivation + 1.0)

    def steepness(self) -> float:
        return math.inf

    def derivative(self, cosine: Array) -> Array:
        raise ArchitectureError(
            "step has no tangent kernel and no gradient: its derivative is zero wherever it has one, and that of its "
            "dual is infinite at 1; try erf or tanh"
        )


def _apply(name: str, values: Any) -> Any:
    """Apply a function by its name: a method of tensors, or a function of NumPy or SciPy for arrays."""
    if hasattr(values, name):
        return getattr(values, name)()
    if hasattr(np, name):
        return getattr(np, name)(values)
    import scipy.special  # slow to import

    return getattr(scipy.special, name)(values)
