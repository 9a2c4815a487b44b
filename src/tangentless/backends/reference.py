"""The reference backend: the algebra of `bags`, run literally in float64. It is slow, and it is the definition."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import bags
from ..bags import Bag, Both, Operation, diagonal_norms, grid_index, inner_products
from ..graph import EmbedNode, Graph, InputNode, Node, PoolNode, SumNode, WeightsNode, WindowNode
from ..pullback import Key, add_all, add_both, check_gradient, node_slopes, parameters_of, pull_node
from . import Advance, OfImages

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReferenceImages:
    """Images as bags, the norms of their features at every node, and k(x, x)."""

    bags: tuple[Bag, ...]
    norms: tuple[tuple[Array, ...], ...]
    diagonal: Array
    tile: ClassVar[int] = 64

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

    def gradient(
        self, graph: Graph, images: Array, *, parameters: bool = False, wanted: bool = True
    ) -> ReferenceGradient:
        check_gradient(graph, parameters)
        prepared = self.prepare(graph, images)
        pixels = np.zeros((len(images), *prepared.bags[0].features.shape))
        squares = tuple([np.zeros_like(norms) for norms in one] for one in prepared.norms)
        slopes = {key: np.zeros(len(images)) for key in parameters_of(graph).values()} if parameters else {}
        return ReferenceGradient(graph, prepared, images.shape[1:], pixels, squares, np.zeros(len(images)), slopes)

    def pullback(
        self,
        graph: Graph,
        left: ReferenceGradient,
        right: ReferenceGradient,
        cotangent: Array,
        *,
        upper: bool = False,
        advance: Advance | None = None,
    ) -> None:
        for i in range(len(left)):
            for j in range(i + 1 if upper else 0, len(right)):
                if cotangent[i, j] == 0:
                    continue
                bags = left.images.bags[i], right.images.bags[j]
                norms = left.images.norms[i], right.images.norms[j]
                found = pull(graph, *bags, *norms, _seed(graph, cotangent[i, j]), slopes=bool(left.parameters))
                for side, row, (pixels, squares) in zip((left, right), (i, j), found.sides, strict=True):
                    side.pixels[row] += pixels
                    for total, part in zip(side.squares[row], squares, strict=True):
                        total += part
                for key, total in left.parameters.items():
                    total[i] += found.parameters.get(key, 0.0)
                if advance is not None:
                    advance(1)

    def describe(self, graph: Graph) -> str:
        return "reference: float64, layer by layer, literally the algebra of bags"


@dataclass(frozen=True, eq=False)
class ReferenceGradient(OfImages):
    """Images, and the cotangents so far of pixels, squared norms at every node, k(x, x) and parameters."""

    graph: Graph
    images: ReferenceImages
    shape: tuple[int, ...]  # of one image
    pixels: Array
    squares: tuple[list[Array], ...]
    diagonal: Array
    parameters: dict[Key, Array]

    def __getitem__(self, part: slice) -> ReferenceGradient:
        return replace(
            self,
            images=self.images[part],
            pixels=self.pixels[part],
            squares=self.squares[part],
            diagonal=self.diagonal[part],
            parameters={key: one[part] for key, one in self.parameters.items()},
        )

    def unwanted(self) -> ReferenceGradient:
        """The same images, of which no cotangents are wanted."""
        return replace(
            self,
            pixels=np.zeros_like(self.pixels),
            squares=tuple([np.zeros_like(norms) for norms in one] for one in self.squares),
            diagonal=np.zeros_like(self.diagonal),
            parameters={key: np.zeros_like(one) for key, one in self.parameters.items()},
        )

    def pull_diagonal(self, cotangent: Array) -> None:
        """Add cotangents of k(x, x)."""
        self.diagonal[...] += cotangent

    def finish(self) -> Array:
        """Pull back through each image's pair with itself; returns the cotangents of all pixels, (N, *grid, C)."""
        for i, bag in enumerate(self.images.bags):
            norms = self.images.norms[i]
            seed, own = _seed(self.graph, self.diagonal[i]), self.squares[i]
            found = pull(self.graph, bag, bag, norms, norms, seed, own, slopes=bool(self.parameters))
            self.pixels[i] += found.sides[0][0] + found.sides[1][0]
            for key, total in self.parameters.items():
                total[i] += found.parameters.get(key, 0.0)
        return self.pixels.reshape(len(self), *self.shape)


def run(
    graph: Graph, left: Bag, right: Bag, left_norms: tuple[Array, ...] | None, right_norms: tuple[Array, ...] | None
) -> tuple[float, tuple[Array, ...]]:
    """The kernel of two bags, for a tangent graph their tangent kernel; without norms, of one bag, and its norms."""
    values = _values(graph, left, right, left_norms, right_norms)
    norms = tuple(diagonal_norms(kernel) for kernel, _ in values) if left_norms is None else ()
    return float(values[-1][1 if graph.tangent else 0][0, 0]), norms


