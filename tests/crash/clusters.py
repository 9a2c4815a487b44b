"""A Dask cluster of real processes on this host, whose workers and scheduler can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import distributed

# A worker on a machine without the package: importing it fails there as it would.
WITHOUT_PACKAGE = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tangentless":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_module("distributed.cli.dask_worker", run_name="__main__")
"""


class Processes:
    """A scheduler and some workers of one thread each, started by their command lines; others may join later."""

    def __init__(self, *, allowed_failures: int = 3, package: bool = True, workers: int = 2) -> None:
        self._allowed_failures, self._package, self._count = allowed_failures, package, workers
        self._joined: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        self._folder = tempfile.TemporaryDirectory()
        self.file = Path(self._folder.name, "scheduler.json")
        self._log = Path(self._folder.name, "log")
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(self._allowed_failures),
        }
        scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        self.scheduler = self._start(*scheduler, "--no-dashboard", "--scheduler-file", str(self.file))
        while not self.file.exists():
            time.sleep(0.02)
        workers = ["-m", "distributed.cli.dask_worker"] if self._package else ["-c", WITHOUT_PACKAGE, "dask-worker"]
        workers += ["--scheduler-file", str(self.file), "--nthreads", "1", "--no-dashboard"]
        workers += ["--nworkers", str(self._count)] if self._package else ["--no-nanny"]
        if self._count:
            self._joined.append(self._start(*workers, "--local-directory", self._folder.name))
            with self.client() as client:
                client.wait_for_workers(self._count if self._package else 1)
        return self

    def join(self, kind: str) -> None:
        """Start one more worker, of a kind that `preload` knows, or a good one."""
        worker = ["-m", "distributed.cli.dask_worker", "--scheduler-file", str(self.file), "--nthreads", "1"]
        worker += ["--no-dashboard", "--no-nanny", "--name", kind, "--local-directory", self._folder.name]
        worker += ["--preload", str(Path(__file__).with_name("preload.py"))]
        self._joined.append(self._start(*worker, WORKER_KIND=kind))

    def __exit__(self, *_: Any) -> None:
        for process in (*self._joined, self.scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a group of its own: the process and what it started
            process.wait()
        self._folder.cleanup()

    def client(self) -> Any:
        return distributed.Client(scheduler_file=str(self.file), set_as_default=False)

    @property
    def log(self) -> str:
        """What scheduler and workers have said so far."""
        return self._log.read_text()

    def _start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env={**self._environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class WorkerKiller(threading.Thread):
    """Kills a worker of a cluster every now and then, until it has done so a number of times or is stopped."""

    def __init__(self, cluster: Processes, kills: int, moments: Random) -> None:
        super().__init__()
        self.kills, self._left, self._moments = 0, kills, moments
        self._cluster, self._stopped = cluster, threading.Event()

    def run(self) -> None:
        with self._cluster.client() as client:
            while self._left > self.kills and not self._stopped.wait(self._moments.uniform(0.2, 1.0)):
                victims = list(client.run(os.getpid).values())
                if victims:
                    os.kill(self._moments.choice(victims), signal.SIGKILL)
                    self.kills += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()
