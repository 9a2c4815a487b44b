"""Times exact solutions with leave-one-out of 46,340, 46,341 and 50,000 rows on one GPU, in float64.

The matrix is a dense Gaussian kernel of random points, made on the device; the ridge is set for a condition number of
1e7. Recorded for each size: seconds from the matrix on the device to the solution, their share of the rate of a large
matrix product, the residual against a matrix that is computed again, the condition number found, and memory.

    PYTHONPATH=src python benchmarks/solve_gpu.py OUTPUT_FOLDER [--rows 46340 46341 50000]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from tangentless.chunks import spans
from tangentless.solve import factorise, solve_ridge

CONDITION = 1e7
TARGETS = 10
PANEL = 2048


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    result = action()
    cupy.cuda.Device().synchronize()
    return result, time.perf_counter() - start


def product_rate(side: int = 16_384) -> float:
    """Operations per second of a float64 product of two large matrices, the best of three."""
    left, right = (cupy.random.default_rng(i).standard_normal((side, side)) for i in range(2))
    cupy.matmul(left, right)
    return max(2 * side**3 / timed(lambda: cupy.matmul(left, right))[1] for _ in range(3))


def kernel_rows(points: Any, rows: slice) -> Any:
    """Rows of exp(-|x - z|^2 / 8), which is so smooth that its smallest eigenvalues are negligible beside the ridge."""
    squares = (points**2).sum(axis=1)
    distances = squares[rows, None] + squares[None, :] - 2 * points[rows] @ points.T
    return cupy.exp(-cupy.maximum(distances, 0) / 8)


def kernel_matrix(points: Any) -> Any:
    K = cupy.empty((len(points), len(points)))
    for rows in spans(len(points), PANEL):
        K[rows] = kernel_rows(points, rows)
        K[rows, : rows.start] = K[: rows.start, rows].T
        corner = cupy.triu(K[rows, rows])
        K[rows, rows] = corner + cupy.triu(corner, 1).T
    return K


def largest_eigenvalue(apply: Callable[[Any], Any], rows: int, steps: int = 30) -> float:
    vector = cupy.random.default_rng(3).standard_normal((rows, 1))
    size = 0.0
    for _ in range(steps):
        vector = apply(vector / cupy.linalg.norm(vector))
        size = float(cupy.linalg.norm(vector))
    return size


def measure(rows: int, peak: float) -> dict[str, Any]:
    points = cupy.random.default_rng(rows).standard_normal((rows, 4))
    K, making = timed(lambda: kernel_matrix(points))
    parts = list(spans(rows, PANEL))
    ridge = largest_eigenvalue(lambda v: cupy.concatenate([K[part] @ v for part in parts]), rows) / CONDITION
    Y = cupy.random.default_rng(1).standard_normal((rows, TARGETS))
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    free, total = cupy.cuda.runtime.memGetInfo()
    factor, factorising = timed(lambda: factorise(K, ridge, overwrite=True))
    solution, asking = timed(lambda: factor.tilted(Y))
    seconds = factorising + asking
    held = pool.total_bytes()
    smallest = 1 / largest_eigenvalue(factor.solve, rows, steps=10)
    miss = cupy.empty_like(Y)
    for part in parts:
        miss[part] = kernel_rows(points, part) @ solution.coefficients + ridge * solution.coefficients[part] - Y[part]
    operations = 2 * rows**3 / 3  # the factor and the inverse of the factor
    return {
        "rows": rows,
        "ridge": ridge,
        "condition": ridge * CONDITION / smallest,
        "making_seconds": making,
        "seconds": seconds,
        "operations_per_second": operations / seconds,
        "share_of_peak": operations / seconds / peak,
        "residual": float(cupy.linalg.norm(miss) / cupy.linalg.norm(Y)),
        "residual_reported": solution.residual,
        "leave_one_out_finite": bool(cupy.isfinite(solution.leave_one_out).all()),
        "matrix_gigabytes": 8 * rows**2 / 1e9,
        "pool_gigabytes": held / 1e9,
        "free_before_gigabytes": free / 1e9,
        "device_gigabytes": total / 1e9,
    }


def compare_with_cpu(rows: int = 9000) -> dict[str, float]:
    """Differences from a CPU solution with tilting, at a size of three blocks, which is quick on both."""
    points = cupy.random.default_rng(0).standard_normal((rows, 4))
    K, Y = kernel_matrix(points), np.random.default_rng(1).standard_normal((rows, TARGETS))
    here = solve_ridge(K, Y, 1.0, tilt=0.3)
    there = solve_ridge(K.get(), Y, 1.0, tilt=0.3)
    scale = float(np.abs(there.coefficients).max())
    return {
        "rows": rows,
        "coefficients": float(np.abs(here.coefficients.get() - there.coefficients).max()) / scale,
        "leave_one_out": float(np.abs(here.leave_one_out.get() - there.leave_one_out).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[46_340, 46_341, 50_000])
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    peak = product_rate()
    report: dict[str, Any] = {"device": name, "cupy": cupy.__version__, "product_operations_per_second": peak}
    report["against_cpu"] = compare_with_cpu()
    solve_ridge(cupy.eye(8192), cupy.ones((8192, TARGETS)), 1.0)  # libraries load on first use
    report["sizes"] = []
    print(f"{name}: {peak / 1e12:.1f} Tflop/s in float64 products; against the CPU: {report['against_cpu']}")
    for rows in options.rows:
        row = measure(rows, peak)
        report["sizes"].append(row)
        (options.output / "solve_gpu.json").write_text(json.dumps(report, indent=1))
        print(
            f"{rows:,} rows: {row['seconds']:.2f} s, {100 * row['share_of_peak']:.0f} % of peak, residual "
            f"{row['residual']:.1e}, condition {row['condition']:.1e}, {row['pool_gigabytes']:.1f} GB",
            flush=True,
        )
        cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
