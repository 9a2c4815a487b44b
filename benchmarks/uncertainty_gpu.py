"""Uncertainty on one GPU, on CIFAR-10: standard deviations, calibration, novelty, active choice and landmarks.

    PYTHONPATH=src python benchmarks/uncertainty_gpu.py OUTPUT --data FOLDER [--parts std,calibration,...] [--small]

Each part writes its record, `OUTPUT/uncertainty_PART.json`, when it is finished:

- `std`: a factor of 20,000 rows and the posterior standard deviations of 10,000 images. Times are without kernel
  entries. The kernel is a Gaussian of CIFAR-10's pixels, which is quick to compute.
- `calibration`: three ways of making probabilities of CIFAR-10's classes from 5,000 images, on 5,000 test images, with
  a reliability diagram.
- `novelty`: CIFAR-10's test images against MNIST, enlarged to 32×32×3, and against noise.
- `active`: the 500 images of 5,000 that `choose` takes, against 500 at random.
- `landmarks`: 2,000 landmarks of 10,000 images against exact training.

`--small` runs everything at the smallest size, on any machine.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import tangentless as tl
from tangentless.datasets import load
from tangentless.devices import Device
from tangentless.files import make_folder, write_json
from tangentless.inputs import to_host
from tangentless.plots import draw_reliability, save_pictures
from tangentless.preprocessing import CIFAR10, ZCA, Standardize
from tangentless.solve import calibration, factorise
from tangentless.solve.pivoted import choose_rows
from tangentless.timing import describe_machine, environment

PARTS = ("std", "calibration", "novelty", "active", "landmarks")
NOISE = 1e-2
TRANSFORMS = ("zca 1e-5", "zca 1e-2", "standardised")  # the paper's ZCA, a milder one, and no whitening


@dataclass(frozen=True)
class Sizes:
    kernel: str = "myrtle10-gaussian"
    quick: str = "myrtle5"  # for parts that need many pairs
    whitened_on: int = 50_000
    std: tuple[int, int] = (20_000, 10_000)
    train: int = 5_000
    test: int = 5_000
    strange: int = 500
    chosen: int = 500
    seeds: int = 20
    landmarks: tuple[int, int, int] = (10_000, 2_000, 2_000)  # images, landmarks, test images


SMALL = Sizes("myrtle5", "myrtle5", 300, (300, 100), 60, 60, 20, 20, 3, (80, 20, 40))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


@dataclass(frozen=True)
class Work:
    sizes: Sizes
    data: Path
    backend: str
    output: Path

    @cached_property
    def device(self) -> Device:
        return Device(self.backend)

    @cached_property
    def cifar(self) -> Any:
        return load("cifar10", self.data, download=False)

    @cached_property
    def order(self) -> np.ndarray:
        return np.random.default_rng(0).permutation(len(self.cifar.train))

    @cached_property
    def fitted(self) -> dict[str, Any]:
        return {}

    def images(self, pixels: np.ndarray, transform: str = "zca 1e-5") -> np.ndarray:
        if transform not in self.fitted:
            epsilon = transform.removeprefix("zca ")
            zca = None if transform == "standardised" else ZCA(float(epsilon), mirrors=True, backend=self.backend)
            some = self.cifar.train.images[: self.sizes.whitened_on]
            self.fitted[transform] = (zca or Standardize(**CIFAR10)).fit(some)
        return self.fitted[transform].transform(pixels).astype(np.float32)

    @cached_property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        some = self.cifar.train.take(self.order[: self.sizes.train])
        return some.images, some.labels

    @cached_property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        some = self.cifar.test.take(slice(self.sizes.test))
        return some.images, some.labels

    @cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The kernel matrices training × training and test × training, and the diagonal of the test images."""
        k, train, test = tl.kernel(self.sizes.kernel), self.images(self.train[0]), self.images(self.test[0])
        say(f"kernels of {len(train):,} training and {len(test):,} test images")
        return k(train, backend=self.device), k(test, train, backend=self.device), k.diag(test, backend=self.device)

    def timed(self, action: Callable[[], Any]) -> tuple[Any, float]:
        self.wait()
        start = time.perf_counter()
        result = action()
        self.wait()
        return result, time.perf_counter() - start

    def wait(self) -> None:
        if self.backend == "cuda":
            self.device.algebra.xp.cuda.Device().synchronize()

    def held_bytes(self) -> int:
        """Bytes in CuPy's memory pool; on a CPU, the peak memory of this process."""
        if self.backend == "cuda":
            return int(self.device.algebra.xp.get_default_memory_pool().total_bytes())
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def release(self) -> None:
        if self.backend == "cuda":
            self.device.algebra.xp.get_default_memory_pool().free_all_blocks()


def pixel_kernel(work: Work, X: Any, Z: Any) -> Any:
    """The matrix of a Gaussian kernel of vectors, on the device."""
    xp = work.device.algebra.xp
    found = xp.empty((len(X), len(Z)))
    for start in range(0, len(X), 1024):
        rows = slice(start, start + 1024)
        products = X[rows] @ Z.T
        found[rows] = xp.exp((products - 0.5 * (X[rows] ** 2).sum(1)[:, None] - 0.5 * (Z**2).sum(1)) / 1000)
    return found


