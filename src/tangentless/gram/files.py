"""The files of a store: in a folder on disk, or at any address that fsspec opens.

Stores write their own chunks because Zarr does not flush them: after a power failure, a chunk may be empty or cut
short. Here a file is written under a temporary name, flushed and renamed, and its folder is flushed. Once `write`
returns, the file survives `kill -9` and power loss. Readers see the old file or the new one, never a part. Object
stores need none of this, because a put is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..errors import (
    NotAStoreError,
    ParameterError,
    StoreAccessError,
    StoreError,
    StoreWriteError,
    TangentlessError,
)
from ..files import flush_folder, replace_file

Address = str | os.PathLike[str]
Options = Mapping[str, Any]
logger = logging.getLogger("tangentless")
PATIENCE = 180.0  # seconds for which a request is repeated if the store does not answer
_SHORT_PATIENCE = 2.0  # seconds if it denies access, which may be a transient fault too
_AT_ONCE = 32  # concurrent requests to an address: enough to hide a latency of 30 ms if an answer takes 1 ms
# Only `_retry` repeats requests: attempts of botocore within each of its own would multiply the time.
_S3 = {"retries": {"max_attempts": 1}, "connect_timeout": 10, "read_timeout": 60, "max_pool_connections": _AT_ONCE}
_DEFAULTS = {"s3": {"config_kwargs": _S3}}
_FIRST_PAUSE, _LONGEST_PAUSE, _WARN_AFTER = 0.1, 8.0, 1.0  # seconds
_UNFINISHED = "kernel/tmp"  # the folder of all temporary files, which `clean` empties
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class LocalFiles:
    """The files in a folder on disk, by names relative to it.

    `concurrency` is the number of files to read or write at the same time.
    """

    root: Path
    concurrency: ClassVar[int] = 2

    @property
    def address(self) -> str:
        """The path of the folder, for messages."""
        return str(self.root)

    def read(self, name: str) -> bytes:
        """The bytes of a file; raises `FileNotFoundError` if there is none."""
        return (self.root / name).read_bytes()

    def write(self, name: str, *parts: Any) -> None:
        """Create or replace a file durably. If that fails, raise `StoreWriteError` and leave nothing behind."""
        target, beside = self.root / name, self.root / _UNFINISHED / uuid.uuid4().hex
        with write_errors(self.address):
            make_folder(beside.parent)
            make_folder(target.parent)
            try:
                with beside.open("xb") as file:
                    file.writelines(parts)
                    file.flush()
                    os.fsync(file.fileno())
                replace_file(beside, target)
                flush_folder(target.parent)
            finally:
                with contextlib.suppress(OSError):
                    beside.unlink(missing_ok=True)

    def create(self, name: str, data: bytes) -> None:
        """Create a file; raises `FileExistsError` if it exists."""
        with write_errors(self.address):
            make_folder((self.root / name).parent)
            with (self.root / name).open("xb") as file:
                file.write(data)

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        with write_errors(self.address):
            (self.root / name).unlink(missing_ok=True)

    def entries(self) -> set[str]:
        """The names of the files and folders at the top level; empty if there is nothing."""
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
                with contextlib.suppress(FileNotFoundError):  # a writer may have renamed it in the meantime
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def clean(self) -> None:
        """Remove the unfinished files of writers that died."""
        for name in self.sizes(_UNFINISHED):
            self.remove(name)


@dataclass(frozen=True)
class RemoteFiles:
    """The same for an fsspec address. Requests with transient errors are repeated for `PATIENCE` seconds.

    `options` are fsspec's storage options. They may hold credentials: they are sent to workers, and never shown, logged
    or stored. fsspec looks for missing ones in its usual places.
    """

    address: str
    options: Options = field(default_factory=dict, repr=False, compare=False)
    concurrency: ClassVar[int] = _AT_ONCE

    def read(self, name: str) -> bytes:
        # start=0, because without it some file systems first ask for the length, even from an outdated listing.
        return bytes(self._retry(lambda: self._system.cat_file(f"{self._root}/{name}", start=0)))

    def write(self, name: str, *parts: Any) -> None:
        data = b"".join(parts)
        with write_errors(self.address):
            self._retry(lambda: self._system.pipe_file(f"{self._root}/{name}", data), "writing")

    def create(self, name: str, data: bytes) -> None:
        self._retry(lambda: self._system.pipe_file(f"{self._root}/{name}", data, mode="create"), "writing")

    def remove(self, name: str) -> None:
        with write_errors(self.address), contextlib.suppress(FileNotFoundError):
            self._retry(lambda: self._system.rm_file(f"{self._root}/{name}"), "writing")

    def entries(self) -> set[str]:
        try:
            found = self._retry(lambda: self._system.ls(self._root, detail=False, refresh=True))
        except FileNotFoundError:
            return set()
        return {path.rstrip("/").rpartition("/")[2] for path in found}

    def sizes(self, folder: str) -> dict[str, int]:
        found = self._retry(lambda: self._system.find(f"{self._root}/{folder}", detail=True, refresh=True))
        return {path[len(self._root) + 1 :]: entry["size"] for path, entry in found.items()}

    def clean(self) -> None:
        """Nothing to do: an interrupted put leaves no object."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.address, self.options)  # without the connection, which belongs to this process

    def _retry(self, request: Callable[[], Any], what: str = "access") -> Any:
        """The result of a request, which is repeated at growing intervals while its error may be transient."""
        began, pause, warned = time.monotonic(), _FIRST_PAUSE, False
        while True:
            try:
                return request()
            except Exception as error:  # libraries of object stores raise errors of their own types
                trouble = classify(error, self.address, what, self.options)
                if trouble is None:
                    raise
                waited = time.monotonic() - began
                if waited >= trouble.patience:
                    raise StoreAccessError(trouble.text) from None  # the original error may show credentials
                if waited > _WARN_AFTER and not warned:
                    logger.warning("%s; trying again for %.0f s", trouble.text, trouble.patience)
                    warned = True
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE)

    @property
    def _system(self) -> Any:
        return self._connected[0]

    @property
    def _root(self) -> str:
        return self._connected[1]

    @functools.cached_property
    def _connected(self) -> tuple[Any, str]:
        try:
            fsspec: Any = importlib.import_module("fsspec")
        except ImportError:
            raise ParameterError(f"{self.address} needs fsspec: pip install 'tangentless[remote]'") from None
        try:
            defaults = {"use_listings_cache": False, **_DEFAULTS.get(self.address.partition(":")[0], {})}
            system, root = fsspec.core.url_to_fs(self.address, **{**defaults, **self.options})
        except (ValueError, ImportError, TypeError) as error:
            raise NotAStoreError(f"fsspec cannot open {self.address}: {redact(self.options, error)}") from None
        return system, str(root).rstrip("/")


