"""Gradients of kernels: `k.vjp(X, Z, G)` is the gradient of sum(G * k(X, Z)) by the images, and by real parameters.

A gradient is computed tile by tile, like a matrix, in four steps:

    gradient         prepares images, with memory for their cotangents, which slices share
    pullback         adds the cotangents that follow from a tile of entries
    pull_diagonal    adds those that follow from k(x, x)
    finish           pulls the cotangents of each image back to its pixels

A sum or product of kernels passes cotangents on to both of its kernels, and adds up their results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .backends import Advance, AnyDevice, Precision
from .devices import Device
from .errors import BackendError, InputError, ParameterError
from .inputs import check_images, check_pair, device_of, is_cupy, put_beside, take, to_host
from .tiles import Progress, counter, fill, tile_spans

Restore = Callable[[Any], Any]
Slopes = dict[str, Any]  # cotangents of parameters by name, (N,) each: the sum over all pairs of an image


@dataclass(frozen=True, eq=False)
class Branches:
    """The state of a kernel's gradient: that of its parts (kernels, or a backend's), and its own parameters."""

    parts: tuple[Any, ...]
    join: Callable[[tuple[Any, ...], Any], Any]  # (prepared images of the parts, diagonal) -> those of the kernel
    diagonal: Any  # k(x, x)
    own: Slopes = field(default_factory=dict)

    @property
    def tile(self) -> int:
        return int(min(part.tile for part in self.parts))

    @property
    def images(self) -> Any:
        return self.join(tuple(part.images for part in self.parts), self.diagonal)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, part: slice) -> Branches:
        own = {name: slopes[part] for name, slopes in self.own.items()}
        return Branches(tuple(one[part] for one in self.parts), self.join, self.diagonal[part], own)

    def unwanted(self) -> Branches:
        """The same images, whose cotangents nobody wants: they are kept apart or not computed."""
        own = {name: np.zeros_like(slopes) for name, slopes in self.own.items()}
        return Branches(tuple(one.unwanted() for one in self.parts), self.join, self.diagonal, own)


@dataclass(frozen=True, eq=False)
class Tile:
    """A block of entries to be pulled back: the gradient states of both sides, and the cotangents of the entries.

    With `upper`, only entries right of the diagonal have cotangents. `advance` is called with the number of pairs done.
    """

    device: AnyDevice
    left: Any
    right: Any
    cotangent: Any
    upper: bool = False
    advance: Advance | None = None

    def of(self, left: int, right: int, factor: Any = 1.0) -> Tile:
        """The tile for a part of the kernel: part `left` of the left side, part `right` of the right side."""
        parts = self.left.parts[left], self.right.parts[right]
        return replace(self, left=parts[0], right=parts[1], cotangent=self.cotangent * factor)


class Differentiable(ABC):
    """Base class of kernels with gradients."""

    def vjp(
        self,
        X: Any,
        Z: Any,
        G: Any,
        *,
        parameters: bool = False,
        wrt: str = "XZ",
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Gradients of sum(G * k(X, Z)): (dX, dZ) in float64. With Z=None, the gradient dX of sum(G * k(X)) alone.

        With `parameters`, a dictionary of the derivatives by all real parameters is returned after them. `wrt="X"` or
        "Z" computes that gradient only and returns None for the other. Patches of zeros, where nonlinearities have no
        derivative, get zero.

        >>> import numpy as np
        >>> import tangentless as tl
        >>> X = np.random.default_rng(0).standard_normal((3, 4, 4, 2))
        >>> k = tl.kernel("conv3 relu globalpool")
        >>> dX, dZ = k.vjp(X, X[:2], np.ones((3, 2)), backend="reference")
        >>> dX.shape, dZ.shape
        ((3, 4, 4, 2), (2, 4, 4, 2))
        >>> bool(np.isclose((dX * X).sum(), k(X, X[:2], backend="reference").sum()))  # k is linear in the scale of X
        True
        """
        if wrt not in ("X", "Z", "XZ"):
            raise ParameterError(f"gradients are with respect to 'X', 'Z' or 'XZ', not {wrt!r}")
        if Z is None and wrt == "Z":
            raise ParameterError("wrt='Z' needs a Z; without one, dX is the gradient by both sides")
        device = Device.of(backend, precision, n_jobs)
        on_gpu = self._stays_on_gpu(device)
        images, others, restore, restore_others = take_pair(X, Z, on_gpu=on_gpu)
        cotangent, _ = take(G, on_gpu=on_gpu)
        check_cotangent(cotangent, (len(images), len(images if others is None else others)))
        for name, some in (("X", images), ("Z", others)):
            if some is not None and name in wrt and some.dtype.kind != "f":
                raise InputError(f"{name} has dtype {some.dtype}, which has no gradient; convert it to float64")
        if is_cupy(cotangent) != is_cupy(images):
            cotangent = put_beside(to_host(cotangent), images)
        with device_of(images):
            left = self.gradient(device, images, parameters=parameters, wanted="X" in wrt or parameters)
            right = left
            if others is not None:
                right = self.gradient(device, others, parameters=parameters, wanted="Z" in wrt or parameters)
            _pull_tiles(self, device, left, right, cotangent.astype(np.float64), others is None, progress)
            results, slopes = [], []
            for name, side, back in (("X", left, restore), ("Z", right, restore_others))[: 1 if others is None else 2]:
                pixels, found = self.finish(side) if name in wrt or parameters else (None, {})
                if name in wrt:
                    check_range(pixels, name)
                results.append(back(pixels) if name in wrt else None)
                slopes.append(found)
        if parameters:
            results.append({name: sum(float(some[name].sum()) for some in slopes) for name in slopes[0]})
        return results[0] if len(results) == 1 else tuple(results)

    def values_and_pull(self, device: Device, X: Any, count: int) -> tuple[Any, Callable[[Any], Any]]:
        """k(X[:count], X), and a function from its cotangents to those of the left images X[:count].

        Images are prepared once for both. X is not checked, and must be on the GPU if the device is one.
        """
        with device_of(X):
            everything = self.gradient(device, X)
            left, right = everything[:count], everything.unwanted()
            values = fill(self, device, left.images, right.images, symmetric=False)

        def pull(cotangent: Any) -> Any:
            with device_of(X):
                _pull_tiles(self, device, left, right, cotangent, symmetric=False, progress=None)
                return self.finish(left)[0]

        return values, pull

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        """Images prepared for `pullback`; `finish` is not called if cotangents of pixels are not `wanted`."""
        raise ParameterError(
            f"{self!r} has no gradient; define its methods gradient, pullback, pull_diagonal and finish"
        )

    @abstractmethod
    def _stays_on_gpu(self, device: Device) -> bool: ...

    def pullback(self, tile: Tile) -> None:
        """Add the cotangents that follow from a tile."""
        raise NotImplementedError

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        """Add the cotangents that follow from those of k(x, x)."""
        raise NotImplementedError

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        """The cotangents of the pixels and of the parameters."""
        raise NotImplementedError


