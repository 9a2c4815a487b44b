"""A matrix in a store is the matrix in memory: bit for bit, for every way to read it, wherever it lies."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tangentless as tl
from conftest import wait_until
from crash.stores import KERNEL, contents, expected, finished_tiles, make, store_hash, vectors
from tangentless.backends import get_backend
from tangentless.errors import (
    BackendError,
    InputError,
    NotAStoreError,
    ParameterError,
    StoreDamagedError,
    StoreIncompleteError,
    StoreLockedError,
    StoreMismatchError,
    StoreVersionError,
)
from tangentless.gram import castagnoli, gram, lock, open_gram, repair, resume, status, verify
from tangentless.gram.checksum import crc32c
from tangentless.gram.compute import Panels
from tangentless.gram.files import LocalFiles, find_files
from tangentless.gram.manifest import Manifest, differences
from tangentless.gram.metadata import read_manifest, render
from tangentless.gram.tiles import Layout, choose_tile, parse_memory, plan_memory
from tangentless.kernel import Kernel

KEYS: list[Any] = [
    np.s_[3],
    np.s_[-1],
    np.s_[3, 4],
    np.s_[...],
    np.s_[..., 2],
    np.s_[..., 1:3],
    np.s_[10:30],
    np.s_[:, 7:40],
    np.s_[5:40:7, ::-3],
    np.s_[33:2:-1, 6],
    np.s_[10:10],
    np.s_[:, [4, 3, 38, -1, 4]],
    np.s_[np.arange(39) % 3 == 0],
    np.s_[[20, 1], 5:9],
    np.s_[:5, []],
    np.ix_([1, 38, 2], [0, 17, 0]),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make(tmp_path / "k.zarr", 39)
    return tmp_path / "k.zarr"


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_every_key_reads_what_it_reads_from_an_array(store: Path, key: Any) -> None:
    found, wanted = open_gram(store)[key], expected(39)[key]
    assert np.shape(found) == np.shape(wanted)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("key", [39, -40, (0, 0, 0), 1.5, np.zeros(3, bool), [[1, 2], [3, 4]], [0, 99]], ids=str)
def test_keys_that_do_not_fit_are_refused(store: Path, key: Any) -> None:
    with pytest.raises(IndexError):
        open_gram(store)[key]


def test_two_index_arrays_are_refused_with_advice(store: Path) -> None:
    with pytest.raises(InputError, match="ix_"):
        open_gram(store)[[1, 2], [3, 4]]


def test_the_matrix_behaves_like_an_array(store: Path) -> None:
    matrix = open_gram(store)
    assert (matrix.shape, matrix.ndim, matrix.dtype, len(matrix), matrix.nbytes) == (
        (39, 39),
        2,
        float,
        39,
        39 * 39 * 8,
    )
    assert np.array_equal(np.asarray(matrix), expected(39))
    assert np.asarray(matrix, dtype=np.float32).dtype == np.float32
    assert np.array_equal(matrix.diagonal(), np.diagonal(expected(39)))
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(matrix))), expected(39))
    with pytest.raises(ValueError, match="copy"):
        np.array(matrix, copy=False)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_stored_matrix_equals_the_one_in_memory_bit_for_bit(tmp_path: Path, backend: str, mirrored: bool) -> None:
    k: Kernel = tl.kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")
    k = k.mirrored() if mirrored else k
    X = np.random.default_rng(0).standard_normal((21, 8, 8, 2)).astype(np.float32)
    Z = np.random.default_rng(1).standard_normal((10, 8, 8, 2)).astype(np.float32)
    options: dict[str, Any] = {"backend": backend, "tile": 8, "progress": False}
    assert np.array_equal(np.asarray(gram(k, X, store=tmp_path / "s.zarr", **options)), k(X, backend=backend))
    between = gram(k, X, Z, store=tmp_path / "r.zarr", **options)
    assert np.array_equal(np.asarray(between), k(X, Z, backend=backend))
    assert np.array_equal(between[3:20:2, ::-1], k(X, Z, backend=backend)[3:20:2, ::-1])
    assert np.array_equal(np.asarray(resume(tmp_path / "r.zarr")), k(X, Z, backend=backend))


def test_digits_near_one_are_kept(tmp_path: Path) -> None:
    base = vectors(1)[0]
    X = base + 1e-6 * vectors(10, seed=1)
    matrix = np.asarray(gram(KERNEL, X, store=tmp_path / "k.zarr", backend="reference", progress=False))
    exact = tl.kernel(KERNEL)(X, backend="reference")
    assert 0 < (1 - exact[0, 1]) < 1e-10
    assert np.array_equal(1 - matrix, 1 - exact)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", ">f4"])
def test_images_of_every_kind_are_kept_and_read_by_zarr(tmp_path: Path, dtype: str) -> None:
    zarr = pytest.importorskip("zarr")
    X = (10 * np.abs(vectors(19)) + 1).astype(dtype)
    matrix = gram(KERNEL, X, store=tmp_path / "k.zarr", backend="reference", tile=8, progress=False)
    group = zarr.open_group(tmp_path / "k.zarr", mode="r")
    assert np.array_equal(group["x"][:], X)
    assert group["x"].dtype == X.dtype.newbyteorder("=")
    assert np.array_equal(np.asarray(matrix), tl.kernel(KERNEL)(X, backend="reference"))


def test_any_zarr_reader_reads_the_matrix_and_finds_damage(store: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(store, mode="r")
    assert sorted(name for name, _ in group.members()) == ["kernel", "x"]
    values = group["kernel"][:]
    stored = ~np.isnan(values)
    assert stored[np.triu_indices(39)].all()
    assert np.array_equal(values[stored], expected(39)[stored])
    assert group.attrs["tangentless"]["kernel"] == "kernel('normalize relu')"
    data = bytearray((store / "kernel/c/0/1").read_bytes())
    data[100] ^= 1
    (store / "kernel/c/0/1").write_bytes(data)
    with pytest.raises(ValueError, match="checksum"):
        group["kernel"][:8, 8:16]


def test_dask_reads_it_a_tile_at_a_time(store: Path) -> None:
    pytest.importorskip("dask.array")
    lazy = open_gram(store).to_dask()
    assert lazy.chunks[0] == (8, 8, 8, 8, 7)
    assert np.array_equal(lazy.compute(), expected(39))
    assert np.allclose(lazy.dot(np.ones(39)).compute(), expected(39) @ np.ones(39))


def test_the_two_checksums_agree() -> None:
    google = pytest.importorskip("google_crc32c")
    for length in [*range(40), 1000, 4099, 65536, 100_001]:
        data = np.random.default_rng(length).bytes(length)
        assert castagnoli.value(data) == google.value(data) == crc32c(data)


def test_stores_are_written_and_read_without_zarr_or_google(tmp_path: Path) -> None:
    script = """
