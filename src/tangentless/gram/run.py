"""Computing a matrix into a store: start one, continue one, extend one.

The images are kept in the store first, then its metadata are written, then tiles, each for good. So a store that exists
can be continued from itself alone, and whatever ends a run costs at most the tiles in flight.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from numpy.typing import NDArray

from ..architecture import Architecture
from ..backends import Backend, Precision
from ..errors import ParameterError
from ..inputs import check_images, check_pair, to_numpy
from ..kernel import Kernel
from ..kernel import kernel as make_kernel
from ..layers import Layer
from .agreement import refuse_differences, settle
from .compute import Job, ReadPanel
from .engines import Engine, find_engine
from .expression import read_kernel
from .files import Files, find_files
from .lock import hold
from .manifest import Data, Manifest
from .matrix import GramMatrix
from .metadata import is_vacant, read_manifest, write_metadata
from .progress import ProgressOption, Snapshot, check_option, metered
from .store import Store, Tile
from .tiles import choose_tile, parse_memory, plan_memory

Address = str | os.PathLike[str]
Images = dict[str, NDArray[Any]]


def gram(
    kernel: Kernel | str | Architecture | Iterable[Layer],
    X: Any,
    Z: Any = None,
    *,
    store: Address,
    preprocessing: str = "",
    extend: bool = False,
    backend: str | Backend = "auto",
    precision: Precision = "float32",
    n_jobs: int | None = None,
    tile: int | None = None,
    memory: int | str | None = None,
    scheduler: Any = None,
    progress: ProgressOption = True,
) -> GramMatrix:
    """The kernel matrix of X, or of X and Z, computed into a store, or continued there after whatever stopped it.

    `preprocessing` says in your words what was done to the data. `extend` allows X to be longer than it was: only new
    entries are computed. `memory` is what this process, or each worker, may hold: bytes or a text such as `"4GB"`, by
    default a quarter of the machine's. `scheduler` is the address of a Dask scheduler, or a `distributed.Client`.

    >>> import tempfile, numpy as np, tangentless as tl
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
    >>> K.shape, float(K[3, 3]), bool(np.all(np.asarray(K) == tl.kernel("normalize relu")(X, backend="reference")))
    ((20, 20), 1.0, True)
    """
    kernel = kernel if isinstance(kernel, Kernel) else make_kernel(kernel)
    precision = precision if isinstance(backend, str) else getattr(backend, "precision", precision)
    images = check_sets(X, Z)
    files = find_files(store)
    if not is_vacant(files):  # a place that is not ours is left before anything is put there, a lock included
        read_manifest(files, derived=False)
    with find_engine(scheduler, backend, precision, n_jobs) as engine:
        run = Run(engine, kernel, backend, precision, n_jobs, memory, progress)
        given = run.describe(images, preprocessing, tile)
        with hold(files) as check:
            manifest = settle(files, given, images["x"], extend=extend, tile=tile)
            made = keep(files, manifest, images)
            run.compute(made, None, check, _reader(images, manifest.tile))
    return GramMatrix(made)


def resume(
    store: Address,
    *,
    kernel: Kernel | None = None,
    backend: str | Backend | None = None,
    n_jobs: int | None = None,
    memory: int | str | None = None,
    scheduler: Any = None,
    progress: ProgressOption = True,
) -> GramMatrix:
    """Continue a store from itself alone: it holds its images and names its kernel.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
    >>> resume(f"{folder.name}/k.zarr").shape
    (20, 20)
    """
    files = find_files(store)
    manifest = read_manifest(files, derived=False)
    with start(manifest, kernel, backend, n_jobs, memory, scheduler, progress) as run, hold(files) as check:
        made = keep(files, read_manifest(files, derived=False), {})
        run.compute(made, None, check)
    return GramMatrix(made)


@dataclass(frozen=True)
class Run:
    """How tiles of one kernel are computed."""

    engine: Engine
    kernel: Kernel
    backend: str | Backend
    precision: Precision
    n_jobs: int | None
    memory: int | str | None
    progress: ProgressOption

    def __post_init__(self) -> None:
        check_option(self.progress)

    @property
    def budget(self) -> int:
        """The bytes a process may hold."""
        return self.engine.memory if self.memory is None else parse_memory(self.memory)

    def describe(self, images: Images, preprocessing: str, tile: int | None) -> Manifest:
        """The manifest of a store made by this run."""
        from .. import __version__

        x, z = images["x"], images.get("z")
        shape, size = x.shape[1:], (len(x), len(x if z is None else z))
        if tile is None:
            tile = choose_tile(self.kernel, shape, size, self.engine.backend, self.budget)
        elif isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
            raise ParameterError(f"tile is a whole number of rows, at least 1, not {tile!r}")
        plan_memory(self.kernel, shape, tile, self.budget)
        return Manifest(
            kernel=repr(self.kernel),
            architectures=tuple(leaf.definition for leaf in self.kernel.leaves()),
            preprocessing=preprocessing,
            x=Data.of(x),
            z=None if z is None else Data.of(z),
            backend=self.engine.backend,
            precision=self.precision,
            tile=tile,
            package=__version__,
        )

    def compute(
        self, store: Store, tiles: Collection[Tile] | None, check: Callable[[], None], read: ReadPanel | None = None
    ) -> None:
        """Compute some tiles into the store: by default, all that are missing."""
        job = Job(store, self.kernel, self.backend, self.precision, self.n_jobs, self.budget, read)
        layout, finished = store.layout, store.finished()
        wanted = set(layout.tiles()) - finished if tiles is None else set(tiles)
        ordered = [tile for tile in layout.tiles(job.panels_kept) if tile in wanted]
        if ordered:
            before = finished - wanted
            pairs = sum(layout.pairs(*tile) for tile in before) + sum(map(store.known_pairs, ordered))
            with metered(Snapshot(len(before), layout.count, pairs, layout.total_pairs), self.progress) as meter:
                self.engine.compute(job, ordered, meter, check)


@contextlib.contextmanager
def start(
    manifest: Manifest,
    kernel: Kernel | None,
    backend: str | Backend | None,
    n_jobs: int | None,
    memory: int | str | None,
    scheduler: Any,
    progress: ProgressOption,
) -> Iterator[Run]:
    """A run that agrees with a manifest."""
    from .. import __version__

    kernel = kernel or read_kernel(manifest.kernel)
    backend, precision = backend or manifest.backend, cast(Precision, manifest.precision)
    with find_engine(scheduler, backend, precision, n_jobs) as engine:
        refuse_differences(
            manifest, replace(manifest, kernel=repr(kernel), backend=engine.backend, package=__version__), "the store"
        )
        yield Run(engine, kernel, backend, precision, n_jobs, memory, progress)


def keep(files: Files, manifest: Manifest, images: Images) -> Store:
    """Put images and metadata in place, where they are not yet; called by whoever holds the lock."""
    files.clean()
    store = Store(files, manifest)
    for name, values in images.items():
        store.write_images(name, values)
    write_metadata(files, manifest)
    return store


def check_sets(X: Any, Z: Any) -> Images:
    """The sets of images by name, checked."""
    images = {"x": check_images(to_numpy(X)[0], "X")}
    if Z is not None:
        images["z"] = check_images(to_numpy(Z)[0], "Z")
        check_pair(images["x"], images["z"])
    return images


def _reader(images: Images, tile: int) -> ReadPanel:
    return lambda name, panel: images[name][panel * tile : (panel + 1) * tile]
