"""The fused path: every stage of a chain as one launch of `stage.cu` over a batch of pairs.

A batch is as many pairs as the scratch memory between stages holds. Which pairs share a batch never matters to the
result. Batches take turns in several streams, so that one fills the multiprocessors that the end of another's stage
leaves idle. All of this works on arrays of NumPy or CuPy alike: the tests run it with kernels compiled for the host.
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
from .close import FindExact, Kept, refine
from .layout import FrontPlan, StagePlan
from .planes import StageUnits, front_rows, image_scales, pooled_sums, stage_rows, stage_units
from .portable import make_portable

Units = NDArray[np.int32]
Heights = NDArray[np.int64]
Launch = Callable[..., None]
LaunchText = Callable[..., None]
Stream = AbstractContextManager[Any]  # launches and copies within it run in order

STREAMS = 3  # faster than one or two of larger batches, in less memory
CLOSE = 5e-4  # 1 - cosine of pairs of which float32, which errs by up to 4e-8, leaves less than four digits
WALKERS = 256  # threads of a block that share nothing
ROUNDS = 8  # of a block: enough to share the loading of z, few enough for an even end of the launch


class Machine(Protocol):
    """A GPU, or the emulation of one."""

    xp: Any  # its array module
    shared_limit: int  # bytes of shared memory of a block

    def load_stage(self, plan: StagePlan | FrontPlan) -> Launch:
        """The compiled kernel: call it with (left, right, input, output, units, left_step, right_step)."""
        ...

    def load_text(self, text: str) -> LaunchText:
        """The compiled kernels of a text: call it with a kernel's name, blocks, threads and bytes that they share, and
        its arguments. Kernels that share nothing walk over their elements, by fewer blocks where that is better."""
        ...

    def free_bytes(self) -> int:
        """Memory that an allocation could use."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """A context in which work is done on this machine."""
        ...

    def upload(self, values: NDArray[Any]) -> Any:
        """A copy on the machine."""
        ...

    def deliver(self, values: Any, beside: Any) -> Any:
        """Values of the machine as the kind of array that `beside` is, in the memory it is in."""
        ...

    def streams(self, count: int) -> AbstractContextManager[Sequence[Stream]]:
        """Streams whose launches may overlap those of the others.

        They start after everything launched before, and finish before everything launched afterwards.
        """
        ...

    def mark(self) -> Callable[[], None]:
        """A function that waits for everything launched so far in the current stream."""
        ...


@dataclass(frozen=True)
class FusedImages:
    """Rows of the front and of every stage on one machine, in the roles of x and of z; pixels, and squared norms after
    the last pool."""

    graph: Graph
    left: tuple[Any, ...]
    right: tuple[Any, ...]
    pixels: Any  # (N, H, W, C) over scales, in float32
    scales: Any
    squares: Any
    kept: Kept = field(default_factory=Kept)

    @property
    def diagonal(self) -> Any:
        return self.graph.head_diagonal([self.squares])

    def __getitem__(self, part: slice) -> FusedImages:
        left, right = (tuple(rows[part] for rows in side) for side in (self.left, self.right))
        pixels, scales, squares = (one[part] for one in (self.pixels, self.scales, self.squares))
        kept = self.kept.part(range(len(self))[part])
        return FusedImages(self.graph, left, right, pixels, scales, squares, kept)

    def pixels_of(self, chosen: Any) -> Any:
        """Those of some images in float64, over scales, which cosines do not depend on."""
        return self.pixels[chosen].astype(np.float64)

    def __len__(self) -> int:
        return len(self.scales)


class FusedPath:
    """The stages of a graph on one machine; `exact` takes the same graph in float64."""

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
        """Scratch memory of one pair in every stream."""
        return STREAMS * 4 * sum(part.output_floats for part in self.parts)

    @property
    def factor(self) -> float:
        """What turns totals into means over the last grid."""
        return self.units[-1].exit ** 2 / float(self.plans[-1].pool_size) ** 2

    def prepare(self, images: Any, batch: int) -> FusedImages:
        """Rows for images (N, *grid, C), at most `batch` of them, on the machine."""
        xp = self.machine.xp
        height, width = (n * p for n, p in zip(self.stages[0].grid, self.patch, strict=True))
        images = images.reshape(len(images), height, width, self.graph.channels)
        scales = image_scales(images, xp)
        whole = images / scales.reshape(-1, 1, 1, 1)
        scaled = patched(whole, self.patch)
        squares = xp.sum(xp.square(scaled), axis=-1)
        units = self.machine.upload(selves(len(images)))
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
        """Kernels of images with themselves after a stage, or their totals after the last."""
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

        The columns are images number `first` and following of the rows: then only entries on and right of the diagonal
        are needed. None: all of them are.
        """
        values = self._products(left, right, batch, first, advance)
        refine(values, left, right, CLOSE, self.exact, max(1, batch // 2), self.machine.xp)
        return self.graph.apply_head([values], [left.squares], [right.squares])

    def _products(
        self, left: FusedImages, right: FusedImages, batch: int, first: int | None, advance: Advance | None
    ) -> Any:
        """Inner products after the last pool."""
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
            for number, start in enumerate(starts):  # planned one by one, while the machine works on those before
                stop = min(start + batch, total)
                work = [batch_units(heights, start, stop, ROUNDS * plan.slots) for plan in self.parts]
                with streams[number % len(streams)]:
                    units = [self.machine.upload(part) for part in work]
                    self._run(left, right, units, scratch[number % len(streams)], totals)
                    waiting.append((self.machine.mark(), stop - start))
                if len(waiting) > len(streams):  # so that every stream always has the next batch at hand
                    _finish(*waiting.popleft(), advance)
            while waiting:
                _finish(*waiting.popleft(), advance)
        totals *= self.factor
        totals *= left.scales[:, None]
        totals *= right.scales[None, :]
        return totals

    def _run(self, left: FusedImages, right: FusedImages, units: list[Any], scratch: list[Any], totals: Any) -> None:
        source: Any = left.left[0]  # of what comes first, which does not read it
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


def walk(launch: LaunchText, name: str, elements: int, arguments: Sequence[Any]) -> None:
    """Launch a kernel whose threads share nothing: they walk over so many elements."""
    launch(name, -(-elements // WALKERS), WALKERS, 0, arguments)


def selves(count: int) -> Units:
    """Units of work for every image with itself."""
    index = np.arange(count, dtype=np.int32)
    return np.stack([index, index, np.ones_like(index), index], axis=1)


def _finish(wait: Callable[[], None], pairs: int, advance: Advance | None) -> None:
    wait()
    if advance is not None:
        advance(pairs)


def column_heights(rows: int, columns: int, first: int | None = None) -> Heights:
    """Pairs of every column of a matrix; if the columns are rows number `first` and following, up to the diagonal.

    >>> column_heights(3, 4, first=0).tolist()
    [1, 2, 3, 3]
    """
    return np.full(columns, rows) if first is None else np.minimum(np.arange(columns) + first + 1, rows)


def batch_units(heights: Heights, start: int, stop: int, span: int) -> Units:
    """Units of work (right, left, count, slot) of at most `span` pairs each, for the pairs `start` to `stop`.

    Pairs are numbered column by column; every unit is a run of rows of one column.

    >>> batch_units(column_heights(3, 2), 0, 4, span=2).tolist()
    [[0, 0, 2, 0], [0, 2, 1, 2], [1, 0, 1, 3]]
    >>> batch_units(column_heights(3, 2), 4, 6, span=2).tolist()
    [[1, 1, 1, 0], [1, 2, 1, 1]]
    """
    ends = np.cumsum(heights)
    columns = np.arange(np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1)
    before = ends[columns] - heights[columns]  # pairs of the columns before each
    first, last = np.maximum(start - before, 0), np.minimum(stop - before, heights[columns])
    units = -(-last // span) - first // span  # of each column
    of = np.repeat(np.arange(len(columns)), units)
    number = np.arange(len(of)) - (np.cumsum(units) - units)[of] + (first // span)[of]
    left = np.maximum(number * span, first[of])
    count = np.minimum((number + 1) * span, last[of]) - left
    return np.stack([columns[of], left, count, before[of] + left - start], axis=1).astype(np.int32)
