"""Times each fused stage on a GPU, and runs small kernels for compute-sanitizer.

    python benchmarks/cuda_check.py
    compute-sanitizer --tool memcheck python benchmarks/cuda_check.py --tiny

Everything else is measured by `tangentless bench --backend cuda`. Images are synthetic.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from typing import Any

import numpy as np

from tangentless.backends.cuda import CudaBackend
from tangentless.backends.cuda.fused import ROUNDS, FusedPath, batch_units, column_heights
from tangentless.bench.ceilings import gpu_seconds
from tangentless.bench.gpu import SIDE, STANDARD
from tangentless.kernel import kernel
from tangentless.layers import format_grid
from tangentless.timing import random_images

COLUMNS = 62  # images on the right: with SIDE on the left, 32,736 pairs in one launch
REPEATS = 3
TINY = (
    ("myrtle10-gaussian", (16, 16, 3)),
    ("myrtle5", (32, 32, 3)),
    ("conv5 relu pool2 conv3 relu globalpool", (8, 8, 3)),
)


def stage_microseconds(path: FusedPath, left: Any, right: Any) -> list[float]:
    """Microseconds per pair of each stage, from one launch over all pairs."""
    xp = path.machine.xp
    pairs = len(left) * len(right)
    heights = column_heights(len(left), len(right))
    totals = xp.zeros((len(left), len(right)))
    source, times = left.left[0], []
    for plan, launch, x, z in zip(path.parts, path.launches, left.left, right.right, strict=True):
        units = path.machine.upload(batch_units(heights, 0, pairs, ROUNDS * plan.slots))
        output = totals if plan.last else xp.empty((pairs, plan.output_floats), dtype=xp.float32)
        work = functools.partial(launch, x, z, source, output, units, len(right), 1)
        work()
        times.append(statistics.median(gpu_seconds(work) for _ in range(REPEATS)) / pairs * 1e6)
        source = output
    return times


def time_stages(architecture: str, shape: tuple[int, ...]) -> None:
    graph, backend = kernel(architecture).graph(shape), CudaBackend(gpus=(0,))
    images = random_images(graph, SIDE + COLUMNS)
    left, right = (backend.prepare(graph, side).copies[0] for side in (images[:SIDE], images[SIDE:]))
    path = backend._path(0, graph)
    assert isinstance(path, FusedPath)
    times = stage_microseconds(path, left, right)
    name = f"{architecture[:24]} {format_grid(shape)}"
    print(f"{name:36s} {' + '.join(f'{t:.4f}' for t in times)} = {sum(times):.4f} µs for a pair", flush=True)


def run_tiny(architecture: str, shape: tuple[int, ...]) -> None:
    k = kernel(architecture)
    images = random_images(k.graph(shape), 3)
    values = k(images, images[:2], backend=CudaBackend())
    print(architecture, format_grid(shape), "not finite:", int(np.sum(~np.isfinite(values))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="little data and no timing, for compute-sanitizer")
    tiny = parser.parse_args().tiny
    for architecture, shape in TINY if tiny else STANDARD:
        (run_tiny if tiny else time_stages)(architecture, shape)


if __name__ == "__main__":
    main()
