"""`tangentless gram`, and the progress of a run on a terminal, in a log and as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import hear_interrupts
from crash.stores import KERNEL, expected, finished_tiles, make, store_hash, vectors
from tangentless.backends import ARITHMETIC
from tangentless.errors import InputError, StoreDamagedError
from tangentless.gram import open_gram
from tangentless.gram import progress as progress_module
from tangentless.gram.cli import app
from tangentless.gram.progress import Meter, Snapshot, WorkerPace, metered

PROGRAM = [sys.executable, "-c", "from tangentless.gram.cli import app; app()"]
REFERENCE = ["--backend", "reference", "--tile", "8"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", vectors(60))
    np.savez(tmp_path / "sets.npz", train=vectors(60), test=vectors(10, seed=1))
    return tmp_path / "x.npy"


def invoke(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_run_status_verify_repair_and_resume_from_the_shell(data: Path) -> None:
    store = data.with_name("k.zarr")
    assert "60 × 60" in invoke("run", KERNEL, data, store, *REFERENCE, "--preprocessing", "none at all")
    assert np.array_equal(np.asarray(open_gram(store)), expected(60))
    whole = store_hash(store)
    text = invoke("status", store)
    assert "kernel('normalize relu')" in text
    assert "36 of 36, 8 rows each" in text
    assert "none at all" in text
    assert f"reference {ARITHMETIC['reference']}, float32" in text
    assert "complete" in text
    assert "36 tiles checked, 0 bad" in invoke("verify", store)
    (store / "kernel/c/2/3").write_bytes(b"nonsense")
    (store / "zarr.json").write_bytes(b"{}")
    damaged = invoke("verify", store, code=1)
    assert "tile (2, 3) is damaged" in damaged
    assert "zarr.json is damaged" in damaged
    assert "tile (2, 3) was repaired" in invoke("repair", store)
    assert store_hash(store) == whole
    (store / "kernel/c/2/3").unlink()
    assert "stopped" in invoke("status", store)
    invoke("resume", store)
    assert store_hash(store) == whole


def test_json_is_one_object_a_line(data: Path) -> None:
    store = data.with_name("k.zarr")
    lines = [json.loads(line) for line in invoke("run", KERNEL, data, store, *REFERENCE, "--json").splitlines()]
    assert lines[-2]["event"] == "progress"
    assert lines[-2]["tiles_done"] == lines[-2]["tiles"] == 36
    assert lines[-2]["seconds_left"] == 0
    assert lines[-1] == {"event": "done", "store": str(store), "shape": [60, 60]}
    status = json.loads(invoke("status", store, "--json"))
    assert status["complete"]
    assert status["manifest"]["x"]["shape"] == [60, 5]
    assert json.loads(invoke("verify", store, "--json"))["good"]
    assert json.loads(invoke("repair", store, "--json"))["tiles"] == []


def test_two_sets_mirrors_and_extensions_from_the_shell(data: Path) -> None:
    archive, store = data.with_name("sets.npz"), data.with_name("r.zarr")
    invoke("run", KERNEL, f"{archive}:train", store, "--others", f"{archive}:test", *REFERENCE)
    assert open_gram(store).shape == (60, 10)
    np.save(data.with_name("images.npy"), np.random.default_rng(0).standard_normal((9, 4, 4, 1)))
    invoke("run", "conv3 relu globalpool", data.with_name("images.npy"), data.with_name("m"), "--mirrored", *REFERENCE)
    assert open_gram(data.with_name("m")).manifest.kernel.endswith(".mirrored()")
    np.save(data.with_name("more.npy"), vectors(70))
    np.save(data.with_name("fewer.npy"), vectors(50))
    invoke("run", KERNEL, data.with_name("fewer.npy"), data.with_name("e.zarr"), *REFERENCE)
    invoke("run", KERNEL, data.with_name("more.npy"), data.with_name("e.zarr"), *REFERENCE, "--extend")


def test_files_that_hold_no_images_are_refused(data: Path) -> None:
    archive = data.with_name("sets.npz")
    for source, words in {
        "nowhere.npy": "No such file",
        str(archive): "train, test; say which",
        f"{archive}:valid": "train, test; 'valid' is not among them",
        str(Path(__file__)): r"cannot read .*\.py: it is not a \.npy",
    }.items():
        with pytest.raises(InputError, match=words):
            invoke("run", KERNEL, source, data.with_name("k.zarr"))


def test_damage_reaches_the_shell_as_a_typed_error(data: Path) -> None:
    make(data.with_name("k.zarr"), 60)
    data.with_name("k.zarr").joinpath("zarr.json").write_bytes(b"{")
    with pytest.raises(StoreDamagedError):
        invoke("status", data.with_name("k.zarr"))


def start_command(data: Path, tmp_path: Path) -> tuple[list[str], subprocess.Popen[bytes]]:
    """Start a command, and halt it (SIGSTOP) when it has written some tiles."""
    np.save(data, vectors(150))
    command = [*PROGRAM, "run", KERNEL, str(data), "k.zarr", *REFERENCE]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, **pipes, preexec_fn=hear_interrupts)
    while len(finished_tiles(tmp_path / "k.zarr")) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    return command, process


def test_a_command_that_is_killed_is_resumed_by_the_same_command(data: Path, tmp_path: Path) -> None:
    command, process = start_command(data, tmp_path)
    assert f"being written by process {process.pid}" in invoke("status", tmp_path / "k.zarr")
    process.kill()
    process.communicate()
    assert "stopped" in invoke("status", tmp_path / "k.zarr")
    before = finished_tiles(tmp_path / "k.zarr")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert all(finished_tiles(tmp_path / "k.zarr")[name] == tile for name, tile in before.items())
    assert np.array_equal(np.asarray(open_gram(tmp_path / "k.zarr")), expected(150))


def test_an_interrupt_from_the_keyboard_leaves_a_good_store(data: Path, tmp_path: Path) -> None:
    _, process = start_command(data, tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=600)
    assert process.returncode not in (0, -signal.SIGKILL)
    assert json.loads(invoke("verify", tmp_path / "k.zarr", "--json"))["good"]
    assert not json.loads(invoke("status", tmp_path / "k.zarr", "--json"))["complete"]


def read_all(terminal: int) -> str:
    """Read all that was written to a terminal whose other end is closed; it comes in pieces."""
    shown = b""
    with contextlib.suppress(OSError):  # raised at the end of the output
        while piece := os.read(terminal, 100_000):
            shown += piece
    return shown.decode()


def test_a_terminal_gets_one_bar(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as terminal, metered(Snapshot(0, 2, 0, 100), True, terminal) as meter:
        meter.finish_tile(50, "gpu-0", 1.0)
        meter.finish_tile(50, "gpu-1", 2.0)
    shown = read_all(outer)
    os.close(outer)
    for words in ("100.0 %", "2 of 2 tiles", "pairs/s", "gpu-0", "1 tiles", "50 pairs/s", "25 pairs/s"):
        assert words in shown, shown


def test_a_log_gets_a_line_a_minute_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 10_000.0, 10.0))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    log = io.StringIO()
    with metered(Snapshot(0, 30, 0, 300), True, log) as meter:
        for _ in range(30):
            meter.finish_tile(10)
    lines = log.getvalue().splitlines()
    assert len(lines) == 5  # five minutes in steps of ten seconds
    assert "6 of 30 tiles, 20.0 % of 300 pairs, 1 pairs/s, 0:04:00 left" in lines[0]
    assert "30 of 30 tiles, 100.0 %" in lines[-1]


def test_the_pace_counts_this_run_only_and_each_worker_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1000.0, 1000.5])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    shown: list[Snapshot] = []
    meter = Meter(Snapshot(5, 10, 500, 1000), shown.append, 0.0)
    meter.finish_tile(100, "a", 0.5)
    assert shown[-1].pairs_done == 600
    assert shown[-1].pairs_per_second == 200
    assert shown[-1].workers == {"a": WorkerPace(1, 100, 0.5)}
    assert shown[-1].workers["a"].pairs_per_second == 200
    assert json.loads(json.dumps(shown[-1].to_json()))["workers"]["a"]["pairs_per_second"] == 200


def test_progress_can_be_turned_off(tmp_path: Path, capfd: Any) -> None:
    make(tmp_path / "k.zarr", 20, progress=False)
    assert capfd.readouterr() == ("", "")
