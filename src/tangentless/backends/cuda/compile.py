"""The device code as text, and the compiler options for each of its variants.

The `.cu` files are package data, compiled at run time by NVRTC, which comes with CuPy, for the GPU at hand; CuPy keeps
the results on disk. Header and kernels are handed over as one text, so that a change of either is a change of it.
"""

from __future__ import annotations

import functools
from importlib import resources

from .plan import StagePlan

OPTIONS = ("-std=c++20", "-diag-suppress=177")
ADDED_BY_CUPY = ("-ftz=true", "--device-as-default-execution-space")  # and counted on
HEADER = '#include "device.cuh"\n'


@functools.cache
def source(name: str) -> str:
    """The text of one of the package's `.cu` files, with the header in place.

    >>> "KERNEL" in source("general.cu"), "#include" in source("stage.cu")
    (True, True)
    """
    folder = resources.files(__package__)
    header = (folder / "device.cuh").read_text(encoding="utf-8").replace("#pragma once\n", "")
    return (folder / name).read_text(encoding="utf-8").replace(HEADER, header)


def stage_options(plan: StagePlan) -> tuple[str, ...]:
    """Compiler options for a fused stage."""
    return (*OPTIONS, *plan.defines())