import sys
for name in ("zarr", "google_crc32c", "numba", "dask", "dask.array", "distributed", "fsspec"):
    sys.modules[name] = None
import numpy as np
from crash.stores import expected, make
from tangentless.errors import ParameterError
matrix = make("k.zarr", 20)
assert np.array_equal(np.asarray(matrix), expected(20))
for attempt in (matrix.to_dask, lambda: make("d", 20, scheduler="tcp://:1"), lambda: make("s3://bucket/k", 20)):
    try:
        attempt()
        raise SystemExit("nothing was missing")
    except ParameterError as error:
        assert "pip install" in str(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
    make(tmp_path / "other.zarr", 20)
    assert store_hash(tmp_path / "k.zarr") == store_hash(tmp_path / "other.zarr")


# Resuming


def test_a_second_run_computes_nothing(store: Path) -> None:
    before = finished_tiles(store)
    make(store, 39)
    assert finished_tiles(store) == before


def test_missing_and_cut_tiles_are_computed_and_no_others(store: Path) -> None:
    whole, before = contents(store), finished_tiles(store)
    (store / "kernel/c/1/3").unlink()
    (store / "kernel/c/0/2").write_bytes(b"short")
    assert status(store).tiles_done == 13
    with pytest.raises(StoreIncompleteError):
        open_gram(store)[8:16, 24:32]
    snapshots: list[Any] = []
    resume(store, progress=snapshots.append)
    assert contents(store) == whole
    assert {name for name, tile in finished_tiles(store).items() if before[name] != tile} == {
        "kernel/c/1/3",
        "kernel/c/0/2",
    }
    assert snapshots[-1].tiles_done == snapshots[-1].tiles == 15
    assert snapshots[-1].pairs_done == pytest.approx(snapshots[-1].pairs)


CHANGES: dict[str, dict[str, Any]] = {
    "kernel": {"kernel": "normalize gaussian"},
    "preprocessing": {"preprocessing": "whitened"},
    "sha256 of X": {"X": vectors(39, seed=5)},
    "dtype of X": {"X": vectors(39).astype(np.float32)},
    "shape of X": {"X": vectors(39)[:30]},
    "Z": {"Z": vectors(39)},
    "backend": {"backend": "cpu"},
    "precision": {"precision": "float64"},
    "tile": {"tile": 16},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_store_is_not_continued_with_anything_different(store: Path, name: str) -> None:
    whole = contents(store)
    given: dict[str, Any] = {"kernel": KERNEL, "X": vectors(39), "backend": "reference", "progress": False}
    with pytest.raises(StoreMismatchError, match=re.escape(name)):
        gram(store=store, **(given | CHANGES[name]))
    assert contents(store) == whole


def test_a_store_is_not_continued_by_another_version(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl, "__version__", "9.9.9")
    with pytest.raises(StoreMismatchError, match=r"version of tangentless is '.*' in the store, '9\.9\.9' now"):
        make(store, 39)
    with pytest.raises(StoreMismatchError, match="version"):
        resume(store)
    assert np.array_equal(np.asarray(open_gram(store)), expected(39))


def test_every_field_of_the_manifest_is_compared(store: Path) -> None:
    from dataclasses import fields, replace

    stored = read_manifest(LocalFiles(store))
    for field in fields(Manifest):
        if field.name != "grown_from":
            assert list(differences(stored, replace(stored, **{field.name: "other"}))), field.name


def test_a_kernel_that_cannot_be_read_back_is_asked_for(tmp_path: Path) -> None:
    class Own(type(tl.kernel(KERNEL))):  # type: ignore[misc]
        def __repr__(self) -> str:
            return "Own()"

    own = Own(tl.kernel(KERNEL).architecture)
    gram(own, vectors(20), store=tmp_path / "k.zarr", backend="reference", tile=8, progress=False)
    (tmp_path / "k.zarr/kernel/c/0/1").unlink()
    with pytest.raises(StoreMismatchError, match="kernel="):
        resume(tmp_path / "k.zarr")
    assert np.array_equal(np.asarray(resume(tmp_path / "k.zarr", kernel=own)), expected(20))


KERNELS = [
    "kernel('myrtle5').mirrored()",
    "0.123456789 * kernel('relu') + (kernel('relu') + 2 * kernel('gaussian(0.3)'))",
]


@pytest.mark.parametrize("text", KERNELS)
def test_kernels_are_read_back_from_their_text(text: str) -> None:
    from tangentless.gram.expression import read_kernel

    assert repr(read_kernel(text)) == text


NO_KERNELS = [
    "print('x')",
    "kernel('relu') -",
    "__import__('os')",
    "kernel('nonsense')",
    "1 + 1",
    "(1).mirrored()",
]


@pytest.mark.parametrize("text", NO_KERNELS)
def test_texts_that_are_no_kernels_are_refused(text: str) -> None:
    from tangentless.gram.expression import read_kernel

    with pytest.raises(StoreMismatchError):
        read_kernel(text)


@pytest.mark.parametrize(
    "text", ["-" * 50_000 + "1", "(" * 300 + "1" + ")" * 300, "+".join(["kernel('relu')"] * 5_000)]
)
def test_texts_nested_too_deeply_are_refused_in_a_few_words(text: str) -> None:
    from tangentless.gram.expression import read_kernel

    with pytest.raises(StoreMismatchError, match="nested") as caught:
        read_kernel(text)
    assert len(str(caught.value)) < 600


# Extending


@pytest.mark.parametrize(("before", "after"), [(16, 24), (20, 39), (20, 23), (3, 39), (39, 40)])
def test_extending_computes_only_what_is_new(tmp_path: Path, before: int, after: int) -> None:
    store = tmp_path / "k.zarr"
    make(store, before)
    finished = finished_tiles(store)
    snapshots: list[Any] = []
    matrix = make(store, after, extend=True, progress=snapshots.append)
    assert np.array_equal(np.asarray(matrix), expected(after))
    new_pairs = after * (after + 1) // 2 - before * (before + 1) // 2
    assert snapshots[-1].pairs_done - snapshots[0].pairs_done + 1 == pytest.approx(new_pairs)
    whole_tiles = before // 8
    kept = [name for name in finished if int(name.rpartition("/")[2]) < whole_tiles]
    assert all(finished_tiles(store)[name] == finished[name] for name in kept)
    make(tmp_path / "fresh.zarr", after)
    assert store_hash(store, tiles_only=True) == store_hash(tmp_path / "fresh.zarr", tiles_only=True)
    assert verify(store).good
    assert status(store).complete


def test_extending_twice_before_the_first_is_done(tmp_path: Path) -> None:
    store = tmp_path / "k.zarr"
    make(store, 10)

    def stop(snapshot: Any) -> None:
        raise KeyboardInterrupt

    for count in (20, 30):
        with pytest.raises(KeyboardInterrupt):
            make(store, count, extend=True, progress=stop)
        assert verify(store).good
        assert not status(store).complete
    with pytest.raises(StoreIncompleteError):
        open_gram(store)[:8, 8:16]
    assert np.array_equal(np.asarray(make(store, 30)), expected(30))


def test_extending_needs_permission_the_same_first_rows_and_a_symmetric_matrix(store: Path) -> None:
    whole = contents(store)
    with pytest.raises(StoreMismatchError, match="extend=True"):
        make(store, 50)
    other = np.concatenate([vectors(39, seed=3), vectors(3)])
    with pytest.raises(StoreMismatchError, match="sha256 of X"):
        gram(KERNEL, other, store=store, backend="reference", extend=True)
    with pytest.raises(StoreMismatchError, match="shape of X"):
        make(store, 30, extend=True)
    with pytest.raises(ParameterError, match="itself"):
        gram(KERNEL, vectors(39), vectors(39), store=store, backend="reference", extend=True)
    assert contents(store) == whole
    make(store, 39, extend=True)
    assert contents(store) == whole


# Two writers


def test_a_second_writer_is_refused_while_the_first_is_at_work(store: Path) -> None:
    files = find_files(store)
    with lock.hold(files):
        owner = status(store).writer
        assert owner is not None
        assert (owner.process, owner.host) == (os.getpid(), socket.gethostname())
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on"):
            make(store, 39)
        with pytest.raises(StoreLockedError):
            repair(store)
        assert np.array_equal(np.asarray(open_gram(store)), expected(39))
    assert status(store).writer is None
    make(store, 39)


def named_lock(files: Any, **changes: Any) -> None:
    from dataclasses import replace

    files.write(lock.LOCK, replace(lock.Owner.me(), **changes).to_bytes())


def test_without_system_locks_an_owner_is_named_and_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_take_system_lock", lambda root: None)
    monkeypatch.setattr(lock, "_RENEWED", 0.02)
    files = LocalFiles(tmp_path)
    with lock.hold(files) as check:
        first = lock.Owner.read(files.read(lock.LOCK))
        with pytest.raises(StoreLockedError), lock.hold(files):
            pass
        assert first is not None
        wait_until(lambda: (owner := lock.Owner.read(files.read(lock.LOCK))) is not None and owner.seen > first.seen)
        check()

        def is_lost() -> bool:
            named_lock(files, token="another")  # again and again: ours may be renewed at that very moment
            try:
                check()
            except StoreLockedError:
                return True
            return False

        wait_until(is_lost)
    assert (tmp_path / lock.LOCK).exists()  # it is the other's now


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, False),
        ({"host": "elsewhere", "process": 1}, False),
        ({"host": "elsewhere", "seen": 0.0}, True),
        ({"process": 2**22 + 1}, True),
        ({"born": "another time"}, True),
    ],
)
def test_a_lock_is_taken_over_only_from_the_dead_or_silent(changes: dict[str, Any], gone: bool) -> None:
    files = find_files("memory://taken-over.zarr")
    named_lock(files, token="other", **changes)
    if gone:
        with lock.hold(files):
            pass
        assert lock.find_owner(files) is None
    else:
        assert lock.find_owner(files) is not None
        with pytest.raises(StoreLockedError), lock.hold(files):
            pass
        files.remove(lock.LOCK)


