"""Commands for stores: start, continue or extend a matrix, show its status, check it, repair it.

The images are written first, then the metadata, then the tiles, each file durably. So a store that exists can be
continued without the data, and an interrupted run loses at most the tiles that were being computed or written.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from numpy.typing import NDArray

from ..backends import ARITHMETIC, AnyDevice, Precision
from ..chunks import ahead
from ..classical.vectors import VectorKernel
from ..devices import Device
from ..errors import ParameterError, StoreAccessError, StoreDamagedError, StoreMismatchError, StoreWriteError
from ..expression import read_kernel
from ..gradients import take_pair
from ..kernel import AnyKernel, Kernel, kernel_of
from ..layers import is_whole
from .compute import Job, Local, ReadPanel, choose_tile, find_engine, fingerprint, parse_memory, plan_memory
from .files import Address, Files, find_files
from .files import Options as StorageOptions
from .lock import Owner, find_owner, hold
from .manifest import (
    Data,
    Manifest,
    damaged_metadata,
    has_bits,
    is_vacant,
    read_manifest,
    recover_manifest,
    require_match,
    resolve,
    write_metadata,
)
from .matrix import GramMatrix
from .progress import ProgressOption, Snapshot, check_option, metered
from .store import Store, Tile, tile_name, try_read

if TYPE_CHECKING:
    from .cluster import Cluster

Images = dict[str, NDArray[Any]]


def gram(
    kernel: AnyKernel,
    X: Any,
    Z: Any = None,
    *,
    store: Address,
    preprocessing: str = "",
    extend: bool = False,
    mixed: bool = False,
    force_unlock: bool = False,
    storage_options: StorageOptions | None = None,
    backend: str | AnyDevice = "auto",
    precision: Precision = "float32",
    n_jobs: int | None = None,
    tile: int | None = None,
    memory: int | str | None = None,
    scheduler: Any = None,
    progress: ProgressOption = True,
) -> GramMatrix:
    """Compute the kernel matrix of X, or of X and Z, into a store, or continue one that was interrupted.

    `preprocessing` is a note on what was done to the data; it must be the same when a store is continued. With
    `extend`, X may have more rows than before, and only new entries are computed. `memory` is a budget for this
    process, or for each worker: bytes or a text such as `"4GB"`, by default a quarter of the machine's memory.
    `scheduler` is the address of a Dask scheduler, or a `distributed.Client`. `storage_options` are fsspec's, for
    addresses such as `s3://...`; they are sent to workers, but not stored. `mixed` continues a store on a processor
    that rounds differently. `force_unlock` breaks the lock of a writer that is gone. A complete store is only read.

    >>> import tempfile, numpy as np, tangentless as tl
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
    >>> K.shape, float(K[3, 3]), bool(np.all(np.asarray(K) == tl.kernel("normalize relu")(X, backend="reference")))
    ((20, 20), 1.0, True)
    """
    kernel = kernel_of(kernel)
    images = _load_images(X, Z)
    files = find_files(store, storage_options)
    vacant = is_vacant(files)
    stored = None if vacant else read_manifest(files)  # raises, before anything is written, if it is no store
    choose = functools.partial(Device.of, backend, precision, n_jobs)
    with find_engine(scheduler, choose, functools.partial(fingerprint, kernel, images["x"].shape[1:])) as engine:
        run = _Run(engine, kernel, memory, progress, mixed)
        given = run.describe(images, preprocessing, tile)
        if not vacant and (complete := _finished(files, resolve(files, given, images["x"], extend=extend, tile=tile))):
            return GramMatrix(complete)
        engine.device.backend.name  # noqa: B018 (raises if the backend cannot run here, before the store is touched)
        given = replace(given, bits=run.bits(stored))
        with hold(files, force=force_unlock) as check:
            manifest = resolve(files, given, images["x"], extend=extend, tile=tile, mixed=mixed)
            made = _write_inputs(files, manifest, images)
            size = manifest.tile
            run.compute(made, None, check, lambda name, panel: images[name][panel * size : (panel + 1) * size])
    return GramMatrix(made)


class Options(TypedDict, total=False):
    """Arguments of `gram` for continuing a store. `kernel` and `backend` are by default those of the store."""

    mixed: bool
    kernel: AnyKernel | None
    backend: str | AnyDevice | None
    n_jobs: int | None
    memory: int | str | None
    scheduler: Any
    progress: ProgressOption


def resume(
    store: Address,
    *,
    storage_options: StorageOptions | None = None,
    force_unlock: bool = False,
    **options: Unpack[Options],
) -> GramMatrix:
    """Continue a store without the data: it holds its images and names its kernel. The options are `Options`.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> K = gram("normalize relu", X, store=f"{folder.name}/k.zarr", backend="reference")
    >>> resume(f"{folder.name}/k.zarr").shape
    (20, 20)
    """
    files = find_files(store, storage_options)
    manifest = read_manifest(files)
    with _continuing(files, manifest, **options) as run:
        if complete := _finished(files, manifest):
            return GramMatrix(complete)
        with hold(files, force=force_unlock) as check:
            made = _write_inputs(files, run.continued(files, read_manifest(files)), {})
            run.compute(made, None, check)
    return GramMatrix(made)


@dataclass(frozen=True)
class Status:
    """How much of a store is computed, and who is writing it."""

    manifest: Manifest
    tiles: int
    tiles_done: int
    pairs: int
    pairs_done: int
    writer: Owner | None

    @property
    def complete(self) -> bool:
        """Whether every tile is computed."""
        return self.tiles_done == self.tiles

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "manifest": self.manifest.to_json(), "complete": self.complete}


def status(store: Address, *, storage_options: StorageOptions | None = None) -> Status:
    """How much of a store is computed, and who is writing it.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.ones((20, 5)), store=f"{folder.name}/k.zarr", backend="reference", tile=8)
    >>> found = status(f"{folder.name}/k.zarr")
    >>> found.tiles_done, found.tiles, found.complete
    (6, 6, True)
    """
    files = find_files(store, storage_options)
    opened = Store.open(files)
    layout, finished = opened.layout, opened.finished()
    done = sum(layout.pairs(*tile) for tile in finished)
    return Status(opened.manifest, layout.count, len(finished), layout.total_pairs, done, find_owner(files))


@dataclass(frozen=True)
class Findings:
    """The damaged parts of a store: metadata files, panels of images (set, number), and tiles."""

    metadata: tuple[str, ...]
    images: tuple[tuple[str, int], ...]
    tiles: tuple[Tile, ...]
    tiles_checked: int

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.metadata or self.images or self.tiles)

    @property
    def bad(self) -> list[str]:
        """A text for each damaged part."""
        images = [f"panel {panel} of the images {name}" for name, panel in self.images]
        return [*self.metadata, *images, *(f"tile {tile}" for tile in self.tiles)]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "good": self.good}


def verify(store: Address, *, storage_options: StorageOptions | None = None) -> Findings:
    """Check every byte of a store: metadata, images and tiles. A tile that is not computed yet is not a fault.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.ones((20, 5)), store=f"{folder.name}/k.zarr", backend="reference", tile=8)
    >>> verify(f"{folder.name}/k.zarr").good
    True
    """
    files = find_files(store, storage_options)
    return _examine(Store(files, recover_manifest(files)))


def repair(
    store: Address,
    X: Any = None,
    Z: Any = None,
    *,
    storage_options: StorageOptions | None = None,
    force_unlock: bool = False,
    **options: Unpack[Options],
) -> Findings:
    """Repair a store and return what was damaged. Damaged tiles are computed again; all others stay as they are.

    The data are needed only if the store's own copy of them is damaged. The options are `Options`.

    >>> import pathlib, tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.ones((20, 5)), store=f"{folder.name}/k.zarr", backend="reference", tile=8)
    >>> _ = pathlib.Path(folder.name, "k.zarr/kernel/c/0/1").write_bytes(b"nonsense")
    >>> repair(f"{folder.name}/k.zarr").tiles, verify(f"{folder.name}/k.zarr").good
    (((0, 1),), True)
    """
    files = find_files(store, storage_options)
    manifest = recover_manifest(files)
    continuing = _continuing(files, manifest, **options)  # checks the names of options now; the rest runs on entry
    images = {} if X is None else _load_same_images(manifest, X, Z)
    found = _examine(Store(files, manifest))
    if found.good:  # needs no lock, so a read-only store can be checked
        return found
    with _explain_failure(files, found), hold(files, force=force_unlock) as check:
        found = _examine(Store(files, manifest))
        if any(name not in images for name, _ in found.images):
            names = ", ".join(f"panel {panel} of {name.upper()}" for name, panel in found.images)
            raise StoreDamagedError(f"the images kept in {files.address} are damaged, {names}: give the data to repair")
        _write_inputs(files, manifest, images)
        if found.tiles:
            with continuing as run:
                run.compute(_write_inputs(files, run.continued(files, manifest), {}), found.tiles, check)
    return found


@dataclass(frozen=True)
class _Run:
    """The engine, the kernel and the options of one call."""

    engine: Local | Cluster
    kernel: Kernel
    memory: int | str | None
    progress: ProgressOption
    mixed: bool

    def __post_init__(self) -> None:
        check_option(self.progress)

    @property
    def budget(self) -> int:
        """The memory budget of a process, in bytes."""
        return self.engine.memory if self.memory is None else parse_memory(self.memory)

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of the manifest that, besides data and precision, determine the bits of the entries."""
        leaves, name = list(self.kernel.leaves()), self.engine.device.name
        parts = ["vectors" if isinstance(leaf.core, VectorKernel) and name != "cuda" else name for leaf in leaves]
        return {
            "kernel": repr(self.kernel),
            "architectures": tuple(leaf.definition for leaf in leaves),
            "backend": name,
            "arithmetic": tuple(ARITHMETIC.get(part, 1) for part in parts),  # 1 for backends of the user
        }

    def bits(self, stored: Manifest | None) -> tuple[str, ...]:
        """The fingerprints of processors that may compute: all with `mixed`, otherwise one, preferably of the store."""
        found = self.engine.bits
        if self.mixed:
            return found
        known = tuple(one for one in found if stored is not None and has_bits(stored.bits, one))
        return (known or found)[:1]

    def continued(self, files: Files, stored: Manifest) -> Manifest:
        """The stored manifest, checked against this run's processors; with `mixed` their fingerprints are added."""
        return require_match(stored, replace(stored, bits=self.bits(stored)), files.address, mixed=self.mixed)

    def describe(self, images: Images, preprocessing: str, tile: int | None) -> Manifest:
        """The manifest of a new store."""
        from .. import __version__

        x, z = images["x"], images.get("z")
        shape, size = x.shape[1:], (len(x), len(x if z is None else z))
        if tile is None:
            tile = choose_tile(self.kernel, shape, size, self.engine.device.name, self.budget)
        elif not is_whole(tile) or tile < 1:
            raise ParameterError(f"tile is a whole number of rows, at least 1, not {tile!r}")
        plan_memory(self.kernel, shape, tile, self.budget)
        return Manifest(
            **self.identity,
            preprocessing=preprocessing,
            x=Data.of(x),
            z=None if z is None else Data.of(z),
            precision=self.engine.device.precision,
            tile=int(tile),
            package=__version__,
        )

    def compute(
        self, store: Store, tiles: Collection[Tile] | None, check: Callable[[], None], read: ReadPanel | None = None
    ) -> None:
        """Compute tiles into the store: the given ones, or all that are missing."""
        job = Job(store, self.kernel, self.engine.device, self.budget, read)
        layout, finished = store.layout, store.finished()
        wanted = set(layout.tiles()) - finished if tiles is None else set(tiles)
        ordered = [tile for tile in layout.tiles(job.panels_kept) if tile in wanted]
        if ordered:
            before = finished - wanted
            known = sum(pairs for _, pairs in ahead(store.known_pairs, filter(store.was_cut, ordered), store.at_once))
            pairs = sum(layout.pairs(*tile) for tile in before) + known
            with metered(Snapshot(len(before), layout.count, pairs, layout.total_pairs), self.progress) as meter:
                self.engine.compute(job, ordered, meter, check)
            there = store.files.sizes("kernel/c")
            if gone := [tile for tile in ordered if tile_name(tile) not in there]:
                raise StoreWriteError(
                    f"{len(gone)} tiles, such as {gone[0]}, were written to {store.files.address} and are gone: "
                    "something else removes files there. Run the same call again once it is stopped"
                )