def measure_std(work: Work) -> dict[str, Any]:
    rows, count = work.sizes.std
    xp = work.device.algebra.xp
    pixels = work.images(work.cifar.train.images[work.order[:rows]], "standardised").reshape(rows, -1)
    new = work.images(work.cifar.test.images[:count], "standardised").reshape(count, -1)
    X, Z = xp.asarray(pixels, dtype=np.float64), xp.asarray(new, dtype=np.float64)
    K, C = pixel_kernel(work, X, X), pixel_kernel(work, Z, X)
    K, d = (K + K.T) / 2, xp.ones(count)
    Y = np.eye(10)[work.cifar.train.labels[work.order[:rows]]] - 0.1
    warm = factorise(K[:100, :100].copy(), NOISE, backend=work.device)  # libraries load on first use
    warm.variance(C[:10, :100].copy(), d[:10])
    more = rows // 10
    found: dict[str, Any] = {"rows": rows, "new rows": count, "noise": NOISE}
    part = K[:-more, :-more].copy()
    before, _ = work.timed(lambda: factorise(part, NOISE, overwrite=True, backend=work.device))
    updated, seconds = work.timed(lambda: before.update(K[-more:, :-more].copy(), K[-more:, -more:].copy()))
    found["update with a tenth more rows, seconds"] = seconds
    own = updated.solve(Y)
    before = part = updated = None  # frees their memory
    work.release()
    factor, found["factor, seconds"] = work.timed(lambda: factorise(K, NOISE, overwrite=True, backend=work.device))
    alpha, found["coefficients, seconds"] = work.timed(lambda: factor.solve(Y))
    variances, found["standard deviations, seconds"] = work.timed(lambda: xp.sqrt(xp.asarray(factor.variance(C, d))))
    found["update and fresh coefficients differ by"] = float(abs(own - alpha).max() / abs(alpha).max())
    found["smallest deviation"], found["largest deviation"] = float(variances.min()), float(variances.max())
    found["all finite"] = bool(xp.isfinite(variances).all())
    exact = d[:5] - (C[:5].T * xp.asarray(factor.solve(to_host(C[:5].T)))).sum(axis=0)
    found["against c' Q c, largest difference of variances"] = float(abs(variances[:5] ** 2 - exact).max())
    return found


def measure_calibration(work: Work) -> dict[str, Any]:
    K, C, d = work.matrices
    labels, truth = work.train[1], work.test[1]
    ridge, ridge_seconds = work.timed(
        lambda: tl.KernelRidgeClassifier("precomputed", "loo", backend=work.backend).fit(K, labels)
    )
    values = ridge.decision_function(C)
    clipped = np.maximum(values, 1e-3)
    process, seconds = work.timed(
        lambda: tl.GaussianProcessClassifier("precomputed", backend=work.backend).fit(K, labels)
    )
    shares, predicting = work.timed(lambda: process.predict_proba(C, prior=d))
    ways = {
        "least squares, clipped": clipped / clipped.sum(axis=1, keepdims=True),
        "temperature by leave-one-out": ridge.predict_proba(C),
        "Dirichlet process": shares,
    }
    found = {name: calibration(chances, truth) for name, chances in ways.items()}
    save_pictures(draw_reliability(found), work.output, "reliability-cifar10")
    for name, one in found.items():
        say(f"{name}: accuracy {one.accuracy:.4f}, log loss {one.nll:.4f}, Brier {one.brier:.4f}, ECE {one.ece:.4f}")
    return {
        "kernel": work.sizes.kernel,
        "train": len(labels),
        "test": len(truth),
        "ridge": ridge.ridge_,
        "leave-one-out accuracy": ridge.loo_score_,
        "concentration": process.concentration_,
        "scale": process.scale_,
        "seconds": {"ridge and its choice": ridge_seconds, "process": seconds, "probabilities": predicting},
        "ways": {
            name: {
                "accuracy": one.accuracy,
                "nll": one.nll,
                "brier": one.brier,
                "ece": one.ece,
                "counts": one.counts.tolist(),
                "confidences": np.nan_to_num(one.confidences).tolist(),
                "accuracies": np.nan_to_num(one.accuracies).tolist(),
            }
            for name, one in found.items()
        },
    }


def strange_images(work: Work) -> dict[str, np.ndarray]:
    rng, count = np.random.default_rng(1), work.sizes.strange
    digits = load("mnist", work.data, download=False).test.images[:count]
    enlarged = np.pad(digits, ((0, 0), (2, 2), (2, 2), (0, 0))).repeat(3, axis=3)
    shape = (count, 32, 32, 3)
    normal = np.clip(125 + 63 * rng.standard_normal(shape), 0, 255).astype(np.uint8)
    return {
        "MNIST": enlarged,
        "uniform noise": rng.integers(0, 256, shape, dtype=np.uint8),
        "normal noise": normal,
        "one colour": np.broadcast_to(rng.integers(0, 256, (count, 1, 1, 3), dtype=np.uint8), shape),
    }


