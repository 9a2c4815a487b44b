"""Times kernels of 50,000 vectors of 512 numbers on one GPU, in float64, with errors against the CPU.

Rows are clusters around random centres. The first 300 include duplicates, near duplicates, opposite rows and a zero
row; their matrix is also computed on the CPU. The whole matrix (20 GB) stays on the device. The second call counts,
since the first one compiles; both times are recorded.

    PYTHONPATH=src python benchmarks/vectors_gpu.py OUTPUT_FOLDER [--rows 50000] [--features 512]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from tangentless import kernel
from tangentless.classical import NTK, Gaussian
from tangentless.files import write_json
from tangentless.kernel import Kernel
from tangentless.timing import environment, today

CHECKED = 300


def make_rows(count: int, features: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, features))
    rows = centres[rng.integers(0, 100, count)] + rng.standard_normal((count, features))
    rows[50:60] = rows[:10]
    rows[60:70] = rows[:10] + 1e-8 * rng.standard_normal((10, features))
    rows[70:80] = -rows[:10]
    rows[80:90] = -rows[:10] + 1e-8 * rng.standard_normal((10, features))
    rows[90] = 0.0
    return rows


def measure(k: Kernel, rows: NDArray[np.float64]) -> dict[str, Any]:
    moved = cupy.asarray(rows)
    seconds = []
    for _ in range(2):
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        matrix = k(moved, backend="cuda")
        cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - start)
        held = cupy.get_default_memory_pool().total_bytes()
        part = matrix[:CHECKED, :CHECKED].get()
        finite = all(bool(cupy.isfinite(matrix[i : i + 2048]).all()) for i in range(0, len(matrix), 2048))
        symmetric = bool((matrix[:CHECKED] == matrix[:, :CHECKED].T).all())
        del matrix
    exact, diagonal = k(rows[:CHECKED], backend="cpu"), k.diag(rows[:CHECKED], backend="cpu")
    scale = np.sqrt(np.multiply.outer(diagonal, diagonal))
    return {
        "kernel": repr(k),
        "first_seconds": seconds[0],
        "seconds": seconds[1],
        "error": float((np.abs(part - exact) / np.where(scale > 0, scale, 1.0)).max()),
        "finite": finite,
        "symmetric": symmetric,
        "pool_gigabytes": held / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=512)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = make_rows(options.rows, options.features)
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    report: dict[str, Any] = {
        "date": today(),
        "hardware": name,
        "versions": environment() | {"cupy": cupy.__version__},
        "command": f"python benchmarks/vectors_gpu.py OUTPUT --rows {options.rows} --features {options.features}",
        "rows": options.rows,
        "features": options.features,
        "checked_rows": CHECKED,
        "kernels": [],
    }
    for k in (Gaussian(1 / options.features), NTK(depth=3), kernel("relu relu relu")):
        print(f"{k!r}: {options.rows:,} rows of {options.features} numbers on {name}", flush=True)
        found = measure(k, rows)
        report["kernels"].append(found)
        write_json(options.output / "vectors_gpu.json", report)
        print(
            f"  {found['seconds']:.2f} s (the first time {found['first_seconds']:.2f} s), error {found['error']:.1e}, "
            f"{found['pool_gigabytes']:.1f} GB, finite: {found['finite']}, symmetric: {found['symmetric']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
