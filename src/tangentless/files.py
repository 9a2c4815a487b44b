"""Arrays in and out of files.

What is read is checked, and never unpickled. What is written goes to a file beside its place, which is renamed when it
is complete: whoever looks sees the old file, or the whole new one, never a part.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, TangentlessError

_ARRAY, _ARCHIVE = b"\x93NUMPY", b"PK"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


class OutputError(TangentlessError, OSError):
    """A file that cannot be written, or that is there already."""


def load_array(source: str | Path, key: str | None = None) -> NDArray[Any]:
    """The array of a .npy file or of an archive, `FILE.npz:NAME`; a key names it too, and one that is alone needs none.

    >>> load_array("nowhere.npy")
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: cannot read nowhere.npy: No such file or directory
    """
    path, name = _split(str(source))
    name = name or key
    with _reading(path):
        kind = _kind(path)
        if kind == "archive":
            return _load_member(path, name)
        if kind == "array":
            array: NDArray[Any] = np.load(path, allow_pickle=False)
            return array
        raise InputError("it is not a .npy or .npz file; write one with numpy.save")


def load_archive(path: str | Path) -> dict[str, NDArray[Any]]:
    """All arrays of a .npz file, read and checked against their checksums."""
    path = Path(path)
    with _reading(path):
        if _kind(path) == "archive":
            with np.load(path, allow_pickle=False) as archive:
                return {name: _member(archive, name) for name in archive.files}
        raise InputError("it is not a .npz file")


def check_output(path: Path, *, force: bool = False) -> None:
    """Refuse a place that cannot be written, or is taken, before anything is computed for it.

    >>> check_output(Path("no/such/folder/K.npy"))
    Traceback (most recent call last):
        ...
    tangentless.files.OutputError: cannot write no/such/folder/K.npy: there is no folder no/such/folder
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
    if path.exists() and not force:
        raise OutputError(f"{path} is there already; choose another name, or overwrite it with --force")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {path.parent} may not be written")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file at `path` at once, after the block, or not at all.

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
        beside.replace(path)
        with contextlib.suppress(OSError):  # where the system does not let folders be opened
            flush_folder(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as .npy, at once."""
    with atomic_file(path) as stream:
        np.save(stream, array, allow_pickle=False)


def save_archive(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays as .npz, at once."""
    if objects := [name for name, array in arrays.items() if array.dtype.hasobject]:
        raise OutputError(f"cannot write {path}: {', '.join(objects)} would need pickling")
    with atomic_file(path) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]  # no array is named after its other parameters


def write_json(path: Path, content: Any) -> None:
    """Write JSON, at once; values that are not finite numbers are refused, since JSON has none."""
    with atomic_file(path) as stream:
        stream.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where they are not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}") from error


def _split(source: str) -> tuple[Path, str | None]:
    """A path, and the name of an array in it."""
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
            return _member(archive, name)
    if not names:
        raise InputError("it is an empty archive")
    problem = "say which" if name is None else f"{name!r} is not among them"
    raise InputError(f"it holds the arrays {', '.join(names)}; {problem}, as in {path}:{names[0]}")


def _member(archive: Any, name: str | None) -> NDArray[Any]:
    array = archive[name]
    if not isinstance(array, np.ndarray):  # NumPy hands out the bytes of what is not an array
        raise InputError(f"{name!r} is not an array")
    return array


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong with a file, as an error that names it."""
    try:
        yield
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        if "allow_pickle" in str(error):
            reason = "it holds Python objects, which are not read; save numbers or text"
        raise InputError(f"cannot read {path}: {reason}") from None


def flush_folder(folder: Path) -> None:
    """Make renames in a folder survive power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
