"""Linear algebra in blocks: a handful of operations, on a CPU by LAPACK or on a GPU by CuPy.

Algorithms reach them through `Device.algebra` and pass one block at a time to a library. So neither 32-bit indices
(which overflow from 46,341 rows) nor buffers of the library limit the size of a matrix. A block is a view of rows and
columns of a matrix in row order. Arguments are left unchanged unless a docstring says otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.linalg import blas, eigh, lapack

from .chunks import free_memory
from .errors import DoesNotFit

# The most rows in a LAPACK call: OpenBLAS 0.3.30 on two threads factorises 12,000 rows and crashes at 16,000.
LARGEST_CALL = 10_240
_CPU_BLOCK, _GPU_BLOCK = 1024, 4096


class CpuAlgebra:
    """The CPU. Only SciPy's BLAS is called: NumPy brings its own, and two thread pools would compete for the cores."""

    name = "cpu"
    xp: Any = np  # the module of the arrays

    def block_rows(self, rows: int) -> int:
        """The block size, in rows, for a matrix of so many rows.

        One block up to LARGEST_CALL: a single LAPACK call works in place and is fastest.
        """
        return rows if rows <= LARGEST_CALL else _CPU_BLOCK

    def panel_rows(self) -> int:
        """The block size for a part of a matrix: a strided view, of which libraries copy each block."""
        return _CPU_BLOCK

    def free_bytes(self) -> int:
        """Memory that an allocation could use."""
        return free_memory()

    def factorise(self, block: Any) -> int:
        """Overwrite the lower triangle by the Cholesky factor; returns 0, or 1 + the row at which that fails."""
        factor, order = lapack.dpotrf(block.T, lower=0, clean=0, overwrite_a=1)
        if not np.may_share_memory(factor, block):  # LAPACK could not compute in place
            block[...] = factor.T
        return int(order)

    def solve(self, block: Any, values: Any, *, transposed: bool = False) -> Any:
        """The solution x of L x = values (or of L' x = values), L the lower triangle of the block; a new array."""
        # The upper triangle of block.T, in column order, is the transpose of the lower triangle of the block.
        return blas.dtrsm(1.0, block.T, values, lower=0, trans_a=0 if transposed else 1)

    def product(self, left: Any, right: Any) -> Any:
        """left @ right, a new array."""
        # BLAS works in column order, so it computes the transpose, right' left'. A factor may be in that order already.
        first, flip_first = (right, 1) if _column_major(right) else (right.T, 0)
        second, flip_second = (left, 1) if _column_major(left) else (left.T, 0)
        return blas.dgemm(1.0, first, second, trans_a=flip_first, trans_b=flip_second).T

    def eigen(self, matrix: Any) -> tuple[Any, Any]:
        """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, which may be overwritten."""
        values, vectors = eigh(matrix, overwrite_a=True, check_finite=False, driver="evd")
        return values, vectors

    def add_square(self, total: Any, rows: Any) -> Any:
        """total + rows' rows in the memory of `total` (None: a new one). At the end, `fill` makes it complete."""
        # Only one triangle is computed: half the work.
        factor, flipped = (rows, 1) if _column_major(rows) else (rows.T, 0)
        if total is None:
            return blas.dsyrk(1.0, factor, trans=flipped, lower=1)
        return blas.dsyrk(1.0, factor, beta=1.0, c=total, trans=flipped, lower=1, overwrite_c=1)

    def fill(self, total: Any) -> Any:
        """The complete symmetric matrix, from a total of `add_square`."""
        return np.tril(total) + np.tril(total, -1).T

    def upload(self, values: Any) -> Any:
        """The values as an array of `xp`; arrays that are on the device already are returned as they are."""
        return values

    def download(self, values: Any) -> Any:
        """The values as a NumPy array."""
        return values

    def read_later(self, number: Any) -> Callable[[], float]:
        """A function that returns the present value of `number`, and does not wait for work queued after this call."""
        return lambda: float(number)

    def working(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a GPU that runs out of memory raises `DoesNotFit`."""
        return contextlib.nullcontext()


class GpuAlgebra:
    """One NVIDIA GPU, through CuPy: the same operations."""

    name = "cuda"

    def __init__(self) -> None:
        machine: Any = importlib.import_module(".backends.cuda.machine", __package__)
        machine.count_gpus()
        self.xp = machine.import_cupy()
        self._scipy: Any = importlib.import_module("cupyx.scipy.linalg")
        extras: Any = importlib.import_module("cupyx")
        self._errors, self._empty_pinned = extras.errstate, extras.empty_pinned

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy imports its own modules, because modules cannot be pickled."""
        return GpuAlgebra, ()

    def block_rows(self, rows: int) -> int:
        """Products of such blocks run near the GPU's peak, and need little memory compared with a large matrix."""
        return _GPU_BLOCK

    def panel_rows(self) -> int:
        return _GPU_BLOCK

    def free_bytes(self) -> int:
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(free + self.xp.get_default_memory_pool().free_bytes())

    def factorise(self, block: Any) -> int:
        try:
            with self._errors(linalg="raise"):
                factor = self.xp.linalg.cholesky(block)
        except np.linalg.LinAlgError:
            host = self.xp.asnumpy(block)  # LAPACK reports the row at which it fails, CuPy does not
            order = CpuAlgebra().factorise(host)
            block[...] = self.xp.asarray(host)
            return order
        block[...] = factor + self.xp.triu(block, 1)
        return 0

    def solve(self, block: Any, values: Any, *, transposed: bool = False) -> Any:
        return self._scipy.solve_triangular(block, values, lower=True, trans=1 if transposed else 0)

    def product(self, left: Any, right: Any) -> Any:
        return left @ right

    def eigen(self, matrix: Any) -> tuple[Any, Any]:
        values, vectors = self.xp.linalg.eigh(matrix)
        return values, vectors

    def add_square(self, total: Any, rows: Any) -> Any:
        if total is None:
            return rows.T @ rows
        total += rows.T @ rows
        return total

    def fill(self, total: Any) -> Any:
        return total

    def upload(self, values: Any) -> Any:
        if isinstance(values, self.xp.ndarray):
            return values
        return self.xp.asarray(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")))

    def download(self, values: Any) -> Any:
        return self.xp.asnumpy(values)

    def read_later(self, number: Any) -> Callable[[], float]:
        room = self._empty_pinned(1)
        number.reshape(1).get(out=room, blocking=False)
        here = self.xp.cuda.get_current_stream().record()

        def read() -> float:
            here.synchronize()
            return float(room[0])

        return read

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        try:
            yield
        except self.xp.cuda.memory.OutOfMemoryError as error:
            raise DoesNotFit(f"the GPU ran out of memory ({error}); free memory on it, or use backend='cpu'") from None


Algebra = CpuAlgebra | GpuAlgebra


def _column_major(matrix: Any) -> bool:
    return bool(matrix.strides[0] < matrix.strides[1])
