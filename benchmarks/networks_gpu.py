"""Networks on one GPU: speed against the measured rate of matrix products, and training by the paper's recipes.

    PYTHONPATH=src python benchmarks/networks_gpu.py OUTPUT --data FOLDER --seconds 560 [--parts speed,myrtle5,...]

Parts, in this order:

- `speed`: the rate of bf16 matrix products, and seconds per epoch of Myrtle5 with 1,024 filters by compilation mode,
- `myrtle5`: 60 epochs on CIFAR-10,
- `subsets`: 1,280 images, five trials, with and without batch norm,
- `mnist`,
- `compare`: kernels against networks on 1,280 images of CIFAR-10,
- `myrtle10`: with flips; 256 filters and 20 epochs, and labelled so,
- `cifar10-myrtle5-no-zca`, `cifar10-myrtle7`, `cifar10-myrtle10`, `cifar10-myrtle10-augmented`: the other networks of
  CIFAR-10, with as many filters and epochs.

Training stops before `--seconds` are over, with checkpoints in WORK, and the same call resumes it. Records are copied
to OUTPUT. All of WORK except checkpoints goes into OUTPUT/networks_gpu.tgz; another machine with it unpacked in its
WORK does not repeat what is finished. `--toy` runs everything at the smallest size, on any machine.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import shutil
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tangentless.bench.gpu import build_kernels
from tangentless.datasets import Dataset, load
from tangentless.experiments import compare as comparison
from tangentless.experiments import networks as experiment
from tangentless.files import atomic_file, write_json
from tangentless.networks import RECIPES, Machine, network_of, train
from tangentless.timing import environment, today

COMPARED = (  # of different depth and pooling, all of which run fused on the GPU
    "conv3 relu globalpool normalize relu",
    "conv3 relu conv3 relu globalpool normalize relu",
    "conv3 relu conv3 relu conv3 relu globalpool normalize relu",
    "conv3 relu pool2 conv3 relu globalpool normalize relu",
    "conv3 relu conv3 relu pool2 conv3 relu conv3 relu globalpool normalize relu",
    "conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize relu",
    "conv3 relu pool2 conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize relu",
    "myrtle5",
)
SHORTER = {"width": 256, "epochs": 20}
SUBSETS = ("subset-bn-1280", "subset-1280")
RESERVE = 15.0  # seconds kept for tests, checkpoints and copies
SHORTENED = ("cifar10-myrtle5-no-zca", "cifar10-myrtle7", "cifar10-myrtle10", "cifar10-myrtle10-augmented")
TO_START = 60.0  # seconds that a part needs at least, with compiling


class Clock:
    def __init__(self, seconds: float) -> None:
        self.ends = time.perf_counter() + seconds - RESERVE

    def left(self) -> float:
        return max(self.ends - time.perf_counter(), 0.0)

    def may_start(self) -> bool:
        return self.left() >= TO_START


def ceiling(side: int, repeats: int = 10) -> float:
    """Operations per second of products of two random bf16 matrices, the best of five runs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))

    def run() -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, right)
        synchronize()
        return 2 * side**3 * repeats / (time.perf_counter() - start)

    run()
    return max(run() for _ in range(5))


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_speed(toy: bool, modes: list[str]) -> dict[str, Any]:
    """Seconds per epoch of 50,000 images, from full batches of random images, after compiling; a row for each mode."""
    recipe = RECIPES["cifar10-myrtle5"].change(epochs=3, **({"width": 8} if toy else {}))
    count = recipe.batch * (2 if toy else 48)
    images = np.random.default_rng(0).standard_normal((count, 32, 32, 3), dtype=np.float32)
    peak = ceiling(512 if toy else 8192)
    print(f"ceiling {peak / 1e12:.1f} TFLOP/s", flush=True)
    rows = []
    for mode in modes:
        network = network_of(recipe, (32, 32, 3), 10)
        first = next(weight for weight in network.weights())
        # Gradients by the images are not computed: the first convolution runs twice, everything else three times.
        work = 3 * network.operations() - 2 * first.numel() * 32 * 32
        training = train(network, images, np.arange(count) % 10, recipe, machine=Machine(compile=mode))
        rate = count / min(epoch.seconds for epoch in training.history[1:])
        row = {
            "compile": mode,
            "precision": training.precision,
            "images per second": rate,
            "seconds per epoch of 50,000": 50_000 / rate,
            "TFLOP per second": work * rate / 1e12,
            "share of ceiling": work * rate / peak,
            "operations per image": work,
        }
        print(row, flush=True)
        rows.append(row)
    return {"ceiling TFLOP per second": peak / 1e12, "rows": rows}


