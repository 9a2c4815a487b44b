"""Gradients on a GPU, of any graph: the general path with kernels for both ways.

One GPU computes them, the first of the backend's: every image then adds up what its pairs give in one order. Cotangents
stay on it until all are there, and come out beside the images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...graph import Graph
from ...pullback import Key
from ..backward import GeneralGradient, general_gradient
from ..general import GeneralImages
from ..numpy_back import NumpyBack
from .fused import Machine
from .general import GeneralPath
from .node_back import BackKernels
from .portable import make_portable


class GradientPath(GeneralPath):
    """A graph on one machine, node by node, both ways."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph = make_portable(graph, graph.head, machine.upload, gradient=True)
        self.machine = machine
        self.kernels = None if graph.nodes[0].grid == (1, 1) else BackKernels(graph, machine)

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair: values and cotangents between two pools, and all that pools have collected."""
        return 2 * super().pair_bytes

    def gradient(self, images: GeneralImages, batch: int, *, parameters: bool, wanted: bool) -> GeneralGradient:
        """Prepared images with no cotangents yet; `finish` takes at most `batch` of them at a time."""
        begin = self.kernels if isinstance(self.kernels, BackKernels) else NumpyBack  # vectors need none
        return general_gradient(self.graph, images, begin, parameters=parameters, wanted=wanted, batch=batch)


@dataclass(frozen=True, eq=False)
class CudaGradient:
    """Images with their cotangents so far."""

    path: GradientPath
    part: GeneralGradient
    images: Any  # CudaImages, whose k(x, x) is where the images were

    @property
    def graph(self) -> Graph:
        return self.part.graph

    @property
    def tile(self) -> int:
        return int(self.images.tile)

    @property
    def parameters(self) -> dict[Key, Any]:
        """Cotangents of parameters, (N,) each."""
        return {key: self._delivered(total) for key, total in self.part.parameters.items()}

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, part: slice) -> CudaGradient:
        return CudaGradient(self.path, self.part[part], self.images[part])

    def unwanted(self) -> CudaGradient:
        """The same images, of which no cotangents are wanted."""
        with self.path.machine.active():
            return replace(self, part=self.part.unwanted())

    def pull_diagonal(self, cotangent: Any) -> None:
        """Add cotangents of k(x, x)."""
        machine = self.path.machine
        with machine.active():
            self.part.pull_diagonal(machine.upload(cotangent))

    def finish(self) -> Any:
        """The cotangents of all pixels, (N, *grid, C)."""
        with self.path.machine.active():
            return self._delivered(self.part.finish())

    def _delivered(self, values: Any) -> Any:
        return self.path.machine.deliver(values, self.images.diagonal)
