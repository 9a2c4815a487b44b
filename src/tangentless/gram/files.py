"""Where a store lives: a folder on disk, or any address that fsspec opens.

Stores write their own chunks because Zarr never flushes: after a power failure, a chunk it has written may be empty or
cut short. Here a file is written under another name, flushed and renamed, and its folder is flushed. Once `write`
returns, the file survives `kill -9` and power loss. Readers see the old file or the new one, never a part. Object
stores need none of this, because a put is atomic.
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
from typing import Any

from ..errors import NotAStoreError, ParameterError, StoreError, StoreWriteError
from ..files import flush_folder

Address = str | os.PathLike[str]
_UNFINISHED = "kernel/tmp"  # one folder for all files being written, so that `clean` knows where to look
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class LocalFiles:
    """A folder on disk. Names of files are relative to it."""

    root: Path

    @property
    def address(self) -> str:
        """The path or URL, as people write it."""
        return str(self.root)

    def read(self, name: str) -> bytes:
        """The bytes of a file; raises `FileNotFoundError` if there is none."""
        return (self.root / name).read_bytes()

    def write(self, name: str, *parts: Any) -> None:
        """Create or replace a file durably. If that fails, raise `StoreWriteError` and leave nothing behind."""
        target, beside = self.root / name, self.root / _UNFINISHED / uuid.uuid4().hex
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
        """Create a file; raises `FileExistsError` if it exists."""
        with explained(self.address):
            make_folder((self.root / name).parent)
            with (self.root / name).open("xb") as file:
                file.write(data)

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        with explained(self.address):
            (self.root / name).unlink(missing_ok=True)

    def entries(self) -> set[str]:
        """The names of files and folders at the address itself; empty if there is nothing."""
        try:
            return {entry.name for entry in os.scandir(self.root)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise NotAStoreError(f"{self.root} cannot hold a store: {error.strerror}") from error

    def sizes(self, folder: str) -> dict[str, int]:
        """The lengths of all files in and below a folder; empty if there is no such folder."""
        found: dict[str, int] = {}
        for parent, _, names in os.walk(self.root / folder):
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # a writer may have renamed it since
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def clean(self) -> None:
        """Remove the unfinished files of writers that died."""
        for name in self.sizes(_UNFINISHED):
            self.remove(name)


@dataclass(frozen=True)
class RemoteFiles:
    """The same for an address of fsspec. Credentials come from where fsspec looks for them."""

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
        """Nothing to do: a put that broke off leaves no object."""

    @property
    def _system(self) -> Any:
        return _connect(self.address)[0]

    @property
    def _root(self) -> str:
        return _connect(self.address)[1]


Files = LocalFiles | RemoteFiles


def find_files(address: Address) -> Files:
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
    """Turn errors of the operating system into a `StoreWriteError` that says what to do; `FileExistsError` passes."""
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
    """Make a folder and its parents. Each parent is flushed, so that the new folder survives power loss."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)
