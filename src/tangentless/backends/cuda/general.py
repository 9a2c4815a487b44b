"""The general path on a GPU: any graph, kernel or tangent kernel, in float64.

It is the interpreter of `backends/general.py` with the kernels of `nodes.py` in place of NumPy's operations. The head
calls NumPy's functions on CuPy arrays, which dispatch to CuPy.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...graph import Graph
from .. import Advance
from ..general import GeneralImages, general_block, pair_bytes, prepare_general
from .fused import Machine
from .nodes import NodeKernels
from .portable import make_portable


class GeneralPath:
    """A graph on one machine, node by node; images of one position (vectors) need no kernels."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph = make_portable(graph, graph.head, machine.upload)
        self.machine = machine
        self.kernels: NodeKernels | None = None if graph.nodes[0].grid == (1, 1) else NodeKernels(graph, machine)

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair."""
        return pair_bytes(self.graph)

    def prepare(self, images: Any, batch: int) -> GeneralImages:
        """Squared norms and the diagonal of images (N, *grid, C), on the machine."""
        return prepare_general(self.graph, images, batch=batch, start=self.kernels)

    def block(
        self, left: GeneralImages, right: GeneralImages, batch: int, first: int | None, advance: Advance | None
    ) -> Any:
        """Entries (n, m) in float64, on the machine.

        `first`: the right images are images first, first + 1, ... of the left ones, so only entries on and above the
        diagonal of that matrix are needed. None: all entries are.
        """

        def report(pairs: int) -> None:
            self.machine.mark()()  # wait: progress counts finished pairs
            if advance is not None:
                advance(pairs)

        block = functools.partial(general_block, advance=report, batch=batch, start=self.kernels)
        if first is None:
            return block(left, right, upper=False)
        last = first + len(right)
        entries = self.machine.xp.zeros((len(left), len(right)), dtype=np.float64)
        if first:
            entries[:first] = block(left[:first], right, upper=False)
        entries[first:last] = block(left[first:last], right, upper=True)
        return entries

    def join(self, parts: list[GeneralImages]) -> GeneralImages:
        """One set of images from several."""
        concatenate = self.machine.xp.concatenate
        squares = {place: concatenate([part.squares[place] for part in parts]) for place in parts[0].squares}
        images, diagonal = (concatenate([getattr(part, name) for part in parts]) for name in ("images", "diagonal"))
        return GeneralImages(self.graph, images, squares, diagonal)
