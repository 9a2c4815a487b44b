"""However a run ends, finished tiles stay, none is computed twice, and the bytes are those of an undisturbed run."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crash.stores import KERNEL, expected, finished_tiles, make, store_hash, vectors
from crash.writers import Writers
from tangentless import KernelRidgeClassifier
from tangentless.errors import StoreWriteError
from tangentless.gram import repair, resume, status, verify
from tangentless.gram.files import LocalFiles
from tangentless.gram.manifest import Data, read_manifest
from tangentless.gram.store import Store, tile_name

COUNT, GROWN_FROM = 100, 60


def interrupt_and_resume(writers: Writers, base: Path | None, work: Path, whole: str, kills: int, span: float) -> None:
    """Kill `kills` writers at random moments while they are at work; every resume must give the same bytes."""
    moments = random.Random(kills)
    hits = 0
    while hits < kills:
        store = work / "k.zarr"
        shutil.rmtree(store, ignore_errors=True)
        if base is not None:
            shutil.copytree(base, store, copy_function=shutil.copy2)
        options: dict[str, Any] = {"extend": True} if base is not None else {}
        if writers.run(store, COUNT, kill_after=moments.uniform(0, span), **options) == 0:
            span *= 0.9  # the run ended before the kill
            continue
        hits += 1
        before = finished_tiles(store)
        present = finished_names(store)
        make(store, COUNT, **options)
        after = finished_tiles(store)
        assert store_hash(store) == whole
        assert all(after[name] == before[name] for name in present)


def finished_names(store: Path) -> list[str]:
    """The files of finished tiles; tiles that an extension still has to complete do not count."""
    if not (store / "zarr.json").exists():
        return []
    files = LocalFiles(store)
    manifest = read_manifest(files)
    if manifest.shape[0] < COUNT:
        manifest = manifest.grown_to(Data.of(vectors(COUNT)))
    return [tile_name(tile) for tile in Store(files, manifest).finished()]


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with Writers() as started:
        yield started


@pytest.fixture
def seconds(writers: Writers, tmp_path: Path) -> float:
    """How long a whole run takes here."""
    began = time.monotonic()
    assert writers.run(tmp_path / "timed.zarr", COUNT) == 0
    return time.monotonic() - began


def run_kills(writers: Writers, tmp_path: Path, seconds: float, kills: int) -> None:
    make(tmp_path / "whole.zarr", COUNT)
    interrupt_and_resume(writers, None, tmp_path, store_hash(tmp_path / "whole.zarr"), kills, seconds)


def run_extension_kills(writers: Writers, tmp_path: Path, seconds: float, kills: int) -> None:
    base = tmp_path / "base.zarr"
    make(base, GROWN_FROM)
    shutil.copytree(base, tmp_path / "whole.zarr")
    make(tmp_path / "whole.zarr", COUNT, extend=True)
    interrupt_and_resume(writers, base, tmp_path, store_hash(tmp_path / "whole.zarr"), kills, seconds)


def test_killed_runs_resume_to_the_same_bytes(writers: Writers, tmp_path: Path, seconds: float) -> None:
    run_kills(writers, tmp_path, seconds, 3)


def test_killed_extensions_resume_to_the_same_bytes(writers: Writers, tmp_path: Path, seconds: float) -> None:
    run_extension_kills(writers, tmp_path, seconds, 2)


@pytest.mark.slow
def test_two_hundred_killed_runs_resume_to_the_same_bytes(writers: Writers, tmp_path: Path, seconds: float) -> None:
    run_kills(writers, tmp_path, seconds, 200)


@pytest.mark.slow
def test_a_hundred_killed_extensions_resume_to_the_same_bytes(writers: Writers, tmp_path: Path, seconds: float) -> None:
    run_extension_kills(writers, tmp_path, seconds, 100)


def test_one_run_survives_many_kills_in_a_row(writers: Writers, tmp_path: Path) -> None:
    store = tmp_path / "k.zarr"
    tiles, more = 91, 15  # a triangle of 13 rows of tiles; killed after every 15 tiles

    def count() -> int:
        return len(finished_tiles(store))

    while (before := count()) + more < tiles:
        writers.run(store, COUNT, kill_when=lambda wanted=before + more: count() >= wanted)
        assert verify(store).good
    make(store, COUNT)
    make(tmp_path / "whole.zarr", COUNT)
    assert store_hash(store) == store_hash(tmp_path / "whole.zarr")


def test_a_file_is_flushed_before_it_is_renamed_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    flush, rename = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"  # noqa: PTH112
        calls.append(f"flush {kind}")
        flush(descriptor)

    def recording_replace(source: Any, target: Any) -> None:
        calls.append("rename")
        rename(source, target)

    files = LocalFiles(tmp_path)
    files.write("a/b", b"first")  # also makes the folders
    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    files.write("a/b", b"second")
    assert calls == ["flush file", "rename", "flush folder"]
    assert files.read("a/b") == b"second"


def test_new_folders_are_flushed_into_those_they_lie_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush, flushed = os.fsync, set()

    def recording_fsync(descriptor: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    make(tmp_path / "new/k.zarr", 10)
    folders = {tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())}
    assert folders - {tmp_path / "new/k.zarr/kernel/tmp"} <= flushed


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_size_limit_stops_cleanly_and_resume_completes(tmp_path: Path) -> None:
    store = tmp_path / "k.zarr"
    with contextlib.ExitStack() as limits:

        def limit_after_three(snapshot: Any) -> None:
            if snapshot.tiles_done == 3:
                limits.enter_context(file_size_limit(400))

        with pytest.raises(StoreWriteError, match="no room"):
            make(store, 40, progress=limit_after_three)
    assert not list((store / "kernel/tmp").iterdir())
    before = finished_tiles(store)
    assert len(before) >= 3
    assert verify(store).good
    make(store, 40)
    assert all(finished_tiles(store)[name] == tile for name, tile in before.items())
    assert np.array_equal(np.asarray(make(store, 40)), expected(40))


def test_a_full_disk_stops_cleanly_and_resume_completes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", disk], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        for _ in range(2):
            with pytest.raises(StoreWriteError, match="no room"):
                make(disk / "k.zarr", 64)
        before = finished_tiles(disk / "k.zarr")
        assert 0 < len(before) < 36
        assert verify(disk / "k.zarr").good
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        matrix = make(disk / "k.zarr", 64)
        assert all(finished_tiles(disk / "k.zarr")[name] == tile for name, tile in before.items())
        assert np.array_equal(np.asarray(matrix), expected(64))
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter tmp_path
        Path(folder).chmod(0o755)
        yield Path(folder, "k.zarr")


def test_a_read_only_store_is_refused_untouched(shared: Path) -> None:
    make(shared, 20)
    whole = store_hash(shared)
    (shared / "kernel/c/0/1").unlink()
    with read_only(shared), pytest.raises(StoreWriteError, match="permissions"):
        make(shared, 20)
    assert status(shared).tiles_done == 5
    make(shared, 20)
    assert store_hash(shared) == whole


def test_a_complete_store_is_used_where_nothing_may_be_written(shared: Path) -> None:
    model, y = KernelRidgeClassifier(KERNEL, backend="reference", store=shared), vectors(20)[:, 0] > 0
    coefficients = model.fit(vectors(20), y).dual_coef_
    with read_only(shared):
        assert np.array_equal(np.asarray(make(shared, 20, tile=None)), expected(20))
        assert np.array_equal(model.fit(vectors(20), y).dual_coef_, coefficients)
        assert resume(shared).shape == (20, 20)
        assert repair(shared).good
    (shared / "kernel/c/0/0").write_bytes(b"nonsense")
    with read_only(shared), pytest.raises(StoreWriteError, match=r"not repaired, and tile \(0, 0\) .* read-only"):
        repair(shared, progress=False)


@contextlib.contextmanager
def read_only(store: Path) -> Iterator[None]:
    """Make the store read-only; root, who could write all the same, becomes an ordinary user meanwhile."""
    modes = {path: path.stat().st_mode for path in (store, *store.rglob("*"))}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


def test_tiles_that_others_remove_meanwhile_are_missed_and_computed_again(tmp_path: Path) -> None:
    def remove(snapshot: Any) -> None:
        if snapshot.tiles_done == 20:
            shutil.rmtree(tmp_path / "k.zarr/kernel/c/0", ignore_errors=True)

    with pytest.raises(StoreWriteError, match=r"8 tiles, such as \(0, 0\), .* are gone"):
        make(tmp_path / "k.zarr", 60, progress=remove)
    assert np.array_equal(np.asarray(make(tmp_path / "k.zarr", 60)), expected(60))


def test_errors_of_the_operating_system_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, words in {errno.ENOSPC: "no room", errno.EDQUOT: "no room", errno.EROFS: "read-only"}.items():

        def refuse(descriptor: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreWriteError, match=words):
            LocalFiles(tmp_path).write("name", b"data")
    monkeypatch.undo()
    assert not (tmp_path / "name").exists()
