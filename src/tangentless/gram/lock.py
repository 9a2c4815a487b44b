"""The lock that lets one process write to a store at a time, and the file that names this process.

On disk `filelock` takes a lock of the operating system, which ends with its process, however that dies. Object stores
and some cluster file systems have no such locks. There the file that names the writer is the lock: only one process can
create it, and another one takes it over if the writer is known to be dead or has been silent for ten minutes. If two
processes ever write at the same time, no harm is done: they replace whole tiles by the same bytes. A lock that an
earlier call of the same process could not release, because the store did not answer, is taken over too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import StoreLockedError
from ..files import WINDOWS
from .files import Files, LocalFiles, make_folder, write_errors

LOCK = "kernel/writer.lock"
logger = logging.getLogger("tangentless")
_held: set[str] = set()  # the tokens of the claims that this process holds
_SILENT = 600.0  # seconds without a renewal after which a writer counts as dead
_RENEWED = 30.0  # seconds between renewals
_FAREWELL = 5.0  # seconds that a release waits for a renewal in progress
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class Owner:
    """The process that writes to a store. `born` is the start of the process; `since` and `seen` are Unix times."""

    host: str
    process: int
    born: str
    since: float
    seen: float
    token: str

    @classmethod
    def me(cls) -> Owner:
        """This process, now."""
        now = time.time()
        return cls(socket.gethostname(), os.getpid(), _birth(os.getpid()), now, now, uuid.uuid4().hex)

    @classmethod
    def read(cls, files: Files) -> Owner | None:
        """The owner named in a store, dead or alive; None if there is none."""
        try:
            return cls(**json.loads(files.read(owner_file(files))))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    def is_gone(self) -> bool:
        """Whether the owner is a dead process of this host, an ended call of this process, or silent for too long."""
        dead = _birth(self.process) != self.born or (self.process == os.getpid() and self.token not in _held)
        return (dead and self.host == socket.gethostname()) or time.time() - self.seen > _SILENT

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.process} on {self.host}, since {since}"


@contextlib.contextmanager
def hold(files: Files, *, force: bool = False) -> Iterator[Callable[[], None]]:
    """Hold the lock of a store. Yields a function that raises `StoreLockedError` if the lock has been lost.

    `force` breaks a lock that is only a file with a name; locks of the operating system cannot be broken.
    """
    with contextlib.ExitStack() as held:
        locked = isinstance(files, LocalFiles) and _lock(files, held)
        claim = _Claim(files, locked=locked, force=force)
        held.callback(claim.release)
        yield claim.check


def find_owner(files: Files) -> Owner | None:
    """The process that is writing a store now, if any."""
    owner = Owner.read(files)
    return None if owner is None or owner.is_gone() else owner


def owner_file(files: Files) -> str:
    """The file that names the owner. On disk it is not the lock file itself, whose content belongs to `filelock`."""
    return "kernel/writer.json" if isinstance(files, LocalFiles) else LOCK


def _lock(files: LocalFiles, held: contextlib.ExitStack) -> bool:
    """Take the lock of the operating system; returns False if the file system has no locks."""
    with write_errors(files.address):
        make_folder((files.root / LOCK).parent)
        try:
            held.enter_context(FileLock(files.root / LOCK, timeout=0, thread_local=False, fallback_to_soft=False))
        except Timeout:
            raise _refusal(files) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
    return True


class _Claim:
    """The file that names this process as the owner, and the thread that renews it every `_RENEWED` seconds."""

    def __init__(self, files: Files, *, locked: bool, force: bool) -> None:
        self._files, self._locked, self._owner = files, locked, Owner.me()
        self._stop, self._lost, self._renewed = threading.Event(), False, time.monotonic()
        _held.add(self._owner.token)
        if locked:
            with contextlib.suppress(OSError):  # on a full disk the lock has no name, but holds
                self._write()
        else:
            self._create(force)
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if another process has taken over, or may have because the file was not renewed for too long."""
        if self._lost or (not self._locked and time.monotonic() - self._renewed > _SILENT):
            raise _refusal(self._files)

    def release(self) -> None:
        """Remove the file, unless it names another owner. If that fails, this process can take the lock again."""
        self._stop.set()
        self._thread.join(timeout=_FAREWELL)  # it may be waiting for a store that does not answer
        _held.discard(self._owner.token)
        try:
            if self._is_mine():
                self._files.remove(owner_file(self._files))
        except OSError as error:
            logger.warning("the lock of %s could not be released: %s", self._files.address, error)

    def _create(self, force: bool) -> None:
        """Create the file; that of an owner that is gone, or with `force` of any owner, is removed first."""
        for _ in range(2):
            try:
                self._files.create(owner_file(self._files), self._owner.to_bytes())
            except FileExistsError:
                owner = find_owner(self._files)
                if owner is not None and owner.token == self._owner.token:
                    return  # created by a request whose answer was lost, so that it was repeated
                if owner is not None and not force:
                    _held.discard(self._owner.token)
                    raise _refusal(self._files) from None
                if owner is not None:
                    logger.warning("breaking the lock of %s, held by %s", self._files.address, owner)
                self._files.remove(owner_file(self._files))
            else:
                return
        raise _refusal(self._files)

    def _renew(self) -> None:
        while not self._stop.wait(_RENEWED):
            try:
                if not self._locked and not self._is_mine():
                    self._lost = True
                    return
                self._write()
            except Exception as error:  # the next round tries again, and `check` raises if that takes too long
                logger.warning("the lock of %s could not be renewed: %s", self._files.address, error)

    def _write(self) -> None:
        self._files.write(owner_file(self._files), replace(self._owner, seen=time.time()).to_bytes())
        self._renewed = time.monotonic()

    def _is_mine(self) -> bool:
        owner = Owner.read(self._files)
        return owner is not None and owner.token == self._owner.token


def _refusal(files: Files) -> StoreLockedError:
    return StoreLockedError(
        f"{files.address} is being written by {Owner.read(files) or 'another process'}; wait for it or stop it. "
        "To share the work among processes, give all of them to one call as a Dask cluster: scheduler=... "
        "If you know that the writer is gone, pass force_unlock=True"
    )


def _birth(process: int) -> str:
    """The start of a process of this host, which tells it from a later one with its number; empty if it is dead."""
    try:
        status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if status[0] in "ZX" else status[19]
    except OSError:
        pass  # not Linux, or no such process
    if WINDOWS:  # os.kill would end the process there; a dead writer is recognised by its silence only
        return "alive"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "alive"