def _values(
    graph: Graph, left: Bag, right: Bag, left_norms: Sequence[Array] | None, right_norms: Sequence[Array] | None
) -> list[tuple[Array, Array]]:
    """Kernels and tangent kernels of two bags at every node; without norms, both are one bag."""
    itself = left_norms is None
    values: list[tuple[Array, Array]] = []
    for node, one in zip(graph.nodes, operations_of(graph), strict=True):
        if isinstance(node, InputNode):
            kernel = inner_products(left, right)
            values.append((kernel, np.zeros_like(kernel)))
        elif isinstance(node, SumNode):
            operation = bags.Sum(node.weights)
            kernels, tangents = zip(*(values[source] for source in node.sources), strict=True)
            values.append((operation.on_kernels(kernels), operation.on_kernels(tangents)))
        else:
            (source,) = node.sources
            kernel, tangent = values[source]
            if isinstance(node, WeightsNode):
                values.append((kernel, tangent + kernel))
                continue
            assert one is not None
            if left_norms is None or right_norms is None:
                a = b = diagonal_norms(kernel)
            else:
                a, b = left_norms[source], right_norms[source]
            after = one.on_tangent(tangent, kernel, a, b, itself=itself) if graph.tangent else tangent
            values.append((one.on_kernel(kernel, a, b), after))
    return values


@dataclass(frozen=True, eq=False)
class Pulled:
    """Cotangents of two bags' features and of their squared norms at every node, and of parameters."""

    sides: tuple[tuple[Array, list[Array]], tuple[Array, list[Array]]]
    parameters: dict[Key, float]


def pull(
    graph: Graph,
    left: Bag,
    right: Bag,
    left_norms: Sequence[Array],
    right_norms: Sequence[Array],
    cotangent: Both,
    diagonals: Sequence[Array] | None = None,
    *,
    slopes: bool = False,
) -> Pulled:
    """Pull the cotangent of a graph's last value back to two bags.

    With `diagonals`, both are one bag, and its squared norms at every node have these cotangents, too. A squared norm
    is a diagonal entry of the bag's kernel with itself, so its cotangent is added to that of the kernel.
    """
    itself = diagonals is not None
    values = _values(graph, left, right, None if itself else left_norms, None if itself else right_norms)
    by: list[Both] = [(np.zeros_like(kernel), np.zeros_like(kernel) if graph.tangent else None) for kernel, _ in values]
    by[-1] = add_both(by[-1], cotangent)
    squares = [[np.zeros_like(norms) for norms in side] for side in (left_norms, right_norms)]
    parameters: dict[Key, float] = {}
    for place in reversed(range(len(graph.nodes))):
        node, operation = graph.nodes[place], operations_of(graph)[place]
        if diagonals is not None:
            own = diagonals[place] + squares[0][place] + squares[1][place]
            by[place] = add_both(
                by[place], (np.diag(own), None if by[place][1] is None else np.zeros_like(by[place][1]))
            )
        sources = [values[source] for source in node.sources]
        scale = np.multiply.outer(*(side[node.sources[0]] for side in (left_norms, right_norms))) if sources else None
        if slopes:
            found_slopes = node_slopes(node, place, by[place], sources, scale)
            add_all(parameters, {key: float(part.sum()) for key, part in found_slopes.items()})
        if isinstance(node, SumNode | WeightsNode):
            parts, _ = pull_node(node, by[place], sources, None)
        elif operation is not None:
            (source,) = node.sources
            part, *found = operation.pullback(
                by[place], values[source], left_norms[source], right_norms[source], itself=itself
            )
            for side, one in zip(squares, found, strict=True):
                side[source] += one
            parts = [part]
        else:
            break  # the images
        for source, part in zip(node.sources, parts, strict=True):
            by[source] = add_both(by[source], part)
    pixels = by[0][0] @ right.features, by[0][0].T @ left.features
    return Pulled(((pixels[0], squares[0]), (pixels[1], squares[1])), parameters)


def _seed(graph: Graph, cotangent: float) -> Both:
    """The cotangent of a graph's last value, which is a matrix of one entry."""
    matrix = np.full((1, 1), cotangent)
    return (np.zeros_like(matrix), matrix) if graph.tangent else (matrix, None)


@functools.lru_cache(maxsize=64)
def operations_of(graph: Graph) -> tuple[Operation | None, ...]:
    """For every node its operation on bags; None for images, sums and layers of weights."""
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
