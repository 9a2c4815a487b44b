"""Rows of images for `stage.cu` and `front.cu`: pixels, and planes of norms for every layer, in the kernels' units.

The device code leaves out constant factors: a pool is a sum, not a mean, so values grow from layer to layer. The layers
are homogeneous, so the factor is tracked here: a stage's values times `unit**2` are the true ones. Units are powers of
two and depend only on the architecture, so they cause no rounding and results do not depend on the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...layers import Grid
from ..segments import Embedding, Segment
from .layout import ARC, EXPONENTIAL, IDENTITY, FrontPlan, StagePlan

NEVER = -1e30  # an exponent: two to this power is zero
COLUMN_UNIT = 2.0**-8  # of pixels in float16: keeps the digits of small ones, and UNIT_PIXELS of them stay in range
UNIT_PIXELS = 16384
NEGLIGIBLE = 1e-15  # a norm below this fraction of a typical one counts as zero


@dataclass(frozen=True)
class StageUnits:
    """Units of the values at the entrance of a stage and after each embedding; typical norms before each embedding."""

    entrance: float
    layers: tuple[float, ...]
    typical: tuple[float, ...]

    @property
    def exit(self) -> float:
        return self.layers[-1]


def stage_units(stages: tuple[Segment, ...], plans: tuple[StagePlan, ...]) -> tuple[StageUnits, ...]:
    """Units for every stage. Where a layer allows a new unit, it is chosen so that typical values are near one."""
    units = []
    entrance, square = entrance_unit(plans[0]), float(plans[0].channels)
    for stage, plan in zip(stages, plans, strict=True):
        unit, layers, typical = entrance, [], []
        for step, layer in zip(stage.steps, plan.layers, strict=True):
            square *= step.window[0] * step.window[1]
            typical.append(math.sqrt(square))
            square = float(_embedded(np.array(square), step.embedding))
            if layer.form not in (ARC, IDENTITY):  # these two add a multiple of their input, so they keep its unit
                unit = _power_of_two(math.sqrt(square))
            layers.append(unit)
        units.append(StageUnits(entrance, tuple(layers), tuple(typical)))
        entrance = unit / plan.pool_size
    return tuple(units)


def entrance_unit(plan: StagePlan) -> float:
    """The unit of pixels: 1 in float32. In float16 it grows with images of more than `UNIT_PIXELS` numbers."""
    if not plan.patch_steps and not plan.given:
        return 1.0
    doublings = math.ceil(math.log2(plan.height * plan.width * plan.channels / UNIT_PIXELS) / 2)
    return COLUMN_UNIT * 2.0 ** max(0, doublings)


def image_scales(images: Any, xp: Any) -> Any:
    """A power of two near the root mean square of each image (N, ...), as (N,); 1 for an image of zeros."""
    squares = xp.mean(xp.square(images.reshape(len(images), -1)), axis=1)
    _, exponents = xp.frexp(squares)
    return xp.ldexp(xp.ones_like(squares), exponents // 2)


def channels_last(pixels: Any, grid: Grid) -> Any:
    """Pixels (N, C H W) of the offset path as images (N, *grid, C) in float64."""
    return np.moveaxis(pixels.astype(np.float64).reshape(len(pixels), -1, *grid), 1, -1)


def stage_rows(
    stage: Segment,
    plan: StagePlan,
    units: StageUnits,
    squares: Any,
    images: Any | None,
    xp: Any,
    sides: Sequence[int] = (0, 1),
) -> list[Any]:
    """Rows of images for `stage.cu`, (N, H, floats), one array for each of `sides`: as x (0) and as z (1).

    `squares` are squared norms at the entrance, (N, H, W). `images` (N, H, W, C) are needed by a first stage only.
    """
    rows: list[list[Any]] = [[] for _ in sides]
    before = (units.entrance, *units.layers[:-1])
    steps = zip(stage.steps, plan.layers, before, units.layers, strict=True)
    for i, (step, layer, entering, leaving) in enumerate(steps):
        squares = _window_sums(squares, xp)
        norm = xp.sqrt(squares)
        squares = _embedded(squares, step.embedding)
        nonzero = norm > NEGLIGIBLE * units.typical[i]
        safe = xp.where(nonzero, norm, 1.0)
        inverse = xp.where(nonzero, entering / safe, 0.0)
        outer = xp.where(nonzero, (safe if layer.keep_norms else 1.0) / leaving, 0.0)
        if i + 1 == len(stage.steps):
            outer = stage.exits[0].weigh(outer, xp)
        if i == 0 and images is not None and not plan.given:
            for some, first in zip(rows, _first_rows(plan, images, sides, xp), strict=True):
                some.append(first)
        for some, side in zip(rows, sides, strict=True):
            planes, beyond = (inverse, outer), (0.0, 0.0)
            if side == 0 and layer.form == EXPONENTIAL:
                planes, beyond = _planes_of_x(layer.rate, inverse, outer, xp), (0.0, NEVER)
            elif side == 0:
                planes = inverse * layer.scale, outer
            wide = [_widened(p, plan.spans[side], xp, value) for p, value in zip(planes, beyond, strict=True)]
            some += _layer_planes(plan, side, wide, xp)
    return [_joined(some, plan.row_floats[side], xp) for some, side in zip(rows, sides, strict=True)]


def _embedded(squares: Any, embedding: Embedding) -> Any:
    return squares if embedding is None else embedding.squares(squares)


def _planes_of_x(rate: float, inverse: Any, outer: Any, xp: Any) -> tuple[Any, Any]:
    """The planes xr and xa of x for an exponential, 2^(s xr zr + xa): see `embedding.cuh`."""
    logarithm = xp.log2(xp.where(outer > 0, outer, 1.0))
    return inverse * rate, xp.where(outer > 0, logarithm - rate, NEVER)


def _layer_planes(plan: StagePlan, side: int, planes: list[Any], xp: Any) -> list[Any]:
    """The two planes of a layer; with `outer`, the first one as two parts, which tensor cores multiply."""
    if not plan.outer:
        return planes
    ratio, norm = planes
    order = slice(None) if side == 0 else _part_order(plan)
    size = plan.block[0] if side == 0 else plan.block[1] // 2
    parts = [part[..., order].reshape(*part.shape[:-1], -1, size) for part in _parts(ratio, xp)]
    return [xp.stack(parts, axis=-2).reshape(*norm.shape[:-1], -1), norm]


def _first_rows(plan: StagePlan, images: Any, sides: Sequence[int], xp: Any) -> Iterator[Any]:
    """For each side, the pixels: channel by channel, or as columns of three pixels in the order of the tensor cores."""
    if not plan.patch_steps:
        channels = xp.moveaxis(images, -1, 2)
        yield from (_widened(channels, plan.spans[side], xp).reshape(*images.shape[:2], -1) for side in sides)
        return
    columns = _columns(images, entrance_unit(plan), xp)
    for side in sides:
        high, low = _halves(_widened(columns, plan.spans[side], xp), xp)
        parts = (high, high, low) if side == 0 else (high, low, high)  # products h h', h l' and l h'
        entries = xp.concatenate(parts, axis=2)
        room = [(0, 0), (0, 0), (0, 16 * plan.patch_steps - entries.shape[2]), (0, 0)]
        entry, position = _patch_order(plan, side)
        ordered = xp.moveaxis(xp.pad(entries, room)[:, :, entry, position], 2, -1)
        yield xp.ascontiguousarray(ordered).view(xp.float32)


def front_rows(front: FrontPlan, images: Any, xp: Any) -> tuple[Any, Any]:
    """Rows of images as x and as z for `front.cu`, each (N, passes, H, floats)."""
    plan = front.stage
    room = 16 * front.steps * front.passes - images.shape[-1]
    channels = xp.pad(images / entrance_unit(plan), [(0, 0), (0, 0), (0, 0), (0, room)])
    by_pass = channels.reshape(*images.shape[:3], front.passes, 16 * front.steps)
    ordered = xp.moveaxis(by_pass, (3, 4), (1, 3))  # pass, row, channel, column
    rows = []
    for side, span in enumerate(plan.spans):
        halves = xp.stack(_halves(_widened(ordered, span, xp), xp), axis=3)
        part, entry, position = _front_order(front, side)
        rows.append(xp.ascontiguousarray(halves[:, :, :, part, entry, position]).view(xp.float32))
    return rows[0], rows[1]


def _front_order(front: FrontPlan, side: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Part, entry and position of every float16 in a row of `front.cu`; see `_patch_order` for the order of lanes."""
    size, steps = front.stage.block[side], front.steps
    if side == 0:
        step, part, tile, g, t, word, half = np.indices((steps, 2, size // 2, 8, 4, 4, 2))
        position, entry = size * g + 2 * tile + word % 2, 2 * t + half + 8 * (word // 2)
    else:
        step, tile, g, t, part, word, half = np.indices((steps, size // 2, 8, 4, 2, 2, 2))
        position, entry = size * (g // 2) + 2 * tile + g % 2, 2 * t + half + 8 * word
    return part.ravel(), (entry + 16 * step).ravel(), position.ravel()


def _patch_order(plan: StagePlan, side: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Entry and position of every float16 in a row, in the order in which the lanes of a warp load them.

    A tensor core's step multiplies A (x), 16×16, by B (z), 16×8. With lane = 4 g + t:

        of A, a lane holds rows g, g + 8 and columns 2t, 2t + 1, 2t + 8, 2t + 9
        of B, it holds rows 2t, 2t + 1, 2t + 8, 2t + 9 and column g
        of A B, it gets rows g, g + 8 and columns 2t, 2t + 1

    The order of positions along the rows of A and the columns of B is free. Here each lane gets neighbouring positions.
    """
    tiles, steps, size = plan.block[side] // 2, plan.patch_steps, plan.block[side]
    if side == 0:
        tile, step, g, t, word, half = np.indices((tiles, steps, 8, 4, 4, 2))
        position, entry = size * g + 2 * tile + word % 2, 2 * t + half + 8 * (word // 2)
    else:
        tile, g, t, step, word, half = np.indices((tiles, 8, 4, steps, 2, 2))
        position, entry = size * (g // 2) + 2 * tile + g % 2, 2 * t + half + 8 * word
    return (entry + 16 * step).ravel(), position.ravel()


def _part_order(plan: StagePlan) -> NDArray[Any]:
    """Columns of z in the order in which lanes load their parts (B): see `_patch_order`."""
    size = plan.block[1]
    g, tile = np.indices((8, size // 2))
    order: NDArray[Any] = (size * (g // 2) + 2 * tile + g % 2).ravel()
    return order


def _parts(values: Any, xp: Any) -> tuple[Any, Any]:
    """Numbers as sums of two with eleven binary digits each, the precision of tf32: high and low parts."""
    high = _eleven_digits(values, xp)
    return high, _eleven_digits(values - high, xp)


def _eleven_digits(values: Any, xp: Any) -> Any:
    mantissas, exponents = xp.frexp(values)
    return xp.ldexp(xp.rint(mantissas * 2.0**11), exponents - 11)


def _columns(images: Any, unit: float, xp: Any) -> Any:
    """Every pixel with those above and below it, divided by the unit, (N, H, 3 C, W), from images (N, H, W, C)."""
    height = images.shape[1]
    padded = xp.moveaxis(xp.pad(images / unit, [(0, 0), (1, 1), (0, 0), (0, 0)]), -1, 2)
    return xp.concatenate([padded[:, a : a + height] for a in range(3)], axis=2)


def _window_sums(values: Any, xp: Any) -> Any:
    """Zero-padded sums over 3×3 positions, (N, H, W)."""
    padded = xp.pad(values, [(0, 0), (1, 1), (1, 1)])
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]


def _halves(values: Any, xp: Any) -> tuple[Any, Any]:
    """Numbers as sums of two float16: high and low parts."""
    high = values.astype(xp.float16)
    return high, (values - high.astype(xp.float64)).astype(xp.float16)


def _widened(values: Any, span: int, xp: Any, value: float = 0.0) -> Any:
    room = [(0, 0)] * (values.ndim - 1) + [(0, span - values.shape[-1])]
    return xp.pad(values, room, constant_values=value)


def _joined(rows: list[Any], floats: int, xp: Any) -> Any:
    joined = xp.concatenate([row.astype(xp.float32) for row in rows], axis=-1)
    return xp.ascontiguousarray(_widened(joined, floats, xp))


def pooled_sums(kernels: Any, plan: StagePlan) -> Any:
    """Pooled kernels of images with themselves at equal positions, (N, H / 2, W / 2), from the output of `stage.cu`."""
    offset = kernels.reshape(len(kernels), *plan.output_shape)[:, 0]
    return offset.diagonal(axis1=2, axis2=3)


def _power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value)) if value > 0 else 1.0
