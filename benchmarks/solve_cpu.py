"""Compares an exact solution with leave-one-out on a CPU with bare LAPACK: time and peak memory.

The coefficients cost as much as `dpotrf` + `dpotrs`; leave-one-out may add the cost of `dpotri`. The matrix is a
Gaussian kernel of random points with a ridge of 1e-3. Both run in turns, three times; the best times count.

    python benchmarks/solve_cpu.py [--rows 10000] [--output benchmarks/results/solve_cpu.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.linalg import lapack

from tangentless.solve import solve_ridge
from tangentless.timing import environment, timed

RIDGE = 1e-3
TARGETS = 10


def fill(K: np.ndarray, points: np.ndarray) -> None:
    """Write the kernel matrix into `K`."""
    for start in range(0, len(K), 256):
        rows = slice(start, start + 256)
        distances = ((points[rows] ** 2).sum(axis=1)[:, None] + (points**2).sum(axis=1)) - 2 * points[rows] @ points.T
        np.exp(-np.maximum(distances, 0) / 8, out=K[rows])
    for start in range(0, len(K), 256):
        K[start:, start : start + 256] = K[start : start + 256, start:].T


def resident(peak: bool) -> int:
    """Resident memory of this process in bytes, now or at its peak since the last reset."""
    key = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def bare(K: np.ndarray, Y: np.ndarray) -> tuple[float, float]:
    """Seconds of dpotrf + dpotrs, and of dpotri after them, in place."""
    columns = K.T
    columns[np.diag_indices(len(K))] += RIDGE

    def solve() -> None:
        lapack.dpotrf(columns, lower=1, clean=0, overwrite_a=1)
        lapack.dpotrs(columns, Y, lower=1)

    return timed(solve)[1], timed(lambda: lapack.dpotri(columns, lower=1, overwrite_c=1))[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    points, Y = generator.standard_normal((options.rows, 8)), generator.standard_normal((options.rows, TARGETS))
    K = np.empty((options.rows, options.rows))
    ours, theirs, inverses, extra = [], [], [], 0
    solve_ridge(np.eye(64), np.ones((64, TARGETS)))  # libraries load on first use
    for _ in range(3):
        fill(K, points)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident(peak=False)
        ours.append(timed(lambda: solve_ridge(K, Y, RIDGE, overwrite=True))[1])
        extra = max(extra, resident(peak=True) - before)
        fill(K, points)
        one, other = bare(K, Y)
        theirs.append(one)
        inverses.append(other)
    report = {
        "environment": {**environment(), "command": f"python benchmarks/solve_cpu.py --rows {options.rows}"},
        "rows": options.rows,
        "seconds": min(ours),
        "dpotrf_dpotrs_seconds": min(theirs),
        "dpotri_seconds": min(inverses),
        "ratio_to_all_three": min(ours) / (min(theirs) + min(inverses)),
        "ratio_less_dpotri": (min(ours) - min(inverses)) / min(theirs),
        "peak_memory_in_matrices": 1 + extra / K.nbytes,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
