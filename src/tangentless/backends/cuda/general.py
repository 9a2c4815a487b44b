"""The general path: any program, operation by operation, in float64.

Images that are large, windows or pools that the fused stages do not take, nonlinearities without a closed form, and
`precision="float64"` run here. A batch of pairs holds two copies of its kernels at full resolution, 8 (H W)^2 bytes a
pair each. Duals are evaluated in full: by their closed form, or from a table of float64 precision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tangentless.backends import Advance
from tangentless.errors import BackendError
from tangentless.forms import tabulate
from tangentless.layers import Nonlinearity
from tangentless.program import Embedding, Program, Stage, embedded_squares

from .layout import SERIES, LayerForm
from .plan import layer_form

Array = NDArray[np.float64]
Pairs = NDArray[np.int32]
TABLE = 4  # a form that only general.cu knows


class GeneralMachine(Protocol):
    """What the general path asks of a GPU, or of the emulation of one."""

    xp: Any

    def general(self, kernel: str, *arguments: Any) -> None:
        """Run a kernel of general.cu; int and float arguments are given as the kernel's own types."""
        ...

    def upload(self, values: NDArray[Any]) -> Any: ...

    def download(self, values: Any) -> NDArray[Any]: ...

    def mark(self) -> Callable[[], None]: ...


@dataclass(frozen=True)
class GeneralImages:
    """Pixels (N, positions, channels) and norms (N, steps, positions) of every stage."""

    pixels: Any
    norms: tuple[Any, ...]

    def __getitem__(self, part: slice) -> GeneralImages:
        return GeneralImages(self.pixels[part], tuple(norms[part] for norms in self.norms))

    def __len__(self) -> int:
        return len(self.pixels)


class GeneralPath:
    """A program's operations on one machine."""

    def __init__(self, program: Program, machine: GeneralMachine) -> None:
        self.program = program
        self.machine = machine
        self.forms = [[_form(step.embedding, machine) for step in stage.steps] for stage in program.stages]

    @property
    def pair_bytes(self) -> int:
        """Scratch memory of one pair."""
        return 16 * max([1, *((stage.grid[0] * stage.grid[1]) ** 2 for stage in self.program.stages)])

    def prepare(self, images: Any) -> tuple[GeneralImages, Any]:
        """Pixels and norms of images (N, *grid, C), and squared norms after the last pool; all on the machine."""
        pixels = images.reshape(len(images), -1, self.program.channels)
        selves = np.repeat(np.arange(len(images), dtype=np.int32)[:, None], 2, axis=1)
        pairs = self.machine.upload(selves)
        squares = self.machine.xp.sum(self.machine.xp.square(pixels), axis=-1)
        norms: list[Any] = []
        values = self._products(pixels, pixels, pairs)
        for stage, forms in zip(self.program.stages, self.forms, strict=True):
            positions = stage.grid[0] * stage.grid[1]
            planes = stage.norms(squares.reshape(-1, *stage.grid)).reshape(len(images), len(stage.steps), positions)
            norms.append(self.machine.upload(planes))
            values = self._stage(stage, forms, values, norms[-1], norms[-1], pairs)
            squares = values.diagonal(axis1=1, axis2=2)
        return GeneralImages(pixels, tuple(norms)), squares[:, 0]

    def values(
        self,
        left: GeneralImages,
        right: GeneralImages,
        batch: int,
        diagonal: int | None = None,
        advance: Advance | None = None,
    ) -> Any:
        """Inner products after the last pool, (n, m) in float64 on the machine.

        With `diagonal`, only entries with row <= column + diagonal are needed.
        """
        xp = self.machine.xp
        output = xp.zeros((len(left), len(right)), dtype=xp.float64)
        for chosen in pair_batches(len(left), len(right), batch, diagonal):
            pairs = self.machine.upload(chosen)
            values = self._products(left.pixels, right.pixels, pairs)
            for stage, forms, x, z in zip(self.program.stages, self.forms, left.norms, right.norms, strict=True):
                values = self._stage(stage, forms, values, x, z, pairs)
            self.machine.general("place", values, output, pairs, np.int64(len(pairs)), np.int32(len(right)))
            self.machine.mark()()
            if advance is not None:
                advance(len(chosen))
        return output

    def _products(self, left: Any, right: Any, pairs: Any) -> Any:
        xp, positions, channels = self.machine.xp, left.shape[1], left.shape[2]
        output = xp.empty((len(pairs), positions, positions), dtype=xp.float64)
        count = np.int64(len(pairs))
        self.machine.general("products", left, right, pairs, output, count, np.int32(positions), np.int32(channels))
        return output

    def _stage(self, stage: Stage, forms: list[FormArguments], values: Any, left: Any, right: Any, pairs: Any) -> Any:
        xp, count = self.machine.xp, np.int64(len(pairs))
        positions = stage.grid[0] * stage.grid[1]
        for i, (step, form) in enumerate(zip(stage.steps, forms, strict=True)):
            output = xp.empty_like(values)
            x, z = left[:, i:], right[:, i:]  # the same strides: only the first place moves
            sizes = [np.int32(size) for size in (*stage.grid, *step.window)]
            step_of_norms = np.int64(len(stage.steps) * positions)
            self.machine.general("window_and_embed", values, output, x, z, pairs, count, step_of_norms, *sizes, *form)
            values = output
        rows, columns = stage.pooled
        pooled = xp.empty((len(pairs), rows * columns, rows * columns), dtype=xp.float64)
        self.machine.general("pool", values, pooled, count, *(np.int32(size) for size in (*stage.grid, *stage.pool)))
        return pooled


