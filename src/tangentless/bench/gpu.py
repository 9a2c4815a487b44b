"""Measures speed and error of the cuda backend on this GPU, beside the GPU's ceilings and PyTorch.

A case is a block between two sets of distinct images, timed after warm-up and without preparation. The backend and
PyTorch run in turns, so that other work on the machine slows both. Entries of random pairs are compared with float64 on
the GPU, and a few of these with the reference. A part of the block is computed again in smaller tiles and must have the
same bits.
"""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.cuda import CudaBackend
from ..backends.cuda.machine import import_cupy
from ..backends.reference import ReferenceBackend
from ..chunks import spans
from ..errors import InputError
from ..graph import Graph
from ..inputs import check_images
from ..kernel import CompositionalKernel, kernel
from ..layers import format_grid
from ..timing import environment, package_version, random_images, symmetric_pairs, timed
from .ceilings import Ceilings, gpu_seconds, measure_ceilings
from .rival import open_rival

Images = NDArray[Any]
Question = tuple[str, Images, Images, Images]  # an architecture, images of both sides, and their entries in float64

GPUS = (0,)  # one GPU, since the ceilings are those of one
SIDE = 528  # images of either side: 278,784 pairs
FEWEST_TURNS = 3  # of each contender, for a median
COMPARED = 15  # images of either side whose 225 pairs are compared with float64
TILED, TILE_ROWS, TILE_COLUMNS = 48, 7, 11
PROCESSES = 8
SMALL = "conv3 gaussian conv3 gaussian conv3 gaussian pool2 conv3 gaussian conv3 gaussian globalpool normalize gaussian"
STANDARD: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("myrtle10-gaussian", (32, 32, 3)),
    ("myrtle10", (32, 32, 3)),
    ("myrtle7", (32, 32, 3)),
    ("myrtle5", (32, 32, 3)),
    ("myrtle10-gaussian", (28, 28, 1)),
    ("myrtle5", (28, 28, 1)),
    (SMALL, (8, 8, 1)),
)


@dataclass(frozen=True)
class Measurement:
    """The measurements of one architecture on images of one shape."""

    architecture: str
    shape: tuple[int, ...]
    images: str  # their source
    path: str  # of the backend
    pairs: int  # of a turn
    turns: int
    pairs_per_second: float  # the median turn
    elements_per_second: float
    compared_pairs: int
    error: float  # largest relative error, against float64
    error_relative_to_distance: float  # largest error over 1 - K of the normalised kernel
    not_finite: int  # entries
    same_bits: bool
    rival_pairs_per_second: float | None  # the median turn
    rival_difference: float | None  # the largest relative difference of its entries from ours
    rival_missing: str | None  # why there is no rival
    seconds: float  # for all measurements

    @property
    def ratio(self) -> float | None:
        """How many times faster than the rival it is."""
        return None if self.rival_pairs_per_second is None else self.pairs_per_second / self.rival_pairs_per_second


@dataclass(frozen=True)
class GpuCase(Measurement):
    """A case of `bench_gpu`."""

    best_pairs_per_second: float
    share_of_special_functions: float
    issue_slots_per_element: float  # instructions that the GPU could issue in the time of one element
    preparation_microseconds: float  # of an image
    reference_pairs: int = 0
    reference_error: float | None = None  # of float64 on the GPU, against the reference


@dataclass(frozen=True)
class GpuMatrix:
    """The measurements of a symmetric matrix by `k(X)`, with preparation, copies and the head."""

    architecture: str
    shape: tuple[int, ...]
    images: str
    count: int
    seconds: float
    pairs_per_second: float
    share_of_block_rate: float  # its rate over that of the block of the same architecture
    symmetric: bool
    not_finite: int


@dataclass(frozen=True)
class GpuRecord:
    """The results of a run."""

    environment: dict[str, Any]
    build_seconds: float  # to compile all kernels
    ceilings: Ceilings
    cases: tuple[GpuCase, ...]
    matrix: GpuMatrix | None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def bench_gpu(
    cases: Sequence[tuple[str, tuple[int, ...]]],
    given: Sequence[Images] = (),
    *,
    seconds: float = 2.0,
    matrix: int = 10_000,
    references: int = 2,
    rival: bool = True,
    report: Callable[[GpuRecord], None] = lambda record: None,
) -> GpuRecord:
    """Measure cases, pairs of (architecture, shape).

    Images of a case's shape are taken from `given`, if any have that shape. Each contender runs for about `seconds`.
    With the first case, a symmetric matrix of `matrix` images is computed too. The pairs of `references` images of
    either side are compared with the reference, in other processes. `report` is called with the record after every
    case.
    """
    sources = {images.shape[1:]: images for images in map(as_images, given)}
    backend = CudaBackend(gpus=GPUS)
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        _, build_seconds = timed(lambda: list(pool.map(build_kernels, *zip(*cases, strict=True))))
        with backend.machines[0].active():
            record = GpuRecord(gpu_environment(), build_seconds, measure_ceilings(), (), None)
            report(record)
            bench, questions = _Bench(backend, sources, record.ceilings, rival, seconds, references), []
            for case in cases:
                found, question = bench.measure(*case)
                questions.append(question)
                record = replace(record, cases=(*record.cases, found))
                report(record)
            if matrix:
                record = replace(record, matrix=bench.matrix(*cases[0], matrix, record.cases[0]))
                report(record)
        answers = pool.map(_reference_error, *zip(*questions, strict=True))
        compared = [
            replace(case, reference_pairs=references**2, reference_error=error)
            for case, error in zip(record.cases, answers, strict=True)
        ]
        record = replace(record, cases=tuple(compared))
    report(record)
    return record


