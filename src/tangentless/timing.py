"""Measures speed and error of a backend on this machine, predicts the cost of a matrix, and describes the machine.

The speed is measured on blocks of random images, which grow until they take long enough to time. Nothing is saved
between runs. The predicted time of a matrix is its number of pairs over that speed.
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import math
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aside import seconds_compiling
from .backends import Backend, Prepared
from .graph import EmbedNode, Graph, PoolNode
from .kernel import CompositionalKernel

Array = NDArray[np.float64]
_SOLVER_ROWS = 2048  # rows of the matrix that the solver is timed on; smaller ones reach fewer operations per second
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "cupy-cuda13x", "torch")
_MISSING = "not installed"
_PATH_OPTIONS = ("--data", "--output", "-o", "--store", "--work", "--report")  # options whose value is a path
_FEW_IMAGES, _MOST_IMAGES = 16, 2048  # rows of a block: with fewer than 16 (SIMD lanes), its rate is not typical


@dataclass(frozen=True)
class Speed:
    """Rates of a backend per second, and the number of entries that were not finite."""

    pairs: float
    images: float  # images prepared
    elements: float
    not_finite: int
    lanes: int = 1  # images that the backend computes together
    stored: float = math.inf  # pairs copied into a symmetric matrix, to both sides of the diagonal

    def matrix_seconds(self, count: int) -> float:
        """The predicted seconds of a symmetric matrix of `count` images, without preparing them."""
        return computed_pairs(count, self.lanes) / self.pairs + count**2 / 2 / self.stored

    @property
    def preparation(self) -> float:
        """The cost of preparing one image, in pairs."""
        return self.pairs / self.images


@dataclass(frozen=True)
class Memory:
    """Bytes that computing a symmetric matrix needs; training then works in place, in `result`."""

    result: int
    images: int
    tiles: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.result + self.images + self.tiles


@dataclass(frozen=True)
class Accuracy:
    """The largest errors of the normalised kernel against the reference: absolute, and relative to 1 - K."""

    absolute: float
    relative: float


def random_images(graph: Graph, count: int, seed: int = 0) -> NDArray[Any]:
    """Float32 images of the graph's shape: random mixtures of four patterns plus noise, hence correlated."""
    generator = np.random.default_rng(seed)
    shape = (*graph.grid, graph.channels)
    patterns = generator.standard_normal((4, *shape), dtype=np.float32)
    mixture = np.tensordot(generator.standard_normal((count, 4), dtype=np.float32), patterns, 1)
    images: NDArray[Any] = mixture + generator.standard_normal((count, *shape), dtype=np.float32)
    return images


def warm_up(backend: Backend, graph: Graph) -> float:
    """Prepare and compute one block, so that compilation is not timed later; returns the seconds it took."""
    start = time.perf_counter()
    prepared = backend.prepare(graph, random_images(graph, 2))
    backend.block(graph, prepared, prepared)
    return time.perf_counter() - start


def measure(backend: Backend, graph: Graph, seconds: float = 1.0) -> Speed:
    """Measure the speed of a warm backend for about `seconds`.

    The first block has one row, and as many columns as fill the SIMD lanes of all threads: with large images, a single
    pair would take as long. Blocks then grow until they take long enough to time.

    >>> from .backends import get_backend
    >>> from .kernel import kernel
    >>> graph = kernel("conv3 relu globalpool").graph((4, 4, 1))
    >>> measure(get_backend("reference"), graph, seconds=0.01).pairs > 0
    True
    """
    lanes = lanes_of(backend.prepare(graph, random_images(graph, 1)))
    rows, columns = 1, lanes * getattr(backend, "n_jobs", 1)
    while True:
        images = random_images(graph, rows + columns)
        prepared, preparing = timed(functools.partial(backend.prepare, graph, images))
        run = functools.partial(backend.block, graph, prepared[:rows], prepared[rows:])
        values, taken = timed(run)
        enough = seconds / 5 if rows >= _FEW_IMAGES else seconds / 2
        if taken > enough or rows >= min(prepared.tile, _MOST_IMAGES):
            break
        rows, columns = 2 * rows, max(columns, 2 * rows)
    for _ in range(2 if 2 * taken < seconds else 0):
        taken = min(taken, timed(run)[1])
    pairs, copying = rows * columns, timed(functools.partial(_copy_to_matrix, values))[1]
    wrong = int(np.sum(~np.isfinite(values)))
    rate, stored = pairs / taken, pairs / max(1e-9, copying)
    return Speed(rate, len(images) / preparing, rate * graph.elements, wrong, lanes, stored)


def _copy_to_matrix(values: Any) -> Any:
    """Copy a block above and below the diagonal of a new matrix. For small images on a GPU this is the slowest step."""
    rows, columns = values.shape
    whole = np.empty_like(values, shape=(rows + columns, rows + columns))
    whole[:rows, rows:] = values
    whole[rows:, :rows] = values.T
    return whole


def lanes_of(prepared: Prepared) -> int:
    """Images of one side that a backend computes together; a block with fewer images takes as long."""
    return int(getattr(prepared, "lanes", 1))


def computed_pairs(count: int, lanes: int) -> int:
    """Pairs that a backend computes for a symmetric matrix: the unordered ones, plus those that fill up lanes.

    >>> computed_pairs(3, 1), computed_pairs(48, 16)  # where 6 and 1,176 are needed
    (6, 1536)
    """
    return sum(min(count, start + lanes) * lanes for start in range(0, count, lanes))


