"""The convolutional tangent kernel (NTK) of any architecture: a second value that flows through the kernel's graph.

The network has a layer of weights before every nonlinearity, and a linear readout after the last layer. All weights are
trained; there are no biases. Weights are Gaussian and scaled such that the Gaussian process of the network, the CNN-GP,
is `tangentless.kernel` of the architecture. In a sum, a branch that ends in a convolution has weights for it, and an
identity has none, as in a residual network. The tangent kernel is a sum with one term for each layer of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..architecture import Architecture
from ..graph import Graph, compile_graph
from ..kernel import CompositionalKernel


@dataclass(frozen=True, repr=False)
class ConvolutionalNTK(CompositionalKernel):
    """The tangent kernel of the infinitely wide network of an architecture, all layers trained.

    Arithmetic is always float64: the derivative of the ReLU's dual has a term sqrt(1 - c), of which float32 would give
    three digits near c = 1.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((3, 8, 8, 2))
    >>> k = ConvolutionalNTK("conv3 relu pool2 conv3 relu globalpool")
    >>> k
    ConvolutionalNTK('conv3 relu pool2 conv3 relu globalpool')
    >>> bool(np.all(np.linalg.eigvalsh(k(X, backend="reference")) > 0))
    True
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "architecture", Architecture.of(self.architecture))

    def __repr__(self) -> str:
        return f"ConvolutionalNTK({self.architecture.short_name!r})"

    @property
    def definition(self) -> str:
        return f"tangent of {super().definition}"

    @property
    def gaussian_process(self) -> CompositionalKernel:
        """The kernel of the same network if only the readout is trained: the CNN-GP."""
        return CompositionalKernel(self.architecture)

    def graph(self, shape: tuple[int, ...]) -> Graph:
        return compile_graph(self.architecture, tuple(shape[:-1]), shape[-1], tangent=True)
