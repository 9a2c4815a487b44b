"""Backends: they run a graph on blocks of image pairs.

A backend has two entrances. `prepare` does all work that is linear in the number of images, once; `block` returns
the kernel entries between two prepared sets. The reference backend is the definition, and the others must agree
with it. A backend's module is imported when it is first asked for.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from ..errors import BackendError, ParameterError
from ..graph import Graph

Precision = Literal["float32", "float64"]
Advance = Callable[[int], None]
P = TypeVar("P", bound="Prepared")

NAMES = ("auto", "reference", "cpu", "cuda")
# The numbers of the arithmetics. A store records them and is continued only with the same, so that all its tiles have
# the bits of one program. Raise a backend's number by one when a change alters any bit of its results, in either
# precision. "vectors" stands for the kernels of `classical.vectors`, which run on no backend. Version 0.1.0 had only 1.
ARITHMETIC: dict[str, int] = {"reference": 1, "cpu": 1, "cuda": 2, "vectors": 1}
logger = logging.getLogger("tangentless")


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


@functools.cache
def _best_name() -> str:
    """The fastest backend that can run here, logged the first time it is asked for."""
    name, reason = "cpu", "CuPy is not installed"
    if importlib.util.find_spec("cupy") is not None:
        from .cuda import check_gpus

        try:
            check_gpus()
            name, reason = "cuda", "there is a GPU"
        except BackendError as error:
            reason = str(error)
    logger.info("backend 'auto' chose %r: %s", name, reason)
    return name


def get_backend(backend: str | Backend, precision: Precision = "float32", n_jobs: int | None = None) -> Backend:
    """A backend from its name; a backend object passes through."""
    if precision not in ("float32", "float64"):
        raise ParameterError(f"precision is 'float32' or 'float64', not {precision!r}")
    if not isinstance(backend, str):
        if not hasattr(backend, "prepare"):
            raise BackendError(f"a backend is a name, {', '.join(NAMES)}, or a backend object, not {backend!r}")
        return backend
    if backend == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend()
    if backend == "auto":
        backend = _best_name()
    if backend == "cpu":
        from .cpu import CpuBackend

        return CpuBackend(precision=precision, n_jobs=n_jobs)
    if backend == "cuda":
        from .cuda import CudaBackend

        return CudaBackend(precision=precision)
    raise BackendError(f"unknown backend {backend!r}; there are {', '.join(NAMES)}")