def summary(case: GpuCase) -> str:
    """A case in one line."""
    rival = f"{case.ratio:.1f} times PyTorch" if case.ratio else f"no rival: {case.rival_missing}"
    name, speed = f"{case.architecture} {format_grid(case.shape)}", f"{case.pairs_per_second:,.0f} pairs/s"
    return f"{name}: {speed}, {rival}, error {case.error:.0e} ({case.seconds:.0f} s)"


def take_turns(contenders: Sequence[Callable[[], float]], seconds: float) -> list[list[float]]:
    """Run contenders in turns. Each runs until its turns took `seconds`, and at least FEWEST_TURNS times.

    A contender is a function that returns the seconds of one turn. Returns those of every turn, by contender.

    >>> take_turns([lambda: 0.5, lambda: 3.0], seconds=2.0)
    [[0.5, 0.5, 0.5, 0.5], [3.0, 3.0, 3.0]]
    """
    taken: list[list[float]] = [[] for _ in contenders]
    while waiting := [n for n, turns in enumerate(taken) if len(turns) < FEWEST_TURNS or sum(turns) < seconds]:
        for n in waiting:
            taken[n].append(contenders[n]())
    return taken


@dataclass(frozen=True)
class _Bench:
    """The settings that all cases of a run share, and the measurements."""

    backend: CudaBackend
    sources: Mapping[tuple[int, ...], Images]
    ceilings: Ceilings
    rival: bool
    seconds: float
    references: int

    def measure(self, architecture: str, shape: tuple[int, ...]) -> tuple[GpuCase, Question]:
        """Measure a case; also returns the pairs to compare with the reference."""
        start = time.perf_counter()
        k, backend = kernel(architecture), self.backend
        graph = k.graph(shape)
        images, origin = _images(graph, 2 * SIDE, self.sources, fewer=True)
        side = len(images) // 2
        first, second = images[:side], images[side : 2 * side]
        backend.prepare(graph, first)
        (left, right), preparing = timed(lambda: (backend.prepare(graph, first), backend.prepare(graph, second)))
        found, turns, compared = measure_block(
            backend,
            graph,
            (first, second),
            (left, right),
            functools.partial(_exact, graph),
            side=side,
            seconds=self.seconds,
            rival=self.rival,
        )
        case = GpuCase(
            **found,
            architecture=k.architecture.short_name,
            shape=shape,
            images=origin,
            best_pairs_per_second=side * side / min(turns),
            share_of_special_functions=found["elements_per_second"] / self.ceilings.special_functions,
            issue_slots_per_element=self.ceilings.instructions / found["elements_per_second"],
            preparation_microseconds=preparing / (2 * side) * 1e6,
            seconds=time.perf_counter() - start,
        )
        few = slice(self.references)
        rows, columns, wanted = compared
        return case, (architecture, rows[few], columns[few], wanted[few, few])

    def matrix(self, architecture: str, shape: tuple[int, ...], count: int, case: GpuCase) -> GpuMatrix:
        """Measure a symmetric matrix of `count` images; `case` is the block of the same architecture."""
        k: CompositionalKernel = kernel(architecture)
        images, origin = _images(k.graph(shape), count, self.sources)
        values, seconds = timed(lambda: k(images, backend=self.backend))
        rate = symmetric_pairs(count) / seconds
        return GpuMatrix(
            architecture=case.architecture,
            shape=shape,
            images=origin,
            count=count,
            seconds=seconds,
            pairs_per_second=rate,
            share_of_block_rate=rate / case.pairs_per_second,
            symmetric=bool(np.array_equal(values, values.T)),
            not_finite=int(np.sum(~np.isfinite(values))),
        )


