"""What comes in and goes out: arrays are checked at the door, and leave as the kind that came.

NumPy arrays pass without a copy. A torch or CuPy array is read through DLPack or copied to the host, and results go
back as that kind, on its device.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .layers import format_grid

Array = NDArray[Any]
_ROWS_AT_ONCE = 4096
_LARGEST, _SMALLEST = 1e100, 1e-100  # beyond, inner products leave the range of float64
_KINDS = {2: "vectors (N, C)", 3: "sequences (N, L, C)", 4: "images (N, H, W, C)"}


def to_numpy(values: Any) -> tuple[Array, Callable[[Array], Any]]:
    """The values as a NumPy array, and a function that turns results into the kind the values were.

    >>> array, restore = to_numpy([[1.0, 2.0]])
    >>> array.shape, restore(array) is array
    ((1, 2), True)
    """
    module = type(values).__module__.partition(".")[0]
    if module == "torch":
        torch = sys.modules["torch"]
        return values.detach().cpu().numpy(), lambda result: torch.from_numpy(result).to(values.device)
    if isinstance(values, np.ma.MaskedArray):
        raise InputError("masked arrays have no kernel: fill the masked values first, for example with X.filled(0)")
    if module == "cupy":
        return values.get(), sys.modules["cupy"].asarray
    try:
        return np.asarray(values), lambda result: result
    except ValueError:
        raise InputError("the rows have different shapes; images must all be of one size") from None


def check_images(values: Array, name: str = "X") -> Array:
    """Refuse what is not a finite, non-empty array of vectors, sequences or images that float64 can hold exactly."""
    if values.dtype.kind not in "fiub" or values.dtype.itemsize > 8:
        raise InputError(
            f"{name} has dtype {values.dtype}, which float64 cannot hold exactly; convert it, "
            f"for example {name}.astype(np.float64)"
        )
    if values.ndim not in _KINDS:
        raise InputError(
            f"{name} has {values.ndim} axes, shape {values.shape}; expected {', '.join(_KINDS.values())}; "
            f"a single image is {name}[None]"
        )
    if 0 in values.shape:
        raise InputError(f"{name} is empty: its shape is {values.shape}")
    if values.ndim == 3 and values.shape[1] == values.shape[2]:
        warnings.warn(
            f"{name} of shape {values.shape} is read as sequences of length {values.shape[1]} with {values.shape[2]} "
            f"channels; for grey images add a channel axis, {name}[..., None]",
            stacklevel=4,
        )
    for start in range(0, len(values), _ROWS_AT_ONCE):
        _check_values(values[start : start + _ROWS_AT_ONCE], name, start)
    return values


def check_pair(left: Array, right: Array) -> None:
    """Refuse two sets of images of different shapes."""
    if left.shape[1:] != right.shape[1:]:
        raise InputError(
            f"X and Z differ in shape: X holds {_each(left)}, Z holds {_each(right)}; "
            "both need the same grid and channels"
        )


def _check_values(rows: Array, name: str, start: int) -> None:
    if rows.dtype.kind == "f":
        finite = np.isfinite(rows)
        if not finite.all():
            bad = np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1))
            raise InputError(
                f"{name} holds NaN or infinite values, first in row {start + bad[0]} "
                f"({len(bad)} of rows {start} to {start + len(rows) - 1}); clean or drop those rows"
            )
        largest = np.abs(rows.reshape(len(rows), -1)).max(axis=1).astype(np.float64)
        bad = np.flatnonzero((largest > _LARGEST) | ((largest > 0) & (largest < _SMALLEST)))
        if len(bad):
            raise InputError(
                f"{name} has values of size {largest[bad[0]]:.0e} in row {start + bad[0]}, whose squares "
                "float64 cannot hold; rescale them"
            )
    elif rows.dtype.itemsize == 8 and (rows.max() > 2**53 or rows.min() < -(2**53)):
        raise InputError(f"{name} holds integers beyond 2**53, which float64 would round; rescale them first")


def _each(values: Array) -> str:
    return f"{format_grid(values.shape[1:-1])} with {values.shape[-1]} channels"
