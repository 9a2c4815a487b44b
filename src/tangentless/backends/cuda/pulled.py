"""Gradients of chains on one machine: launches kernels, and adds up the cotangents of each image.

Each block finds cotangents of pixels and of logarithms of norms for the images of its unit. They are added to the
images' totals in one order. `finish` pulls those of norms back through the kernel of each image with itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...chunks import spans
from ...graph import Graph
from ...pullback import pull_head_diagonal
from .. import Advance, OfImages
from ..chains import powers_of_two, pull_norms, pull_totals
from ..general import pixel_squares
from .first_stage import FirstStage
from .following import OffsetImages, OffsetPath
from .fused import Machine, report_finished, self_units, walk
from .layout import StagePlan
from .planes import channels_last
from .portable import make_portable
from .pull_writer import write_pulling
from .pulling import PullPlan

_SCRATCH = 12 << 30  # bytes of one batch


class PullPath:
    """The kernels of a chain forwards and backwards, for both images of pairs or for the right ones.

    `stage`: a plan for `stage.cu`, which then runs the first stage forwards.
    """

    def __init__(self, plan: PullPlan, machine: Machine, stage: StagePlan | None = None) -> None:
        plan = replace(plan, forward=replace(plan.forward, has_first_stage=stage is not None))
        self.plan, self.machine = plan, machine
        self.forward = OffsetPath(plan.forward, machine)
        text, tables = write_pulling(plan)
        self.launch = machine.load_text(text)
        if stage is not None:
            self.forward.first_stage = FirstStage(plan.forward, stage, machine, self.launch)
        self.tables = [[machine.upload(table) for table in some] for some in tables]
        self.graph = make_portable(plan.forward.graph, plan.forward.graph.head, machine.upload, gradient=True)

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair: exits, their cotangents, and what blocks find for its images."""
        plan = self.plan
        pulled = sum(math.prod(segment.exits[0].grid) ** 2 for segment in plan.forward.segments[:-1])
        found = sum(plan.size(place) * shape.groups for place, shape in enumerate(plan.shapes)) * (1 + plan.both)
        return self.forward.pair_bytes + (pulled + found) * np.dtype(plan.forward.dtype).itemsize

    def pull(
        self, left: PulledImages, right: PulledImages, cotangent: Any, batch: int, done: int, advance: Advance
    ) -> None:
        """Pull cotangents (n, m) of entries back, and add to the totals of both sides, or of the right one.

        Takes columns from `done` on, about `batch` pairs at a time; `advance` is told how many columns are finished.
        """
        lanes = self.plan.forward.lanes
        batch = min(batch, _SCRATCH // self.pair_bytes)
        columns = max(1, batch // (-(-len(left) // lanes) * lanes))
        x, a = self.forward.interleaved(left.images.pixels), self.forward.interleaved(left.images.norms)
        first_exits = self.forward.first_exits(left.images.pixels, right.images.pixels)
        near, far = self._planes(left.images, 1), self._planes(right.images, 0)
        for part in spans(len(right), columns, done):
            table, units = _units(cotangent[:, part] != 0, lanes, self.machine.xp)
            if len(units):
                known, planes = first_exits(units, part), (near, [some[part] for some in far])
                self._pull(left, right[part], x, a, planes, cotangent[:, part], table, units, known)
            advance(part.stop - part.start)

    def _pull(
        self,
        left: PulledImages,
        right: PulledImages,
        x: Any,
        a: Any,
        planes: tuple[Sequence[Any], Sequence[Any]],
        cotangent: Any,
        table: Any,
        units: Any,
        known: Sequence[Any],
    ) -> None:
        """Pull the cotangents (n, m) of some columns back; `table` and `units` are those of `_units`."""
        xp, forward, lanes = self.machine.xp, self.forward, self.plan.forward.lanes
        n, m = cotangent.shape
        near, far = left.images, right.images
        exits = forward.run(x, a, far.pixels, far.norms, units, known=known)
        totals = xp.zeros((1, n, m))
        forward.finish(exits[-1][0], units, totals, m)
        factor = self.plan.forward.total_scale() * near.gains[:, None] * far.gains
        seeds, by_near, by_far = pull_totals(self.graph, totals[0], factor, near.squares, far.squares, cotangent)
        gathers: list[tuple[str, int, list[Any]]] = []  # launched last: if an allocation fails, nothing is added yet
        for side, some in ((right, by_far.T), (left, by_near))[: 1 + self.plan.both]:
            numbers = [np.int64(len(side)), some.shape[1]]
            gathers.append(("gather_numbers", len(side), [xp.ascontiguousarray(some), side.squares, *numbers]))
        top = powers_of_two(xp, seeds.reshape(1, -1))  # on the machine: nothing waits for it
        filled = xp.concatenate([seeds / top, xp.zeros((-n % lanes, m))]).reshape(-1, lanes, m)
        given = xp.ascontiguousarray(filled[units[:, 1] // lanes, :, units[:, 0]].astype(self.plan.forward.dtype))
        for place in reversed(range(len(self.plan.shapes))):
            given, lefts, rights = self._back(place, planes, units, exits, given)
            size, groups = self.plan.size(place), self.plan.shapes[place].groups
            if self.plan.both:
                work = [np.int64(n * size), size, groups, m, top]
                gathers.append(("gather_left", n * size, [lefts, table, left.found[place], *work]))
            work = [np.int64(m * size), size, groups, m, len(table), top]
            gathers.append(("gather_right", m * size, [rights, table, right.found[place], *work]))
        for one in gathers:
            walk(self.launch, *one)

    def _planes(self, images: OffsetImages, above: int) -> list[Any]:
        """What every segment reads of left images (`above` is 1) or right ones (0), see `PullPlan.planes`."""
        xp, places = self.machine.xp, range(len(self.plan.shapes))
        planes = [self.plan.planes(place, images.pixels, images.norms, above, xp) for place in places]
        return [self.forward.interleaved(one) for one in planes] if above else planes

    def _back(
        self,
        place: int,
        planes: tuple[Sequence[Any], Sequence[Any]],
        units: Any,
        exits: Any,
        given: Any,
        itself: bool = False,
    ) -> tuple[Any, Any, Any]:
        """One segment backwards: cotangents at its entrance, and what every block found for left and right images."""
        plan, xp, lanes = self.plan, self.machine.xp, self.plan.forward.lanes
        dtype, shape, size = plan.forward.dtype, plan.shapes[place], plan.size(place)
        blocks = len(units) * shape.groups
        pulled = None
        if place:
            numbers = math.prod(plan.segments[place].grid) ** 2 * lanes
            new = xp.empty if shape.offsets == shape.grid else xp.zeros  # zeros at offsets that are not needed
            pulled = new((len(units), numbers), dtype=dtype)
        lefts = xp.empty((blocks, size, lanes), dtype=dtype) if plan.both else None
        rights = xp.empty((blocks, size), dtype=dtype)
        entrance = exits[place - 1][0] if place else None
        work = [units, int(itself), np.int64(blocks)]
        near, far = (side[place] for side in planes)
        arguments = [near, far, entrance, given, pulled, lefts, rights, *self.tables[place], *work]
        self.launch(f"pull_{place}", blocks, shape.threads, shape.shared_bytes, arguments)
        return pulled, lefts, rights

    def finish(self, images: PulledImages, batch: int) -> Any:
        """Pull back cotangents of norms and of k(x, x); the cotangents of all scaled pixels, (N, C, H, W)."""
        size = max(1, min(batch, _SCRATCH // self.pair_bytes) // self.plan.forward.lanes)
        parts = [self._alone(images[part]) for part in spans(len(images), size)]
        return self.machine.xp.concatenate(parts)

    def _alone(self, images: PulledImages) -> Any:
        """The same for some images, through the pair of each with itself; left and right get the same cotangents."""
        xp, plan, lanes, own = self.machine.xp, self.plan.forward, self.plan.forward.lanes, images.images
        (output,), count, last = plan.graph.outputs, len(images), len(self.plan.shapes) - 1
        head = pull_head_diagonal(self.graph, [own.squares], [], images.diagonal, parameters=False)
        by = (images.squares + head.left.get(output, 0.0)) * own.gains**2 * plan.total_scale()
        top = powers_of_two(xp, by, *images.found)
        by = (by / top).reshape(count, 1, 1)
        x, a = self.forward.interleaved(own.pixels), self.forward.interleaved(own.norms)
        units = self.machine.upload(self_units(count))
        known = self.forward.first_exits(own.pixels, own.pixels)(units, slice(None))
        exits = self.forward.run(x, a, own.pixels, own.norms, units, itself=True, known=known)
        planes = self._planes(own, 1), self._planes(own, 0)
        given = xp.zeros((count, lanes), dtype=plan.dtype)
        for place in reversed(range(last + 1)):
            segment = self.plan.segments[place]
            walk(self.launch, "add_own", by.size, [given, by, np.int64(by.size), math.prod(segment.exits[0].grid)])
            given, _, rights = self._back(place, planes, units, exits, given, itself=True)
            both = 2.0 * rights.reshape(count, self.plan.shapes[place].groups, -1).astype(np.float64).sum(axis=1)
            found = (images.found[place] / top[:, None] + both).reshape(count, -1, *segment.grid)
            embeddings = [number for number, step in enumerate(segment.steps) if step.embedding is not None]
            pixels, norms = np.split(found, [found.shape[1] - len(embeddings)], axis=1)
            scales = {number: norms[:, i] for i, number in enumerate(embeddings)}
            if place:
                entrance = self.forward.own_squares(place - 1, 0, exits[place - 1][0])
            else:
                entrance = pixel_squares(channels_last(own.pixels, segment.grid))
            by = pull_norms(segment, entrance, scales, self.forward.window_sums)
            by = by * plan.exit_scale(place - 1, plan.segments[place - 1].exits[0]) if place else by
        scaled = own.pixels.astype(np.float64).reshape(pixels.shape)
        return (pixels + 2.0 * scaled * by[:, None]) * top[:, None, None, None]


def _units(wanted: Any, lanes: int, xp: Any) -> tuple[Any, Any]:
    """The number of the unit for every (run of rows, column), -1 where no entry is wanted; and all units (`Unit`)."""
    n, m = wanted.shape
    filled = xp.concatenate([wanted, xp.zeros((-n % lanes, m), dtype=bool)]).reshape(-1, lanes, m).any(axis=1)
    runs, columns = xp.nonzero(filled)  # neighbouring blocks share left images, which are most of a unit
    table = xp.full(filled.shape, -1, dtype=np.int32)
    table[runs, columns] = xp.arange(len(runs), dtype=np.int32)
    left = runs * lanes
    units = xp.stack([columns, left, xp.minimum(lanes, n - left), left], axis=1)
    return table, xp.ascontiguousarray(units.astype(np.int32))


@dataclass(frozen=True, eq=False)
class PulledImages:
    """Prepared images and their cotangents so far."""

    images: OffsetImages
    wanted: bool  # whether cotangents are computed; if not, `found` is empty
    found: tuple[Any, ...]  # of pixels and of logarithms of norms: for every segment, (N, plan.size(place))
    squares: Any  # of squared norms at the output, (N,)
    diagonal: Any  # of k(x, x), (N,)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, part: slice) -> PulledImages:
        found = tuple(one[part] for one in self.found)
        return PulledImages(self.images[part], self.wanted, found, self.squares[part], self.diagonal[part])


@dataclass(frozen=True, eq=False)
class PulledGradient(OfImages):
    """Images with their cotangents so far, on the fused path."""

    graph: Graph
    images: Any  # prepared by the backend, for values
    pulled: PulledImages
    paths: Callable[[bool], PullPath | None]  # for both images of pairs (True; None if it does not fit), or for one
    shape: tuple[int, ...]
    in_batches: Callable[[PullPath, Callable[[int], Any]], Any]  # calls work with the pairs that fit into memory

    @property
    def parameters(self) -> dict[Any, Any]:
        """Empty: gradients by parameters take the general path."""
        return {}

    def __getitem__(self, part: slice) -> PulledGradient:
        return replace(self, images=self.images[part], pulled=self.pulled[part])

    def unwanted(self) -> PulledGradient:
        """The same images, for which cotangents are not computed."""
        return replace(self, pulled=replace(self.pulled, wanted=False, found=()))

    @property
    def path(self) -> PullPath:
        """The path for the right images of pairs."""
        path = self.paths(False)
        assert path is not None
        return path

    def pull_diagonal(self, cotangent: Any) -> None:
        """Add cotangents of k(x, x), (N,)."""
        self.pulled.diagonal[...] += self.path.machine.upload(cotangent)

    def finish(self) -> Any:
        """The cotangents of all pixels, (N, *grid, C)."""
        machine = self.path.machine
        with machine.active():
            alone = self.in_batches(self.path, lambda batch: self.path.finish(self.pulled, batch))
            pixels = alone / self.pulled.images.scales.reshape(-1, 1, 1, 1)
        return machine.deliver(np.moveaxis(pixels, 1, -1).reshape(len(self), *self.shape), self.images.diagonal)


def pulled_images(path: PullPath, images: OffsetImages, wanted: bool) -> PulledImages:
    """Prepared images with zero cotangents."""
    xp, count = path.machine.xp, len(images)
    sizes = [path.plan.size(place) for place in range(len(path.plan.shapes))]
    found = tuple(xp.zeros((count, size)) for size in sizes) if wanted else ()
    return PulledImages(images, wanted, found, xp.zeros(count), xp.zeros(count))


def pull_offsets(
    left: PulledGradient, right: PulledGradient, cotangent: Any, *, upper: bool, advance: Advance | None
) -> None:
    """Pull cotangents of the entries between two sets, (n, m), back to the images of each that are wanted."""
    path, machine = left.path, left.path.machine
    given, both = machine.upload(cotangent), left.pulled.wanted and right.pulled.wanted
    together = left.paths(True) if both else None
    if together is not None:
        _pull_in_batches(left, together, left.pulled, right.pulled, given)
    else:  # one side after the other, each as the right one
        if right.pulled.wanted:
            _pull_in_batches(left, path, left.pulled, right.pulled, given)
        if left.pulled.wanted:
            _pull_in_batches(left, path, right.pulled, left.pulled, machine.xp.ascontiguousarray(given.T))
    report_finished(machine, advance, len(left) * (len(left) - 1) // 2 if upper else cotangent.size)


def _pull_in_batches(of: PulledGradient, path: PullPath, left: PulledImages, right: PulledImages, given: Any) -> None:
    """Pull all columns; if memory runs out, the columns that are left in smaller batches."""
    done = 0

    def count(columns: int) -> None:
        nonlocal done
        done += columns

    of.in_batches(path, lambda batch: path.pull(left, right, given, batch, done, count))
