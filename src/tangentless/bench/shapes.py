"""Speed of the cuda backend on shapes it is not tuned for, compared with Myrtle5, for which it is, and with PyTorch.

    python -m tangentless.bench.shapes --output shapes.json [--images cifar.npz:white] [--photographs photographs.npy]

Rates are in elements (embeddings of a pair of positions), so that images of different sizes can be compared. Errors are
against the general path, which computes node by node in float64 and shares no CUDA kernel with the others; some of its
entries are compared with the reference. The record is written after every row, and no row is started after `--seconds`.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architecture import NAMED, Architecture
from ..backends import Precision
from ..backends.cuda import CudaBackend
from ..backends.cuda.general import GeneralPath
from ..backends.reference import ReferenceBackend
from ..classical import ConvolutionalNTK
from ..console import markdown
from ..errors import ParameterError
from ..files import check_output, load_array, write_json
from ..graph import Graph
from ..kernel import CompositionalKernel, kernel
from ..layers import format_grid
from ..timing import command, random_images, timed
from .gpu import GPUS, Measurement, as_images, gpu_environment, measure_block, relative_error
from .photographs import has_pieces, load_photographs, pieces
from .rival import Rival, RivalTurns, free_memory, why_no_rival

Images = NDArray[Any]
Sources = Mapping[tuple[int, ...], Images]

PROCESSES = 12  # that compile at the same time
BLOCK_SECONDS = 0.3
EXPECTED = {"float32": 4e11, "float64": 1e11}  # elements per second, to choose blocks of BLOCK_SECONDS
FEWEST, MOST = 64, 528  # images of either side of a timed block
FINITE = 512  # images of either side of a block whose 262,144 entries must be finite
REFERENCES = 2  # images of either side whose pairs the reference computes
REFERENCE_ELEMENTS = 5_000_000  # elements of a pair, at most; more would take the reference minutes
HEAD = "globalpool normalize relu"


@dataclass(frozen=True)
class Shape:
    """A row to measure: an architecture on images of one shape."""

    name: str
    architecture: str
    shape: tuple[int, ...] = (32, 32, 3)
    precision: Precision = "float32"
    tangent: bool = False
    finite: bool = False  # whether a block of FINITE images of either side is computed

    @property
    def kernel(self) -> CompositionalKernel:
        return (ConvolutionalNTK if self.tangent else kernel)(Architecture.of(self.architecture))

    @property
    def graph(self) -> Graph:
        return self.kernel.graph(self.shape)


_CONV5 = f"conv5 relu pool2 conv3 relu pool2 conv3 relu {HEAD}"
BASE = Shape("myrtle5, tuned", "myrtle5", finite=True)
STANDARD: tuple[Shape, ...] = (
    BASE,
    Shape("conv5", _CONV5, finite=True),
    Shape("conv7", f"conv7 relu pool2 conv3 relu pool2 conv3 relu {HEAD}"),
    Shape("pool4", f"conv3 relu conv3 relu pool4 conv3 relu {HEAD}", finite=True),
    Shape(
        "pool3(stride=2)",
        f"conv3 relu conv3 relu pool3(stride=2) conv3 relu pool3(stride=2) conv3 relu {HEAD}",
        finite=True,
    ),
    Shape("dilation 2", f"conv3 relu conv3(dilation=2) relu pool2 conv3 relu pool2 conv3 relu {HEAD}", finite=True),
    Shape("resnet8", "resnet8", finite=True),
    Shape("myrtle5 48×48", "myrtle5", (48, 48, 3)),
    Shape("myrtle5 64×64", "myrtle5", (64, 64, 3)),
    Shape("myrtle5 96×96", "myrtle5", (96, 96, 3)),
    Shape("sequences of 256", "myrtle5", (256, 4), finite=True),
    Shape("myrtle5, float64", "myrtle5", precision="float64"),
    Shape("myrtle5 64×64, float64", "myrtle5", (64, 64, 3), precision="float64"),
    Shape("conv5, float64", _CONV5, precision="float64"),
    Shape("myrtle5, tangents", "myrtle5", precision="float64", tangent=True),
    Shape("48 channels", "myrtle5", (32, 32, 48)),
    Shape("patch2 64×64×12", f"patch2 {NAMED['myrtle5']}", (64, 64, 12)),
)


@dataclass(frozen=True)
class ShapeRow(Measurement):
    """The measurements of a shape; errors are against the general path in float64."""

    name: str
    precision: str
    elements: int  # elements of a pair
    share: float  # element rate over that of the first row
    prepared_per_second: float
    finite_pairs: int  # entries that were checked to be finite
    reference_error: float | None = None  # of the general path, against the reference


@dataclass(frozen=True)
class ShapeRecord:
    """The results of a run."""

    command: str
    environment: dict[str, Any]
    build_seconds: float
    rows: tuple[ShapeRow, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)  # rows that were not measured, and why
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "rows": [{**asdict(row), "ratio": row.ratio} for row in self.rows]}


def bench_shapes(
    shapes: Sequence[Shape] = STANDARD,
    given: Sequence[Images] = (),
    photographs: Images | None = None,
    *,
    seconds: float = 150.0,
    rival: bool = True,
    processes: int = PROCESSES,
    report: Callable[[ShapeRecord], None] = lambda record: None,
) -> ShapeRecord:
    """Measure shapes and compare them with the first one; no row is started after `seconds`.

    Rows use the images in `given` that have their shape, otherwise pieces of `photographs`, otherwise synthetic images.
    With `processes` 0, nothing is compiled ahead and nothing is compared with the reference.
    """
    # One compile thread for each process; by default, PyTorch would start one for every core in each of them.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    start = time.perf_counter()
    sources = {images.shape[1:]: images for images in map(as_images, given)}
    if not processes:
        return _bench(shapes, sources, photographs, seconds, rival, None, report, start)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return _bench(shapes, sources, photographs, seconds, rival, pool, report, start)


def _bench(
    shapes: Sequence[Shape],
    sources: Sources,
    photographs: Images | None,
    seconds: float,
    rival: bool,
    pool: Executor | None,
    report: Callable[[ShapeRecord], None],
    start: float,
) -> ShapeRecord:
    if pool is not None:
        list(pool.map(build_shape, shapes, [rival] * len(shapes)))
    record = ShapeRecord(command(sys.argv), gpu_environment(), time.perf_counter() - start)
    base, questions = 0.0, {}
    for shape in shapes:
        if time.perf_counter() - start > seconds:
            record = replace(record, left_out={**record.left_out, shape.name: f"{seconds:.0f} s were over"})
            continue
        try:
            row, question = _measure(shape, *_images(shape, sources, photographs), base, rival)
        except Exception as error:  # the other rows are measured all the same
            why = f"{type(error).__name__}: {error}"[:500]
            record = replace(record, left_out={**record.left_out, shape.name: why})
            report(record)
            continue
        base = base or row.elements_per_second
        questions[shape.name] = question
        record = replace(record, rows=(*record.rows, row), seconds=time.perf_counter() - start)
        report(record)
    if pool is not None and time.perf_counter() - start < seconds:
        small = [shape for shape in shapes if shape.name in questions and shape.graph.elements <= REFERENCE_ELEMENTS]
        tasks = {shape.name: pool.submit(reference_error, shape, *questions[shape.name]) for shape in small}
        found = {name: task.result() for name, task in tasks.items()}
        rows = tuple(replace(row, reference_error=found.get(row.name)) for row in record.rows)
        record = replace(record, rows=rows, seconds=time.perf_counter() - start)
    report(record)
    return record


def _measure(
    shape: Shape, first: Images, second: Images, origin: str, base: float, rival: bool
) -> tuple[ShapeRow, tuple[Images, Images, Images]]:
    """Measure a row; also returns the images of both sides and their exact entries, to compare with the reference."""
    start = time.perf_counter()
    graph, backend = shape.graph, CudaBackend(shape.precision, GPUS)
    with backend.machines[0].active():
        left, right = backend.prepare(graph, first), backend.prepare(graph, second)
        side = min(_side(shape), len(first))
        _, preparing = timed(lambda: backend.prepare(graph, second[:side]))
        found, _, compared = measure_block(
            backend,
            graph,
            (first, second),
            (left, right),
            functools.partial(_exact, graph, backend),
            side=side,
            seconds=BLOCK_SECONDS,
            rival=rival,
        )
    row = ShapeRow(
        **found,
        name=shape.name,
        architecture=str(shape.kernel.architecture),
        shape=shape.shape,
        precision=shape.precision,
        images=origin,
        elements=graph.elements,
        share=found["elements_per_second"] / base if base else 1.0,
        prepared_per_second=side / preparing,
        finite_pairs=len(first) * len(second),
        seconds=time.perf_counter() - start,
    )
    few = slice(0, REFERENCES)
    rows, columns, wanted = compared
    return row, (rows[few], columns[few], wanted[few, few])


def _side(shape: Shape) -> int:
    """The number of images of either side of a timed block."""
    side = math.isqrt(int(BLOCK_SECONDS * EXPECTED[shape.precision] / shape.graph.elements))
    return MOST if shape == BASE else min(MOST, max(FEWEST, side))


def _images(shape: Shape, sources: Sources, photographs: Images | None) -> tuple[Images, Images, str]:
    """The images of both sides, and their source in words."""
    count = 2 * max(_side(shape), FINITE if shape.finite else 0)
    if shape.shape in sources:
        images, origin = sources[shape.shape][:count], "given"
    elif photographs is not None and has_pieces(shape.shape):
        images, origin = pieces(photographs, shape.shape, count), "pieces of photographs, standardised"
    else:
        images, origin = random_images(shape.graph, count), "synthetic"
    half = len(images) // 2
    return images[:half], images[half : 2 * half], origin


def _exact(graph: Graph, backend: CudaBackend, *images: Images) -> tuple[Images, Images]:
    """The entries by the general path in float64, and the products of norms, both (left, right)."""
    machine = backend.machines[0]
    path = GeneralPath(graph, machine)
    batch = math.prod(map(len, images))
    left, right = (path.prepare(machine.upload(np.asarray(side, dtype=np.float64)), batch) for side in images)
    diagonals = (machine.download(side.diagonal) for side in (left, right))
    return machine.download(path.block(left, right, batch, None, None)), np.sqrt(np.multiply.outer(*diagonals))


def build_shape(shape: Shape, rival: bool) -> None:
    """Compile all that a row needs. Runs in a worker process, which leaves it in the caches of CuPy and PyTorch."""
    try:
        _build(shape, rival)
    except Exception as error:  # the row will report it
        print(f"{shape.name}: compiling ahead failed: {type(error).__name__}: {error}"[:500], file=sys.stderr)


def _build(shape: Shape, rival: bool) -> None:
    graph, backend = shape.graph, CudaBackend(shape.precision, GPUS)
    images = random_images(graph, 64)
    with backend.machines[0].active():
        prepared = backend.prepare(graph, images[:1])
        backend.block(graph, prepared, prepared)
        _exact(graph, backend, images[:1], images[:1])
        if rival and why_no_rival(graph) is None:
            RivalTurns(Rival(graph, shape.precision), images, images, batches=1)
            free_memory()


def reference_error(shape: Shape, left: Images, right: Images, values: Images) -> float:
    """The largest relative error of the general path's entries, `values`."""
    return relative_error(values, shape.kernel(left, right, backend=ReferenceBackend()))


