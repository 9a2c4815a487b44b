"""`tangentless gram`: start, watch, check and repair kernel matrices in stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from ..backends import Precision
from ..errors import InputError
from ..kernel import kernel
from . import run as stores
from .matrix import GramMatrix
from .progress import ProgressOption

app = typer.Typer(help="Kernel matrices in stores: start, resume, watch, check and repair them.", no_args_is_help=True)

StoreArgument = Annotated[str, typer.Argument(help="Path or fsspec address of the store, such as k.zarr or s3://b/k.")]
DataArgument = Annotated[str, typer.Argument(help="Images: a .npy file, or FILE.npz:NAME.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", help="Threads; all cores by default.")]
MemoryOption = Annotated[str | None, typer.Option(help="What a process may hold, such as 4GB; a quarter by default.")]
SchedulerOption = Annotated[str | None, typer.Option(help="Address of a Dask scheduler; in this process by default.")]


@app.command()
def run(
    architecture: Annotated[str, typer.Argument(help="A name such as myrtle10-gaussian, or a list of layers.")],
    data: DataArgument,
    store: StoreArgument,
    others: Annotated[str | None, typer.Option(help="A second set of images, for k(X, Z).")] = None,
    mirrored: Annotated[bool, typer.Option(help="Average over mirror images.")] = False,
    preprocessing: Annotated[str, typer.Option(help="What was done to the data, in your words.")] = "",
    extend: Annotated[
        bool, typer.Option(help="Allow more rows than the store has: compute only the new ones.")
    ] = False,
    backend: Annotated[str, typer.Option(help="auto, cpu, cuda or reference.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32 or float64, up to the last pool.")] = "float32",
    tile: Annotated[int | None, typer.Option(help="Rows of a tile; chosen from the work by default.")] = None,
    jobs: JobsOption = None,
    memory: MemoryOption = None,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute a kernel matrix into a store, or continue one after whatever stopped it."""
    base = kernel(architecture)
    matrix = stores.gram(
        base.mirrored() if mirrored else base,
        load(data),
        None if others is None else load(others),
        store=store,
        preprocessing=preprocessing,
        extend=extend,
        backend=backend,
        precision=cast(Precision, precision),
        n_jobs=jobs,
        tile=tile,
        memory=memory,
        scheduler=scheduler,
        progress=_progress(as_json),
    )
    _print_done(matrix, as_json)


@app.command()
def resume(
    store: StoreArgument,
    jobs: JobsOption = None,
    memory: MemoryOption = None,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a store from itself alone: it holds its images and names its kernel."""
    matrix = stores.resume(store, n_jobs=jobs, memory=memory, scheduler=scheduler, progress=_progress(as_json))
    _print_done(matrix, as_json)


@app.command()
def status(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Show what a store is a matrix of, how far it is, and who is writing it."""
    found = stores.status(store)
    print(json.dumps(found.to_json()) if as_json else _status_text(found))


@app.command()
def verify(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Check every byte of a store; the exit status is 1 if something is wrong."""
    found = stores.verify(store)
    print(json.dumps(found.to_json()) if as_json else _findings_text(found, "is damaged"))
    if not found.good:
        raise typer.Exit(1)


@app.command()
def repair(
    store: StoreArgument,
    data: Annotated[str | None, typer.Option(help="The images; needed only if the store's copy is damaged.")] = None,
    others: Annotated[str | None, typer.Option(help="The second set of images, likewise.")] = None,
    jobs: JobsOption = None,
    memory: MemoryOption = None,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every byte of a store and compute again what is damaged; nothing else is touched."""
    found = stores.repair(
        store,
        None if data is None else load(data),
        None if others is None else load(others),
        n_jobs=jobs,
        memory=memory,
        scheduler=scheduler,
        progress=_progress(as_json),
    )
    print(json.dumps(found.to_json()) if as_json else _findings_text(found, "was repaired"))


def load(source: str) -> NDArray[Any]:
    """Images from a .npy file, which is not read whole, or from an archive, `FILE.npz:NAME`.

    >>> load("nowhere.npy")
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: cannot read images from nowhere.npy: No such file or directory
    """
    path, _, name = source.rpartition(":") if ".npz:" in source else (source, "", "")
    try:
        loaded = np.load(Path(path), mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        if name in loaded:
            return cast(NDArray[Any], loaded[name])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read images from {source}: {getattr(error, 'strerror', None) or error}") from None
    raise InputError(f"{path} is an archive of {', '.join(loaded)}; say which, as in {path}:{next(iter(loaded))}")


def _progress(as_json: bool) -> ProgressOption:
    return "json" if as_json else True


def _print_done(matrix: GramMatrix, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "done", "store": matrix.store.files.address, "shape": matrix.shape}))
    else:
        print(matrix)


def _status_text(found: stores.Status) -> str:
    manifest = found.manifest
    numbers = ", ".join(map(str, sorted(set(manifest.arithmetic))))
    lines = {
        "kernel": manifest.kernel,
        "shape": " × ".join(map(str, manifest.shape)) + (" symmetric" if manifest.symmetric else ""),
        "preprocessing": manifest.preprocessing or "not stated",
        "arithmetic": f"{manifest.backend} {numbers}, {manifest.precision}",
        "tiles": f"{found.tiles_done:,} of {found.tiles:,}, {manifest.tile} rows each",
        "pairs": f"{found.pairs_done:,} of {found.pairs:,}, {100 * found.pairs_done / found.pairs:.1f} %",
        "state": "complete" if found.complete else f"being written by {found.writer}" if found.writer else "stopped",
    }
    return "\n".join(f"{name:<14} {value}" for name, value in lines.items())


def _findings_text(found: stores.Findings, verdict: str) -> str:
    bad = [*found.metadata, *(f"panel {panel} of the images {name}" for name, panel in found.images)]
    bad += [f"tile {tile}" for tile in found.tiles]
    return "\n".join([*(f"{name} {verdict}" for name in bad), f"{found.tiles_checked:,} tiles checked, {len(bad)} bad"])
