"""The demonstration: handwritten digits, from pixels to a test accuracy, with the time of every step.

The 1,797 images of 8×8 pixels come with scikit-learn. A stratified sample of 1,000 is the training set; the rest is the
test set. Pixels are scaled to [0, 1]. Architecture and ridge are the estimator's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aside import seconds_compiling
from .devices import Device
from .estimators import KernelRidgeClassifier
from .files import make_folder, save_array
from .kernel import kernel
from .progress import progress_bar
from .timing import format_seconds, symmetric_pairs, timed

TRAINING_IMAGES = 1000
DISTILLATION_STEPS = 300
Say = Callable[[str, str], None]


@dataclass(frozen=True)
class Split:
    """Training and test sets of the digits: images (N, 8, 8, 1) and labels (N,)."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """The result of a demonstration: a picture, accuracies, and commands to try next."""

    picture: Path
    scores: Sequence[tuple[str, float, str]]  # (name, accuracy, note)
    further: Sequence[str]  # arguments of `tangentless`


def load_digits(seed: int) -> Split:
    """A stratified random split of the digits into 1,000 training images and 797 test images.

    >>> split = load_digits(seed=0)
    >>> split.train_images.shape, split.test_images.shape, float(split.train_images.max())
    ((1000, 8, 8, 1), (797, 8, 8, 1), 1.0)
    """
    from sklearn import datasets, model_selection

    digits = datasets.load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    train, test, train_labels, test_labels = model_selection.train_test_split(
        images, digits.target, train_size=TRAINING_IMAGES, stratify=digits.target, random_state=seed
    )
    return Split(train, train_labels, test, test_labels)


def run_demo(
    architecture: str, ridge: float, seed: int, folder: Path, backend: Device, say: Say, report: Path | None = None
) -> Outcome:
    """Train on digits, test, and write a picture and the data to a folder. Each step calls `say(name, outcome)`."""
    from .plots import draw_report

    k, split = kernel(architecture), load_digits(seed)
    make_folder(folder)
    before = seconds_compiling()
    _, loading = timed(lambda: k(split.train_images[:4], backend=backend))
    compiling = seconds_compiling() - before
    how = f"{format_seconds(compiling)} of it compiling" if compiling else "with what an earlier run compiled"
    say("first call", f"{format_seconds(loading + compiling)} for 4 images, {how}")

    K = _matrix(say, "training kernel", k, split.train_images, None, backend)
    model, solving = timed(lambda: KernelRidgeClassifier("precomputed", ridge=ridge).fit(K, split.train_labels))
    say("solution", f"{format_seconds(solving)}, exact, with leave-one-out predictions of all {len(K):,}")
    test = _matrix(say, "test kernel", k, split.test_images, split.train_images, backend)
    predicted = model.predict(test)

    right = predicted == split.test_labels
    picture = folder / "digits.png"
    title = f"Digits with {k.architecture.short_name}: {TRAINING_IMAGES:,} training images, ridge {ridge:g}"
    draw_report(picture, title, K, split.train_labels, split.test_images, split.test_labels, predicted)
    if report is not None:
        from .report import write_report

        shown: dict[str, Any] = {"images": split.train_images, "test_images": split.test_images, "title": title}
        about = {"kernel matrix of": str(k.architecture)}
        held_out = test, split.test_labels
        write_report(report, model, K, split.train_labels, test=held_out, configuration=about, force=True, **shown)
        say("report", str(report))
    files = {name: folder / f"{name}.npy" for name in vars(split)}
    for name, file in files.items():
        save_array(file, getattr(split, name))
    scores = [
        ("leave-one-out accuracy", model.loo_score_, "of the training images"),
        ("test accuracy", float(right.mean()), f"{int(np.sum(~right))} mistakes"),
    ]
    fitted, train = folder / "model.npz", f"{files['train_images']} {files['train_labels']}"
    further = [
        f"fit myrtle10-gaussian {train} --output {fitted}",
        f"predict {fitted} {files['test_images']} --labels {files['test_labels']}",
        "describe myrtle10-gaussian --shape 32,32,3 --images 10000",
        "bench",
    ]
    return Outcome(picture, scores, further)


def run_distillation(architecture: str, seed: int, folder: Path, backend: Device, say: Say) -> Outcome:
    """Distil the digits to ten images, test a model trained on these, and write model, picture and data to a folder."""
    from .distillation import distill
    from .models import save_model
    from .plots import draw_distilled

    split = load_digits(seed)
    make_folder(folder)
    with progress_bar("distilling", unit="steps") as progress:
        found, taken = timed(
            lambda: distill(
                split.train_images,
                split.train_labels,
                10,
                architecture,
                steps=DISTILLATION_STEPS,
                batch=200,
                rate=0.05,
                ridge=1e-4,
                learn_labels=True,
                seed=seed,
                watch=lambda done, total, _: progress(done, total),
                backend=backend,
            )
        )
    say("distillation", f"{format_seconds(taken)} for {DISTILLATION_STEPS} steps of 200 × 10 pairs and their gradients")
    plain = KernelRidgeClassifier(architecture, backend=backend).fit(found.before, found.labels)
    before, after = (float(m.score(split.test_images, split.test_labels)) for m in (plain, found.model))
    picture, model = folder / "distilled.png", folder / "distilled.npz"
    title = f"{TRAINING_IMAGES:,} digits in ten images: from {before:.1%} to {after:.1%} of the test images"
    draw_distilled(picture, title, found.before, found.images, found.labels)
    save_model(model, found.model, force=True)
    images, labels = folder / "test_images.npy", folder / "test_labels.npy"
    save_array(images, split.test_images)
    save_array(labels, split.test_labels)
    scores = [("test accuracy of ten images", before, "as they were"), ("", after, "as learned")]
    return Outcome(picture, scores, [f"predict {model} {images} --labels {labels}"])


def _matrix(say: Say, label: str, k: Any, X: NDArray[Any], Z: NDArray[Any] | None, backend: Device) -> NDArray[Any]:
    """Compute k(X, Z) with a progress bar, and report its time and speed with `say`."""
    pairs = symmetric_pairs(len(X)) if Z is None else len(X) * len(Z)
    with progress_bar(label) as progress:
        matrix, taken = timed(lambda: k(X, Z, backend=backend, progress=progress))
    shape = " × ".join(f"{side:,}" for side in matrix.shape)
    say(label, f"{format_seconds(taken)} for {shape}: {pairs:,} pairs, {pairs / taken:,.0f} pairs/s")
    values: NDArray[Any] = matrix
    return values
