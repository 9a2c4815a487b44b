"""A store is continued, extended and repaired only with the same kernel, data and arithmetic, by any later version."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tangentless as tl
from crash.stores import KERNEL, contents, expected, finished_tiles, make, store_hash, vectors
from tangentless.backends import ARITHMETIC, NAMES
from tangentless.errors import ParameterError, StoreIncompleteError, StoreMismatchError
from tangentless.expression import read_kernel
from tangentless.gram import gram, open_gram, repair, resume, run, status, verify
from tangentless.gram.files import LocalFiles
from tangentless.gram.manifest import Manifest, differences, read_manifest


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


def test_a_tile_may_be_a_number_of_numpy_and_a_kernel_a_text(tmp_path: Path) -> None:
    gram(KERNEL, vectors(20), store=tmp_path / "k", backend="reference", tile=np.int64(8), progress=False)  # type: ignore[arg-type]
    (tmp_path / "k/kernel/c/0/1").unlink()
    assert np.array_equal(np.asarray(resume(tmp_path / "k", kernel=KERNEL, progress=False)), expected(20))


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


def test_a_store_is_continued_by_another_version_of_the_same_arithmetic(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents(store)
    (store / "kernel/c/0/2").unlink()
    monkeypatch.setattr(tl, "__version__", "9.9.9")
    make(store, 39)
    assert contents(store) == whole  # including the version that began the store


def test_a_store_of_another_arithmetic_is_read_and_verified_but_not_continued(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents(store)
    monkeypatch.setitem(ARITHMETIC, "reference", ARITHMETIC["reference"] + 1)
    words = f"arithmetic of 'reference' is .* now. Continue it with tangentless {tl.__version__},.* new store"
    for attempt in (lambda: make(store, 39), lambda: make(store, 50, extend=True), lambda: resume(store)):
        with pytest.raises(StoreMismatchError, match=words):
            attempt()
    assert np.array_equal(np.asarray(open_gram(store)), expected(39))
    assert status(store).complete
    assert verify(store).good
    assert repair(store).good
    assert contents(store) == whole
    (store / "kernel/c/0/1").write_bytes(b"nonsense")
    with pytest.raises(StoreMismatchError, match=words):
        repair(store)


def test_each_part_of_a_kernel_has_the_arithmetic_that_computes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARITHMETIC, "reference", 7)
    monkeypatch.setitem(ARITHMETIC, "vectors", 3)
    k = tl.kernel(KERNEL) + tl.classical.Linear()
    matrix = gram(k, vectors(9), store=tmp_path / "k.zarr", backend="reference", progress=False)
    assert matrix.manifest.arithmetic == (7, 3)


def test_every_backend_has_an_arithmetic() -> None:
    assert set(ARITHMETIC) == {*NAMES, "vectors"} - {"auto"}


def test_a_processor_that_rounds_differently_continues_a_store_only_if_it_may(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read_manifest(LocalFiles(store)).bits
    whole = contents(store)
    monkeypatch.setattr(run, "fingerprint", lambda *_: "00ff (another processor)")
    make(store, 39)  # allowed, since nothing is computed
    (store / "kernel/c/0/1").unlink()
    damaged = contents(store)
    for attempt in (make, lambda store, _, **options: resume(store, **options)):
        with pytest.raises(StoreMismatchError, match=r"rounds differently: its bits are 00ff .*pass mixed=True"):
            attempt(store, 39)
        assert contents(store) == damaged
    matrix = resume(store, mixed=True, progress=False)
    assert matrix.manifest.bits == (*own, "00ff (another processor)")
    assert contents(store)["kernel/c/0/1"] == whole["kernel/c/0/1"]
    assert verify(store).good
    (store / "kernel/c/0/1").unlink()
    make(store, 39)  # the store now names both processors
    monkeypatch.undo()
    (store / "kernel/c/0/1").unlink()
    make(store, 39)


# Stores of earlier versions


@pytest.fixture
def old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`make("k.zarr", 20, preprocessing="none")` as version 0.1.0 wrote it, read with the arithmetic of that time."""
    monkeypatch.setitem(ARITHMETIC, "reference", 1)
    with zipfile.ZipFile(Path(__file__).parent / "goldens/gram_store_0.1.0.zip") as archive:
        archive.extractall(tmp_path / "old.zarr")
    return tmp_path / "old.zarr"


