"""Layers made of other layers: sums of branches, and residuals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ArchitectureError, ParameterError
from .base import Layer, format_number

_SUM = "Sum(((Conv(3), ReLU()), (Conv(1),))) or Architecture.parse('sum(conv3 relu | conv1)')"
_RESIDUAL = "Residual((Conv(3), ReLU())) or Architecture.parse('residual(conv3 relu)')"


@dataclass(frozen=True)
class Sum(Layer):
    """Features of branches side by side: K' = sum of weights[i] K_i. In branches, windows average instead of adding.

    Branches of any depth then have the same scale, as in networks whose weights have variance 1 / fan-in.

    >>> from .windows import Conv
    >>> print(Sum(((Conv(3),), ()), (0.5, 2.0)))
    sum(0.5 * conv3 | 2 * identity)
    """

    branches: tuple[tuple[Layer, ...], ...]
    weights: tuple[float, ...] = ()
    name: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        branches = tuple(_read_branch(branch, _SUM) for branch in _read_sequence(self.branches, _SUM))
        if not branches:
            raise ParameterError("a sum needs at least one branch, such as sum(conv3 | conv5)")
        try:
            weights = tuple(float(w) for w in self.weights) or (1.0,) * len(branches)
        except (TypeError, ValueError):
            raise ParameterError(f"weights of a sum are numbers, one for each branch, not {self.weights!r}") from None
        if len(weights) != len(branches):
            raise ParameterError(f"a sum of {len(branches)} branches needs as many weights, not {len(weights)}")
        if not all(0 < weight < math.inf for weight in weights):
            raise ParameterError(f"weights of a sum are finite and above 0, not {', '.join(map(str, weights))}")
        object.__setattr__(self, "branches", branches)
        object.__setattr__(self, "weights", weights)

    def __str__(self) -> str:
        texts = [" ".join(map(str, branch)) or "identity" for branch in self.branches]
        if set(self.weights) != {1.0}:
            texts = [f"{format_number(weight)} * {text}" for weight, text in zip(self.weights, texts, strict=True)]
        return f"{self.name}({' | '.join(texts)})"


@dataclass(frozen=True)
class Residual(Layer):
    """The sum of the output of some layers and their input.

    >>> from .windows import Conv
    >>> print(Residual((Conv(3), Conv(5))))
    residual(conv3 conv5)
    """

    layers: tuple[Layer, ...]
    name: ClassVar[str] = "residual"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _read_branch(self.layers, _RESIDUAL))
        if not self.layers:
            raise ParameterError("a residual needs layers beside the identity, such as residual(relu conv3)")

    def as_sum(self) -> Sum:
        """The same with both branches written out."""
        return Sum((self.layers, ()))

    def __str__(self) -> str:
        return f"{self.name}({' '.join(map(str, self.layers))})"


def walk(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """All layers in order, including those inside branches."""
    for layer in layers:
        yield layer
        for branch in branches_of(layer):
            yield from walk(branch)


def branches_of(layer: Layer) -> tuple[tuple[Layer, ...], ...]:
    """The branches of a sum or a residual; none for other layers."""
    if isinstance(layer, Residual):
        layer = layer.as_sum()
    return layer.branches if isinstance(layer, Sum) else ()


def _read_branch(branch: Any, example: str) -> tuple[Layer, ...]:
    """A branch as a tuple; an `ArchitectureError` with an example if it is anything but layers in a sequence."""
    layers = _read_sequence(branch, example)
    for layer in layers:
        if not isinstance(layer, Layer):
            raise ArchitectureError(f"a branch is made of layers, such as {example}, not of {layer!r}")
    return layers


def _read_sequence(values: Any, example: str) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArchitectureError(f"branches are sequences of layers, such as {example}, not {values!r}")
    return tuple(values)
