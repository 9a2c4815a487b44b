"""Where a store lives: a folder on disk, or any address that fsspec knows. Files appear whole or not at all.

On disk a file is written beside, flushed, renamed into place, and its folder flushed, so that once `write` returns it
survives `kill -9` and power loss. An object store's put is as good on its own: an object is there or it is not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import NotAStoreError, ParameterError, StoreError, StoreWriteError
from ..files import flush_folder

_WORKSHOP = "kernel/tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class Files(Protocol):
    """The few things a store asks of its place."""

    @property
    def address(self) -> str:
        """The path or URL, as people write it."""
        ...

    def read(self, name: str) -> bytes:
        """The bytes of a file; `FileNotFoundError` where there is none."""
        ...

    def write(self, name: str, *parts: Any) -> None:
        """Put a file in place, replacing the one before; raises `StoreWriteError` and leaves nothing behind."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Make a file that must not exist yet; `FileExistsError` where it does."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The names of all files in and below a folder, with their lengths; empty where there is no such folder."""
        ...

    def entries(self) -> set[str]:
        """What lies at the address itself: names of files and folders; empty where there is nothing."""
        ...

    def clean(self) -> None:
        """Remove what writers that died left half done."""
        ...


def find_files(address: str | os.PathLike[str]) -> Files:
    """The files at a path or URL.

    >>> find_files("k.zarr").address.endswith("/k.zarr")
    True
    >>> find_files("memory://k.zarr")
    RemoteFiles(address='memory://k.zarr')
    """
    text = os.fspath(address)
    if not isinstance(text, str) or not text:
        raise ParameterError(f"a store is a path or an address such as 's3://bucket/k.zarr', not {address!r}")
    protocol, separator, rest = text.partition("://")
    if separator and protocol in ("file", "local"):
        return LocalFiles(Path(rest).absolute())
    return RemoteFiles(text.rstrip("/")) if separator else LocalFiles(Path(text).expanduser().absolute())


@dataclass(frozen=True)
class LocalFiles:
    """A folder on disk."""

    root: Path

    @property
    def address(self) -> str:
        return str(self.root)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, *parts: Any) -> None:
        target, beside = self.root / name, self.root / _WORKSHOP / uuid.uuid4().hex
        with explained(self.address):
            try:
                make_folder(beside.parent)
                make_folder(target.parent)
                with beside.open("xb") as file:
                    for part in parts:
                        file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(target)
                flush_folder(target.parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    beside.unlink(missing_ok=True)
                raise

    def create(self, name: str, data: bytes) -> None:
        with explained(self.address):
            make_folder((self.root / name).parent)
            with (self.root / name).open("xb") as file:
                file.write(data)

    def remove(self, name: str) -> None:
        with explained(self.address):
            (self.root / name).unlink(missing_ok=True)

    def entries(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self.root)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise NotAStoreError(f"{self.root} cannot hold a store: {error.strerror}") from error

    def sizes(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for parent, _, names in os.walk(self.root / folder):
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # a writer may have renamed it since
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def clean(self) -> None:
        for name in self.sizes(_WORKSHOP):
            self.remove(name)


@dataclass(frozen=True)
class RemoteFiles:
    """An address of fsspec's; credentials come from where fsspec looks for them."""

    address: str

    def read(self, name: str) -> bytes:
        return bytes(self._system.cat_file(f"{self._root}/{name}"))

    def write(self, name: str, *parts: Any) -> None:
        with explained(self.address):
            self._system.pipe_file(f"{self._root}/{name}", b"".join(parts))

    def create(self, name: str, data: bytes) -> None:
        self._system.pipe_file(f"{self._root}/{name}", data, mode="create")

    def remove(self, name: str) -> None:
        with explained(self.address), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{name}")

    def entries(self) -> set[str]:
        self._system.invalidate_cache()
        try:
            return {path.rstrip("/").rpartition("/")[2] for path in self._system.ls(self._root, detail=False)}
        except FileNotFoundError:
            return set()

    def sizes(self, folder: str) -> dict[str, int]:
        self._system.invalidate_cache()
        found = self._system.find(f"{self._root}/{folder}", detail=True)
        return {path[len(self._root) + 1 :]: entry["size"] for path, entry in found.items()}

    def clean(self) -> None:
        """Nothing to do: a put that broke off left no object."""

    @property
    def _system(self) -> Any:
        return _connect(self.address)[0]

    @property
    def _root(self) -> str:
        return _connect(self.address)[1]


@functools.lru_cache(maxsize=16)
def _connect(address: str) -> tuple[Any, str]:
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError:
        raise ParameterError(f"the address {address} needs fsspec: pip install 'tangentless[remote]'") from None
    try:
        system, root = fsspec.core.url_to_fs(address)
    except (ValueError, ImportError) as error:
        raise NotAStoreError(f"fsspec cannot open {address}: {error}") from error
    return system, str(root).rstrip("/")


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn errors of the operating system on writing into one that says what to do; `FileExistsError` passes."""
    try:
        yield
    except (FileExistsError, StoreError):
        raise
    except OSError as error:
        if error.errno in _FULL:
            reason = f"no room: {error.strerror}; make room and run the same call again"
        elif error.errno in _READ_ONLY:
            reason = f"read-only: {error.strerror}; change its permissions, or copy the store elsewhere"
        else:
            reason = str(error)
        raise StoreWriteError(
            f"cannot write to {address}, {reason}. Every tile that was finished is still there."
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that survives power loss: the one it lies in has to be flushed too."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)
