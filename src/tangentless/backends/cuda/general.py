"""The general path on a GPU: any graph, kernel or tangent kernel, in float64.

It is the interpreter of `backends/general.py` with the kernels of `nodes.py` in place of NumPy's operations. The head
runs on arrays of CuPy, to which NumPy's functions hand them on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import Graph
from .. import Advance
from ..general import GeneralImages, general_block, pair_bytes, prepare_general
from .fused import Machine
from .nodes import NodeKernels
from .portable import make_portable


class GeneralPath:
    """A graph on one machine, node by node."""

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

        The columns are images number `first` and following of the rows: then only entries on and right of the diagonal
        are needed. None: all of them are.
        """

        def report(pairs: int) -> None:
            self.machine.mark()()  # progress counts what is finished
            if advance is not None:
                advance(pairs)

        if first is None:
            return general_block(left, right, upper=False, advance=report, batch=batch, start=self.kernels)
        last = first + len(right)
        entries = self.machine.xp.zeros((len(left), len(right)), dtype=np.float64)
        if first:
            entries[:first] = general_block(
                left[:first], right, upper=False, advance=report, batch=batch, start=self.kernels
            )
        entries[first:last] = general_block(
            left[first:last], right, upper=True, advance=report, batch=batch, start=self.kernels
        )
        return entries

    def join(self, parts: list[GeneralImages]) -> GeneralImages:
        """One set of images from several."""
        concatenate = self.machine.xp.concatenate
        squares = {place: concatenate([part.squares[place] for part in parts]) for place in parts[0].squares}
        images, diagonal = (concatenate([getattr(part, name) for part in parts]) for name in ("images", "diagonal"))
        return GeneralImages(self.graph, images, squares, diagonal)
