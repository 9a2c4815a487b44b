"""Backends: they run a graph on blocks of image pairs.

`Backend.prepare` does all work that is linear in the number of images, once. `Backend.block` returns the kernel entries
between two prepared sets. The reference backend is the definition, and the others must agree with it. A backend's
module is imported when its `Device` first computes.
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

# Versions of each backend's arithmetic. A store records its version and is continued only with the same one, so that
# the bits of all its tiles come from one program. Raise a backend's version by one when a change alters any bit of its
# results, in either precision. "vectors" are the kernels of `classical.vectors`, whose bits are the same on all
# backends but cuda. In release 0.1.0 all versions were 1. "cpu" 2: another order of additions for tangents and for
# windows other than 3×3. "cuda" 2: one polynomial for ReLU.
ARITHMETIC: dict[str, int] = {"reference": 1, "cpu": 2, "cuda": 2, "vectors": 1}


class Prepared(Protocol):
    """Images, with everything that a backend computes for each one alone."""

    @property
    def diagonal(self) -> Any:
        """k(x, x) of each image, (N,), in an array of the kind that the images came in."""
        ...

    @property
    def tile(self) -> int:
        """The most images that one side of a block should have."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self: P, part: slice) -> P: ...


class OfImages:
    """Base of classes that wrap prepared images: their length and tile size are those of `images`."""

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
        """Do the work of each image alone.

        Images (N, *grid, channels) are arrays of NumPy, or of CuPy for cuda. The caller has checked them.
        """
        ...

    def block(self, graph: Graph, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None) -> Any:
        """Entries (n, m) between two prepared sets, in float64.

        With `upper`, both sets are the same, and only entries on and right of the diagonal are needed. The result is
        the kind of array that the images of the left set were. `advance(count)` is called whenever `count` more pairs
        are finished.
        """
        ...

    def describe(self, graph: Graph) -> str:
        """One line that says how this graph will run."""
        ...


AnyDevice = Device | Backend  # a backend object means a device with its precision and threads


def create(device: Device) -> Backend:
    """The backend that a device names, with its precision and threads."""
    if device.name == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend()
    if device.name == "cuda":
        from .cuda import CudaBackend

        return CudaBackend(precision=device.precision)
    from .cpu import CpuBackend

    return CpuBackend(precision=device.precision, n_jobs=device.n_jobs)


def get_backend(backend: str | AnyDevice, precision: Precision = "float32", n_jobs: int | None = None) -> Backend:
    """The backend of a name or a device; a backend object is returned as it is."""
    return Device.of(backend, precision, n_jobs).backend
