"""The metadata files of a store: a Zarr (v3) group with the arrays `kernel`, `x` and, for two sets, `z`.

All of them are functions of the manifest, which the group carries as its attribute, so checking one is comparing bytes
and mending one is writing it again. The manifest itself is kept twice. The group's own file is written last: with it,
the store exists.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from ..errors import NotAStoreError, StoreDamagedError, StoreError
from .files import Files
from .lock import find_owner
from .manifest import Data, Manifest

GROUP, COPY = "zarr.json", "kernel/manifest.json"
_ATTRIBUTE = "tangentless"
_MOMENT = 0.5
_OURS = {GROUP, "kernel", "x", "z"}


def render(manifest: Manifest) -> dict[str, bytes]:
    """All metadata files, by name, in the order in which they are written.

    >>> data = Data("00", (3, 2), "uint8")
    >>> list(render(Manifest("k", ("relu",), "", data, None, "cpu", "float32", 16, "0.1.0")))
    ['kernel/manifest.json', 'kernel/zarr.json', 'x/zarr.json', 'zarr.json']
    """
    values = manifest.to_json()
    tile = (manifest.tile, manifest.tile)
    files = {COPY: values, "kernel/zarr.json": _array(manifest.shape, tile, np.dtype("<f8"), "NaN")}
    for name, data in sets(manifest).items():
        files[f"{name}/zarr.json"] = _array(
            data.shape, (manifest.tile, *data.shape[1:]), data.stored_dtype, False if data.dtype == "bool" else 0
        )
    files[GROUP] = {"zarr_format": 3, "node_type": "group", "attributes": {_ATTRIBUTE: values}}
    return {name: json.dumps(content, indent=1).encode() for name, content in files.items()}


def sets(manifest: Manifest) -> dict[str, Data]:
    """The sets of images a store holds, by the names of their arrays."""
    return {"x": manifest.x} if manifest.z is None else {"x": manifest.x, "z": manifest.z}


def read_manifest(files: Files, *, derived: bool = True) -> Manifest:
    """The manifest of a store, every byte of it checked; with `derived`, so are the files that follow from it."""
    manifest = _read_one(files, GROUP)
    wrong = damaged_metadata(files, manifest) if derived else []
    if wrong and find_owner(files) is not None:  # an extension may be writing them at this moment
        time.sleep(_MOMENT)
        manifest = _read_one(files, GROUP)
        wrong = damaged_metadata(files, manifest)
    if wrong:
        raise StoreDamagedError(f"{', '.join(wrong)} of {files.address} is damaged or missing: run repair")
    return manifest


def recover_manifest(files: Files) -> Manifest:
    """The manifest from whichever of its two copies is whole."""
    try:
        return _read_one(files, GROUP)
    except StoreDamagedError:
        return _read_one(files, COPY)


def damaged_metadata(files: Files, manifest: Manifest) -> list[str]:
    """The metadata files that are not what they should be."""
    return [name for name, expected in render(manifest).items() if _read(files, name) != expected]


def write_metadata(files: Files, manifest: Manifest) -> None:
    """Write what is not there yet, or not right."""
    content = render(manifest)
    for name in damaged_metadata(files, manifest):
        files.write(name, content[name])


def is_vacant(files: Files) -> bool:
    """Whether a store may be started here: nothing is there, or only what a start that broke off has left."""
    entries = files.entries()
    if GROUP in entries:
        return False
    if entries - _OURS:
        raise NotAStoreError(
            f"{files.address} holds something else, such as {min(entries - _OURS)!r}; give an address of its own"
        )
    if files.sizes("kernel/c"):
        raise StoreDamagedError(f"{files.address} has tiles, but {GROUP} is missing: run repair")
    return True


def clear_leftovers(files: Files) -> None:
    """Remove what a start that broke off has left of its images, which may have been others."""
    for folder in ("x", "z"):
        for name in files.sizes(folder):
            files.remove(name)


def _read_one(files: Files, name: str) -> Manifest:
    """A manifest from one of its copies, which must be exactly what it renders to."""
    data, where = _read(files, name), f"{name} of {files.address}"
    if data is None and GROUP not in files.entries() and not files.sizes("kernel/c"):
        raise NotAStoreError(f"there is no store at {files.address}")
    try:
        values: Any = json.loads(data or b"")
    except ValueError:
        values = None
    if name == GROUP:
        attributes = values.get("attributes") if isinstance(values, dict) else None
        values = attributes.get(_ATTRIBUTE) if isinstance(attributes, dict) else None
        if values is None and _read(files, COPY) is None:
            raise NotAStoreError(f"{files.address} is not a store of this package")
    if values is None:
        raise StoreDamagedError(f"{where} is damaged or missing: run repair")
    manifest = Manifest.from_json(values, where)
    if data != render(manifest)[name]:
        raise StoreDamagedError(f"{where} is damaged: run repair")
    return manifest


def _read(files: Files, name: str) -> bytes | None:
    try:
        return files.read(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {name} of {files.address}: {error.strerror}") from error


def _array(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype[Any], fill: Any) -> dict[str, Any]:
    bytes_codec: dict[str, Any] = {"name": "bytes"}
    if dtype.itemsize > 1:
        bytes_codec["configuration"] = {"endian": "little"}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [bytes_codec, {"name": "crc32c"}],
        "attributes": {},
    }
