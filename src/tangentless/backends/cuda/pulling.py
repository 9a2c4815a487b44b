"""Plans of fused gradients on the GPU: how the kernels that pull cotangents back divide their work.

There is one kernel for each segment of a chain. `pulling.cuh` says how a block works, `pull_writer.py` writes the
kernels, and `pulled.py` launches them.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import Graph, Pair
from ..chains import STEEPEST
from ..segments import Segment, flat_chain
from .offsets import OffsetPlan, plan_offsets

_MOST_THREADS = 1024
ROUND = 3  # rows between two looks at how far the team before is
# Measured on an H200, on 32×32 positions.
_COLUMNS = 32  # of a team, up to which it has several offsets v side by side
_TEAMS = (8, 4, 2, 1)  # of a block
_EARLY = 4  # channels up to which a thread reads pixels a phase before it needs them: they take registers
# By the number of offsets u that a thread follows at a time: threads of a multiprocessor, which have 65,536 registers,
# and how many of a thread's keep values of earlier rows, at most.
_RESIDENT = {1: 512, 2: 256}
_KEPT = {1: 64, 2: 96}


@dataclass(frozen=True)
class Shape:
    """How the kernel of a segment divides its work; see `pulling.cuh`."""

    span: int  # offsets u that a thread follows at a time
    columns: int  # of a team: the width, times the number of offsets v side by side
    teams: int  # of a block
    grid: Pair
    reach: Pair  # the largest |u| and |v| that are needed
    groups: int  # blocks among which the offsets v are divided
    pad: int  # unused places before and after a row of values
    staged: bool  # whether planes of images are copied into shared memory
    shared_bytes: int  # for rows of values, where threads do not shuffle them, and for planes
    resident: int  # blocks of a multiprocessor at the same time

    @property
    def offsets(self) -> Pair:
        """How many offsets u and v are computed; u and u - H are the same one, and so are v and v - W."""
        down, across = (min(n, 2 * far + 1) for n, far in zip(self.grid, self.reach, strict=True))
        return down, across

    @property
    def team(self) -> int:
        """Threads of a team."""
        return -(-self.columns // 32) * 32

    @property
    def threads(self) -> int:
        return self.teams * self.team

    @property
    def shuffles(self) -> bool:
        """Whether teams are warps whose threads all have work: these exchange values by shuffles."""
        return self.columns == 32 and self.offsets[1] % (self.teams * (32 // self.grid[1])) == 0

    @property
    def stride(self) -> int:
        """Places of a team's row of values."""
        return self.columns + 2 * self.pad


@dataclass(frozen=True, eq=False)
class PullPlan:
    """A chain whose gradient is computed by fused kernels."""

    forward: OffsetPlan
    segments: tuple[Segment, ...]  # of the way back: those of a `flat_chain`
    flat: bool  # the chain ends in a patch of the whole grid: only pairs of equal positions count there
    both: bool  # for both images of pairs, or for the right ones
    shapes: tuple[Shape, ...]

    def size(self, place: int) -> int:
        """How many cotangents a segment computes for an image."""
        return count_cotangents(self.forward, place) * math.prod(self.segments[place].grid)

    def planes(self, place: int, pixels: Any, norms: Any, above: int, xp: Any) -> Any:
        """The planes of images (N, ...) that a segment reads: (N, numbers), with so many rows of zeros `above` each."""
        grid, beside = self.segments[place].grid, self.shapes[place].columns // self.segments[place].grid[1]
        starts = [start for (segment, _), start in sorted(self.forward.norm_places.items()) if segment == place]
        rows = [pixels] if place == 0 else []
        rows += [norms[:, start : start + math.prod(grid)] for start in starts]
        filled = xp.zeros(
            (len(pixels), count_cotangents(self.forward, place), above + grid[0], beside, grid[1]), pixels.dtype
        )
        if rows:
            filled[:, :, above:] = xp.concatenate(rows, axis=1).reshape(len(pixels), -1, grid[0], 1, grid[1])
        return filled.reshape(len(pixels), -1)


