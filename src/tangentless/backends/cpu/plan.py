"""The tables that drive the fused kernel, built once per graph, element type and vector width."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...layers import Normalize
from ..stages import Stage, Step, chain
from . import sweep as columns
from .duals import lower, parameter_table
from .simd import Tag

_LARGEST_GAIN = {"float32": 1e25, "float64": 1e250}  # of one stage's window sums, before they overflow
_LARGEST_SLOTS = 400 << 20  # bytes one thread may hold between stages
_MARGIN = 1
_MOST_TOGETHER = 16  # offsets that take turns
_RINGS_BYTES = 512 << 10  # of all of them: half of a second-level cache


class Plan(NamedTuple):
    """What the fused kernel reads, as numba sees it."""

    stages: NDArray[np.int64]
    steps: NDArray[np.int64]
    table: NDArray[Any]
    scales: NDArray[Any]
    reach: NDArray[np.int64]
    lanes: int
    channels: int
    margin: int
    stride: int
    rings: int
    together: int


class Scratch(NamedTuple):
    """What one thread writes while it sweeps."""

    ring: NDArray[Any]
    line: NDArray[Any]
    slots: NDArray[Any]
    total: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fused:
    """A graph that the fused kernel can run."""

    graph: Graph
    stages: tuple[Stage, ...]  # each with at least one step
    dtype: str
    lanes: int
    plan: Plan
    duals: Tag
    inverse_scales: tuple[float, ...]  # by which the inverse norms of either side are multiplied, for every step
    ring_size: int
    slot_size: int

    @property
    def norm_count(self) -> int:
        """Norms of one image, over all stages."""
        return sum(len(stage.steps) * stage.grid[0] * stage.grid[1] for stage in self.stages)

    def norms_of(self, stage: int) -> slice:
        """Where those of a stage are, each beside its inverse."""
        start = int(self.plan.stages[stage, columns.NORMS])
        height, width = self.stages[stage].grid
        return slice(2 * start, 2 * (start + len(self.stages[stage].steps) * height * width))

    def inverse_scales_of(self, stage: int) -> NDArray[np.float64]:
        """The factors on inverse norms for the steps of a stage, to multiply (N, steps, H, W)."""
        first, count = (int(self.plan.stages[stage, column]) for column in (columns.FIRST_STEP, columns.STEPS))
        return np.array(self.inverse_scales[first : first + count]).reshape(-1, 1, 1)

    @property
    def image_bytes(self) -> int:
        """Bytes of one image while it is computed with."""
        pixels = self.stages[0].grid[0] * self.stages[0].grid[1] * self.graph.channels
        return (pixels + 2 * self.norm_count) * np.dtype(self.dtype).itemsize

    def scratch(self) -> Scratch:
        """Room for one thread, aligned to cache lines."""
        wide = self.stages[0].grid[1]
        return Scratch(
            ring=aligned_zeros((self.ring_size * self.lanes,), self.dtype),
            line=aligned_zeros(((wide + 2) * self.lanes,), self.dtype),
            slots=aligned_zeros((max(1, self.slot_size) * self.lanes,), self.dtype),
            total=aligned_zeros((self.lanes,), "float64"),
        )

    def partial_reach(self, last: int) -> NDArray[np.int64]:
        """Offsets needed of stages 0 to `last` to know the squared norms after the pool of the last one."""
        reach = np.zeros((last + 1, 2), dtype=np.int64)
        needed = np.zeros(2, dtype=np.int64)
        for stage in range(last, -1, -1):
            pool = np.array(self.stages[stage].pool)
            needed = pool * needed + pool - 1
            reach[stage] = np.minimum(needed, np.array(self.stages[stage].grid) - 1)
        return reach

    def total_scale(self) -> float:
        """The factor on the total that gives the inner product after the last pool, for images of their true scale."""
        factor = 1.0 / math.prod(self.stages[-1].pool) ** 2
        for stage, following in zip(self.stages, _tails(self.stages), strict=True):
            if following and not any(_normalizes(one) for one in following):
                factor *= _window_gain(stage)
        return factor


@functools.lru_cache(maxsize=64)
def fuse(graph: Graph, dtype: str, lanes: int) -> Fused | str:
    """The graph for the fused kernel, or the reason why it must take the general path."""
    if graph.tangent:
        return "tangents have a kernel of their own"
    found = chain(graph)
    if isinstance(found, str):
        return found
    stages = tuple(stage if stage.steps else Stage(stage.grid, (Step((1, 1), None),), stage.pool) for stage in found)
    all_steps = [step for stage in stages for step in stage.steps]
    lowered = [lower(step.embedding, dtype) for step in all_steps]
    if any(one is None for one in lowered):
        layer = next(step.embedding for step, one in zip(all_steps, lowered, strict=True) if one is None)
        return f"no fast form is known for {layer}"
    if any(_window_gain(stage) > _LARGEST_GAIN[dtype] for stage in stages):
        return f"a stage sums over more windows than {dtype} can hold"
    forms = [one for one in lowered if one is not None]
    table, starts, duals, kinds = parameter_table(forms, dtype)
    stride = stages[0].grid[1] + 2
    step_rows, rings = _ring_layout(stages, starts, kinds, stride)
    together = max(1, min(_MOST_TOGETHER, _RINGS_BYTES // (rings * lanes * np.dtype(dtype).itemsize)))
    stage_rows, slots = _stage_layout(stages)
    if slots * lanes * np.dtype(dtype).itemsize > _LARGEST_SLOTS:
        return (
            f"its {stages[0].grid[0]}×{stages[0].grid[1]} images need more room between stages than a thread may take"
        )
    plan = Plan(
        stages=stage_rows,
        steps=step_rows,
        table=table,
        scales=np.array([1.0, *map(_pooled_scale, stages[:-1])], dtype=dtype),
        reach=np.array([stage.grid for stage in stages], dtype=np.int64) - 1,
        lanes=lanes,
        channels=graph.channels,
        margin=_MARGIN,
        stride=stride,
        rings=rings,
        together=together,
    )
    inverse_scales = tuple(math.sqrt(one.scale) for one in forms)
    ring_size = together * rings + _MARGIN
    return Fused(graph, stages, dtype, lanes, plan, duals, inverse_scales, ring_size, slots)


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Zeros that start at a cache line: unaligned vectors cost a third of the speed."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(size + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


def _ring_layout(
    stages: tuple[Stage, ...], starts: list[int], kinds: list[int], stride: int
) -> tuple[NDArray[np.int64], int]:
    """The table of steps, and the vectors of an offset's rings, which all stages share: none interrupts another.

    The first row holds zeros, for what lies outside the image.
    """
    rows: list[list[int]] = []
    most = 0
    for stage in stages:
        lag, used = 0, 1
        for step in stage.steps:
            place, reach_height, reach_width = len(rows), step.window[0] // 2, step.window[1] // 2
            lag += reach_height
            ring_rows = 1 << (2 * reach_height + 1).bit_length()
            ring = used * stride + _MARGIN
            rows.append([reach_height, reach_width, kinds[place], starts[place], ring, ring_rows - 1, lag])
            used += ring_rows
        most = max(most, used)
    return np.array(rows, dtype=np.int64), most * stride


def _stage_layout(stages: tuple[Stage, ...]) -> tuple[NDArray[np.int64], int]:
    table = np.zeros((len(stages), columns.STAGE_COLUMNS), dtype=np.int64)
    first = norms = slots = 0
    for i, stage in enumerate(stages):
        table[i] = [*stage.grid, *stage.pool, *stage.pooled, first, len(stage.steps), norms, slots]
        first += len(stage.steps)
        norms += len(stage.steps) * stage.grid[0] * stage.grid[1]
        tall, wide = stage.pooled
        slots += 2 * (2 * wide + 1) * tall * wide
    return table, slots


def _window_gain(stage: Stage) -> float:
    return float(math.prod(math.prod(step.window) for step in stage.steps))


def _pooled_scale(stage: Stage) -> float:
    """The factor on sums out of a pool: their mean, with the growth by window sums taken back to keep numbers small."""
    return 1.0 / (math.prod(stage.pool) ** 2 * _window_gain(stage))


def _normalizes(stage: Stage) -> bool:
    return any(isinstance(step.embedding, Normalize) for step in stage.steps)


def _tails(stages: tuple[Stage, ...]) -> list[tuple[Stage, ...]]:
    return [stages[i + 1 :] for i in range(len(stages))]
