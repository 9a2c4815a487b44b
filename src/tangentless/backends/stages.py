"""Stages: a graph that is a chain, cut at its pools, as the fused kernels run it.

A stage is a run of steps of one resolution (a window sum, then an embedding) that ends with a pool whose windows tile
the grid; the last pool leaves one position. `chain` says why a graph is no such chain.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Axes, Graph, Pair, window_sums
from ..layers import Windows
from .segments import Embedding, Segment, Term, cut

Array = NDArray[np.float64]


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
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    stages = [_stage(segment) for segment in segments]
    if any(stage is None for stage in stages):
        return "it is no plain chain: it has strides, dilations, patches, sums, or pools that leave positions out"
    return tuple(stage for stage in stages if stage is not None)


def _stage(segment: Segment) -> Stage | None:
    """A segment as a stage, if it is a chain of centred windows before one pool that tiles its grid."""
    steps, value = [], 0
    for number, step in enumerate(segment.steps):
        size = _size(step.terms[0].axes)
        if step.terms != (Term(value, _centred(size, segment.grid)),):
            return None
        steps.append(Step(size, step.embedding))
        value = segment.sum_of(number) + (step.embedding is not None)
    (first, *others) = segment.exits
    tiled = tuple(n * p for n, p in zip(first.grid, first.size, strict=True)) == segment.grid
    fits = not others and segment.entrances == 1 and first.value == value and first.size == first.stride and tiled
    return Stage(segment.grid, tuple(steps), first.size) if fits else None


def _centred(size: Pair, grid: Pair) -> Axes:
    rows, columns = (Windows(k, n, start=-(k // 2)) for k, n in zip(size, grid, strict=True))
    return rows, columns


def _size(axes: Axes) -> Pair:
    return axes[0].size, axes[1].size
