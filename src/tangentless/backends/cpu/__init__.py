"""The CPU backend: fused stages in explicit SIMD, compiled by numba, on all cores.

Graphs that the fused kernel cannot take run on the general path in NumPy, which is slower; `fuse` gives the reason. Up
to the last pool arithmetic is float32, or float64 on request; the last pool, normalisation and head are float64.
Tangents are float64 throughout. They fill lanes of their own beside the kernel values, so all linear code is shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...chunks import spans
from ...graph import Graph
from ...pullback import check_gradient
from .. import Advance, Precision
from ..backward import GeneralGradient, general_gradient, pull_general
from ..chains import STEEPEST
from ..general import GeneralImages, general_block, prepare_general
from ..numpy_back import NumpyBack
from ..segmented import keeps_scales
from ..workers import count_workers, run_parallel
from .back import FusedGradient, fused_gradient, plan_back, pull_fused
from .plan import (
    Fused,
    addresses,
    aligned_zeros,
    expand,
    fuse,
    in_lanes,
    normalized,
    norms_of,
    pixel_squares,
    squares_of,
)
from .simd import host_lanes

Array = NDArray[np.float64]
_TILE_BYTES = 48 << 20  # of the expanded images of one side of a block
_LARGEST_TILE = 1024  # images of one side; the entries of a block, with what the head needs, are then some 30 MB
_PREPARED_AT_ONCE = 512  # images
_TASK_ELEMENTS = 60_000_000  # of one task, about 25 ms: soon over after an interrupt, and long enough to cost nothing


@dataclass(frozen=True, eq=False)
class FusedImages:
    """Images with what takes long to derive: scales, squared norms at the entrances of segments, and k(x, x)."""

    fused: Fused
    images: NDArray[Any]
    scales: Array  # (N,), root mean square of each image
    squares: tuple[NDArray[Any], ...]  # at every entrance but the first, (N, H, W)
    totals: Array  # (N,), squared norms after the last pool
    diagonal: Array  # (N,)

    @property
    def lanes(self) -> int:
        """Right images that are computed together; fewer of them take as long."""
        return self.fused.lanes

    @property
    def tile(self) -> int:
        return min(_LARGEST_TILE, max(64, _TILE_BYTES // self.fused.image_bytes // 64 * 64))

    def __len__(self) -> int:
        return len(self.totals)

    def __getitem__(self, part: slice) -> FusedImages:
        squares = tuple(one[part] for one in self.squares)
        others = self.scales[part], squares, self.totals[part], self.diagonal[part]
        return FusedImages(self.fused, self.images[part], *others)


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

    def prepare(self, graph: Graph, images: NDArray[Any]) -> FusedImages | GeneralImages:
        fused = self._fuse(graph)
        if not isinstance(fused, Fused):
            return prepare_general(graph, images, self.n_jobs)
        parts = [self._prepare_part(fused, images[part]) for part in spans(len(images), _PREPARED_AT_ONCE)]
        scales, totals, diagonal = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("scales", "totals", "diagonal")
        )
        squares = tuple(np.concatenate(some) for some in zip(*(part.squares for part in parts), strict=True))
        return FusedImages(fused, images, scales, squares, totals, diagonal)

    def block(
        self, graph: Graph, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Array:
        if isinstance(left, GeneralImages):
            return np.asarray(general_block(left, right, upper=upper, advance=advance, n_jobs=self.n_jobs))
        from .sweep import run_rows
        from .tables import Scratch, tables_of

        fused, lanes, width = left.fused, left.fused.lanes, left.fused.width
        (tables, _), needed = tables_of(fused), fused.needed(len(fused.segments) - 1)
        rows = expand(left)
        blocks = tuple(in_lanes(values, fused) for values in expand(right))
        totals = np.zeros((len(left), len(blocks[0]) * width))
        left_addresses = addresses(rows)

        def work(task: tuple[int, int, int], scratch: Scratch) -> int:
            first, end, block = task
            scratch.set_right(*(one[block] for one in blocks))
            run_rows(scratch.view, first, end, left_addresses, scratch.total, totals, block * width)
            return _count_pairs(first, end, block * lanes, min((block + 1) * lanes, len(right)), upper)

        tasks = _tasks(fused, len(left), len(right), upper)
        run_parallel(tasks, work, lambda: Scratch(tables, needed), self.n_jobs, advance)
        values = [one.reshape(len(left), -1)[:, : len(right)] * fused.total_scale() for one in fused.parts(totals)]
        if not graph.scale_free:
            values = [one * np.multiply.outer(left.scales, right.scales) for one in values]
        if graph.tangent:
            return graph.apply_tangent_head(values[:1], values[1:], [left.totals], [right.totals])
        return graph.apply_head(values, [left.totals], [right.totals])

    def gradient(
        self, graph: Graph, images: NDArray[Any], *, parameters: bool = False, wanted: bool = True
    ) -> GeneralGradient | FusedGradient:
        if parameters or graph.tangent:
            plan = None
        else:
            backend = CpuBackend("float64", self.n_jobs) if graph.steepest > STEEPEST else self
            fused = backend._fuse(graph)
            plan = plan_back(fused) if isinstance(fused, Fused) else None
        if plan is not None:
            return fused_gradient(plan, backend.prepare(graph, images), self.n_jobs, wanted)
        check_gradient(graph, parameters)
        prepared = prepare_general(graph, images, self.n_jobs)
        return general_gradient(graph, prepared, NumpyBack, parameters=parameters, wanted=wanted, n_jobs=self.n_jobs)

    def pullback(
        self,
        graph: Graph,
        left: Any,
        right: Any,
        cotangent: Array,
        *,
        upper: bool = False,
        advance: Advance | None = None,
    ) -> None:
        pull = pull_fused if isinstance(left, FusedGradient) else pull_general
        pull(left, right, cotangent, upper=upper, advance=advance)

    def describe(self, graph: Graph) -> str:
        fused = self._fuse(graph)
        if isinstance(fused, Fused):
            what = "fused tangents" if graph.tangent else "fused"
            return f"cpu: {what}, {fused.dtype}, {fused.lanes} images at a time on each of {self.n_jobs} threads"
        return f"cpu: general path in float64, because {fused}"

    def _fuse(self, graph: Graph) -> Fused | str:
        """The graph for the fused kernel, or the reason why it cannot take it.

        Tangents, graphs that are too delicate for float32, and images that must keep their scales run in float64.
        """
        dtype = "float64" if graph.tangent or graph.delicate or keeps_scales(graph) else self.precision
        return fuse(graph, dtype, host_lanes(dtype))

    def _prepare_part(self, fused: Fused, images: NDArray[Any]) -> FusedImages:
        """Prepare some images, a segment after the other: its exits are the entrances of the next one."""
        graph, width, dtype, count = fused.graph, fused.width, fused.dtype, len(images)
        scales = np.ones(count) if keeps_scales(graph) else _root_mean_squares(images)
        pixels = normalized(images, scales)
        in_blocks = in_lanes(pixels.reshape(count, -1).astype(dtype), fused)
        blocks = in_blocks, aligned_zeros((len(in_blocks), 2 * fused.norm_count * width), dtype)
        found: list[NDArray[Any]] = []
        entrances: list[NDArray[Any]] = [pixel_squares(fused, pixels)]
        for place, segment in enumerate(fused.segments):
            squares = squares_of(segment, entrances)
            for part, norms in norms_of(fused, place, squares):
                blocks[1][:, part.start * width : part.stop * width] = in_lanes(norms, fused)
            alone = graph.tangent or any(one.pooled for one in segment.exits)
            sums = self._run_alone(fused, place, blocks) if alone else []
            entrances = []
            for number, one in enumerate(segment.exits):
                rows, columns = one.stride
                entrance = squares[one.value][:, ::rows, ::columns][:, : one.grid[0], : one.grid[1]]
                if one.pooled:
                    entrance = fused.parts(sums[number])[0].transpose(0, 2, 1).reshape(-1, *one.grid)[:count]
                if place < len(fused.segments) - 1:
                    scale = float(np.dtype(dtype).type(fused.exit_scale(place, one)))
                    entrance = (entrance * scale).astype(dtype)
                entrances.append(entrance)
            found += entrances
        outputs = [found.pop().reshape(count)]
        outputs += [one.reshape(-1)[:count] for one in fused.parts(sums[0])[1:]] if graph.tangent else []
        outputs = [one * fused.total_scale() * (1.0 if graph.scale_free else scales**2) for one in outputs]
        diagonal = graph.head_tangent_diagonal if graph.tangent else graph.head_diagonal
        return FusedImages(fused, images, scales, tuple(found), outputs[0], diagonal(*([one] for one in outputs)))

    def _run_alone(self, fused: Fused, last: int, blocks: tuple[NDArray[Any], ...]) -> list[Array]:
        """Run each image with itself, up to segment `last`.

        Returns the sums that each of its exits holds at offset (0, 0), (blocks, positions, width).
        """
        from .sweep import run_rows
        from .tables import Scratch, tables_of

        (_, tables), needed = tables_of(fused), fused.needed(last)
        final = last == len(fused.segments) - 1
        sums = [np.zeros((len(blocks[0]), math.prod(one.grid), fused.width)) for one in fused.segments[last].exits]

        def work(block: int, scratch: Scratch) -> int:
            pixels, norms = (one[block] for one in blocks)
            scratch.set_right(pixels, norms)
            scratch.slots[:] = 0.0
            row = np.zeros((1, fused.width))
            run_rows(scratch.view, 0, 1, (pixels.ctypes.data, 0, norms.ctypes.data, 0), scratch.total, row, 0)
            for number, one in enumerate(sums):
                one[block] = row if final else tables.slots_of(scratch, last, number)
            return 0

        run_parallel(iter(range(len(blocks[0]))), work, lambda: Scratch(tables, needed), self.n_jobs, None)
        return sums


def _root_mean_squares(images: NDArray[Any]) -> Array:
    """The root mean square of each image, (N,).

    Images are divided by their largest value first: the square of a large float64 pixel would overflow.
    """
    flat = np.asarray(images, dtype=np.float64).reshape(len(images), -1)
    largest = np.abs(flat).max(axis=1, keepdims=True)
    unit = flat / np.where(largest > 0, largest, 1.0)
    root: Array = np.sqrt(np.mean(unit * unit, axis=1)) * largest[:, 0]
    return root


def _tasks(fused: Fused, rows: int, columns: int, upper: bool) -> Iterator[tuple[int, int, int]]:
    """Tasks (first row, end row, block of columns); in an upper triangle, blocks with the most rows come first."""
    lanes, per_task = fused.lanes, max(1, _TASK_ELEMENTS // (fused.graph.elements * fused.lanes))
    for block in reversed(range(-(-columns // lanes))):
        end = min(rows, (block + 1) * lanes) if upper else rows
        for first in range(0, end, per_task):
            yield first, min(first + per_task, end), block


def _count_pairs(first: int, end: int, begin: int, stop: int, upper: bool) -> int:
    """Entries in rows [first, end) and columns [begin, stop); with `upper`, those on and right of the diagonal."""
    if not upper:
        return (end - first) * (stop - begin)
    return sum(max(0, stop - max(row, begin)) for row in range(first, end))
