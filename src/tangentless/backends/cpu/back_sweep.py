"""The driver of fused gradients: back through all stages, for one left image against a vector of right images.

As in the fused kernel, an offset (u, v) between positions is its own stencil problem, lanes are right images, and rows
of a band of neighbouring offsets stream through a stage. The fused kernel has kept what enters each stage. From that,
inner products are computed again, which is cheaper than to keep them. Every embedding stores its slopes and bends
(`back_duals`), by which cotangents are multiplied on their way back.

A stage is a sequence of *phases*, whose code is in `back_leaves`, with a ring of a few rows between every two. For
three steps:

    enter -> embed -> embed -> turn -> pull -> pull -> leave

The phase that writes a ring adds up neighbours along the row, for the window of the phase that reads it; that one adds
up rows. Centred windows are their own transposes.

Cotangents of pixels and of logarithms of norms are added up in vectors at the positions of either image. Cotangents of
what enters a stage overwrite what was kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import back_leaves as f
from .simd import call_address, compiled, integer, internal, put

of_stage, of_step = f.of_stage, f.of_step


class View(NamedTuple):
    """Addresses of the frame, of two tables and of leaves; `band`: how many offsets v take turns."""

    frame: int
    stages: int
    steps: int
    band: int
    enter_pixels: int
    enter_pooled: int
    spread: int
    pull_row: int
    leave_pixels: int
    leave_pooled: int
    gather: int


@internal
def follow_offsets(view: Any, stage: Any, u: Any, first: Any) -> None:
    """Stream the rows of a band of offsets (u, v) through all phases of a stage.

    A phase is behind the one before by the reach of its window.
    """
    frame, steps = view.frame, view.steps
    start, last = of_stage(view.stages, stage, f.FIRST_STEP), of_stage(view.stages, stage, f.END_STEP)
    rows, lag, down, across = of_stage(view.stages, stage, f.HEIGHT) - abs(u), 0, 0, 0
    if start < last:
        down, across = of_step(steps, start, f.REACH_HEIGHT), of_step(steps, start, f.REACH_WIDTH)
    for step in range(start, last):
        lag += 2 * of_step(steps, step, f.REACH_HEIGHT)
    put(frame, f.STAGE, stage)
    put(frame, f.U, u)
    put(frame, f.FIRST, first)
    put(frame, f.END, min(first + view.band, of_stage(view.stages, stage, f.WIDTH)))
    for newest in range(rows + lag):
        row, ring = newest, 0
        if row < rows:
            put(frame, f.REACH, across)
            enter = view.enter_pixels if stage == 0 else view.enter_pooled
            run_row(view, enter if start < last else view.spread, row, ring)
        for step in range(start, last):
            row -= of_step(steps, step, f.REACH_HEIGHT)
            if 0 <= row < rows:
                set_step(view, step, start, last)
                run_row(view, of_step(steps, step, f.EMBED_LEAF if step < last - 1 else f.TURN_LEAF), row, ring)
            ring += 1
        for step in range(last - 2, start - 1, -1):
            row -= of_step(steps, step + 1, f.REACH_HEIGHT)
            if 0 <= row < rows:
                set_step(view, step, start, last)
                run_row(view, view.pull_row, row, ring)
            ring += 1
        row -= down
        if 0 <= row < rows:
            put(frame, f.REACH, down)
            run_row(view, view.leave_pixels if stage == 0 else view.leave_pooled, row, ring)


@internal
def set_step(view: Any, step: Any, start: Any, last: Any) -> None:
    """Choose a step, and its ring of slopes: those follow the rings between phases."""
    put(view.frame, f.STEP, step)
    put(view.frame, f.SLOPES, 2 * (last - start) + 2 * (step - start))


@internal
def run_row(view: Any, leaf: Any, row: Any, ring: Any) -> None:
    """Run a phase for one row, which it reads from a ring."""
    put(view.frame, f.ROW, row)
    put(view.frame, f.RING, ring)
    call_address(leaf, view.frame)


@compiled
def backward_rows(
    view: Any, low: Any, high: Any, left: Any, first: Any, end: Any, pooled: Any, row_bytes: Any, wanted: Any, out: Any
) -> None:
    """Back through stages [low, high) from the last, for left images [first, end): to pixels, pools and norms.

    `left` has the addresses of the images' pixels, norms and inverses, each with the bytes from one image to the next;
    `pooled` what was kept of the first of them, with the cotangents of the last pool.

    `out` is the address of an array (rows, numbers) for the cotangents of the left images; rows whose `wanted` is 0 are
    skipped. With `out` 0, no row is skipped, and cotangents of the left images stay in their vectors, as those of the
    right ones always do.
    """
    for row in range(first, end):
        if out != 0 and integer(wanted, row - first) == 0:
            continue
        put(view.frame, f.PIXELS, left[0] + row * left[1])
        put(view.frame, f.NORMS, left[2] + row * left[3])
        put(view.frame, f.INVERSES, left[4] + row * left[5])
        put(view.frame, f.POOLED, pooled + (row - first) * row_bytes)
        for stage in range(high - 1, low - 1, -1):
            tall, wide = of_stage(view.stages, stage, f.HEIGHT), of_stage(view.stages, stage, f.WIDTH)
            for u in range(1 - tall, tall):
                for v in range(1 - wide, wide, view.band):
                    follow_offsets(view, stage, u, v)
        if out != 0:
            put(view.frame, f.OUT, out + (row - first) * integer(view.frame, f.COUNT) * 8)
            call_address(view.gather, view.frame)


def compile_driver() -> None:
    """Compile all that is here, or take it from disk, by a call without rows."""
    backward_rows(View(*(0,) * len(View._fields)), 0, 0, (0,) * 6, 0, 0, 0, 0, 0, 0)
