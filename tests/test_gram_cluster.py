"""On a Dask cluster: the same bytes, whichever process dies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import dask
import distributed
import numpy as np
import pytest

from crash.clusters import Processes, WorkerKiller
from crash.stores import KERNEL, expected, finished_tiles, make, store_hash, vectors
from tangentless.errors import ClusterError, StoreMismatchError, TangentlessError
from tangentless.gram import gram, open_gram, repair, resume, status, verify
from tangentless.gram.store import Store

COUNT, TILES = 120, 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Processes]:
    with Processes(allowed_failures=0) as processes:  # our code, not Dask, reassigns lost tiles
        yield processes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("whole") / "k.zarr"
    make(store, COUNT)
    return store_hash(store)


def test_workers_write_the_same_bytes_and_report_their_pace(cluster: Processes, tmp_path: Path, whole: str) -> None:
    snapshots: list[Any] = []
    with cluster.client() as client:
        make(tmp_path / "k.zarr", COUNT, scheduler=client, progress=snapshots.append)
        assert client.status == "running"  # the run does not close the caller's client
    assert store_hash(tmp_path / "k.zarr") == whole
    last = snapshots[-1]
    assert last.tiles_done == last.tiles == TILES
    assert last.pairs_done == last.pairs
    assert sum(pace.tiles for pace in last.workers.values()) == TILES
    assert len(last.workers) == 2


def test_only_missing_tiles_are_computed_and_extended(cluster: Processes, tmp_path: Path) -> None:
    store, address = tmp_path / "k.zarr", cluster_address(cluster)
    make(store, 60)
    (store / "kernel/c/1/3").unlink()
    before = finished_tiles(store)
    resume(store, scheduler=address, progress=False)
    assert all(finished_tiles(store)[name] == tile for name, tile in before.items())
    (store / "kernel/c/0/1").write_bytes(b"nonsense")
    assert repair(store, scheduler=address, progress=False).tiles == ((0, 1),)
    snapshots: list[Any] = []
    matrix = make(store, 75, scheduler=address, extend=True, progress=snapshots.append)
    assert np.array_equal(np.asarray(matrix), expected(75))
    computed = sum(pace.pairs for pace in snapshots[-1].workers.values())
    assert computed == 75 * 76 // 2 - 60 * 61 // 2


def kill_workers(cluster: Processes, tmp_path: Path, whole: str, kills: int) -> None:
    moments, done = Random(kills), 0
    while done < kills:
        store = tmp_path / "k.zarr"
        shutil.rmtree(store, ignore_errors=True)  # left from a round in which no kill came in time
        killer = WorkerKiller(cluster, kills - done, moments)
        killer.start()
        try:
            make(store, COUNT, scheduler=cluster_address(cluster))
        finally:
            killer.stop()
        assert store_hash(store) == whole
        done += killer.kills


def test_the_tiles_of_killed_workers_are_computed_by_others(cluster: Processes, tmp_path: Path, whole: str) -> None:
    kill_workers(cluster, tmp_path, whole, 2)


@pytest.mark.slow
def test_twenty_killed_workers(cluster: Processes, tmp_path: Path, whole: str) -> None:
    kill_workers(cluster, tmp_path, whole, 20)


def kill_schedulers(tmp_path: Path, whole: str, kills: int) -> None:
    store, moments = tmp_path / "k.zarr", Random(kills)
    for _ in range(kills):
        before = finished_tiles(store)
        with Processes() as cluster:
            moment = moments.randrange(5, 16)  # so that five kills leave some of the 120 tiles to compute

            def kill_when_some_are_done(snapshot: Any, cluster: Processes = cluster, moment: int = moment) -> None:
                if sum(pace.tiles for pace in snapshot.workers.values()) == moment:
                    cluster.scheduler.kill()

            with pytest.raises(ClusterError, match="scheduler is gone"):
                make(store, COUNT, scheduler=cluster_address(cluster), progress=kill_when_some_are_done)
        after = finished_tiles(store)
        assert len(after) > len(before)
        assert all(after[name] == tile for name, tile in before.items())
        assert verify(store).good
    before = finished_tiles(store)
    with Processes() as cluster:
        make(store, COUNT, scheduler=cluster_address(cluster))
    assert all(finished_tiles(store)[name] == tile for name, tile in before.items())
    assert store_hash(store) == whole


def test_a_killed_scheduler_costs_nothing_that_was_finished(tmp_path: Path, whole: str) -> None:
    kill_schedulers(tmp_path, whole, 1)


@pytest.mark.slow
def test_five_killed_schedulers(tmp_path: Path, whole: str) -> None:
    kill_schedulers(tmp_path, whole, 5)


def test_each_worker_reads_the_data_once(tmp_path: Path) -> None:
    reads: list[tuple[str, int]] = []
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as local:
        original = Store.read_images

        def counted(self: Store, name: str, panel: int) -> Any:
            with contextlib.suppress(ValueError):  # raised in threads of the client, which are no workers
                distributed.get_worker()
                reads.append((name, panel))
            return original(self, name, panel)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "read_images", counted)
            make(tmp_path / "k.zarr", 60, scheduler=local)
    assert sorted(reads) == [("x", panel) for panel in range(8)]


def test_workers_that_lack_the_package_are_named(tmp_path: Path) -> None:
    with (
        Processes(package=False) as cluster,
        pytest.raises(ClusterError, match=r"tcp://.* lacks tangentless .*No module"),
    ):
        make(tmp_path / "k.zarr", 20, scheduler=cluster_address(cluster))
    assert not (tmp_path / "k.zarr").exists()


def test_workers_that_cannot_run_the_backend_are_named(cluster: Processes, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"tcp://.*cannot run the backend: .*cuda"):
        make(tmp_path / "k.zarr", 20, scheduler=cluster_address(cluster), backend="cuda")
    assert not (tmp_path / "k.zarr").exists()


def test_workers_that_do_not_see_the_store_are_named(cluster: Processes) -> None:
    with pytest.raises(ClusterError, match=r"tcp://.* does not see the store at memory://"):
        make("memory://unseen.zarr", 20, scheduler=cluster_address(cluster))


def test_a_scheduler_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(ClusterError, match="no Dask"):
        make(tmp_path / "k.zarr", 20, scheduler="tcp://127.0.0.1:9")
    assert not (tmp_path / "k.zarr").exists()


@pytest.mark.parametrize("address", ["nowhere", "tcp://nowhere", "post://127.0.0.1:9"])
def test_an_address_that_is_none_is_refused_at_once(tmp_path: Path, address: str) -> None:
    started = time.monotonic()
    with pytest.raises(ClusterError, match=f"no Dask scheduler at '{address}'"):
        make(tmp_path / "k.zarr", 20, scheduler=address)
    assert time.monotonic() - started < 20


def test_errors_on_workers_come_back_as_they_are(cluster: Processes, tmp_path: Path) -> None:
    store, address = tmp_path / "k.zarr", cluster_address(cluster)
    make(store, 60, scheduler=address)
    with pytest.raises(StoreMismatchError, match="sha256"):
        gram(KERNEL, vectors(60, seed=1), store=store, scheduler=address, backend="reference")
    (store / "x/c/0/0").unlink()
    (store / "kernel/c/0/0").unlink()
    with pytest.raises(TangentlessError, match="panel 0 of the images x"):
        resume(store, scheduler=address, progress=False)
    assert status(store).writer is None
    assert len(np.asarray(open_gram(store)[8:, 8:])) == 52


def cluster_address(cluster: Processes) -> str:
    return str(json.loads(cluster.file.read_text())["address"])


def test_the_tests_run_real_processes(cluster: Processes) -> None:
    with cluster.client() as client:
        assert os.getpid() not in client.run(os.getpid).values()
