"""Pairs of 32×32×3 images per processor second of one core, with the code for this processor and for AVX2.

    python benchmarks/widths.py [--output FILE.json]

Processor seconds depend little on other work on the machine. Turns alternate, and the best of each counts. "As it is"
uses all that the processor has, such as AVX-512.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tangentless as tl
from tangentless import timing

AVX2 = [
    "cmov",
    "cx16",
    "popcnt",
    "sse",
    "sse2",
    "sse3",
    "ssse3",
    "sse4.1",
    "sse4.2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi",
    "bmi2",
    "lzcnt",
]
ARCHITECTURES = ("myrtle5", "myrtle10", "myrtle10-gaussian")


def measure() -> dict[str, float]:
    timing.time.perf_counter = time.process_time
    backend, rates = tl.Device("cpu", n_jobs=1).backend, {}
    for name in ARCHITECTURES:
        graph = tl.kernel(name).graph((32, 32, 3))
        timing.warm_up(backend, graph)
        rates[name] = max(timing.measure(backend, graph).pairs for _ in range(3))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        features = ",".join(f"+{name}" for name in AVX2)
        narrow = {"NUMBA_CPU_NAME": "znver2", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": cache}
        for width, variables in [("as it is", {}), ("AVX2", narrow)] * 2:
            command = [sys.executable, __file__, "--measure"]
            done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
            for name, rate in json.loads(done.stdout).items():
                best.setdefault(width, {})[name] = max(rate, best.get(width, {}).get(name, 0.0))
    results = {
        "environment": timing.environment(),
        "command": "python benchmarks/widths.py",
        "pairs/s of one core": best,
    }
    print(json.dumps(results, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