@contextlib.contextmanager
def _continuing(
    files: Files,
    manifest: Manifest,
    mixed: bool = False,
    kernel: AnyKernel | None = None,
    backend: str | AnyDevice | None = None,
    n_jobs: int | None = None,
    memory: int | str | None = None,
    scheduler: Any = None,
    progress: ProgressOption = True,
) -> Iterator[_Run]:
    """A run with the arguments that continue a store; raises `StoreMismatchError` if they do not match its manifest."""
    kernel = read_kernel(manifest.kernel) if kernel is None else kernel_of(kernel)
    choose = functools.partial(Device.of, backend or manifest.backend, cast(Precision, manifest.precision), n_jobs)
    with find_engine(scheduler, choose, functools.partial(fingerprint, kernel, manifest.x.shape[1:])) as engine:
        run = _Run(engine, kernel, memory, progress, mixed)
        require_match(manifest, replace(manifest, **run.identity), files.address)
        yield run


def _finished(files: Files, manifest: Manifest) -> Store | None:
    """The store if all tiles are computed, otherwise None. A finished store needs no lock, and may be read-only."""
    store = Store(files, manifest)
    return store if len(store.finished()) == store.layout.count else None


@contextlib.contextmanager
def _explain_failure(files: Files, found: Findings) -> Iterator[None]:
    """Add the damaged parts to errors of writing a repair."""
    try:
        yield
    except (StoreAccessError, StoreWriteError) as error:
        damage = ", ".join(found.bad[:3]) + (f" and {len(found.bad) - 3} more" if len(found.bad) > 3 else "")
        raise type(error)(f"{files.address} was not repaired, and {damage} stay damaged: {error}") from error


