"""Stores on a real S3 server over HTTP: caches, faults, outages, credentials, and workers that fail in several ways."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from typer.testing import CliRunner

from crash.clusters import Processes
from crash.s3 import KEYS, Proxy, Server, free_port, options
from crash.stores import KERNEL, TILE, contents, expected, make, vectors
from tangentless import KernelRidgeClassifier
from tangentless.errors import ClusterError, StoreAccessError, StoreLockedError, TangentlessError
from tangentless.gram import files as files_module
from tangentless.gram import gram, lock, open_gram, repair, resume, status, verify
from tangentless.gram.cli import app
from tangentless.models import save_model
from tangentless.solve import solve_conjugate, solve_ridge

COUNT, TILES = 36, 15


@pytest.fixture(scope="module", autouse=True)
def no_other_credentials() -> Iterator[None]:
    """Remove credentials from the environment of this and of started processes: only `storage_options` has them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            patch.setenv(name, os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="module")
def server(no_other_credentials: None) -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as running:
        yield running


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    store = tmp_path_factory.mktemp("whole") / "k.zarr"
    make(store, COUNT)
    return contents(store)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}/k.zarr"


@pytest.fixture(scope="module")
def cluster(no_other_credentials: None) -> Iterator[Processes]:
    with Processes() as processes:
        yield processes


def test_a_store_on_s3_has_the_bytes_of_one_on_disk(server: Server, address: str, whole: dict[str, bytes]) -> None:
    given: dict[str, Any] = {"storage_options": options(server.port)}
    matrix = make(address, COUNT, **given)
    assert np.array_equal(np.asarray(matrix), expected(COUNT))
    assert server.contents(address) == whole
    assert status(address, **given).complete
    assert verify(address, **given).good
    server.system.pipe_file(f"{address}/kernel/c/0/1", b"nonsense")
    assert repair(address, progress=False, **given).tiles == ((0, 1),)
    assert server.contents(address) == whole
    longer = make(address, COUNT + 15, extend=True, **given)
    assert np.array_equal(np.asarray(longer), expected(COUNT + 15))


def test_what_others_wrote_is_read_at_once(server: Server, address: str) -> None:
    """Listings are not cached, neither after `status` nor in a matrix that was opened before."""
    given: dict[str, Any] = {"storage_options": options(server.port)}
    make(address, COUNT, **given)
    server.system.rm_file(f"{address}/kernel/c/1/3")
    early = open_gram(address, **given)
    assert status(address, **given).tiles_done == TILES - 1
    code = f"from tangentless.gram import resume; resume({address!r}, storage_options={options(server.port)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert status(address, **given).complete
    assert np.array_equal(np.asarray(early), expected(COUNT))


def test_a_part_finished_store_is_finished_by_workers_and_read_here(
    server: Server, cluster: Processes, address: str, whole: dict[str, bytes]
) -> None:
    given: dict[str, Any] = {"storage_options": options(server.port)}
    make(address, COUNT, **given)
    for name in ("kernel/c/1/3", "kernel/c/0/2"):
        server.system.rm_file(f"{address}/{name}")
    with cluster.client() as client:
        matrix = resume(address, scheduler=client, progress=False, **given)
    assert np.array_equal(np.asarray(matrix), expected(COUNT))
    assert server.contents(address) == whole


def test_requests_that_fail_in_passing_are_repeated(proxy: Proxy, address: str) -> None:
    proxy.failing = 0.2
    matrix = make(address, COUNT, storage_options=options(proxy.port))
    assert np.array_equal(np.asarray(matrix), expected(COUNT))


