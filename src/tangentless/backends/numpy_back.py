"""The general path backwards, by NumPy: every node's pullback is an operation on whole arrays, like its value."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bags import Both
from ..graph import EmbedNode, Graph, InputNode, PoolNode, WindowNode
from ..layers import Windows
from ..pullback import add_all, node_slopes, pull_node, spread
from .backward import Back, Place
from .general import NumpyRun, each, own_columns, pooled_rows, readers_of, rows_at, tables_of


class NumpyBack(NumpyRun, Back):
    """A run by NumPy, forwards and back."""

    def __init__(self, graph: Graph, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
        super().__init__(graph, left, right, left_squares, right_squares)
        self.reverse = _reverse(graph)

    @staticmethod
    def accumulate(rows: Any, parts: Sequence[tuple[Any, Any]]) -> None:
        for total, part in parts:
            for k, row in enumerate(rows):
                total[row] += part[k]

    def pull(self, place: int, u: int, cotangent: Both, memo: dict[Place, Both]) -> Sequence[tuple[int, int, Both]]:
        node, reverse = self.graph.nodes[place], self.reverse[place]
        if isinstance(node, InputNode):
            self._pull_pixels(u, cotangent[0])
            return []
        if isinstance(node, WindowNode):
            (source,), (rows, _) = node.sources, node.axes
            axes = replace(rows, count=rows.count - abs(u)), Windows(1, cotangent[0].shape[-1])
            grid = self.graph.nodes[source].grid[0] - abs(u * rows.stride), cotangent[0].shape[-1]
            back = each(lambda g: reverse.columns(spread(g * node.scale, axes, grid), 0), cotangent)
            return [(source, u * rows.stride, back)]
        beside, sources = self.tables[place].beside, self.sources(place, u, memo)
        scale = self.scale(node, u, beside[0]) if isinstance(node, EmbedNode) else None
        if self.slopes:
            slopes = node_slopes(node, place, cotangent, sources, scale)
            add_all(self.parameters, {key: by.reshape(len(by), -1).sum(axis=1) for key, by in slopes.items()})
        same = self.tables[place].same if self.itself and u == 0 else None
        parts, by_scale = pull_node(node, cotangent, sources, scale, same, self.value(place, u, memo)[0])
        if by_scale is not None:
            self._add_scales(place, u, reverse.square(by_scale))
        return [
            (source, u, part if beside[i] is None else each(functools.partial(reverse.columns, source=i), part))
            for i, (source, part) in enumerate(zip(node.sources, parts, strict=True))
        ]

    def spread(self, place: int, node: PoolNode, u: int, pulled: Mapping[int, Both]) -> Both:
        height = self.graph.nodes[node.sources[0]].grid[0] - abs(u)

        def back(which: int) -> Any:
            total: Any = None
            for U, both in pulled.items():
                value = both[which]
                if total is None:
                    total = np.zeros_like(value, shape=(len(value), height, value.shape[2]))
                for part in pooled_rows(node, u, U):
                    total[:, part] += value
            return self.reverse[place].columns(total * node.scale, 0)

        return back(0), back(1) if self.graph.tangent else None

    def output_as_value(self, place: int, cotangent: Both) -> Both:
        def widen(numbers: Any) -> Any:
            wide = np.zeros_like(numbers, shape=(len(numbers), 1, 2))
            wide[:, 0, 0] = numbers
            return wide

        return each(widen, cotangent)

    def squares_as_value(self, place: int, squares: Any) -> Both:
        value = np.zeros_like(self._pooled[place][0][0])
        value[..., own_columns(self.graph, place)] = squares
        return self.with_zero_tangent(value)

    def _pull_pixels(self, u: int, cotangent: Any) -> None:
        square = self.reverse[0].square(cotangent)
        height = self.graph.nodes[0].grid[0]
        left, right = rows_at(height, u), rows_at(height, -u)
        for side in self.sides:
            if side not in self.pixels:
                self.pixels[side] = np.zeros_like(self.left)
            if side == 0:
                self.pixels[0][:, left] += square @ self.right[:, right]
            else:
                self.pixels[1][:, right] += square.swapaxes(-1, -2) @ self.left[:, left]

    def _add_scales(self, place: int, u: int, square: Any) -> None:
        """Add cotangents of logarithms of norms, (pairs, rows, W, W), to the totals of both sides."""
        grid = self.graph.nodes[place].grid
        for side in self.sides:
            if (place, side) not in self.scales:
                self.scales[place, side] = np.zeros((len(square), *grid))
            self.scales[place, side][:, rows_at(grid[0], -u if side else u)] += square.sum(axis=-2 if side else -1)


@dataclass(frozen=True, eq=False)
class _Reverse:
    """A node's table of `general`, transposed."""

    readers: tuple[tuple[NDArray[np.intp], ...], ...]  # for each source: index arrays, whose gathers add up cotangents
    places: NDArray[np.intp]  # (W, W): the index of every pair of columns in the node's list

    def columns(self, cotangent: Any, source: int) -> Any:
        """Cotangents of a source's pairs of columns from those of the node's."""
        first, *others = self.readers[source]
        total = cotangent.take(first, axis=-1)
        for reader in others:
            total += cotangent.take(reader, axis=-1)
        return total

    def square(self, values: Any) -> Any:
        """Values at pairs of columns as matrices (W, W), a row for each column of the left image."""
        return values.take(self.places, axis=-1)


@functools.lru_cache(maxsize=64)
def _reverse(graph: Graph) -> tuple[_Reverse, ...]:
    """The transposed tables of all nodes."""
    tables, found = tables_of(graph), []
    for node, table in zip(graph.nodes, tables, strict=True):
        count, width = len(table.left), node.grid[1]
        places = np.full((width, width), count)
        places[table.left, table.right] = np.arange(count)
        readers = []
        for source, beside in zip(node.sources, table.beside, strict=True):
            reads = [beside[:-1]] if beside is not None else list(table.taps) or [np.arange(count)]
            if isinstance(node, WindowNode | PoolNode) and count == 1:
                reads = [table.taps[0][[k]] for k in range(len(table.taps[0]))]
            # The source's zero column, like pairs with fewer readers than others, gathers the node's zero column.
            gathered = readers_of(reads, len(tables[source].left), count)
            readers.append(tuple(np.pad(gathered, ((0, 0), (0, 1)), constant_values=count)))
        found.append(_Reverse(tuple(readers), places))
    return tuple(found)
