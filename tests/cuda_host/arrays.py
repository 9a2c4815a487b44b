"""Arrays of an emulated GPU: NumPy arrays that refuse what CuPy's arrays refuse.

Operations that mix them with arrays of the host raise, except for indices, and results of NumPy's functions are on the
device again. So code that copies arrays to the host and back, or forgets to copy a table to the device, fails without a
GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class DeviceArray(np.ndarray):
    """The counterpart of `cupy.ndarray`."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if method not in ("__call__", "reduce"):  # methods of arrays, such as all(), reduce
            raise TypeError(f"{ufunc.__name__}.{method} does not exist for arrays of the device")
        if out:
            options["out"] = tuple(_to_numpy(one) for one in out)
        result = getattr(ufunc, method)(*(_to_numpy(one) for one in inputs), **options)
        return out[0] if out else _to_device(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return _to_device(
            function(*_to_numpy(list(arguments)), **{name: _to_numpy(one) for name, one in options.items()})
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        np.ndarray.__setitem__(self.view(np.ndarray), _index(key), _to_numpy(value))

    def __getitem__(self, key: Any) -> Any:
        return _to_device(np.ndarray.__getitem__(self.view(np.ndarray), _index(key)))


class DeviceModule:
    """The counterpart of the module `cupy`: NumPy, whose new arrays are on the device."""

    ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np, name)
        if isinstance(attribute, type) or not callable(attribute):
            return attribute
        return lambda *arguments, **options: _to_device(attribute(*arguments, **options))


def _to_numpy(value: Any) -> Any:
    """Device arrays as NumPy arrays, also in lists and tuples; raises for arrays of the host."""
    if isinstance(value, DeviceArray):
        return value.view(np.ndarray)
    if isinstance(value, np.ndarray) and value.ndim > 0:
        raise TypeError("an array of the host is mixed with one of the device; copy it with machine.upload")
    if isinstance(value, list | tuple):
        return type(value)(_to_numpy(one) for one in value)
    return value


def _index(key: Any) -> Any:
    """An index for NumPy. It may hold arrays of the host, which CuPy copies."""
    if isinstance(key, tuple):
        return tuple(_index(one) for one in key)
    return key.view(np.ndarray) if isinstance(key, DeviceArray) else key


def _to_device(value: Any) -> Any:
    """NumPy arrays as device arrays, also in lists and tuples."""
    if isinstance(value, tuple | list):
        return (list if isinstance(value, list) else tuple)(_to_device(one) for one in value)
    return value.view(DeviceArray) if isinstance(value, np.ndarray) else value