def measure_novelty(work: Work) -> dict[str, Any]:
    pixels, labels = work.train
    usual, strange = work.test[0][: work.sizes.strange], strange_images(work)
    targets = np.eye(10)[labels] - 0.1
    found: dict[str, Any] = {"train": len(pixels), "images of each kind": work.sizes.strange, "noise": NOISE}
    for name in TRANSFORMS:
        kernel = work.sizes.quick
        model = tl.GaussianProcessRegressor(kernel, NOISE, backend=work.backend)
        model.fit(work.images(pixels, name), targets)
        base = model.novelty(work.images(usual, name))
        about: dict[str, Any] = {"CIFAR-10, median": float(np.median(base))}
        for kind, images in strange.items():
            own = model.novelty(work.images(images, name))
            truth = np.repeat([0, 1], [len(base), len(own)])
            area = float(roc_auc_score(truth, np.concatenate([base, own])))
            about[kind] = {"AUROC": area, "median": float(np.median(own))}
        found[f"{kernel}, {name}"] = about
        say(f"{kernel}, {name}: {about}")
        write_json(work.output / "uncertainty_novelty_so_far.json", found)
        del model
        work.release()
    return found


def measure_active(work: Work) -> dict[str, Any]:
    K, C, _ = work.matrices
    labels, truth, count = work.train[1], work.test[1], work.sizes.chosen

    def accuracy(rows: np.ndarray) -> float:
        model = tl.KernelRidgeClassifier("precomputed", 1e-3).fit(K[np.ix_(rows, rows)], labels[rows])
        return float(model.score(C[:, rows], truth))

    chosen = choose_rows(lambda rows, columns: K[rows][:, columns], K.diagonal(), count)
    rng = np.random.default_rng(0)
    random = [accuracy(rng.choice(len(labels), count, replace=False)) for _ in range(work.sizes.seeds)]
    found = {"pool": len(labels), "chosen": count, "by variance": accuracy(chosen)}
    found |= {"random, mean": float(np.mean(random)), "random, deviation": float(np.std(random, ddof=1))}
    say(str(found))
    return {**found, "random": random, "kernel": work.sizes.kernel}


def measure_landmarks(work: Work) -> dict[str, Any]:
    rows, count, tested = work.sizes.landmarks
    train, test = work.cifar.train.take(work.order[:rows]), work.cifar.test.take(slice(tested))
    X, Z, found = work.images(train.images), work.images(test.images), []
    ways: list[tuple[str, dict[str, Any]]] = [
        ("landmarks by variance", {"landmarks": count}),
        ("landmarks at random", {"landmarks": count, "landmarks_by": "random"}),
        ("exact", {}),
    ]
    tl.kernel(work.sizes.quick)(X[:20], X[:30], backend=work.device)  # compiles
    for name, options in ways:
        work.release()
        model = tl.KernelRidgeClassifier(work.sizes.quick, 1e-3, backend=work.backend, **options)
        _, fitting = work.timed(lambda model=model: model.fit(X, train.labels))
        held = work.held_bytes()
        score, predicting = work.timed(lambda model=model: model.score(Z, test.labels))
        row = {"way": name, "accuracy": float(score), "leave-one-out accuracy": model.loo_score_}
        row |= {"landmarks": None if model.landmarks_ is None else len(model.landmarks_), "ridge": model.ridge_}
        row |= {"fit, seconds": fitting, "predict, seconds": predicting, "held bytes": held}
        row["kernel entries, bytes"] = 8 * rows * (rows if model.landmarks_ is None else len(model.landmarks_))
        found.append(row)
        say(str(row))
        write_json(work.output / "uncertainty_landmarks_so_far.json", found)
    return {"kernel": work.sizes.quick, "train": rows, "test": tested, "ways": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--backend", default=None, help="by default cuda, or cpu with --small")
    options = parser.parse_args()
    backend = options.backend or ("cpu" if options.small else "cuda")
    make_folder(options.output)
    work = Work(SMALL if options.small else Sizes(), options.data, backend, options.output)
    parts = {
        "std": measure_std,
        "calibration": measure_calibration,
        "novelty": measure_novelty,
        "active": measure_active,
        "landmarks": measure_landmarks,
    }
    command = f"python benchmarks/uncertainty_gpu.py OUTPUT --data FOLDER --parts {options.parts}"
    about = {**environment(), "device": describe_machine(backend), "command": command}
    for name in options.parts.split(","):
        say(f"part {name}")
        found, seconds = work.timed(lambda name=name: parts[name](work))
        write_json(options.output / f"uncertainty_{name}.json", {"environment": about, "seconds": seconds, **found})
        say(f"part {name}: {seconds:.0f} s")


if __name__ == "__main__":
    main()