def summary(row: ShapeRow) -> str:
    """A row in one line."""
    rival = f"{row.ratio:.1f} times PyTorch" if row.ratio else f"no rival: {row.rival_missing}"
    speed = f"{row.pairs_per_second:,.0f} pairs/s, {100 * row.share:.0f} % of the tuned element rate"
    return f"{row.name}: {speed}, {rival}, error {row.error:.0e} ({row.seconds:.0f} s)"


def shapes_table(rows: Sequence[ShapeRow]) -> str:
    """A table of all rows in Markdown; errors are the largest of K, and relative to 1 - K."""
    columns = (
        "shape",
        "images",
        "pairs/s",
        "elements/s",
        "share",
        "× PyTorch",
        "error",
        "of 1-K",
        "NaN",
        "same bits",
        "prepared/s",
        "path",
    )

    def cells(row: ShapeRow) -> tuple[str, ...]:
        return (
            row.name,
            f"{format_grid(row.shape)}, {row.images}",
            f"{row.pairs_per_second:,.0f}",
            f"{row.elements_per_second:.3g}",
            f"{100 * row.share:.0f} %",
            "-" if row.ratio is None else f"{row.ratio:.1f}",
            f"{row.error:.0e}",
            f"{row.error_relative_to_distance:.0e}",
            f"{row.not_finite} of {row.finite_pairs:,}",
            "yes" if row.same_bits else "NO",
            f"{row.prepared_per_second:,.0f}",
            row.path.removeprefix("cuda: ").partition(", not by")[0].partition(" (")[0],
        )

    return "\n".join(markdown(columns, map(cells, rows)))


