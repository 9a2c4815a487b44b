"""CRC-32C, the checksum that Zarr keeps behind every chunk: it finds every flipped bit and every burst of up to 32.

`google_crc32c`, which comes with Zarr, computes it at memory speed. Where it is not installed, `castagnoli` does.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np


def crc32c(data: Any) -> int:
    """The CRC-32C of a contiguous buffer.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return int(_implementation()(np.frombuffer(data, dtype=np.uint8)))


@functools.cache
def _implementation() -> Callable[[Any], int]:
    try:
        module: Any = importlib.import_module("google_crc32c")
    except ImportError:
        from . import castagnoli as module
    value: Callable[[Any], int] = module.value
    return value
