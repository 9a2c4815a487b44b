"""The device code as text, and the compiler options of fused stages.

The `.cu` and `.cuh` files are package data. NVRTC, which comes with CuPy, compiles them at run time for the GPU at
hand, and CuPy caches the results on disk. Headers and kernel are compiled as one text: CuPy's cache key is the text, so
a change of a header is noticed.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

from .layout import FrontPlan, StagePlan

OPTIONS = ("-std=c++20", "-diag-suppress=177")
ADDED_BY_CUPY = ("-ftz=true", "--device-as-default-execution-space")  # the kernels rely on these
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


@functools.cache
def source(name: str) -> str:
    """The text of a `.cu` or `.cuh` file, with each included header inserted once.

    >>> text = source("stage.cu")
    >>> text.count("struct Place {"), '#include "layout.cuh"' in text
    (1, False)
    """
    folder, seen = resources.files(__package__), set[str]()

    def expanded(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = (folder / file).read_text(encoding="utf-8").replace("#pragma once\n", "")
        return INCLUDE.sub(lambda match: expanded(match[1]), text)

    return expanded(name)


def stage_options(plan: StagePlan | FrontPlan) -> tuple[str, ...]:
    """Compiler options for a fused stage, or for the front of the first one (`front.cu`)."""
    return (*OPTIONS, *plan.defines())
