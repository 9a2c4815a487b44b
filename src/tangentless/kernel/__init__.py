"""Kernels: the objects users hold.

`tangentless.kernel("myrtle10-gaussian")` gives a kernel k. `k(X)` is the symmetric matrix of X with itself, `k(X, Z)`
the matrix between two sets, and `k.diag(X)` the diagonal. Kernels can be added and multiplied, and are equal if their
parameters are. Matrices are filled tile by tile, so memory beyond the result stays bounded for any number of images.

>>> import numpy as np
>>> X = np.random.default_rng(0).standard_normal((4, 8, 8, 3))
>>> k = kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")
>>> K = k(X)
>>> K.shape, bool(np.all(K == K.T)), float(K[0, 0])
((4, 4), True, 1.0)
"""

from __future__ import annotations

from .base import Elementary, Kernel
from .combined import Product, Scaled, Sum
from .compositional import AnyKernel, CompositionalKernel, kernel, kernel_of
from .symmetrized import Crossed, Symmetrized
from .viewed import Viewed

__all__ = [
    "AnyKernel",
    "CompositionalKernel",
    "Crossed",
    "Elementary",
    "Kernel",
    "Product",
    "Scaled",
    "Sum",
    "Symmetrized",
    "Viewed",
    "kernel",
    "kernel_of",
]