FormArguments = tuple[Any, ...]


def apply_head(program: Program, machine: GeneralMachine, values: Any, left: Any, right: Any) -> None:
    """Turn inner products on the machine into kernel entries, in place, given squared norms (n,), (m,)."""
    left, right = machine.upload(left), machine.upload(right)
    for embedding in program.head:
        norms = [machine.xp.sqrt(squares) for squares in (left, right)]
        shape = [np.int32(length) for length in values.shape]
        machine.general("head", values, *norms, *shape, *_form(embedding, machine))
        left, right = embedded_squares(left, embedding), embedded_squares(right, embedding)


def pair_batches(rows: int, columns: int, batch: int, diagonal: int | None = None) -> Iterator[Pairs]:
    """All pairs (left, right), or those with left <= right + diagonal, at most `batch` at a time.

    >>> [pairs.tolist() for pairs in pair_batches(2, 2, 2, diagonal=0)]
    [[[0, 0], [0, 1]], [[1, 1]]]
    """
    left, right = np.divmod(np.arange(rows * columns), columns)
    pairs = np.stack([left, right], axis=1).astype(np.int32)
    if diagonal is not None:
        pairs = pairs[left <= right + diagonal]
    for start in range(0, len(pairs), batch):
        yield pairs[start : start + batch]


@functools.lru_cache(maxsize=64)
def full_form(embedding: Embedding) -> LayerForm:
    """An embedding in float64: the form that it declares if that is exact, and a table of its dual otherwise."""
    form = layer_form(embedding)
    if not isinstance(embedding, Nonlinearity) or (form is not None and form.form != SERIES):
        assert form is not None, "only nonlinearities can lack a form"
        return form
    exact = embedding.series()
    if exact is not None:
        return LayerForm(SERIES, exact)
    table = tabulate(embedding.dual)
    if table is None:
        raise BackendError(
            f"the dual of {embedding} is not smooth between -1 and 1, as that of an activation would be, so the GPU "
            "has no table of it; check its dual(), or use backend='cpu'"
        )
    return LayerForm(TABLE, tuple(table.ravel().tolist()))


def _form(embedding: Embedding, machine: GeneralMachine) -> FormArguments:
    form = full_form(embedding)
    coefficients = np.array(form.coefficients or (0.0,))
    numbers = (np.float64(form.linear), np.float64(form.arc), np.float64(form.gamma))
    return (
        np.int32(form.form),
        *numbers,
        machine.upload(coefficients),
        np.int32(len(coefficients)),
        np.int32(form.keep_norms),
    )
