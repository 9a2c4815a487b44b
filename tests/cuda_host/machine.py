"""A machine for the CUDA backend without a GPU: its kernels, compiled for the host, on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tangentless.backends import cuda
from tangentless.backends.cuda.plan import StagePlan

HERE = Path(__file__).parent
SOURCES = Path(cuda.__file__).parent
ONE_AT_A_TIME = threading.Lock()  # the emulation has one block of threads
COMPILER = shutil.which("g++") or shutil.which("clang++")


class DeviceArray(np.ndarray):
    """What CuPy's arrays are to a GPU: images of this kind shall not come back to the host."""


class HostMachine:
    """What `CudaMachine` is to a GPU."""

    xp = np
    name = "the host"
    shared_limit = 227 * 1024

    def __init__(self, index: int = 0) -> None:
        self.index = index

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return 1 << 28

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def release(self) -> None:
        pass

    def load_stage(self, plan: StagePlan) -> Callable[..., None]:
        library = compiled("run_stage.cpp", plan.defines())

        def launch(
            left: Any, right: Any, source: Any, output: Any, units: Any, left_step: int, right_step: int
        ) -> None:
            arrays = left, right, source, output, units
            assert all(array.flags.c_contiguous for array in arrays)
            with ONE_AT_A_TIME:
                library.run(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), len(units), left_step, right_step)

        return launch

    def general(self, kernel: str, *arguments: Any) -> None:
        library = compiled("run_general.cpp", ())
        boxes = [np.array([a.ctypes.data if isinstance(a, np.ndarray) else a]) for a in arguments]
        pointers = (ctypes.c_void_p * len(boxes))(*(box.ctypes.data for box in boxes))
        with ONE_AT_A_TIME:
            getattr(library, f"run_{kernel}")(pointers)

    def upload(self, values: Any) -> Any:
        return np.array(values, order="C")

    def download(self, values: Any) -> Any:
        return np.array(values)

    def deliver(self, values: Any, beside: Any) -> Any:
        return values.view(DeviceArray) if isinstance(beside, DeviceArray) else self.download(values)

    def mark(self) -> Callable[[], None]:
        return lambda: None


def emulate(monkeypatch: Any) -> None:
    """Make the backend believe that there is one GPU, which is the host."""
    monkeypatch.setattr(cuda, "count_gpus", lambda: 1)
    monkeypatch.setattr(cuda, "CudaMachine", HostMachine)


@functools.cache
def compiled(file: str, defines: tuple[str, ...]) -> ctypes.CDLL:
    """A shared library of one of the `.cpp` files here; kept for the next run as long as nothing changes."""
    assert COMPILER is not None
    files = [*HERE.glob("*.?pp"), *SOURCES.glob("*.cu*")]
    text = "".join(path.read_text() for path in sorted(files)) + " ".join(defines) + file
    folder = Path(tempfile.gettempdir()) / "tangentless-cuda-host"
    folder.mkdir(exist_ok=True)
    library = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    if not library.exists():
        beside = library.with_suffix(".tmp")
        options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-DHOST_EMULATION", f"-I{SOURCES}", f"-I{HERE}"]
        subprocess.run([COMPILER, *options, *defines, str(HERE / file), "-o", str(beside)], check=True)
        beside.rename(library)
    return ctypes.CDLL(str(library))