Files = LocalFiles | RemoteFiles


@dataclass(frozen=True)
class Trouble:
    """Why a request failed, in one line without credentials, and for how many seconds to repeat it."""

    text: str
    patience: float = 0.0


def classify(error: Exception, address: str, what: str = "access", options: Options | None = None) -> Trouble | None:
    """Why a request failed; None for errors that callers expect, such as `FileNotFoundError`, or that are bugs.

    >>> classify(PermissionError("Forbidden"), "s3://bucket/k.zarr").text
    'access to s3://bucket/k.zarr is denied (PermissionError); look at the credentials'
    """
    response = getattr(error.__cause__ or error, "response", None)
    code = str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
    why = code or type(error).__name__
    if code == "NoSuchBucket":
        return Trouble(f"there is no bucket for {address}; create it, or correct the address or the endpoint")
    if isinstance(error, (TangentlessError, FileNotFoundError, FileExistsError, TypeError)):
        return None
    if isinstance(error, ValueError):
        return Trouble(
            f"the request to {address} is not valid: {redact(options, error)}; look at the address and options"
        )
    if "Credentials" in why:
        return Trouble(
            f"there are no credentials for {address}; give storage_options=, or set them where fsspec looks for them"
        )
    if isinstance(error, PermissionError):
        return Trouble(f"{what} to {address} is denied ({why}); look at the credentials", _SHORT_PATIENCE)
    return Trouble(f"{address} does not answer ({why}); look at the endpoint and the network", PATIENCE)


def redact(options: Any, error: object) -> str:
    """The text of an error, with every value of the options replaced by ***.

    >>> redact({"client": {"password": "hunter2"}}, ValueError("no user:hunter2 at this host"))
    'no user:*** at this host'
    """
    text, left = str(error), [options]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, (list, tuple)):
            left.extend(value)
        elif isinstance(value, str) and value:
            text = text.replace(value, "***")
    return text


def find_files(address: Address, options: Options | None = None) -> Files:
    """The files at a path or URL; `options` are fsspec's storage options for a URL.

    >>> find_files("k.zarr").address.endswith("/k.zarr")
    True
    >>> find_files("memory://k.zarr", {"secret": "x"})
    RemoteFiles(address='memory://k.zarr')
    """
    text = os.fspath(address)
    if not isinstance(text, str) or not text:
        raise ParameterError(f"a store is a path or an address such as 's3://bucket/k.zarr', not {address!r}")
    protocol, separator, rest = text.partition("://")
    if separator and protocol not in ("file", "local"):
        _check_address(protocol, rest)
        return RemoteFiles(text.rstrip("/"), options or {})
    if options:
        raise ParameterError(f"storage_options are for addresses such as s3://..., and {text} is a folder")
    return LocalFiles(Path(rest).absolute() if separator else Path(text).expanduser().absolute())


def _check_address(protocol: str, rest: str) -> None:
    """Refuse passwords and queries in an address: addresses are shown in errors, and names of files are appended."""
    host = rest.partition("/")[0]
    if not rest.strip("/"):
        raise ParameterError(f"{protocol}:// names no place; give an address such as 's3://bucket/k.zarr'")
    if ":" in host.rpartition("@")[0]:
        shown = f"{protocol}://{host.partition(':')[0]}:***@..."
        raise ParameterError(f"{shown} holds a password, and addresses are shown in errors: give storage_options=")
    if "?" in rest or "#" in rest:
        shown = f"{protocol}://{rest.partition('?')[0].partition('#')[0]}"
        raise ParameterError(f"{shown} is followed by a query, and a store is a folder; give storage_options= instead")


@contextlib.contextmanager
def write_errors(address: str) -> Iterator[None]:
    """Turn an `OSError`, other than `FileExistsError`, into a `StoreWriteError` that says what to do."""
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
    """Create a folder and its missing parents, and flush each parent, so that new folders survive power loss."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)
