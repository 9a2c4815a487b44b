"""The manifest: which matrix a store holds, and the metadata files that are derived from it.

The manifest names the kernel, the preprocessing, the data (by hash), the arithmetic and the tile size, and has a
checksum of its own. A store is only continued with an equal manifest; otherwise an error says what differs. The
metadata files make the store a Zarr (v3) group with the arrays `kernel`, `x` and, for two sets of images, `z`. Their
bytes depend on the manifest alone: to check a file is to compare bytes, and to repair it is to write it again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..chunks import ahead
from ..errors import (
    NotAStoreError,
    ParameterError,
    StoreDamagedError,
    StoreError,
    StoreMismatchError,
    StoreVersionError,
)
from .files import Files

FORMAT = 2  # 1: stores of version 0.1.0, whose manifest has no `arithmetic`; theirs is 1
GROUP, COPY = "zarr.json", "kernel/manifest.json"  # the manifest is kept twice
_ATTRIBUTE = "tangentless"
_OURS = {GROUP, "kernel", "x", "z"}  # top-level names of a store
_NOT_COMPARED = {"package", "grown_from", "format"}  # fields that may differ when a store is continued
_HASHED_AT_ONCE = 32 << 20  # bytes


@dataclass(frozen=True)
class Data:
    """A set of images: its hash, shape and dtype."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, images: NDArray[Any]) -> Data:
        """Describe an array.

        >>> Data.of(np.zeros((3, 8, 8, 1), np.float32)).shape
        (3, 8, 8, 1)
        """
        return cls(hash_rows(images, len(images)), images.shape, images.dtype.name)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of its bytes in a store."""
        return np.dtype(self.dtype).newbyteorder("<")


@dataclass(frozen=True)
class Manifest:
    """Everything that the entries of a store depend on, and two notes, `package` and `grown_from`.

    `arithmetic` has a number for each of `architectures`, from `tangentless.backends.ARITHMETIC`. `bits` are the
    fingerprints of the processors that computed entries: several only if `mixed` allowed it, none in stores of earlier
    versions. `package` is the version that began the store. `grown_from` are the numbers of rows that a symmetric
    matrix had before it was extended.

    >>> data = Data("00", (3, 2), "float64")
    >>> manifest = Manifest("k", ("relu",), "", data, None, "cpu", "float32", 16, "0.2.0", (1,))
    >>> Manifest.from_json(manifest.to_json(), "k.zarr") == manifest
    True
    """

    kernel: str
    architectures: tuple[str, ...]
    preprocessing: str
    x: Data
    z: Data | None
    backend: str
    precision: str
    tile: int
    package: str
    arithmetic: tuple[int, ...]
    grown_from: tuple[int, ...] = ()
    format: int = FORMAT
    bits: tuple[str, ...] = ()

    @property
    def symmetric(self) -> bool:
        """Whether this is the matrix of one set of images."""
        return self.z is None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.x.shape[0], (self.z or self.x).shape[0]

    @property
    def sets(self) -> dict[str, Data]:
        """The sets of images, by the names of their arrays in the store."""
        return {"x": self.x} if self.z is None else {"x": self.x, "z": self.z}

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the checksum."""
        values = asdict(self)
        if self.format == 1:  # the bytes that version 0.1.0 wrote
            del values["arithmetic"]
        if not self.bits:
            del values["bits"]
        return {**values, "checksum": _checksum(values)}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Manifest:
        """Read a manifest; raises unless its checksum is right and its format is known. `where` names it in errors."""
        if not isinstance(values, dict) or values.get("checksum") != _checksum(values):
            raise StoreDamagedError(f"{where} is damaged, its checksum is wrong: run repair")
        if values["format"] > FORMAT:
            raise StoreVersionError(
                f"{where} has format {values['format']}, written by tangentless {values.get('package')}; "
                f"this version reads formats up to {FORMAT}: upgrade it"
            )
        known = _with_tuples(values)
        del known["checksum"]
        if known["format"] == 1:
            known["arithmetic"] = (1,) * len(known["architectures"])
        known |= {name: Data(**_with_tuples(known[name])) if known[name] else None for name in ("x", "z")}
        return cls(**known)

    def grown_to(self, x: Data) -> Manifest:
        """The manifest of the matrix after it was extended to a longer X."""
        return replace(self, x=x, grown_from=(*self.grown_from, self.x.shape[0]))


# Comparing a stored manifest with a given one


