"""Stages: a graph that is a chain, cut at its pools, as the fused kernels run it.

A stage is a run of steps of one resolution (a window sum, then an embedding) that ends with a pool whose windows tile
the grid; the last pool leaves one position. `chain` says why a graph is no such chain.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import EmbedNode, Graph, Pair, PoolNode, WeightsNode, WindowNode, window_sums
from ..layers import Nonlinearity, Normalize, Windows

Array = NDArray[np.float64]
Embedding = Nonlinearity | Normalize | None


@dataclass(frozen=True)
class Step:
    """Sum over a window (1×1: none), then embed (None: not at all)."""

    window: Pair
    embedding: Embedding


@dataclass(frozen=True)
class Stage:
    """Steps on one grid, then a pool whose windows tile it."""

    grid: Pair
    steps: tuple[Step, ...]
    pool: Pair

    @property
    def pooled(self) -> Pair:
        """The grid after the pool."""
        return self.grid[0] // self.pool[0], self.grid[1] // self.pool[1]

    def norms(self, squares: Array) -> Array:
        """Norms before each step's embedding, (N, steps, H, W), from squared norms at the entrance, (N, H, W).

        Window sums and embeddings act on squared norms alone, so within a stage no kernel is needed to know them.
        """
        shape = len(self.steps), *self.grid, len(squares)
        norms = np.empty_like(squares, dtype=np.float64, shape=shape).transpose(3, 0, 1, 2)
        for i, step in enumerate(self.steps):
            squares = window_sums(squares, _centred(step.window, self.grid))
            norms[:, i] = np.sqrt(squares)
            squares = squares if step.embedding is None else step.embedding.squares(squares)
        return norms


@functools.lru_cache(maxsize=256)
def chain(graph: Graph) -> tuple[Stage, ...] | str:
    """The stages of a graph, or the reason why it has none."""
    if graph.nodes[0].grid == (1, 1):
        return "it has no grid"
    if len(graph.outputs) != 1 or not isinstance(graph.nodes[graph.outputs[0]], PoolNode):
        return "it does not end in one pool"
    stages: list[Stage] = []
    steps: list[Step] = []
    window = (1, 1)
    before = graph.nodes[0].grid
    for place in graph.body[1:]:
        node = graph.nodes[place]
        if isinstance(node, WindowNode):
            if node.axes != _centred(_size(node), before) or node.scale != 1.0:
                return "it has strides, dilations, patches or sums"
            if window != (1, 1):
                steps.append(Step(window, None))
            window = _size(node)
        elif isinstance(node, EmbedNode):
            steps.append(Step(window, node.layer))
            window = (1, 1)
        elif isinstance(node, PoolNode):
            if any(windows.size != windows.stride for windows in node.axes) or not _tiles(node, before):
                return "its pools overlap, or leave positions out"
            if window != (1, 1):
                steps.append(Step(window, None))
            stages.append(Stage(before, tuple(steps), _size(node)))
            steps, window = [], (1, 1)
        elif not isinstance(node, WeightsNode):
            return "it has sums"
        before = node.grid
    return tuple(stages)


def _centred(size: Pair, grid: Pair) -> tuple[Windows, Windows]:
    rows, columns = (Windows(k, n, start=-(k // 2)) for k, n in zip(size, grid, strict=True))
    return rows, columns


def _size(node: WindowNode | PoolNode) -> Pair:
    return node.axes[0].size, node.axes[1].size


def _tiles(node: PoolNode, grid: Pair) -> bool:
    return all(w.size * w.count == n for w, n in zip(node.axes, grid, strict=True))
