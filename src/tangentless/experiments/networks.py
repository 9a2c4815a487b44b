"""Claim: networks of the kernels' shapes, trained by the paper's recipes, reach the accuracies of its tables.

A row is a recipe, and each of its trials a piece, so that a stopped run goes on with the next trial; within a trial it
goes on from a checkpoint. Recipes that were changed, to be narrower or shorter, are labelled so in the record, and do
not count as rows of the paper.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import Dataset
from ..errors import ParameterError
from ..networks.inputs import Images, Transform, balanced, make_transform
from ..networks.recipes import RECIPES, Recipe, recipe_of
from .console import percent, say, show_table
from .records import Piece, Run, Score, make_folder

if TYPE_CHECKING:
    from ..networks.training import Machine

METHODS = {  # rows of the paper's tables, by recipe
    "mnist-myrtle5": "myrtle5-cnn",
    "cifar10-myrtle5": "myrtle5-cnn",
    "cifar10-myrtle5-no-zca": "myrtle5-cnn-no-zca",
    "cifar10-myrtle7": "myrtle7-cnn",
    "cifar10-myrtle10": "myrtle10-cnn",
    "cifar10-myrtle10-flips": "myrtle10-cnn+flips",
    "cifar10-myrtle10-augmented": "myrtle10-cnn+flips+cutout+crops",
    "cifar100-myrtle10": "myrtle10-cnn",
    "cifar100-myrtle10-flips": "myrtle10-cnn+flips",
    "cifar100-myrtle10-bn": "myrtle10-cnn+batchnorm",
    "cifar100-myrtle10-bn-flips": "myrtle10-cnn+flips+batchnorm",
}
COLUMNS = ("recipe", "trained on", "trials", "accuracy, %", "95 % interval", "best epoch", "paper")
EXPERIMENT = "networks"
Load = Callable[[str], Dataset]


@dataclass(frozen=True)
class Settings:
    """Recipes by name, what is changed in them, and how often each is trained, from which seed on."""

    recipes: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 1
    test: int | None = None
    test_every: int = 1
    seed: int = 0
    stop_after: float | None = None  # seconds for all of it; what was stopped goes on next time


@dataclass(frozen=True)
class Outcome:
    """Rows of results; recipes that ran out of time, or else the record."""

    rows: list[dict[str, Any]]
    record: Path | None
    unfinished: tuple[str, ...]


class Clock:
    """How long may still be trained; the first to ask is always allowed an epoch, so that every call gets on."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.perf_counter() + seconds
        self._asked = False

    def left(self) -> float | None:
        """Seconds, or None for as many as it takes."""
        if self._ends is None:
            return None
        seconds = max(self._ends - time.perf_counter(), 0.0)
        if self._asked and seconds == 0.0:
            raise Unfinished("there was no time to start it; run it again to go on")
        self._asked = True
        return seconds


class Unfinished(Exception):  # noqa: N818 (no error: there is a checkpoint to go on from)
    """A trial that was stopped by the clock."""


def reproduce(load: Load, settings: Settings, *, machine: Machine | None, folder: Path) -> Outcome:
    """Train every recipe, or go on with it; when all are finished, write the record."""
    make_folder(folder / "checkpoints")
    load = functools.cache(load)
    recipes = {name: recipe_of(name) for name in settings.recipes}
    if settings.changes:
        recipes = {name: recipe.change(**settings.changes) for name, recipe in recipes.items()}
    rows, unfinished, hashes = [], [], {}
    seconds: defaultdict[str, float] = defaultdict(float)
    environments: dict[str, dict[str, str]] = {}
    clock = Clock(settings.stop_after)
    for name, recipe in recipes.items():
        dataset = load(recipe.data)
        hashes[recipe.data] = dict(dataset.hashes)
        run = Run(EXPERIMENT, folder, configuration={}, data=hashes[recipe.data], machine=machine_name(machine))
        fitted = functools.cache(lambda r=recipe, d=dataset: make_transform(r.inputs, d.train.images, r.epsilon))
        pieces = []
        try:
            for trial in range(settings.trials):
                seed = settings.seed + trial
                pieces.append(_trial(run, name, recipe, dataset, settings, seed, machine, fitted, clock))
        except Unfinished as stop:
            say(f"{name}: {stop}")
            unfinished.append(name)
        if pieces:
            rows.append(_row(name, recipe, pieces))
        for piece in pieces:
            seconds[piece.machine] += piece.seconds + piece.value.get("earlier seconds", 0.0)
            environments[piece.machine] = dict(piece.environment)
    if unfinished:
        return Outcome(rows, None, tuple(unfinished))
    changes = {name: recipe.to_json()[name] for recipe in recipes.values() for name in settings.changes}  # as JSON
    configuration = {"trials": settings.trials, "test": settings.test, "changes": changes}
    whole = Run(EXPERIMENT, folder, configuration=configuration, data=hashes)
    name = record_name(settings.recipes, changes)
    record = whole.finish(rows, name=name, seconds_by_machine=dict(seconds), environments=environments)
    return Outcome(rows, record, ())


