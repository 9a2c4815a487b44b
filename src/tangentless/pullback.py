"""Gradients of graphs: the part of the backward pass, from kernel entries to images, that all backends share.

A kernel entry depends on inner products of two images, and on squared norms of each image alone. Every backend pulls
back inner products itself. Here are the head, which acts on one number per pair, and squared norms, which belong to one
image. Cotangents of squared norms are collected per image and pulled back once.

The key of a real parameter is the node of its layer and its name, such as (4, "gamma").
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import bags
from .bags import Both
from .errors import ParameterError
from .graph import Axes, EmbedNode, Graph, Node, SumNode, WeightsNode, WindowNode, head_value, tap_range
from .layers import Nonlinearity, Sum

Key = tuple[int, str]  # a node and the name of a parameter of its layer


def check_gradient(graph: Graph, parameters: bool = False) -> None:
    """Refuse graphs with a layer that has no derivative; the error names the layer."""
    if (
        parameters
        and graph.tangent
        and any(not name.startswith("weights") for _, name in parameters_of(graph).values())
    ):
        raise ParameterError("tangent kernels have no gradient by parameters of nonlinearities: leave parameters out")
    for node in graph.nodes:
        if isinstance(node, EmbedNode) and isinstance(node.layer, Nonlinearity):
            node.layer.derivative(np.zeros(1))
            if graph.tangent:
                node.layer.curvature(np.zeros(1))


def parameters_of(graph: Graph) -> dict[str, Key]:
    """The real parameters of an architecture: names such as "3.gaussian.gamma", layers counted in order from 0."""
    found = {}
    for number, (_, layer, place) in enumerate(graph.ends):
        if isinstance(layer, Nonlinearity):
            names = layer.parameters
        else:
            names = tuple(f"weights[{i}]" for i in range(len(layer.weights))) if isinstance(layer, Sum) else ()
        found.update({f"{number}.{layer.name}.{name}": (place, name) for name in names})
    return found


@dataclass(frozen=True, eq=False)
class Cotangents:
    """Results of the head's pullback: cotangents by output node of values and of squared norms, and of parameters."""

    values: dict[int, Both]
    left: dict[int, Any]
    right: dict[int, Any]
    parameters: dict[Key, Any] = field(default_factory=dict)


def pull_head(
    graph: Graph, values: Sequence[Both], left: Sequence[Any], right: Sequence[Any], cotangent: Any, parameters: bool
) -> Cotangents:
    """Pull the cotangents of some kernel entries back to the outputs. All arrays have one shape: a number per entry.

    `values` holds inner products and tangents at the outputs, `left` and `right` the squared norms there.
    """
    found = dict(zip(graph.outputs, values, strict=True))
    known = [dict(zip(graph.outputs, side, strict=True)) for side in (left, right)]
    squares = [graph.squares(side) for side in known]
    scales: dict[int, Any] = {}
    for place in graph.head:
        node = graph.nodes[place]
        if isinstance(node, EmbedNode):
            scales[place] = np.sqrt(squares[0][node.sources[0]]) * np.sqrt(squares[1][node.sources[0]])
        found[place] = head_value(node, [found[source] for source in node.sources], scales.get(place))
    pulled: dict[int, Both] = {len(graph.nodes) - 1: _seed(graph, cotangent)}
    given: tuple[dict[int, Any], ...] = ({}, {})
    slopes: dict[Key, Any] = {}
    for place in reversed(graph.head):
        node, by = graph.nodes[place], pulled.pop(place)
        sources = [found[source] for source in node.sources]
        if parameters:
            add_all(slopes, node_slopes(node, place, by, sources, scales.get(place)))
        parts, by_scale = pull_node(node, by, sources, scales.get(place), after=found[place][0])
        for source, part in zip(node.sources, parts, strict=True):
            pulled[source] = add_both(pulled.get(source), part)
        if by_scale is not None:
            (source,) = node.sources
            for side, some in zip(given, squares, strict=True):
                add_all(side, {source: bags.to_squares(by_scale, some[source])})
    ends = [
        pull_squares(graph, some, side, outputs, slopes if parameters else None)
        for some, side, outputs in zip(squares, given, known, strict=True)
    ]
    return Cotangents({place: pulled[place] for place in graph.outputs if place in pulled}, ends[0], ends[1], slopes)


def pull_head_diagonal(
    graph: Graph, squares: Sequence[Any], tangents: Sequence[Any], cotangent: Any, parameters: bool
) -> Cotangents:
    """As `pull_head`, for k(x, x), (N,). In the result, `left` holds the cotangents of squared norms."""
    known = dict(zip(graph.outputs, squares, strict=True))
    everywhere = graph.squares(known)
    slopes: dict[Key, Any] = {}
    last = len(graph.nodes) - 1
    if not graph.tangent:
        left = pull_squares(graph, everywhere, {last: cotangent}, known, slopes if parameters else None)
        return Cotangents({}, left, {}, slopes)
    found = graph.diagonal_values(everywhere, tangents)
    pulled: dict[int, Both] = {last: _seed(graph, cotangent)}
    given: dict[int, Any] = {}
    for place in reversed(graph.head):
        node, (by_square, by_tangent) = graph.nodes[place], pulled.pop(place)
        sources = [found[source] for source in node.sources]
        scale = everywhere[node.sources[0]]
        add_all(given, {place: by_square})
        by = np.zeros_like(by_square), by_tangent
        if parameters:
            add_all(slopes, node_slopes(node, place, by, sources, scale))
        parts, by_scale = pull_node(node, by, sources, scale, same=True)
        if by_scale is not None:  # on the diagonal, the inner product and `scale` are both the squared norm
            total = by_scale + parts[0][0] * scale
            add_all(given, {node.sources[0]: 2.0 * bags.to_squares(total, scale)})
            parts = [(np.zeros_like(by_square), parts[0][1])]
        for source, part in zip(node.sources, parts, strict=True):
            pulled[source] = add_both(pulled.get(source), part)
    values = {}
    for place in (place for place in graph.outputs if place in pulled):
        add_all(given, {place: pulled[place][0]})
        values[place] = np.zeros_like(cotangent), pulled[place][1]
    left = pull_squares(graph, everywhere, given, known, slopes if parameters else None)
    return Cotangents(values, left, {}, slopes)


