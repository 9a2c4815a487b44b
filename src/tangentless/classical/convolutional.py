"""The convolutional tangent kernel of any architecture, on the same bags as its compositional kernel.

The network: before every nonlinearity a layer of weights, after the last layer a linear readout, all of them trained,
none with biases; weights are Gaussian and scaled so that its Gaussian process, the CNN-GP, is exactly
`tangentless.kernel` of the architecture. Its tangent kernel is the sum over layers of weights of what each one adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architecture import Architecture
from ..backends import Advance, AnyDevice
from ..backends.reference import ReferenceImages, operations_of
from ..bags import apply_to_tangent
from ..devices import Device
from ..kernel import CompositionalKernel, Elementary
from ..program import Program

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class ConvolutionalNTK(Elementary):
    """The tangent kernel of the infinitely wide network of an architecture, all layers trained.

    Arithmetic is float64 on the processor, whatever the precision and backend, but for "reference": the slope of the
    ReLU's dual has a square root at c = 1, and would leave float32 three digits there.

    >>> X = np.random.default_rng(0).standard_normal((3, 8, 8, 2))
    >>> k = ConvolutionalNTK("conv3 relu pool2 conv3 relu globalpool")
    >>> k
    ConvolutionalNTK('conv3 relu pool2 conv3 relu globalpool')
    >>> bool(np.all(np.linalg.eigvalsh(k(X)) > 0))
    True
    """

    architecture: Architecture

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

    def elements(self, shape: tuple[int, ...]) -> int:
        return 2 * self.gaussian_process.elements(shape)

    def image_numbers(self, shape: tuple[int, ...]) -> int:
        return self.gaussian_process.image_numbers(shape)

    def prepare(self, device: AnyDevice, images: NDArray[Any]) -> Any:
        program = self.gaussian_process.program(images.shape[1:])
        device = Device.of(device)
        if device.name == "reference":
            bags: Any = device.backend.prepare(program, images)
            return _Literal.of(program, bags)
        from ..backends.cpu.tangent import prepare_tangent

        return prepare_tangent(program, images, device.n_jobs)

    def block(
        self, device: AnyDevice, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Array:
        if isinstance(left, _Literal):
            return left.block(right, upper=upper, advance=advance)
        from ..backends.cpu.tangent import tangent_block

        return tangent_block(left, right, Device.of(device).n_jobs, upper=upper, advance=advance)


@dataclass(frozen=True, eq=False)
class _Literal:
    """The definition: every layer's operation on the tangent kernel between two bags."""

    program: Program
    images: ReferenceImages
    diagonal: Array

    @classmethod
    def of(cls, program: Program, images: ReferenceImages) -> _Literal:
        operations = operations_of(program)
        diagonal = [
            sum(matrix[0, 0] for matrix in apply_to_tangent(operations, bag, bag, norms, norms, itself=True))
            for bag, norms in zip(images.bags, images.norms, strict=True)
        ]
        return cls(program, images, np.array(diagonal))

    @property
    def tile(self) -> int:
        return self.images.tile

    def __len__(self) -> int:
        return len(self.diagonal)

    def __getitem__(self, part: slice) -> _Literal:
        return _Literal(self.program, self.images[part], self.diagonal[part])

    def block(self, right: _Literal, *, upper: bool, advance: Advance | None) -> Array:
        operations, others = operations_of(self.program), right.images
        values = np.zeros((len(self), len(right)))
        for i, (bag, norms) in enumerate(zip(self.images.bags, self.images.norms, strict=True)):
            for j in range(i if upper else 0, len(right)):
                kernel, tangent = apply_to_tangent(operations, bag, others.bags[j], norms, others.norms[j])
                values[i, j] = kernel[0, 0] + tangent[0, 0]  # the readout's own weights add the kernel
                if advance is not None:
                    advance(1)
        return values