def record_name(recipes: Sequence[str], changes: Mapping[str, Any]) -> str:
    """Of its own for a recipe, and for what is changed in it.

    >>> record_name(["mnist-myrtle5"], {"width": 64, "epochs": 2})
    'networks-mnist-myrtle5-width-64-epochs-2'
    """
    of = [*recipes] if len(recipes) == 1 else []
    plain = [f"{name}-{value}" for name, value in changes.items() if isinstance(value, int | float | str)]
    return "-".join([EXPERIMENT, *of, *plain])


def machine_name(machine: Machine | None) -> str | None:
    """The GPU that trains, in words; None for the processor, which records name themselves."""
    from ..networks.pytorch import torch
    from ..networks.training import Machine as Choice

    device = (machine or Choice()).resolve().device
    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else None


def asked_precision(machine: Machine | None) -> dict[str, str]:
    """What a piece depends on besides its recipe; "auto" leaves it to the machine, which is in the piece.

    >>> asked_precision(None)
    {}
    """
    return {} if machine is None or machine.precision == "auto" else {"precision": machine.precision}


def _trial(
    run: Run,
    name: str,
    recipe: Recipe,
    dataset: Dataset,
    settings: Settings,
    seed: int,
    machine: Machine | None,
    fitted: Callable[[], Transform],
    clock: Clock,
) -> Piece:
    """One piece: a network trained and tested."""
    of = {"recipe": recipe.to_json(), "seed": seed, "test": settings.test, "test_every": settings.test_every}
    of |= asked_precision(machine)
    checkpoint = checkpoint_of(run, name, of)

    def compute() -> dict[str, Any]:
        prepared = prepare(dataset, fitted(), recipe.images, settings.test, seed)  # before the clock is asked
        return train_once(
            recipe,
            prepared,
            seed=seed,
            machine=machine,
            checkpoint=checkpoint,
            stop_after=clock.left(),
            test_every=settings.test_every,
            label=f"{name}, seed {seed}",
        )

    piece = run.piece(of, compute)
    checkpoint.unlink(missing_ok=True)  # only now: the piece is what it was for
    say(f"{name}, seed {seed}: {percent(piece.value['accuracy'])} %")
    return piece


