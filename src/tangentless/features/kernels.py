"""Kernels of features: a kernel of vectors applied to the features that a fitted transformer computes of images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..backends import Advance, AnyDevice
from ..classical.vectors import Linear, VectorKernel
from ..devices import Device
from ..errors import InputError
from ..inputs import is_cupy, to_host
from ..kernel import Elementary
from .base import PatchFeatures


@dataclass(frozen=True, repr=False, eq=False)
class FeatureKernel(Elementary):
    """A kernel of vectors applied to the features of images: by default their inner product.

    Its text form, which stores and model files use, names the features by a digest. Two kernels are equal if their
    texts are, so all learnt arrays must agree in every bit. Features are computed in the precision of the device,
    kernels of them in float64.

    >>> import numpy as np
    >>> import tangentless as tl
    >>> X = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    >>> k = 1e-2 * tl.RandomPatchFeatures(filters=8).fit(X).kernel() + tl.kernel("conv3 relu globalpool")
    >>> k(X, backend="reference").shape
    (30, 30)
    """

    features: PatchFeatures
    of: VectorKernel = field(default_factory=Linear)
    on_gpu = True

    def prepare(self, device: AnyDevice, images: Any) -> Any:
        device = Device.of(device)
        self._check_shape(images.shape[1:])
        shape = (len(images), self.features._n_features_out)
        rows = device.algebra.xp.empty(shape, np.float64)  # the dtype of kernels of vectors: no copy is made
        for part, some in self.features.compute(device, images):
            rows[part] = some
        prepared: Any = self.of.prepare(device, rows)
        if is_cupy(rows) and not is_cupy(images):
            # Results go where the diagonal is: to the host, as the images.
            return replace(prepared, diagonal=to_host(prepared.diagonal))
        return prepared

    def block(
        self, device: AnyDevice, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        return self.of.block(device, left, right, upper=upper, advance=advance)

    @property
    def definition(self) -> str:
        return repr(self)

    def elements(self, shape: tuple[int, ...]) -> int:
        self._check_shape(shape)
        return self.of.elements((self.features._n_features_out,))

    def image_numbers(self, shape: tuple[int, ...]) -> int:
        return self.of.image_numbers((self.features._n_features_out,))

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if tuple(shape) != self.features.shape_:
            raise InputError(f"{self!r} was fitted to images of {self.features.shape_}, not {tuple(shape)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureKernel) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        of = "" if self.of == Linear() else f", {self.of!r}"
        return f"features({type(self.features).__name__!r}, {self.features.digest()!r}{of})"
