"""A matrix in a store equals that in memory bit for bit, however it is read and wherever it is stored."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tangentless as tl
from crash.stores import KERNEL, contents, expected, finished_tiles, make, store_hash, vectors
from tangentless.backends import ARITHMETIC
from tangentless.devices import Device
from tangentless.errors import (
    BackendError,
    InputError,
    NotAStoreError,
    ParameterError,
    StoreDamagedError,
    StoreVersionError,
)
from tangentless.gram import gram, open_gram, repair, resume, status, verify
from tangentless.gram.cli import _options
from tangentless.gram.compute import Panels, choose_tile, parse_memory, plan_memory
from tangentless.gram.files import LocalFiles
from tangentless.gram.manifest import read_manifest, render
from tangentless.gram.store import Layout
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


def test_chunks_end_with_the_published_checksum(store: Path) -> None:
    """CRC-32C by google_crc32c equals a computation bit by bit from its polynomial."""
    data = (store / "x/c/4/0").read_bytes()
    remainder = 0xFFFFFFFF
    for octet in data[:-4]:
        remainder ^= octet
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    assert data[-4:] == (remainder ^ 0xFFFFFFFF).to_bytes(4, "little")


def test_stores_are_written_and_read_without_optional_packages(tmp_path: Path) -> None:
    script = """
import sys
for name in ("zarr", "numba", "dask", "dask.array", "distributed", "fsspec"):
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
    make(tmp_path / "other.zarr", 20)
    assert store_hash(tmp_path / "k.zarr") == store_hash(tmp_path / "other.zarr")


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


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ftp://user:hunter2@host/k.zarr", r"^ftp://user:\*\*\*@\.\.\. holds a password"),
        ("s3://bucket/k.zarr?token=hunter2", "^s3://bucket/k.zarr is followed by a query"),
        ("s3://", "names no place"),
    ],
)
def test_addresses_hold_no_credentials(address: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        make(address, 20)
    assert "hunter2" not in str(caught.value)


def test_options_of_the_command_line_are_texts_flags_or_objects() -> None:
    given = ["key=0123", "anon=false", 'client_kwargs={"region_name": "eu"}', "endpoint_url=http://a=b"]
    found = {"key": "0123", "anon": False, "client_kwargs": {"region_name": "eu"}, "endpoint_url": "http://a=b"}
    assert _options(given) == found
    for wrong in ("key", "client_kwargs={nonsense"):
        with pytest.raises(ParameterError, match="--storage takes"):
            _options([wrong])


def test_unknown_addresses_are_refused() -> None:
    pytest.importorskip("fsspec", reason="fsspec is an extra")
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

    kept = Panels(tl.kernel(KERNEL), Device("reference"), read_panel, panels or 100)
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
    assert manifest["arithmetic"] == [ARITHMETIC["reference"]]
    assert len(manifest["checksum"]) == 64


def test_the_module_is_imported_by_its_name_and_can_be_called(tmp_path: Path) -> None:
    import tangentless.gram as module

    assert module is tl.gram is sys.modules["tangentless.gram"]
    assert module.open_gram is open_gram
    matrix = module(KERNEL, vectors(5), store=tmp_path / "k.zarr", backend="reference", progress=False)
    assert np.array_equal(np.asarray(matrix), expected(5))
