"""Layers that act on windows of the grid: convolutions and patches stack features, pools average them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import ArchitectureError, ParameterError
from .base import Average, Stack, Windowed, Windows, is_whole

_LARGEST_WINDOW = 999  # work grows with the window, even where most of it is padding
_FARTHEST = 10_000  # positions that a stride or a dilation may skip


@dataclass(frozen=True)
class Conv(Stack):
    """A convolution with zero padding, centred at every `stride`-th position from the first.

    >>> str(Conv(3)), str(Conv(3, stride=2)), Conv(3, stride=2).output_grid((32, 31))
    ('conv3', 'conv3(stride=2)', (16, 16))
    """

    size: int = 3
    stride: int = 1
    dilation: int = 1
    name: ClassVar[str] = "conv"

    def __post_init__(self) -> None:
        if not is_whole(self.size) or self.size < 1 or self.size % 2 == 0:
            raise ParameterError(f"conv needs an odd size of at least 1, such as conv3, not {self.size!r}")
        if self.size > _LARGEST_WINDOW:
            raise ParameterError(f"conv needs a size of at most {_LARGEST_WINDOW}, not {self.size}")
        _check_steps(self.name, stride=self.stride, dilation=self.dilation)
        if self.dilation * (self.size // 2) > _FARTHEST:
            raise ParameterError(
                f"conv reaches at most {_FARTHEST:,} positions, size // 2 * dilation; {self} is larger"
            )

    @property
    def keeps_mirrors(self) -> bool:
        return self.stride == 1

    def windows(self, length: int) -> Windows:
        reach = self.dilation * (self.size // 2)
        return Windows(self.size, -(-length // self.stride), self.stride, self.dilation, -reach)


@dataclass(frozen=True)
class Patch(Stack):
    """Stack disjoint windows, as networks do that cut images into patches.

    >>> Patch(2).output_grid((64, 64))
    (32, 32)
    """

    size: int = 2
    name: ClassVar[str] = "patch"
    keeps_mirrors = True

    def __post_init__(self) -> None:
        _check_steps(self.name, size=self.size)

    def windows(self, length: int) -> Windows:
        return _disjoint(self, self.size, length)


@dataclass(frozen=True)
class Pool(Average):
    """Average pooling: over disjoint windows that tile the grid, or, with a stride, over all windows inside the grid.

    >>> Pool(2).output_grid((32, 28)), Pool(3, stride=2).output_grid((32, 28))
    ((16, 14), (15, 13))
    """

    size: int = 2
    stride: int | None = None
    name: ClassVar[str] = "pool"

    def __post_init__(self) -> None:
        _check_steps(self.name, size=self.size, stride=1 if self.stride is None else self.stride)

    @property
    def keeps_mirrors(self) -> bool:
        return self.stride is None or self.stride == 1

    def windows(self, length: int) -> Windows:
        if self.stride is None:
            return _disjoint(self, self.size, length)
        if self.size > length:
            raise ArchitectureError(f"{self} has no window inside an axis of {length}; at most pool{length} fits")
        return Windows(self.size, (length - self.size) // self.stride + 1, self.stride)


@dataclass(frozen=True)
class HalfPool(Average):
    """Average over all windows of half the grid's length.

    `halfpool globalpool` is a weighted mean over the grid. Weights grow towards the centre, where the subject of a
    photograph usually is.

    >>> HalfPool().output_grid((8, 7))
    (5, 4)
    """

    name: ClassVar[str] = "halfpool"
    keeps_mirrors = True

    def windows(self, length: int) -> Windows:
        size = -(-length // 2)
        return Windows(size, length - size + 1)


@dataclass(frozen=True)
class GlobalPool(Average):
    """The average over the whole grid.

    >>> GlobalPool().output_grid((7, 7))
    (1, 1)
    """

    name: ClassVar[str] = "globalpool"
    keeps_mirrors = True

    def windows(self, length: int) -> Windows:
        return Windows(length, 1, length)


def _disjoint(layer: Windowed, size: int, length: int) -> Windows:
    if length % size:
        fitting = [f"{layer.name}{p}" for p in range(2, length + 1) if length % p == 0]
        if isinstance(layer, Average):
            fitting += [f"{layer.name}{size}(stride={size})"] * (size < length) + [GlobalPool.name]
        raise ArchitectureError(f"{layer} does not divide an axis of {length}; what would fit: {', '.join(fitting)}")
    return Windows(size, length // size, size)


def _check_steps(name: str, **steps: object) -> None:
    for step, value in steps.items():
        if not is_whole(value) or value < 1:
            raise ParameterError(f"{name} needs a {step} of at least 1, not {value!r}")
        if step != "size" and value > _FARTHEST:  # a size must divide the axis or fit into it
            raise ParameterError(f"{name} needs a {step} of at most {_FARTHEST:,}, not {value}")
