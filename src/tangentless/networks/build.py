"""Builds the modules of a network from layers, and tracks the factor between its inner products and the kernel.

A value between layers is either *features* (after a nonlinearity, or pixels) or *outputs* of weights (linear in the
weights of a convolution). A convolution and the nonlinearity after it become one module. A nonlinearity applied to
features gets a 1×1 convolution of its own; one applied to outputs needs none.

The kernel of a sum of branches is the sum of their kernels. The network adds the branches if they are outputs of
different weights, because inner products between these vanish as the width grows. Otherwise, where branches have no
weights or share some, it concatenates their channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ArchitectureError, ParameterError
from ..graph import Axes, Pair, axes_of
from ..layers import Average, Layer, Nonlinearity, Normalize, Residual, Stack, Sum, Windows
from .checks import check_counts
from .modules import Activation, AveragePool, Branches, Convolution, UnitLength
from .pytorch import Tensor, nn, torch


@dataclass(frozen=True)
class Value:
    """A value between layers; `kernel_scale` times its inner products approaches the kernel at this place."""

    grid: Pair
    channels: int
    kernel_scale: float = 1.0
    weights: frozenset[int] = frozenset()  # convolutions whose outputs it is linear in; none for features
    ready: bool = False  # whether a nonlinearity applies to it directly, without another convolution


@dataclass
class Builder:
    """Builds the modules of layers, one after the other."""

    rank: int
    widths: Widths
    batch_norm: Callable[[int], nn.BatchNorm2d | None]
    usual_activations: bool
    shortest: float
    mismatch: str | None = None  # message for the first sum whose branches differ in width

    def build(self, layers: Sequence[Layer], value: Value) -> tuple[nn.Sequential, Value]:
        """The modules of a network and the value after them; checks that all widths are used and fit."""
        found = self.layers(layers, value)
        self.widths.check_all_taken()
        if self.mismatch is not None:
            raise ParameterError(self.mismatch)
        return found

    def layers(self, layers: Sequence[Layer], value: Value, inside: bool = False) -> tuple[nn.Sequential, Value]:
        """The modules of consecutive layers and the value after them; `inside` a sum, windows average, not add."""
        modules: list[nn.Module] = []
        rest = list(layers)
        while rest:
            layer = rest.pop(0)
            if isinstance(layer, Stack):
                follows = rest.pop(0) if rest and isinstance(rest[0], Nonlinearity) else None
                module, value = self._convolution(axes_of(layer, value.grid, self.rank), follows, value, inside)
            elif isinstance(layer, Nonlinearity):
                module, value = self._nonlinearity(layer, value, inside)
            elif isinstance(layer, Average):
                axes = axes_of(layer, value.grid, self.rank)
                module, value = AveragePool(axes, value.grid), replace(value, grid=_grid_of(axes))
            elif isinstance(layer, Normalize):
                module, value = UnitLength(self.shortest), replace(value, kernel_scale=1.0)
            elif isinstance(layer, Sum | Residual):
                module, value = self._sum(layer.as_sum() if isinstance(layer, Residual) else layer, value)
            else:
                raise ArchitectureError(
                    f"a network cannot be built from {layer}; its layers must be a Stack, an Average or a Nonlinearity"
                )
            modules.append(module)
        return nn.Sequential(*modules), value

    def _convolution(self, axes: Axes, layer: Layer | None, value: Value, inside: bool) -> tuple[nn.Module, Value]:
        number, filters = self.widths.take()
        layer, norm = (None, None) if layer is None else (check_trainable(layer), self.batch_norm(filters))
        module = Convolution(value.channels, filters, axes, value.grid, layer, norm, self.usual_activations)
        size = 1 if inside else math.prod(module.window)
        scale = value.kernel_scale * size * value.channels / filters * self._factor(layer)
        weights = frozenset({number} if layer is None else ())
        return module, Value(_grid_of(axes), filters, scale, weights)

    def _nonlinearity(self, layer: Nonlinearity, value: Value, inside: bool) -> tuple[nn.Module, Value]:
        if not value.ready:
            rows, columns = (Windows(1, length) for length in value.grid)
            return self._convolution((rows, columns), layer, value, inside)
        module = Activation(check_trainable(layer), self.batch_norm(value.channels), self.usual_activations)
        return module, Value(value.grid, value.channels, value.kernel_scale * self._factor(layer))

    def _factor(self, layer: Nonlinearity | None) -> float:
        """The factor of the kernel over that of the usual activation (2 for ReLU); 1 unless those are used."""
        if layer is None or not self.usual_activations:
            return 1.0
        points = np.linspace(-2.0, 2.0, 9)
        usual = layer.usual_activation(points)
        largest = int(np.abs(usual).argmax())
        return float((layer.activation(points)[largest] / usual[largest]) ** 2)

    def _sum(self, layer: Sum, value: Value) -> tuple[nn.Module, Value]:
        entrance = replace(value, ready=bool(value.weights))
        parts = [self.layers(branch, entrance, inside=True) for branch in layer.branches]
        modules, ends = [module for module, _ in parts], [end for _, end in parts]
        weights = frozenset[int]().union(*(end.weights for end in ends))
        adds = all(end.weights for end in ends) and len(weights) == sum(len(end.weights) for end in ends)
        widths = [end.channels for end in ends]
        if adds and len(set(widths)) > 1:
            self.mismatch = self.mismatch or (
                f"{layer} adds branches of {' and '.join(map(str, widths))} channels; give the convolutions that end "
                "its branches one width, and where a branch is identity, the same to what comes in"
            )
        scale = min(end.kernel_scale for end in ends)
        factors = [math.sqrt(w * end.kernel_scale / scale) for w, end in zip(layer.weights, ends, strict=True)]
        module = Branches(modules, factors, adds)
        if adds:
            return module, Value(ends[0].grid, widths[0], scale, weights, ready=True)
        return module, Value(ends[0].grid, sum(widths), scale)


class Widths:
    """Hands out the numbers of filters, one convolution after the other."""

    def __init__(self, width: int | Sequence[int]) -> None:
        self.several = isinstance(width, Sequence | np.ndarray)
        self.widths: list[Any] = [*width] if isinstance(width, Sequence | np.ndarray) else [width]
        self.taken = 0
        counts = {f"width {place}": w for place, w in enumerate(self.widths, start=1)}
        check_counts(**{"the number of widths": len(self.widths)}, **counts)

    def take(self) -> Pair:
        """The number of the next convolution (from 1), and how many filters it has."""
        self.taken += 1
        return self.taken, int(self.widths[min(self.taken, len(self.widths)) - 1])

    def check_all_taken(self) -> None:
        """Refuse a list that is too long or too short."""
        if self.several and self.taken != len(self.widths):
            raise ParameterError(
                f"{len(self.widths)} widths were given, but the architecture has {self.taken} convolutions; "
                "give one for each, or one number for all"
            )


def check_trainable(layer: Layer) -> Nonlinearity:
    """Return the layer if its activation takes tensors and has a gradient; raises otherwise."""
    assert isinstance(layer, Nonlinearity)
    probe = torch.linspace(-1.0, 1.0, 5, requires_grad=True)
    try:
        activated = layer.activation(probe)
    except (TypeError, RuntimeError, AttributeError) as error:
        reason = f"it does not take tensors ({error})"
    else:
        if isinstance(activated, Tensor) and activated.shape == probe.shape and activated.requires_grad:
            return layer
        reason = "it has no gradient"
    raise ArchitectureError(
        f"{layer} has no activation that a network can train with: {reason}; write `activation` with arithmetic and "
        "methods that arrays and tensors share, such as u.clip(min=0)"
    )


def _grid_of(axes: Axes) -> Pair:
    return axes[0].count, axes[1].count
