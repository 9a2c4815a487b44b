"""Computing tiles: their size, the memory they take, and the engine of this process.

A tile is computed, written and checked as a whole, and lost as a whole in a crash. It should take about a minute of two
processor cores or seconds of a GPU, so that a crash costs little, and the number of files should suit a file system. A
tile needs two prepared panels of images, which are kept for other tiles as long as memory allows.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import platform
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from ..chunks import ahead, machine_memory
from ..devices import Device
from ..errors import ParameterError
from ..inputs import to_host
from ..kernel import Kernel
from ..tiles import fill
from .progress import Meter
from .store import Array, Store, Tile

if TYPE_CHECKING:
    from .cluster import Cluster

Probe = Callable[[Device], str]
ReadPanel = Callable[[str, int], NDArray[Any]]
Advance = Callable[[float], None]
_SMALLEST, _USUAL, _LARGEST = 16, 1024, 2048  # rows of a tile; beyond _USUAL only to limit the number of files
_WORK = {"cuda": 2e13}  # elements that a tile should have, by backend
_WORK_ELSEWHERE = 2.5e11  # the same for all other backends
_FILES = 20_000  # tiles of a matrix, unless they would be larger than _LARGEST
_PROBE = 2e7  # elements of a fingerprint: a fraction of a second, even on the reference backend
_TILE_ROWS = 4  # rows of tiles that even a small matrix should have
_TILES_HELD = 3  # one being computed, one being written, one in between
_WORKSPACE = 256 << 20  # bytes for the backend, or half of what the tiles leave if that is less
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


# Tile size and memory


def choose_tile(kernel: Kernel, shape: tuple[int, ...], size: tuple[int, int], backend: str, memory: int) -> int:
    """A tile size, a power of two, from the work of a pair, the size of the matrix and the memory.

    >>> from tangentless import kernel
    >>> choose_tile(kernel("myrtle10"), (32, 32, 3), (50_000, 50_000), "cpu", 4 << 30)
    256
    >>> choose_tile(kernel("myrtle10"), (32, 32, 3), (50_000, 50_000), "cuda", 4 << 30)
    1024
    """
    elements = max(1, sum(leaf.elements(shape) for leaf in kernel.leaves()))
    by_work = math.sqrt(_WORK.get(backend, _WORK_ELSEWHERE) / elements)
    by_files = math.sqrt(math.prod(size) / _FILES)
    by_rows = max(size) / _TILE_ROWS
    wanted = min(_LARGEST, max(_SMALLEST, by_files, min(_USUAL, by_work, by_rows)))
    tile = 1 << int(math.log2(wanted))
    while tile > _SMALLEST and _least_memory(tile, _image_bytes(kernel, shape)) > memory:
        tile //= 2
    return tile


def plan_memory(kernel: Kernel, shape: tuple[int, ...], tile: int, memory: int) -> int:
    """How many prepared panels fit into the memory besides the tiles; raises `ParameterError` if two do not."""
    image = _image_bytes(kernel, shape)
    least = _least_memory(tile, image)
    if memory < least:
        raise ParameterError(
            f"a memory budget of {memory:,} bytes is too small for tiles of {tile} images, which need {least:,}; "
            "give more memory, or start a new store with a smaller tile"
        )
    room = memory - _TILES_HELD * 8 * tile**2
    panels = max(room - _WORKSPACE, room // 2) // (tile * image)
    return max(2, panels)


def parse_memory(memory: int | str | None) -> int:
    """Bytes, from a number or a text such as `4GB` or `512MiB`; None stands for a quarter of the machine's memory.

    >>> parse_memory("1.5GB"), parse_memory("512 MiB")
    (1500000000, 536870912)
    """
    if memory is None:
        return machine_memory() // 4
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if match is None or match[2] not in _UNITS:
        raise ParameterError(f"a memory budget is a number of bytes or a text such as '4GB', not {memory!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def _least_memory(tile: int, image_bytes: int) -> int:
    """Bytes of the tiles and of two prepared panels."""
    return _TILES_HELD * 8 * tile**2 + 2 * tile * image_bytes


def _image_bytes(kernel: Kernel, shape: tuple[int, ...]) -> int:
    """An upper bound of the bytes of an image: its pixels and what every kernel prepares for it, all in float64."""
    return 8 * (math.prod(shape) + sum(leaf.image_numbers(shape) for leaf in kernel.leaves()))


# Tiles


@dataclass(frozen=True)
class Job:
    """What a process needs to compute tiles of a store. `read` returns panels of images, by default from the store."""

    store: Store
    kernel: Kernel
    device: Device
    memory: int
    read: ReadPanel | None = None

    @property
    def panels_kept(self) -> int:
        """How many prepared panels fit into memory."""
        manifest = self.store.manifest
        return plan_memory(self.kernel, manifest.x.shape[1:], manifest.tile, self.memory)


class Panels:
    """A cache of prepared panels of images, which drops the least recently used one.

    >>> from tangentless import kernel
    >>> panels = Panels(kernel("normalize relu"), Device("reference"), lambda name, panel: np.ones((2, 5)), 3)
    >>> len(panels["x", 0]), panels["x", 0] is panels["x", 0]
    (2, True)
    """

    def __init__(self, kernel: Kernel, device: Device, read: ReadPanel, capacity: int) -> None:
        self._kernel, self._device, self._read, self._capacity = kernel, device, read, capacity
        self._kept: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def __getitem__(self, key: tuple[str, int]) -> Any:
        if key not in self._kept:
            while len(self._kept) >= self._capacity:  # before the next is prepared, so that memory never holds one more
                self._kept.popitem(last=False)
            self._kept[key] = self._kernel.prepare(self._device, self._read(*key))
        self._kept.move_to_end(key)
        return self._kept[key]


class Computer:
    """Computes the tiles of a job, one at a time."""

    def __init__(self, job: Job, advance: Advance | None = None) -> None:
        self._store = job.store
        self._panels = Panels(job.kernel, job.device, job.read or job.store.read_images, job.panels_kept)
        leaves = sum(1 for _ in job.kernel.leaves())  # each leaf reports every pair
        report = advance and (lambda pairs: advance(pairs / leaves))
        self._fill = functools.partial(fill, job.kernel, job.device, advance=report)

    def compute(self, tile: Tile) -> Array:
        """The entries of a tile. A part that the store has from before the matrix was extended is not computed again.

        | known   beside |
        | beside' new    |   a tile on the diagonal; others are [known, beside]
        """
        symmetric = self._store.manifest.symmetric
        left, right = self._panels["x", tile[0]], self._panels["x" if symmetric else "z", tile[1]]
        on_diagonal, known = symmetric and tile[0] == tile[1], self._store.known_part(tile)
        if known is None:
            return self._fill(left, right, symmetric=on_diagonal)
        new = right[known.shape[1] :]
        beside = self._fill(left[: len(known)], new, symmetric=False)
        if not on_diagonal:
            return np.hstack([known, beside])
        return np.block([[known, beside], [beside.T, self._fill(new, new, symmetric=True)]])


# Engines


@dataclass(frozen=True)
class Local:
    """The engine of this process. Threads write tiles while the next ones are computed.

    Both engines, `Local` and `Cluster`, have a `device`, a default budget of `memory` for a process in bytes, and
    `bits`, the fingerprints of their processors.
    """

    device: Device
    memory: int
    probe: Probe

    @functools.cached_property
    def bits(self) -> tuple[str, ...]:
        """Computed on demand, because a complete store needs no backend."""
        return (self.probe(self.device),)

    def compute(self, job: Job, tiles: Sequence[Tile], meter: Meter, check: Callable[[], None]) -> None:
        """Compute tiles into the store. `check` raises when another process has taken the store over."""
        computer = Computer(job, meter.advance)

        def computed() -> Iterator[tuple[Tile, Array]]:
            for tile in tiles:
                check()
                yield tile, computer.compute(tile)

        for _ in ahead(lambda both: job.store.write_tile(*both), computed(), max(1, job.store.at_once - 1)):
            meter.finish_tile()


def find_engine(
    scheduler: Any, choose: Callable[[], Device], probe: Probe
) -> contextlib.AbstractContextManager[Local | Cluster]:
    """The engine of this process, or of the Dask cluster of a scheduler. `choose` runs where tiles are computed."""
    if scheduler is None:
        return contextlib.nullcontext(Local(choose(), parse_memory(None), probe))
    from .cluster import connect

    return connect(scheduler, choose, probe)


def fingerprint(kernel: Kernel, shape: tuple[int, ...], device: Device) -> str:
    """A hash of the kernel matrix of a few random images, and the name of the processor.

    If the hashes of two processors differ, their entries differ by rounding errors.
    """
    elements = max(1, sum(leaf.elements(shape) for leaf in kernel.leaves()))
    count = 2 + min(14, int(math.sqrt(_PROBE / elements)))
    images = np.random.default_rng(0).integers(-128, 128, (count, *shape)).astype(np.float64)
    prepared = kernel.prepare(device, images)
    values = fill(kernel, device, prepared, prepared, symmetric=True)
    digest = hashlib.sha256(np.ascontiguousarray(to_host(values), "<f8").tobytes()).hexdigest()
    return f"{digest[:16]} ({platform.machine()} {llvm.get_host_cpu_name()})"
