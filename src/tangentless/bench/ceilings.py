"""The ceilings of a GPU, measured on the GPU itself: special functions and issued instructions per second.

A kernel evaluates one nonlinearity for every element, so one special function per element bounds its rate. The other
ceiling says how many instructions may go into an element before issuing them becomes the tighter bound.
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
    """Operations of all threads per second, where nothing else is done."""

    special_functions: float
    instructions: float


def source() -> str:
    """The text of the kernels."""
    return (resources.files(__package__) / "ceilings.cu").read_text(encoding="utf-8")


def measure_ceilings() -> Ceilings:
    """The ceilings of the current GPU, the best of three runs each."""
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
    """The time between two marks in the GPU's queue, before and after the work."""
    event = import_cupy().cuda.Event
    start, end = event(), event()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(import_cupy().cuda.get_elapsed_time(start, end)) / 1e3
