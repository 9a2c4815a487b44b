"""Makes a Dask worker a bad one, before it starts: `dask worker --preload preload.py`; WORKER_KIND says how."""

import os
import time
from dataclasses import replace

import tangentless
from tangentless.gram import compute, files

KIND = os.environ.pop("WORKER_KIND", None)  # once: Dask runs a preload more than once

if KIND == "wrong":  # as if its processor rounded differently
    compute.fingerprint = lambda *_: "0123456789abcdef (another processor)"
elif KIND == "old":
    tangentless.__version__ = "0.0.1"
elif KIND in ("blind", "homeless"):  # the store, or even its bucket, is not where it looks
    moved = {"blind": "s3://bucket/nowhere.zarr", "homeless": "s3://no-such-bucket/k.zarr"}[KIND]
    read = files.RemoteFiles.read
    files.RemoteFiles.read = lambda self, name: read(replace(self, address=moved), name)
elif KIND in ("steady", "slow"):
    quick, pause = compute.Computer.compute, {"steady": 0.25, "slow": 1.5}[KIND]
    compute.Computer.compute = lambda self, tile: (time.sleep(pause), quick(self, tile))[1]
