"""Fused gradients of chains: stages of windows, closed-form duals and a pool, right images in lanes, on all cores.

A task is a few left images against a vector of right ones. The fused kernel runs them forwards and keeps what enters
each stage; from that, `back_sweep` computes the gradients of these pairs. They are added to the totals of the images in
the order of the tasks. Images are prepared as for the fused kernel, with scales and squared norms at the entrance of
every stage. They are divided by their scales, which chains allow, so that float32 can hold all numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...chunks import spans
from ...forms import TOLERANCE, Arc, lower, lower_slope
from ...graph import Graph
from ...layers import Normalize
from ...pullback import check_gradient, pull_head_diagonal
from .. import Advance
from ..backward import InOrder
from ..chains import powers_of_two, pull_norms, pull_totals
from ..segments import Embedding, Segment, chain
from ..workers import run_parallel
from .compiling import compiling
from .plan import Fused, addresses, aligned_zeros, expand, in_lanes, normalized, pixel_squares
from .simd import Tag, lanes_tag

Array = NDArray[np.float64]
_POOL_BYTES = 48 << 20  # of the values of pools of all left images of one task
_MOST_ROWS = 16  # left images of one task
_LARGEST_POOLS = 1 << 28  # bytes of the same for one left image; with more, the general path is taken
_SMALLEST_NORM = {"float32": 1e-18, "float64": 1e-145}  # of a patch, relative to its image; a smaller one counts as 0
_BAND = 8  # neighbouring offsets v that take turns: they read, and add to, nearly the same rows of either image
_PAIRS, _ALONE = range(2)  # variants of compiled code: pairs of images, and images with themselves


@dataclass(frozen=True, eq=False)
class Plan:
    """A chain as the compiled sweep reads it."""

    fused: Fused
    stages: tuple[Segment, ...]
    kinds: tuple[Tag, ...]  # of the embeddings of all steps
    table: NDArray[Any]  # the parameters of these embeddings
    scales: NDArray[Any]  # factors on the sums at the exit of every stage
    stage_table: NDArray[np.int64]  # columns: HEIGHT to POOL_PLACE of `back_leaves`
    step_table: NDArray[np.int64]  # columns: REACH_HEIGHT to NORM_PLACE

    @property
    def graph(self) -> Graph:
        return self.fused.graph

    @functools.cached_property
    def pooled(self) -> int:
        """Vectors of the values of all pools."""
        return sum(math.prod(stage.exits[0].grid) ** 2 for stage in self.stages)

    @functools.cached_property
    def norm_count(self) -> int:
        """Norms of one image."""
        return sum(len(stage.steps) * math.prod(stage.grid) for stage in self.stages)

    @property
    def line(self) -> int:
        """Vectors in a row of a ring."""
        return self.stages[0].grid[1] + 1

    @property
    def band_rings(self) -> int:
        """Rings of one offset: of n steps, 2 n between phases, and 2 (n - 1) of slopes and bends, all but the last."""
        return max(1, 4 * max(len(stage.steps) for stage in self.stages) - 2)

    @functools.cached_property
    def ring_rows(self) -> int:
        """Rows of a ring, a power of two.

        A ring between phases holds the rows of a window, 2 reach + 1. Slopes and bends wait while rows pass through the
        windows of all later steps, forwards and back.
        """
        reaches = [[step.window[0] // 2 for step in stage.steps] for stage in self.stages]
        longest = max(max([0, sum(some[1:]), *some]) for some in reaches)
        return 1 << (2 * longest).bit_length()

    @property
    def pixel_count(self) -> int:
        """Pixels of one image, all channels."""
        return math.prod(self.stages[0].grid) * self.graph.channels

    @property
    def rows(self) -> int:
        """Left images of one task."""
        return max(1, min(_MOST_ROWS, _POOL_BYTES // (self.pooled * self.fused.lanes * self.table.itemsize)))


@functools.lru_cache(maxsize=64)
def plan_back(fused: Fused) -> Plan | None:
    """The plan of a graph, or None if its gradients must take the general path."""
    stages = chain(fused.graph)
    if isinstance(stages, str):
        return None
    kinds: list[Tag] = []
    stage_rows: list[tuple[int, ...]] = []
    step_rows: list[tuple[int, ...]] = []
    table: list[float] = []
    norms = pooled = 0
    for stage in stages:
        first = len(step_rows)
        for step in stage.steps:
            lowered = _lower(step.embedding, fused.dtype)
            if lowered is None:
                return None
            kind, parameters = lowered
            kinds.append(Tag(("back", *kind)))
            step_rows.append((step.window[0] // 2, step.window[1] // 2, len(table), norms))
            table += parameters
            norms += math.prod(stage.grid)
        stage_rows.append((*stage.grid, *stage.pool, first, len(step_rows), pooled))
        pooled += math.prod(stage.exits[0].grid) ** 2
    if pooled * fused.lanes * np.dtype(fused.dtype).itemsize > _LARGEST_POOLS:
        return None
    scales = [fused.exit_scale(i, segment.exits[0]) for i, segment in enumerate(fused.segments)]
    steps = np.array(step_rows, dtype=np.int64).reshape(-1, 4)
    return Plan(
        fused,
        stages,
        tuple(kinds),
        np.array([*table, 0.0], fused.dtype),
        np.array(scales, fused.dtype),
        np.array(stage_rows, dtype=np.int64),
        steps,
    )


def _lower(embedding: Embedding, dtype: str) -> tuple[tuple[Any, ...], tuple[float, ...]] | None:
    """The kind of an embedding, with the lengths of its polynomials, and its parameters; None if it has no form."""
    if embedding is None:
        return ("linear",), ()
    if isinstance(embedding, Normalize):
        return ("cosine",), ()
    form = embedding.form()
    tolerance = TOLERANCE[dtype] * (0.1 if dtype == "float32" else 1.0)
    value, slope = (None if form is None else one(form, tolerance) for one in (lower, lower_slope))
    if value is None or slope is None:
        return None
    if isinstance(form, Arc):
        return ("arc", len(slope.coefficients), form == Arc()), (form.linear, form.arc, *slope.coefficients)
    lengths = len(value.coefficients), len(slope.coefficients)
    return (value.kind, *lengths), (*value.coefficients, *slope.coefficients)


@dataclass(frozen=True, eq=False)
class FusedGradient:
    """Prepared images, and their cotangents so far."""

    plan: Plan
    images: Any  # FusedImages
    n_jobs: int
    wanted: bool
    found: Array  # (N, pixels and norms), of normalised pixels, then of the logarithms of norms
    squares: Array  # (N,), of squared norms at the output
    diagonal: Array  # (N,), of k(x, x)
    tile: ClassVar[int] = 256

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def parameters(self) -> dict[Any, Any]:
        """Empty: gradients by parameters take the general path."""
        return {}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, part: slice) -> FusedGradient:
        return replace(
            self,
            images=self.images[part],
            found=self.found[part],
            squares=self.squares[part],
            diagonal=self.diagonal[part],
        )

    def unwanted(self) -> FusedGradient:
        """The same images, of which no cotangents are wanted."""
        return replace(self, wanted=False)

    def pull_diagonal(self, cotangent: Array) -> None:
        """Add cotangents of k(x, x)."""
        self.diagonal[...] += cotangent

    def finish(self) -> Array:
        """Pull back through each image's pair with itself; returns the cotangents of all pixels, (N, *grid, C)."""
        plan, lanes = self.plan, self.plan.fused.lanes
        squares = self.squares + pull_head_diagonal(
            self.graph, [self.images.totals], [], self.diagonal, parameters=False
        ).left.get(self.graph.outputs[0], 0.0)
        if not self.graph.scale_free:
            squares = squares * self.images.scales**2
        squares = squares * plan.fused.total_scale()
        pixels = np.empty((len(self), plan.pixel_count))

        def work(part: slice, space: _Workspace) -> int:
            pixels[part] = _pull_alone(self, part, squares[part], space)
            return 0

        _code_of(plan, _ALONE)
        run_parallel(spans(len(self), lanes), work, lambda: _Workspace(plan, 1, _ALONE), self.n_jobs, None)
        scales = np.where(self.images.scales > 0, self.images.scales, 1.0)
        return (pixels / scales[:, None]).reshape(self.images.images.shape)


