"""Measures conjugate gradients on a local Dask cluster of two workers: residual, memory, traffic of the scheduler.

The same two workers compute the store first, if there is none. All connections to the scheduler go through a proxy that
counts bytes; workers exchange blocks with each other directly.

    python benchmarks/conjugate_cluster.py FOLDER [--rows 100000] [--landmarks 500] [--tile 2048]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import distributed
import numpy as np

import tangentless as tl
from solve_conjugate import TARGETS, data
from tangentless.gram import open_gram
from tangentless.solve import Step, solve_conjugate
from tangentless.timing import environment

RIDGE, TOLERANCE, WORKERS, LIMIT = 10.0, 1e-6, 2, "2GB"


class Counter(threading.Thread):
    """A proxy that forwards connections to the port `target` of this host and counts the bytes."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.target, self.bytes, self.port = target, 0, 0
        self._ready = threading.Event()
        self.start()
        self._ready.wait()

    def run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer), return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


def peak_bytes(dask_worker: Any = None) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def start(*arguments: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", *arguments], env=environ, stderr=subprocess.DEVNULL)


def measure(options: argparse.Namespace, client: Any, counter: Counter) -> dict[str, Any]:
    X, Y = data(options.rows, features=10)
    store, began = options.folder / "k.zarr", time.monotonic()
    kernel = tl.classical.Gaussian(gamma=0.01)
    tl.gram(kernel, X, store=store, backend="cpu", tile=options.tile, memory="800MB", scheduler=client)
    report: dict[str, Any] = {"rows": options.rows, "seconds_to_compute": round(time.monotonic() - began, 1)}
    client.restart()  # so that the peak memory of each process is that of solving alone
    steps: list[tuple[float, int]] = []

    def note(step: Step) -> None:
        steps.append((time.monotonic(), counter.bytes))
        print(step, flush=True)

    began, before = time.monotonic(), counter.bytes
    found = solve_conjugate(
        open_gram(store), Y, RIDGE, tolerance=TOLERANCE, landmarks=options.landmarks, scheduler=client, progress=note
    )
    between = np.diff(np.array([[began, before], *steps]), axis=0)
    return report | {
        "kernel": repr(kernel),
        "ridge": RIDGE,
        "columns": TARGETS,
        "landmarks": options.landmarks,
        "tile": options.tile,
        "residual": found.residual,
        "steps": found.steps,
        "seconds_to_solve": round(time.monotonic() - began, 1),
        "seconds_a_step": round(float(np.median(between[1:, 0])), 1),
        "scheduler_bytes_a_step": int(np.median(between[1:, 1])),
        "scheduler_bytes_before_the_first_step": int(between[0, 1]),
        "peak_bytes": {"client": peak_bytes(), "workers": list(client.run(peak_bytes).values())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--tile", type=int, default=2048)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scheduler.json")
        scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        processes.append(start(*scheduler, "--scheduler-file", str(file)))
        while not file.exists():
            time.sleep(0.1)
        counter = Counter(int(json.loads(file.read_text())["address"].rpartition(":")[2]))
        address = f"tcp://127.0.0.1:{counter.port}"
        worker = ["distributed.cli.dask_worker", address, "--nworkers", str(WORKERS), "--nthreads", "1"]
        processes.append(start(*worker, "--memory-limit", LIMIT, "--no-dashboard", "--local-directory", folder))
        try:
            with distributed.Client(address, set_as_default=False) as client:
                client.wait_for_workers(WORKERS)
                report = measure(options, client, counter)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    command = f"python benchmarks/conjugate_cluster.py FOLDER --rows {options.rows} --landmarks {options.landmarks}"
    text = json.dumps({"command": command, **environment(), **report}, indent=1)
    (Path(__file__).parent / "results/conjugate_cluster.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