# Elsewhere


def test_addresses_of_fsspec_hold_the_same_bytes(store: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    address = f"memory://{tmp_path.name}/k.zarr"
    matrix = make(address, 39)
    assert np.array_equal(np.asarray(matrix), expected(39))
    assert np.array_equal(np.asarray(make(address, 39)), expected(39))
    system, root = fsspec.core.url_to_fs(address)
    there = {path.removeprefix(f"{root}/"): system.cat_file(path) for path in system.find(root)}
    assert there == contents(store)
    system.pipe_file(f"{root}/kernel/c/0/1", b"nonsense")
    with pytest.raises(StoreDamagedError):
        matrix[:8, 8:16]
    assert verify(address).tiles == ((0, 1),)
    repair(address, progress=False)
    assert np.array_equal(np.asarray(make(address, 45, extend=True)), expected(45))
    with pytest.raises(NotAStoreError):
        open_gram(f"memory://{tmp_path.name}/other.zarr")


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    make(f"file://{tmp_path}/k.zarr", 20)
    assert np.array_equal(np.asarray(open_gram(tmp_path / "k.zarr")), expected(20))


def test_unknown_addresses_are_refused() -> None:
    with pytest.raises(NotAStoreError, match="nonsense"):
        make("nonsense://k.zarr", 20)
    with pytest.raises(ParameterError):
        make("", 20)


# Bad input


def test_what_is_not_a_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match=r"notes\.txt"):
        make(tmp_path, 20)
    with pytest.raises(NotAStoreError):
        make(tmp_path / "notes.txt", 20)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    for read in (open_gram, status, verify, resume, repair):
        for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "nowhere"):
            with pytest.raises(NotAStoreError):
                read(path)


