"""The offset path: launches the kernels of `offset_writer.py` on one machine, segment by segment.

For gradients, a `FirstStage` may run the first segment instead, where that is faster.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...graph import Axes, Graph
from .. import Advance
from ..general import pixel_squares
from ..segmented import SMALLEST_NORM, keeps_scales
from .close import ExactCache, FindExact, refine
from .first_stage import FirstStage
from .fused import Machine, batch_units, column_heights, report_finished, self_units, walk
from .offset_writer import write_offsets
from .offsets import OffsetPlan, plan_offsets
from .planes import channels_last, image_scales
from .portable import make_portable

CLOSE = 2.5e-4  # 1 - cosine below which float32, whose error here reaches 2.4e-8, leaves less than four digits of it


@dataclass(frozen=True, eq=False)
class OffsetImages:
    """Images prepared for the offset path."""

    graph: Graph
    pixels: Any  # (N, C H W), divided by the scales
    norms: Any  # before every embedding, (N, plan.norm_count): see `Segmented.norm_places`
    scales: Any  # (N,), see `image_scales`
    squares: Any  # squared norms after the last pool, (N,)
    tangents: Any  # the tangent of each image with itself there, (N,)
    exact_cache: ExactCache = field(default_factory=ExactCache)

    @property
    def diagonal(self) -> Any:
        if self.graph.tangent:
            return self.graph.head_tangent_diagonal([self.squares], [self.tangents])
        return self.graph.head_diagonal([self.squares])

    @property
    def gains(self) -> Any:
        """The factor of each image that undoes the scaling in inner products, (N,)."""
        return np.ones_like(self.scales) if self.graph.scale_free else self.scales

    def pixels_of(self, chosen: Any) -> Any:
        """Pixels of some images as they were given, except for rounding, in float64: (len(chosen), *grid, C)."""
        pixels = channels_last(self.pixels[chosen], self.graph.grid)
        return pixels * self.scales[chosen].reshape(-1, *(1 for _ in self.graph.grid), 1)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, part: slice) -> OffsetImages:
        return replace(self.take(part), exact_cache=self.exact_cache.part(range(len(self))[part]))

    def take(self, chosen: Any) -> OffsetImages:
        """The images with these numbers, with an `exact_cache` of their own."""
        return OffsetImages(self.graph, *(one[chosen] for one in self.arrays))

    @property
    def nbytes(self) -> int:
        return sum(int(one.nbytes) for one in self.arrays)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.pixels, self.norms, self.scales, self.squares, self.tangents


class OffsetPath:
    """The segments of a graph on one machine."""

    def __init__(self, plan: OffsetPlan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.graph = make_portable(plan.graph, plan.graph.head, machine.upload)
        self.first_stage: FirstStage | None = None
        text, tables = write_offsets(plan)
        self.launch = machine.load_text(text)
        self.tables = [[machine.upload(table) for table in some] for some in tables]
        self._taps: dict[Axes, Any] = {}
        self.exact = find_exact(plan.graph, machine)

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair, if all units are full (`lanes` pairs)."""
        inner = enumerate(self.plan.segments[:-1])
        numbers = sum(self.plan.exit_numbers(place, one) for place, segment in inner for one in segment.exits)
        size = np.dtype(self.plan.dtype).itemsize
        first = 0 if self.first_stage is None else self.first_stage.pair_bytes
        return first + max(8, numbers * (1 + self.graph.tangent) * size)

    def prepare(self, images: Any, batch: int) -> OffsetImages:
        """The first of these images (N, *grid, C), prepared: as many as fit into the memory of `batch` pairs."""
        plan, xp = self.plan, self.machine.xp
        images = images[: max(1, batch // plan.lanes)]
        images = images.reshape(len(images), *plan.segments[0].grid, self.graph.channels)
        count = len(images)
        scales = xp.ones(count) if keeps_scales(self.graph) else image_scales(images, xp)
        scaled = images / scales.reshape(-1, 1, 1, 1)
        pixels = xp.ascontiguousarray(xp.moveaxis(scaled, -1, 1).reshape(count, -1).astype(plan.dtype))
        x, norms = self.interleaved(pixels), xp.zeros((count, plan.norm_count), dtype=plan.dtype)
        units, end = self.machine.upload(self_units(count)), len(plan.segments) - 1
        entrances: list[Any] = [pixel_squares(scaled)]
        exits, known = list[Any](), self.first_exits(pixels, pixels)(units, slice(None))
        tangents: Any = xp.zeros(count)
        for place, segment in enumerate(plan.segments):
            squares = segment.squares(entrances, self.window_sums)
            self._set_norms(place, squares, norms)
            sides = x, self.interleaved(norms), pixels, norms
            exits = known if place < len(known) else self._segment(place, *sides, units, exits, itself=True)
            entrances = []
            for number, one in enumerate(segment.exits):
                if place == end:
                    out = xp.zeros((1 + self.graph.tangent, count))
                    self.finish(exits[0], units, out, 0)
                    alone = out[0] if one.pooled else squares[one.value][:, 0, 0]
                    tangents = out[-1]
                elif one.pooled:
                    alone = self.own_squares(place, number, exits[number])
                else:
                    rows, columns = one.stride
                    alone = squares[one.value][:, ::rows, ::columns][:, : one.grid[0], : one.grid[1]]
                    alone = alone * plan.exit_scale(place, one)
                entrances.append(alone)
        factor = plan.total_scale() * (1.0 if self.graph.scale_free else scales**2)
        return OffsetImages(self.graph, pixels, norms, scales, entrances[0] * factor, tangents * factor)

    def window_sums(self, values: Any, axes: Axes) -> Any:
        """`graph.window_sums` in one launch."""
        xp = self.machine.xp
        if axes not in self._taps:
            taps = [sorted(one.positions(0), key=lambda d: (abs(d), d)) for one in axes]  # added in the same order
            self._taps[axes] = self.machine.upload(np.array([*taps[0], *taps[1]], dtype=np.int32))
        sums = xp.empty((len(values), axes[0].count, axes[1].count))
        numbers = [np.int64(sums.size), *values.shape[1:], *sums.shape[1:]]
        numbers += [*(one.stride for one in axes), *(one.size for one in axes)]
        walk(self.launch, "sum_windows", sums.size, [xp.ascontiguousarray(values), sums, self._taps[axes], *numbers])
        return sums

    def _set_norms(self, place: int, squares: Sequence[Any], norms: Any) -> None:
        """Store the norms before the embeddings of a segment in `norms`, from the squared norms of its values."""
        segment, size = self.plan.segments[place], math.prod(self.plan.segments[place].grid)
        smallest = np.float64(SMALLEST_NORM[self.plan.dtype])
        for number in range(len(segment.steps)):
            start = self.plan.norm_places.get((place, number))
            if start is not None:
                some = self.machine.xp.ascontiguousarray(squares[segment.sum_of(number)])
                numbers = [np.int64(some.size), size, start, self.plan.norm_count, smallest]
                walk(self.launch, "keep_norms", some.size, [some, norms, *numbers])

    def own_squares(self, place: int, number: int, values: Any) -> Any:
        """Squared norms at an exit, (N, H, W), from its values for images with themselves: those at offset (0, 0)."""
        one, size = self.plan.segments[place].exits[number], math.prod(self.plan.segments[place].exits[number].grid)
        squares = self.machine.xp.empty((len(values), *one.grid))
        scale = np.float64(self.plan.exit_scale(place, one))
        numbers = [np.int64(squares.size), size, self.plan.exit_numbers(place, one), scale]
        walk(self.launch, "own_squares", squares.size, [values, squares, *numbers])
        return squares

    def block(
        self, left: OffsetImages, right: OffsetImages, batch: int, first: int | None, advance: Advance | None
    ) -> Any:
        """Entries (n, m) in float64, on the machine.

        `first`: the right images are images first, first + 1, ... of the left ones, so only entries on and above the
        diagonal of that matrix are needed. None: all entries are.
        """
        xp = self.machine.xp
        out = xp.zeros((1 + self.graph.tangent, len(left), len(right)))
        heights = column_heights(len(left), len(right), first)
        total = int(heights.sum())
        x, a = self.interleaved(left.pixels), self.interleaved(left.norms)
        first_exits = self.first_exits(left.pixels, right.pixels)
        for start in range(0, total, batch):
            stop = min(start + batch, total)
            units = self.machine.upload(batch_units(heights, start, stop, self.plan.lanes))
            known = first_exits(units, slice(None))
            (totals,) = self.run(x, a, right.pixels, right.norms, units, known=known)[-1]
            self.finish(totals, units, out, len(right))
            report_finished(self.machine, advance, stop - start)
        out *= self.plan.total_scale()
        out *= left.gains[:, None] * right.gains
        if self.plan.dtype == "float32":
            refine(out[0], left, right, CLOSE, self.exact, max(1, batch // 2), xp)
        if self.graph.tangent:
            return self.graph.apply_tangent_head([out[0]], [out[1]], [left.squares], [right.squares])
        return self.graph.apply_head([out[0]], [left.squares], [right.squares])

    def first_exits(self, left: Any, right: Any) -> Callable[[Any, slice], list[Any]]:
        """A function of (units, columns) that lists the exits of the first segment; empty without a `FirstStage`."""
        first = self.first_stage
        if first is None:
            return lambda units, columns: []
        rows, others = first.rows(left, 0), first.rows(right, 1)
        return lambda units, columns: [first.exits(rows, others[columns], units)]

    def cosines(self, x: OffsetImages, z: OffsetImages, rows: Any, columns: Any) -> Any:
        """Cosines after the last pool of the pairs (x[rows[i]], z[columns[i]]); for plans with one pair a thread."""
        xp = self.machine.xp
        numbers = columns, rows, xp.ones_like(rows), xp.arange(len(rows))
        units = xp.ascontiguousarray(xp.stack(numbers, axis=1).astype(np.int32))
        out = xp.zeros((1 + self.graph.tangent, len(x), len(z)))
        inside = self.interleaved(x.pixels), self.interleaved(x.norms), z.pixels, z.norms
        (totals,) = self.run(*inside, units)[-1]
        self.finish(totals, units, out, len(z))
        products = out[0][rows, columns] * self.plan.total_scale() * x.gains[rows] * z.gains[columns]
        return products / xp.sqrt(x.squares[rows] * z.squares[columns])

    def prepare_all(self, images: Any, batch: int) -> OffsetImages:
        """All images (N, *grid, C) prepared, by calls of `prepare`."""
        parts: list[OffsetImages] = []
        while (done := sum(map(len, parts))) < len(images):
            parts.append(self.prepare(images[done:], batch))
        return parts[0] if len(parts) == 1 else self.join(parts)

    def run(
        self, x: Any, a: Any, z: Any, b: Any, units: Any, itself: bool = False, known: Sequence[Any] = ()
    ) -> list[list[Any]]:
        """All segments, for all units: the exits of each, and the totals of the last one.

        x, a: pixels and norms of left images, see `interleaved`; z, b: those of right images, (m, numbers).
        `known`: exits of the first segments, if they were computed already.
        """
        found: list[list[Any]] = [[exits] for exits in known]
        for place in range(len(known), len(self.plan.segments)):
            inside = found[-1] if place else []
            found.append(self._segment(place, x, a, z, b, units, inside, itself))
        return found

    def _segment(
        self, place: int, x: Any, a: Any, z: Any, b: Any, units: Any, inside: Sequence[Any], itself: bool
    ) -> list[Any]:
        """The exits or totals of one segment, from the exits `inside` of the segment before."""
        plan, xp = self.plan, self.machine.xp
        segment, (groups, needed, offsets) = plan.segments[place], self._offset_lists[place]
        blocks = len(units) * len(groups)
        if place == len(plan.segments) - 1:
            outputs = [xp.empty((len(units), len(groups), plan.parts))]
        else:
            shapes = [(len(units), plan.exit_numbers(place, one) * plan.parts) for one in segment.exits]
            outputs = [xp.empty(shape, dtype=plan.dtype) for shape in shapes]
        work = [units, groups, needed, offsets, len(groups), len(offsets), int(itself), np.int64(blocks)]
        arguments = [x, z, a, b, *(inside or [None]), *outputs, *self.tables[place], *work]
        self.launch(f"segment_{place}", blocks, plan.plans[place].threads, plan.shared_bytes(place), arguments)
        return outputs

    def interleaved(self, rows: Any) -> Any:
        """Rows of left images (n, numbers) with the images of a unit interleaved: (runs, numbers, lanes)."""
        (images, count), lanes = rows.shape, self.plan.lanes
        xp = self.machine.xp
        out = xp.empty((-(-images // lanes), count, lanes), dtype=rows.dtype)
        walk(self.launch, "lay_beside", out.size, [xp.ascontiguousarray(rows), out, np.int64(out.size), count, images])
        return out

    @functools.cached_property
    def _offset_lists(self) -> list[tuple[Any, ...]]:
        """For every segment: groups of offsets u, a flag for every u in (-H, H) that is needed, and the offsets v."""
        plan, upload = self.plan, self.machine.upload
        last = len(plan.segments) - 1
        needed = plan.needed(last)
        found = []
        for place, (rows, columns) in enumerate(needed):
            height, width = plan.segments[place].grid
            targets = needed[place + 1][0] if place < last else [0]
            groups = np.array(plan.groups(place, targets), dtype=np.int32)
            flags = np.isin(np.arange(1 - height, height), rows).astype(np.int8)
            offsets = np.array(plan.column_offsets(place, {v % width for v in columns}), dtype=np.int32)
            found.append((upload(groups), upload(flags), upload(offsets)))
        return found

    def finish(self, totals: Any, units: Any, out: Any, columns: int) -> None:
        """Add up the totals of all groups of each unit, and store them in `out`, (1 + tangent, n, columns)."""
        sizes = np.int64(len(units)), totals.shape[1], columns, np.int64(out[0].size)
        walk(self.launch, "finish", len(units), [totals, units, out, *sizes])

    def join(self, parts: list[OffsetImages]) -> OffsetImages:
        """One set of images from several."""
        arrays = zip(*(part.arrays for part in parts), strict=True)
        return OffsetImages(self.graph, *(self.machine.xp.concatenate(one) for one in arrays))


def find_exact(graph: Graph, machine: Machine) -> FindExact:
    """A function that gives the path of the graph in float64, compiled at its first call; None if it does not fit."""

    @functools.cache
    def find() -> OffsetPath | None:
        plan = plan_offsets(graph, "float64", machine.shared_limit)
        return None if isinstance(plan, str) else OffsetPath(plan, machine)

    return find
