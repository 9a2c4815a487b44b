"""Calls that other systems lack have replacements; these tests remove the calls, so that Linux runs these."""

import contextlib
import ctypes
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout

from tangentless import chunks, cli, devices, files, timing
from tangentless.backends import workers
from tangentless.backends.cpu import simd
from tangentless.datasets import download
from tangentless.gram import lock
from tangentless.gram.files import LocalFiles

real_open = os.open


def refuse_folders(path, *arguments, **options):
    """Make `os.open` refuse folders, as on Windows."""
    if Path(path).is_dir():
        raise PermissionError(13, "Permission denied", str(path))
    return real_open(path, *arguments, **options)


@pytest.fixture
def windows(monkeypatch):
    """Make `tangentless.files` treat files as on Windows."""
    monkeypatch.setattr(files, "WINDOWS", True)
    monkeypatch.setattr(lock, "WINDOWS", True)
    monkeypatch.setattr(os, "open", refuse_folders)
    monkeypatch.setattr(files, "_PAUSES", (0.0, 0.0))


def test_files_and_stores_are_written_where_folders_cannot_be_opened(windows, tmp_path):
    with files.atomic_file(tmp_path / "one") as stream:
        stream.write(b"1")
    LocalFiles(tmp_path / "k.zarr").write("kernel/two", b"2")
    assert (tmp_path / "one").read_bytes() + (tmp_path / "k.zarr" / "kernel" / "two").read_bytes() == b"12"


@pytest.mark.parametrize(("system", "refusals", "replaced"), [(True, 2, True), (True, 9, False), (False, 1, False)])
def test_a_file_that_is_being_read_is_replaced_a_moment_later_on_windows(
    windows, tmp_path, monkeypatch, system, refusals, replaced
):
    monkeypatch.setattr(files, "WINDOWS", system)
    left, rename = [None] * refusals, Path.replace

    def sometimes(source, target):
        if left:
            left.pop()
            raise PermissionError(13, "it is being used by another process")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", sometimes)
    target = tmp_path / "target"
    with contextlib.nullcontext() if replaced else pytest.raises(files.OutputError), files.atomic_file(target) as new:
        new.write(b"new")
    assert [file.name for file in tmp_path.iterdir()] == (["target"] if replaced else [])


def test_downloads_exclude_each_other_without_the_locks_of_unix(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "fcntl", None)
    with download._hold(tmp_path / ".file.part") as stream:
        stream.write(b"kept")
        with pytest.raises(Timeout):
            FileLock(tmp_path / ".file.lock", timeout=0).acquire()
    with download._hold(tmp_path / ".file.part") as stream:
        assert stream.tell() == 4


def test_no_signal_is_sent_to_a_writer_on_windows_where_it_would_end_it(windows, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    monkeypatch.setattr(Path, "read_text", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert lock._birth(os.getpid()) == "alive"


@pytest.mark.skipif(os.name == "nt", reason="where it would end the process")
def test_a_process_is_looked_for_by_a_signal_where_there_is_no_proc(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert (lock._birth(os.getpid()), lock._birth(2**22 + 1)) == ("alive", "")


def test_memory_is_asked_of_windows_where_there_is_no_sysconf(monkeypatch):
    def fill(pointer):
        assert pointer._obj.length == 64
        pointer._obj.total, pointer._obj.free = 16 << 30, 4 << 30

    monkeypatch.delattr(os, "sysconf", raising=False)
    kernel32 = SimpleNamespace(GlobalMemoryStatusEx=fill)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel32), raising=False)
    assert (chunks.machine_memory(), chunks.free_memory()) == (16 << 30, 4 << 30)


def test_memory_processor_and_cores_are_told_without_proc_and_affinity(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert chunks.free_memory() == chunks.machine_memory() > 0
    assert timing.processor_name()
    assert workers.count_workers(None) == os.cpu_count()


def test_vectors_of_128_bits_are_used_where_llvm_cannot_ask_the_processor(monkeypatch):
    def unknown():
        raise RuntimeError("failed to get host cpu features.")

    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    monkeypatch.setattr(simd.llvm, "get_host_cpu_features", unknown)
    simd.host_features.cache_clear()
    assert (simd.host_lanes("float32"), simd.host_lanes("float64")) == (4, 2)
    monkeypatch.undo()
    simd.host_features.cache_clear()


def test_output_in_a_narrow_encoding_loses_signs_but_does_not_stop(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(cli, "app", lambda: print("8×8"))
    cli.main()
    sys.stdout.flush()
    assert written.getvalue().split() == [b"8?8"]


def test_a_backend_is_chosen_where_nothing_is_known_of_gpus(monkeypatch):
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    devices.choose_backend.cache_clear()
    assert devices.choose_backend() == ("cpu", "CuPy is not installed")
    monkeypatch.undo()
    devices.choose_backend.cache_clear()
