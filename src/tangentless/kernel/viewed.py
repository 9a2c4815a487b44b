"""Kernels of views: both images pass through a view before the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..architecture import Architecture
from ..backends import Advance, AnyDevice
from ..errors import ParameterError
from ..gradients import Branches, Slopes, Tile, with_prefix
from ..views import View
from .base import Elementary, Kernel
from .combined import Product, Scaled, Sum


@dataclass(frozen=True, repr=False)
class Viewed(Elementary):
    """k(v x, v z): an elementary kernel k after a view v of both images."""

    base: Elementary
    view: View

    @property
    def on_gpu(self) -> bool:  # type: ignore[override]  # as its base
        return self.base.on_gpu

    @property
    def invariant(self) -> bool:
        return self.base.invariant

    @property
    def drawn(self) -> Architecture | None:
        return self.base.drawn

    @property
    def core(self) -> Elementary:
        return self.base

    @property
    def definition(self) -> str:
        return f"{self.base.definition}, of {self.view}"

    def elements(self, shape: tuple[int, ...]) -> int:
        return self.base.elements(self.view.shape(shape))

    def image_numbers(self, shape: tuple[int, ...]) -> int:
        return self.base.image_numbers(self.view.shape(shape))

    def prepare(self, device: AnyDevice, images: Any) -> Any:
        return self.base.prepare(device, self.view(images))

    def block(
        self, device: AnyDevice, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        return self.base.block(device, left, right, upper=upper, advance=advance)

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        part = self.base.gradient(device, self.view(images), parameters=parameters, wanted=wanted)
        # `finish` needs the original images for the backward pass of the view.
        return Branches((part,), lambda parts, _: parts[0], part.diagonal, {"images": images})

    def pullback(self, tile: Tile) -> None:
        self.base.pullback(tile.of(0, 0))

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        self.base.pull_diagonal(device, images.parts[0], cotangent)

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        pixels, slopes = self.base.finish(images.parts[0])
        return self.view.back(images.own["images"], pixels), with_prefix("base", slopes)

    def __repr__(self) -> str:
        return f"{self.base!r}.seen({str(self.view)!r})"


def seen(kernel: Kernel, view: View) -> Kernel:
    """The kernel with a view before every elementary kernel in it."""
    if isinstance(kernel, Elementary) and not isinstance(kernel, Viewed):
        return Viewed(kernel, view)
    if isinstance(kernel, Sum | Product):
        return type(kernel)(seen(kernel.first, view), seen(kernel.second, view))
    if isinstance(kernel, Scaled):
        return Scaled(kernel.factor, seen(kernel.base, view))
    raise ParameterError(
        f"{kernel!r} cannot be given a view: a kernel has at most one view, and symmetries come after it, "
        "as in k.seen('edges').mirrored()"
    )
