"""Claim: architectures that make good networks make good kernels: their accuracies have the same order.

Every architecture is run as a kernel, by ridge regression, and as a network, trained in three trials. Both get the same
training and test images. The figure has a point for each architecture, with 95 % intervals, and states the rank
correlation, with an interval from resampling the test images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..architecture import Architecture
from ..console import percent, say, span
from ..datasets import Dataset
from ..errors import ParameterError
from ..networks.inputs import make_transform
from ..networks.recipes import Inputs, Ramp, Recipe
from ..plots import COLOURS, new_axes, save_pictures
from ..statistics import Score, rank_correlation
from ..timing import describe_machine
from .networks import Prepared, Task, mean_score, prepare
from .records import Clock, Outcome, Row, Run, View, backend_name

if TYPE_CHECKING:
    from ..networks.training import Machine

Array = NDArray[np.float64]

ARCHITECTURES = (  # of different depth and pooling; all fit images of 8×8, 28×28 and 32×32
    "conv3 relu globalpool normalize relu",
    "conv5 relu globalpool normalize relu",
    "conv3 relu conv3 relu globalpool normalize relu",
    "pool2 conv3 relu pool2 conv3 relu globalpool normalize relu",
    "conv3 relu pool2 conv3 relu globalpool normalize relu",
    "conv3 relu pool4 conv3 relu globalpool normalize relu",
    "conv5 relu pool2 conv5 relu globalpool normalize relu",
    "conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize relu",
    "myrtle5",
    "myrtle7",
    "myrtle10",
)
COLUMNS = ("architecture", "kernel, %", "95 % interval", "network, %", "95 % interval", "over seeds")
EXPERIMENT = "compare"
_MARKERS = "os^D"  # the next marker is used when the colours are used up: there are fewer than architectures


@dataclass(frozen=True)
class Settings:
    """Data and training, the same for all architectures."""

    train: int | None = None
    test: int | None = None
    inputs: Inputs = "zca"
    epsilon: float = 1e-4
    ridge: float | str = "loo"
    width: int = 64
    epochs: int = 30
    learning_rate: float = 3e-3
    batch_norm: bool = False
    trials: int = 3
    seed: int = 0

    def recipe(self, data: str, architecture: str) -> Recipe:
        """How networks are trained: by Adam, whose steps do not depend on the scale of an architecture's outputs."""
        return Recipe(
            data,
            architecture,
            self.width,
            self.epochs,
            batch_norm=self.batch_norm,
            loss="squares",
            optimizer="adam",
            learning_rate=self.learning_rate,
            schedule=Ramp(0.2),
            weight_decay=0.0,
            batch=32,
            inputs=self.inputs,
            epsilon=self.epsilon,
            images=self.train,
        )


def compare(
    dataset: Dataset,
    architectures: Sequence[str],
    settings: Settings,
    *,
    backend: str = "auto",
    machine: Machine,
    folder: Path,
    stop_after: float | None = None,
) -> Outcome:
    """Train kernel and network of every architecture, and write record and pictures.

    After `stop_after` seconds nothing new is started and training stops between epochs; the same call resumes.
    """
    shapes = {Architecture.parse(text).short_name: Architecture.parse(text) for text in architectures}
    if len(shapes) < 2:
        raise ParameterError("a comparison needs two architectures or more")
    if not len(dataset.train):
        raise ParameterError(f"{dataset.name} has test images only, and a comparison needs images to train on")
    for architecture in shapes.values():
        architecture.grids(dataset.train.images.shape[1:-1])
    # Making recipes checks the settings before anything is written.
    recipes = {name: settings.recipe(dataset.name, name) for name in shapes}
    backend, clock, hits = backend_name(backend), Clock(stop_after), []
    run = Run(EXPERIMENT, folder, configuration=asdict(settings), data=dataset.hashes)
    fitted = functools.partial(make_transform, settings.inputs, dataset.train.images, settings.epsilon)
    # The images are transformed once for all architectures.
    data = functools.cache(lambda: prepare(dataset, fitted, settings.train, settings.test, settings.seed))
    images = len(dataset.test.labels[: settings.test])

    def rows() -> Iterator[Row]:
        kernel_settings = ("ridge", "seed", "test", "inputs", "epsilon", "train")
        for name, recipe in recipes.items():
            of: Row = {"kernel": {"architecture": name, **{key: run.configuration[key] for key in kernel_settings}}}
            fit = functools.partial(_fit_kernel, name, settings.ridge, backend, data, clock)
            kernel = run.piece(of, fit, machine=functools.partial(describe_machine, backend)).value
            trials = []
            for trial in range(settings.trials):
                of = {"network": recipe.to_json(), "trial": trial, "seed": settings.seed, "test": settings.test}
                label = f"{name}, trial {trial + 1}"
                task = Task(run, EXPERIMENT, of, recipe, settings.seed + trial, machine, clock, recipe.epochs, label)
                trials.append(task.piece(data, machine=machine.describe).value)
            hits.append([_hits([kernel], images), _hits(trials, images)])
            yield _row(name, kernel, trials, images)

    @functools.cache
    def about() -> dict[str, Any]:
        found = rank_correlation(*np.stack(hits, axis=1), seed=settings.seed)
        return {"dataset": dataset.name, "correlation": found}

    view = View("Kernel and network", COLUMNS, cells, lambda rows, folder: draw(rows, about(), folder))
    outcome = run.conduct(rows(), view, name=f"{EXPERIMENT}-{dataset.name}", summarise=lambda rows: about())
    if not outcome.unfinished:
        say(describe_correlation(about()["correlation"]))
    return outcome


