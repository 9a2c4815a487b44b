"""Arrays in and out: inputs are checked, and results are returned as the kind of array that came in.

NumPy arrays and torch tensors on the host are used without a copy. CuPy arrays and torch tensors on a GPU stay there if
the device that computes is a GPU too (tensors by DLPack), and are copied to the host otherwise. A result is converted
back to the kind of the input, on the input's device.
"""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunks import spans
from .errors import InputError, ParameterError
from .layers import format_grid

Array = NDArray[Any]
_PACKAGE = __name__.partition(".")[0]
_ROWS_AT_ONCE = 4096
_LARGEST, _SMALLEST = 1e100, 1e-100  # sizes of values beyond which products of several may leave the range of float64
_COLOURS = (1, 3, 4)  # numbers of channels of usual images: grey, RGB, RGBA
_SMALLEST_PICTURE = 8  # pixels a side: shorter axes are not taken for those of an image
_CHANNELS_FIRST = (
    "channels come first in it: {0}.transpose(0, 2, 3, 1), or of a tensor {0}.permute(0, 2, 3, 1), puts them last"
)
_KINDS = {2: "vectors (N, C)", 3: "sequences (N, L, C)", 4: "images (N, H, W, C)"}


def take(values: Any, *, on_gpu: bool) -> tuple[Any, Callable[[Any], Any]]:
    """As `to_numpy`; but with `on_gpu`, values on a GPU become a CuPy array there, and results stay on the GPU."""
    if is_tensor(values):
        return _take_tensor(values, on_gpu)
    if is_cupy(values):
        return (values, _unchanged) if on_gpu else (values.get(), lambda result: put_beside(result, values))
    if isinstance(values, np.ma.MaskedArray):
        raise InputError("masked arrays are not supported: fill the masked values first, for example with X.filled(0)")
    try:
        return np.asarray(values), _unchanged
    except ValueError:
        raise InputError("the rows have different shapes; images must all be of one size") from None


def to_numpy(values: Any) -> tuple[Array, Callable[[Array], Any]]:
    """The values as a NumPy array, and a function that converts a result to the kind of array that they were.

    >>> array, restore = to_numpy([[1.0, 2.0]])
    >>> array.shape, restore(array) is array
    ((1, 2), True)
    """
    return take(values, on_gpu=False)


def without_tensor(values: Any) -> Any:
    """A torch tensor as a NumPy array, anything else as it is; for libraries that do not know tensors."""
    return to_numpy(values)[0] if is_tensor(values) else values


def is_cupy(values: Any) -> bool:
    """Whether the values are a CuPy array; does not import CuPy."""
    return _module(values) == "cupy"


def is_tensor(values: Any) -> bool:
    """Whether the values are a torch tensor; does not import torch."""
    return _module(values) == "torch"


def to_tensor(array: Array, device: str) -> Any:
    """The array as a torch tensor on a device such as "cuda:0"; torch must have been imported already."""
    return sys.modules["torch"].as_tensor(array, device=device)


def to_host(values: Any) -> Any:
    """A CuPy array or torch tensor as a NumPy array, anything else as it is."""
    return take(values, on_gpu=False)[0] if is_tensor(values) or is_cupy(values) else values


def put_beside(array: Array, values: Any) -> Any:
    """The NumPy array, or a CuPy copy of it on the GPU of `values` if these are a CuPy array."""
    if not is_cupy(values):
        return array
    with values.device:
        return sys.modules["cupy"].asarray(array)


