"""Convolutional tangent kernels on the processor: all stages of a pair in float64, right images in lanes, on all cores.

What each image has alone comes from its pair with itself, a stage at a time: squared norms at the entrance of every
stage, and the diagonal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...forms import TOLERANCE, lower, lower_slope
from ...graph import Graph
from ...layers import Normalize
from .. import Advance
from ..segments import Embedding
from ..stages import Stage, chain
from ..workers import run_parallel
from .compiling import compiling
from .plan import aligned_zeros
from .simd import Tag, lanes_tag

Array = NDArray[np.float64]
Side = tuple[Array, Array, Array]  # pixels, which only the first stage has, norms before every step, and their inverses
_SMALLEST_NORM = 1e-145  # below, the inverse of a product of two would overflow: such a patch counts as black
_LARGEST_ROOM = 1 << 29  # bytes between stages that a thread may take
_TILE_BYTES = 32 << 20  # expanded images of one side of a block


@dataclass(frozen=True, eq=False)
class Plan:
    """A graph as the compiled stages read it."""

    graph: Graph
    stages: tuple[Stage, ...]
    lanes: int
    embeddings: Tag
    table: Array
    shapes: tuple[NDArray[np.int64], ...]
    steps: tuple[NDArray[np.int64], ...]

    @property
    def image_numbers(self) -> int:
        """What an expanded image takes."""
        norms = sum(len(stage.steps) * math.prod(stage.grid) for stage in self.stages)
        return math.prod(self.graph.grid) * self.graph.channels + 2 * norms

    def scratch(self) -> tuple[Array, list[Array]]:
        """Room for one thread: planes of an offset, and what every pool collects."""
        first = self.stages[0]
        planes = aligned_zeros((4 * math.prod(first.grid) * self.lanes,), "float64")
        pools = [aligned_zeros((2, math.prod(one.pooled) ** 2 * self.lanes), "float64") for one in self.stages]
        return planes, pools


@dataclass(frozen=True, eq=False)
class TangentImages:
    """Images with the squared norms at the entrance of every stage and after the last pool, and the diagonal."""

    plan: Plan
    images: NDArray[Any]
    squares: tuple[Array, ...]  # for every stage, (N, H, W)
    totals: Array  # (N,)
    diagonal: Array  # (N,)

    @property
    def lanes(self) -> int:
        """Images of the right side that are computed together, whether they are there or not."""
        return self.plan.lanes

    @property
    def tile(self) -> int:
        fitting = _TILE_BYTES // (8 * max(1, self.plan.image_numbers))
        return int(min(1024, max(32, fitting // 32 * 32)))

    def __len__(self) -> int:
        return len(self.totals)

    def __getitem__(self, part: slice) -> TangentImages:
        squares = tuple(one[part] for one in self.squares)
        return TangentImages(self.plan, self.images[part], squares, self.totals[part], self.diagonal[part])


def prepare_tangent(plan: Plan, images: NDArray[Any], n_jobs: int) -> TangentImages:
    """Squared norms and the diagonal, from each image's pair with itself."""
    lanes = plan.lanes
    squares = [np.empty((len(images), *stage.grid)) for stage in plan.stages]
    totals, tangents = np.empty(len(images)), np.zeros(len(images))

    def work(part: slice, scratch: Any) -> int:
        found, totals[part], tangents[part] = _alone(plan, images[part], scratch)
        for all_squares, some in zip(squares, found, strict=True):
            all_squares[part] = some
        return 0

    parts = (slice(start, min(start + lanes, len(images))) for start in range(0, len(images), lanes))
    compiling(lambda: run_parallel(parts, work, plan.scratch, n_jobs, None))
    return TangentImages(plan, images, tuple(squares), totals, plan.graph.head_tangent_diagonal([totals], [tangents]))


def tangent_block(
    left: TangentImages, right: TangentImages, n_jobs: int, *, upper: bool, advance: Advance | None
) -> Array:
    """Entries between two prepared sets."""
    plan = left.plan
    lanes, tag = plan.lanes, lanes_tag("float64", plan.lanes, paired=False)
    rows, columns = _expand(left), _expand(right)
    starts = range(0, len(right), lanes)
    blocks = [[_in_lanes(stage, slice(start, start + lanes), lanes) for stage in columns] for start in starts]
    values = np.zeros((2, len(left), len(blocks) * lanes))  # what is not asked for stays zero, and has a head too

    def work(task: tuple[int, int], scratch: Any) -> int:
        row, block = task
        sides = zip([_row(stage, row) for stage in rows], blocks[block], strict=True)
        for place, side in enumerate(sides):
            _run(plan, tag, place, *side, scratch)
        values[:, row, block * lanes : (block + 1) * lanes] = scratch[1][-1]
        begin = max(block * lanes, row) if upper else block * lanes
        return max(0, min((block + 1) * lanes, len(right)) - begin)

    run_parallel(_tasks(len(left), len(right), lanes, upper), work, plan.scratch, n_jobs, advance)
    kernel, tangent = values[:, :, : len(right)] * _mean(plan.stages[-1])
    return plan.graph.apply_tangent_head([kernel], [tangent], [left.totals], [right.totals])