def run_shapes(
    given: Sequence[str],
    photographs: str | None,
    output: Path | None,
    seconds: float,
    rival: bool,
    only: Sequence[str] = (),
) -> ShapeRecord:
    """Read the files of images, measure, print the results, and write them to `output`.

    Without a file of photographs, those of scikit-learn are used.
    """
    if output is not None:
        check_output(output, force=True)
    if unknown := set(only) - {shape.name for shape in STANDARD}:
        names = ", ".join(repr(shape.name) for shape in STANDARD)
        raise ParameterError(f"there is no shape {', '.join(map(repr, unknown))} in this benchmark; there are {names}")

    def show(record: ShapeRecord) -> None:
        if output is not None:  # after every row, so that a run that is stopped keeps its rows
            write_json(output, record.to_json())
        for row in record.rows[len(shown) :]:
            print(summary(row), flush=True)
            shown.append(row)

    shown: list[ShapeRow] = []
    shapes = [shape for shape in STANDARD if shape == BASE or not only or shape.name in only]
    images = [load_array(source) for source in given]
    real = _photographs(photographs)
    record = bench_shapes(shapes, images, real, seconds=seconds, rival=rival, report=show)
    print(f"\n{record.environment['gpu']}, {record.environment['date']}, {record.seconds:.0f} s\n")
    print(shapes_table(record.rows))
    for name, why in record.left_out.items():
        print(f"{name}: not measured: {why}")
    return record


def _photographs(source: str | None) -> Images | None:
    if source is not None:
        return load_array(source)
    try:
        return load_photographs()
    except ImportError:
        print("scikit-learn is not installed, so images are synthetic where none are given; see --photographs")
        return None


def main() -> None:
    """The command line of this module, which needs neither typer nor rich."""
    parser = argparse.ArgumentParser(prog="python -m tangentless.bench.shapes", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="NAME", help="rows to measure, beside the tuned one; default: all")
    parser.add_argument("--images", action="append", default=[], help="images of one shape, FILE.npy or FILE.npz:NAME")
    parser.add_argument("--photographs", help="from `python -m tangentless.bench.photographs FILE.npy`")
    parser.add_argument("--output", type=Path, help="write the record to this JSON file, after every row")
    parser.add_argument("--seconds", type=float, default=150.0, help="no row is begun later than this")
    parser.add_argument("--no-rival", dest="rival", action="store_false", help="leave PyTorch out")
    options = parser.parse_args()
    run_shapes(options.images, options.photographs, options.output, options.seconds, options.rival, tuple(options.only))


if __name__ == "__main__":
    main()
