"""Claim: networks of the kernels' shapes, trained by the paper's recipes, reach the accuracies of its tables.

A row is a recipe, trained in one or more trials with consecutive seeds. Each trial is a piece, so that a stopped run
resumes with the next trial; within a trial it resumes from a checkpoint. Recipes with changed settings, such as fewer
filters or epochs, are labelled so in the record and do not count as rows of the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..console import percent, say, span
from ..datasets import Dataset
from ..files import make_folder
from ..networks.inputs import Images, Transform, balanced, make_transform
from ..networks.recipes import RECIPES, Recipe, recipe_of
from ..paper import printed
from ..statistics import Score, deviation
from .records import Clock, Outcome, Piece, Row, Run, Unfinished, View, digest
from .splits import check_test

if TYPE_CHECKING:
    from ..networks.training import Machine

COLUMNS = ("recipe", "trained on", "trials", "accuracy, %", "95 % interval", "best epoch", "paper")
EXPERIMENT = "networks"
Load = Callable[[str], Dataset]


@dataclass(frozen=True)
class Settings:
    """Recipes by name, fields to change in them, and trials: networks per recipe, from seeds `seed`, `seed` + 1, ..."""

    recipes: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 1
    test: int | None = None
    test_every: int = 1
    seed: int = 0
    stop_after: float | None = None  # seconds of the whole call; the same call then resumes


def reproduce(load: Load, settings: Settings, *, machine: Machine, folder: Path) -> Outcome:
    """Train every recipe, resuming where an earlier call stopped; when all are finished, write the record."""
    recipes = {name: recipe_of(name) for name in settings.recipes}
    if settings.changes:
        recipes = {name: recipe.change(**settings.changes) for name, recipe in recipes.items()}
    changes = {name: recipe.to_json()[name] for recipe in recipes.values() for name in settings.changes}  # as JSON
    configuration = {"trials": settings.trials, "test": settings.test, "changes": changes}
    run = Run(EXPERIMENT, folder, configuration=configuration, data={}, machine=machine.describe)
    load, clock = functools.cache(load), Clock(settings.stop_after)

    tested = {"test": settings.test, "test_every": settings.test_every}

    def rows() -> Iterator[Row]:
        for name, recipe in recipes.items():
            dataset = load(recipe.data)
            run.data = {**run.data, recipe.data: dict(dataset.hashes)}
            fit = functools.partial(make_transform, recipe.inputs, dataset.train.images, recipe.epsilon)
            fitted, pieces = functools.cache(fit), []
            for seed in range(settings.seed, settings.seed + settings.trials):
                of = {"recipe": recipe.to_json(), "seed": seed, **tested}
                task = Task(run, name, of, recipe, seed, machine, clock, settings.test_every, f"{name}, seed {seed}")
                fetch = functools.partial(prepare, dataset, fitted, recipe.images, settings.test, seed)
                pieces.append(task.piece(fetch, data=run.data[recipe.data]))
            yield _row(name, recipe, pieces)

    return run.conduct(rows(), VIEW, name=record_name(settings.recipes, changes))


def record_name(recipes: Sequence[str], changes: Mapping[str, Any]) -> str:
    """The name of a record: with the recipe, if there is only one, and its changes.

    >>> record_name(["mnist-myrtle5"], {"width": 64, "epochs": 2})
    'networks-mnist-myrtle5-width-64-epochs-2'
    """
    of = [*recipes] if len(recipes) == 1 else []
    plain = [f"{name}-{value}" for name, value in changes.items() if isinstance(value, int | float | str)]
    return "-".join([EXPERIMENT, *of, *plain])


@dataclass(frozen=True, eq=False)
class Prepared:
    """Preprocessed images and labels of the training and test sets, and the number of classes."""

    train: tuple[Images, NDArray[np.int64]]
    test: tuple[Images, NDArray[np.int64]]
    classes: int


def prepare(
    dataset: Dataset, fitted: Callable[[], Transform], train: int | None, test: int | None, seed: int
) -> Prepared:
    """A random, balanced subset of `train` training images and the first `test` test images, preprocessed.

    `fitted` returns the preprocessing, fitted to all training images.
    """
    check_test(dataset, test)
    transform = fitted()
    split, held_out = dataset.train.take(balanced(dataset.train.labels, train, seed)), dataset.test.take(slice(test))
    return Prepared(
        (transform(split.images), split.labels), (transform(held_out.images), held_out.labels), len(dataset.classes)
    )


@dataclass(frozen=True)
class Task:
    """One network to train and test: a piece of a run, with a checkpoint while it is trained."""

    run: Run
    name: str
    of: Row
    recipe: Recipe
    seed: int
    machine: Machine
    clock: Clock
    test_every: int
    label: str

    def piece(self, fetch: Callable[[], Prepared], **options: Any) -> Piece:
        """The result: read from its file, or trained on the data that `fetch` returns.

        `options` are passed to `Run.piece`.
        """
        of = {**self.of, **({} if self.machine.precision == "auto" else {"precision": self.machine.precision})}
        hashes = options.get("data", self.run.data)
        checkpoint = self.run.folder / "checkpoints" / f"{self.name}-{digest([of, hashes])}.npz"
        piece = self.run.piece(of, lambda: self._train(fetch(), checkpoint), **options)
        checkpoint.unlink(missing_ok=True)  # the piece is kept now, and the checkpoint no longer needed
        say(f"{self.label}: {percent(piece.value['accuracy'])} %")
        return piece

    def _train(self, data: Prepared, checkpoint: Path) -> dict[str, Any]:
        """Train and test the network; returns JSON values."""
        from ..networks.training import DivergedError, network_of, predict, train

        make_folder(checkpoint.parent)
        images, labels = data.train
        test_images, truth = data.test
        about = {"train": len(labels), "rows": len(truth)}
        network = network_of(self.recipe, images.shape[1:], data.classes, self.seed)
        try:
            training = train(
                network,
                images,
                labels,
                self.recipe,
                test=data.test,
                test_every=self.test_every,
                seed=self.seed,
                machine=self.machine,
                checkpoint=checkpoint,
                stop_after=self.clock.left(),
                label=self.label,
            )
        except DivergedError as error:
            return {"diverged": str(error), "accuracy": None, "wrong": None, **about}
        if not training.complete:
            done = f"{len(training.history)} of {self.recipe.epochs} epochs are done"
            raise Unfinished(f"{self.label}: {done}; run the same command again to resume")
        predicted = predict(network, test_images, precision=training.precision)
        return {
            "accuracy": Score.of(predicted, truth).accuracy,
            "best accuracy": training.best_test_accuracy,
            "wrong": np.flatnonzero(predicted != truth).tolist(),
            **about,
            "seconds": training.seconds,
            "earlier seconds": training.earlier_seconds,
            "history": [[e.loss, e.accuracy, e.test_accuracy, e.seconds] for e in training.history],
            "precision": training.precision,
            "compiled": training.compiled,
        }


def mean_score(accuracies: Sequence[float], rows: int) -> dict[str, Any]:
    """The mean accuracy over trials, its 95 % interval for `rows` test images, and the deviation over trials."""
    mean = float(np.mean(accuracies)) if accuracies else None
    interval = None if mean is None else list(Score(round(mean * rows), rows).interval)
    return {"accuracy": mean, "interval": interval, "deviation": deviation(accuracies)}


def _row(name: str, recipe: Recipe, pieces: Sequence[Piece]) -> dict[str, Any]:
    """A row of the record: the trials of a recipe, summarised."""
    trials = [piece.value for piece in pieces]
    finished = [trial for trial in trials if trial["accuracy"] is not None]
    accuracies = [trial["accuracy"] for trial in finished]
    best = [trial["best accuracy"] for trial in finished]
    rows = trials[0]["rows"]
    row = {
        "recipe": name,
        "describe": recipe.describe(),
        "settings": recipe.to_json(),
        "train": trials[0]["train"],
        "rows": rows,
        **mean_score(accuracies, rows),
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
    in_table = printed(recipe.data, name, recipe.data) is not None and recipe == RECIPES[name] and bool(accuracies)
    return row | ({"table": recipe.data, "method": name, "test set": recipe.data} if in_table else {})


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    spread = "" if row["deviation"] is None else f" ± {percent(row['deviation'], 2)}"
    theirs = "-" if row["paper"] is None else f"{row['paper']:.1f}"
    if row["paper deviation"] is not None:
        theirs = f"{row['paper']:.2f} ± {row['paper deviation']:.2f}"
    trials = f"{row['trials']}" + (f", {row['diverged']} diverged" if row["diverged"] else "")
    scores = percent(row["accuracy"]) + spread, span(row["interval"]), percent(row["best epoch on test"])
    return row["recipe"], f"{row['train']:,}", trials, *scores, theirs


VIEW = View("Networks", COLUMNS, cells)
