"""Adversarial examples on one GPU: the robust accuracy of Myrtle5, trained on 5,000 images of CIFAR-10.

    PYTHONPATH=src python benchmarks/attacks_gpu.py OUTPUT --data FOLDER --minutes 10

FGSM and PGD in the maximum norm, eps 2/255 and 8/255, on 1,000 test images, pixels in [0, 1]. Test images are attacked
in parts. The record, OUTPUT/attacks.json, is written after every part, and the next call resumes from it. `--small`
runs everything at the smallest size, on any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tangentless as tl
from tangentless.attacks import fgsm, pgd
from tangentless.chunks import spans
from tangentless.console import show_table
from tangentless.datasets import load
from tangentless.files import make_folder, write_json
from tangentless.statistics import exact_interval
from tangentless.timing import command, describe_machine, environment, timed, today

EPSILONS = {"2/255": 2 / 255, "8/255": 8 / 255}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="a folder")
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--kernel", default="myrtle5")
    parser.add_argument("--train", type=int, default=5_000)
    parser.add_argument("--test", type=int, default=1_000)
    parser.add_argument("--part", type=int, default=100, help="test images that are attacked together")
    parser.add_argument("--steps", type=int, default=10, help="of PGD")
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--minutes", type=float, default=10.0, help="after which no part is begun")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.kernel, options.train, options.test = "conv3 relu pool4 conv3 relu globalpool", 40, 20
        options.part, options.steps = 10, 2
    run(options, time.monotonic() + 60 * options.minutes)


def run(options: Any, ends: float) -> None:
    make_folder(options.output)
    path = options.output / "attacks.json"
    settings = {name: getattr(options, name) for name in ("kernel", "train", "test", "part", "steps", "ridge")}
    record = json.loads(path.read_text()) if path.exists() else {"attacks": {}}
    if record["attacks"] and record["settings"] != settings:
        sys.exit(f"{path} is of other settings, {record['settings']}; give another folder")
    (X, y), (test, labels) = images(options)
    model = tl.KernelRidgeClassifier(options.kernel, options.ridge, backend=options.backend)
    _, seconds = timed(lambda: model.fit(X, y))
    record |= {
        "experiment": "attacks",
        "settings": settings,
        "date": today(),
        "machine": describe_machine(options.backend),
        "environment": environment(),
        "command": command(sys.argv),
        "seconds of training": seconds,
        "accuracy without attack": model.score(test, labels),
    }
    for what, eps, part in work(options):
        found = record["attacks"].setdefault(f"{what} {eps}", {"right": 0, "of": 0, "seconds": 0.0})
        if found["of"] > part.start:  # done by an earlier call
            continue
        if time.monotonic() > ends:
            break
        of_part = model, what, test[part], labels[part], EPSILONS[eps], options.steps
        right, seconds = timed(lambda: attacked(*of_part))  # noqa: B023
        found["right"], found["of"] = found["right"] + right, found["of"] + len(labels[part])
        found["seconds"] += seconds
        write_json(path, record)
    write_json(path, record)
    rows = [("none", f"{record['accuracy without attack']:.1%}", "", f"{len(labels):,}")]
    for name, found in record["attacks"].items():
        if found["of"]:
            low, high = exact_interval(found["right"], found["of"])
            rows.append((name, f"{found['right'] / found['of']:.1%}", f"{low:.1%} to {high:.1%}", f"{found['of']:,}"))
    show_table(f"{options.kernel}, {options.train:,} images", ("attack", "accuracy", "95 %", "test images"), rows)


def work(options: Any) -> list[tuple[str, str, slice]]:
    """The jobs (attack, eps, part), in order: all of FGSM, which is quick, then PGD, part by part for every eps."""
    parts = list(spans(options.test, options.part))
    return [(what, eps, part) for what in ("fgsm", "pgd") for part in parts for eps in EPSILONS]


def attacked(model: Any, what: str, X: Any, y: Any, eps: float, steps: int) -> int:
    """Attack images; returns how many are still classified correctly."""
    moved = fgsm(model, X, y, eps) if what == "fgsm" else pgd(model, X, y, eps, steps=steps)
    return int((model.predict(moved) == y).sum())


def images(options: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    data = load("cifar10", options.data)
    order = np.random.default_rng(0).permutation(len(data.train.labels))
    classes = [order[data.train.labels[order] == code][: options.train // 10] for code in range(10)]
    train, test = data.train.take(np.concatenate(classes)), data.test.take(np.arange(options.test))
    return tuple((one.images / 255.0, one.labels) for one in (train, test))


if __name__ == "__main__":
    main()
