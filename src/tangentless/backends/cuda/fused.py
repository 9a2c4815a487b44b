"""The fused path: every stage of a program as one launch of `stage.cu` over a batch of pairs.

A batch is as many pairs as the scratch memory between stages holds. Which pairs share a batch never matters to the
result. Batches take turns in lanes, so that some fill the multiprocessors that the end of another's stage leaves
idle. All of this works on arrays of NumPy or CuPy alike: the tests run it with the kernels compiled for the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tangentless.backends import Advance
from tangentless.program import Program

from .layout import StagePlan
from .planes import StageUnits, image_scales, pooled_sums, program_units, stage_rows

Array = NDArray[np.float64]
Units = NDArray[np.int32]
Heights = NDArray[np.int64]
Launch = Callable[..., None]
Lane = AbstractContextManager[Any]  # what is launched and copied within it is done in this order

LANES = 3  # faster than one or two of larger batches, in less memory
ROUNDS = 8  # of a block: enough to share the loading of z, few enough for an even end of the launch


class Machine(Protocol):
    """A GPU, or the emulation of one."""

    xp: Any  # its array module

    def load_stage(self, plan: StagePlan) -> Launch:
        """The compiled kernel: call it with (left, right, input, output, units, left_step, right_step)."""
        ...

    def upload(self, values: NDArray[Any]) -> Any:
        """A copy on the machine."""
        ...

    def lanes(self, count: int) -> AbstractContextManager[Sequence[Lane]]:
        """Lanes whose launches may overlap those of the others.

        They come after all that was launched before, and before all that is launched afterwards.
        """
        ...

    def mark(self) -> Callable[[], None]:
        """A function that waits for all that was launched so far, in the lane it is made in."""
        ...


@dataclass(frozen=True)
class FusedImages:
    """Planes of every stage on one machine, in the roles of x and of z."""

    left: tuple[Any, ...]
    right: tuple[Any, ...]
    scales: Any

    def __getitem__(self, part: slice) -> FusedImages:
        return FusedImages(
            tuple(planes[part] for planes in self.left), tuple(planes[part] for planes in self.right), self.scales[part]
        )

    def __len__(self) -> int:
        return len(self.scales)


class FusedPath:
    """A program's stages on one machine."""

    def __init__(self, program: Program, plans: tuple[StagePlan, ...], machine: Machine) -> None:
        self.program = program
        self.plans = plans
        self.machine = machine
        self.units: tuple[StageUnits, ...] = program_units(program, plans)
        self.launches = [machine.load_stage(plan) for plan in plans]

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair in every lane."""
        return LANES * 4 * sum(plan.output_floats for plan in self.plans)

    @property
    def factor(self) -> float:
        """What turns totals into means over the last grid."""
        return self.units[-1].exit ** 2 / float(self.plans[-1].pool_size) ** 2

    def prepare(self, images: Any) -> tuple[FusedImages, Any]:
        """Planes for images (N, *grid, C), and squared norms after the last pool; all on the machine."""
        xp = self.machine.xp
        images = images.reshape(len(images), *self.program.stages[0].grid, self.program.channels)
        scales = image_scales(images, xp)
        scaled = images / scales.reshape(-1, 1, 1, 1)
        squares = xp.sum(xp.square(scaled), axis=-1)
        units = self.machine.upload(_selves(len(images)))
        left, right = [], []
        kernels: Any = None
        for stage, plan, stage_units, launch in zip(
            self.program.stages, self.plans, self.units, self.launches, strict=True
        ):
            x, z = stage_rows(stage, plan, stage_units, squares, scaled if plan.channels else None, xp)
            left.append(x)
            right.append(z)
            kernels = self._own_kernels(plan, launch, x, z, kernels, units)
            own = kernels if plan.last else pooled_sums(kernels, plan)
            squares = own.astype(xp.float64) * (stage_units.exit / plan.pool_size) ** 2
        restored = xp.ones_like(scales) if self.program.scale_free else scales
        return FusedImages(tuple(left), tuple(right), restored), squares * restored**2

    def _own_kernels(self, plan: StagePlan, launch: Launch, x: Any, z: Any, source: Any, units: Any) -> Any:
        """Kernels of images with themselves after a stage, or their totals after the last."""
        xp = self.machine.xp
        if plan.last:
            output = xp.empty(len(x), dtype=xp.float64)
        else:
            output = xp.empty((len(x), plan.output_floats), dtype=xp.float32)
        launch(x, z, x if source is None else source, output, units, 0, 1)
        return output

    def values(
        self,
        left: FusedImages,
        right: FusedImages,
        batch: int,
        diagonal: int | None = None,
        advance: Advance | None = None,
    ) -> Any:
        """Inner products after the last pool, (n, m) in float64 on the machine.

        With `diagonal`, only entries with row <= column + diagonal are needed.
        """
        xp = self.machine.xp
        totals = xp.zeros((len(left), len(right)), dtype=xp.float64)
        heights = column_heights(len(left), len(right), diagonal)
        total = int(heights.sum())
        starts = range(0, total, batch)
        scratch = [
            [xp.empty((batch, plan.output_floats), dtype=xp.float32) for plan in self.plans[:-1]]
            for _ in range(min(LANES, len(starts)))
        ]
        waiting: deque[tuple[Callable[[], None], int]] = deque()
        with self.machine.lanes(len(scratch)) as lanes:
            for number, start in enumerate(starts):  # planned one by one, while the machine works on those before
                stop = min(start + batch, total)
                work = [batch_units(heights, start, stop, ROUNDS * plan.slots) for plan in self.plans]
                with lanes[number % len(lanes)]:
                    units = [self.machine.upload(part) for part in work]
                    self._run(left, right, units, scratch[number % len(lanes)], totals)
                    waiting.append((self.machine.mark(), stop - start))
                if len(waiting) > len(lanes):  # so that every lane always has the next one at hand
                    _finish(*waiting.popleft(), advance)
            while waiting:
                _finish(*waiting.popleft(), advance)
        totals *= self.factor
        totals *= left.scales[:, None]
        totals *= right.scales[None, :]
        return totals

    def _run(self, left: FusedImages, right: FusedImages, units: list[Any], scratch: list[Any], totals: Any) -> None:
        source: Any = left.left[0]  # of the first stage, which does not read it
        outputs = [*scratch, totals]
        for x, z, output, work, launch in zip(left.left, right.right, outputs, units, self.launches, strict=True):
            launch(x, z, source, output, work, totals.shape[1], 1)
            source = output


def _selves(count: int) -> Units:
    """Units of work for every image with itself."""
    index = np.arange(count, dtype=np.int32)
    return np.stack([index, index, np.ones_like(index), index], axis=1)


def _finish(wait: Callable[[], None], pairs: int, advance: Advance | None) -> None:
    wait()
    if advance is not None:
        advance(pairs)


def column_heights(rows: int, columns: int, diagonal: int | None = None) -> Heights:
    """Pairs of every column of a matrix; with `diagonal`, those with row <= column + diagonal.

    >>> column_heights(3, 4, diagonal=0).tolist()
    [1, 2, 3, 3]
    """
    return np.full(columns, rows) if diagonal is None else np.minimum(np.arange(columns) + diagonal + 1, rows)


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
