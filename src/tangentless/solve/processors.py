"""Where a solution is computed: a handful of block operations, on a CPU by LAPACK or on a GPU by CuPy.

The algorithms above know these operations only, and never hand a library more than one block, so neither its 32-bit
indices (which end where a matrix of 46,341 rows begins) nor its buffers limit them. A block is a view of rows and
columns of a matrix in row order; what an operation does not mention it leaves as it is.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.linalg import blas, lapack

from ..errors import BackendError, ParameterError
from .memory import DoesNotFit

# Rows that a single LAPACK call may have: OpenBLAS 0.3.30 on two threads factorises 12,000 and crashes at 16,000.
LARGEST_CALL = 10_240
_CPU_BLOCK, _GPU_BLOCK = 1024, 4096
NAMES = ("auto", "cpu", "cuda")


class Processor(Protocol):
    """What the algorithms ask for; arrays are of the module `xp`."""

    name: str
    xp: Any

    def block_rows(self, rows: int) -> int:
        """The side of the blocks that suits a matrix of so many rows."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that an allocation could use, where that is known."""
        ...

    def factorise(self, block: Any) -> int:
        """Put the Cholesky factor in the lower triangle; returns 0, or 1 + the row at which there is none."""
        ...

    def invert(self, block: Any) -> None:
        """Put the inverse of the lower triangle in its place."""
        ...

    def solve(self, block: Any, values: Any, *, transposed: bool = False) -> Any:
        """What the lower triangle (or its transpose) takes to the values, a new array."""
        ...

    def product(self, left: Any, right: Any) -> Any:
        """left @ right, a new array."""
        ...

    def download(self, values: Any) -> Any:
        """The values as a NumPy array."""
        ...

    def working(self) -> contextlib.AbstractContextManager[None]:
        """A context in which errors of the device become those of this package."""
        ...


class CentralProcessor:
    """The CPU. Only SciPy's BLAS is called: NumPy has its own, and the threads of two compete for the same cores."""

    name = "cpu"
    xp: Any = np

    def block_rows(self, rows: int) -> int:
        """A single LAPACK call as long as it may be one: it works in place, and nothing is faster."""
        return rows if rows <= LARGEST_CALL else _CPU_BLOCK

    def free_bytes(self) -> int | None:
        """What the system says is available, within the limit of its container."""
        from ..gram.compute import machine_memory

        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:
            return machine_memory()
        available = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
        return machine_memory() if available is None else min(machine_memory(), available * 1024)

    def factorise(self, block: Any) -> int:
        factor, order = lapack.dpotrf(block.T, lower=0, clean=0, overwrite_a=1)
        _put(factor.T, block)
        return int(order)

    def invert(self, block: Any) -> None:
        inverse, _ = lapack.dtrtri(block.T, lower=0, overwrite_c=1)
        _put(inverse.T, block)

    def solve(self, block: Any, values: Any, *, transposed: bool = False) -> Any:
        # The upper triangle of block.T, in column order, is the transpose of the lower triangle of the block.
        return blas.dtrsm(1.0, block.T, values, lower=0, trans_a=0 if transposed else 1)

    def product(self, left: Any, right: Any) -> Any:
        # In column order, which BLAS wants, the transposed product is right' left'; factors may be transposes already.
        first, flip_first = (right, 1) if _by_columns(right) else (right.T, 0)
        second, flip_second = (left, 1) if _by_columns(left) else (left.T, 0)
        return blas.dgemm(1.0, first, second, trans_a=flip_first, trans_b=flip_second).T

    def download(self, values: Any) -> Any:
        return values

    def working(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class GraphicsProcessor:
    """One NVIDIA GPU, through CuPy."""

    name = "cuda"

    def __init__(self) -> None:
        from ..backends.cuda.machine import count_gpus, import_cupy

        self.xp = import_cupy()
        count_gpus()
        self._scipy: Any = importlib.import_module("cupyx.scipy.linalg")
        self._errors: Any = importlib.import_module("cupyx").errstate

    def block_rows(self, rows: int) -> int:
        """Products of such blocks run near the peak, and their scratch memory is small beside a large matrix."""
        return _GPU_BLOCK

    def free_bytes(self) -> int | None:
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(free + self.xp.get_default_memory_pool().free_bytes())

    def factorise(self, block: Any) -> int:
        try:
            with self._errors(linalg="raise"):
                factor = self.xp.linalg.cholesky(block)
        except np.linalg.LinAlgError:
            host = self.xp.asnumpy(block)  # the CPU says where it ends
            order = CentralProcessor().factorise(host)
            block[...] = self.xp.asarray(host)
            return order
        block[...] = factor + self.xp.triu(block, 1)
        return 0

    def invert(self, block: Any) -> None:
        inverse = self._scipy.solve_triangular(block, self.xp.eye(len(block)), lower=True, overwrite_b=True)
        block[...] = self.xp.tril(inverse) + self.xp.triu(block, 1)

    def solve(self, block: Any, values: Any, *, transposed: bool = False) -> Any:
        return self._scipy.solve_triangular(block, values, lower=True, trans=1 if transposed else 0)

    def product(self, left: Any, right: Any) -> Any:
        return left @ right

    def download(self, values: Any) -> Any:
        return self.xp.asnumpy(values)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        try:
            yield
        except self.xp.cuda.memory.OutOfMemoryError as error:
            raise DoesNotFit(
                f"the GPU ran out of memory ({error}); free what else is on it, or backend='cpu'"
            ) from None


def find_processor(backend: str, K: Any) -> Processor:
    """The processor of that name; "auto" is the one that holds K.

    >>> find_processor("auto", np.eye(2)).name
    'cpu'
    """
    if backend not in NAMES:
        raise ParameterError(f"a matrix is solved on backend {', '.join(map(repr, NAMES))}, not {backend!r}")
    on_gpu = is_cupy(K)
    if backend == "cpu" and on_gpu:
        raise BackendError("K is on the GPU, and backend='cpu' asks for the CPU; give K.get(), or backend='cuda'")
    return GraphicsProcessor() if on_gpu or backend == "cuda" else CentralProcessor()


def is_cupy(values: Any) -> bool:
    """Whether the values are in the memory of a GPU, without importing CuPy."""
    return type(values).__module__.partition(".")[0] == "cupy"


def _by_columns(matrix: Any) -> bool:
    return bool(matrix.strides[0] < matrix.strides[1])


def _put(result: Any, block: Any) -> None:
    """Bring back what LAPACK could not compute in place."""
    if not np.may_share_memory(result, block):
        block[...] = result
