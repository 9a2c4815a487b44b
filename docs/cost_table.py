"""What the cost calculator knows: layers and named architectures of the package, and element rates from the records.

A rate is measured on one architecture. The calculator takes the row that is most like what was asked for, and names it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tangentless as tl
from tangentless.architecture import NAMED
from tangentless.layers import LAYERS

PLAIN = {"relu": "myrtle10", "gaussian": "myrtle10-gaussian"}
LARGEST = 10**12  # bytes that a large host has; what does not fit is solved by conjugate gradients
# Features of an architecture that leave the fastest path, and the rows of the records that have them.
GPU_ROWS = {
    "window5": "conv5",
    "window7": "conv7",
    "dilation": "dilation 2",
    "pool": "pool4",
    "overlap": "pool3(stride=2)",
    "branches": "resnet8",
    "stride": "resnet8",
    "large": "myrtle5 64×64",
    "sequence": "sequences of 256",
    "channels": "48 channels",
}
CPU_ROWS = {
    "window5": "conv5",
    "window7": "conv5",
    "dilation": "dilated conv3",
    "branches": "resnet8",
    "stride": "stride in place of pool",
}


def table(records: Path) -> dict[str, Any]:
    """Everything the page needs, as JSON values."""
    words = {name: layer for name, layer in LAYERS.items() if issubclass(layer, tl.Nonlinearity)}
    return {
        "named": NAMED,
        "nonlinearities": [*sorted(words), "normalize"],
        "devices": [_gpu(records), *_cpus(records)],
    }


def _gpu(records: Path) -> dict[str, Any]:
    bench, shapes = _read(records, "cuda_h200_rival"), _read(records, "cuda_h200_shapes")
    solved = _read(records, "solve_gpu")["sizes"][-1]
    exact = {case["architecture"]: case["elements_per_second"] for case in bench["cases"]}
    rows = {row["name"]: row["elements_per_second"] for row in shapes["rows"]}
    return {
        "name": bench["environment"]["gpu"],
        "unit": "GPU-hours",
        "exact": exact,
        "plain": {kind: [exact[name], name] for kind, name in PLAIN.items()},
        "special": {feature: [rows[name], name] for feature, name in GPU_ROWS.items()},
        "memory": bench["environment"]["gpu_memory_bytes"],
        "solve": [solved["rows"], solved["seconds"]],
    }


def _cpus(records: Path) -> list[dict[str, Any]]:
    compared, turns, widths = (_read(records, name) for name in ("cpu_compare", "cpu_turns", "cpu_widths"))
    solved = _read(records, "solve_cpu")
    rates = {row["architecture"]: row for row in compared["libraries"] if row["contender"] == "tangentless"}
    two = {name: row["pairs_per_second"] for name, row in rates.items()}
    devices = {"Two CPU cores, AVX-512 (AMD EPYC)": two, "One CPU core, AVX2": widths["pairs/s of one core"]["AVX2"]}
    shares = {name: row["share of myrtle5"] for name, row in turns["graphs"].items()}
    found = []
    for name, pairs in devices.items():
        exact = {text: rate * tl.kernel(text).elements((32, 32, 3)) for text, rate in pairs.items()}
        special = {feature: [exact["myrtle5"] * shares[row], row] for feature, row in CPU_ROWS.items()}
        cpu = {"name": name, "unit": "hours", "exact": exact, "special": special}
        cpu["plain"] = {kind: [exact[text], text] for kind, text in PLAIN.items()}
        found.append(
            {**cpu, "memory": LARGEST, "solve": [solved["rows"], solved["seconds"] * (1 if pairs is two else 2)]}
        )
    return found


def _read(records: Path, name: str) -> Any:
    return json.loads((records / f"{name}.json").read_text())
