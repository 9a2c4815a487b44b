"""Claim: ten learned images classify MNIST and CIFAR-10 far better than ten of the training images.

The method is kernel inducing points (Nguyen et al., 2021), with the kernels of networks that end in a flattened grid,
as there. MNIST is standardised; CIFAR-10 is whitened, and its training images are mirrored at random. One trial, the
whole test set. Written are the record, the model, and a picture of the images before and after. A prediction costs one
kernel entry for each learned image.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..backends import Precision
from ..console import say_files, show_table
from ..datasets import Dataset
from ..devices import Device
from ..distillation import Settings, distill
from ..errors import ParameterError
from ..estimators import KernelRidgeClassifier
from ..files import make_folder, write_json
from ..models import save_model
from ..plots import draw_distilled
from ..preprocessing import Standardize
from ..progress import progress_bar
from ..timing import command, describe_machine, environment, timed, today
from .records import report_record
from .splits import check_test
from .whitening import Whitening

# Both end in a patch as large as the grid, not in a pool: positions stay distinct, so ten images can hold more.
KERNELS = {
    "mnist": "conv3 relu conv3 relu pool2 conv3 relu conv3 relu pool2 conv3 relu patch7 normalize gaussian(4)",
    "cifar10": "conv3 relu pool2 conv3 relu pool2 conv3 relu pool2 patch4",
}

_PIXELS = (0.1307,), (0.3081,)  # mean and deviation of MNIST's pixels in [0, 1]


def check_dataset(name: str) -> None:
    """Refuse data sets that have no kernel here."""
    if name not in KERNELS:
        raise ParameterError(f"distillation is for the data sets {' and '.join(KERNELS)}, not for {name!r}")


def reproduce(
    dataset: Dataset,
    settings: Settings,
    *,
    kernel: str | None,
    epsilon: float,
    test: int | None,
    folder: Path,
    minutes: float | None = None,
    backend: str = "auto",
    precision: Precision = "float32",
    report: Path | None = None,
) -> dict[str, Any]:
    """Distil a data set, test the result, and write model, picture and record to a folder.

    After `minutes`, distillation stops and its current state is tested; the same call then resumes it.
    """
    check_dataset(dataset.name)
    check_test(dataset, test)
    kernel = kernel or KERNELS[dataset.name]
    make_folder(folder)
    name = f"distillation-{dataset.name}-{settings.images}"
    device = Device(backend, precision)
    if dataset.name == "cifar10":
        before: Any = Whitening(epsilon).fit(dataset, folder, device.name)
    else:
        before = Standardize(*_PIXELS, 255).fit(dataset.train.images)
    with progress_bar(f"{dataset.name} to {settings.images} images", unit="steps") as progress:
        found, seconds = timed(
            lambda: distill(
                dataset.train.images,
                dataset.train.labels,
                kernel=kernel,
                preprocessing=before,
                checkpoint=folder / f"{name}.checkpoint",
                seconds=None if minutes is None else 60 * minutes,
                watch=lambda done, total, _: progress(done, total),
                backend=device,
                **asdict(settings),
            )
        )
    images, labels = dataset.test.images[:test], dataset.test.labels[:test]
    undistilled = KernelRidgeClassifier(kernel, 1e-4, backend=device).fit(found.before, found.labels)
    accuracies = {
        "distilled": float(found.model.score(images, labels)),
        "random images": float(undistilled.score(before.transform(images), labels)),
    }
    save_model(folder / f"{name}.npz", found.model, force=True)
    title = f"{dataset.name} in {settings.images} images: {accuracies['distilled']:.1%} of the test images"
    draw_distilled(folder / f"{name}.png", title, found.before, found.images, found.labels)
    record = {
        "experiment": "distillation",
        "data": dict(dataset.hashes),
        "kernel": kernel,
        "settings": asdict(settings),
        "epsilon": epsilon if dataset.name == "cifar10" else None,
        "steps": len(found.losses),
        "accuracy": accuracies,
        "test images": len(labels),
        "losses": [round(loss, 6) for loss in found.losses[:: max(1, len(found.losses) // 50)]],
        "seconds": seconds,
        "date": today(),
        "machine": describe_machine(device.name),
        "environment": environment(),
        "command": command(sys.argv),
    }
    write_json(folder / f"{name}.json", record)
    rows = [(key, f"{value:.2%}") for key, value in accuracies.items()]
    steps = f"{len(found.losses):,} of {settings.steps:,} steps"
    table = f"{dataset.name} to {settings.images} images, {kernel}, {steps}", ("images", "test accuracy"), rows
    show_table(*table)
    report_record(report, title, record, [table], [folder / f"{name}.png"])
    say_files(folder / f"{name}.{suffix}" for suffix in ("npz", "png", "json"))
    return record