def test_an_outage_is_waited_for(proxy: Proxy, address: str, caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Event()

    def end() -> None:
        """End the outage once it was noticed, however late: clients retry several times before they report it."""
        deadline = time.monotonic() + 90
        while "does not answer" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        proxy.out.clear()

    def fall(snapshot: Any) -> None:
        if snapshot.tiles_done >= 5 and not begun.is_set():
            begun.set()
            proxy.out.set()
            threading.Thread(target=end, daemon=True).start()

    matrix = make(address, COUNT, storage_options=options(proxy.port), progress=fall)
    assert begun.is_set()
    assert "does not answer" in caplog.text
    assert np.array_equal(np.asarray(matrix), expected(COUNT))


@pytest.mark.slow  # waits half a minute
def test_an_outage_that_lasts_ends_in_one_line_and_the_same_call_continues(
    proxy: Proxy, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PATIENCE", 0.5)

    def fall(snapshot: Any) -> None:
        if snapshot.tiles_done == 5:
            proxy.out.set()

    with pytest.raises(StoreAccessError, match=r"^s3://.* does not answer \(\w+\); look at the endpoint") as caught:
        make(address, COUNT, storage_options=options(proxy.port), progress=fall)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    proxy.out.clear()
    matrix = make(address, COUNT, storage_options=options(proxy.port))  # despite the lock that was left
    assert np.array_equal(np.asarray(matrix), expected(COUNT))


def test_a_lock_is_broken_only_by_force_and_by_name(
    server: Server, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"storage_options": options(server.port)}
    files = files_module.find_files(address, options(server.port))
    other = lock.Owner("elsewhere", 7, "", time.time(), time.time(), "token")
    files.write(lock.LOCK, other.to_bytes())
    with pytest.raises(StoreLockedError, match="process 7 on elsewhere"):
        make(address, COUNT, **given)
    make(address, COUNT, force_unlock=True, **given)
    assert f"held by {other}" in caplog.text


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({}, "s3://no-such-bucket/k.zarr", "there is no bucket for s3://no-such-bucket"),
        ({"key": None, "secret": None}, "s3://bucket/none.zarr", "there are no credentials"),
        ({"endpoint_url": f"http://127.0.0.1:{free_port()}"}, "s3://bucket/k.zarr", "does not answer"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_one_line(
    server: Server, changes: dict[str, Any], place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PATIENCE", 0.5)
    given = {name: value for name, value in (options(server.port) | changes).items() if value is not None}
    with pytest.raises(StoreAccessError, match=words) as caught:
        make(place, COUNT, storage_options=given)
    assert "\n" not in str(caught.value)


def test_credentials_reach_every_call_and_are_shown_nowhere(
    proxy: Proxy, server: Server, cluster: Processes, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tangentless")
    given: dict[str, Any] = {"storage_options": options(proxy.port)}
    X, y = vectors(20), vectors(20)[:, 0] > 0
    model = KernelRidgeClassifier(KERNEL, backend="reference", store=address, **given)
    unfitted, copy = repr(Pipeline([("model", model)])), clone(model)
    fitted = copy.set_params(**given).fit(X, y)
    with cluster.client() as client:
        matrix = make(f"{address}2", 20, scheduler=client, **given)
        resume(f"{address}2", scheduler=client, progress=False, **given)
        assert not solve_conjugate(matrix, np.ones(20), 1e-2, landmarks=20, scheduler=client).residual > 1e-8
    np.save(tmp_path / "x.npy", X)
    storage = [text for name, value in options(proxy.port).items() for text in ("--storage", f"{name}={value}")]
    run = [KERNEL, f"{tmp_path / 'x.npy'}", f"{address}3", "--backend", "reference"]
    done, refused = (CliRunner().invoke(app, ["run", *run, *more]) for more in (storage, []))
    assert "20 × 20" in done.output
    assert isinstance(refused.exception, StoreAccessError)  # credentials come from the options only
    with pytest.raises(TangentlessError, match="s3://") as caught:
        make(f"{address}4", 20, storage_options=options(0, endpoint_url=f"{KEYS['secret']} is not an endpoint"))
    assert proxy.keys == {KEYS["key"].encode()}
    save_model(tmp_path / "model.npz", fitted)
    shown = [unfitted, repr(fitted), repr(fitted.get_params()), fitted._repr_html_(), repr(matrix), repr(matrix.store)]
    shown += [done.output, str(refused.exception), str(caught.value), repr(caught.value), caplog.text, cluster.log]
    written = [
        pickle.dumps(fitted),
        (tmp_path / "model.npz").read_bytes(),
        *server.contents(address.rpartition("/")[0]).values(),
    ]
    assert not any(KEYS["secret"] in text for text in shown)
    assert not any(KEYS["secret"].encode() in data for data in written)
    assert KEYS["secret"].encode() in pickle.dumps(model)  # an unfitted model may be fitted by another process


def test_a_complete_store_is_used_where_nothing_may_be_written(
    proxy: Proxy, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_SHORT_PATIENCE", 0.1)
    given: dict[str, Any] = {"storage_options": options(proxy.port)}
    model = KernelRidgeClassifier(KERNEL, backend="reference", store=address, **given)
    y = vectors(20)[:, 0] > 0
    coefficients = model.fit(vectors(20), y).dual_coef_
    proxy.read_only = True
    assert np.array_equal(np.asarray(make(address, 20, **given | {"tile": None})), expected(20))
    assert np.array_equal(model.fit(vectors(20), y).dual_coef_, coefficients)
    assert resume(address, **given).shape == (20, 20)
    assert repair(address, **given).good
    with pytest.raises(StoreAccessError, match=r"^writing to s3://.* is denied \(AccessDenied\)"):
        make(address, 30, extend=True, **given | {"tile": None})
    proxy.read_only = False
    files_module.find_files(address, options(proxy.port)).write("kernel/c/0/0", b"nonsense")
    proxy.read_only = True
    with pytest.raises(StoreAccessError, match=r"not repaired, and tile \(0, 0\) stay damaged: writing to .* denied"):
        repair(address, progress=False, **given)


def test_latency_is_hidden_by_requests_side_by_side(proxy: Proxy, address: str) -> None:
    """No request is wasted: one PUT for each file, and few others. Times are measured in the benchmark."""
    make(address, COUNT, storage_options=options(proxy.port))
    panels = -(-COUNT // TILE)
    assert proxy.requests["PUT"] == TILES + panels + 4 + 1  # tiles, images, metadata, the lock
    assert proxy.requests["GET"] + proxy.requests["HEAD"] <= panels + 30
    proxy.requests.clear()
    matrix = open_gram(address, storage_options=options(proxy.port))
    np.asarray(matrix)
    assert proxy.requests == {"GET": TILES + 1}


def test_dask_reads_each_stored_tile_once_for_both_triangles(proxy: Proxy, address: str) -> None:
    matrix = make(address, COUNT, storage_options=options(proxy.port))
    proxy.requests.clear()
    assert np.array_equal(matrix.to_dask().compute(), expected(COUNT))
    assert proxy.requests == {"GET": TILES}


def test_one_denied_request_on_a_worker_does_not_end_a_run(proxy: Proxy, cluster: Processes, address: str) -> None:
    def deny(snapshot: Any) -> None:
        if snapshot.tiles_done == 3:
            proxy.denied = 1

    with cluster.client() as client:
        matrix = make(address, COUNT, scheduler=client, storage_options=options(proxy.port), progress=deny)
    assert np.array_equal(np.asarray(matrix), expected(COUNT))


def test_workers_whose_endpoint_lacks_the_bucket_are_named_at_once(server: Server, proxy: Proxy, address: str) -> None:
    with Processes(workers=0) as cluster:
        cluster.join("homeless")
        with cluster.client() as client:
            client.wait_for_workers(1)
            with pytest.raises(ClusterError, match=r"none of the workers tcp.* no bucket for"):
                make(address, 20, scheduler=client, storage_options=options(proxy.port))
    assert sum(proxy.requests.values()) < 100


def test_late_wrong_blind_and_slow_workers_in_one_run(
    server: Server, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run gives the bytes of k(X), and the log names each worker that was left out, with the reason."""
    count = 60  # a run long enough to use all workers
    make(tmp_path / "k.zarr", count)
    snapshots: list[Any] = []
    with Processes(workers=0) as cluster, cluster.client() as client:
        cluster.join("steady")
        client.wait_for_workers(1)
        names: dict[str, str] = {}

        def join(snapshot: Any) -> None:
            snapshots.append(snapshot)
            if not names:  # after the start of the run
                for kind in ("wrong", "old", "blind", "slow"):
                    cluster.join(kind)
                client.wait_for_workers(5)
                workers = client.scheduler_info(n_workers=-1)["workers"]
                names.update({at: str(worker["name"]) for at, worker in workers.items()})

        make(address, count, scheduler=client, progress=join, storage_options=options(server.port))
    assert server.contents(address) == contents(tmp_path / "k.zarr")
    assert {"wrong", "old", "blind"}.isdisjoint(snapshots[-1].workers)
    left_out = {
        "wrong": "computes other bits, 0123456789abcdef (another processor)",
        "old": "lacks tangentless",
        "blind": "does not see the store",
    }
    for at, kind in names.items():
        said = [line for line in caplog.text.splitlines() if f"worker {at} is left out" in line]
        assert [left_out[kind] in line for line in said] == ([True] if kind in left_out else []), (kind, said)


def test_checkpoints_on_s3_belong_to_a_matrix(server: Server, address: str) -> None:
    given: dict[str, Any] = {"storage_options": options(server.port)}
    K, Y = make(address, COUNT, tile=32, **given), vectors(COUNT, seed=2)[:, :2]
    place = address.replace("k.zarr", "run.npz")

    def stop(step: Any) -> None:
        if step.number == 2:
            raise KeyboardInterrupt

    run: dict[str, Any] = {"landmarks": 20, "checkpoint": place, "checkpoint_seconds": 0, **given}
    with pytest.raises(KeyboardInterrupt):
        solve_conjugate(K, Y, 1e-2, progress=stop, **run)
    numbers: list[int] = []
    found = solve_conjugate(K, Y, 1e-2, progress=lambda step: numbers.append(step.number), **run)
    assert numbers[0] == 3
    np.testing.assert_allclose(found.coefficients, solve_ridge(K, Y, 1e-2).coefficients, atol=1e-5)
    other = gram(KERNEL, vectors(COUNT, seed=9), store=f"{address}2", backend="reference", progress=False, **given)
    with pytest.raises(Exception, match="checkpoint of another system"):
        solve_conjugate(other, Y, 1e-2, **run)


@pytest.mark.slow  # test_solve_conjugate has a faster test on a cluster
def test_conjugate_gradients_on_a_cluster_have_the_answer_of_cholesky(cluster: Processes, tmp_path: Path) -> None:
    K, Y = make(tmp_path / "k.zarr", 150), vectors(150, seed=2)[:, :2]
    exact = solve_ridge(K, Y, 1e-2).coefficients
    with cluster.client() as client:
        found = solve_conjugate(K, Y, 1e-2, landmarks=20, scheduler=client, held_out=(expected(150)[:4], Y[:4]))
        plain = solve_conjugate(K, Y[:, 0], 1e-2, landmarks=0, tolerance=1e-9, scheduler=client)
    np.testing.assert_allclose(plain.coefficients, exact[:, 0], atol=1e-6)
    assert found.residual < 1  # it stopped when held-out predictions no longer improved
