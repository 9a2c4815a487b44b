"""Sums, products and multiples of kernels: operations on each entry."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..backends import Advance, AnyDevice
from ..errors import ParameterError
from ..gradients import Branches, Slopes, Tile, with_prefix
from ..inputs import to_host
from ..layers.base import format_number
from ..tiles import Several
from .base import Elementary, Kernel


@dataclass(frozen=True, repr=False)
class _Combined(Kernel):
    """Two kernels, combined entry by entry."""

    first: Kernel
    second: Kernel
    combine: ClassVar[np.ufunc]

    @property
    def invariant(self) -> bool:
        return self.first.invariant and self.second.invariant

    def prepare(self, device: AnyDevice, images: Any) -> Several:
        parts = self.first.prepare(device, images), self.second.prepare(device, images)
        return Several(parts, self.combine(*(part.diagonal for part in parts)))

    def block(
        self, device: AnyDevice, left: Several, right: Several, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        values = self.first.block(device, left.parts[0], right.parts[0], upper=upper, advance=advance)
        others = self.second.block(device, left.parts[1], right.parts[1], upper=upper, advance=advance)
        self.combine(values, others, out=values)
        return values

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        kernels = self.first, self.second
        parts = tuple(one.gradient(device, images, parameters=parameters, wanted=wanted) for one in kernels)
        return Branches(parts, Several, self.combine(*(part.diagonal for part in parts)))

    def pullback(self, tile: Tile) -> None:
        sides = zip((self.first, self.second), tile.left.parts, tile.right.parts, strict=True)
        values = (one.block(tile.device, left.images, right.images) for one, left, right in sides)
        for place, factor in enumerate(self._factors(values)):
            (self.first, self.second)[place].pullback(tile.of(place, place, factor))

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        factors = self._factors(part.diagonal for part in images.parts)
        for one, factor, part in zip((self.first, self.second), factors, images.parts, strict=True):
            one.pull_diagonal(device, part, cotangent * factor)

    @abstractmethod
    def _factors(self, values: Iterable[Any]) -> tuple[Any, Any]:
        """The derivatives of the result by both values. `values` is lazy: a sum does not compute them."""

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        (pixels, slopes), (others, more) = (
            one.finish(part) for one, part in zip((self.first, self.second), images.parts, strict=True)
        )
        return pixels + others, with_prefix("first", slopes) | with_prefix("second", more)

    def leaves(self) -> Iterator[Elementary]:
        yield from self.first.leaves()
        yield from self.second.leaves()


class Sum(_Combined):
    """k1 + k2.

    >>> from tangentless import kernel
    >>> kernel("myrtle5") + kernel("myrtle7")
    kernel('myrtle5') + kernel('myrtle7')
    """

    combine = np.add

    def _factors(self, values: Iterable[Any]) -> tuple[Any, Any]:
        return 1.0, 1.0

    def __repr__(self) -> str:
        return f"{self.first!r} + {inner_repr(self.second, Sum)}"


class Product(_Combined):
    """k1 * k2, entry by entry.

    >>> from tangentless import kernel
    >>> 0.5 * (kernel("myrtle5") + kernel("myrtle7")) * kernel("relu")
    0.5 * (kernel('myrtle5') + kernel('myrtle7')) * kernel('relu')
    """

    combine = np.multiply

    def _factors(self, values: Iterable[Any]) -> tuple[Any, Any]:
        first, second = values
        return second, first

    def __repr__(self) -> str:
        return f"{inner_repr(self.first, Sum)} * {inner_repr(self.second, Sum, Product, Scaled)}"


@dataclass(frozen=True, repr=False)
class Scaled(Kernel):
    """factor * k, for a factor of at least zero."""

    factor: float
    base: Kernel

    @property
    def invariant(self) -> bool:
        return self.base.invariant

    def __post_init__(self) -> None:
        if not 0 <= self.factor < float("inf"):
            raise ParameterError(f"a kernel may be scaled by a finite number of at least 0, not {self.factor}")

    def prepare(self, device: AnyDevice, images: Any) -> Several:
        base = self.base.prepare(device, images)
        return Several((base,), self.factor * base.diagonal)

    def block(
        self, device: AnyDevice, left: Several, right: Several, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        return self.factor * self.base.block(device, left.parts[0], right.parts[0], upper=upper, advance=advance)

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        base = self.base.gradient(device, images, parameters=parameters, wanted=wanted)
        own = {"factor": np.zeros(len(images))} if parameters else {}
        return Branches((base,), Several, self.factor * base.diagonal, own)

    def pullback(self, tile: Tile) -> None:
        (left,), (right,) = tile.left.parts, tile.right.parts
        for total in tile.left.own.values():
            total += to_host((tile.cotangent * self.base.block(tile.device, left.images, right.images)).sum(axis=1))
        self.base.pullback(tile.of(0, 0, self.factor))

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        (base,) = images.parts
        for total in images.own.values():
            total += to_host(cotangent * base.diagonal)
        self.base.pull_diagonal(device, base, self.factor * cotangent)

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        pixels, slopes = self.base.finish(images.parts[0])
        return pixels, images.own | with_prefix("base", slopes)

    def leaves(self) -> Iterator[Elementary]:
        yield from self.base.leaves()

    def __repr__(self) -> str:
        return f"{format_number(self.factor)} * {inner_repr(self.base, Sum, Product, Scaled)}"


def inner_repr(kernel: Kernel, *kinds: type[Kernel]) -> str:
    """The text of a kernel inside a larger expression, in parentheses if it is of these kinds: stores read it back."""
    return f"({kernel!r})" if isinstance(kernel, kinds) else repr(kernel)
