"""`tangentless gram`: start, watch, check and repair kernel matrices in stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from ..answers import Answer, answers_json, print_json, sharing
from ..errors import ParameterError
from ..expression import kernel_of_text
from ..files import load_array
from ..options import BackendOption, JobsOption, KernelArgument, PrecisionOption, SymmetryOption, symmetrized
from . import run as stores
from .matrix import GramMatrix

app = typer.Typer(help="Kernel matrices in stores: start, resume, watch, check and repair them.", no_args_is_help=True)

StoreArgument = Annotated[str, typer.Argument(help="Path or fsspec address of the store, such as k.zarr or s3://b/k.")]
StorageOption = Annotated[
    list[str] | None, typer.Option("--storage", help="NAME=VALUE for fsspec, such as endpoint_url=...; repeatable.")
]


def _computing(
    jobs: JobsOption = None,
    memory: Annotated[
        str | None, typer.Option(help="What a process may hold, such as 4GB; a quarter by default.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler; in this process by default.")
    ] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="Continue on a processor that rounds differently.")] = False,
    force_unlock: Annotated[
        bool, typer.Option("--force-unlock", help="Break the lock of a writer that is gone.")
    ] = False,
    storage: StorageOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, as it goes.")] = False,
) -> dict[str, Any]:
    """The options that all computing commands share, as keyword arguments for the functions of `run`."""
    about = {"n_jobs": jobs, "memory": memory, "scheduler": scheduler, "mixed": mixed, "force_unlock": force_unlock}
    return {**about, "storage_options": _options(storage), "progress": "json" if as_json else True}


@app.command()
@sharing(_computing)
def run(
    architecture: KernelArgument,
    data: Annotated[str, typer.Argument(help="Images: a .npy file, or FILE.npz:NAME.")],
    store: StoreArgument,
    others: Annotated[str | None, typer.Option(help="A second set of images, for k(X, Z).")] = None,
    mirrored: Annotated[bool, typer.Option(help="The same as --symmetry mirror.")] = False,
    symmetry: SymmetryOption = "",
    preprocessing: Annotated[str, typer.Option(help="What was done to the data, in your words.")] = "",
    extend: Annotated[
        bool, typer.Option(help="Allow more rows than the store has: compute only the new ones.")
    ] = False,
    backend: BackendOption = "auto",
    precision: PrecisionOption = "float32",
    tile: Annotated[int | None, typer.Option(help="Rows of a tile; chosen from the work by default.")] = None,
    **how: Any,
) -> None:
    """Compute a kernel matrix into a store, or continue one that was interrupted."""
    k = symmetrized(kernel_of_text(architecture), symmetry, mirrored)
    how |= {"preprocessing": preprocessing, "extend": extend, "tile": tile}
    how |= {"backend": backend, "precision": precision}
    _print_done(stores.gram(k, _load(data), _load(others), store=store, **how), how)


@app.command()
@sharing(_computing)
def resume(store: StoreArgument, **how: Any) -> None:
    """Continue a store without the data: it holds its images and names its kernel."""
    _print_done(stores.resume(store, **how), how)


@app.command()
@answers_json
def status(store: StoreArgument, storage: StorageOption = None) -> Answer:
    """Show the kernel and data of a store, how much of it is computed, and who is writing it."""
    found = stores.status(store, storage_options=_options(storage))
    print(_status_text(found))
    return found.to_json()


@app.command()
@answers_json
def verify(store: StoreArgument, storage: StorageOption = None) -> Answer:
    """Check every byte of a store; the exit status is 1 if something is wrong."""
    found = stores.verify(store, storage_options=_options(storage))
    print(_findings_text(found, "is damaged"))
    return found.to_json()


@app.command()
@sharing(_computing)
def repair(
    store: StoreArgument,
    data: Annotated[str | None, typer.Option(help="The images; needed only if the store's copy is damaged.")] = None,
    others: Annotated[str | None, typer.Option(help="The second set of images, likewise.")] = None,
    **how: Any,
) -> None:
    """Check every byte of a store and compute again what is damaged; nothing else is touched."""
    found = stores.repair(store, _load(data), _load(others), **how)
    _print(found.to_json(), _findings_text(found, "was repaired"), how)


def _load(source: str | None) -> NDArray[Any] | None:
    return None if source is None else load_array(source, mapped=True)


def _options(given: list[str] | None) -> dict[str, Any]:
    parts = [one.partition("=") for one in given or []]
    if any(not separator for _, separator, _ in parts):
        raise ParameterError("--storage takes NAME=VALUE, such as endpoint_url=http://127.0.0.1:5000")
    return {name: _option(value) for name, _, value in parts}


def _option(text: str) -> Any:
    """true, false and {...} are read as JSON; everything else stays text, because access keys may look like numbers."""
    if text in ("true", "false") or text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise ParameterError("--storage takes NAME={...} only if the braces hold JSON") from None
    return text


def _print_done(matrix: GramMatrix, how: Mapping[str, Any]) -> None:
    _print({"event": "done", "store": matrix.store.files.address, "shape": matrix.shape}, str(matrix), how)


def _print(answer: Answer, text: str, how: Mapping[str, Any]) -> None:
    """Print the result as JSON if progress was printed so, otherwise as text."""
    if how["progress"] == "json":
        print_json(answer)
    else:
        print(text)


def _status_text(found: stores.Status) -> str:
    manifest = found.manifest
    numbers = ", ".join(map(str, sorted(set(manifest.arithmetic))))
    lines = {
        "kernel": manifest.kernel,
        "shape": " × ".join(map(str, manifest.shape)) + (" symmetric" if manifest.symmetric else ""),
        "preprocessing": manifest.preprocessing or "not stated",
        "arithmetic": f"{manifest.backend} {numbers}, {manifest.precision}",
        "bits": ", ".join(manifest.bits) or "not recorded",
        "tiles": f"{found.tiles_done:,} of {found.tiles:,}, {manifest.tile} rows each",
        "pairs": f"{found.pairs_done:,} of {found.pairs:,}, {100 * found.pairs_done / found.pairs:.1f} %",
        "state": "complete" if found.complete else f"being written by {found.writer}" if found.writer else "stopped",
    }
    return "\n".join(f"{name:<14} {value}" for name, value in lines.items())


def _findings_text(found: stores.Findings, verdict: str) -> str:
    lines = [f"{name} {verdict}" for name in found.bad]
    return "\n".join([*lines, f"{found.tiles_checked:,} tiles checked, {len(lines)} bad"])