def resolve(
    files: Files,
    given: Manifest,
    x: NDArray[Any],
    *,
    extend: bool = False,
    tile: int | None = None,
    mixed: bool = False,
) -> Manifest:
    """The manifest to continue with: the given one for a new store, otherwise the stored one, extended with `extend`.

    Raises `StoreMismatchError` if the stored one does not match the given one.
    """
    if extend and given.z is not None:
        raise ParameterError(
            "only the matrix of X with itself can be extended; for new rows of k(X, Z) start a new store"
        )
    if is_vacant(files):
        for folder in {"x", "z"} & files.entries():  # images of an interrupted start, perhaps of other data
            for name in files.sizes(folder):
                files.remove(name)
        return given
    stored = read_manifest(files)
    longer = stored.symmetric and given.symmetric and _is_extended_by(stored.x, given.x, x)
    if longer and extend:
        stored = stored.grown_to(given.x)
    hint = "The first rows are the same: to add the new ones, pass extend=True. " if longer and not extend else ""
    if extend and not longer and stored.x != given.x:
        hint = "X can be extended only if it begins with the rows that are stored. "
    return require_match(stored, replace(given, tile=tile or stored.tile), files.address, hint, mixed=mixed)


def require_match(stored: Manifest, given: Manifest, where: str, hint: str = "", *, mixed: bool = False) -> Manifest:
    """The stored manifest, which must match the given one; `mixed` adds the `bits` of the given one to it.

    Raises `StoreMismatchError` otherwise.
    """
    if mixed:
        stored = replace(stored, bits=(*stored.bits, *(one for one in given.bits if not has_bits(stored.bits, one))))
    found = list(differences(stored, given))
    if not found:
        return stored
    remedy = "Call it with the arguments that made the store, or start a new store."
    if found == list(_other_bits(stored, given)):
        remedy = (
            "Continue it on a processor like the first, or pass mixed=True: its tiles then differ by rounding "
            "errors, which are no larger than those of any entry."
        )
    elif _new_arithmetic(stored, given):
        remedy = (
            f"Continue it with tangentless {stored.package}, which began it, or start a new store. "
            "Its finished tiles can be read and verified with this version too."
        )
    raise StoreMismatchError(f"{where} cannot be continued: {'; '.join(found)}. {hint}{remedy}")


def differences(stored: Manifest, given: Manifest) -> Iterator[str]:
    """Yield a text for every difference between two manifests.

    >>> data = Data("00", (3, 2), "float64")
    >>> stored = Manifest("k", ("relu",), "", data, None, "cpu", "float32", 16, "0.1.0", (1,))
    >>> list(differences(stored, replace(stored, precision="float64", arithmetic=(2,))))
    ["precision is 'float32' in the store, 'float64' now", "the arithmetic of 'cpu' is 1 in the store, 2 now"]
    """
    for field in fields(Manifest):
        before, after = getattr(stored, field.name), getattr(given, field.name)
        name = {"x": "X", "z": "Z"}.get(field.name, field.name)
        if before == after or field.name in _NOT_COMPARED:
            continue
        if field.name == "bits":
            yield from _other_bits(stored, given)
        elif field.name == "arithmetic":
            if _new_arithmetic(stored, given):
                old, new = (", ".join(map(str, numbers)) for numbers in (before, after))
                yield f"the arithmetic of {stored.backend!r} is {old} in the store, {new} now"
        elif isinstance(before, Data) and isinstance(after, Data):
            for part in fields(Data):
                old, new = getattr(before, part.name), getattr(after, part.name)
                if old != new:
                    yield f"the {part.name} of {name} is {old!r} in the store, {new!r} now"
        else:
            yield f"{name} is {before!r} in the store, {after!r} now"


def has_bits(bits: Collection[str], one: str) -> bool:
    """Whether the hash of a fingerprint is among those of others; names of processors do not count.

    >>> has_bits(("01ab (x86_64 znver4)",), "01ab (x86_64 icelake-server)")
    True
    """
    return one.partition(" ")[0] in {known.partition(" ")[0] for known in bits}


def _other_bits(stored: Manifest, given: Manifest) -> Iterator[str]:
    """Yield a text if the given manifest has fingerprints that the stored one lacks."""
    new = [one for one in given.bits if stored.bits and not has_bits(stored.bits, one)]
    if new:
        yield f"this processor rounds differently: its bits are {', '.join(new)}, those in the store {stored.bits[0]}"


