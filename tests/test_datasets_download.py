"""Downloads from a real server that drops connections, lies, or does not know of ranges."""

import contextlib
import hashlib
import http.server
import multiprocessing
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from published import cifar10_binary, labels_below, random_images, tar_gz
from tangentless.datasets import catalogue, download, load
from tangentless.errors import DatasetMissingError, DownloadError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
DIGEST = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.content`, in ranges if it may, and hangs up after as many bytes as its plan says."""

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        drop = server.plan.pop(0) if server.plan else None
        if drop == "missing" or drop == "busy":
            self.send_error(404 if drop == "missing" else 503)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        total = len(server.content)
        if start and start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        body = server.content[start:]
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body if drop is None else body[:drop])
            server.released.wait(server.slowness)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.plan, running.asked, running.ranges, running.slowness = CONTENT, [], [], True, 0
        running.released = threading.Event()
        running.address = f"http://127.0.0.1:{running.server_port}/file.bin"
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0.0)


def names_in(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_downloaded_once(server, tmp_path):
    path = download.fetch(server.address, DIGEST, tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert names_in(tmp_path / "new") == ["file.bin"]
    download.fetch(server.address, DIGEST, tmp_path / "new")
    assert server.asked == [None]


def test_a_broken_download_goes_on_where_it_broke(server, tmp_path):
    server.plan = [300_000, 0, 450_000, "busy"]
    download.fetch(server.address, DIGEST, tmp_path)
    assert server.asked == [None, "bytes=300000-", "bytes=300000-", "bytes=750000-", "bytes=750000-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert names_in(tmp_path) == ["file.bin"]


def test_a_later_call_goes_on_after_one_has_given_up(server, tmp_path):
    server.plan = [600_000] + [0] * download.TRIES
    with pytest.raises(
        DownloadError, match=r"cannot download .*; try again, which continues after the 600,000 bytes received"
    ):
        download.fetch(server.address, DIGEST, tmp_path)
    assert names_in(tmp_path) == [".file.bin.part"]
    server.asked.clear()
    download.fetch(server.address, DIGEST, tmp_path)
    assert server.asked == ["bytes=600000-"]
    assert names_in(tmp_path) == ["file.bin"]


def test_what_a_killed_process_had_is_not_lost(server, tmp_path):
    server.plan, server.slowness = [600_000], 30
    process = multiprocessing.get_context("spawn").Process(
        target=download.fetch, args=(server.address, DIGEST, tmp_path)
    )
    process.start()
    part, deadline = tmp_path / ".file.bin.part", time.monotonic() + 600
    while not (part.exists() and part.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.join()
    had = part.stat().st_size
    server.slowness = 0
    download.fetch(server.address, DIGEST, tmp_path)
    assert server.asked == [None, f"bytes={had}-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_is_complete_is_not_asked_for_again(server, tmp_path):
    (tmp_path / ".file.bin.part").write_bytes(CONTENT)
    download.fetch(server.address, DIGEST, tmp_path)
    assert server.asked == ["bytes=1000000-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_begun_again(server, tmp_path):
    (tmp_path / ".file.bin.part").write_bytes(CONTENT + b"more")
    download.fetch(server.address, DIGEST, tmp_path)
    assert server.asked == ["bytes=1000004-", None]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_it_all_again(server, tmp_path):
    server.ranges, server.plan = False, [300_000]
    download.fetch(server.address, DIGEST, tmp_path)
    assert server.asked == [None, "bytes=300000-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_file_is_thrown_away(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DownloadError, match="does not have the published checksum, and was deleted"):
        download.fetch(server.address, DIGEST, tmp_path)
    assert names_in(tmp_path) == []


def test_a_file_that_is_gone_is_not_asked_for_twice(server, tmp_path):
    (tmp_path / ".file.bin.part").write_bytes(CONTENT[:1000])
    server.plan = ["missing"]
    with pytest.raises(DownloadError, match=r"404.*1,000 bytes received.*put it in"):
        download.fetch(server.address, DIGEST, tmp_path)
    assert len(server.asked) == 1


def test_no_server_and_no_room_are_errors_of_this_package(tmp_path):
    with pytest.raises(DownloadError, match=r"cannot download http://127\.0\.0\.1:9/x"):
        download.fetch("http://127.0.0.1:9/x", DIGEST, tmp_path)
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot write"):
        download.fetch("http://127.0.0.1:9/x", DIGEST, tmp_path / "taken")


def test_processes_at_once_download_once(server, tmp_path):
    server.slowness = 0.3
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=download.fetch, args=(server.address, DIGEST, tmp_path)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert server.asked == [None]
    assert names_in(tmp_path) == ["file.bin"]


def test_a_data_set_that_is_not_there_is_downloaded_to_its_folder(server, tmp_path, monkeypatch):
    images, labels = random_images(12), labels_below(10, 12)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    server.content = tar_gz({f"cifar-10-batches-bin/{name}": cifar10_binary(images, labels) for name in names})
    entry = catalogue.CATALOGUE["cifar10"]
    address = server.address.replace("file.bin", "cifar-10-binary.tar.gz")
    remote = {address: "md5:" + hashlib.md5(server.content).hexdigest()}
    digests = dict.fromkeys(names, "sha256:" + hashlib.sha256(cifar10_binary(images, labels)).hexdigest())
    edition = replace(entry.editions[0], remote=remote, digests=digests)
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", replace(entry, editions=(edition,)))
    with pytest.raises(DatasetMissingError):
        load("cifar10", tmp_path, download=False)
    assert not server.asked
    for _ in range(2):
        data = load("cifar10", tmp_path)
        np.testing.assert_array_equal(data.test.images, images)
    assert len(server.asked) == 1


def test_without_a_folder_downloads_go_to_the_cache(server, tmp_path, monkeypatch):
    entry = catalogue.CATALOGUE["cifar10.1"]
    remote = {server.address: DIGEST}
    edition = replace(entry.editions[0], remote=remote)
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10.1", replace(entry, editions=(edition,)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "read only").mkdir()
    monkeypatch.setenv("TANGENTLESS_DATA", str(tmp_path / "read only"))
    with pytest.raises(DatasetMissingError, match=r"CIFAR-10\.1 is not in .*read only or .*cache/tangentless"):
        load("cifar10.1")
    assert (tmp_path / "cache/tangentless/cifar-10.1/file.bin").read_bytes() == CONTENT
