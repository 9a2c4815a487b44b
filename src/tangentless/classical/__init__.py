"""Classical kernels with the interface of the compositional ones, for comparison.

Of vectors, or images read as vectors: `Linear`, `Polynomial`, `Gaussian`, `ArcCosine`, and the fully connected ReLU
networks of infinite width, `NNGP` and `NTK`. Of images: `ConvolutionalNTK`, the tangent kernel of any architecture. A
family is computed at once where its members share their work: `ntk_family`, `gaussian_family`.

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
