"""The general path: any program, in float64 NumPy, one offset at a time over a batch of pairs.

It has the structure of the fused kernel without its fusion: for each offset (u, v) a plane of inner products goes
through the steps of a stage and is added to the pooled planes it feeds. It runs what has no fast form, such as a
nonlinearity of the user's own whose dual no short polynomial can stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...program import Embedding, Program, Stage, window_sums
from .. import Advance

Array = NDArray[np.float64]
Planes = dict[tuple[int, int], Array]
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class GeneralImages:
    """Images, the squared norms at the entrance of each stage, and those after the last pool."""

    program: Program
    images: NDArray[Any]
    squares: tuple[Array, ...]
    totals: Array

    @property
    def diagonal(self) -> Array:
        return self.program.head_diagonal(self.totals)

    @property
    def tile(self) -> int:
        return 256

    def __len__(self) -> int:
        return len(self.totals)

    def __getitem__(self, part: slice | NDArray[np.intp]) -> GeneralImages:
        return GeneralImages(
            self.program, self.images[part], tuple(squares[part] for squares in self.squares), self.totals[part]
        )


def prepare_general(program: Program, images: NDArray[Any]) -> GeneralImages:
    """Squared norms from each image's kernel with itself."""
    parts = [
        _self_squares(program, _grids(program, images[part])) for part in _batches(len(images), _batch_size(program))
    ]
    squares = tuple(np.concatenate(stage) for stage in zip(*(part[:-1] for part in parts), strict=True))
    return GeneralImages(program, images, squares, np.concatenate([part[-1] for part in parts]))


def general_block(
    program: Program, left: GeneralImages, right: GeneralImages, *, upper: bool, advance: Advance | None
) -> Array:
    """Kernel entries between two prepared sets."""
    if not program.stages:
        values = (
            _grids(program, left.images).reshape(len(left), -1)
            @ _grids(program, right.images).reshape(len(right), -1).T
        )
        if advance is not None:
            advance(len(left) * (len(left) + 1) // 2 if upper else values.size)
        return program.apply_head(values, left.totals, right.totals)
    rows, columns = np.triu_indices(len(left)) if upper else np.indices((len(left), len(right))).reshape(2, -1)
    values = np.zeros((len(left), len(right)))
    for part in _batches(len(rows), _batch_size(program)):
        i, j = rows[part], columns[part]
        values[i, j] = _pair_totals(program, left[i], right[j])
        if advance is not None:
            advance(len(i))
    return program.apply_head(values, left.totals, right.totals)


def _self_squares(program: Program, images: Array) -> list[Array]:
    """Squared norms at the entrance of each stage, then after the last pool."""
    if not program.stages:
        return [np.sum(images**2, axis=(1, 2, 3))]
    squares = [np.sum(images**2, axis=-1)]
    source = _pixel_planes(images, images)
    for stage in program.stages:
        norms = stage.norms(squares[-1])
        pooled = _run_stage(stage, source, norms, norms)
        squares.append(pooled[0, 0])
        source = pooled.__getitem__
    return [*squares[:-1], squares[-1][:, 0, 0]]


def _pair_totals(program: Program, left: GeneralImages, right: GeneralImages) -> Array:
    """Inner products after the last pool, image by image."""
    source = _pixel_planes(_grids(program, left.images), _grids(program, right.images))
    for stage, a, b in zip(program.stages, left.squares, right.squares, strict=True):
        source = _run_stage(stage, source, stage.norms(a), stage.norms(b)).__getitem__
    return source((0, 0))[:, 0, 0]


def _pixel_planes(left: Array, right: Array) -> Callable[[tuple[int, int]], Array]:
    grid = (left.shape[1], left.shape[2])

    def plane(offset: tuple[int, int]) -> Array:
        here, there = _overlap(grid, offset)
        return np.asarray(np.einsum("nhwc,nhwc->nhw", left[:, *here], right[:, *there]))

    return plane


def _run_stage(stage: Stage, source: Callable[[tuple[int, int]], Array], left: Array, right: Array) -> Planes:
    """The pooled planes of one stage, from the planes at its entrance and the norms of both sides."""
    count = len(left)
    pooled: Planes = {}
    for offset in _offsets(stage.grid):
        here, there = _overlap(stage.grid, offset)
        plane = source(offset)
        for i, step in enumerate(stage.steps):
            plane = window_sums(plane, step.window)
            plane = _embed(step.embedding, plane, left[:, i, *here] * right[:, i, *there])
        _pool(stage, offset, plane / np.prod(stage.pool) ** 2, pooled, count)
    return pooled


def _embed(embedding: Embedding, values: Array, scale: Array) -> Array:
    return values if embedding is None else embedding.operation(()).on_values(values, scale)


def _pool(stage: Stage, offset: tuple[int, int], plane: Array, pooled: Planes, count: int) -> None:
    """Add a plane to the pooled planes it feeds: position j of a window of size p goes to offset (u + j mod p) // p."""
    (tall, wide), (u, v) = stage.pool, offset
    top, left = max(0, -u), max(0, -v)
    for a in range(tall):
        for b in range(wide):
            part = plane[:, (a - top) % tall :: tall, (b - left) % wide :: wide]
            if part.size == 0:
                continue
            key = ((u + a) // tall, (v + b) // wide)
            if key not in pooled:
                height, width = stage.pooled
                pooled[key] = np.zeros((count, height - abs(key[0]), width - abs(key[1])))
            row = (top + (a - top) % tall) // tall - max(0, -key[0])
            column = (left + (b - left) % wide) // wide - max(0, -key[1])
            pooled[key][:, row : row + part.shape[1], column : column + part.shape[2]] += part


def _offsets(grid: tuple[int, int]) -> Iterable[tuple[int, int]]:
    height, width = grid
    return ((u, v) for u in range(1 - height, height) for v in range(1 - width, width))


def _overlap(grid: tuple[int, int], offset: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Positions of the left image that have a partner at the offset, and those partners."""
    here = tuple(slice(max(0, -d), n - max(0, d)) for n, d in zip(grid, offset, strict=True))
    there = tuple(slice(max(0, d), n - max(0, -d)) for n, d in zip(grid, offset, strict=True))
    return (here[0], here[1]), (there[0], there[1])


def _grids(program: Program, images: NDArray[Any]) -> Array:
    """Images as (N, H, W, C), whatever their rank, in float64."""
    height, width = (1,) * (2 - len(program.grid)) + program.grid
    return np.asarray(images, dtype=np.float64).reshape(len(images), height, width, program.channels)


def _batch_size(program: Program) -> int:
    """Pairs at a time such that the pooled planes of the first stage stay within bounds."""
    if not program.stages:
        return 1024
    height, width = program.stages[0].pooled
    return max(1, min(1024, _BATCH_BYTES // (8 * (height * width) ** 2)))


def _batches(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
