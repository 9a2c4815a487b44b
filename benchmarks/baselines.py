"""Baselines that learn features without labels, by primal ridge regression: test accuracy, seconds, and memory.

    python benchmarks/baselines.py coates-ng cifar10 --train 5000 --test 2000 --filters 256
    python benchmarks/baselines.py ckn mnist --train 10000 --filters 50,128 --output FILE.json

The ridge is chosen by leave-one-out on the training images. Features are computed twice, in chunks, and are never all
in memory. With --output, the result is appended to the runs in the file. Larger runs, with kernel matrices, are rows of
`tangentless reproduce mnist` and `cifar10`.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tangentless import ConvolutionalKernelNetwork, RandomPatchFeatures
from tangentless.datasets import load
from tangentless.devices import Device
from tangentless.experiments.splits import choose
from tangentless.features import PatchFeatures
from tangentless.files import write_json
from tangentless.solve import solve_primal
from tangentless.solve.scores import accuracy
from tangentless.statistics import Score
from tangentless.timing import command, describe_machine, environment, timed, today


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=("coates-ng", "ckn"))
    parser.add_argument("data", choices=("mnist", "cifar10"))
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=None)
    parser.add_argument("--filters", default="512", help="filters of every layer, such as 50,200 for ckn")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report = run(options)
    print(json.dumps(report, indent=1))
    if options.output is not None:
        earlier = json.loads(options.output.read_text())["runs"] if options.output.exists() else []
        write_json(options.output, {"runs": [*earlier, report]})


def make(options: argparse.Namespace) -> PatchFeatures:
    filters = tuple(int(one) for one in options.filters.split(","))
    if options.method == "coates-ng":
        contrast = {"contrast": 3.0 if options.data == "cifar10" else 30.0}
        return RandomPatchFeatures(*filters, mirrors=options.data == "cifar10", backend=options.backend, **contrast)
    shapes: dict[str, Any] = {"patches": (5, 3), "pools": (2, 2), "width": 0.7}
    if options.data == "cifar10":
        shapes = {"patches": (3, 3), "pools": (2, 4), "width": 0.7, "contrast": 3.0, "epsilon": 0.01}
    shapes = {name: one[: len(filters)] if isinstance(one, tuple) else one for name, one in shapes.items()}
    return ConvolutionalKernelNetwork(filters, backend=options.backend, **shapes)


def run(options: argparse.Namespace) -> dict[str, Any]:
    data, device = load(options.data, download=False), Device(options.backend)
    train = data.train.take(choose(len(data.train), options.train, seed=0))
    test = data.test.take(slice(options.test))
    features, fitting = timed(lambda: make(options).fit(train.images))
    targets = np.eye(len(data.classes))[train.labels]

    def solve() -> Any:
        panels = lambda: (some for _, some in features.compute(device, train.images))  # noqa: E731
        return solve_primal(panels, targets, "loo", criterion="accuracy", backend=device)

    solution, solving = timed(solve)
    values, predicting = timed(lambda: features.transform(test.images) @ solution.coefficients)
    score = Score.of(values.argmax(axis=1), test.labels)
    return {
        "method": options.method,
        "data": options.data,
        "train": len(train),
        "test": len(test),
        "parameters": features.describe()[0],
        "features": features._n_features_out,
        "ridge": solution.ridge,
        "leave-one-out accuracy": accuracy(targets, solution.leave_one_out),
        **score.to_json(),
        "seconds": {"fit": fitting, "features and solution": solving, "prediction": predicting},
        "peak gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "machine": describe_machine(options.backend),
        "date": today(),
        "command": command(sys.argv),
        "environment": environment(),
    }


if __name__ == "__main__":
    main()
