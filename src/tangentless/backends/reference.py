"""The reference backend: the algebra of `bags`, run literally in float64. It is slow, and it is the definition."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import bags
from ..bags import Bag, Operation, diagonal_norms, grid_index, inner_products
from ..graph import EmbedNode, Graph, InputNode, Node, PoolNode, SumNode, WeightsNode, WindowNode
from . import Advance

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReferenceImages:
    """Bags, the norms of their features at every node, and the kernel of each with itself."""

    bags: tuple[Bag, ...]
    norms: tuple[tuple[Array, ...], ...]
    diagonal: Array

    @property
    def tile(self) -> int:
        return 64

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, part: slice) -> ReferenceImages:
        return ReferenceImages(self.bags[part], self.norms[part], self.diagonal[part])


class ReferenceBackend:
    """Runs every node's operation on the kernel matrix between two bags."""

    name = "reference"

    def prepare(self, graph: Graph, images: Array) -> ReferenceImages:
        found = [Bag.from_grid(np.asarray(image, dtype=np.float64)) for image in images]
        alone = [run(graph, bag, bag, None, None) for bag in found]
        return ReferenceImages(
            tuple(found), tuple(norms for _, norms in alone), np.array([value for value, _ in alone])
        )

    def block(
        self,
        graph: Graph,
        left: ReferenceImages,
        right: ReferenceImages,
        *,
        upper: bool = False,
        advance: Advance | None = None,
    ) -> Array:
        values = np.zeros((len(left), len(right)))
        for i in range(len(left)):
            for j in range(i if upper else 0, len(right)):
                values[i, j], _ = run(graph, left.bags[i], right.bags[j], left.norms[i], right.norms[j])
                if advance is not None:
                    advance(1)
        return values

    def describe(self, graph: Graph) -> str:
        return "reference: float64, layer by layer, literally the algebra of bags"


def run(
    graph: Graph, left: Bag, right: Bag, left_norms: tuple[Array, ...] | None, right_norms: tuple[Array, ...] | None
) -> tuple[float, tuple[Array, ...]]:
    """The kernel of two bags, or of the tangent graph their tangent kernel, and the norms if they are one bag."""
    itself = left_norms is None
    kernels: list[Array] = []
    tangents: list[Array] = []
    norms: list[Array] = []
    for node, one in zip(graph.nodes, operations_of(graph), strict=True):
        if isinstance(node, InputNode):
            kernels.append(inner_products(left, right))
            tangents.append(np.zeros_like(kernels[0]))
        elif isinstance(node, SumNode):
            operation = bags.Sum(node.weights)
            kernels.append(operation.on_kernels([kernels[source] for source in node.sources]))
            tangents.append(operation.on_kernels([tangents[source] for source in node.sources]))
        else:
            (source,) = node.sources
            kernel, tangent = kernels[source], tangents[source]
            a, b = (
                (norms[source],) * 2
                if left_norms is None or right_norms is None
                else (left_norms[source], right_norms[source])
            )
            if isinstance(node, WeightsNode):
                kernels.append(kernel)
                tangents.append(tangent + kernel)
            else:
                assert one is not None
                kernels.append(one.on_kernel(kernel, a, b))
                tangents.append(one.on_tangent(tangent, kernel, a, b, itself=itself) if graph.tangent else tangent)
        if itself:
            norms.append(diagonal_norms(kernels[-1]))
    last = (tangents if graph.tangent else kernels)[-1]
    return float(last[0, 0]), tuple(norms)


@functools.lru_cache(maxsize=64)
def operations_of(graph: Graph) -> tuple[Operation | None, ...]:
    """The operations on bags of the nodes that have one source."""
    return tuple(_operation(graph, node) for node in graph.nodes)


def _operation(graph: Graph, node: Node) -> Operation | None:
    if isinstance(node, EmbedNode):
        return node.layer.embedding()
    if not isinstance(node, WindowNode | PoolNode):
        return None
    source = grid_index(graph.nodes[node.sources[0]].grid)
    inside, (rows, columns) = set(source), node.axes
    subsets = {
        (j, k): [at if at in inside else None for at in itertools.product(rows.positions(j), columns.positions(k))]
        for j, k in grid_index(node.grid)
    }
    if isinstance(node, WindowNode):
        return bags.Concat(source, subsets, node.scale)
    return bags.Downsample(source, subsets)
