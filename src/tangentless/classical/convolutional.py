"""The convolutional tangent kernel of any architecture: a second value that flows through the graph of its kernel.

The network: before every nonlinearity a layer of weights, after the last layer a linear readout, all of them trained,
none with biases; weights are Gaussian and scaled so that its Gaussian process, the CNN-GP, is exactly
`tangentless.kernel` of the architecture. In a sum, branches that end in a convolution have weights of their own there,
and an identity has none: a residual network is what comes out. The tangent kernel is the sum over layers of weights of
what each one adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..architecture import Architecture
from ..graph import Graph, compile_graph
from ..kernel import CompositionalKernel


@dataclass(frozen=True, repr=False)
class ConvolutionalNTK(CompositionalKernel):
    """The tangent kernel of the infinitely wide network of an architecture, all layers trained.

    Arithmetic is float64, whatever the precision: the slope of the ReLU's dual has a square root at c = 1, and would
    leave float32 three digits there.

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
        return f"tangent of {self.architecture}"

    @property
    def gaussian_process(self) -> CompositionalKernel:
        """The kernel of the same network with all weights but the readout's as they were drawn: the CNN-GP."""
        return CompositionalKernel(self.architecture)

    def graph(self, shape: tuple[int, ...]) -> Graph:
        return compile_graph(self.architecture, tuple(shape[:-1]), shape[-1], tangent=True)
