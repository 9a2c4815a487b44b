"""Backends: they run a graph on blocks of image pairs.

A backend has two entrances. `prepare` does all work that is linear in the number of images, once; `block` returns
the kernel entries between two prepared sets. The reference backend is the definition, and the others must agree
with it. A backend's module is imported when its `Device` first computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..devices import NAMES as NAMES
from ..devices import Device
from ..devices import Precision as Precision
from ..graph import Graph

Advance = Callable[[int], None]
P = TypeVar("P", bound="Prepared")

# The numbers of the arithmetics. A store records them and is continued only with the same, so that all its tiles have
# the bits of one program. Raise a backend's number by one when a change alters any bit of its results, in either
# precision. "vectors" stands for the kernels of `classical.vectors`, alike on all backends but cuda. 0.1.0 had only 1.
# 2 of "cpu": tangents and windows other than 3×3 are added up in another order. 2 of "cuda": one polynomial for ReLU.
ARITHMETIC: dict[str, int] = {"reference": 1, "cpu": 2, "cuda": 2, "vectors": 1}


class Prepared(Protocol):
    """Images with everything a backend needs to know of each one alone."""

    @property
    def diagonal(self) -> Any:
        """k(x, x) of each image, as the kind of array the images were."""
        ...

    @property
    def tile(self) -> int:
        """How many images one side of a block should have at most."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self: P, part: slice) -> P: ...


class OfImages:
    """What belongs to prepared images: it is as long as they are, and comes in tiles as large."""

    images: Any

    @property
    def tile(self) -> int:
        return int(self.images.tile)

    def __len__(self) -> int:
        return len(self.images)


class Backend(Protocol):
    """What every backend offers."""

    name: str

    def prepare(self, graph: Graph, images: Any) -> Prepared:
        """Do the work of each image alone; images are checked, (N, *grid, channels), of NumPy, or for cuda of CuPy."""
        ...

    def block(self, graph: Graph, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None) -> Any:
        """Entries between two prepared sets, float64; with `upper`, those on and right of the diagonal are enough.

        They are the kind of array that the images of the left set were.
        `advance` is told how many pairs were finished, as they are.
        """
        ...

    def describe(self, graph: Graph) -> str:
        """In one line, how this graph will run."""
        ...


AnyDevice = Device | Backend  # a backend object stands for a device of its precision and threads


def create(device: Device) -> Backend:
    """The backend of a device's name, in its precision and with its threads."""
    if device.name == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend()
    if device.name == "cuda":
        from .cuda import CudaBackend

        return CudaBackend(precision=device.precision)
    from .cpu import CpuBackend

    return CpuBackend(precision=device.precision, n_jobs=device.n_jobs)


def get_backend(backend: str | AnyDevice, precision: Precision = "float32", n_jobs: int | None = None) -> Backend:
    """A backend from its name; a backend object passes through."""
    return Device.of(backend, precision, n_jobs).backend