def checkpoint_of(run: Run, name: str, of: Mapping[str, Any]) -> Path:
    """Where the training of a piece goes on from."""
    digest = hashlib.sha256(json.dumps([of, run.data], sort_keys=True).encode()).hexdigest()[:20]
    return run.folder / "checkpoints" / f"{name}-{digest}.npz"


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs and labels to train on and to test with, and the number of classes."""

    train: tuple[Images, NDArray[np.int64]]
    test: tuple[Images, NDArray[np.int64]]
    classes: int


def prepare(dataset: Dataset, transform: Transform, train: int | None, test: int | None, seed: int) -> Prepared:
    """A balanced subset of the training images, drawn by the seed, and the first test images, as inputs."""
    split, held_out = dataset.train.take(balanced(dataset.train.labels, train, seed)), dataset.test.take(slice(test))
    return Prepared(
        (transform(split.images), split.labels), (transform(held_out.images), held_out.labels), len(dataset.classes)
    )


def train_once(
    recipe: Recipe,
    data: Prepared,
    *,
    seed: int,
    machine: Machine | None,
    checkpoint: Path | None = None,
    stop_after: float | None = None,
    test_every: int = 1,
    label: str = "training",
) -> dict[str, Any]:
    """A network trained and tested, in JSON values."""
    from ..networks.training import DivergedError, network_of, predict, train

    images, labels = data.train
    test_images, truth = data.test
    network = network_of(recipe, images.shape[1:], data.classes, seed)
    try:
        training = train(
            network,
            images,
            labels,
            recipe,
            test=data.test,
            test_every=test_every,
            seed=seed,
            machine=machine,
            checkpoint=checkpoint,
            stop_after=stop_after,
            label=label,
        )
    except DivergedError as error:
        return {"diverged": str(error), "accuracy": None, "wrong": None, "train": len(labels), "rows": len(truth)}
    if not training.complete:
        raise Unfinished(f"{len(training.history)} of {recipe.epochs} epochs are done; run it again to go on")
    predicted = predict(network, test_images, precision=training.precision)
    return {
        "accuracy": Score.of(predicted, truth).accuracy,
        "best accuracy": training.best_test_accuracy,
        "wrong": np.flatnonzero(predicted != truth).tolist(),
        "train": len(labels),
        "rows": len(truth),
        "seconds": training.seconds,
        "earlier seconds": training.earlier_seconds,
        "history": [[e.loss, e.accuracy, e.test_accuracy, e.seconds] for e in training.history],
        "precision": training.precision,
        "compiled": training.compiled,
    }


def _row(name: str, recipe: Recipe, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Trials, summed up; the interval is that of the mean accuracy on so many test images."""
    trials = [piece.value for piece in pieces]
    finished = [trial for trial in trials if trial["accuracy"] is not None]
    accuracies = [trial["accuracy"] for trial in finished]
    best = [trial["best accuracy"] for trial in finished]
    rows = trials[0]["rows"]
    mean = float(np.mean(accuracies)) if accuracies else None
    row: dict[str, Any] = {
        "recipe": name,
        "describe": recipe.describe(),
        "settings": recipe.to_json(),
        "train": trials[0]["train"],
        "rows": rows,
        "accuracy": mean,
        "interval": None if mean is None else list(Score(round(mean * rows), rows).interval),
        "deviation": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "best epoch on test": float(np.mean(best)) if best else None,
        "trials": len(trials),
        "diverged": len(trials) - len(finished),
        "paper": recipe.paper,
        "paper deviation": recipe.paper_deviation,
        "seconds": sum(trial["seconds"] for trial in finished),
        "machine": pieces[-1].machine,
        "date": pieces[-1].date,
        "accuracies": accuracies,
        "precision": finished[0].get("precision") if finished else None,
        "training accuracies": [trial["history"][-1][1] for trial in finished if "history" in trial],
    }
    of_the_paper = recipe == RECIPES.get(name) and name in METHODS and mean is not None
    return row | ({"table": recipe.data, "method": METHODS[name], "test set": recipe.data} if of_the_paper else {})


def show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the results beside the paper's."""
    show_table("Networks", COLUMNS, (cells(row) for row in rows))


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    deviation = "" if row["deviation"] is None else f" ± {100 * row['deviation']:.2f}"
    theirs = "-" if row["paper"] is None else f"{row['paper']:.1f}"
    if row["paper deviation"] is not None:
        theirs = f"{row['paper']:.2f} ± {row['paper deviation']:.2f}"
    interval = "-" if row["interval"] is None else " to ".join(percent(end) for end in row["interval"])
    trials = f"{row['trials']}" + (f", {row['diverged']} diverged" if row["diverged"] else "")
    best = percent(row["best epoch on test"])
    return row["recipe"], f"{row['train']:,}", trials, percent(row["accuracy"]) + deviation, interval, best, theirs


def check_changes(**changes: Any) -> dict[str, Any]:
    """What a user changes in recipes, without what was left alone.

    >>> check_changes(width=64, epochs=None)
    {'width': 64}
    """
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, str) and value <= 0:
            raise ParameterError(f"{name} must be above 0, not {value!r}")
    return given
