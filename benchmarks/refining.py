"""Compares gradient-based refinement of kernel parameters with a grid search, on digits: cost and criterion reached.

    python benchmarks/refining.py benchmarks/results/refining_cpu.json

The grid has two gammas, 9 × 9 values from 1/8 to 32. Refinement starts at the best of 3 × 3 of these. Kernel matrices
(`on_device`) and gradients (`vjp`), each of which costs several matrices, are counted, and seconds are recorded.
"""

import itertools
import sys
import time
from pathlib import Path

from sklearn.datasets import load_digits

import tangentless as tl
from tangentless.devices import Device
from tangentless.files import write_json
from tangentless.kernel import CompositionalKernel
from tangentless.timing import command, describe_machine, environment, today

GAMMAS = [2.0**k for k in range(-3, 6)]
TEXT, ROWS, EVALUATIONS = "gaussian({}) relu gaussian({})", 200, 15


def count(kernel_class, counts):
    """Count calls of `on_device` and `vjp` of a class, in the dictionary `counts`."""
    for name in ("on_device", "vjp"):
        original = getattr(kernel_class, name)

        def counted(self, *arguments, original=original, name=name, **options):
            counts[name] = counts.get(name, 0) + 1
            return original(self, *arguments, **options)

        setattr(kernel_class, name, counted)


def measure(criterion, counts):
    digits = load_digits()
    X, y, device = digits.data[:ROWS] / 16, digits.target[:ROWS], Device("cpu")
    found = {}
    for name, kernels, refine in (
        ("grid", [TEXT.format(*both) for both in itertools.product(GAMMAS, GAMMAS)], 0),
        ("gradients", [TEXT.format(*both) for both in itertools.product(GAMMAS[::4], GAMMAS[::4])], EVALUATIONS),
    ):
        counts.clear()
        begun = time.perf_counter()
        search = tl.search(kernels, X, y, criterion, refine=refine, backend=device)
        seconds = time.perf_counter() - begun
        least = min(trial.squared_error for trial in search.trials)
        found[name] = {**score(search.best), "least squared error": least, **counts, "seconds": seconds}
    return {"images": ROWS, "criterion": criterion, **found}


def score(trial):
    return {
        "kernel": repr(trial.kernel),
        "accuracy": trial.accuracy,
        "squared error": trial.squared_error,
        "log likelihood": trial.log_likelihood,
    }


def main():
    counts = {}
    count(CompositionalKernel, counts)
    results = []
    about = {"date": today(), "machine": describe_machine(), "environment": environment(), "command": command(sys.argv)}
    for criterion in ("loo", "marginal likelihood"):
        results.append(measure(criterion, counts))
        print(results[-1], flush=True)
        write_json(Path(sys.argv[1]), {"benchmark": "refining", "results": results, **about})


if __name__ == "__main__":
    main()
