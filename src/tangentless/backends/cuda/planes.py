"""What a fused stage needs to know of each image alone: planes of norms, in the units the kernels compute in.

The kernels leave out every constant factor: pools are sums, and sums grow from layer to layer. Kernels of this kind are
homogeneous, so a factor can be carried beside the values: a stage's values times `unit**2` are the true ones. Units are
powers of two and depend on the architecture alone, so they cost no precision and results do not depend on the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangentless.program import Program, Stage, embedded_squares

from .plan import ARC, EXPONENTIAL, IDENTITY, StagePlan

Array = NDArray[np.float64]
Planes = NDArray[np.float32]

LOG2_E = math.log2(math.e)
NEVER = -1e30  # an exponent: two to this power is zero
NEGLIGIBLE = 1e-15  # a norm this far below a typical one counts as zero


@dataclass(frozen=True)
class StageUnits:
    """Units of the values that enter a stage, of those after each of its embeddings, and typical norms before them."""

    entrance: float
    layers: tuple[float, ...]
    typical: tuple[float, ...]

    @property
    def exit(self) -> float:
        return self.layers[-1]


def program_units(program: Program, plans: tuple[StagePlan, ...]) -> tuple[StageUnits, ...]:
    """Units for every stage, chosen so that typical values stay near one where the kernel is free to choose."""
    units = []
    entrance, square = 1.0, float(program.channels)
    for stage, plan in zip(program.stages, plans, strict=True):
        unit, layers, typical = entrance, [], []
        for step, layer in zip(stage.steps, plan.layers, strict=True):
            square *= step.window[0] * step.window[1]
            typical.append(math.sqrt(square))
            square = float(embedded_squares(np.array(square), step.embedding))
            if layer.form not in (ARC, IDENTITY):  # these two add to their input, and so keep its unit
                unit = _power_of_two(math.sqrt(square))
            layers.append(unit)
        units.append(StageUnits(entrance, tuple(layers), tuple(typical)))
        entrance = unit / plan.pool_size
    return tuple(units)


def image_scales(images: Array) -> Array:
    """A power of two near each image's root mean square, (N,); one for an image of zeros."""
    squares = np.mean(np.square(images.reshape(len(images), -1)), axis=1)
    exponents = np.round(np.log2(squares, out=np.zeros_like(squares), where=squares > 0) / 2)
    return np.asarray(np.exp2(exponents))


def stage_planes(
    stage: Stage, plan: StagePlan, units: StageUnits, squares: Array, images: Array | None
) -> tuple[Planes, Planes]:
    """Planes of images as x and as z, each (N, planes, H, W), from the squared norms at the stage's entrance."""
    norms = stage.norms(squares)
    shape = (len(squares), plan.planes, *stage.grid)
    left, right = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    if images is not None:
        left[:, : plan.channels] = right[:, : plan.channels] = np.moveaxis(images, -1, 1)
    before = (units.entrance, *units.layers)
    for i, (layer, entering, leaving) in enumerate(zip(plan.layers, before, units.layers, strict=False)):
        norm = norms[:, i]
        nonzero = norm > NEGLIGIBLE * units.typical[i]
        inverse = np.divide(entering, norm, out=np.zeros_like(norm), where=nonzero)
        outer = np.where(nonzero, norm if layer.keep_norms else 1.0, 0.0) / leaving
        x, z = left[:, plan.channels + 2 * i :], right[:, plan.channels + 2 * i :]
        x[:, 0], x[:, 1], z[:, 0], z[:, 1] = inverse, outer, inverse, outer
        if layer.form == EXPONENTIAL:
            x[:, 0] = inverse * (layer.gamma * LOG2_E)
            logarithm = np.log2(outer, out=np.zeros_like(outer), where=nonzero)
            x[:, 1] = np.where(nonzero, logarithm - layer.gamma * LOG2_E, NEVER)
    return left, right


def pooled_sums(kernels: Any, plan: StagePlan) -> Any:
    """The diagonal of pooled kernels in the layout of `stage.cu`, (N, H / 2, W / 2), on the machine they are on."""
    offsets, half_height, half = plan.height // plan.parts // 2, plan.height // 2, plan.width // 2
    parts = kernels.reshape(len(kernels), plan.parts, offsets + 1, half_height, half + plan.warps_across, half)
    own, over = parts[:, 0, 0, :, 0], parts[:, 0, 0, :, -1]  # offset (0, 0), and what the last warp had to add to it
    before, over_before = parts[:, -1, -1, :, 0], parts[:, -1, -1, :, -1]  # the same of the last part
    return (own + over) + (before + over_before)


def _power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value)) if value > 0 else 1.0