def measure_block(
    backend: CudaBackend,
    graph: Graph,
    images: tuple[Images, Images],
    prepared: tuple[Any, Any],
    exact: Callable[[Images, Images], tuple[Images, Images]],
    *,
    side: int,
    seconds: float,
    rival: bool,
) -> tuple[dict[str, Any], list[float], tuple[Images, Images, Images]]:
    """Compute the block between images of both sides, and time it for the first `side` of each, in turns with PyTorch.

    `exact` returns exact entries and the products of norms. Returns fields of a `Measurement`, the seconds of our
    turns, and what was compared: images of both sides and their exact entries.
    """
    (first, second), (left, right) = images, prepared
    values = backend.block(graph, left, right)
    other, missing = open_rival(graph, backend.precision, first, second) if rival else (None, "left out")
    near, far = left[:side], right[:side]
    contenders = [lambda: gpu_seconds(lambda: backend.block(graph, near, far))]
    if other is not None:
        contenders.append(other.turn)
    ours, *theirs = take_turns(contenders, seconds)
    rate = side * side / statistics.median(ours)
    rows, columns = sample_pairs(len(first))
    wanted, norms = exact(first[rows], second[columns])
    found = values[np.ix_(rows, columns)]
    fields = {
        "path": backend.describe(graph),
        "pairs": side * side,
        "turns": len(ours),
        "pairs_per_second": rate,
        "elements_per_second": rate * graph.elements,
        "compared_pairs": wanted.size,
        "error": relative_error(found, wanted),
        "error_relative_to_distance": float((np.abs(found - wanted) / (norms - wanted)).max()),
        "not_finite": int(np.sum(~np.isfinite(values))),
        "same_bits": same_bits(backend, graph, left, right, values),
        "rival_pairs_per_second": None if other is None else other.values.size / statistics.median(theirs[0]),
        "rival_difference": None if other is None else relative_error(other.values, values[other.part]),
        "rival_missing": missing,
    }
    return fields, ours, (first[rows], second[columns], wanted)


def _exact(graph: Graph, *images: Images) -> tuple[Images, Images]:
    """The entries in float64 on the GPU, and the products of norms, both (left, right)."""
    exact = CudaBackend("float64", GPUS)
    left, right = (exact.prepare(graph, side) for side in images)
    return exact.block(graph, left, right), np.sqrt(np.multiply.outer(left.diagonal, right.diagonal))


def sample_pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random rows and columns whose pairs are compared with float64."""
    generator = np.random.default_rng(3)
    rows, columns = (generator.choice(count, min(COMPARED, count), replace=False) for _ in range(2))
    return rows, columns


def _reference_error(architecture: str, left: Images, right: Images, values: Images) -> float:
    return relative_error(values, kernel(architecture)(left, right, backend=ReferenceBackend()))


def same_bits(backend: CudaBackend, graph: Graph, left: Any, right: Any, values: Images) -> bool:
    """Whether the corner of the block has the same bits when it is computed in small tiles."""
    rows, columns = (spans(min(TILED, len(left)), tile) for tile in (TILE_ROWS, TILE_COLUMNS))
    tiles = itertools.product(rows, columns)
    return all(np.array_equal(backend.block(graph, left[a], right[b]), values[a, b]) for a, b in tiles)


def _images(
    graph: Graph, count: int, sources: Mapping[tuple[int, ...], Images], *, fewer: bool = False
) -> tuple[Images, str]:
    """`count` images of a graph's shape, and their source in words.

    If a source has fewer images, shifted copies are added; with `fewer`, fewer but distinct images are returned.
    """
    shape = (*graph.grid, graph.channels)
    if shape not in sources and shape != (8, 8, 1):
        return random_images(graph, count), "synthetic"
    if shape in sources:
        images, origin = sources[shape], "given"
    else:
        from sklearn.datasets import load_digits

        images, origin = load_digits().images[..., None], "scikit-learn's digits"
    if len(images) >= count or fewer:
        return images[:count], origin
    copies = math.ceil(count / len(images))
    shifted = np.concatenate([np.roll(images, shift, axis=2) for shift in range(copies)])[:count]
    return shifted, f"{origin}, with shifted copies"


def as_images(images: Images) -> Images:
    """Check images, and add a channel axis to grey ones (N, H, W)."""
    images = images[..., None] if images.ndim == 3 else images
    check_images(images, "images")
    if images.ndim != 4 or len(images) < 2:
        raise InputError(f"a benchmark needs at least two images (N, H, W, C) or (N, H, W), not shape {images.shape}")
    return images


def build_kernels(architecture: str, shape: tuple[int, ...]) -> None:
    """Compile all kernels of a case. Runs in a worker process, which leaves them in CuPy's cache on disk."""
    graph = kernel(architecture).graph(shape)
    backend = CudaBackend(gpus=GPUS)
    prepared = backend.prepare(graph, random_images(graph, 1))
    backend.block(graph, prepared, prepared)


def gpu_environment() -> dict[str, Any]:
    """The date, the GPU and the versions of software, for records."""
    cupy = import_cupy()
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        **environment(),
        "gpu": properties["name"].decode(),
        "gpu_memory_bytes": int(properties["totalGlobalMem"]),
        "multiprocessors": int(properties["multiProcessorCount"]),
        "cuda_driver": int(cupy.cuda.runtime.driverGetVersion()),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "torch": package_version("torch"),
    }


def relative_error(found: Images, wanted: Images) -> float:
    """The largest relative error of entries."""
    return float(np.abs(found / wanted - 1).max())
