"""Gradients of kernels: `k.vjp(X, Z, G)` is the gradient of sum(G * k(X, Z)) by the images, and by real parameters.

A kernel's gradient is filled tile by tile, as its matrix is. `Kernel.gradient` prepares images together with room for
their cotangents, of which slices share the memory, `pullback` adds those of a tile, `pull_diagonal` those of k(x, x),
and `finish` pulls back what each image has alone. A sum or product of kernels hands its cotangents to both, and
adds up what they find.
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

Slopes = dict[str, Any]  # cotangents of parameters, (N,) each: what the pairs of every left image add


@dataclass(frozen=True, eq=False)
class Branches:
    """A kernel's gradient: those of the kernels that it is made of, or of a backend, and of its own parameters."""

    parts: tuple[Any, ...]
    join: Callable[[tuple[Any, ...], Any], Any]  # prepared images of all, from those of the parts and the diagonal
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
        """The same images, of which no cotangents are wanted: what is added here is not added there."""
        own = {name: np.zeros_like(slopes) for name, slopes in self.own.items()}
        return Branches(tuple(one.unwanted() for one in self.parts), self.join, self.diagonal, own)


@dataclass(frozen=True, eq=False)
class Tile:
    """A block of entries to be pulled back: gradients of both sides, and cotangents.

    With `upper`, only entries right of the diagonal have one. `advance` is told how many pairs were finished.
    """

    device: AnyDevice
    left: Any
    right: Any
    cotangent: Any
    upper: bool = False
    advance: Advance | None = None

    def of(self, left: int, right: int, factor: Any = 1.0) -> Tile:
        """The same entries of a kernel that this one's kernel is made of, by the places of its gradients."""
        parts = self.left.parts[left], self.right.parts[right]
        return replace(self, left=parts[0], right=parts[1], cotangent=self.cotangent * factor)


class Differentiable(ABC):
    """What all kernels share that have gradients."""

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
        """Gradients of sum(G * k(X, Z)): (dX, dZ) in float64; with Z None those of sum(G * k(X)), dX alone.

        With `parameters`, a dictionary of the derivatives by all real parameters follows. `wrt="X"` or "Z" leaves the
        other one out, as None, and saves its work. Zero patches, at which nonlinearities have no derivative, get zero.

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
        device = Device.of(backend, precision, n_jobs)
        on_gpu = self._stays_on_gpu(device)
        (images, restore), (cotangent, _) = take(X, on_gpu=on_gpu), take(G, on_gpu=on_gpu)
        check_images(images, "X")
        others, restore_others = (None, restore) if Z is None else take(Z, on_gpu=on_gpu)
        if others is not None:
            check_images(others, "Z")
            check_pair(images, others)
        check_cotangent(cotangent, (len(images), len(images if others is None else others)))
        for name, some in (("X", images), ("Z", others)):
            if some is not None and name in wrt and some.dtype.kind != "f":
                raise InputError(f"{name} has dtype {some.dtype}, which has no gradient; convert it to a floating one")
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
                results.append(back(pixels) if name in wrt else None)
                slopes.append(found)
        if parameters:
            results.append({name: sum(float(some[name].sum()) for some in slopes) for name in slopes[0]})
        return results[0] if len(results) == 1 else tuple(results)

    def values_and_pull(self, device: Device, X: Any, count: int) -> tuple[Any, Callable[[Any], Any]]:
        """k(X[:count], X), and a function that takes its cotangents to those of X[:count] on the left.

        Images are prepared once for all of this. They are checked already, and on a GPU if that is to compute.
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
        """Images prepared for `pullback`; if cotangents of their pixels are not `wanted`, `finish` is not called."""
        raise ParameterError(
            f"{self!r} has no gradient; define its methods gradient, pullback, pull_diagonal and finish"
        )

    @abstractmethod
    def _stays_on_gpu(self, device: Device) -> bool: ...

    def pullback(self, tile: Tile) -> None:
        """Add what the cotangents of a tile give."""
        raise NotImplementedError

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        """Add what the cotangents of k(x, x) give."""
        raise NotImplementedError

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        """The cotangents of the pixels, and of parameters."""
        raise NotImplementedError


def check_cotangent(cotangent: Any, shape: tuple[int, int]) -> None:
    """Refuse what is not one finite number for every entry of the matrix."""
    if cotangent.shape != shape:
        raise InputError(
            f"G has shape {cotangent.shape}, but the kernel matrix {shape}: G holds a number for each entry"
        )
    if cotangent.dtype.kind not in "fiub" or not np.isfinite(cotangent).all():
        raise InputError("G must hold finite numbers")


def named(word: str, slopes: Slopes) -> Slopes:
    """The parameters of a part, under its name."""
    return {f"{word}.{name}": some for name, some in slopes.items()}


def gradient_backend(device: AnyDevice) -> Any:
    """The backend of a device, if it has gradients."""
    backend = Device.of(device).backend
    if not hasattr(backend, "pullback"):
        raise BackendError(f"the backend {backend.name!r} has no gradients; use backend='cpu'")
    return backend


def _pull_tiles(
    kernel: Any, device: Device, left: Any, right: Any, cotangent: Any, symmetric: bool, progress: Progress | None
) -> None:
    """All tiles, row by row: every image then gets its cotangents in an order that does not depend on tiles."""
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