def take_pair(X: Any, Z: Any, *, on_gpu: bool) -> tuple[Any, Any, Restore, Restore]:
    """X and Z as checked arrays (None for Z=None), and functions that turn results into the kind of array each is."""
    images, restore = take(X, on_gpu=on_gpu)
    check_images(images, "X")
    if Z is None:
        return images, None, restore, restore
    others, restore_others = take(Z, on_gpu=on_gpu)
    check_images(others, "Z")
    check_pair(images, others)
    return images, others, restore, restore_others


def check_cotangent(cotangent: Any, shape: tuple[int, int]) -> None:
    """Refuse anything but one finite number for every entry of the matrix."""
    if cotangent.shape != shape:
        raise InputError(
            f"G has shape {cotangent.shape}, but the kernel matrix has shape {shape}; give a number for each entry"
        )
    if cotangent.dtype.kind not in "fiub":
        raise InputError(f"G has dtype {cotangent.dtype}; give real numbers")
    if not np.isfinite(cotangent).all():
        row, column = (int(place) for place in np.argwhere(~np.isfinite(cotangent))[0])
        raise InputError(f"G holds {float(cotangent[row, column])} at [{row}, {column}]; give finite numbers")


def check_range(gradient: Any, name: str) -> None:
    """Refuse a gradient with numbers beyond float64, instead of returning infinities and NaN."""
    finite = np.isfinite(gradient.reshape(len(gradient), -1)).all(axis=1)
    if not finite.all():
        raise InputError(
            f"the gradient by {name} is beyond the range of float64, first in row {int(np.argmin(finite))}; rescale G "
            "if it is huge, and set pixels to zero that are more than 1e100 times smaller than others"
        )


def with_prefix(word: str, slopes: Slopes) -> Slopes:
    """The parameters of a part, with its name as a prefix."""
    return {f"{word}.{name}": some for name, some in slopes.items()}


def gradient_backend(device: AnyDevice) -> Any:
    """The backend of a device; raises if it has no gradients."""
    backend = Device.of(device).backend
    if not hasattr(backend, "pullback"):
        raise BackendError(f"the backend {backend.name!r} has no gradients; use backend='cpu'")
    return backend


def _pull_tiles(
    kernel: Any, device: Device, left: Any, right: Any, cotangent: Any, symmetric: bool, progress: Progress | None
) -> None:
    """Pull all tiles back, row by row: cotangents of an image are then added in an order that no tile size changes."""
    pairs = len(left) * (len(left) - 1) // 2 if symmetric else cotangent.size
    advance = counter(progress, pairs * sum(1 for _ in kernel.leaves()))
    for rows, columns, upper in tile_spans(left, right, symmetric=symmetric):
        tile = cotangent[rows, columns]
        if symmetric:
            tile = tile + cotangent[columns, rows].T
        tile = np.triu(tile, 1) if upper else tile
        kernel.pullback(Tile(device, left[rows], right[columns], tile, upper, advance))
    if symmetric:
        kernel.pull_diagonal(device, left, np.diagonal(cotangent))