def _write_inputs(files: Files, manifest: Manifest, images: Images) -> Store:
    """Write missing images and metadata, and remove unfinished files. The caller must hold the lock."""
    files.clean()
    store = Store(files, manifest)
    for name, values in images.items():
        store.write_images(name, values)
    write_metadata(files, manifest)
    return store


def _load_images(X: Any, Z: Any) -> Images:
    """X and Z as checked NumPy arrays, by the names "x" and "z"."""
    x, z, *_ = take_pair(X, Z, on_gpu=False)
    return {"x": x} if z is None else {"x": x, "z": z}


def _load_same_images(manifest: Manifest, X: Any, Z: Any) -> Images:
    """The same, but raises unless they are the images of the store."""
    images = _load_images(X, Z)
    for name, data in manifest.sets.items():
        if name in images and Data.of(images[name]) != data:
            raise StoreMismatchError(
                f"{name.upper()} is not the data this store was made from: its hash differs; give that data"
            )
    return images


def _examine(store: Store) -> Findings:
    """Read and check all files of a store."""
    manifest = store.manifest
    panels = [(name, panel) for name in manifest.sets for panel in range(store.panels(name))]
    there = store.files.sizes("kernel/c")
    tiles = [tile for tile in store.layout.tiles() if tile_name(tile) in there]

    images_read = ahead(lambda panel: try_read(store.read_images, *panel) is not None, panels, store.files.concurrency)
    tiles_read = ahead(lambda tile: try_read(store.read_tile, tile) is not None, tiles, store.at_once)
    return Findings(
        metadata=tuple(damaged_metadata(store.files, manifest)),
        images=tuple(panel for panel, good in images_read if not good),
        tiles=tuple(tile for tile, good in tiles_read if not good),
        tiles_checked=len(tiles),
    )
