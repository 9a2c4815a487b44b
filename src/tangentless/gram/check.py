"""Looking after a store: how far it is, whether every byte is right, and making it right again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..backends import Backend
from ..errors import StoreDamagedError, StoreIncompleteError, StoreMismatchError
from ..kernel import Kernel
from .files import find_files
from .lock import Owner, find_owner, hold
from .manifest import Data, Manifest
from .metadata import damaged_metadata, recover_manifest, sets
from .progress import ProgressOption
from .run import Address, Images, check_sets, keep, start
from .store import Store, Tile, tile_name


@dataclass(frozen=True)
class Status:
    """How far a store is, and who is writing it."""

    manifest: Manifest
    tiles: int
    tiles_done: int
    pairs: int
    pairs_done: int
    writer: Owner | None

    @property
    def complete(self) -> bool:
        """Whether every tile is there."""
        return self.tiles_done == self.tiles

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "manifest": self.manifest.to_json(), "complete": self.complete}


@dataclass(frozen=True)
class Findings:
    """What is wrong with a store: names of metadata files, panels of images, and tiles."""

    metadata: tuple[str, ...]
    images: tuple[tuple[str, int], ...]
    tiles: tuple[Tile, ...]
    tiles_checked: int

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.metadata or self.images or self.tiles)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "good": self.good}


def status(store: Address) -> Status:
    """How far a store is.

    >>> import tempfile, numpy as np
    >>> from tangentless.gram import gram
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.ones((20, 5)), store=f"{folder.name}/k.zarr", backend="reference", tile=8)
    >>> found = status(f"{folder.name}/k.zarr")
    >>> found.tiles_done, found.tiles, found.complete
    (6, 6, True)
    """
    files = find_files(store)
    opened = Store.open(files)
    layout, finished = opened.layout, opened.finished()
    done = sum(layout.pairs(*tile) for tile in finished)
    return Status(opened.manifest, layout.count, len(finished), layout.total_pairs, done, find_owner(files))


def verify(store: Address) -> Findings:
    """Check every byte of a store: metadata, images and tiles. Tiles that are not there yet are no fault.

    >>> import tempfile, numpy as np
    >>> from tangentless.gram import gram
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.ones((20, 5)), store=f"{folder.name}/k.zarr", backend="reference", tile=8)
    >>> verify(f"{folder.name}/k.zarr").good
    True
    """
    files = find_files(store)
    return _examine(Store(files, recover_manifest(files)))


def repair(
    store: Address,
    X: Any = None,
    Z: Any = None,
    *,
    kernel: Kernel | None = None,
    backend: str | Backend | None = None,
    n_jobs: int | None = None,
    memory: int | str | None = None,
    scheduler: Any = None,
    progress: ProgressOption = True,
) -> Findings:
    """Make a store right again, and say what was wrong: damaged tiles are computed anew, all else stays as it is.

    The data is needed only if the store's own copy of it is damaged.

    >>> import pathlib, tempfile, numpy as np
    >>> from tangentless.gram import gram
    >>> folder = tempfile.TemporaryDirectory()
    >>> K = gram("normalize relu", np.ones((20, 5)), store=f"{folder.name}/k.zarr", backend="reference", tile=8)
    >>> _ = pathlib.Path(folder.name, "k.zarr/kernel/c/0/1").write_bytes(b"nonsense")
    >>> repair(f"{folder.name}/k.zarr").tiles, verify(f"{folder.name}/k.zarr").good
    (((0, 1),), True)
    """
    files = find_files(store)
    manifest = recover_manifest(files)
    images = {} if X is None else _same_images(manifest, X, Z)
    with hold(files) as check:
        found = _examine(Store(files, manifest))
        if any(name not in images for name, _ in found.images):
            names = ", ".join(f"panel {panel} of {name.upper()}" for name, panel in found.images)
            raise StoreDamagedError(f"the images kept in {files.address} are damaged, {names}: give the data to repair")
        mended = keep(files, manifest, images)
        if found.tiles:
            with start(manifest, kernel, backend, n_jobs, memory, scheduler, progress) as run:
                run.compute(mended, found.tiles, check)
    return found


def _examine(store: Store) -> Findings:
    manifest = store.manifest
    panels = [(name, panel) for name in sets(manifest) for panel in range(store.panels(name))]
    there = store.files.sizes("kernel/c")
    tiles = [tile for tile in store.layout.tiles() if tile_name(tile) in there]
    return Findings(
        metadata=tuple(damaged_metadata(store.files, manifest)),
        images=tuple(panel for panel in panels if _is_damaged(store.read_images, *panel)),
        tiles=tuple(tile for tile in tiles if _is_damaged(store.read_unfinished_tile, tile)),
        tiles_checked=len(tiles),
    )


def _is_damaged(read: Any, *where: Any) -> bool:
    try:
        read(*where)
    except (StoreDamagedError, StoreIncompleteError):
        return True
    return False


def _same_images(manifest: Manifest, X: Any, Z: Any) -> Images:
    images = check_sets(X, Z)
    for name, data in sets(manifest).items():
        if name in images and Data.of(images[name]) != data:
            raise StoreMismatchError(f"{name.upper()} is not the data this store was made from: its hash differs")
    return images
