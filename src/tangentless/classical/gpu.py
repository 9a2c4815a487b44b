"""Kernels of vectors on a GPU: a matrix product, whose entries one CUDA kernel of `vectors.cuh` then replaces.

Arithmetic is float64, as on the CPU. Only the first GPU of the backend computes. Results are returned as the kind of
array that the rows were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..backends import Advance
from ..backends.cuda.compile import source
from ..backends.cuda.duals import array
from ..backends.cuda.fused import walk
from ..backends.cuda.machine import CudaMachine
from ..forms import TOLERANCE, angle_polynomial, arc_polynomial
from .rows import CLOSE, TINY, with_norms

Call = tuple[str, tuple[Any, ...]]  # the name of a CUDA kernel, and its arguments after those of all kernels


@dataclass(frozen=True, eq=False)
class GpuVectors:
    """Vectors on a GPU, prepared for a kernel."""

    machine: CudaMachine
    launch: Callable[..., None]
    rows: Any  # (N, C)
    norms: Any  # (N,)
    factors: Any  # (N,), what the CUDA kernel needs of each row
    diagonal: Any  # k(x, x), (N,), the kind of array that the rows were: results become the same kind
    tile: ClassVar[int] = 4096  # large enough for the peak of a product; a tile takes 128 MiB

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> GpuVectors:
        arrays = {name: getattr(self, name)[part] for name in ("rows", "norms", "factors", "diagonal")}
        return replace(self, **arrays)

    def active(self) -> AbstractContextManager[None]:
        """A context in which the GPU of the rows is the current one."""
        return self.machine.active()

    def upload(self, values: Any) -> Any:
        """Values as an array on the GPU of the rows."""
        return self.machine.upload(values)

    def deliver(self, values: Any) -> Any:
        """Values as the kind of array that the diagonal is."""
        return self.machine.deliver(values, self.diagonal)

    def replace_products(
        self, products: Any, right: GpuVectors, name: str, factors: tuple[Any, Any], *last: Any
    ) -> None:
        """Replace inner products by entries, in place: call the CUDA kernel `name`."""
        sizes = np.int64(products.size), len(right), self.rows.shape[1]
        arguments = [products, self.rows, right.rows, *factors, *sizes, *last]
        walk(self.launch, name, products.size, arguments)


def prepare(
    machine: CudaMachine,
    images: Any,
    unit: bool,
    factors: Callable[[Any], Any],
    diagonal: Callable[[Any], Any],
) -> GpuVectors:
    """Images, of NumPy or CuPy, as rows on a GPU. `factors` and `diagonal` are functions of their norms."""
    with machine.active():
        rows, norms = with_norms(machine.upload(images).astype(np.float64, copy=False), unit=unit)
        launch = machine.load_text(module_text())
        return GpuVectors(machine, launch, rows, norms, factors(norms), machine.deliver(diagonal(norms), images))


def block(left: GpuVectors, right: GpuVectors, call: Call | None, upper: bool, advance: Advance | None) -> Any:
    """Entries between two sets. Without a call these are the inner products."""
    machine = left.machine
    with machine.active():
        values = machine.xp.ascontiguousarray(left.rows @ right.rows.T)
        if call is not None:
            name, last = call
            left.replace_products(values, right, name, (left.factors, right.factors), *last)
        if advance is not None:
            machine.mark()()  # wait for the GPU: progress counts finished pairs
            advance(len(left) * (len(left) + 1) // 2 if upper else values.size)
        return machine.deliver(values, left.diagonal)


@functools.cache
def module_text() -> str:
    """The source of all CUDA kernels."""
    tolerance = TOLERANCE["float64"]
    constants = [f"static constexpr double {name} = {value!r};" for name, value in (("CLOSE", CLOSE), ("TINY", TINY))]
    functions = [_function("arc", arc_polynomial(tolerance)), _function("angle", angle_polynomial(tolerance))]
    return "\n".join([*constants, source("vectors.cuh"), *functions])


def _function(name: str, coefficients: Sequence[float]) -> str:
    body = f"{array('terms', coefficients)} return polynomial(terms, near);"
    return f"__device__ inline real {name}(real near) {{ {body} }}"
