"""A classifier on 64×64 images, end to end on one GPU: which of two photographs is a piece from?

    PYTHONPATH=src python benchmarks/photographs_gpu.py OUTPUT [--photographs photographs.npy] [--backend cuda]

The photographs are scikit-learn's samples, cut into overlapping pieces. With a random split, training and test pieces
would share pixels, so training pieces are from the left half of each photograph, and test pieces from the right half.
The classifier is `KernelRidgeClassifier("myrtle5")`. If scikit-learn is not installed, functions of the package do the
same steps, and the record says so. OUTPUT is a JSON file, or a folder for one.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tangentless.bench.photographs import cut, load_photographs, standardize
from tangentless.files import load_array, write_json
from tangentless.kernel import kernel
from tangentless.solve import solve_ridge
from tangentless.timing import command, describe_machine, environment, symmetric_pairs, timed

RIDGE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--photographs", help="from `python -m tangentless.bench.photographs FILE.npy`")
    parser.add_argument("--architecture", default="myrtle5")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--size", type=int, default=64, help="side of a piece, in pixels")
    parser.add_argument("--count", type=int, default=600, help="number of pieces, at least")
    options = parser.parse_args()
    photographs = load_array(options.photographs) if options.photographs else load_photographs()
    record = classify(photographs, options.architecture, options.backend, options.size, options.count)
    output = options.output / "photographs_gpu.json" if options.output.is_dir() else options.output
    write_json(output, {"command": command(sys.argv), "environment": environment(), **record})
    for name, value in record.items():
        print(f"{name}: {value}")


def classify(photographs: Any, architecture: str, backend: str, size: int, count: int) -> dict[str, Any]:
    """Train and test; returns times and accuracies."""
    middle = photographs.shape[2] // 2
    halves = photographs[:, :, :middle], photographs[:, :, -middle:]
    (train, y_train), (test, y_test) = (cut(half, (size, size), count // 2) for half in halves)
    images = standardize(np.concatenate([train, test]))
    X_train, X_test = images[: len(train)], images[len(train) :]
    warming = warm_up(architecture, backend, X_train)
    start = time.perf_counter()
    fit = fit_estimator if has_estimators() else fit_by_hand
    found = fit(architecture, backend, X_train, y_train, X_test, y_test)
    pairs = symmetric_pairs(len(X_train)) + len(X_train) * len(X_test)
    seconds = time.perf_counter() - start
    return {
        "architecture": architecture,
        "machine": describe_machine(backend),
        "shape": X_train.shape[1:],
        "train": len(X_train),
        "test": len(X_test),
        "train_of_each_photograph": np.bincount(y_train).tolist(),
        "ridge": RIDGE,
        "warm_up_seconds": warming,
        **found,
        "seconds": seconds,
        "pairs": pairs,
        "pairs_per_second": pairs / seconds,
    }


def has_estimators() -> bool:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


def warm_up(architecture: str, backend: str, images: Any) -> float:
    """Compile, so that compilation is not timed later; returns the seconds it took."""
    _, taken = timed(lambda: kernel(architecture)(images[:2], backend=backend))
    return float(taken)


def fit_estimator(architecture: str, backend: str, X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, Any]:
    from tangentless import KernelRidgeClassifier

    model = KernelRidgeClassifier(kernel=architecture, ridge=RIDGE, backend=backend)
    _, fitting = timed(lambda: model.fit(X, y))
    accuracy, testing = timed(lambda: model.score(X_test, y_test))
    return {
        "by": "KernelRidgeClassifier",
        "fit_seconds": fitting,
        "test_seconds": testing,
        "leave_one_out_accuracy": float(model.loo_score_),
        "accuracy": float(accuracy),
    }


def fit_by_hand(architecture: str, backend: str, X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, Any]:
    """The steps of the classifier: a column of targets for every class, ridge regression, the largest prediction."""
    k, targets = kernel(architecture), np.where(y[:, None] == np.arange(2), 1.0, -1.0)
    solution, fitting = timed(lambda: solve_ridge(k(X, backend=backend), targets, RIDGE, backend=backend))
    scores, testing = timed(lambda: k(X_test, X, backend=backend) @ solution.coefficients)
    return {
        "by": "kernel and solve_ridge, because scikit-learn is not installed",
        "fit_seconds": fitting,
        "test_seconds": testing,
        "leave_one_out_accuracy": float((solution.leave_one_out.argmax(1) == y).mean()),
        "accuracy": float((scores.argmax(1) == y_test).mean()),
    }


if __name__ == "__main__":
    main()
