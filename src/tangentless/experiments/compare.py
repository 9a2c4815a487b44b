"""Claim: architectures that make good networks make good kernels: their accuracies have the same order.

Every architecture is a kernel, with ridge regression, and a network, trained; both see the same training images and
are tested on the same test images. The figure has a point for each, with 95 % intervals, and the rank correlation, with
an interval from resampling the test images.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..architecture import Architecture
from ..datasets import Dataset
from ..errors import ParameterError
from ..networks.inputs import make_transform
from ..networks.recipes import Inputs, Ramp, Recipe
from .console import percent, say, show_table
from .figures import COLOURS, new_axes, save_figure
from .networks import Clock, Prepared, Unfinished, asked_precision, checkpoint_of, machine_name, prepare, train_once
from .records import Piece, Run, Score, describe_machine, make_folder

if TYPE_CHECKING:
    from ..backends import Backend
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
RESAMPLED = 2000
_MARKERS = "os^D"  # beside colours, of which there are fewer than architectures
_EXACT = 8  # architectures up to which all orders are counted


@dataclass(frozen=True)
class Settings:
    """What is trained on, and how; the same for all architectures."""

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
        """How the networks are trained: Adam, whose steps do not depend on the scale that an architecture has."""
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


@dataclass(frozen=True)
class Outcome:
    """Rows of results; the rank correlation and files, once no architecture is unfinished."""

    rows: list[dict[str, Any]]
    correlation: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    unfinished: tuple[str, ...] = ()


def compare(
    dataset: Dataset,
    architectures: Sequence[str],
    settings: Settings,
    *,
    backend: Backend,
    machine: Machine | None = None,
    folder: Path,
    stop_after: float | None = None,
) -> Outcome:
    """Train kernel and network of every architecture, and write record and pictures.

    After `stop_after` seconds nothing new is started, and networks stop between epochs; the same call goes on.
    """
    shapes = {Architecture.parse(text).short_name: Architecture.parse(text) for text in architectures}
    if len(shapes) < 2:
        raise ParameterError("a comparison needs two architectures or more")
    if not len(dataset.train):
        raise ParameterError(f"{dataset.name} has test images only, and a comparison needs images to train on")
    for architecture in shapes.values():
        architecture.grids(dataset.train.images.shape[1:-1])
    recipes = {name: settings.recipe(dataset.name, name) for name in shapes}  # refused before anything is written
    make_folder(folder / "checkpoints")
    hashes = dict(dataset.hashes)
    kernels = Run(EXPERIMENT, folder, configuration={}, data=hashes, machine=describe_machine(backend.name))
    networks = Run(EXPERIMENT, folder, configuration=vars(settings), data=hashes, machine=machine_name(machine))
    fits = _Fits(dataset, settings, backend, machine, Clock(stop_after))
    seconds: defaultdict[str, float] = defaultdict(float)
    truth = dataset.test.labels[: settings.test]
    rows: list[dict[str, Any]] = []
    hits: list[list[Array]] = []
    for name, recipe in recipes.items():
        try:
            pieces = fits.pieces(name, recipe, kernels, networks)
        except Unfinished as stop:
            say(f"{name}: {stop}")
            return Outcome(rows, unfinished=tuple(shapes)[len(rows) :])
        for piece in pieces:
            seconds[piece.machine] += piece.seconds + piece.value.get("earlier seconds", 0.0)
        kernel, *trials = (piece.value for piece in pieces)
        row = _row(name, kernel, trials, len(truth))
        rows.append(row)
        hits.append([_hits([kernel], len(truth)), _hits(trials, len(truth))])
        say(f"{name}: kernel {percent(row['kernel']['accuracy'])} %, network {percent(row['network']['accuracy'])} %")
    correlation = rank_correlation(*np.stack(hits, axis=1), seed=settings.seed)
    name = f"{EXPERIMENT}-{dataset.name}"
    more = {"dataset": dataset.name, "correlation": correlation, "seconds_by_machine": dict(seconds)}
    record = networks.finish(rows, name=name, **more)
    return Outcome(rows, correlation, [record, *draw(rows, correlation, dataset.name, folder)])


@dataclass(frozen=True)
class _Fits:
    """Both sides of the comparison, on the same images."""

    dataset: Dataset
    settings: Settings
    backend: Backend
    machine: Machine | None
    clock: Clock

    def pieces(self, name: str, recipe: Recipe, kernels: Run, networks: Run) -> list[Piece]:
        """The kernel of an architecture, and its networks."""
        settings = self.settings
        asked = {"architecture": name, "ridge": settings.ridge, "seed": settings.seed, "test": settings.test}
        asked |= {"inputs": settings.inputs, "epsilon": settings.epsilon, "train": settings.train}
        pieces = [kernels.piece({"kernel": asked}, lambda: self.fit_kernel(name))]
        for trial in range(settings.trials):
            of = {"network": recipe.to_json(), "trial": trial, "seed": settings.seed, "test": settings.test}
            of |= asked_precision(self.machine)
            checkpoint = checkpoint_of(networks, EXPERIMENT, of)
            fit = functools.partial(self.fit_network, recipe, trial, checkpoint)
            pieces.append(networks.piece(of, fit))
            checkpoint.unlink(missing_ok=True)  # only now: the piece is what it was for
        return pieces

    @functools.cached_property
    def data(self) -> Prepared:
        """Transformed once, for all of them."""
        settings = self.settings
        transform = make_transform(settings.inputs, self.dataset.train.images, settings.epsilon)
        return prepare(self.dataset, transform, settings.train, settings.test, settings.seed)

    def fit_kernel(self, name: str) -> dict[str, Any]:
        """Ridge regression with the kernel, in JSON values."""
        from ..estimators import KernelRidgeClassifier

        (images, labels), (test_images, truth) = self.data.train, self.data.test
        self.clock.left()
        model = KernelRidgeClassifier(name, ridge=self.settings.ridge, backend=self.backend).fit(images, labels)
        wrong = np.flatnonzero(model.predict(test_images) != truth).tolist()
        return {"wrong": wrong, "ridge": model.ridge_, "leave-one-out accuracy": model.loo_score_, "train": len(labels)}

    def fit_network(self, recipe: Recipe, trial: int, checkpoint: Path) -> dict[str, Any]:
        """The network trained, on the images that the kernel was trained on."""
        data = self.data
        return train_once(
            recipe,
            data,
            seed=self.settings.seed + trial,
            machine=self.machine,
            checkpoint=checkpoint,
            stop_after=self.clock.left(),
            test_every=recipe.epochs,
            label=f"{recipe.architecture}, trial {trial + 1}",
        )


def rank_correlation(kernels: Array, networks: Array, *, seed: int = 0) -> dict[str, Any]:
    """Spearman's, of the mean hits by architecture and test image, (A, T) each; with p-value and 95 % interval.

    >>> hits = np.array([[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]], float)
    >>> round(rank_correlation(hits, hits)["spearman"], 9)
    1.0
    """
    from scipy.stats import permutation_test

    across, up = networks.mean(axis=1), kernels.mean(axis=1)
    found = spearman(across, up)
    if np.isnan(found):
        return {"spearman": None, "p": None, "interval": None, "resampled": 0}
    test = permutation_test(
        (up,),
        lambda y: spearman(across, y),
        permutation_type="pairings",
        n_resamples=np.inf if len(across) <= _EXACT else 9999,
        alternative="greater",
        random_state=np.random.default_rng(seed),
    )
    images = networks.shape[1]
    counts = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=RESAMPLED)
    low, high = np.nanpercentile(spearman(counts @ networks.T, counts @ kernels.T), [2.5, 97.5])
    return {
        "spearman": float(found),
        "p": float(test.pvalue),
        "interval": [float(low), float(high)],
        "resampled": RESAMPLED,
    }


def spearman(left: Array, right: Array) -> Any:
    """The correlation of ranks along the last axis; NaN where all are equal on one side, which have no order.

    >>> round(float(spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]))), 9)
    0.8
    """
    from scipy.stats import rankdata

    a, b = (rankdata(side, axis=-1) for side in (left, right))
    a, b = (side - side.mean(axis=-1, keepdims=True) for side in (a, b))
    scale = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), scale, out=np.full_like(scale, np.nan), where=scale > 0)


def show_rows(rows: Sequence[Mapping[str, Any]], correlation: Mapping[str, Any]) -> None:
    """Print the table and, where all is finished, the correlation."""
    show_table("Kernel and network", COLUMNS, (cells(row) for row in rows))
    if correlation:
        say(describe_correlation(correlation))


def describe_correlation(correlation: Mapping[str, Any]) -> str:
    """The rank correlation in words."""
    if correlation["spearman"] is None:
        return "no rank correlation: one side has the same accuracy for all architectures"
    low, high = correlation["interval"]
    return f"rank correlation {correlation['spearman']:.2f} ({low:.2f} to {high:.2f}), p = {correlation['p']:.2g}"


def draw(rows: Sequence[Mapping[str, Any]], correlation: Mapping[str, Any], dataset: str, folder: Path) -> list[Path]:
    """The figure: network against kernel, numbered in the order of the legend."""
    title = f"{dataset}, {rows[0]['train']:,} training and {rows[0]['rows']:,} test images"
    figure, axes = new_axes(9.6, 5.0, title, "accuracy of the network, %", "accuracy of the kernel, %")
    for number, row in enumerate(rows, start=1):
        colour = COLOURS[(number - 1) % len(COLOURS)]
        marker = _MARKERS[(number - 1) // len(COLOURS) % len(_MARKERS)]
        across, up = (100 * row[side]["accuracy"] for side in ("network", "kernel"))
        errors = [
            [[value - 100 * row[side]["interval"][0]], [100 * row[side]["interval"][1] - value]]
            for side, value in (("network", across), ("kernel", up))
        ]
        axes.errorbar(
            across, up, xerr=errors[0], yerr=errors[1], fmt=marker, color=colour, capsize=2, linewidth=1, markersize=5
        )
        axes.annotate(f"{number}", (across, up), xytext=(5, 5), textcoords="offset points", fontsize=9, color=colour)
        axes.plot([], [], marker, color=colour, markersize=5, label=f"{number}  {row['architecture']}")
    limits = axes.axis()
    axes.axline((0, 0), slope=1, color="#c3ccd4", linewidth=0.8, zorder=0)  # where both are as good
    axes.axis(limits)
    axes.legend(frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axes.text(0.98, 0.03, describe_correlation(correlation), transform=axes.transAxes, ha="right", fontsize=9)
    return save_figure(figure, folder, f"{EXPERIMENT}-{dataset}")


def _hits(trials: Sequence[Mapping[str, Any]], images: int) -> Array:
    """How often each test image was right; a network that diverged has none right."""
    hits = np.ones((len(trials), images))
    for row, trial in zip(hits, trials, strict=True):
        row[slice(None) if trial["wrong"] is None else trial["wrong"]] = 0.0
    mean: Array = hits.mean(axis=0)
    return mean


def _row(name: str, kernel: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], images: int) -> dict[str, Any]:
    by_trial = [float(_hits([trial], images).mean()) for trial in trials]
    score = Score(images - len(kernel["wrong"]), images)
    network = Score(round(float(np.mean(by_trial)) * images), images)
    return {
        "architecture": name,
        "train": kernel["train"],
        "rows": images,
        "kernel": {**score.to_json(), "ridge": kernel["ridge"], "leave-one-out": kernel["leave-one-out accuracy"]},
        "network": {
            "accuracy": float(np.mean(by_trial)),
            "interval": list(network.interval),
            "deviation": float(np.std(by_trial, ddof=1)) if len(by_trial) > 1 else None,
            "trials": by_trial,
            "diverged": sum(trial["wrong"] is None for trial in trials),
        },
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    kernel, network = row["kernel"], row["network"]
    spread = "-" if network["deviation"] is None else f"± {100 * network['deviation']:.2f}"
    intervals = [" to ".join(percent(end) for end in side["interval"]) for side in (kernel, network)]
    shares = [percent(side["accuracy"]) for side in (kernel, network)]
    return row["architecture"], shares[0], intervals[0], shares[1], intervals[1], spread