def test_another_zarr_group_is_left_alone(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.open_group(tmp_path / "other.zarr", mode="w")
    before = contents(tmp_path / "other.zarr")
    with pytest.raises(NotAStoreError):
        make(tmp_path / "other.zarr", 20)
    assert contents(tmp_path / "other.zarr") == before


def test_a_store_of_a_newer_format_is_refused_untouched(store: Path) -> None:
    from dataclasses import replace

    newer = replace(read_manifest(LocalFiles(store)), format=99)
    for name, data in render(newer).items():
        (store / name).write_bytes(data)
    before = contents(store)
    for attempt in (lambda: open_gram(store), lambda: make(store, 39), lambda: resume(store), lambda: repair(store)):
        with pytest.raises(StoreVersionError, match="upgrade"):
            attempt()
    assert contents(store) == before


def test_entries_that_are_not_finite_are_not_stored(tmp_path: Path) -> None:
    from tangentless.backends.reference import ReferenceBackend

    class Broken(ReferenceBackend):
        def block(self, *arguments: Any, **options: Any) -> Any:
            return np.full_like(super().block(*arguments, **options), np.nan)

    with pytest.raises(BackendError, match="NaN"):
        make(tmp_path / "k.zarr", 20, backend=Broken())
    assert not finished_tiles(tmp_path / "k.zarr")


def test_bad_data_and_parameters_make_no_store(tmp_path: Path) -> None:
    store = tmp_path / "k.zarr"
    bad: list[tuple[type[Exception], dict[str, Any]]] = [
        (InputError, {"X": np.array([[np.nan, 1.0]])}),
        (InputError, {"X": vectors(5), "Z": vectors(5)[:, :2]}),
        (ParameterError, {"tile": 0}),
        (ParameterError, {"memory": "much"}),
        (ParameterError, {"memory": 100}),
        (ParameterError, {"progress": "loud"}),
        (ParameterError, {"precision": "float16"}),
        (BackendError, {"backend": "abacus"}),
    ]
    for kind, options in bad:
        given: dict[str, Any] = {"kernel": KERNEL, "X": vectors(5), "backend": "reference", "progress": False}
        with pytest.raises(kind):
            gram(store=store, **(given | options))
        assert not store.exists()


# Plans


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("panels", [None, 2, 3, 7])
def test_every_tile_comes_once_and_few_panels_are_read(symmetric: bool, panels: int | None) -> None:
    layout = Layout(50, 50 if symmetric else 70, 8, symmetric)
    tiles = list(layout.tiles(panels))
    assert len(tiles) == len(set(tiles)) == layout.count
    assert sum(layout.pairs(*tile) for tile in tiles) == layout.total_pairs
    read: list[tuple[str, int]] = []

    def read_panel(name: str, panel: int) -> Any:
        read.append((name, panel))
        return vectors(1)

    kept = Panels(tl.kernel(KERNEL), get_backend("reference"), read_panel, panels or 100)
    for i, j in tiles:
        assert len(kept["x", i]) == len(kept["x" if symmetric else "z", j]) == 1
    groups = -(-layout.grid[1] // max(1, (panels or 100) - 2))
    assert len(read) <= layout.grid[1] + groups * layout.grid[0]


def test_tiles_follow_the_work_and_the_memory() -> None:
    deep, shallow = tl.kernel("myrtle10"), tl.kernel("conv3 relu globalpool")
    many, most = (50_000, 50_000), (1_000_000, 1_000_000)
    assert choose_tile(deep, (32, 32, 3), many, "cpu", 6 << 30) == 256
    assert choose_tile(deep, (32, 32, 3), many, "cuda", 6 << 30) == 1024
    assert choose_tile(shallow, (8, 8, 1), many, "cpu", 6 << 30) == 1024
    assert choose_tile(deep, (32, 32, 3), most, "cpu", 6 << 30) == 2048
    assert choose_tile(deep, (32, 32, 3), most, "cpu", 64 << 20) < 1024
    assert choose_tile(shallow, (8, 8, 1), (40, 40), "cpu", 6 << 30) == 16
    assert plan_memory(deep, (32, 32, 3), 256, 72 << 20) == 2
    assert plan_memory(deep, (32, 32, 3), 256, 6 << 30) > plan_memory(deep, (32, 32, 3), 256, 1 << 30)
    assert 0 < parse_memory(None) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def test_the_manifest_says_what_the_store_is(store: Path) -> None:
    manifest = json.loads((store / "zarr.json").read_text())["attributes"]["tangentless"]
    assert manifest["architectures"] == ["normalize relu"]
    assert manifest["x"]["shape"] == [39, 5]
    assert manifest["package"] == tl.__version__
    assert len(manifest["checksum"]) == 64