def fused_gradient(plan: Plan, images: Any, n_jobs: int, wanted: bool) -> FusedGradient:
    """Prepared images with all cotangents zero."""
    check_gradient(plan.graph)
    found = np.zeros((len(images), plan.pixel_count + plan.norm_count))
    return FusedGradient(plan, images, n_jobs, wanted, found, np.zeros(len(images)), np.zeros(len(images)))


def pull_fused(
    left: FusedGradient, right: FusedGradient, cotangent: Array, *, upper: bool, advance: Advance | None
) -> None:
    """Pull back the cotangents (n, m) of the entries between two sets, and add the results to both."""
    plan, graph = left.plan, left.graph
    lanes = plan.fused.lanes
    near, far = ((*expand(side.images), *_expand(plan, side.images)) for side in (left, right))
    blocks = list(zip(*(in_lanes(one, plan.fused) for one in far), strict=True))

    def add(parts: tuple[slice, slice], found: Any) -> None:
        for side, part, (numbers, squares) in zip((left, right), parts, found, strict=True):
            if side.wanted:
                side.found[part] += numbers
                side.squares[part] += squares

    order = InOrder(add)

    def work(task: tuple[int, tuple[int, int, int]], space: _Workspace) -> int:
        number, (first, end, block) = task
        columns = slice(block * lanes, min((block + 1) * lanes, len(right)))
        rows, others = left.images[first:end], right.images[columns]
        parts, count = (slice(first, end), columns), len(others)
        by = cotangent[parts]
        wanted = np.any(by, axis=1).astype(np.int64)
        if not wanted.any():
            order.put(number, parts, space.nothing(len(rows), count))
            return len(rows) * count
        space.set_right(*blocks[block])
        totals = space.run_forward(near[:2], first, end)
        factor = np.full((len(rows), count), plan.fused.total_scale())
        if not graph.scale_free:
            factor *= np.multiply.outer(rows.scales, others.scales)
        seeds = np.zeros_like(totals)
        seeds[:, :count], by_near, by_far = pull_totals(
            graph, totals[:, :count], factor, rows.totals, others.totals, by
        )
        top = powers_of_two(np, seeds.reshape(1, -1))
        space.pooled[: len(rows), -lanes:] = seeds / top
        out = np.zeros((len(rows), plan.pixel_count + plan.norm_count))
        space.pull((0, len(plan.stages)), near[2:], first, end, wanted.ctypes.data, out.ctypes.data)
        beside = space.right_found.reshape(-1, lanes).T[:count].astype(np.float64)
        order.put(number, parts, ((out * top, by_near.sum(axis=1)), (beside * top, by_far.sum(axis=0))))
        return len(rows) * count

    tasks = enumerate(_tasks(plan, len(left), len(right), upper))
    _code_of(plan, _PAIRS)  # compiles in this thread, before several of them ask for it
    run_parallel(tasks, work, lambda: _Workspace(plan, plan.rows, _PAIRS), left.n_jobs, None)
    if advance is not None:
        advance(len(left) * (len(left) - 1) // 2 if upper else cotangent.size)


@functools.lru_cache(maxsize=64)
def _code_of(plan: Plan, which: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """The table of steps with the addresses of their leaves, and those of all other leaves; compiles all of them."""
    from . import back_leaves as f
    from .back_sweep import compile_driver
    from .simd import leaf
    from .tables import tables_of

    tables_of(plan.fused, kept=True)
    plain, own = (lanes_tag(plan.fused.dtype, plan.fused.lanes, paired) for paired in (False, which == _ALONE))
    colours, several = plan.graph.channels == 3, len(plan.stages) > 1
    counts = [len(stage.steps) for stage in plan.stages]
    turns = {end - 1 for end in plan.stage_table[:, f.END_STEP].tolist()}

    def compile_all() -> tuple[NDArray[np.int64], tuple[int, ...]]:
        steps = [[*row, 0, 0] for row in plan.step_table.tolist()]
        for i, (row, kind) in enumerate(zip(steps, plan.kinds, strict=True)):
            place, make = (f.TURN_LEAF, f.turn) if i in turns else (f.EMBED_LEAF, f.embed_row)
            row[place] = leaf(make, own, kind).address
        others: list[tuple[bool, Any]] = [
            (counts[0] > 0, (f.enter_pixels, own, colours)),
            (several, (f.enter_pooled, plain)),
            (min(counts) == 0, (f.spread, plain)),
            (max(counts) > 1, (f.pull_row, plain)),
            (True, (f.leave_pixels, own, colours)),
            (several, (f.leave_pooled, plain)),
            (which == _PAIRS, (f.gather, plain)),
        ]
        compile_driver()
        return np.array(steps, np.int64), tuple(leaf(*one).address if needed else 0 for needed, one in others)

    return compiling(compile_all)


def _tasks(plan: Plan, rows: int, columns: int, upper: bool) -> Iterator[tuple[int, int, int]]:
    """Tasks (first row, end row, block of columns), row by row; with `upper`, those that touch the upper triangle."""
    for first in range(0, rows, plan.rows):
        for block in range(-(-columns // plan.fused.lanes)):
            if not upper or (block + 1) * plan.fused.lanes > first:
                yield first, min(first + plan.rows, rows), block


def _pull_alone(gradient: FusedGradient, part: slice, squares: Array, space: _Workspace) -> Array:
    """Cotangents (n, pixels) of the pixels of n images, at most a vector of them.

    They are those of pairs, plus what comes from norms: from their logarithms, and from `squares` (n,), the cotangents
    of squared norms at the output. Squared norms at the entrance of a stage are entries of the pool before it, between
    each image and itself, so stages are pulled back one by one.
    """
    plan, images = gradient.plan, gradient.images[part]
    lanes, count, last = plan.fused.lanes, len(images), len(plan.stages) - 1
    sides = tuple(in_lanes(one, plan.fused)[:1] for one in (*expand(images), *_expand(plan, images)))
    space.set_right(*(one[0] for one in sides))
    space.left_found[:] = 0
    space.run_forward(sides[:2], 0, 1)
    cotangents = space.pooled.reshape(-1, lanes)
    cotangents[-1] = 0
    entrances = _entrances(plan, images)
    pixels, norms = np.split(gradient.found[part], [plan.pixel_count], axis=1)
    by, end, top = squares.reshape(count, 1), plan.norm_count, powers_of_two(np, squares, gradient.found[part])

    def own(first: int, end: int) -> Array:
        """Cotangents from these pairs of the numbers [first, end) of an image, pixels then norms, both sides added."""
        both = space.left_found.reshape(-1, lanes)[first:end] + space.right_found.reshape(-1, lanes)[first:end]
        return np.asarray(both.T[:count] * top[:, None], dtype=np.float64)

    for place in reversed(range(last + 1)):
        stage = plan.stages[place]
        positions, start = math.prod(stage.exits[0].grid), int(plan.stage_table[place, -1])
        cotangents[start : start + positions, :count] += (by.T / top).astype(cotangents.dtype)
        space.pull((place, place + 1), sides[2:], 0, 1)
        begin = end - len(stage.steps) * math.prod(stage.grid)
        scales = norms[:, begin:end] + own(plan.pixel_count + begin, plan.pixel_count + end)
        by_step = scales.reshape(count, len(stage.steps), *stage.grid)
        by = pull_norms(stage, entrances[place], {i: by_step[:, i] for i in range(len(stage.steps))}).reshape(count, -1)
        by = by * float(plan.scales[place - 1]) if place else by
        end = begin
    lengths = 2.0 * _pixels(images).reshape(count, -1, plan.graph.channels) * by[:, :, None]
    total: Array = pixels + own(0, plan.pixel_count) + lengths.reshape(count, -1)
    return total


class _Workspace:
    """Memory of one thread: rings, values of the pools of some left images, later their cotangents, and results."""

    def __init__(self, plan: Plan, rows: int, which: int) -> None:
        from . import back_leaves as f
        from .back_sweep import View
        from .tables import Scratch, tables_of

        lanes, dtype, count = plan.fused.lanes, plan.fused.dtype, plan.pixel_count + plan.norm_count
        self.plan = plan
        self.rings = aligned_zeros((1 + _BAND * plan.ring_rows * plan.band_rings + 3, plan.line, lanes), dtype)
        self.pooled = aligned_zeros((rows, plan.pooled * lanes), dtype)
        self.scratch = Scratch(tables_of(plan.fused, kept=True)[which], plan.fused.needed(len(plan.stages) - 1))
        self.scratch.keep(self.pooled)
        self.left_found, self.right_found = (aligned_zeros((count * lanes,), dtype) for _ in range(2))
        self.row_bytes = self.pooled.strides[0]
        self.frame, (self._steps, leaves) = np.zeros(f.FRAME_FIELDS, np.int64), _code_of(plan, which)
        arrays = plan.stage_table, self._steps, plan.table, plan.scales
        self.frame[: len(arrays)] = [one.ctypes.data for one in arrays]
        self.frame[f.CHANNELS] = plan.graph.channels
        line, norms = plan.line * lanes, plan.pixel_count * lanes * self.rings.itemsize
        spare = _BAND * plan.ring_rows * plan.band_rings * line
        rows_of_rings = spare, spare + line, spare + 2 * line
        rings = self.rings[1:].ctypes.data, plan.band_rings, plan.ring_rows - 1, line, *rows_of_rings
        found = self.left_found.ctypes.data, self.right_found.ctypes.data
        self.frame[f.RINGS : f.PIXELS] = *rings, *found, *(one + norms for one in found), count
        self.view = View(self.frame.ctypes.data, self.frame.item(f.STAGES), self.frame.item(f.STEPS), _BAND, *leaves)

    def set_right(self, *right: NDArray[Any]) -> None:
        """Choose a vector of right images, and set their cotangents to zero.

        `right`: pixels and norms as the fused kernel reads them, then pixels, norms and inverses from `_expand`.
        """
        from . import back_leaves as f

        self._right = right  # read by address
        self.scratch.set_right(*right[:2])
        self.frame[f.RIGHT_PIXELS : f.RINGS] = [one.ctypes.data for one in right[2:]]
        self.right_found[:] = 0

    def run_forward(self, left: tuple[NDArray[Any], ...], first: int, end: int) -> Array:
        """Run left images [first, end) forwards; returns the sums of the last pool, (rows, lanes).

        What enters the stages is kept in `pooled`.
        """
        from .sweep import run_rows

        totals = np.zeros((end - first, self.plan.fused.lanes))
        rows = addresses([one[first:end] for one in left])
        run_rows(self.scratch.view, 0, end - first, rows, self.scratch.total, totals, 0)
        return totals

    def pull(
        self, stages: tuple[int, int], left: Sequence[NDArray[Any]], first: int, end: int, wanted: int = 0, out: int = 0
    ) -> None:
        """Back through stages [low, high), for left images [first, end); see `backward_rows`."""
        from .back_sweep import backward_rows

        kept = self.pooled.ctypes.data, self.row_bytes
        backward_rows(self.view, *stages, addresses(left), first, end, *kept, wanted, out)

    def nothing(self, rows: int, columns: int) -> Any:
        """The results of a task whose cotangents are zero."""
        size = self.plan.pixel_count + self.plan.norm_count
        return tuple((np.zeros((count, size)), np.zeros(count)) for count in (rows, columns))


def _entrances(plan: Plan, images: Any) -> list[Array]:
    """Squared norms at the entrance of every stage, (N, H, W), as the fused kernel computes them."""
    return [pixel_squares(plan.fused, _pixels(images)), *(one.astype(np.float64) for one in images.squares)]


def _expand(plan: Plan, images: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Images as the sweep reads them, a row each: pixels; norms before the embedding of every step; their inverses."""
    dtype, count = plan.fused.dtype, len(images)
    both = zip(plan.stages, _entrances(plan, images), strict=True)
    parts = [stage.norms(squares).reshape(count, -1) for stage, squares in both if stage.steps]
    norms = np.concatenate([*parts, np.zeros((count, 0))], axis=1)
    norms[norms < _SMALLEST_NORM[dtype]] = 0.0
    inverses = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    pixels = _pixels(images)
    found = (np.ascontiguousarray(one.astype(dtype)) for one in (pixels, norms, inverses))
    return tuple(found)  # type: ignore[return-value]  # three of them


def _pixels(images: Any) -> Array:
    """Images over their scales, (N, pixels)."""
    return normalized(images.images, images.scales).reshape(len(images), -1)