def device_of(values: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which CuPy makes new arrays on the GPU of `values`; for a NumPy array it does nothing."""
    if isinstance(values, np.ndarray):
        return contextlib.nullcontext()
    device: contextlib.AbstractContextManager[Any] = values.device
    return device


def check_images(values: Any, name: str = "X") -> Any:
    """Raise `InputError` unless the values are finite, not empty, exact in float64, and of 2, 3 or 4 axes.

    Warns where the axes are probably not what they will be read as, such as channels that come first.
    """
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
    if mistake := _likely_mistake(values, name):
        _warn_caller(f"{name} of shape {values.shape} is read as {_interpretation(values.shape)}; {mistake}")
    for part in spans(len(values), _ROWS_AT_ONCE):
        _check_values(values[part], name, part.start)
    return values


def shape_hint(shape: tuple[int, ...], expected: tuple[int, ...], name: str = "X") -> str:
    """A remedy for an array of this shape whose rows should have the `expected` one; empty if no mistake is likely.

    >>> shape_hint((9, 3, 32, 32), (32, 32, 3))
    '; channels come first in it: X.transpose(0, 2, 3, 1), or of a tensor X.permute(0, 2, 3, 1), puts them last'
    >>> shape_hint((32, 32, 3), (32, 32, 3)), shape_hint((9, 28, 28), (28, 28, 1))
    ('; a single one is X[None]', '; add a channel axis, X[..., None]')
    >>> shape_hint((9, 784), (28, 28, 1))
    '; reshape flat rows, X.reshape(-1, 28, 28, 1)'
    """
    if shape == expected:
        return f"; a single one is {name}[None]"
    if (*shape[1:], 1) == expected:
        return f"; add a channel axis, {name}[..., None]"
    if len(shape) == 2 and len(expected) > 1 and shape[1] == math.prod(expected):
        return f"; reshape flat rows, {name}.reshape(-1, {', '.join(map(str, expected))})"
    return f"; {_CHANNELS_FIRST.format(name)}" if len(shape) == 4 and (*shape[2:], shape[1]) == expected else ""


def _likely_mistake(values: Any, name: str) -> str:
    """A remedy for an array whose axes are probably not what they will be read as; empty if no mistake is likely."""
    shape = values.shape
    if values.ndim == 4 and shape[1] in _COLOURS and min(shape[2:]) >= _SMALLEST_PICTURE:
        return _CHANNELS_FIRST.format(name)
    if values.ndim != 3:
        return ""
    picture = min(shape[:2]) >= _SMALLEST_PICTURE and (
        shape[2] in _COLOURS[1:] or (shape[2] == 1 and (shape[0] == shape[1] or values.dtype == np.uint8))
    )
    if picture:
        return f"a single image is {name}[None]"
    grey = shape[1] == shape[2] or (min(shape[1:]) >= _SMALLEST_PICTURE and _looks_like_pixels(values[0]))
    return f"for grey images add a channel axis, {name}[..., None]" if grey else ""


def _looks_like_pixels(row: Any) -> bool:
    """Whether no value is negative and there are more than two distinct ones, unlike in one-hot vectors."""
    return bool(row.min() >= 0) and len(np.unique(row)) > 2


def _interpretation(shape: tuple[int, ...]) -> str:
    kind = "sequences of length" if len(shape) == 3 else "images of"
    return f"{kind} {format_grid(shape[1:-1])} with {shape[-1]} channels"


def check_switch(name: str, value: Any) -> None:
    """Raise `ParameterError` unless the value is True or False; Python would take a text such as "no" for true."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} must be True or False, not {value!r}")


def check_pair(left: Any, right: Any) -> None:
    """Raise `InputError` if two sets of images differ in grid or channels."""
    if left.shape[1:] != right.shape[1:]:
        raise InputError(
            f"X and Z differ in shape: X holds {_describe_row(left)}, Z holds {_describe_row(right)}; "
            f"both need the same grid and channels{shape_hint(right.shape, left.shape[1:], 'Z')}"
        )


def _check_values(rows: Any, name: str, start: int) -> None:
    """Check the values of some rows. CuPy arrays work too, because NumPy's functions dispatch to CuPy's."""
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
                f"{name} has values of size {float(largest[bad[0]]):.2g} in row {start + int(bad[0])}; kernels "
                "multiply several values, and float64 must hold the products; rescale them to within 1e-100 to 1e100"
            )
    elif rows.dtype.itemsize == 8 and (rows.max() > 2**53 or rows.min() < -(2**53)):
        raise InputError(f"{name} holds integers beyond 2**53, which float64 would round; rescale them first")


def _take_tensor(values: Any, on_gpu: bool) -> tuple[Any, Callable[[Any], Any]]:
    torch, tensor = sys.modules["torch"], values.detach()
    if values.requires_grad and torch.is_grad_enabled():  # disabled inside the matrices that have a backward pass
        _warn_caller("a tensor requires gradients, but results here carry none: pass X.detach()")
    try:
        if on_gpu and values.is_cuda:
            import cupy

            with cupy.cuda.Device(values.device.index):
                return cupy.from_dlpack(tensor), torch.from_dlpack
        return tensor.cpu().numpy(), lambda result: torch.from_numpy(result).to(values.device)
    except (TypeError, RuntimeError, BufferError) as error:  # sparse, quantised, or a dtype that NumPy lacks
        raise InputError(
            f"a tensor of {values.dtype}, {values.layout}, cannot become an array ({error}); "
            "make it dense, of a dtype that NumPy has, for example by .float()"
        ) from None


def _warn_caller(text: str) -> None:
    """Warn with the line outside this package that led here, however many calls inside it lie between."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _module(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _unchanged(result: Any) -> Any:
    return result


def _describe_row(values: Any) -> str:
    return f"{format_grid(values.shape[1:-1])} with {values.shape[-1]} channels"
