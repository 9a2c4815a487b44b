"""The CPU backend: fused stages in explicit SIMD, compiled by numba, on all cores.

Graphs that the fused kernel cannot take (`fuse` says why) run on a general path in NumPy, correct and slower.
Up to the last pool arithmetic is float32, or float64 on request; the last pool, normalisation and head are float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from .. import Advance, Precision
from ..general import GeneralImages, general_block, prepare_general
from ..workers import count_workers, run_parallel
from .plan import Fused, aligned_zeros, fuse
from .simd import host_lanes, lanes_tag
from .tangent import TangentImages, plan_tangent, prepare_tangent, tangent_block

Array = NDArray[np.float64]
_TILE_BYTES = 48 << 20  # expanded images of one side of a block
_LARGEST_TILE = 2048  # images of one side: a block of them, with what the head needs, is some 100 MB
_PREPARED_AT_ONCE = 512
_TASK_ELEMENTS = 60_000_000  # work of one task, about 25 ms: short enough to stop soon, long enough to cost nothing
_SMALLEST_NORM = {"float32": 1e-18, "float64": 1e-150}  # of a patch, relative to its image; below it counts as black


@dataclass(frozen=True, eq=False)
class FusedImages:
    """Images with what cannot be derived quickly: their scales, and squared norms after every pool."""

    fused: Fused
    images: NDArray[Any]
    scales: Array  # (N,), root mean square of each image
    squares: tuple[NDArray[Any], ...]  # for every stage but the first, (N, H, W)
    totals: Array  # (N,), squared norms after the last pool

    @property
    def diagonal(self) -> Array:
        return self.fused.graph.head_diagonal([self.totals])

    @property
    def tile(self) -> int:
        return min(_LARGEST_TILE, max(64, _TILE_BYTES // self.fused.image_bytes // 64 * 64))

    def __len__(self) -> int:
        return len(self.totals)

    def __getitem__(self, part: slice) -> FusedImages:
        squares = tuple(one[part] for one in self.squares)
        return FusedImages(self.fused, self.images[part], self.scales[part], squares, self.totals[part])


class CpuBackend:
    """Runs graphs on the processor.

    >>> CpuBackend(precision="float64", n_jobs=1)
    CpuBackend(precision='float64', n_jobs=1)
    """

    name = "cpu"

    def __init__(self, precision: Precision = "float32", n_jobs: int | None = None) -> None:
        self.precision: Precision = precision
        self.n_jobs = count_workers(n_jobs)

    def __repr__(self) -> str:
        return f"CpuBackend(precision={self.precision!r}, n_jobs={self.n_jobs})"

    def prepare(self, graph: Graph, images: NDArray[Any]) -> FusedImages | GeneralImages | TangentImages:
        if graph.tangent and (plan := plan_tangent(graph, host_lanes("float64"))) is not None:
            return prepare_tangent(plan, images, self.n_jobs)
        fused = self._fuse(graph)
        if not isinstance(fused, Fused):
            return prepare_general(graph, images, self.n_jobs)
        parts = [
            self._prepare_part(fused, images[start : start + _PREPARED_AT_ONCE])
            for start in range(0, len(images), _PREPARED_AT_ONCE)
        ]
        scales, totals = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
        squares = tuple(np.concatenate(stage) for stage in zip(*(part[1] for part in parts), strict=True))
        return FusedImages(fused, images, scales, squares, totals)

    def block(
        self, graph: Graph, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Array:
        if isinstance(left, TangentImages):
            return tangent_block(left, right, self.n_jobs, upper=upper, advance=advance)
        if isinstance(left, GeneralImages):
            return general_block(left, right, upper=upper, advance=advance, n_jobs=self.n_jobs)
        from .sweep import run_rows

        fused, lanes = left.fused, left.fused.lanes
        rows = _expand(left)
        blocks = tuple(_in_lanes(values, lanes) for values in _expand(right))
        totals = np.zeros((len(left), len(blocks[0]) * lanes))
        tag = lanes_tag(fused.dtype, lanes, paired=False)

        def work(task: tuple[int, int, int], scratch: Any) -> int:
            first, end, block = task
            run_rows(tag, fused.duals, fused.plan, rows, blocks, first, end, block, scratch, totals)
            return _count_pairs(first, end, block * lanes, min((block + 1) * lanes, len(right)), upper)

        run_parallel(_tasks(fused, len(left), len(right), upper), work, fused.scratch, self.n_jobs, advance)
        values = totals[:, : len(right)] * fused.total_scale()
        if not graph.scale_free:
            values *= np.multiply.outer(left.scales, right.scales)
        return graph.apply_head([values], [left.totals], [right.totals])

    def describe(self, graph: Graph) -> str:
        if graph.tangent and plan_tangent(graph, host_lanes("float64")) is not None:
            lanes = host_lanes("float64")
            return f"cpu: fused tangents, float64, {lanes} images at a time on each of {self.n_jobs} threads"
        fused = self._fuse(graph)
        if isinstance(fused, Fused):
            return f"cpu: fused, {fused.dtype}, {fused.lanes} images at a time on each of {self.n_jobs} threads"
        return f"cpu: general path in float64, because {fused}"

    def _fuse(self, graph: Graph) -> Fused | str:
        """What is too delicate for float32 runs in float64."""
        dtype = "float64" if graph.delicate else self.precision
        return fuse(graph, dtype, host_lanes(dtype))

    def _prepare_part(self, fused: Fused, images: NDArray[Any]) -> tuple[Array, list[NDArray[Any]], Array]:
        """Scales, squared norms after each pool, and after the last one; a stage at a time, all blocks at once."""
        from .sweep import run_self

        lanes, dtype, count, graph = fused.lanes, fused.dtype, len(images), fused.graph
        scales = _root_mean_squares(images)
        pixels = _normalized(images, scales)
        in_lanes = _in_lanes(pixels.reshape(count, -1).astype(dtype), lanes)
        blocks = in_lanes, aligned_zeros((len(in_lanes), 2 * fused.norm_count * lanes), dtype)
        tag = lanes_tag(dtype, lanes, paired=True)
        squares: list[NDArray[Any]] = []
        entrance: NDArray[Any] = _pixel_squares(fused, pixels)
        for last, stage in enumerate(fused.stages):
            part = fused.norms_of(last)
            blocks[1][:, part.start * lanes : part.stop * lanes] = _in_lanes(_norms(fused, last, entrance), lanes)
            final = last == len(fused.stages) - 1
            reach = fused.plan.reach if final else fused.partial_reach(last)
            sums = np.zeros((len(blocks[0]), math.prod(stage.pooled) * lanes))

            def work(task: tuple[int, int], scratch: Any, reach: Any = reach, sums: Any = sums) -> int:
                run_self(tag, fused.duals, fused.plan, blocks, *task, reach, scratch, sums)
                return 0

            per_task = min(_rows_per_task(fused), -(-len(sums) // (4 * self.n_jobs)))
            tasks = ((i, min(i + per_task, len(sums))) for i in range(0, len(sums), per_task))
            run_parallel(tasks, work, fused.scratch, self.n_jobs, None)
            pooled = sums.reshape(len(sums), -1, lanes).transpose(0, 2, 1).reshape(-1, *stage.pooled)[:count]
            if not final:
                entrance = (pooled * float(fused.plan.scales[last + 1])).astype(dtype)
                squares.append(entrance)
        totals = pooled.reshape(count) * fused.total_scale()
        return scales, squares, totals if graph.scale_free else totals * scales**2


def _expand(images: FusedImages) -> tuple[NDArray[Any], ...]:
    """Rows as the fused kernel reads them: normalised pixels, and norms before every embedding with their inverses."""
    fused, count = images.fused, len(images)
    pixels = _normalized(images.images, images.scales)
    norms = np.empty((count, 2 * fused.norm_count), fused.dtype)
    for stage, entrance in enumerate([_pixel_squares(fused, pixels), *images.squares]):
        norms[:, fused.norms_of(stage)] = _norms(fused, stage, entrance)
    return pixels.reshape(count, -1).astype(fused.dtype), norms


def _norms(fused: Fused, stage: int, entrance: NDArray[Any]) -> NDArray[Any]:
    """Norms before every embedding of a stage beside their inverses, from the squared norms at its entrance."""
    images_last = np.ascontiguousarray(entrance.transpose(1, 2, 0), dtype=np.float64)  # long rows, so quick sums
    norms = fused.stages[stage].norms(images_last.transpose(2, 0, 1))
    norms[norms < _SMALLEST_NORM[fused.dtype]] = 0.0
    both = np.zeros((*norms.shape, 2), fused.dtype)
    both[..., 0] = norms
    np.divide(fused.inverse_scales_of(stage), norms, out=both[..., 1], where=norms > 0, casting="same_kind")
    return both.reshape(len(entrance), -1)


def _pixel_squares(fused: Fused, pixels: Array) -> Array:
    squares: Array = np.sum(pixels.reshape(len(pixels), *fused.stages[0].grid, -1) ** 2, axis=-1)
    return squares


def _normalized(images: NDArray[Any], scales: Array) -> Array:
    """Images over their scales, so that no square leaves the range of float32; black ones stay black."""
    divisors = np.where(scales > 0, scales, 1.0).reshape(-1, *(1,) * (images.ndim - 1))
    return np.asarray(images / divisors, dtype=np.float64)


def _root_mean_squares(images: NDArray[Any]) -> Array:
    """Computed on images over their largest value: squares of float64 pixels may not fit float64 either."""
    flat = np.asarray(images, dtype=np.float64).reshape(len(images), -1)
    largest = np.abs(flat).max(axis=1, keepdims=True)
    unit = flat / np.where(largest > 0, largest, 1.0)
    root: Array = np.sqrt(np.mean(unit * unit, axis=1)) * largest[:, 0]
    return root


def _in_lanes(rows: NDArray[Any], lanes: int) -> NDArray[Any]:
    """Blocks of so many images, position by position; the last image fills what is left of the last block."""
    blocks = -(-len(rows) // lanes)
    laid_out = aligned_zeros((blocks, rows.shape[1], lanes), str(rows.dtype))
    whole = len(rows) // lanes
    laid_out[:whole] = rows[: whole * lanes].reshape(whole, lanes, rows.shape[1]).transpose(0, 2, 1)
    if whole < blocks:
        rest = rows[whole * lanes :]
        laid_out[whole, :, : len(rest)] = rest.T
        laid_out[whole, :, len(rest) :] = rest[-1][:, None]
    return laid_out.reshape(blocks, -1)


def _tasks(fused: Fused, rows: int, columns: int, upper: bool) -> Iterator[tuple[int, int, int]]:
    """(first row, end row, block of columns), longest columns first where only the upper triangle is asked for."""
    lanes, per_task = fused.lanes, _rows_per_task(fused)
    for block in reversed(range(-(-columns // lanes))):
        end = min(rows, (block + 1) * lanes) if upper else rows
        for first in range(0, end, per_task):
            yield first, min(first + per_task, end), block


def _rows_per_task(fused: Fused) -> int:
    return max(1, _TASK_ELEMENTS // (fused.graph.elements * fused.lanes))


def _count_pairs(first: int, end: int, begin: int, stop: int, upper: bool) -> int:
    if not upper:
        return (end - first) * (stop - begin)
    return sum(max(0, stop - max(row, begin)) for row in range(first, end))
