"""One writer at a time.

On disk the operating system holds the lock, so it ends with the process that took it, however that dies. Where there
are no such locks (object stores, some cluster file systems) a file names the owner, who renews it; another process
takes over only when the owner is known to be dead, or has been silent for ten minutes. Should both ever write, nothing
is harmed: tiles are replaced whole, and by the same bytes. Several machines share one matrix through a Dask cluster.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import StoreLockedError
from .files import Files, LocalFiles, explained, make_folder

LOCK = "kernel/writer.lock"
_SILENT = 600.0
_RENEWED = 30.0
_PATIENCE = 0.5  # `find_owner` holds a lock for an instant, which is no reason to refuse a writer


@dataclass(frozen=True)
class Owner:
    """Who writes, since when, and when they last said so."""

    host: str
    process: int
    born: str
    since: float
    seen: float
    token: str

    @classmethod
    def me(cls) -> Owner:
        now = time.time()
        return cls(socket.gethostname(), os.getpid(), _birth(os.getpid()), now, now, uuid.uuid4().hex)

    @classmethod
    def read(cls, data: bytes) -> Owner | None:
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def is_gone(self) -> bool:
        """Whether the owner is dead for certain, or has been silent for too long."""
        if self.host == socket.gethostname() and _birth(self.process) != self.born:
            return True
        return time.time() - self.seen > _SILENT

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.process} on {self.host}, since {since}"


@contextlib.contextmanager
def hold(files: Files) -> Iterator[Callable[[], None]]:
    """Hold the lock of a store; the function given raises `StoreLockedError` should the lock have been lost."""
    system = _take_system_lock(files.root) if isinstance(files, LocalFiles) else None
    lock = system or _NamedLock(files)
    try:
        yield lock.check
    finally:
        lock.release()


def find_owner(files: Files) -> Owner | None:
    """Who is writing a store now, if anyone."""
    try:
        owner = Owner.read(files.read(LOCK))
    except FileNotFoundError:
        return None
    if owner is None:
        return None
    if isinstance(files, LocalFiles):
        with (files.root / LOCK).open("rb") as file:
            try:
                _flock(file.fileno(), "LOCK_SH")
                return None
            except BlockingIOError:
                return owner
            except OSError:
                pass  # no locks here: the name decides
    return None if owner.is_gone() else owner


class _SystemLock:
    """An open file that the operating system lets one process hold."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, Owner.me().to_bytes(), 0)

    def check(self) -> None:
        """It cannot be lost."""

    def release(self) -> None:
        os.close(self._descriptor)


def _take_system_lock(root: Path) -> _SystemLock | None:
    """The lock, or None where the file system has no such thing."""
    with explained(str(root)):
        make_folder((root / LOCK).parent)
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            _flock(descriptor, "LOCK_EX")
            return _SystemLock(descriptor)
        except BlockingIOError:
            if time.monotonic() > deadline:
                owner = Owner.read(os.pread(descriptor, 4096, 0))
                os.close(descriptor)
                raise _refusal(str(root), owner) from None
            time.sleep(_PATIENCE / 20)
        except OSError:  # a file system without locks
            os.close(descriptor)
            return None


def _flock(descriptor: int, kind: str) -> None:
    """Take a lock of the operating system, or raise `OSError`, as where there are none."""
    try:
        fcntl: Any = importlib.import_module("fcntl")
    except ImportError:
        raise OSError("no file locks on this system") from None
    fcntl.flock(descriptor, getattr(fcntl, kind) | fcntl.LOCK_NB)


class _NamedLock:
    """A file that names its owner, renewed by a thread."""

    def __init__(self, files: Files) -> None:
        self._files, self._owner = files, Owner.me()
        self._stop, self._lost = threading.Event(), False
        self._take()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._lost:
            raise _refusal(self._files.address, self._read())

    def release(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._is_mine():
            self._files.remove(LOCK)

    def _take(self) -> None:
        for _ in range(2):
            try:
                self._files.create(LOCK, self._owner.to_bytes())
            except FileExistsError:
                other = self._read()
                if other is not None and not other.is_gone():
                    raise _refusal(self._files.address, other) from None
                self._files.remove(LOCK)
            else:
                return
        raise _refusal(self._files.address, self._read())

    def _renew(self) -> None:
        while not self._stop.wait(_RENEWED):
            with contextlib.suppress(OSError):  # a failure of a moment; the next round renews it
                if not self._is_mine():
                    self._lost = True
                    return
                self._files.write(LOCK, replace(self._owner, seen=time.time()).to_bytes())

    def _is_mine(self) -> bool:
        owner = self._read()
        return owner is not None and owner.token == self._owner.token

    def _read(self) -> Owner | None:
        try:
            return Owner.read(self._files.read(LOCK))
        except FileNotFoundError:
            return None


def _refusal(address: str, owner: Owner | None) -> StoreLockedError:
    return StoreLockedError(
        f"{address} is being written by {owner or 'another process'}; wait for it or stop it. "
        "To share the work among processes, give all of them to one call as a Dask cluster: scheduler=..."
    )


def _birth(process: int) -> str:
    """When a process of this host started, to tell it from a later one of the same number; empty if it is dead."""
    try:
        status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if status[0] in "ZX" else status[19]
    except OSError:
        pass  # not Linux, or no such process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "alive"
