"""`tangentless doctor`: what this machine has, which backend is chosen and why, and a self-test of the results.

The self-test compares every backend that runs here with the values stored in `doctor.json`, which the reference backend
computed in float64. The pixels of its images are whole numbers, so the images have the same bits on every machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunks import free_memory, machine_memory
from .classical import NTK
from .devices import Device, Precision, choose_backend
from .errors import TangentlessError
from .inputs import to_host
from .kernel import Kernel, kernel
from .timing import format_bytes, package_version, processor_name

Array = NDArray[np.float64]
IMAGES, SHAPE, RIDGE = 5, (8, 8, 3), 0.01
# Largest error allowed, by precision. Rounding gave up to 2e-7 (float32) and 2e-15 (float64) on the processors tried; a
# wrong result exceeds these limits by far.
LIMITS = {"float32": 1e-5, "float64": 1e-11}
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "llvmlite", "typer", "rich", "matplotlib", "pillow", "filelock")
_EXTRAS = ("cupy-cuda12x", "cupy-cuda13x", "torch", "dask", "fsspec", "gpytorch")
_COMPILED = (".nbi", ".nbc")
_BLAS = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS", "flexiblas": "FlexiBLAS"}  # keys: names in threadpoolctl


@dataclass(frozen=True)
class Check:
    """One comparison with stored values: the largest error relative to the largest value, or what went wrong."""

    what: str
    backend: str
    precision: str
    error: float | None
    limit: float
    seconds: float
    trouble: str = ""

    @property
    def good(self) -> bool:
        """Whether the error is known and within the limit."""
        return self.error is not None and self.error <= self.limit

    def to_json(self) -> dict[str, Any]:
        """The fields and `good` as a dictionary for JSON."""
        return {**asdict(self), "good": self.good}

    def __str__(self) -> str:
        told = self.trouble or f"error {self.error:.0e}, at most {self.limit:.0e}"
        return f"{'ok  ' if self.good else 'BAD '} {self.backend} {self.precision}, {self.what}: {told}"


def cases() -> dict[str, Kernel]:
    """The kernels of the self-test by name: a plain chain of layers, one with branches, and a kernel of vectors."""
    return {
        "myrtle5": kernel("myrtle5"),
        "branches": kernel("conv3 gaussian pool2 residual(conv3 relu) globalpool"),
        "ntk": NTK(3),
    }


def example_images() -> NDArray[np.float32]:
    """The images of the self-test, (5, 8, 8, 3); pixels are whole numbers from -8 to 8.

    >>> example_images().shape, example_images().min(), example_images().max()
    ((5, 8, 8, 3), np.float32(-8.0), np.float32(8.0))
    """
    image, row, column, channel = np.indices((IMAGES, *SHAPE))
    mixed = 7 * image + 3 * row + 5 * column + 11 * channel + row * column * (image + 1) + image**2 * (channel + 1)
    pixels: NDArray[np.float32] = (mixed % 17 - 8).astype(np.float32)
    return pixels


def self_test() -> Iterator[Check]:
    """Compare every backend that runs here with the stored values; yields one check after the other."""
    stored = json.loads(resources.files(__package__).joinpath("doctor.json").read_text(encoding="utf-8"))
    gpu = ["cuda"] if choose_backend()[0] == "cuda" else []
    for name in ("reference", "cpu", *gpu):
        precisions: tuple[Precision, ...] = ("float64",) if name == "reference" else ("float32", "float64")
        for precision in precisions:
            device = Device(name, precision)
            for case, k in cases().items():
                yield _check(case, device, _matrix, k, stored[case])
    for name in ("cpu", *gpu):
        given, expected = stored["myrtle5"], stored["leave-one-out"]
        yield _check("leave-one-out", Device(name, "float64"), _leave_one_out, given, expected)


def stored_values() -> dict[str, Any]:
    """The content of `doctor.json`, computed by the reference backend; write it there when a case changes."""
    device = Device("reference")
    found = {name: _matrix(k, device).tolist() for name, k in cases().items()}
    return {**found, "leave-one-out": _leave_one_out(found["myrtle5"], device).tolist()}


def _matrix(k: Kernel, device: Device) -> Array:
    images = example_images()
    rows = images.reshape(IMAGES, -1) if isinstance(k, NTK) else images
    return np.asarray(to_host(k(rows, backend=device)))


def _leave_one_out(matrix: Any, device: Device) -> Array:
    from .solve import solve_ridge

    targets = np.eye(2)[np.arange(IMAGES) % 2]
    return np.asarray(to_host(solve_ridge(np.array(matrix), targets, RIDGE, backend=device).leave_one_out))


def _check(what: str, device: Device, compute: Callable[[Any, Device], Array], given: Any, stored: Any) -> Check:
    limit, start = LIMITS[device.precision], time.perf_counter()
    about = what, device.name, device.precision
    try:
        exact = np.array(stored)
        error = float(np.abs(compute(given, device) - exact).max() / np.abs(exact).max())
    except Exception as problem:  # any failure of a backend is a result of the self-test
        return Check(*about, None, limit, time.perf_counter() - start, f"{type(problem).__name__}: {problem}")
    return Check(*about, error, limit, time.perf_counter() - start, "" if np.isfinite(error) else "not finite")


def survey() -> dict[str, Any]:
    """What this machine has and what is chosen on it, as a dictionary for JSON."""
    name, reason = choose_backend()
    return {
        "versions": _versions(),
        "machine": _machine(),
        "backend": {"chosen": name, "why": reason},
        "gpus": _gpus() if name == "cuda" else [],
        "blas": _blas(),
        "caches": _caches(name == "cuda"),
        "data": _data(),
    }


def _versions() -> dict[str, str | None]:
    from . import __version__

    found = {name: package_version(name) for name in (*_PACKAGES, *_EXTRAS)}
    known = {name: None if version == "not installed" else version for name, version in found.items()}
    return {"tangentless": __version__, "python": platform.python_version(), **known}


def _machine() -> dict[str, Any]:
    from .backends.cpu.simd import host_bits, host_features
    from .backends.workers import count_workers

    bits = host_bits()
    why = {512: "it has AVX-512", 256: "it has AVX2 and FMA", 128: "wider ones need AVX2 and FMA, or AVX-512"}[bits]
    if "NUMBA_CPU_FEATURES" in os.environ:
        why = "NUMBA_CPU_FEATURES says so"
    elif not host_features():
        why = "LLVM does not report the features of this processor, and 128 bits run everywhere"
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "threads": count_workers(None),
        "cores": os.cpu_count(),
        "memory": machine_memory(),
        "memory_free": free_memory(),
        "vector_bits": bits,
        "why": why,
    }


def _gpus() -> list[dict[str, Any]]:
    from .backends.cuda.machine import count_gpus, import_cupy

    cupy = import_cupy()
    runtime, found = cupy.cuda.runtime, []
    for index in range(count_gpus()):
        with cupy.cuda.Device(index) as device:
            free, total = runtime.memGetInfo()
            name = runtime.getDeviceProperties(index)["name"].decode()
            found.append(
                {
                    "name": name,
                    "compute_capability": device.compute_capability,
                    "memory": total,
                    "memory_free": free,
                    "cuda_driver": runtime.driverGetVersion(),
                    "cuda_runtime": runtime.runtimeGetVersion(),
                    "cupy": cupy.__version__,
                }
            )
    return found


def _blas() -> list[dict[str, Any]]:
    import scipy.linalg  # noqa: F401 (which loads its BLAS)
    from threadpoolctl import threadpool_info

    kept = ("internal_api", "version", "num_threads", "architecture")
    return [{name: one.get(name) for name in kept} for one in threadpool_info() if one["user_api"] == "blas"]


def _caches(gpu: bool) -> list[dict[str, Any]]:
    import platformdirs

    from .backends.cpu.sweep import run_rows

    compiled = getattr(getattr(run_rows, "_cache", None), "cache_path", None)
    places = [("code for CPUs", compiled, _COMPILED), ("downloads", platformdirs.user_cache_dir("tangentless"), ())]
    if gpu:
        kept = os.environ.get("CUPY_CACHE_DIR") or str(Path("~/.cupy/kernel_cache").expanduser())
        places.append(("code for GPUs", kept, ()))
    return [{"what": what, "folder": place, "bytes": _size(place, kinds)} for what, place, kinds in places]


def _size(folder: str | None, endings: tuple[str, ...]) -> int:
    """Bytes of the files in and below a folder; `endings` selects some kinds, and `()` means all."""
    if folder is None:
        return 0
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(file.stat().st_size for file in files if not endings or file.suffix in endings)


def _data() -> dict[str, Any]:
    """The folders in which data sets are looked for, what is wrong with them, and the file of each data set found."""
    from .datasets import NAMES, data_folders, locate

    try:
        folders, trouble = [str(folder) for folder in data_folders()], None
    except TangentlessError as error:
        folders, trouble = [], str(error)
    found: dict[str, str | None] = {}
    for name in NAMES:
        if name != "digits":  # which comes with scikit-learn
            with contextlib.suppress(TangentlessError):
                found[name] = str(locate(name))
    return {"folders": folders, "trouble": trouble, "found": found}


def survey_lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What `survey` found as lines for a terminal: pairs of name and text."""
    machine, backend = found["machine"], found["backend"]
    versions = found["versions"].items()
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions if version is not None)
    absent = [name for name, version in versions if version is None]
    yield "not installed", ", ".join(absent) or "nothing"
    yield "system", machine["system"]
    yield "processor", f"{machine['processor']}; {machine['threads']} of {machine['cores']} cores are used"
    yield "vectors", f"{machine['vector_bits']} bits: {machine['why']}"
    yield "memory", _memory(machine)
    yield "backend", f"{backend['chosen']}: {backend['why']}"
    if backend["chosen"] != "cuda" and not any(found["versions"][name] for name in _EXTRAS[:2]):
        yield "GPU", "for an NVIDIA GPU: pip install 'tangentless[cuda13]', or [cuda12] if its driver is for CUDA 12"
    for gpu in found["gpus"]:
        yield "GPU", f"{gpu['name']}; {_memory(gpu)}; compute capability {'.'.join(gpu['compute_capability'])}"
        yield "CUDA", f"driver {_cuda(gpu['cuda_driver'])}, runtime {_cuda(gpu['cuda_runtime'])}, CuPy {gpu['cupy']}"
    for blas in found["blas"]:
        name = _BLAS.get(blas["internal_api"], blas["internal_api"])
        kernels = f", code for {blas['architecture']}" if blas["architecture"] else ""
        yield "BLAS", f"{name} {blas['version']}, {blas['num_threads']} threads{kernels}"
    for cache in found["caches"]:
        kept = f"{format_bytes(cache['bytes'])} in {cache['folder']}"
        none = "not kept, because no cache folder is writable; set NUMBA_CACHE_DIR to one that is"
        yield cache["what"], kept if cache["folder"] else none
    data = found["data"]
    places = " and ".join(data["folders"])
    yield (
        "data sets",
        data["trouble"] or ", ".join(data["found"]) or f"none in {places}; they are downloaded on first use",
    )


def _memory(one: dict[str, Any]) -> str:
    return f"{format_bytes(one['memory'])}, {format_bytes(one['memory_free'])} of it free"


def _cuda(version: int) -> str:
    """A version number of the CUDA runtime as text.

    >>> _cuda(13020)
    '13.2'
    """
    return f"{version // 1000}.{version % 1000 // 10}"