def run_recipes(
    names: tuple[str, ...],
    changes: dict[str, Any],
    clock: Clock,
    data: Callable[[str], Dataset],
    folder: Path,
    **more: Any,
) -> bool:
    """Train recipes, each with its own record; returns whether all trials are finished."""
    machine = more.pop("machine", Machine())
    for name in names:
        if not clock.may_start():
            return False
        settings = experiment.Settings((name,), changes, stop_after=clock.left(), **more)
        if experiment.reproduce(data, settings, machine=machine, folder=folder).unfinished:
            return False
    return True


def run_comparison(toy: bool, clock: Clock, data: Callable[[str], Dataset], folder: Path) -> bool:
    """Compare kernels with networks, at 3.4 million pairs for each kernel; returns whether all are finished."""
    settings = comparison.Settings(
        train=40 if toy else 1280,
        test=50 if toy else 2000,
        inputs="pixels" if toy else "zca",
        width=4 if toy else 256,
        epochs=1 if toy else 20,
        trials=1 if toy else 2,
    )
    names = COMPARED[:2] if toy else COMPARED
    if not toy:
        with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(build_kernels, names, [(32, 32, 3)] * len(names)))  # one after the other would take minutes
    outcome = comparison.compare(
        data("cifar10"),
        names,
        settings,
        machine=Machine(compile="off"),  # compiling eight networks would take longer than training them
        folder=folder,
        stop_after=clock.left(),
    )
    return not outcome.unfinished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("out/networks_gpu"), help="folder of pieces and checkpoints")
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--parts", default=",".join(("speed,myrtle5,subsets,mnist,compare,myrtle10", *SHORTENED)))
    parser.add_argument("--modes", default="default", help="compilation modes to measure: default,max-autotune,off")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    clock = Clock(options.seconds)
    options.output.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    data = functools.cache(load_toy if options.toy else lambda name: load(name, options.data, download=False))
    toy = {"width": 4, "epochs": 2, "images": 64} if options.toy else {}
    small = {"epochs": 2, "images": 40} if options.toy else {}
    many = {"test_every": 5, "test": 50 if options.toy else None}
    trials = {"trials": 2 if options.toy else 5, "test": 50 if options.toy else None, "test_every": 10}
    graphs = Machine(compile="off" if options.toy else "reduce-overhead")
    parts: dict[str, Callable[[], bool]] = {
        "speed": lambda: write_speed(options, measure_speed(options.toy, options.modes.split(","))),
        "myrtle5": lambda: run_recipes(("cifar10-myrtle5",), toy, clock, data, options.work, **many),
        "subsets": lambda: run_recipes(SUBSETS, small, clock, data, options.work, machine=graphs, **trials),
        "mnist": lambda: run_recipes(("mnist-myrtle5",), toy, clock, data, options.work, **many),
        "compare": lambda: run_comparison(options.toy, clock, data, options.work),
        "myrtle10": lambda: run_recipes(("cifar10-myrtle10-flips",), toy or SHORTER, clock, data, options.work, **many),
    }
    for name in SHORTENED:
        parts[name] = functools.partial(run_recipes, (name,), toy or SHORTER, clock, data, options.work, **many)
    for name in options.parts.split(","):
        finished = clock.may_start() and parts[name]()
        print(f"{name}: {'finished' if finished else 'to be continued'}; {clock.left():.0f} s left", flush=True)
        copy_results(options.work, options.output)


def copy_results(work: Path, output: Path) -> None:
    """Copy the records to `output`; pack them with pictures and pieces into one archive there."""
    records = sorted(work.glob("*.json"))
    for path in records:
        shutil.copy(path, output / path.name)
    rest = [path for pattern in ("*.png", "*.svg", "pieces/*.json") for path in sorted(work.glob(pattern))]
    with atomic_file(output / "networks_gpu.tgz") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in records + rest:
            archive.add(path, path.relative_to(work))


def write_speed(options: argparse.Namespace, found: dict[str, Any]) -> bool:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"environment": environment(), "torch": torch.__version__}
    write_json(options.work / "networks_speed.json", {"date": today(), "device": device, **found, **about})
    return True


def load_toy(name: str) -> Dataset:
    """A few digits, padded to the size of the images of the data set."""
    digits = load("digits")
    side, channels = (28, 1) if name == "mnist" else (32, 3)
    border = ((0, 0), ((side - 8) // 2,) * 2, ((side - 8) // 2,) * 2, (0, 0))

    def enlarge(split: Any) -> Any:
        return type(split)(np.repeat(np.pad(split.images, border), channels, axis=3), split.labels)

    few = digits.train.take(slice(200))
    return Dataset(name, enlarge(few), enlarge(digits.test.take(slice(60))), digits.classes, {name: "toy"})


if __name__ == "__main__":
    main()