def test_a_store_of_version_0_1_0_is_read_verified_and_complete(old_store: Path) -> None:
    manifest = json.loads((old_store / "zarr.json").read_text())["attributes"]["tangentless"]
    assert (manifest["format"], manifest["package"]) == (1, "0.1.0")
    assert "arithmetic" not in manifest
    before = contents(old_store)
    np.testing.assert_allclose(np.asarray(open_gram(old_store)), expected(20), rtol=1e-14)  # its BLAS may differ
    assert status(old_store).complete
    assert verify(old_store).good
    make(old_store, 20, preprocessing="none")
    assert repair(old_store).good
    assert contents(old_store) == before


def test_a_store_of_version_0_1_0_is_continued_repaired_and_extended(old_store: Path) -> None:
    metadata = {name: data for name, data in contents(old_store).items() if name.endswith(".json")}
    tiles = finished_tiles(old_store)
    for continue_store in (
        lambda: resume(old_store, progress=False),
        lambda: make(old_store, 20, preprocessing="none"),
    ):
        (old_store / "kernel/c/0/1").unlink()
        continue_store()
        np.testing.assert_allclose(np.asarray(open_gram(old_store)), expected(20), rtol=1e-14)
    (old_store / "kernel/c/0/1").write_bytes(b"nonsense")
    (old_store / "zarr.json").write_bytes(b"{")
    assert repair(old_store, progress=False).tiles == ((0, 1),)
    assert {name: data for name, data in contents(old_store).items() if name.endswith(".json")} == metadata
    assert {name for name, tile in finished_tiles(old_store).items() if tiles[name] != tile} == {"kernel/c/0/1"}
    matrix = make(old_store, 30, preprocessing="none", extend=True)
    np.testing.assert_allclose(np.asarray(matrix), expected(30), rtol=1e-14)
    assert verify(old_store).good
    assert (matrix.manifest.format, matrix.manifest.package) == (1, "0.1.0")


def test_a_store_of_version_0_1_0_is_refused_by_a_newer_arithmetic(
    old_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARITHMETIC, "reference", 2)
    with pytest.raises(StoreMismatchError, match=r"is 1 in the store, 2 now.*with tangentless 0\.1\.0, which began it"):
        resume(old_store)
    assert verify(old_store).good


def test_every_field_of_the_manifest_is_compared_but_its_notes(store: Path) -> None:
    from dataclasses import fields, replace

    stored = read_manifest(LocalFiles(store))
    for field in fields(Manifest):
        if field.name not in ("package", "grown_from", "format"):
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


def test_options_that_do_not_exist_are_refused_though_nothing_is_to_do(store: Path) -> None:
    for attempt in (resume, repair):
        with pytest.raises(TypeError, match="bakcend"):
            attempt(store, bakcend="cpu")  # type: ignore[call-arg]


KERNELS = [
    "kernel('myrtle5').mirrored()",
    "0.123456789 * kernel('relu') + (kernel('relu') + 2 * kernel('gaussian(0.3)'))",
]


@pytest.mark.parametrize("text", KERNELS)
def test_kernels_are_read_back_from_their_text(text: str) -> None:
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
    with pytest.raises(StoreMismatchError):
        read_kernel(text)


@pytest.mark.parametrize(
    "text", ["-" * 50_000 + "1", "(" * 300 + "1" + ")" * 300, "+".join(["kernel('relu')"] * 5_000)]
)
def test_texts_nested_too_deeply_are_refused_in_a_few_words(text: str) -> None:
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
    assert np.array_equal(open_gram(store)[:10, :10], expected(10))  # the old part is readable
    assert np.array_equal(np.asarray(make(store, 30)), expected(30))


def test_extending_needs_permission_the_same_first_rows_and_a_symmetric_matrix(store: Path) -> None:
    whole = contents(store)
    with pytest.raises(StoreMismatchError, match="extend=True"):
        make(store, 50)
    other = np.concatenate([vectors(39, seed=3), vectors(3)])
    with pytest.raises(StoreMismatchError, match=r"sha256 of X.*only if it begins with the rows that are stored"):
        gram(KERNEL, other, store=store, backend="reference", extend=True)
    with pytest.raises(StoreMismatchError, match="shape of X"):
        make(store, 30, extend=True)
    with pytest.raises(ParameterError, match="itself"):
        gram(KERNEL, vectors(39), vectors(39), store=store, backend="reference", extend=True)
    assert contents(store) == whole
    make(store, 39, extend=True)
    assert contents(store) == whole