def _new_arithmetic(stored: Manifest, given: Manifest) -> bool:
    """Whether the backend's arithmetic has changed since the store was begun, for the same kernel and backend."""
    same = stored.architectures == given.architectures and stored.backend == given.backend
    return same and stored.arithmetic != given.arithmetic


def _is_extended_by(stored: Data, given: Data, x: NDArray[Any]) -> bool:
    """Whether X begins with the stored images and has more rows."""
    rows = stored.shape[0]
    alike = stored.dtype == given.dtype and stored.shape[1:] == given.shape[1:]
    return alike and len(x) > rows and hash_rows(x, rows) == stored.sha256


def hash_rows(images: NDArray[Any], count: int) -> str:
    """SHA-256 of the first rows, as little-endian bytes in C order.

    >>> X = np.arange(6.0).reshape(3, 2)
    >>> hash_rows(X, 2) == hash_rows(X[:2], 2) != hash_rows(X, 3)
    True
    """
    digest = hashlib.sha256()
    step = max(1, _HASHED_AT_ONCE // max(1, images[:1].nbytes))
    for start in range(0, count, step):
        rows = images[start : min(start + step, count)]
        little = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
        digest.update(cast(Any, little.reshape(-1).view(np.uint8)))
    return digest.hexdigest()


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _checksum(values: dict[str, Any]) -> str:
    """The hash of all values but the checksum, including unknown ones of later formats."""
    others = {name: value for name, value in values.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


# Metadata files


def render(manifest: Manifest) -> dict[str, bytes]:
    """All metadata files by name, in the order of writing. The store exists once the last one does.

    >>> data = Data("00", (3, 2), "uint8")
    >>> list(render(Manifest("k", ("relu",), "", data, None, "cpu", "float32", 16, "0.2.0", (1,))))
    ['kernel/manifest.json', 'kernel/zarr.json', 'x/zarr.json', 'zarr.json']
    """
    values = manifest.to_json()
    tile = (manifest.tile, manifest.tile)
    files = {COPY: values, "kernel/zarr.json": _array(manifest.shape, tile, np.dtype("<f8"), "NaN")}
    for name, data in manifest.sets.items():
        files[f"{name}/zarr.json"] = _array(
            data.shape, (manifest.tile, *data.shape[1:]), data.stored_dtype, False if data.dtype == "bool" else 0
        )
    files[GROUP] = {"zarr_format": 3, "node_type": "group", "attributes": {_ATTRIBUTE: values}}
    return {name: json.dumps(content, indent=1).encode() for name, content in files.items()}


def recover_manifest(files: Files) -> Manifest:
    """The manifest, from its second copy if the first is damaged."""
    try:
        return read_manifest(files)
    except StoreDamagedError:
        return read_manifest(files, COPY)


def damaged_metadata(files: Files, manifest: Manifest) -> list[str]:
    """The metadata files that are missing or wrong."""
    expected = render(manifest)
    found = ahead(functools.partial(_read, files), expected, files.concurrency)
    return [name for name, data in found if data != expected[name]]


def write_metadata(files: Files, manifest: Manifest) -> None:
    """Write the metadata files that are missing or wrong; that of the group last, after all others."""
    content, wanted = render(manifest), damaged_metadata(files, manifest)
    for part in ([name for name in wanted if name != GROUP], [name for name in wanted if name == GROUP]):
        for _ in ahead(lambda name: files.write(name, content[name]), part, files.concurrency):
            pass


def is_vacant(files: Files) -> bool:
    """Whether a new store can be started here: the place is empty, or has the rest of an interrupted start.

    Raises if something else is there.
    """
    entries = files.entries()
    if GROUP in entries:
        return False
    if entries - _OURS:
        raise NotAStoreError(
            f"{files.address} holds something else, such as {min(entries - _OURS)!r}; give an address of its own"
        )
    if "kernel" in entries and files.sizes("kernel/c"):
        raise StoreDamagedError(f"{files.address} has tiles, but {GROUP} is missing: run repair")
    return True


def read_manifest(files: Files, name: str = GROUP) -> Manifest:
    """The manifest from one of its copies, whose bytes must be exactly those that `render` makes of it.

    Opening a store reads no other metadata file, so an extension takes effect when this one file is replaced.
    """
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
    """The bytes of a file, or None if there is none."""
    try:
        return files.read(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {name} of {files.address}: {error.strerror}") from error


def _array(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype[Any], fill: Any) -> dict[str, Any]:
    """The metadata of a Zarr array whose chunks end with a CRC-32C."""
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
