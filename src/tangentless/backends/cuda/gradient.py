"""Gradients of any graph on a GPU: the general path with forward and backward kernels.

Only the first GPU of the backend computes them, so the cotangents of an image are added up in one order, pair by pair.
They stay on that GPU until `finish`, which returns them in the memory that the images came from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...graph import Graph
from ...pullback import Key
from .. import OfImages
from ..backward import GeneralGradient, general_gradient
from ..general import GeneralImages
from ..numpy_back import NumpyBack
from .fused import Machine
from .general import GeneralPath
from .node_back import BackKernels
from .portable import make_portable


class GradientPath(GeneralPath):
    """A graph on one machine, node by node, forwards and backwards."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph = make_portable(graph, graph.head, machine.upload, gradient=True)
        self.machine = machine
        self.kernels = None if graph.nodes[0].grid == (1, 1) else BackKernels(graph, machine)

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair: every value has a cotangent of the same size."""
        return 2 * super().pair_bytes

    def gradient(self, images: GeneralImages, batch: int, *, parameters: bool, wanted: bool) -> GeneralGradient:
        """Prepared images with no cotangents yet; `finish` works on at most `batch` of them at a time."""
        begin = self.kernels if isinstance(self.kernels, BackKernels) else NumpyBack  # vectors need no kernels
        return general_gradient(self.graph, images, begin, parameters=parameters, wanted=wanted, batch=batch)


@dataclass(frozen=True, eq=False)
class CudaGradient(OfImages):
    """Images with their cotangents so far, on the general path."""

    path: GradientPath
    part: GeneralGradient
    images: Any  # CudaImages; results go to the memory of its diagonal

    @property
    def graph(self) -> Graph:
        return self.part.graph

    @property
    def parameters(self) -> dict[Key, Any]:
        """Cotangents of parameters, (N,) each: one number per image."""
        return {key: self._delivered(total) for key, total in self.part.parameters.items()}

    def __getitem__(self, part: slice) -> CudaGradient:
        return CudaGradient(self.path, self.part[part], self.images[part])

    def unwanted(self) -> CudaGradient:
        """The same images, for which cotangents are not computed."""
        with self.path.machine.active():
            return replace(self, part=self.part.unwanted())

    def pull_diagonal(self, cotangent: Any) -> None:
        """Add cotangents of k(x, x), (N,)."""
        machine = self.path.machine
        with machine.active():
            self.part.pull_diagonal(machine.upload(cotangent))

    def finish(self) -> Any:
        """The cotangents of all pixels, (N, *grid, C)."""
        with self.path.machine.active():
            return self._delivered(self.part.finish())

    def _delivered(self, values: Any) -> Any:
        return self.path.machine.deliver(values, self.images.diagonal)
