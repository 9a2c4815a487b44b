"""Fault injection for stores on S3: killed runs, workers and schedulers, failing requests, outages, and latency.

Every run must end with the same bytes as an undisturbed one, after nothing but repeating the call. The server is moto
on this host; a proxy in front of it injects faults.

    python benchmarks/store_faults.py [--kills 50] [--workers 20] [--schedulers 5] [--outage 60]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import pytest

import tangentless as tl
from crash.clusters import Processes
from crash.s3 import Proxy, Server, options
from crash.stores import contents, make
from crash.writers import Writers
from tangentless.errors import ClusterError
from tangentless.gram import gram, open_gram
from tangentless.solve import solve_conjugate
from tangentless.timing import environment

COUNT = 100  # rows, in 91 tiles


def tiles(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if "writer" not in name}


class Trial:
    """The trials on one server, with the tiles that every store must hold in the end."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        make(folder / "whole.zarr", COUNT)
        self.whole = tiles(contents(folder / "whole.zarr"))

    def check(self, address: str) -> None:
        assert tiles(self.server.contents(address)) == self.whole, address

    def killed_runs(self, wanted: int) -> dict[str, Any]:
        """Kill runs at random moments; each store is continued by new runs until it is complete."""
        moments, kills, stores = random.Random(0), 0, 0
        given = {"storage_options": options(self.server.port)}
        with Writers() as writers:
            while kills < wanted:
                address, stores = f"s3://bucket/killed/{stores}.zarr", stores + 1
                while writers.run(address, COUNT, kill_after=moments.uniform(0.3, 3.0), **given) != 0:
                    kills += 1
                self.check(address)
        return {"sigkills": kills, "stores": stores}

    def killed_workers(self, wanted: int) -> dict[str, Any]:
        """Kill a random worker after every fourth tile."""
        moments, kills, stores = random.Random(1), 0, 0
        with Processes() as cluster, cluster.client() as client:

            def kill(now: Any) -> None:
                nonlocal kills
                if sum(pace.tiles for pace in now.workers.values()) >= 4 * (kills + 1 - before):
                    os.kill(moments.choice(list(client.run(os.getpid).values())), signal.SIGKILL)
                    kills += 1

            while kills < wanted:
                address, stores, before = f"s3://bucket/workers/{stores}.zarr", stores + 1, kills
                make(address, COUNT, scheduler=client, storage_options=options(self.server.port), progress=kill)
                self.check(address)
        return {"sigkills": kills, "stores": stores}

    def killed_schedulers(self, wanted: int) -> dict[str, Any]:
        address, moments = "s3://bucket/schedulers.zarr", random.Random(2)
        for _ in range(wanted):
            with Processes() as cluster, cluster.client() as client:
                moment = moments.randrange(3, 15)

                def kill(now: Any, cluster: Processes = cluster, moment: int = moment) -> None:
                    if sum(pace.tiles for pace in now.workers.values()) == moment:
                        cluster.scheduler.kill()

                with pytest.raises(ClusterError, match="scheduler is gone"):
                    make(address, COUNT, scheduler=client, storage_options=options(self.server.port), progress=kill)
        with Processes() as cluster, cluster.client() as client:
            make(address, COUNT, scheduler=client, storage_options=options(self.server.port))
        self.check(address)
        return {"sigkills": wanted}

    def failing_requests(self) -> dict[str, Any]:
        with Proxy(self.server.port, failing=0.2) as proxy:
            make("s3://bucket/failing.zarr", COUNT, storage_options=options(proxy.port))
        self.check("s3://bucket/failing.zarr")
        return {"share": 0.2, "requests": sum(proxy.requests.values())}

    def outages(self, seconds: float) -> dict[str, Any]:
        with Proxy(self.server.port) as proxy:
            moments = {20, 60}

            def fall(now: Any) -> None:
                if now.tiles_done in moments:
                    moments.discard(now.tiles_done)
                    proxy.out.set()
                    threading.Timer(seconds, proxy.out.clear).start()

            make("s3://bucket/outages.zarr", COUNT, storage_options=options(proxy.port), progress=fall)
        self.check("s3://bucket/outages.zarr")
        return {"outages": 2, "seconds_each": seconds}

    def latency(self, turns: int) -> dict[str, Any]:
        """Time a run and a solution, of 136 tiles each, in turns without and with 30 ms of latency; the least count.

        The run computes a kernel of images on the CPU, as those of users do: threads compute while others wait for
        answers of the server.
        """
        images = np.random.default_rng(0).standard_normal((1024, 16, 16, 3), dtype=np.float32)
        kernel = tl.kernel("conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu")
        kernel(images[:20], backend="cpu")  # compiles
        found: dict[str, dict[float, list[float]]] = {"store": {}, "solve": {}}
        solved, X = "s3://bucket/latency/solved.zarr", np.random.default_rng(0).standard_normal((1024, 5))
        gram(
            tl.classical.Gaussian(0.5),
            X,
            store=solved,
            tile=64,
            progress=False,
            storage_options=options(self.server.port),
        )
        for turn in range(turns):
            for latency in (0.0, 0.03):
                with Proxy(self.server.port, latency=latency) as proxy:
                    given = {"storage_options": options(proxy.port)}
                    began = time.monotonic()
                    place = f"s3://bucket/latency/{turn}-{latency}.zarr"
                    gram(kernel, images, store=place, backend="cpu", tile=64, progress=False, **given)
                    found["store"].setdefault(latency, []).append(time.monotonic() - began)
                    began = time.monotonic()
                    solution = solve_conjugate(open_gram(solved, **given), X[:, 0], 10.0, tolerance=1e-6)
                    found["solve"].setdefault(latency, []).append(time.monotonic() - began)
            print(found, flush=True)
        times = {
            kind: {
                "seconds": round(min(of[0.0]), 2),
                "with_30_ms": round(min(of[0.03]), 2),
                "ratio": round(min(of[0.03]) / min(of[0.0]), 3),
            }
            for kind, of in found.items()
        }
        return {**times, "steps_to_solve": solution.steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--schedulers", type=int, default=5)
    parser.add_argument("--outage", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", action="append", help="run only this trial; results of others stay in the record")
    chosen = parser.parse_args()
    record = Path(__file__).parent / "results/store_faults.json"
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        trial = Trial(server, Path(folder))
        for name, run in {
            "failing_requests": trial.failing_requests,
            "killed_schedulers": lambda: trial.killed_schedulers(chosen.schedulers),
            "killed_workers": lambda: trial.killed_workers(chosen.workers),
            "killed_runs": lambda: trial.killed_runs(chosen.kills),
            "outages": lambda: trial.outages(chosen.outage),
            "latency": lambda: trial.latency(chosen.turns),
        }.items():
            if chosen.only and name not in chosen.only:
                continue
            began = time.monotonic()
            found = {**run(), "seconds_in_all": round(time.monotonic() - began), "load_average": os.getloadavg()[0]}
            if name != "latency":  # all others have compared bytes and would have raised
                found["equal_bytes"] = True
            where = environment()
            found["date"] = where.pop("date")
            print(name, found, flush=True)
            report = json.loads(record.read_text()) if record.exists() else {}
            report |= {"command": "python benchmarks/store_faults.py", **where, "tiles": 91, name: found}
            record.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