@functools.lru_cache(maxsize=64)
def plan_tangent(graph: Graph, lanes: int) -> Plan | None:
    """The graph for the compiled stages, or None where they cannot run it."""
    stages = chain(graph)
    if isinstance(stages, str):
        return None
    lowered = [[one for step in stage.steps if (one := _lower(step.embedding))] for stage in stages]
    if any(len(some) < len(stage.steps) for some, stage in zip(lowered, stages, strict=True)):
        return None
    flat = [one for stage in lowered for one in stage]
    kinds = sorted({kind for kind, _ in flat}) or [("linear",)]
    starts = iter(np.cumsum([0, *(len(parameters) for _, parameters in flat)]).tolist())
    steps = tuple(
        np.array(
            [
                (step.window[0] // 2, step.window[1] // 2, kinds.index(kind), next(starts))
                for step, (kind, _) in zip(stage.steps, some, strict=True)
            ],
            dtype=np.int64,
        ).reshape(-1, 4)
        for stage, some in zip(stages, lowered, strict=True)
    )
    shapes = tuple(np.array([*stage.grid, *stage.pool, graph.channels]) for stage in stages)
    table = np.array([p for _, parameters in flat for p in parameters] + [0.0])
    room = sum(16 * lanes * math.prod(stage.pooled) ** 2 for stage in stages)
    if room > _LARGEST_ROOM:
        return None
    return Plan(graph, stages, lanes, Tag(("tangents", *kinds)), table, shapes, steps)


def _lower(embedding: Embedding) -> tuple[tuple[Any, ...], tuple[float, ...]] | None:
    """The kind of an embedding, with the lengths of its polynomials, and its parameters; None if it has no form."""
    if embedding is None:
        return ("linear",), ()
    if isinstance(embedding, Normalize):
        return ("cosine",), ()
    form, tolerance = embedding.form(), TOLERANCE["float64"]
    value, slope = (None if form is None else one(form, tolerance) for one in (lower, lower_slope))
    if value is None or slope is None:
        return None
    lengths = len(value.coefficients), len(slope.coefficients)
    straight = (value.linear, value.arc) if value.kind == "arc" else ()
    return (value.kind, *lengths), (*straight, *value.coefficients, *slope.coefficients)


def _alone(plan: Plan, images: NDArray[Any], scratch: Any) -> tuple[list[Array], Array, Array]:
    """Squared norms at the entrance of every stage, after the last pool, and tangents there, of at most a vector."""
    lanes, count = plan.lanes, len(images)
    tag = lanes_tag("float64", lanes, paired=True)
    pixels = _pixels(images)
    entrance = np.sum(pixels.reshape(count, *plan.stages[0].grid, -1) ** 2, axis=-1)
    squares = []
    for place, stage in enumerate(plan.stages):
        squares.append(entrance)
        side = _in_lanes(_side(stage, pixels if place == 0 else pixels[:, :0], entrance), slice(0, lanes), lanes)
        _run(plan, tag, place, side, side, scratch, itself=True)
        collected = scratch[1][place].reshape(2, math.prod(stage.pooled), -1, lanes) * _mean(stage)
        entrance = np.einsum("iil->li", collected[0])[:count].reshape(count, *stage.pooled)
    return squares, entrance.reshape(count), collected[1, 0, 0, :count]


def _run(plan: Plan, tag: Tag, place: int, left: Side, right: Side, scratch: Any, itself: bool = False) -> None:
    """One stage, from what the pool before it has collected to what its own does."""
    from .tangent_sweep import run_stage

    planes, pools = scratch
    entrance, scale = (pools[place - 1], _mean(plan.stages[place - 1])) if place else (pools[0][:, :0], 1.0)
    pools[place][:] = 0.0
    of_stage = (plan.shapes[place], plan.steps[place], plan.table)
    run_stage(tag, plan.embeddings, *of_stage, left, right, entrance, np.array([scale]), planes, pools[place], itself)


def _mean(stage: Stage) -> float:
    """What turns a pool's sums into means."""
    return 1.0 / math.prod(stage.pool) ** 2


def _expand(images: TangentImages) -> list[Side]:
    """For every stage, rows as it reads them."""
    pixels = _pixels(images.images)
    return [
        _side(stage, pixels if place == 0 else pixels[:, :0], squares)
        for place, (stage, squares) in enumerate(zip(images.plan.stages, images.squares, strict=True))
    ]


def _side(stage: Stage, pixels: Array, squares: Array) -> Side:
    norms = stage.norms(squares).reshape(len(squares), -1)
    norms[norms < _SMALLEST_NORM] = 0.0
    return pixels, norms, np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def _row(side: Side, row: int) -> Side:
    pixels, norms, inverses = (np.ascontiguousarray(one[row]) for one in side)
    return pixels, norms, inverses


def _in_lanes(side: Side, part: slice, lanes: int) -> Side:
    """Some rows as columns, the last one repeated to fill the lanes."""
    pixels, norms, inverses = (_columns(one[part], lanes) for one in side)
    return pixels, norms, inverses


def _columns(rows: Array, lanes: int) -> Array:
    laid_out = aligned_zeros((rows.shape[1], lanes), "float64")
    laid_out[:, : len(rows)] = rows.T
    laid_out[:, len(rows) :] = rows[-1][:, None]
    return laid_out.reshape(-1)


def _pixels(images: NDArray[Any]) -> Array:
    return np.ascontiguousarray(images, dtype=np.float64).reshape(len(images), -1)


def _tasks(rows: int, columns: int, lanes: int, upper: bool) -> Iterator[tuple[int, int]]:
    """(row, block of columns), without those left of the diagonal where only the others are asked for."""
    for block in range(-(-columns // lanes)):
        for row in range(min(rows, (block + 1) * lanes) if upper else rows):
            yield row, block
