"""CuPy without a GPU: a module of NumPy functions, with arrays of class `DeviceArray`, to run GPU code on the host."""

import contextlib
import sys
import types

import numpy as np
import scipy.linalg

from cuda_host.machine import DeviceArray


class FakeCupy(types.ModuleType):
    """The functions that CuPy shares with NumPy; `downloads` lists the sizes of arrays copied to the host."""

    ndarray = DeviceArray

    def __init__(self):
        super().__init__("cupy")
        self.downloads = []
        runtime = types.SimpleNamespace(
            getDeviceCount=lambda: 1, memGetInfo=lambda: (10**9, 10**9), CUDARuntimeError=RuntimeError
        )
        event = types.SimpleNamespace(synchronize=lambda: None)
        self.cuda = types.SimpleNamespace(
            runtime=runtime,
            memory=types.SimpleNamespace(OutOfMemoryError=MemoryError),
            get_current_stream=lambda: types.SimpleNamespace(record=lambda: event),
        )
        self.linalg = types.SimpleNamespace(
            cholesky=lambda block: np.linalg.cholesky(np.tril(block) + np.tril(block, -1).T),
            norm=np.linalg.norm,
            eigh=np.linalg.eigh,
            qr=np.linalg.qr,
        )

    def __getattr__(self, name):
        function = getattr(np, name)
        if name not in ("empty", "zeros", "eye", "arange"):
            return function
        return lambda *arguments, **options: function(*arguments, **options).view(DeviceArray)

    def asarray(self, values, dtype=None):
        return np.asarray(values, dtype=dtype).view(DeviceArray)

    def asnumpy(self, values):
        self.downloads.append(values.size)
        return np.array(values)

    def get_default_memory_pool(self):
        return types.SimpleNamespace(free_bytes=lambda: 0)


def install(monkeypatch):
    """Make `import cupy` return a `FakeCupy`; returns it."""
    cupy, cupyx, linalg = FakeCupy(), types.ModuleType("cupyx"), types.ModuleType("cupyx.scipy.linalg")
    cupyx.errstate = lambda linalg: contextlib.nullcontext()
    cupyx.empty_pinned = np.empty

    def get(array, out=None, blocking=True):
        if out is None:
            return cupy.asnumpy(array)
        out[...] = array.view(np.ndarray)
        return out

    linalg.solve_triangular = lambda *arguments, **options: cupy.asarray(
        scipy.linalg.solve_triangular(*(np.array(one) for one in arguments), **options)
    )
    modules = {"cupy": cupy, "cupyx": cupyx, "cupyx.scipy": types.ModuleType("cupyx.scipy")}
    for name, module in (modules | {"cupyx.scipy.linalg": linalg}).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(DeviceArray, "__module__", "cupy")
    monkeypatch.setattr(DeviceArray, "get", get, raising=False)
    monkeypatch.setattr(DeviceArray, "device", contextlib.nullcontext(), raising=False)
    return cupy
