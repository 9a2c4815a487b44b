"""Compares the times that `tangentless describe` predicts with those taken, for images from 8×8 to 100×100.

    python benchmarks/describe.py [--output FILE.json] [--backend cpu] [--processor-time]

On a busy machine, use --processor-time: processor seconds of all threads together, in place of wall-clock seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import tangentless as tl
from tangentless import timing

CASES = (("myrtle5", 8, 1000), ("myrtle5", 16, 300), ("myrtle5", 32, 96), ("myrtle10-gaussian", 32, 96),
         ("myrtle5", 64, 32), ("conv3 relu pool2 conv3 relu pool5 conv3 relu globalpool", 100, 16))  # fmt: skip
GPU_TIMES = 12  # factor of the numbers of images on a GPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    if options.processor_time:
        timing.time.perf_counter = time.process_time
    device, rows = tl.Device(options.backend), []
    for name, side, number in CASES:
        k, count = tl.kernel(name), number * (GPU_TIMES if options.backend == "cuda" else 1)
        graph = k.graph((side, side, 3))
        timing.warm_up(device.backend, graph)
        predictions, times = [], []
        for _ in range(2):  # in turns, because other work comes and goes
            speed = timing.measure(device.backend, graph)
            predictions.append(speed.matrix_seconds(count) + count / speed.images)
            images = timing.random_images(graph, count)
            times.append(timing.timed(lambda k=k, X=images: k(X, backend=device))[1])
        ratio = min(predictions) / min(times)
        rows.append({"kernel": name, "side": side, "images": count, "predicted": min(predictions), "taken": min(times)})
        print(
            f"{name}, {side}×{side}, {count} images: {min(predictions):.2f} s, {min(times):.2f} s, {ratio:.2f}",
            flush=True,
        )
    if options.output is not None:
        content = {"environment": timing.environment(), "command": timing.command(sys.argv), "rows": rows}
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
