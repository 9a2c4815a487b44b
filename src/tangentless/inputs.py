"""Arrays in and out: inputs are checked, and results have the kind of array that came in.

NumPy arrays and torch tensors on the host pass without a copy. CuPy arrays and torch tensors on a GPU stay there, by
DLPack, if what computes can read them there, and are copied to the host otherwise. Results go back as the kind that
came, on its device.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunks import spans
from .errors import InputError
from .layers import format_grid

Array = NDArray[Any]
_ROWS_AT_ONCE = 4096
_LARGEST, _SMALLEST = 1e100, 1e-100  # beyond, inner products leave the range of float64
_KINDS = {2: "vectors (N, C)", 3: "sequences (N, L, C)", 4: "images (N, H, W, C)"}


def take(values: Any, *, on_gpu: bool) -> tuple[Any, Callable[[Any], Any]]:
    """As `to_numpy`; but with `on_gpu`, values on a GPU stay there, as a CuPy array, and so do results."""
    if is_tensor(values):
        return _take_tensor(values, on_gpu)
    if is_cupy(values):
        return (values, _unchanged) if on_gpu else (values.get(), lambda result: put_beside(result, values))
    if isinstance(values, np.ma.MaskedArray):
        raise InputError("masked arrays have no kernel: fill the masked values first, for example with X.filled(0)")
    try:
        return np.asarray(values), _unchanged
    except ValueError:
        raise InputError("the rows have different shapes; images must all be of one size") from None


def to_numpy(values: Any) -> tuple[Array, Callable[[Array], Any]]:
    """The values as a NumPy array, wherever they are, and a function that turns results into their kind.

    >>> array, restore = to_numpy([[1.0, 2.0]])
    >>> array.shape, restore(array) is array
    ((1, 2), True)
    """
    return take(values, on_gpu=False)


def is_cupy(values: Any) -> bool:
    """Whether the values are an array of CuPy, without importing it."""
    return _module(values) == "cupy"


def is_tensor(values: Any) -> bool:
    """Whether the values are a tensor of torch, without importing it."""
    return _module(values) == "torch"


def to_tensor(array: Array, device: str) -> Any:
    """The array as a tensor of torch, which is imported already, on a device of its."""
    return sys.modules["torch"].as_tensor(array, device=device)


def to_host(values: Any) -> Any:
    """The values, as a NumPy array if they are one of CuPy or a tensor of torch."""
    if is_tensor(values):
        return take(values, on_gpu=False)[0]
    return values.get() if is_cupy(values) else values


def put_beside(array: Array, values: Any) -> Any:
    """The array where the values are: on their GPU if they are an array of CuPy."""
    if not is_cupy(values):
        return array
    with values.device:
        return sys.modules["cupy"].asarray(array)


def device_of(values: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which new arrays are made where the values are."""
    if isinstance(values, np.ndarray):
        return contextlib.nullcontext()
    device: contextlib.AbstractContextManager[Any] = values.device
    return device


def check_images(values: Any, name: str = "X") -> Any:
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
    for part in spans(len(values), _ROWS_AT_ONCE):
        _check_values(values[part], name, part.start)
    return values


def check_pair(left: Any, right: Any) -> None:
    """Refuse two sets of images of different shapes."""
    if left.shape[1:] != right.shape[1:]:
        raise InputError(
            f"X and Z differ in shape: X holds {_each(left)}, Z holds {_each(right)}; "
            "both need the same grid and channels"
        )


def _check_values(rows: Any, name: str, start: int) -> None:
    """NumPy's functions hand arrays on a GPU to CuPy's."""
    if rows.dtype.kind == "f":
        finite = np.isfinite(rows)
        if not finite.all():
            bad = np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1))
            raise InputError(
                f"{name} holds NaN or infinite values, first in row {start + int(bad[0])} "
                f"({len(bad)} of rows {start} to {start + len(rows) - 1}); clean or drop those rows"
            )
        largest = np.abs(rows.reshape(len(rows), -1)).max(axis=1).astype(np.float64)
        bad = np.flatnonzero((largest > _LARGEST) | ((largest > 0) & (largest < _SMALLEST)))
        if len(bad):
            raise InputError(
                f"{name} has values of size {float(largest[bad[0]]):.0e} in row {start + int(bad[0])}, whose squares "
                "float64 cannot hold; rescale them"
            )
    elif rows.dtype.itemsize == 8 and (rows.max() > 2**53 or rows.min() < -(2**53)):
        raise InputError(f"{name} holds integers beyond 2**53, which float64 would round; rescale them first")


def _take_tensor(values: Any, on_gpu: bool) -> tuple[Any, Callable[[Any], Any]]:
    torch, tensor = sys.modules["torch"], values.detach()
    try:
        if on_gpu and values.is_cuda:
            import cupy

            with cupy.cuda.Device(values.device.index):
                return cupy.from_dlpack(tensor), torch.from_dlpack
        return tensor.cpu().numpy(), lambda result: torch.from_numpy(result).to(values.device)
    except (TypeError, RuntimeError, BufferError) as error:  # sparse, quantised, or a number format of torch alone
        raise InputError(f"a tensor of {values.dtype}, {values.layout}, has no array ({error}); convert it") from None


def _module(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _unchanged(result: Any) -> Any:
    return result


def _each(values: Any) -> str:
    return f"{format_grid(values.shape[1:-1])} with {values.shape[-1]} channels"
