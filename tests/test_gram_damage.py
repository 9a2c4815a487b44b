"""Every flipped bit and every cut is found on reading, and repair puts the same bytes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from crash.stores import contents, expected, finished_tiles, make, vectors
from tangentless.errors import NotAStoreError, StoreDamagedError, StoreMismatchError
from tangentless.gram import open_gram, repair, verify
from tangentless.gram.files import LocalFiles
from tangentless.gram.manifest import damaged_metadata, read_manifest, recover_manifest
from tangentless.gram.store import Store

COUNT = 20
METADATA = ["kernel/manifest.json", "kernel/zarr.json", "x/zarr.json", "zarr.json"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make(tmp_path / "k.zarr", COUNT)
    return tmp_path / "k.zarr"


def flip(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def all_damage(data: bytes) -> Iterator[bytes]:
    yield from (flip(data, bit) for bit in range(8 * len(data)))
    yield from (data[:length] for length in range(len(data)))
    yield data + b"\0"


def assert_found(path: Path, cases: Iterator[bytes], read: Callable[[], object]) -> int:
    """Check that every damaged version of a file is noticed; returns how many there were."""
    whole, tried = path.read_bytes(), 0
    for damaged in cases:
        path.write_bytes(damaged)
        with pytest.raises(StoreDamagedError):
            read()
        tried += 1
    path.write_bytes(whole)
    read()
    return tried


def test_every_bit_and_every_length_of_a_tile_is_checked_on_read(tmp_path: Path) -> None:
    matrix, path = make(tmp_path / "k.zarr", 8, tile=4), tmp_path / "k.zarr/kernel/c/0/1"
    tried = assert_found(path, all_damage(path.read_bytes()), lambda: matrix[:4, 4:8])
    assert tried == 9 * path.stat().st_size + 1 > 1000


def test_every_bit_and_every_length_of_the_manifest_is_checked_on_opening(store: Path) -> None:
    path = store / "zarr.json"
    assert assert_found(path, all_damage(path.read_bytes()), lambda: open_gram(store)) > 5000


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", METADATA)
def test_verify_finds_damage_all_over_the_metadata(store: Path, name: str, every: int) -> None:
    data, chance = (store / name).read_bytes(), random.Random(0)
    flipped = [flip(data, 8 * place + chance.randrange(8)) for place in range(0, len(data), every)]
    files = LocalFiles(store)
    for damaged in [*flipped, *(data[:length] for length in range(0, len(data), every))]:
        (store / name).write_bytes(damaged)
        assert damaged_metadata(files, recover_manifest(files)) == [name]  # the part of `verify` that reads no tiles
    assert verify(store).metadata == (name,)


@pytest.mark.parametrize("name", METADATA[:-1])
def test_a_matrix_is_read_while_an_extension_replaces_its_metadata(store: Path, name: str) -> None:
    make(store.with_name("longer.zarr"), 2 * COUNT)
    (store / name).write_bytes((store.with_name("longer.zarr") / name).read_bytes())
    assert np.array_equal(np.asarray(open_gram(store)), expected(COUNT))


def test_images_are_checked_on_read(store: Path) -> None:
    path = store / "x/c/1/0"
    files = LocalFiles(store)
    opened = Store(files, read_manifest(files))
    assert assert_found(path, all_damage(path.read_bytes()), lambda: opened.read_images("x", 1)) > 2000


@pytest.mark.parametrize("wanted", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_repair_restores_the_bytes_of_damaged_tiles_and_touches_no_other(store: Path, wanted: int) -> None:
    whole, chance, tried = contents(store), random.Random(1), 0
    tiles = sorted(finished_tiles(store))
    while tried < wanted:
        damaged = chance.sample(tiles, 3)
        before = finished_tiles(store)
        for name in damaged:
            data = whole[name]
            cut = chance.random() < 0.3
            (store / name).write_bytes(
                data[: chance.randrange(len(data))] if cut else flip(data, chance.randrange(8 * len(data)))
            )
            with pytest.raises(StoreDamagedError):
                np.asarray(open_gram(store))
        found = repair(store, progress=False)
        assert {f"kernel/c/{i}/{j}" for i, j in found.tiles} == set(damaged)
        assert contents(store) == whole
        assert all(finished_tiles(store)[name] == before[name] for name in tiles if name not in damaged)
        tried += len(damaged)
    assert verify(store).good


@pytest.mark.parametrize("name", METADATA)
def test_repair_restores_metadata_from_the_other_copy(store: Path, name: str) -> None:
    whole, chance = contents(store), random.Random(2)
    data = whole[name]
    cases = [flip(data, chance.randrange(8 * len(data))) for _ in range(15)]
    cases += [data[: chance.randrange(len(data))] for _ in range(10)]
    for damaged in cases:
        (store / name).write_bytes(damaged)
        assert repair(store, progress=False).metadata == (name,)
        assert contents(store) == whole
    (store / name).unlink()
    assert repair(store, progress=False).metadata == (name,)
    assert contents(store) == whole


def test_a_run_does_not_continue_a_damaged_manifest(store: Path) -> None:
    whole = contents(store)
    (store / "zarr.json").write_bytes(flip(whole["zarr.json"], 4000))
    with pytest.raises(StoreDamagedError, match="repair"):
        make(store, COUNT)
    repair(store)
    assert np.array_equal(np.asarray(make(store, COUNT)), expected(COUNT))
    assert contents(store) == whole


def test_both_copies_of_the_manifest_damaged_is_said_so(store: Path) -> None:
    for name in ("zarr.json", "kernel/manifest.json"):
        (store / name).write_bytes(b"{}")
    with pytest.raises(StoreDamagedError):
        repair(store)
    with pytest.raises(NotAStoreError):
        repair(store.with_name("nowhere"))


def test_damaged_images_are_restored_from_the_data_and_only_from_the_right_data(store: Path) -> None:
    whole = contents(store)
    (store / "x/c/1/0").write_bytes(flip(whole["x/c/1/0"], 5))
    assert verify(store).images == (("x", 1),)
    with pytest.raises(StoreDamagedError, match="give the data"):
        repair(store)
    with pytest.raises(StoreMismatchError, match="hash differs"):
        repair(store, vectors(COUNT, seed=1))
    assert repair(store, vectors(COUNT)).images == (("x", 1),)
    assert contents(store) == whole
