"""Computing tiles: the two panels of images that meet in one are prepared, and kept as long as memory allows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends import Backend, Precision
from ..kernel import Kernel, fill
from .store import Store, Tile
from .tiles import plan_memory

Array = NDArray[np.float64]
ReadPanel = Callable[[str, int], NDArray[Any]]
Advance = Callable[[float], None]


class Panels:
    """Prepared panels of images, the least recently used dropped first.

    >>> from tangentless import kernel
    >>> from tangentless.backends import get_backend
    >>> panels = Panels(kernel("normalize relu"), get_backend("reference"), lambda name, panel: np.ones((2, 5)), 3)
    >>> len(panels["x", 0]), panels["x", 0] is panels["x", 0]
    (2, True)
    """

    def __init__(self, kernel: Kernel, backend: Backend, read: ReadPanel, capacity: int) -> None:
        self._kernel, self._backend, self._read, self._capacity = kernel, backend, read, capacity
        self._kept: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, key: tuple[str, int]) -> Any:
        with self._lock:
            if key not in self._kept:
                while len(self._kept) >= self._capacity:
                    self._kept.popitem(last=False)
                self._kept[key] = self._kernel.prepare(self._backend, self._read(*key))
            self._kept.move_to_end(key)
            return self._kept[key]


@dataclass(frozen=True)
class Job:
    """What a process must know to compute tiles of a store. Images come from `read`, if given, or from the store."""

    store: Store
    kernel: Kernel
    backend: str | Backend
    precision: Precision
    n_jobs: int | None
    memory: int
    read: ReadPanel | None = None

    @property
    def panels_kept(self) -> int:
        """How many prepared panels fit into memory."""
        manifest = self.store.manifest
        return plan_memory(self.kernel, manifest.x.shape[1:], manifest.tile, self.memory)

    def start(self, backend: Backend) -> Computer:
        """Something that computes its tiles."""
        panels = Panels(self.kernel, backend, self.read or self.store.read_images, self.panels_kept)
        return Computer(self.store, self.kernel, backend, panels)


@dataclass(frozen=True)
class Computer:
    """Computes tiles of one matrix."""

    store: Store
    kernel: Kernel
    backend: Backend
    panels: Panels

    def compute(self, tile: Tile, advance: Advance | None = None) -> Array:
        """The entries of a tile; those known from before the matrix was extended are taken over."""
        symmetric = self.store.manifest.symmetric
        left, right = self.panels["x", tile[0]], self.panels["x" if symmetric else "z", tile[1]]
        known = self.store.known_part(tile)
        if symmetric and tile[0] == tile[1]:
            return self._on_diagonal(left, known, advance)
        done = 0 if known is None else known.shape[1]
        new = self._fill(left, right[done:], advance)
        return new if known is None else np.hstack([known, new])

    def _on_diagonal(self, images: Any, known: Array | None, advance: Advance | None) -> Array:
        if known is None:
            return self._fill(images, images, advance, symmetric=True)
        old, new = images[: len(known)], images[len(known) :]
        beside = self._fill(old, new, advance)
        return np.block([[known, beside], [beside.T, self._fill(new, new, advance, symmetric=True)]])

    def _fill(self, left: Any, right: Any, advance: Advance | None, *, symmetric: bool = False) -> Array:
        passes = max(1, sum(1 for _ in self.kernel.leaves()))
        reported = 0

        def report(done: int, total: int) -> None:
            nonlocal reported
            if advance is not None:
                advance((done - reported) / passes)
            reported = done

        return fill(self.kernel, self.backend, left, right, symmetric=symmetric, progress=report)
