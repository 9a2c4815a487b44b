"""Times a family of tangent kernels of 5,000 points, and convolutional tangent kernels beside neural-tangents.

    python benchmarks/classical.py [--neural-tangents PYTHON] [--output FILE.json]

The family has 15 matrices: depths 1 to 5, each with any number of first layers fixed, of points with 100 features.
Recorded are wall-clock and processor seconds, and the peak memory of the process. Convolutional kernels are of 32×32×3
images, timed after compilation and preparation, the best of several turns; the two libraries alternate. neural-tangents
runs in float32, in blocks of 4×4 images, with a dense layer at the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

TURNS = 3
BLOCK = 4  # images of either side for neural-tangents


def serve(text):
    """In the Python with neural-tangents: compile, then time one call for each line on standard input."""
    import numpy as np

    from neural_tangents_rate import layers, libraries

    jax, stax = libraries()
    _, _, kernel = stax.serial(*layers(text), stax.Dense(1, W_std=1.0, b_std=None))
    run = jax.jit(lambda x, z: kernel(x, z, "ntk"))
    images = np.random.default_rng(0).standard_normal((2 * BLOCK, 32, 32, 3)).astype(np.float32)
    run(images[:BLOCK], images[BLOCK:]).block_until_ready()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run(images[:BLOCK], images[BLOCK:]).block_until_ready()
        print(BLOCK**2 / (time.perf_counter() - start), flush=True)


def family():
    """Time the 15 matrices of 5,000 points with 100 features."""
    import numpy as np

    from tangentless.classical import ntk_family
    from tangentless.timing import timed

    points = np.random.default_rng(0).standard_normal((5000, 100))
    ntk_family(points[:10])
    before = time.process_time()
    matrices, seconds = timed(lambda: ntk_family(points))
    processor = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {
        "matrices": len(matrices),
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "peak_gigabytes": round(peak, 2),
    }


def rates(name, python):
    """Pairs per second of one architecture: ours, and that of neural-tangents where its Python is given."""
    import numpy as np

    import tangentless as tl
    from tangentless.backends import get_backend
    from tangentless.timing import timed

    body = str(tl.Architecture.parse(name)).split(" normalize ")[0]
    kernel, backend, count = tl.classical.ConvolutionalNTK(body), get_backend("cpu"), 24
    images = np.random.default_rng(0).standard_normal((count, 32, 32, 3))
    kernel(images[:2])
    prepared, preparing = timed(lambda: kernel.prepare(backend, images))
    rival = None
    if python:
        command = [python, __file__, "--serve", body]
        rival = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        rival.stdout.readline()
    ours, theirs, processor = [], [], []
    for _ in range(TURNS):
        before = time.process_time()
        ours.append(count**2 / timed(lambda: kernel.block(backend, prepared, prepared))[1])
        processor.append(count**2 / (time.process_time() - before))
        if rival is not None:
            rival.stdin.write("\n")
            rival.stdin.flush()
            theirs.append(float(rival.stdout.readline()))
    if rival is not None:
        rival.communicate()
    return {
        "pairs_a_second": round(max(ours), 1),
        "pairs_a_second_of_processor_time": round(max(processor), 1),
        "images_prepared_a_second": round(count / preparing, 1),
        "neural_tangents_pairs_a_second": round(max(theirs), 2) if theirs else None,
    }


def main():
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--neural-tangents", metavar="PYTHON")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    from tangentless.timing import environment

    report = {"ntk_family_5000_points_100_features": family()}
    report |= {name: rates(name, options.neural_tangents) for name in ("myrtle5", "myrtle10")}
    text = json.dumps(report | {"environment": environment()}, indent=1, ensure_ascii=False)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
