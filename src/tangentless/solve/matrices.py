"""Takes kernel matrices in: checks them, and copies them to one float64 matrix where they are solved.

A matrix may be an array on the host or on a GPU, a tensor, or a matrix in a store. The memory that a solution needs,
one matrix and some blocks beside it, is checked before it starts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import BackendError, DoesNotFit, InputError
from ..inputs import is_cupy, is_tensor, take, to_host, to_tensor
from .blocked import EPSILON, restore, set_diagonal

_ROWS_AT_ONCE = 128  # rows of the matrix that are checked or copied in one step
_ENTRY = 8  # bytes of a float64
_PANEL = 1024  # columns of the inverse of a factor that a CPU computes at once
_TOO_LARGE = (
    "solve on a GPU with more (backend='cuda'), give overwrite=True if K may be overwritten, or train on fewer rows"
)


def _algebra_for(backend: str | Device, K: Any) -> Algebra:
    """The linear algebra of a device; "auto" is the device where K is.

    >>> _algebra_for("auto", np.eye(2)).name
    'cpu'
    """
    on_gpu = is_cupy(K)
    device = Device("cuda" if on_gpu else "cpu") if backend == "auto" else Device.of(backend)
    if on_gpu and device.name != "cuda":
        raise BackendError(
            f"K is on the GPU, and backend={device.name!r} asks for the CPU; give K.get(), or backend='cuda'"
        )
    return device.algebra


def receive(K: Any, backend: str | Device) -> tuple[Algebra, Any, str]:
    """(algebra, matrix, kind): K as an array or a matrix in a store, and the kind of array that results shall be.

    The kind is "numpy", "cupy", or for a tensor its device, such as "cuda:0".
    """
    if is_tensor(K):
        on = _algebra_for("cuda" if backend == "auto" and K.is_cuda else backend, None)
        return on, take(K, on_gpu=on.name == "cuda")[0], str(K.device)
    return _algebra_for(backend, K), K, "cupy" if is_cupy(K) else "numpy"


def bring(on: Algebra, values: Any, name: str) -> Any:
    """Values of any kind as a float64 array of the algebra; raises `InputError` unless they are finite numbers."""
    if is_cupy(values) or is_tensor(values):
        values, _ = take(values, on_gpu=on.name == "cuda")
    else:
        values = as_numbers(values, name)
    array = on.upload(values).astype(np.float64, copy=False)
    if array.ndim:
        check_finite(array, name)
    return array


def send(on: Algebra, values: Any, kind: str) -> Any:
    """An array of the algebra, converted to a kind that `receive` returned."""
    if kind == "cupy":
        return values
    host = on.download(values)
    return host if kind == "numpy" else to_tensor(host, kind)


def load(on: Algebra, matrix: Any, targets: int, *, overwrite: bool) -> Any:
    """The matrix in float64, C order, where it is solved: a copy, or with `overwrite` K itself if possible."""
    stored = is_stored(matrix)
    if overwrite and not stored and _is_ready(on, matrix):
        return matrix if matrix.flags.c_contiguous else matrix.T  # it is symmetric
    rows = len(matrix)
    needed = memory_needed(rows, targets, block=on.block_rows(rows))
    check_fits(needed, on.free_bytes(), f"{rows:,} rows solved on the {on.name}", _TOO_LARGE)
    work = on.xp.empty((rows, rows))
    if not stored:
        for part in spans(rows, _ROWS_AT_ONCE):
            work[part] = on.xp.asarray(matrix[part], dtype=np.float64)
        return work
    for part, others, values in matrix.store.read_finished(matrix.store.layout.tiles()):
        work[part, others] = on.xp.asarray(values)
    diagonal = work.diagonal().copy()
    restore(on, work)
    set_diagonal(on, work, diagonal)
    return work


def memory_needed(rows: int, targets: int = 1, *, block: int | None = None, matrices: int = 1) -> int:
    """Bytes for an exact solution: the matrix, a few panels of the width of a block, and a few copies of the targets.

    A matrix of a single block needs panels too, for leave-one-out. `matrices` counts float64 matrices of this size.

    >>> f"{memory_needed(50_000, 10, block=4096) / 1e9:.0f} GB"
    '27 GB'
    """
    panels = 3 * min(_PANEL, rows) * rows if block is None or block >= rows else 4 * block * rows
    return _ENTRY * (matrices * rows**2 + panels + 6 * rows * targets)


def check_fits(needed: int, free: int | None, what: str, instead: str) -> None:
    """Raise `DoesNotFit` if more bytes are needed than are free; the message ends with what to do `instead`.

    >>> check_fits(20 * 10**9, 16 * 10**9, "50,000 rows", "use a GPU")
    Traceback (most recent call last):
        ...
    tangentless.errors.DoesNotFit: 50,000 rows need 20.0 GB of memory, and 16.0 GB are free; use a GPU
    """
    if free is not None and needed > free:
        raise DoesNotFit(f"{what} need {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; {instead}")


def check_kernel(K: Any) -> Any:
    """K as an array; raises `InputError` unless it is square, finite, and symmetric to half its digits.

    A matrix in a store has been checked when it was made, and is returned as it is.

    >>> check_kernel([[1.0, 0.5], [0.4, 1.0]])
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: K is not symmetric: K[0, 1] = 0.5, but K[1, 0] = 0.4
    """
    if is_stored(K):
        if not K.manifest.symmetric:
            raise InputError(f"{K!r} is the kernel between two sets of images; solve the matrix of one set, k(X)")
        return K
    matrix: Any = K if is_cupy(K) else as_numbers(K, "K")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InputError(f"K must be a square matrix, (n, n), but its shape is {matrix.shape}")
    # Half the digits: other orders of summation agree to far more, and matrices that are not symmetric to far less.
    precision = np.finfo(matrix.dtype).eps if matrix.dtype.kind == "f" else EPSILON
    for part in spans(len(matrix), _ROWS_AT_ONCE):
        rows = matrix[part, : part.stop].astype(np.float64, copy=False)
        columns = matrix[: part.stop, part].T.astype(np.float64, copy=False)
        check_finite(rows, "K", part.start)
        check_finite(columns, "K", part.start)
        allowed = math.sqrt(precision) * max(float(abs(rows).max()), float(abs(columns).max()))
        if float((difference := abs(rows - columns)).max()) > allowed:
            i, j = divmod(int(difference.argmax()), difference.shape[1])
            one, other = f"K[{part.start + i}, {j}] = {float(rows[i, j]):.6g}", f"K[{j}, {part.start + i}] = "
            raise InputError(f"K is not symmetric: {one}, but {other}{float(columns[i, j]):.6g}")
    return matrix


def as_numbers(values: Any, name: str) -> NDArray[Any]:
    """The values as a NumPy array, wherever they are; raises `InputError` unless they are real numbers."""
    values = to_host(values)
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold real numbers, but its dtype is {array.dtype}")
    return array


def check_finite(values: Any, name: str, start: int = 0) -> None:
    """Raise `InputError` for NaN and infinite values; it names the first row with one, counted from `start`."""
    finite = abs(values) < math.inf
    if not bool(finite.all()):
        row = start + int((~finite).reshape(len(values), -1).any(axis=1).argmax())
        raise InputError(f"{name} holds NaN or infinite values, first in row {row}")


def is_stored(K: Any) -> bool:
    """Whether K is a matrix in a store."""
    return hasattr(K, "manifest") and hasattr(K, "store")


def _is_ready(on: Algebra, matrix: Any) -> bool:
    """Whether the matrix can be solved in place: a contiguous, writeable float64 array of this algebra."""
    if not isinstance(matrix, on.xp.ndarray) or matrix.dtype != np.float64:
        return False
    flags = matrix.flags
    writeable = getattr(flags, "writeable", True) and getattr(flags, "aligned", True)
    return bool((flags.c_contiguous or flags.f_contiguous) and writeable)
