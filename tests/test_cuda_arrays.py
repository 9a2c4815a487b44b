"""Arrays on a GPU stay there. The GPU is emulated: its arrays are NumPy arrays of class `DeviceArray`."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_host.arrays import DeviceArray
from cuda_host.machine import COMPILER, HostMachine
from tangentless.backends.cuda import CudaBackend
from tangentless.kernel import kernel
from tangentless.tiles import fill
from test_cuda_emulated import make_images

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")


@pytest.mark.parametrize("text", ["conv3 relu pool2 conv3 gaussian globalpool normalize relu", "conv5 relu globalpool"])
def test_images_on_the_device_never_come_back(backend: CudaBackend, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    k = kernel(text)
    images = make_images(k.graph((8, 8, 2)), 6).astype(np.float32)
    on_host = k.prepare(backend, images)
    expected = fill(k, backend, on_host, on_host, symmetric=True)
    monkeypatch.delattr(HostMachine, "download")
    on_device = k.prepare(backend, images.view(DeviceArray))
    found = fill(k, backend, on_device, on_device, symmetric=True)
    assert isinstance(found, DeviceArray)
    assert isinstance(on_device.diagonal, DeviceArray)
    assert np.array_equal(found.view(np.ndarray), expected)
