"""The reference backend: the algebra of `bags`, run literally in float64. It is slow, and it is the definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bags import Bag, Operation, apply_to_kernel, self_norms
from ..program import Program
from . import Advance

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReferenceImages:
    """Bags, and the norms of their features at every layer."""

    bags: tuple[Bag, ...]
    norms: tuple[tuple[Array, ...], ...]

    @property
    def diagonal(self) -> Array:
        return np.array([norms[-1][0] ** 2 for norms in self.norms])

    @property
    def tile(self) -> int:
        return 64

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, part: slice) -> ReferenceImages:
        return ReferenceImages(self.bags[part], self.norms[part])


class ReferenceBackend:
    """Runs every layer's operation on the kernel matrix between two bags."""

    name = "reference"

    def prepare(self, program: Program, images: Array) -> ReferenceImages:
        operations = operations_of(program)
        bags = tuple(Bag.from_grid(np.asarray(image, dtype=np.float64)) for image in images)
        return ReferenceImages(bags, tuple(tuple(self_norms(operations, bag)) for bag in bags))

    def block(
        self,
        program: Program,
        left: ReferenceImages,
        right: ReferenceImages,
        *,
        upper: bool = False,
        advance: Advance | None = None,
    ) -> Array:
        operations = operations_of(program)
        values = np.zeros((len(left), len(right)))
        for i, (bag, norms) in enumerate(zip(left.bags, left.norms, strict=True)):
            for j in range(i if upper else 0, len(right)):
                kernel = apply_to_kernel(operations, bag, right.bags[j], norms, right.norms[j])
                values[i, j] = kernel[0, 0]
                if advance is not None:
                    advance(1)
        return values

    def describe(self, program: Program) -> str:
        return "reference: float64, layer by layer, literally the algebra of bags"


def operations_of(program: Program) -> list[Operation]:
    """The operations of a program's layers, each on its grid."""
    grids = program.architecture.grids(program.grid)
    return [layer.operation(grid) for layer, grid in zip(program.architecture, grids, strict=False)]