def _fit_kernel(
    name: str, ridge: float | str, backend: str, data: Callable[[], Prepared], clock: Clock
) -> dict[str, Any]:
    """Fit and test ridge regression with the kernel; returns JSON values."""
    from ..estimators import KernelRidgeClassifier

    (images, labels), (test_images, truth) = data().train, data().test
    clock.left()
    model = KernelRidgeClassifier(name, ridge=ridge, backend=backend, verbose=True).fit(images, labels)
    wrong = np.flatnonzero(model.predict(test_images) != truth).tolist()
    return {"wrong": wrong, "ridge": model.ridge_, "leave-one-out accuracy": model.loo_score_, "train": len(labels)}


def describe_correlation(correlation: Row) -> str:
    """The rank correlation in words."""
    if correlation["spearman"] is None:
        return "no rank correlation: one side has the same accuracy for all architectures"
    low, high = correlation["interval"]
    return f"rank correlation {correlation['spearman']:.2f} ({low:.2f} to {high:.2f}), p = {correlation['p']:.2g}"


def draw(rows: Sequence[Row], about: Row, folder: Path) -> list[Path]:
    """Draw accuracy of the kernel against that of the network, one numbered point per architecture; returns the files.

    `about` is a record, or a mapping with its fields `dataset` and `correlation`.
    """
    title = f"{about['dataset']}, {rows[0]['train']:,} training and {rows[0]['rows']:,} test images"
    figure, axes = new_axes(9.6, 5.0, title, "accuracy of the network, %", "accuracy of the kernel, %")
    for number, row in enumerate(rows, start=1):
        colour = COLOURS[(number - 1) % len(COLOURS)]
        marker = _MARKERS[(number - 1) // len(COLOURS) % len(_MARKERS)]
        across, up = (100 * row[side]["accuracy"] for side in ("network", "kernel"))
        reach = [
            [[value - 100 * row[side]["interval"][0]], [100 * row[side]["interval"][1] - value]]
            for side, value in (("network", across), ("kernel", up))
        ]
        style = {"fmt": marker, "color": colour, "capsize": 2, "linewidth": 1, "markersize": 5}
        axes.errorbar(across, up, xerr=reach[0], yerr=reach[1], **style)
        axes.annotate(f"{number}", (across, up), xytext=(5, 5), textcoords="offset points", fontsize=9, color=colour)
        axes.plot([], [], marker, color=colour, markersize=5, label=f"{number}  {row['architecture']}")
    limits = axes.axis()
    axes.axline((0, 0), slope=1, color="#c3ccd4", linewidth=0.8, zorder=0)  # kernel and network equally accurate
    axes.axis(limits)
    axes.legend(frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axes.text(0.98, 0.03, describe_correlation(about["correlation"]), transform=axes.transAxes, ha="right", fontsize=9)
    return save_pictures(figure, folder, f"{EXPERIMENT}-{about['dataset']}")


def _hits(trials: Sequence[Row], images: int) -> Array:
    """The share of trials that classify each test image right, (images,); a network that diverged has none right."""
    hits = np.ones((len(trials), images))
    for row, trial in zip(hits, trials, strict=True):
        row[slice(None) if trial["wrong"] is None else trial["wrong"]] = 0.0
    mean: Array = hits.mean(axis=0)
    return mean


def _row(name: str, kernel: Row, trials: Sequence[Row], images: int) -> dict[str, Any]:
    by_trial = [float(_hits([trial], images).mean()) for trial in trials]
    score = Score(images - len(kernel["wrong"]), images)
    return {
        "architecture": name,
        "train": kernel["train"],
        "rows": images,
        "kernel": {**score.to_json(), "ridge": kernel["ridge"], "leave-one-out": kernel["leave-one-out accuracy"]},
        "network": {
            **mean_score(by_trial, images),
            "trials": by_trial,
            "diverged": sum(trial["wrong"] is None for trial in trials),
        },
    }


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    sides = (
        text for side in ("kernel", "network") for text in (percent(row[side]["accuracy"]), span(row[side]["interval"]))
    )
    spread = row["network"]["deviation"]
    return row["architecture"], *sides, "-" if spread is None else f"± {percent(spread, 2)}"
