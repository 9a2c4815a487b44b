"""Measured upper limits of a GPU: special functions per second, and issued instructions per second.

A kernel evaluates one nonlinearity for every element, so the rate of special functions bounds the rate of elements. The
rate of instructions, over the rate of elements, is the number of instructions that there is time for per element.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from ..backends.cuda.machine import import_cupy

CHAINS = 16  # as in ceilings.cu
THREADS, BLOCKS_PER_MULTIPROCESSOR, ROUNDS, REPEATS = 512, 4, 20_000, 3
OPTIONS = ("-std=c++17",)


@dataclass(frozen=True)
class Ceilings:
    """Operations per second of all threads together, in a kernel that does nothing else."""

    special_functions: float
    instructions: float


def source() -> str:
    """The CUDA source of the two kernels."""
    return (resources.files(__package__) / "ceilings.cu").read_text(encoding="utf-8")


def measure_ceilings() -> Ceilings:
    """Measure the ceilings of the current GPU; each is the best of three runs."""
    cupy = import_cupy()
    blocks = BLOCKS_PER_MULTIPROCESSOR * int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    output = cupy.zeros(blocks * THREADS, dtype=cupy.float32)
    module = cupy.RawModule(code=source(), options=OPTIONS)
    operations = float(CHAINS * ROUNDS * len(output))
    rates = []
    for name in ("special_functions", "instructions"):
        launch = functools.partial(module.get_function(name), (blocks,), (THREADS,), (output, np.int32(ROUNDS)))
        launch()
        rates.append(operations / min(gpu_seconds(launch) for _ in range(REPEATS)))
    return Ceilings(*rates)


def gpu_seconds(work: Any) -> float:
    """Run `work`; returns the seconds between CUDA events recorded before and after it."""
    event = import_cupy().cuda.Event
    start, end = event(), event()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(import_cupy().cuda.get_elapsed_time(start, end)) / 1e3
