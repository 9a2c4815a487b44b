"""Arrays in and out of files.

Files that are read are checked and never unpickled. A file that is written gets a temporary name in the same folder and
is renamed when it is complete: readers see the old file or the whole new one, never a part.

An *archive* is the one format of models and checkpoints. It is an uncompressed .npz of named arrays and two texts:
`header`, a JSON object with the format, its version, the fields of the caller and a checksum of every array; and
`checksum`, that of the header. `load_archive` refuses everything that `save_archive` does not write, above all pickles
and compressed members, so a hostile file can neither run code nor unpack to more than its own length.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
import os
import secrets
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .errors import ArchiveDamagedError, ArchiveForeignError, ArchiveVersionError, InputError, TangentlessError

Arrays = dict[str, NDArray[Any]]
Header = dict[str, Any]

WINDOWS = os.name == "nt"
_PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0)  # seconds between attempts to rename a file that is open, on Windows
_ARRAY, _ARCHIVE = b"\x93NUMPY", b"PK"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


class OutputError(TangentlessError, OSError):
    """A file that cannot be written, or that exists already."""


def load_array(source: str | Path, key: str | None = None, *, mapped: bool = False) -> NDArray[Any]:
    """Load the array of a .npy file, or one array of a .npz file, whose name is given as `FILE.npz:NAME` or by `key`.

    A .npz file with a single array needs no name. With `mapped`, a .npy file is memory-mapped, read-only.

    >>> load_array("nowhere.npy")
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: cannot read nowhere.npy: No such file or directory
    """
    path, name = _split(str(source))
    name = name or key
    if Path(path).is_dir():
        raise InputError(
            f"{path} is a folder; give a .npy file, or FILE.npz:NAME; tangentless.datasets.from_folder reads one"
        )
    with _errors_naming(path):
        kind = _kind(path)
        if kind == "archive":
            return _load_member(path, name)
        if kind == "array":
            array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
            return array
        raise InputError("it is not a .npy or .npz file; write one with numpy.save")


def check_output(path: Path, *, force: bool = False, option: str = "force=True") -> None:
    """Raise `OutputError` before a long computation if its result could not be written, or a file is there already.

    `force` allows a file to be overwritten; `option` is how the message calls it.

    >>> check_output(Path("no/such/folder/K.npy"))
    Traceback (most recent call last):
        ...
    tangentless.files.OutputError: cannot write no/such/folder/K.npy: there is no folder no/such/folder
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
    if path.exists() and not force:
        raise OutputError(f"{path} is there already; choose another name, or overwrite it with {option}")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {path.parent} may not be written")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A stream for a file that appears at `path` when the block ends without an error, complete and flushed to disk.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_file(folder / "greeting") as stream:
    ...     _ = stream.write(b"hello")
    >>> [file.name for file in folder.iterdir()]
    ['greeting']
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        replace_file(beside, path)
        with contextlib.suppress(OSError):  # some file systems do not flush folders
            flush_folder(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file, atomically."""
    with atomic_file(path) as stream:
        np.save(stream, array, allow_pickle=False)


def save_archive(path: Path, kind: str, version: int, header: Header, arrays: Arrays) -> None:
    """Write an archive, atomically; `header` holds JSON values.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "state.npz"
    >>> save_archive(path, "example", 1, {"steps": 3}, {"found": np.zeros(2)})
    >>> header, arrays = load_archive(path, "example", 1)
    >>> header["steps"], arrays
    (3, {'found': array([0., 0.])})
    """
    if objects := [name for name, array in arrays.items() if array.dtype.hasobject]:
        raise OutputError(f"cannot write {path}: {', '.join(objects)} would need pickling")
    checksums = {name: checksum_of(array) for name, array in arrays.items()}
    text = json.dumps({"format": kind, "version": version} | header | {"checksums": checksums})
    marks = {"header": np.array(text), "checksum": np.array(hashlib.sha256(text.encode()).hexdigest())}
    with atomic_file(path) as stream:
        np.savez(stream, **(marks | arrays))  # type: ignore[arg-type]  # no array is named after its other parameters


def load_archive(
    path: str | Path, kind: str, newest: int, *, old: Callable[[Arrays], Header] | None = None
) -> tuple[Header, Arrays]:
    """Read and check an archive whose format is `kind` and whose version is at most `newest`; return header and arrays.

    `old` reads files from before `kind` used archives: it removes the header's fields from the arrays and returns them.

    >>> load_archive("nowhere.npz", "example", 1)
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: cannot read nowhere.npz: No such file or directory
    """
    path = Path(path)
    with _errors_naming(path):
        arrays = _members(path, kind)
        if old is not None and "checksum" not in arrays:
            return old(arrays), arrays
        text, mark = (_pop_text(arrays, name, kind) for name in ("header", "checksum"))
        header = _parse(text, kind, newest)
        if hashlib.sha256(text.encode()).hexdigest() != mark:
            raise ArchiveDamagedError("its header does not have the checksum that was saved with it")
        if header.get("checksums") != {name: checksum_of(array) for name, array in arrays.items()}:
            raise ArchiveDamagedError("its arrays do not have the checksums that were saved with them")
        return header, arrays


def checksum_of(array: NDArray[Any]) -> str:
    """SHA-256 of the dtype, shape and values of an array, as hexadecimal text."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _members(path: Path, kind: str) -> Arrays:
    """All arrays of an uncompressed .npz file."""
    with path.open("rb") as stream:
        start = stream.read(2)
        if start != _ARCHIVE:
            raise (ArchiveForeignError if start else ArchiveDamagedError)(f"it is not a .npz file, as every {kind} is")
        try:
            archive = zipfile.ZipFile(stream)
            _check_members(archive.infolist(), path.stat().st_size)
            return {one.filename.removesuffix(".npy"): _read_member(archive, one) for one in archive.infolist()}
        except InputError:
            raise
        except Exception as error:  # zipfile and NumPy raise errors of many types for malformed bytes
            raise ArchiveDamagedError(f"it is damaged or cut short ({error})") from None


def _pop_text(arrays: Arrays, name: str, kind: str) -> str:
    array = arrays.pop(name, None)
    if array is None or array.shape != () or array.dtype.kind != "U":
        raise ArchiveForeignError(f"it has no {name}, as every {kind} has")
    return str(array)


def _parse(text: str, kind: str, newest: int) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ArchiveDamagedError("its header is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != kind:
        raise ArchiveForeignError(f"it is not a {kind}: its header names another format")
    version = header.get("version")
    if not isinstance(version, int) or version < 1:
        raise ArchiveForeignError(f"it is a {kind} of version {version!r}, which does not exist")
    if version > newest:
        raise ArchiveVersionError(
            f"it is a {kind} of version {version}, and this package reads up to version {newest}; update the package"
        )
    return header


def _check_members(members: list[zipfile.ZipInfo], length: int) -> None:
    """Refuse members with the same name, compressed ones, and ones that claim more bytes than the file has."""
    if len({member.filename for member in members}) < len(members):
        raise ArchiveDamagedError("two of its members have the same name")
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    if not stored or sum(member.file_size for member in members) > length:
        raise ArchiveForeignError("its members are compressed, or longer than the file")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        old = npy.read_magic(stream) == (1, 0)
        shape, by_columns, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(stream)
        body = stream.read()
    if dtype.hasobject:
        raise ArchiveForeignError(f"{member.filename} holds Python objects, which are not read")
    if dtype.kind not in "biufU":
        raise ArchiveForeignError(f"{member.filename} holds neither numbers nor text")
    if math.prod(shape) * dtype.itemsize != len(body):
        raise ArchiveDamagedError(f"{member.filename} should hold {dtype} of shape {shape}, but has {len(body)} bytes")
    array = np.zeros(shape, dtype) if not body else np.frombuffer(bytearray(body), dtype)
    return array.reshape(shape, order="F" if by_columns else "C")


def write_json(path: Path, content: Any) -> None:
    """Write JSON, atomically. NaN and infinity, which JSON lacks, raise `ValueError`."""
    with atomic_file(path) as stream:
        stream.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def read_csv(package: str, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file that is shipped in a package, as dictionaries keyed by the names in its first line."""
    with resources.files(package).joinpath(name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}") from error


def _split(source: str) -> tuple[Path, str | None]:
    """`FILE.npz:NAME` as a path and the name of an array; the name is None for any other source."""
    path, colon, name = source.rpartition(":")
    return (Path(path), name) if colon and path.endswith(".npz") else (Path(source), None)


def _kind(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(len(_ARRAY))
    return "array" if start == _ARRAY else "archive" if start.startswith(_ARCHIVE) else "other"


def _load_member(path: Path, name: str | None) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        if name is None and len(names) == 1:
            name = names[0]
        if name in names:
            array = archive[name]
            if not isinstance(array, np.ndarray):  # NumPy returns other members as bytes
                raise InputError(f"{name!r} is not an array")
            return array
    if not names:
        raise InputError("it is an empty archive")
    problem = "say which" if name is None else f"{name!r} is not among them"
    raise InputError(f"it holds the arrays {', '.join(names)}; {problem}, as in {path}:{names[0]}")


@contextlib.contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into an `InputError` that names the file and the reason."""
    try:
        yield
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        if "allow_pickle" in str(error):
            reason = "it holds Python objects, which are not read; save numbers or text"
        kind = type(error) if isinstance(error, InputError) else InputError
        raise kind(f"cannot read {path}: {reason}") from None


def replace_file(source: Path, target: Path) -> None:
    """Rename a file; an existing target is replaced.

    Windows refuses while another process has the target open, usually for an instant, so the rename is repeated there.
    """
    for pause in (*_PAUSES, None):
        try:
            source.replace(target)
            return
        except PermissionError:
            if pause is None or not WINDOWS:
                raise
            time.sleep(pause)


def flush_folder(folder: Path) -> None:
    """Make renames in a folder survive power loss. Not needed on Windows, where folders cannot be opened either."""
    if WINDOWS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
