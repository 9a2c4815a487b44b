"""Programs: an architecture compiled for one input shape, the only thing a backend sees.

A program is a list of *stages* of constant resolution. Each stage runs steps (a window sum, then an embedding) and
ends with a pool; the last pool leaves one position. What follows it, the *head*, acts on one number per pair and
always runs in float64. Sequences are images of height one, and a single vector has no stages at all.

Work, memory and tile sizes are read off the program, so that progress bars and predictions share their numbers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .errors import ArchitectureError
from .layers import Conv, Grid, Layer, Nonlinearity, Normalize, Window

Array = NDArray[np.float64]
Embedding = Nonlinearity | Normalize | None

STEEPEST = 8.0  # slope of a dual at c = 1 up to which float32 keeps seven digits


@dataclass(frozen=True)
class Step:
    """Sum over a window (1×1: none), then embed (None: not at all)."""

    window: tuple[int, int]
    embedding: Embedding


@dataclass(frozen=True)
class Stage:
    """Steps on one grid, then a pool whose windows tile it."""

    grid: tuple[int, int]
    steps: tuple[Step, ...]
    pool: tuple[int, int]

    @property
    def pooled(self) -> tuple[int, int]:
        """The grid after the pool."""
        return self.grid[0] // self.pool[0], self.grid[1] // self.pool[1]

    @property
    def elements(self) -> int:
        """Embeddings evaluated for one pair of images."""
        return max(1, len(self.steps)) * (self.grid[0] * self.grid[1]) ** 2

    def norms(self, squares: Array) -> Array:
        """Norms before each step's embedding, (N, steps, H, W), from squared norms at the entrance, (N, H, W).

        Window sums and embeddings act on squared norms alone, so within a stage no kernel is needed to know them.
        """
        shape = len(self.steps), *self.grid, len(squares)
        norms = np.empty_like(squares, dtype=np.float64, shape=shape).transpose(3, 0, 1, 2)
        for i, step in enumerate(self.steps):
            squares = window_sums(squares, step.window)
            norms[:, i] = np.sqrt(squares)
            squares = embedded_squares(squares, step.embedding)
        return norms


@dataclass(frozen=True)
class Program:
    """An architecture, compiled for images of `grid` with `channels`.

    >>> program = compile_program(Architecture.parse("myrtle10"), (32, 32), 3)
    >>> [(stage.grid, len(stage.steps)) for stage in program.stages]
    [((32, 32), 3), ((16, 16), 3), ((8, 8), 3)]
    >>> program.elements
    3354624
    """

    architecture: Architecture
    grid: Grid
    channels: int
    stages: tuple[Stage, ...]
    head: tuple[Nonlinearity | Normalize, ...]

    @property
    def elements(self) -> int:
        """Embeddings evaluated for one pair: the unit of work in all predictions."""
        return max(1, sum(stage.elements for stage in self.stages))

    @property
    def delicate(self) -> str | None:
        """Why float32 would not keep seven digits up to the last pool, or None where it does."""
        embeddings = [step.embedding for stage in self.stages for step in stage.steps]
        steepest = max((one.steepness() for one in embeddings if isinstance(one, Nonlinearity)), default=1.0)
        if steepest > STEEPEST:
            return f"a dual with the slope {steepest:.3g} at 1 multiplies rounding errors"
        return "its first pool may take small differences of large numbers" if self._cancels else None

    @property
    def _cancels(self) -> bool:
        """Whether the first pool may take small differences of large inner products, as of pixels of either sign.

        After an embedding with f(0) > 0 all features have a part in common, which stays; f(-1) > 0 serves as well.
        """
        signs = np.array([0.0, -1.0])
        steps = [step.embedding for stage in self.stages[:1] for step in stage.steps]
        return bool(self.stages) and not any(isinstance(e, Nonlinearity) and e.dual(signs).max() > 0 for e in steps)

    @property
    def scale_free(self) -> bool:
        """Whether the scale of the images does not matter: a stage normalises, or the head does so first."""
        embeddings = [step.embedding for stage in self.stages for step in stage.steps]
        return any(isinstance(embedding, Normalize) for embedding in [*embeddings, *self.head[:1]])

    def apply_head(self, values: Array, left: Array, right: Array) -> Array:
        """Kernel entries (n, m) from inner products after the last pool and squared norms (n,), (m,); float64."""
        for embedding in self.head:
            values = embedding.operation(()).on_kernel(values, np.sqrt(left), np.sqrt(right))
            left, right = embedded_squares(left, embedding), embedded_squares(right, embedding)
        return values

    def head_diagonal(self, squares: Array) -> Array:
        """k(x, x) from the squared norms after the last pool: exact, without a detour over a cosine near one."""
        for embedding in self.head:
            squares = embedded_squares(squares, embedding)
        return squares


@functools.lru_cache(maxsize=256)
def compile_program(architecture: Architecture, grid: Grid, channels: int) -> Program:
    """Split an architecture into stages and head for one input shape; raises where a layer does not fit."""
    grids = architecture.grids(grid)
    stages: list[Stage] = []
    head: list[Nonlinearity | Normalize] = []
    steps: list[Step] = []
    window: tuple[int, int] = (1, 1)
    for layer, before, after in zip(architecture, grids, grids[1:], strict=False):
        if all(length == 1 for length in before):  # windows on a single position change nothing
            if isinstance(layer, Nonlinearity | Normalize):
                head.append(layer)
        elif isinstance(layer, Conv):
            if window != (1, 1):
                steps.append(Step(window, None))
            window = _flat(layer.window(before))
        elif isinstance(layer, Nonlinearity | Normalize):
            steps.append(Step(window, layer))
            window = (1, 1)
        elif isinstance(layer, Window):
            if after != before:
                if window != (1, 1):
                    steps.append(Step(window, None))
                stages.append(Stage(_flat(before), tuple(steps), _flat(layer.window(before))))
                steps, window = [], (1, 1)
        else:
            raise ArchitectureError(f"{_name(layer)} is neither a window nor an embedding, so no backend can run it")
    return Program(architecture, grid, channels, tuple(stages), tuple(head))


def window_sums(values: Array, window: tuple[int, int]) -> Array:
    """Zero-padded sums over a window around every position of (N, H, W).

    >>> window_sums(np.ones((1, 2, 3)), (3, 3))
    array([[[4., 6., 4.],
            [4., 6., 4.]]])
    """
    for axis, size in zip((1, 2), window, strict=True):
        total = values.copy(order="K") if size > 1 else values
        rows, sums = np.moveaxis(values, axis, 0), np.moveaxis(total, axis, 0)
        for shift in range(1, min(size // 2, len(rows) - 1) + 1):
            sums[shift:] += rows[:-shift]
            sums[:-shift] += rows[shift:]
        values = total
    return values


def embedded_squares(squares: Array, embedding: Embedding) -> Array:
    """Squared norms after an embedding."""
    if embedding is None:
        return squares
    if isinstance(embedding, Normalize):
        return (squares > 0).astype(np.float64)
    return squares * embedding.gain()


def _flat(window: Grid) -> tuple[int, int]:
    height, width = (1,) * (2 - len(window)) + window
    return height, width


def _name(layer: Layer) -> str:
    return type(layer).__name__
