"""Arrays of an emulated GPU: NumPy's, with the refusals of CuPy's.

They do not mix with arrays of the host, except as indices, and NumPy's functions keep them on the device. So code that
takes them to the host and back, or forgets to copy a table there, fails without a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class DeviceArray(np.ndarray):
    """What CuPy's arrays are to a GPU."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if method not in ("__call__", "reduce"):  # methods of arrays, such as all(), reduce
            raise TypeError(f"{ufunc.__name__}.{method} is not known on the device")
        if out:
            options["out"] = tuple(_lowered(one) for one in out)
        result = getattr(ufunc, method)(*(_lowered(one) for one in inputs), **options)
        return out[0] if out else _raised(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return _raised(function(*_lowered(list(arguments)), **{name: _lowered(one) for name, one in options.items()}))

    def __setitem__(self, key: Any, value: Any) -> None:
        np.ndarray.__setitem__(self.view(np.ndarray), _index(key), _lowered(value))

    def __getitem__(self, key: Any) -> Any:
        return _raised(np.ndarray.__getitem__(self.view(np.ndarray), _index(key)))


class DeviceModule:
    """NumPy for arrays of the device: what it makes is there."""

    ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np, name)
        if isinstance(attribute, type) or not callable(attribute):
            return attribute
        return lambda *arguments, **options: _raised(attribute(*arguments, **options))


def asarray(values: Any) -> DeviceArray:
    """A copy on the device, as this module's namesake in CuPy makes it."""
    return np.array(values).view(DeviceArray)


def _lowered(value: Any) -> Any:
    """As NumPy's; arrays of the host are refused."""
    if isinstance(value, DeviceArray):
        return value.view(np.ndarray)
    if isinstance(value, np.ndarray) and value.ndim > 0:
        raise TypeError("an array of the host meets one of the device")
    if isinstance(value, list | tuple):
        return type(value)(_lowered(one) for one in value)
    return value


def _index(key: Any) -> Any:
    """Indices may be arrays of the host, which CuPy copies."""
    if isinstance(key, tuple):
        return tuple(_index(one) for one in key)
    return key.view(np.ndarray) if isinstance(key, DeviceArray) else key


def _raised(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return (list if isinstance(value, list) else tuple)(_raised(one) for one in value)
    return value.view(DeviceArray) if isinstance(value, np.ndarray) else value
