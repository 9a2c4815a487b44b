"""Kernel matrices in stores: computed tile by tile, durable, resumable, and readable in parts.

>>> import tempfile, numpy as np
>>> X = np.random.default_rng(0).standard_normal((40, 8))
>>> folder = tempfile.TemporaryDirectory()
>>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
>>> K.shape, K[:2, 30:].shape, np.asarray(K).dtype
((40, 40), (2, 10), dtype('float64'))

A store is a Zarr (v3) group. The array `kernel` holds the matrix in float64; a symmetric matrix has tiles on and right
of the diagonal only. The arrays `x` and `z` hold the images. The group's attributes hold the manifest.

`tangentless.gram` is this module. Calling the module calls its function `gram`.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

from .matrix import GramMatrix, open_gram
from .progress import Snapshot
from .run import Findings, Status, gram, repair, resume, status, verify

__all__ = ["Findings", "GramMatrix", "Snapshot", "Status", "gram", "open_gram", "repair", "resume", "status", "verify"]


class _Callable(ModuleType):
    """A callable module: `import tangentless.gram as g` yields the module, and `tangentless.gram(...)` computes."""

    __signature__ = inspect.signature(gram)  # which `help` and editors show

    def __call__(self, *arguments: Any, **options: Any) -> GramMatrix:
        return gram(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
