"""Uncertainty on a CPU: the cost of variances and updates of a factor, and active choice and calibration on digits.

    python benchmarks/uncertainty_cpu.py [--rows 10000] [--parts cost,active,...] [--output RECORD.json]

- `cost`: the factor of `--rows` rows, the variances of 1,000 new rows, and an update by a tenth more rows against a new
  factor; in turns, the best of three. Times are processor seconds (of one core with OMP_NUM_THREADS=1), since
  wall-clock times mean nothing on a busy machine.
- `partial`: `partial_fit` with 100 digits against a fit of all 1,100, in processor seconds.
- `active`: 100 digits taken by `choose` against 100 random ones, for 20 splits into pool and test.
- `calibration`: three ways of making probabilities from 500 digits, 10 splits.
- `novelty` and `landmarks`: on digits too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import tangentless as tl
from solve_cpu import fill
from tangentless.files import write_json
from tangentless.solve import calibration, choose_landmarks, factorise, solve_nystroem
from tangentless.solve.pivoted import choose_rows
from tangentless.timing import environment

RIDGE = 1e-3
KERNEL = "conv3 relu conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize relu"
SEEDS, CHOSEN, TRAINED = 20, 100, 500
CALIBRATED = 10  # splits; a concentration is chosen in each


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = action()
    return result, time.process_time() - start


def measure_cost(rows: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    points, new = generator.standard_normal((rows, 8)), generator.standard_normal((1000, 8))
    K, more = np.empty((rows, rows)), rows // 11  # a tenth more than the rest
    fill(K, points)
    squares = (new**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2 * new @ points.T
    C, d, Y = np.exp(-squares / 8), np.ones(1000), generator.standard_normal((rows, 10))
    factorise(K[:64, :64].copy(), RIDGE).variance(C[:, :64], d)  # libraries load on first use
    best: dict[str, float] = {}

    def keep(name: str, action: Callable[[], Any]) -> Any:
        result, seconds = timed(action)
        best[name] = min(seconds, best.get(name, np.inf))
        return result

    def turn() -> float:
        factor = keep("factor", lambda: factorise(K, RIDGE))
        alpha = keep("coefficients", lambda: factor.solve(Y))
        keep("variance of 1,000 rows", lambda: factor.variance(C, d))
        part = factorise(K[:-more, :-more], RIDGE)
        for _ in range(3):  # the first run waits for fresh memory from the system
            updated = keep("update", lambda: part.update(K[-more:, :-more], K[-more:, -more:]))
        return float(np.abs(updated.solve(Y) - alpha).max() / np.abs(alpha).max())

    agreement = max(turn() for _ in range(3))
    return {
        "rows": rows,
        "rows added by the update": more,
        "processor seconds": best,
        "variance, of the factor": best["variance of 1,000 rows"] / best["factor"],
        "update, of the factor": best["update"] / best["factor"],
        "update and fresh coefficients differ by": agreement,
    }


def measure_partial() -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    X, Y = images.reshape(-1, 8, 8, 1)[:1100], np.eye(10)[labels[:1100]] - 0.1
    model = tl.GaussianProcessRegressor(KERNEL, backend="cpu", n_jobs=1)
    clone(model).fit(X[:50], Y[:50])  # compiles
    whole, parts = [], []
    for _ in range(3):
        whole.append(timed(lambda: clone(model).fit(X, Y))[1])
        some = clone(model).fit(X[:1000], Y[:1000])
        parts.append(timed(lambda some=some: some.partial_fit(X[1000:], Y[1000:]))[1])
    seconds = {"fit of 1,100 images": min(whole), "partial_fit of 100 to 1,000": min(parts)}
    return {"kernel": KERNEL, "processor seconds": seconds, "partial_fit, of the fit": min(parts) / min(whole)}


def digits_matrix() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return tl.kernel(KERNEL)(images.reshape(-1, 8, 8, 1), backend="cpu"), labels


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)), "values": values}


def measure_active(K: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    found: dict[str, list[float]] = {"chosen": [], "random": []}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(labels))
        pool, test = order[:1000], order[1000:]
        among = K[np.ix_(pool, pool)]
        chosen = choose_rows(lambda rows, columns, among=among: among[rows][:, columns], among.diagonal(), CHOSEN)
        for name, some in (("chosen", pool[chosen]), ("random", pool[:CHOSEN])):  # the order is random
            model = tl.KernelRidgeClassifier("precomputed", RIDGE).fit(K[np.ix_(some, some)], labels[some])
            found[name].append(float(model.score(K[np.ix_(test, some)], labels[test])))
    wins = int(np.sum(np.array(found["chosen"]) > np.array(found["random"])))
    about = {"kernel": KERNEL, "pool": 1000, "labelled": CHOSEN, "splits": SEEDS, "wins": wins}
    return {**about, **{name: spread(values) for name, values in found.items()}}


def measure_calibration(K: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for seed in range(CALIBRATED):
        order = np.random.default_rng(seed).permutation(len(labels))
        train, test = order[:TRAINED], order[TRAINED:]
        own, across = K[np.ix_(train, train)], K[np.ix_(test, train)]
        ridge = tl.KernelRidgeClassifier("precomputed", RIDGE).fit(own, labels[train])
        process = tl.GaussianProcessClassifier("precomputed").fit(own, labels[train])
        clipped = np.maximum(ridge.decision_function(across), 1e-3)
        for name, shares in (
            ("least squares, clipped", clipped / clipped.sum(axis=1, keepdims=True)),
            ("temperature by leave-one-out", ridge.predict_proba(across)),
            ("Dirichlet process", process.predict_proba(across, prior=K.diagonal()[test])),
        ):
            found.setdefault(name, []).append(calibration(shares, labels[test]))
    names = ("accuracy", "nll", "brier", "ece")
    ways = {way: {name: spread([getattr(one, name) for one in all_]) for name in names} for way, all_ in found.items()}
    return {"kernel": KERNEL, "train": TRAINED, "test": len(labels) - TRAINED, "splits": CALIBRATED, "ways": ways}


def measure_novelty() -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    images, rng = images.reshape(-1, 8, 8, 1), np.random.default_rng(0)
    shuffled = rng.permuted(images[1000:].reshape(-1, 64), axis=1).reshape(-1, 8, 8, 1)
    few, many = labels < 5, labels >= 5
    model = tl.GaussianProcessRegressor(KERNEL, 1e-2, backend="cpu").fit(images[:1000], np.eye(10)[labels[:1000]] - 0.1)
    half = tl.GaussianProcessRegressor(KERNEL, 1e-2, backend="cpu")
    half.fit(images[:1000][few[:1000]], np.eye(10)[labels[:1000][few[:1000]]][:, :5] - 0.2)

    def area(one: Any, usual: np.ndarray, strange: np.ndarray) -> float:
        values = np.concatenate([one.novelty(usual), one.novelty(strange)])
        return float(roc_auc_score(np.repeat([0, 1], [len(usual), len(strange)]), values))

    tested = images[1000:]
    return {
        "kernel": KERNEL,
        "digits against digits with shuffled pixels": area(model, tested, shuffled),
        "digits against noise": area(model, tested, rng.uniform(0, 16, tested.shape)),
        "digits 0 to 4, trained on, against 5 to 9": area(half, tested[few[1000:]], tested[many[1000:]]),
    }


def measure_landmarks(K: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    train, test, targets = np.arange(1000), np.arange(1000, len(labels)), np.eye(10)[labels]
    own = K[np.ix_(train, train)]
    order = choose_rows(lambda rows, columns: own[rows][:, columns], own.diagonal(), 500)

    def accuracy(chosen: np.ndarray) -> float:
        found = solve_nystroem(own[:, chosen], own[np.ix_(chosen, chosen)], targets[:1000], RIDGE).coefficients
        return float(np.mean((K[np.ix_(test, train[chosen])] @ found).argmax(axis=1) == labels[test]))

    ways = {}
    for count in (50, 100, 250, 500):
        random = spread([accuracy(choose_landmarks(1000, count, seed=seed)) for seed in range(SEEDS)])
        ways[str(count)] = {"by variance": accuracy(order[:count]), "random": random}
    exact = tl.KernelRidgeClassifier("precomputed", RIDGE).fit(own, labels[:1000])
    return {"kernel": KERNEL, "exact": float(exact.score(K[np.ix_(test, train)], labels[test])), "landmarks": ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--parts", default="cost,partial,active,calibration,novelty,landmarks")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    command = f"OMP_NUM_THREADS=1 python benchmarks/uncertainty_cpu.py --rows {options.rows} --parts {options.parts}"
    report: dict[str, Any] = {"environment": {**environment(), "command": command}}
    matrix = digits_matrix() if set(options.parts.split(",")) & {"active", "calibration", "landmarks"} else None
    for part in options.parts.split(","):
        if part == "cost":
            report[part] = measure_cost(options.rows)
        elif part in ("novelty", "partial"):
            report[part] = {"novelty": measure_novelty, "partial": measure_partial}[part]()
        else:
            parts = {"active": measure_active, "calibration": measure_calibration, "landmarks": measure_landmarks}
            report[part] = parts[part](*matrix)
        print(part, report[part], flush=True)
        if options.output is not None:
            write_json(options.output, report)


if __name__ == "__main__":
    main()
