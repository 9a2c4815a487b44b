"""Classical kernels with the interface of the compositional ones, for comparison.

Kernels of vectors, or of images as vectors: `Linear`, `Polynomial`, `Gaussian`, `ArcCosine`, and those of fully
connected ReLU networks of infinite width, `NNGP` and `NTK`. Of images: `ConvolutionalNTK`, the tangent kernel of any
architecture. `ntk_family` and `gaussian_family` compute the matrices of several kernels at once and share their work.

>>> import numpy as np
>>> X = np.random.default_rng(0).standard_normal((30, 4))
>>> k = 0.5 * NTK(depth=3, fixed=1) + Gaussian(gamma=0.1)
>>> k
0.5 * NTK(depth=3, fixed=1) + Gaussian(gamma=0.1)
>>> k(X).shape, k(X[:5], X).shape, k.diag(X).shape
((30, 30), (5, 30), (30,))
"""

from .convolutional import ConvolutionalNTK
from .families import gaussian_family, median_squared_distance, ntk_family, squared_distances
from .vectors import NNGP, NTK, ArcCosine, Gaussian, Linear, Polynomial

__all__ = [
    "NNGP",
    "NTK",
    "ArcCosine",
    "ConvolutionalNTK",
    "Gaussian",
    "Linear",
    "Polynomial",
    "gaussian_family",
    "median_squared_distance",
    "ntk_family",
    "squared_distances",
]
