"""A backend that is made when it first computes: a run that finds all its pieces needs no GPU to write its record."""

from __future__ import annotations

import functools
from typing import Any

from numpy.typing import NDArray

from ..backends import NAMES, Advance, Backend, Prepared, get_backend
from ..graph import Graph


class Deferred:
    """The backend of a name, from its first use on.

    >>> Deferred("cuda").name
    'cuda'
    >>> Deferred("gpu")
    Traceback (most recent call last):
        ...
    tangentless.errors.BackendError: unknown backend 'gpu'; there are auto, reference, cpu, cuda
    """

    def __init__(self, name: str) -> None:
        self.name = name if name in NAMES and name != "auto" else get_backend(name).name

    @functools.cached_property
    def made(self) -> Backend:
        """The backend itself."""
        return get_backend(self.name)

    @property
    def n_jobs(self) -> int | None:
        """Its threads, where it has them."""
        return getattr(self.made, "n_jobs", None)

    @property
    def precision(self) -> Any:
        """That of its arithmetic."""
        return getattr(self.made, "precision", "float32")

    def prepare(self, graph: Graph, images: NDArray[Any]) -> Prepared:
        """As the backend does."""
        return self.made.prepare(graph, images)

    def block(self, graph: Graph, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None) -> Any:
        """As the backend does."""
        return self.made.block(graph, left, right, upper=upper, advance=advance)

    def describe(self, graph: Graph) -> str:
        """As the backend does."""
        return self.made.describe(graph)
