"""One process writes a store at a time, on disks with locks, on those without, and on object stores."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import wait_until
from crash.stores import expected, make
from tangentless.errors import StoreLockedError
from tangentless.gram import lock, open_gram, repair, status
from tangentless.gram.files import LocalFiles, find_files


def test_a_second_writer_is_refused_while_the_first_is_at_work(store: Path) -> None:
    files = find_files(store)
    with lock.hold(files):
        owner = status(store).writer
        assert owner is not None
        assert (owner.process, owner.host) == (os.getpid(), socket.gethostname())
        assert np.array_equal(np.asarray(make(store, 39)), expected(39))  # allowed: a complete store is only read
        assert repair(store).good
        (store / "kernel/c/0/1").write_bytes(b"nonsense")
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on"):
            make(store, 39)
        with pytest.raises(StoreLockedError):
            repair(store)
        assert len(np.asarray(open_gram(store)[8:, 8:])) == 31
    assert status(store).writer is None
    make(store, 39)


def test_a_writer_of_version_0_1_0_keeps_others_out(store: Path) -> None:
    (store / "kernel/c/0/1").unlink()
    with (store / lock.LOCK).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # version 0.1.0 took this lock only
        with pytest.raises(StoreLockedError, match="another process"):
            make(store, 39)
    make(store, 39)


PARENT = os.getppid()  # another process that is alive


def named_lock(files: Any, **changes: Any) -> None:
    changes = {"process": PARENT, "born": lock._birth(PARENT)} | changes
    files.write(lock.owner_file(files), replace(lock.Owner.me(), **changes).to_bytes())


def test_without_system_locks_an_owner_is_named_and_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(lock, "_RENEWED", 0.02)
    files = LocalFiles(tmp_path)
    with lock.hold(files) as check:
        first = lock.Owner.read(files)
        with pytest.raises(StoreLockedError), lock.hold(files):
            pass
        assert first is not None
        wait_until(lambda: (owner := lock.Owner.read(files)) is not None and owner.seen > first.seen)
        check()

        def is_lost() -> bool:
            named_lock(files, token="another")  # repeated, since our renewal may overwrite it
            try:
                check()
            except StoreLockedError:
                return True
            return False

        wait_until(is_lost)
    assert lock.find_owner(files) is not None  # the lock belongs to the other writer now


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, False),
        # Left by an earlier call of this process.
        ({"process": os.getpid(), "born": lock._birth(os.getpid())}, True),
        ({"host": "elsewhere", "process": 1}, False),
        ({"host": "elsewhere", "seen": 0.0}, True),
        ({"process": 2**22 + 1}, True),
        ({"born": "another time"}, True),
    ],
)
def test_a_lock_is_taken_over_only_from_the_dead_or_silent_or_by_force(
    changes: dict[str, Any], gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = find_files("memory://taken-over.zarr")
    named_lock(files, token="other", **changes)
    if gone:
        with lock.hold(files):
            pass
        assert lock.find_owner(files) is None
    else:
        assert lock.find_owner(files) is not None
        with pytest.raises(StoreLockedError, match="force_unlock"), lock.hold(files):
            pass
        with caplog.at_level("WARNING"), lock.hold(files, force=True) as check:
            check()
        assert (
            f"breaking the lock of {files.address}, held by {replace(lock.Owner.me(), **changes)}"[:60] in caplog.text
        )


def test_the_lock_is_renewed_whatever_happens_and_given_up_when_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "_RENEWED", 0.02)
    files = find_files(f"memory://{tmp_path.name}.zarr")
    with lock.hold(files) as check, monkeypatch.context() as broken:
        broken.setattr(type(files), "write", lambda *_: 1 / 0)  # an unexpected error
        wait_until(lambda: "could not be renewed: division by zero" in caplog.text)
        check()
        broken.setattr(lock, "_SILENT", 0.01)
        with pytest.raises(StoreLockedError):
            check()
        broken.undo()
        renewed = lock.Owner.read(files)
        assert renewed is not None
        wait_until(lambda: (owner := lock.Owner.read(files)) is not None and owner.seen > renewed.seen)
        check()
    assert lock.find_owner(files) is None