def pull_node(
    node: Node, cotangent: Both, sources: Sequence[Both], scale: Any, same: Any = None, after: Any = None
) -> tuple[list[Both], Any]:
    """Backwards through `head_value`: cotangents of the sources, and of the logarithm of `scale` (None if unused)."""
    kernel, tangent = cotangent
    if isinstance(node, WindowNode):
        return [(kernel * node.centre, None if tangent is None else tangent * node.centre)], None
    if isinstance(node, WeightsNode):
        return [(kernel if tangent is None else kernel + tangent, tangent)], None
    if isinstance(node, SumNode):
        return bags.Sum(node.weights).pullback(cotangent), None
    assert isinstance(node, EmbedNode), node
    pulled, by_scale = node.layer.embedding().pull_values(cotangent, sources[0], scale, same, after)
    return [pulled], by_scale


def node_slopes(node: Node, place: int, cotangent: Both, sources: Sequence[Both], scale: Any) -> dict[Key, Any]:
    """Cotangents of the parameters of a node, for each element; in a tangent graph, those of sums only."""
    kernel, tangent = cotangent
    if isinstance(node, SumNode):
        terms = [kernel * k + (0.0 if tangent is None else tangent * t) for k, t in sources]
        return {(place, f"weights[{i}]"): term for i, term in enumerate(terms)}
    if not isinstance(node, EmbedNode) or not isinstance(node.layer, Nonlinearity):
        return {}
    layer, found = node.layer, {}
    for name in layer.parameters:
        embedding = bags.Embed(functools.partial(layer.parameter_slope, name))
        found[place, name] = kernel * embedding.on_values(sources[0][0], scale)
    return found


def pull_squares(
    graph: Graph,
    squares: Sequence[Any],
    given: Mapping[int, Any],
    known: Mapping[int, Any],
    slopes: dict[Key, Any] | None = None,
) -> dict[int, Any]:
    """Pull cotangents of squared norms back to the `known` nodes, from the nodes where they are `given`.

    `squares` holds the squared norms at all nodes. Cotangents of parameters, (N,) each, are added to `slopes`.
    """
    pulled, found = dict(given), {}
    for place in reversed(range(len(graph.nodes))):
        if place not in pulled:
            continue
        node, by = graph.nodes[place], pulled.pop(place)
        if place in known:
            found[place] = by
            continue
        if slopes is not None and isinstance(node, SumNode):
            for i, source in enumerate(node.sources):
                add_all(slopes, {(place, f"weights[{i}]"): (by * squares[source]).reshape(len(by), -1).sum(axis=1)})
        if slopes is not None and isinstance(node, EmbedNode) and isinstance(node.layer, Nonlinearity):
            for name in node.layer.parameters:
                change = node.layer.gain_slope(name) * squares[node.sources[0]]
                add_all(slopes, {(place, name): (by * change).reshape(len(by), -1).sum(axis=1)})
        for source, part in _pull_square(graph, node, by):
            add_all(pulled, {source: part})
    return found


def _pull_square(graph: Graph, node: Node, by: Any) -> Iterator[tuple[int, Any]]:
    (first, *_) = node.sources
    if isinstance(node, WindowNode):
        yield first, by * node.centre if by.ndim == 1 else spread(by * node.scale, node.axes, graph.nodes[first].grid)
    elif isinstance(node, EmbedNode):
        if isinstance(node.layer, Nonlinearity):
            yield first, by * node.layer.gain()
    elif isinstance(node, SumNode):
        for source, weight in zip(node.sources, node.weights, strict=True):
            yield source, by * weight
    else:
        assert isinstance(node, WeightsNode), node
        yield first, by


def spread(values: Any, axes: Axes, grid: tuple[int, int]) -> Any:
    """The transpose of `window_sums`: add the value of every window to all its positions inside the grid."""
    for axis, windows, length in zip((-2, -1), axes, grid, strict=True):
        total = np.zeros_like(values, shape=(*values.shape[:axis], length, *values.shape[values.ndim + axis + 1 :]))
        rows, sums = np.moveaxis(total, axis, 0), np.moveaxis(values, axis, 0)
        for tap in windows.positions(0):
            first, last = tap_range(windows, tap, length)
            if first < last:
                begin = first * windows.stride + tap
                rows[begin : begin + (last - first - 1) * windows.stride + 1 : windows.stride] += sums[first:last]
        values = total
    return values


def add_all(total: dict[Any, Any], parts: Mapping[Any, Any]) -> None:
    """Add `parts` to `total`, key by key."""
    for key, part in parts.items():
        total[key] = part if key not in total else total[key] + part


def add_both(total: Both | None, part: Both) -> Both:
    """The sum of cotangents of kernel and tangent kernel; a `total` of None counts as zero."""
    if total is None:
        return part
    return total[0] + part[0], None if part[1] is None else total[1] + part[1]


def _seed(graph: Graph, cotangent: Any) -> Both:
    """The cotangents of kernel and tangent kernel at the last node."""
    return (np.zeros_like(cotangent), cotangent) if graph.tangent else (cotangent, None)
