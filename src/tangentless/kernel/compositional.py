"""The kernels of architectures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..architecture import Architecture
from ..backends import Advance, AnyDevice
from ..devices import Device
from ..gradients import Branches, Slopes, Tile, gradient_backend
from ..graph import Graph, compile_graph
from ..layers import Layer, own_layers, walk
from ..pullback import parameters_of
from ..tiles import Leaf
from .base import Elementary, Kernel

AnyKernel = str | Architecture | Iterable[Layer] | Kernel


def kernel(architecture: str | Architecture | Iterable[Layer]) -> CompositionalKernel:
    """The kernel k of an architecture: a name, a text form, a list of layers or an `Architecture`.

    `k(X)` and `k(X, Z)` are matrices (see `Kernel.__call__`), `k.diag(X)` a diagonal, and `k.vjp(X, Z, G)` gradients.

    >>> import numpy as np
    >>> k = kernel("myrtle5")
    >>> X = np.random.default_rng(0).standard_normal((3, 8, 8, 1))
    >>> k(X, backend="reference").shape, k(X, X[:2], backend="reference").shape
    ((3, 3), (3, 2))
    """
    return CompositionalKernel(Architecture.of(architecture))


def kernel_of(given: AnyKernel) -> Kernel:
    """The kernel that an argument stands for: a kernel itself, or the kernel of an architecture.

    >>> kernel_of("myrtle5") == kernel_of(kernel("myrtle5"))
    True
    """
    return given if isinstance(given, Kernel) else kernel(given)


@dataclass(frozen=True, repr=False)
class CompositionalKernel(Elementary):
    """The kernel of one architecture."""

    architecture: Architecture
    on_gpu = True

    @property
    def invariant(self) -> bool:
        return all(layer.keeps_mirrors for layer in walk(self.architecture.layers))

    @property
    def drawn(self) -> Architecture:
        return self.architecture

    @property
    def definition(self) -> str:
        return "; ".join([str(self.architecture), *own_layers(self.architecture)])

    def elements(self, shape: tuple[int, ...]) -> int:
        return self.graph(shape).elements

    def image_numbers(self, shape: tuple[int, ...]) -> int:
        return self.graph(shape).image_numbers

    def graph(self, shape: tuple[int, ...]) -> Graph:
        """This kernel compiled for images of one shape, `(*grid, channels)`."""
        return compile_graph(self.architecture, tuple(shape[:-1]), shape[-1])

    def prepare(self, device: AnyDevice, images: Any) -> Leaf:
        graph = self.graph(images.shape[1:])
        return Leaf(graph, Device.of(device).backend.prepare(graph, images))

    def block(
        self, device: AnyDevice, left: Leaf, right: Leaf, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        return Device.of(device).backend.block(left.graph, left.images, right.images, upper=upper, advance=advance)

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        graph = self.graph(images.shape[1:])
        part = gradient_backend(device).gradient(graph, images, parameters=parameters, wanted=wanted)
        return Branches((part,), lambda parts, _: Leaf(graph, *parts), part.images.diagonal)

    def pullback(self, tile: Tile) -> None:
        (left,), (right,) = tile.left.parts, tile.right.parts
        backend = gradient_backend(tile.device)
        backend.pullback(left.graph, left, right, tile.cotangent, upper=tile.upper, advance=tile.advance)

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        images.parts[0].pull_diagonal(cotangent)

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        (part,) = images.parts
        pixels, slopes = part.finish(), part.parameters
        return pixels, {name: slopes[key] for name, key in parameters_of(part.graph).items() if key in slopes}

    def __repr__(self) -> str:
        return f"kernel({self.architecture.short_name!r})"
