"""Measures the cost of stores: time against `k(X)` in memory, peak memory, reading, and scaling with workers.

    python benchmarks/gram_store.py overhead   # a stored run takes at most 5 % longer
    python benchmarks/gram_store.py memory     # peak memory stays below the budget plus 300 MB, up to 20,000 rows
    python benchmarks/gram_store.py read       # a block of rows of a 20,000 × 20,000 matrix, at least 500 MB/s
    python benchmarks/gram_store.py workers    # two Dask workers of one thread each, at least 1.8 times one
    python benchmarks/gram_store.py gpu        # on a GPU, at least 90 % of the kernel's rate, for 10,000 images

The comments state the targets. `--small` checks in seconds that a case works; its figures mean nothing and are not
saved. Results go to benchmarks/results as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tangentless as tl
from tangentless.gram import gram, open_gram
from tangentless.timing import environment, package_version, symmetric_pairs, timed

RESULTS = Path(__file__).parent / "results"
DEEP, CHEAP, VECTORS = "myrtle5", "conv3 relu pool2 conv3 relu globalpool normalize relu", "normalize relu"
Case = Callable[[bool, Path], dict[str, Any]]


def images(count: int, *shape: int) -> Any:
    return np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)


def compare(architecture: str, X: Any, folder: Path, repeats: int, **options: Any) -> dict[str, Any]:
    """Time the matrix in memory and in a store, in turns, after a warm-up of both."""
    k, store = tl.kernel(architecture), folder / "k.zarr"

    def in_memory() -> Any:
        return k(X, **options)

    def stored() -> Any:
        return gram(k, X, store=store, progress=False, **options)

    k(X[:32], **options)
    memory_times, stored_times = [], []
    for _ in range(repeats):
        shutil.rmtree(store, ignore_errors=True)
        memory_times.append(timed(in_memory)[1])
        stored_times.append(timed(stored)[1])
    equal = bool(np.array_equal(np.asarray(open_gram(store)), in_memory())) if len(X) <= 1000 else None
    pairs = symmetric_pairs(len(X))
    memory, disk = statistics.median(memory_times), statistics.median(stored_times)
    return {
        "architecture": architecture,
        "shape": list(X.shape),
        "tile": open_gram(store).manifest.tile,
        "seconds_in_memory": memory_times,
        "seconds_stored": stored_times,
        "pairs_per_second_in_memory": pairs / memory,
        "pairs_per_second_stored": pairs / disk,
        "stored_over_memory": disk / memory,
        "equal_bytes": equal,
    }


def overhead(small: bool, folder: Path) -> dict[str, Any]:
    repeats = 1 if small else 3
    deep = compare(DEEP, images(24 if small else 300, 32, 32, 3), folder, repeats, backend="cpu")
    cheap = compare(CHEAP, images(200 if small else 2500, 8, 8, 1), folder, repeats, backend="cpu")
    worst = max(deep["stored_over_memory"], cheap["stored_over_memory"])
    return {"deep": deep, "cheap": cheap, "worst": worst, "target": "at most 1.05", "met": worst <= 1.05}


def gpu(small: bool, folder: Path) -> dict[str, Any]:
    X = images(500 if small else 10_000, 32, 32, 3)
    result = compare("myrtle10-gaussian", X, folder, 1, backend="cuda")
    share = 1 / result["stored_over_memory"]
    return {**result, "share_of_kernel_rate": share, "target": "at least 0.9", "met": share >= 0.9}


MEASURED_RUN = """
import json, resource, sys, numpy as np, tangentless as tl
from tangentless.gram import gram
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
architecture, count, shape, memory, store = json.loads(sys.argv[1])
X = np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)
start = peak()
gram(architecture, X, store=store, memory=memory, backend="cpu", progress=False)
print(json.dumps({"peak_bytes": peak(), "peak_bytes_before": start}))
"""


def memory(small: bool, folder: Path) -> dict[str, Any]:
    budgets = {"256MB": 256e6, "1GB": 1e9}
    sizes = [(VECTORS, count, (64,)) for count in ((500, 1000) if small else (5_000, 10_000, 20_000))]
    sizes.append((CHEAP, 300 if small else 6_000, (8, 8, 1)))
    sizes.append((DEEP, 40 if small else 300, (32, 32, 3)))
    runs = []
    for budget, limit in budgets.items():
        for architecture, count, shape in sizes:
            shutil.rmtree(folder / "k.zarr", ignore_errors=True)
            job = json.dumps([architecture, count, shape, budget, str(folder / "k.zarr")])
            measured = subprocess.run(
                [sys.executable, "-c", MEASURED_RUN, job], check=True, capture_output=True, text=True
            ).stdout
            run = {"architecture": architecture, "rows": count, "budget_bytes": limit, **json.loads(measured)}
            runs.append({**run, "above_budget_bytes": run["peak_bytes"] - limit})
    most = max(run["above_budget_bytes"] for run in runs)
    return {"runs": runs, "most_above_budget_bytes": most, "target": "at most 300e6", "met": most <= 300e6}


def read(small: bool, folder: Path) -> dict[str, Any]:
    count, rows = (1000, 100) if small else (20_000, 1000)
    gram(VECTORS, images(count, 64), store=folder / "k.zarr", backend="cpu", progress=False)
    matrix = open_gram(folder / "k.zarr")
    starts = [int(start) for start in np.linspace(0, count - rows, 9)]
    rates: dict[str, list[float]] = {"first": [], "cached": []}
    for rate in rates.values():
        for start in starts:
            _, taken = timed(lambda start=start: matrix[start : start + rows])  # type: ignore[misc]
            rate.append(rows * count * 8 / taken)
    median = statistics.median(rates["cached"])
    return {
        "shape": [count, count],
        "tile": matrix.manifest.tile,
        "rows_at_a_time": rows,
        "bytes_per_second": rates,
        "median_bytes_per_second": median,
        "worst_bytes_per_second": min(rates["cached"]),
        "target": "at least 500e6",
        "met": min(rates["cached"]) >= 500e6,
    }


def workers(small: bool, folder: Path) -> dict[str, Any]:
    import distributed

    X = images(48 if small else 300, 32, 32, 3)
    times: dict[int, list[float]] = {1: [], 2: []}
    for count in (1, 2):
        with distributed.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0") as cluster:
            for turn in range(2 if small else 4):
                store = folder / f"{count}-{turn}.zarr"
                options: dict[str, Any] = {"backend": "cpu", "tile": 16 if small else 32, "progress": False}
                _, taken = timed(lambda: gram(DEEP, X, store=store, scheduler=cluster, **options))  # noqa: B023
                if turn:  # the first compiles
                    times[count].append(taken)
    ratio = statistics.median(times[1]) / statistics.median(times[2])
    return {
        "architecture": DEEP,
        "rows": len(X),
        "seconds": times,
        "ratio": ratio,
        "target": "at least 1.8",
        "met": ratio >= 1.8,
    }


def about() -> dict[str, Any]:
    """The environment of the run, for records."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    cards = subprocess.run(query, capture_output=True, text=True).stdout if shutil.which(query[0]) else ""
    return {
        **environment(),
        **{name: package_version(name) for name in ("dask", "distributed", "zarr", "google-crc32c")},
        "command": " ".join(["python", *sys.argv]),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": cards.strip(),
        "load_before": os.getloadavg()[0],
    }


CASES: dict[str, Case] = {"overhead": overhead, "memory": memory, "read": read, "workers": workers, "gpu": gpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--small", action="store_true", help="only check that it works")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--scratch", type=Path, help="folder for stores, on the disk to be measured")
    chosen = parser.parse_args()
    before = about()
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as folder:
        result = CASES[chosen.case](chosen.small, Path(folder))
    report = {"case": chosen.case, "small": chosen.small, "environment": before, "result": result}
    print(json.dumps(report, indent=1))
    if not chosen.small:
        chosen.output.mkdir(parents=True, exist_ok=True)
        (chosen.output / f"gram_store_{chosen.case}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