@functools.lru_cache(maxsize=64)
def plan_pulling(graph: Graph, precision: str, shared_limit: int, both: bool) -> PullPlan | str:
    """A plan for the gradient, for `both` images or for the right ones, or the reason why it takes the general path."""
    if graph.tangent:
        return "it is a tangent kernel"
    cut = flat_chain(graph)
    if isinstance(cut, str):
        return cut
    segments, flat = cut
    precision = "float64" if graph.steepest > STEEPEST else precision
    for lanes in (4, 2, 1):
        forward = plan_offsets(graph, precision, shared_limit, lanes)
        if isinstance(forward, str):
            return forward
        if forward.lanes != lanes:
            continue
        shapes = tuple(_shape(forward, one, place, both, shared_limit) for place, one in enumerate(segments))
        found = PullPlan(forward, segments, flat, both, shapes)
        most = max(one.shared_bytes for one in shapes)
        fit = (
            _kept(forward, one) * shape.span <= _KEPT[shape.span] for one, shape in zip(segments, shapes, strict=True)
        )
        if lanes == 1 or (most <= shared_limit and all(fit)):
            break
    if max(one.threads for one in shapes) > _MOST_THREADS:
        return f"its images have more than {_MOST_THREADS} columns"
    if most <= shared_limit:
        return found
    return f"its cotangents take {most >> 10} KiB of shared memory, more than the {shared_limit >> 10} KiB of a block"


def reached(segment: Segment) -> list[int]:
    """For every step, how many rows after a row entered its window sums are complete."""
    return list(itertools.accumulate(step.window[0] // 2 for step in segment.steps))


def _kept(forward: OffsetPlan, segment: Segment) -> int:
    """Registers in which a thread keeps values of one offset u: lines of windows in both directions, slopes, bends."""
    reach = reached(segment) or [0]
    values = 4 * reach[-1] + sum(4 * (reach[-1] - one) for one in reach)
    return values * forward.lanes * np.dtype(forward.dtype).itemsize // 4


def early_channels(forward: OffsetPlan, segment: Segment, place: int) -> int:
    """Channels of pixels that a thread reads a phase before it needs them: all of a few, or none."""
    channels = forward.graph.channels
    return channels if place == 0 and segment.steps and channels <= _EARLY else 0


def count_cotangents(forward: OffsetPlan, place: int) -> int:
    """Cotangents that a segment computes for a position: of pixels, in the first segment, and of norms."""
    embeddings = sum(step.embedding is not None for step in forward.segments[place].steps)
    return embeddings + (place == 0) * forward.graph.channels


def _shape(forward: OffsetPlan, segment: Segment, place: int, both: bool, limit: int) -> Shape:
    """The shape that fills a multiprocessor best, if possible with planes in shared memory, `limit` bytes a block."""
    choices = itertools.product(_TEAMS, (True, False))
    shapes = [_shape_with(forward, segment, place, both, teams, staged) for teams, staged in choices]
    shapes = [replace(one, resident=min(one.resident, (limit + 1024) // (one.shared_bytes + 1024))) for one in shapes]
    fitting = [one for one in shapes if one.resident > 0]
    best = max(fitting, key=lambda one: (one.resident * one.threads, one.staged, one.teams), default=None)
    return best or replace(min(shapes, key=lambda one: one.shared_bytes), resident=1)


def _shape_with(forward: OffsetPlan, segment: Segment, place: int, both: bool, teams: int, staged: bool) -> Shape:
    (height, width), lanes, item = segment.grid, forward.lanes, np.dtype(forward.dtype).itemsize
    beside, count = max(1, min(width, _COLUMNS // width)), count_cotangents(forward, place)
    reach = tuple(max(map(abs, one)) for one in forward.needed(len(forward.segments) - 1)[place])
    down, across = (min(n, 2 * far + 1) for n, far in zip(segment.grid, reach, strict=True))
    columns, offsets = beside * width, -(-across // beside)
    many = place == 0 and not early_channels(forward, segment, place)
    fits = 2 * _kept(forward, segment) <= _KEPT[2] and columns <= _RESIDENT[2]
    span = 2 if segment.steps and not many and fits and down == height and height % 2 == 0 else 1
    most = 1 if columns > _COLUMNS else max(1, min(teams, rounds_ahead(height) + 1))
    groups = -(-offsets // most)
    teams = -(-offsets // groups)
    pad = max((step.window[1] // 2 for step in segment.steps), default=0)
    shape = Shape(span, columns, teams, segment.grid, (reach[0], reach[1]), groups, pad, staged, 0, 0)
    lines = 0 if shape.shuffles else 2 * teams * shape.stride * span * lanes
    left, right = count * (height + 1) * columns * lanes, count * height * columns
    shared = (lines + (both + staged) * left + (1 + staged) * right) * item + 4 * teams
    return replace(shape, shared_bytes=shared, resident=max(1, _RESIDENT[span] // shape.threads))


def rounds_ahead(height: int) -> int:
    """How many rounds the first team of a block may be ahead of the last one; see `Turns`."""
    return max(0, (height - 1 - ROUND) // ROUND)