def compare_with_reference(
    kernel: CompositionalKernel, backend: Backend, shape: tuple[int, ...], count: int
) -> Accuracy:
    """The error of a backend on all pairs of `count` random images."""
    images = random_images(kernel.graph(shape), count)
    exact, values = kernel(images, backend="reference"), kernel(images, backend=backend)
    norms = np.sqrt(np.diag(exact))
    error = np.abs(values - exact) / np.multiply.outer(norms, norms)
    apart = ~np.eye(count, dtype=bool)
    distance = 1 - (exact / np.multiply.outer(norms, norms))[apart]
    return Accuracy(float(error.max()), float((error[apart] / distance).max()))


def solver_seconds(rows: int) -> float:
    """The predicted seconds of an exact solution with leave-one-out: cubic in the rows, timed at 2,048 rows."""
    from .solve import solve_ridge

    matrix = 0.5 * np.ones((_SOLVER_ROWS, _SOLVER_ROWS)) + 0.5 * np.eye(_SOLVER_ROWS)
    targets = np.ones((_SOLVER_ROWS, 10))
    solve_ridge(matrix[:64, :64], targets[:64])
    _, taken = timed(lambda: solve_ridge(matrix, targets, overwrite=True))
    return taken * (rows / _SOLVER_ROWS) ** 3


def predict_memory(graph: Graph, prepared: Prepared, count: int) -> Memory:
    """Bytes for the matrix of `count` images in float32; `prepared`: a few images on the backend."""
    pixels = math.prod(graph.grid) * graph.channels
    nodes = [graph.nodes[place] for place in graph.body]
    norms = sum(math.prod(node.grid) for node in nodes if isinstance(node, EmbedNode))
    pooled = sum(math.prod(node.grid) for node in nodes if isinstance(node, PoolNode))
    tile = min(prepared.tile, count)
    expanded = (pixels + 2 * norms) * 4
    # Both sides with norms and inverses; one side also in the backend's layout and, in between, float64; the entries.
    tiles = tile * (3 * expanded + 8 * (pixels + norms)) + 3 * 8 * tile * tile
    return Memory(8 * count * count, 4 * count * (pixels + pooled), tiles)


def symmetric_pairs(count: int) -> int:
    """The number of unordered pairs of `count` images, including each image with itself."""
    return count * (count + 1) // 2


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Run an action; returns its result, and the seconds it took, without those of compiling."""
    start = time.perf_counter() - seconds_compiling()
    result = action()
    return result, time.perf_counter() - seconds_compiling() - start


def environment() -> dict[str, Any]:
    """The date, the machine and the versions of packages, for records."""
    from . import __version__
    from .backends.workers import count_workers

    versions = {name: package_version(name) for name in _PACKAGES}
    return {
        "date": today(),
        "processor": processor_name(),
        "cores": count_workers(None),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tangentless": __version__,
        **{name: version for name, version in versions.items() if version != _MISSING},
    }


def describe_machine(backend: str = "cpu") -> str:
    """The processor in words; for the backend "cuda", the GPU.

    >>> describe_machine().endswith(("core", "cores"))
    True
    """
    if backend == "cuda":
        from .backends.cuda.machine import import_cupy

        return str(import_cupy().cuda.runtime.getDeviceProperties(0)["name"].decode())
    from .backends.workers import count_workers

    cores = count_workers(None)
    return f"{processor_name()}, {cores} core{'s' if cores > 1 else ''}"


def command(arguments: Sequence[str]) -> str:
    """The command line of a run, without the options for places of files; other paths are cut to their last part.

    >>> command(["/usr/bin/tangentless", "reproduce", "mnist", "--data", "my data", "--train", "100", "-o", "here"])
    'tangentless reproduce mnist --train 100'
    >>> command(["benchmarks/networks_gpu.py", "/root/out", "--seconds=560"])
    'networks_gpu.py out --seconds=560'
    """
    program = Path(arguments[0])
    kept = [program.parent.name if program.stem == "__main__" else program.name]
    rest = iter(arguments[1:])
    for word in rest:
        name, *values = word.split("=")
        if name not in _PATH_OPTIONS:
            kept.append("=".join(Path(part).name if "/" in part else part for part in (name, *values)))
        elif not values:
            next(rest, None)
    return shlex.join(kept)


def today() -> str:
    """The date and time in UTC, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def package_version(package: str) -> str:
    """The version of a package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def processor_name() -> str:
    """The name of the processor, or its architecture if the system does not tell the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def format_seconds(seconds: float) -> str:
    """A duration in the unit that reads best.

    >>> [format_seconds(s) for s in (0.0123, 4.2, 75, 7500, 200_000, 1e9)]
    ['12 ms', '4.2 s', '75 s', '2.1 h', '2.3 days', '32 years']
    """
    for limit, unit, name in ((1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.2g} {name}" if seconds < 10 * unit else f"{seconds / unit:.0f} {name}"
    days = seconds / 86_400
    return f"{days:.2g} days" if days < 10 else f"{days:.0f} days" if days < 1000 else f"{days / 365.25:.0f} years"


def format_bytes(count: float) -> str:
    """A number of bytes in decimal units.

    >>> [format_bytes(b) for b in (12, 4096, 8e8, 2e10)]
    ['12 B', '4.1 kB', '800 MB', '20 GB']
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 10 and unit != "B" else f"{count:,.0f} {unit}"
