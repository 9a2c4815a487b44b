"""The fused path: every stage of a chain is one launch of `stage.cu` over a batch of pairs.

A batch is as many pairs as the scratch memory between stages holds; results do not depend on it. Batches take turns in
several streams: at the end of a stage of one batch, another batch uses the multiprocessors that become idle.

All of this works on arrays of NumPy or CuPy: the tests run it with kernels compiled for the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from .. import Advance
from ..segments import patched, patched_chain
from .close import ExactCache, FindExact, refine
from .layout import FrontPlan, StagePlan
from .planes import StageUnits, front_rows, image_scales, pooled_sums, stage_rows, stage_units
from .portable import make_portable

Units = NDArray[np.int32]
Heights = NDArray[np.int64]
Launch = Callable[..., None]  # a compiled kernel, or all kernels of a text: see `Machine`
Stream = AbstractContextManager[Any]  # what is launched and copied inside runs in order

STREAMS = 3  # faster than one or two with larger batches, and takes less memory
CLOSE = 5e-4  # 1 - cosine below which float32, whose error here reaches 4e-8, leaves less than four digits of it
WALKERS = 256  # threads per block in kernels whose threads are independent
ROUNDS = 8  # of a block: enough to amortise loading z, few enough that blocks end at about the same time


class Machine(Protocol):
    """A GPU, or the emulation of one."""

    xp: Any  # its array module
    shared_limit: int  # bytes of shared memory of a block

    def load_stage(self, plan: StagePlan | FrontPlan) -> Launch:
        """The compiled kernel of a stage: call it with (left, right, input, output, units, left_step, right_step)."""
        ...

    def load_text(self, text: str) -> Launch:
        """The compiled kernels of a text: call it with (name, blocks, threads, shared memory in bytes, arguments).

        Kernels without shared memory loop over elements with the stride of the grid, so fewer blocks may be launched.
        """
        ...

    def active(self) -> AbstractContextManager[None]:
        """A context in which work is done on this machine."""
        ...

    def upload(self, values: NDArray[Any]) -> Any:
        """The values on the machine, contiguous."""
        ...

    def deliver(self, values: Any, beside: Any) -> Any:
        """Values of the machine as an array of the kind of `beside`, in the same memory: the host or a GPU."""
        ...

    def streams(self, count: int) -> AbstractContextManager[Sequence[Stream]]:
        """Streams whose launches may overlap.

        They start after all that was launched before the context, and end before anything launched after it starts.
        """
        ...

    def mark(self) -> Callable[[], None]:
        """A function that waits until everything launched so far in the current stream is finished."""
        ...


@dataclass(frozen=True)
class FusedImages:
    """Images on one machine: rows for the front and for every stage, pixels, and squared norms after the last pool."""

    graph: Graph
    left: tuple[Any, ...]  # rows of the images as x, one array for each of `FusedPath.parts`
    right: tuple[Any, ...]  # the same as z
    pixels: Any  # (N, H, W, C), divided by the scales, in float32
    scales: Any  # (N,), see `image_scales`; ones if the kernel does not depend on the scale
    squares: Any  # (N,)
    exact_cache: ExactCache = field(default_factory=ExactCache)

    @property
    def diagonal(self) -> Any:
        return self.graph.head_diagonal([self.squares])

    def __getitem__(self, part: slice) -> FusedImages:
        left, right = (tuple(rows[part] for rows in side) for side in (self.left, self.right))
        pixels, scales, squares = (one[part] for one in (self.pixels, self.scales, self.squares))
        exact_cache = self.exact_cache.part(range(len(self))[part])
        return FusedImages(self.graph, left, right, pixels, scales, squares, exact_cache)

    def pixels_of(self, chosen: Any) -> Any:
        """Pixels of some images in float64, divided by their scales, on which cosines do not depend."""
        return self.pixels[chosen].astype(np.float64)

    def __len__(self) -> int:
        return len(self.scales)


class FusedPath:
    """The stages of a graph on one machine; `exact` finds the path that computes the same graph in float64."""

    def __init__(self, graph: Graph, plans: tuple[StagePlan, ...], machine: Machine, exact: FindExact) -> None:
        found = patched_chain(graph)
        assert not isinstance(found, str), found
        (self.stages, self.patch), self.plans, self.machine = found, plans, machine
        self.front = FrontPlan(plans[0]) if plans[0].given else None
        self.exact = exact
        self.parts: tuple[FrontPlan | StagePlan, ...] = plans if self.front is None else (self.front, *plans)
        self.graph = make_portable(graph, graph.head, machine.upload)
        self.units: tuple[StageUnits, ...] = stage_units(self.stages, plans)
        self.launches = [machine.load_stage(part) for part in self.parts]

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair, in all streams."""
        return STREAMS * 4 * sum(part.output_floats for part in self.parts)

    @property
    def factor(self) -> float:
        """The factor that turns totals of the kernel into means over the last grid."""
        return self.units[-1].exit ** 2 / float(self.plans[-1].pool_size) ** 2

    def prepare(self, images: Any, batch: int) -> FusedImages:
        """Images (N, *grid, C) on the machine, N at most `batch`, prepared."""
        xp = self.machine.xp
        height, width = (n * p for n, p in zip(self.stages[0].grid, self.patch, strict=True))
        images = images.reshape(len(images), height, width, self.graph.channels)
        scales = image_scales(images, xp)
        whole = images / scales.reshape(-1, 1, 1, 1)
        scaled = patched(whole, self.patch)
        squares = xp.sum(xp.square(scaled), axis=-1)
        units = self.machine.upload(self_units(len(images)))
        left, right = [], []
        kernels: Any = None
        launches = self.launches
        if self.front is not None:
            x, z = front_rows(self.front, scaled, xp)
            left.append(x)
            right.append(z)
            kernels = self._own_kernels(self.front, launches[0], x, z, None, units)
            launches = launches[1:]
        for stage, plan, of_stage, launch in zip(self.stages, self.plans, self.units, launches, strict=True):
            x, z = stage_rows(stage, plan, of_stage, squares, scaled if plan.channels else None, xp)
            left.append(x)
            right.append(z)
            kernels = self._own_kernels(plan, launch, x, z, kernels, units)
            own = kernels if plan.last else pooled_sums(kernels, plan)
            squares = own.astype(xp.float64) * (of_stage.exit / plan.pool_size) ** 2
        restored = xp.ones_like(scales) if self.graph.scale_free else scales
        pixels = whole.astype(xp.float32)
        return FusedImages(self.graph, tuple(left), tuple(right), pixels, restored, squares * restored**2)

    def _own_kernels(self, plan: FrontPlan | StagePlan, launch: Launch, x: Any, z: Any, source: Any, units: Any) -> Any:
        """Kernels of images with themselves after a stage, or totals, (N,), after the last one."""
        xp = self.machine.xp
        if plan.last:
            output = xp.empty(len(x), dtype=xp.float64)
        else:
            output = xp.empty((len(x), plan.output_floats), dtype=xp.float32)
        launch(x, z, x if source is None else source, output, units, 0, 1)
        return output

    def block(
        self, left: FusedImages, right: FusedImages, batch: int, first: int | None, advance: Advance | None
    ) -> Any:
        """Entries (n, m) in float64, on the machine.

        `first`: the right images are images first, first + 1, ... of the left ones, so only entries on and above the
        diagonal of that matrix are needed. None: all entries are.
        """
        values = self._products(left, right, batch, first, advance)
        refine(values, left, right, CLOSE, self.exact, max(1, batch // 2), self.machine.xp)
        return self.graph.apply_head([values], [left.squares], [right.squares])

    def _products(
        self, left: FusedImages, right: FusedImages, batch: int, first: int | None, advance: Advance | None
    ) -> Any:
        """Inner products after the last pool, (n, m)."""
        xp = self.machine.xp
        totals = xp.zeros((len(left), len(right)), dtype=xp.float64)
        heights = column_heights(len(left), len(right), first)
        total = int(heights.sum())
        batch = min(batch, total)
        starts = range(0, total, batch)
        scratch = [
            [xp.empty((batch, plan.output_floats), dtype=xp.float32) for plan in self.parts[:-1]]
            for _ in range(min(STREAMS, len(starts)))
        ]
        waiting: deque[tuple[Callable[[], None], int]] = deque()
        with self.machine.streams(len(scratch)) as streams:
            for number, start in enumerate(starts):  # a batch is planned while the machine works on those before
                stop = min(start + batch, total)
                work = [batch_units(heights, start, stop, ROUNDS * plan.slots) for plan in self.parts]
                with streams[number % len(streams)]:
                    units = [self.machine.upload(part) for part in work]
                    self._run(left, right, units, scratch[number % len(streams)], totals)
                    waiting.append((self.machine.mark(), stop - start))
                if len(waiting) > len(streams):  # so that every stream has a batch queued
                    _finish(*waiting.popleft(), advance)
            while waiting:
                _finish(*waiting.popleft(), advance)
        totals *= self.factor
        totals *= left.scales[:, None]
        totals *= right.scales[None, :]
        return totals

    def _run(self, left: FusedImages, right: FusedImages, units: list[Any], scratch: list[Any], totals: Any) -> None:
        """Launch all stages for one batch; `scratch` holds the output of each but the last."""
        source: Any = left.left[0]  # the first kernel has no input, and does not read this
        outputs = [*scratch, totals]
        for x, z, output, work, launch in zip(left.left, right.right, outputs, units, self.launches, strict=True):
            launch(x, z, source, output, work, totals.shape[1], 1)
            source = output

    def join(self, parts: list[FusedImages]) -> FusedImages:
        """One set of images from several."""
        concatenate = self.machine.xp.concatenate
        left, right = (
            tuple(concatenate(rows) for rows in zip(*(getattr(part, side) for part in parts), strict=True))
            for side in ("left", "right")
        )
        alone = (concatenate([getattr(part, name) for part in parts]) for name in ("pixels", "scales", "squares"))
        return FusedImages(self.graph, left, right, *alone)


def walk(launch: Launch, name: str, elements: int, arguments: Sequence[Any]) -> None:
    """Launch a kernel whose threads are independent: each loops over elements with the stride of the grid."""
    launch(name, -(-elements // WALKERS), WALKERS, 0, arguments)


def self_units(count: int) -> Units:
    """Units of work (right, left, count, slot) for every image with itself."""
    index = np.arange(count, dtype=np.int32)
    return np.stack([index, index, np.ones_like(index), index], axis=1)


def report_finished(machine: Machine, advance: Advance | None, pairs: int) -> None:
    """Report pairs as finished, after waiting for all work launched so far; without `advance`, do not wait."""
    if advance is not None:
        _finish(machine.mark(), pairs, advance)


def _finish(wait: Callable[[], None], pairs: int, advance: Advance | None) -> None:
    """Wait for a batch, then report its pairs."""
    wait()
    if advance is not None:
        advance(pairs)


def column_heights(rows: int, columns: int, first: int | None = None) -> Heights:
    """How many entries each column of a matrix needs: all rows, or with `first` those up to the diagonal.

    `first`: columns are images first, first + 1, ... of the rows.

    >>> column_heights(3, 4, first=0).tolist()
    [1, 2, 3, 3]
    """
    return np.full(columns, rows) if first is None else np.minimum(np.arange(columns) + first + 1, rows)


def batch_units(heights: Heights, start: int, stop: int, span: int) -> Units:
    """Units of work (right, left, count, slot) for the pairs `start` to `stop`, at most `span` pairs each.

    Pairs are numbered column by column. A unit is `count` rows of column `right`, from row `left` on, and its results
    go to `slot` and following.

    >>> batch_units(column_heights(3, 2), 0, 4, span=2).tolist()
    [[0, 0, 2, 0], [0, 2, 1, 2], [1, 0, 1, 3]]
    >>> batch_units(column_heights(3, 2), 4, 6, span=2).tolist()
    [[1, 1, 1, 0], [1, 2, 1, 1]]
    """
    ends = np.cumsum(heights)
    columns = np.arange(np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1)
    before = ends[columns] - heights[columns]  # pairs in all columns before each
    first, last = np.maximum(start - before, 0), np.minimum(stop - before, heights[columns])
    units = -(-last // span) - first // span  # in each column
    of = np.repeat(np.arange(len(columns)), units)
    number = np.arange(len(of)) - (np.cumsum(units) - units)[of] + (first // span)[of]
    left = np.maximum(number * span, first[of])
    count = np.minimum((number + 1) * span, last[of]) - left
    return np.stack([columns[of], left, count, before[of] + left - start], axis=1).astype(np.int32)
