"""The first stage of a chain for gradients, by `stage.cu`, which is faster than the kernels of `offsets.cuh`.

The backward pass needs the sums of the first pool in the layout of `offsets.cuh`, so they are copied into it. Chains
that `stage.cu` cannot run, and float64, use the kernels of `offsets.cuh` for the first stage too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..general import pixel_squares
from .fused import Launch, Machine, walk
from .layout import StagePlan
from .offsets import OffsetPlan
from .planes import channels_last, stage_rows, stage_units


class FirstStage:
    """The first stage of a chain on one machine."""

    def __init__(self, forward: OffsetPlan, plan: StagePlan, machine: Machine, launch: Launch) -> None:
        self.forward, self.segment, self.plan, self.machine = forward, forward.segments[0], plan, machine
        (self.units,) = stage_units((self.segment,), (plan,))
        self.run, self.launch = machine.load_stage(plan), launch

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair."""
        return 4 * self.plan.output_floats

    def rows(self, pixels: Any, side: int) -> Any:
        """Images (N, numbers), divided by their scales, as rows for `stage.cu`: of left (0) or right (1) images."""
        images = channels_last(pixels, self.segment.grid)
        squares = pixel_squares(images)
        return stage_rows(self.segment, self.plan, self.units, squares, images, self.machine.xp, (side,))[0]

    def exits(self, left: Any, right: Any, units: Any) -> Any:
        """Sums of the first pool for all units, (units, numbers), from the rows of both sides."""
        xp, lanes, one = self.machine.xp, self.forward.lanes, self.segment.exits[0]
        sums = xp.empty((len(units) * lanes, self.plan.output_floats), dtype=np.float32)
        slots = units.copy()
        slots[:, 3] = lanes * xp.arange(len(units), dtype=np.int32)
        self.run(left, right, left, sums, slots, 0, 1)
        exits = xp.empty((len(units), self.plan.output_floats * lanes), dtype=np.float32)
        values = len(units) * self.plan.output_floats
        sizes = [np.int64(values), *one.grid, np.float64(self.units.exit**2)]
        walk(self.launch, "lay_out", values, [sums, exits, units, *sizes])
        return exits
