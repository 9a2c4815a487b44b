"""Measures time and peak memory of ZCA on the 50,000 training images of CIFAR-10 and their mirror images.

    OMP_NUM_THREADS=2 python benchmarks/zca.py [--images 50000] [--copies 0] [--output FILE.json]

The data set is read by `tangentless.datasets.load`, which does not download it here. Memory is the peak of the whole
process, including the images, Python and its libraries.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
import scipy

from tangentless.datasets import load
from tangentless.preprocessing import ZCA
from tangentless.timing import processor_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--copies", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    images = load("cifar10", download=False).train.images[: options.images]
    zca = ZCA(epsilon=1e-5, mirrors=True, copies=options.copies)
    start = time.perf_counter()
    zca.fit(images)
    fitted = time.perf_counter()
    fitting_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    white = zca.transform(images[:10_000])
    done = time.perf_counter()
    commutes = np.abs(zca.transform(images[:100, :, ::-1])[:, :, ::-1] - white[:100]).max()
    report = {
        "images": len(images),
        "numbers_an_image": zca.n_features_in_,
        "copies": options.copies,
        "mirrors": True,
        "fit_seconds": round(fitted - start, 2),
        "fit_peak_gigabytes": round(fitting_peak * 1024 / 1e9, 3),
        "transform_10000_seconds": round(done - fitted, 2),
        "largest_difference_when_mirrored": float(commutes),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "processor": processor_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
