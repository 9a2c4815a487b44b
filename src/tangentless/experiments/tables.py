"""Tables of accuracies: every row a method, trained on the same images by exact ridge regression, without a network.

A method is a preprocessing, a kernel, or several of which leave-one-out on training images picks one, and a ridge.
Four blocks of kernel values serve all variants of a kernel: among training images and with test images, each with
images as they are (K) and with one of the two mirrored (M). Training on K + M is training on the images and all their
mirror images. Each block is computed once, in memory, or in a store that outlives the process.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends import Backend
from ..datasets import Dataset, Split
from ..errors import ParameterError
from ..kernel import Crossed, Kernel, kernel
from ..progress import progress_bar
from ..solve import ridge_path, solve_ridge
from ..solve.path import DECADES
from ..solve.scores import accuracy
from ..timing import symmetric_pairs, timed
from .console import percent, show_table
from .paper import TABLES
from .records import Run, Score, describe_machine

Array = NDArray[np.float64]
Images = NDArray[np.float32]
Transform = Callable[[NDArray[np.uint8]], Images]
Say = Callable[[str], None]
Tilt = float | str

TILTS: tuple[Tilt, ...] = (0.0, 0.3, "loo")
CHOSEN_ON = 4000  # training images that kernels and ridges are chosen on where a method leaves them open


@dataclass(frozen=True)
class Preprocessing:
    """What is done to pixels, for records, and how to do it: from data, a folder for caches, and a backend's name."""

    describe: Any
    make: Callable[[Dataset, Path, str], Transform]


@dataclass(frozen=True)
class Candidates:
    """Kernels to choose from: what they are, for records, and how to make them from preprocessed training images."""

    describe: Any
    make: Callable[[Images], Sequence[Kernel]]


@dataclass(frozen=True)
class Method:
    """A row: a kernel by its text, or candidates to choose from; a ridge of None is chosen too."""

    name: str
    preprocessing: str
    kernels: str | Candidates
    ridge: float | None
    flips: bool = False
    on_backend: bool = True  # whether a backend computes the kernel, or always the CPU in float64

    def candidates(self, images: Images) -> Sequence[Kernel]:
        """The kernels, of which there may be one."""
        return [kernel(self.kernels)] if isinstance(self.kernels, str) else self.kernels.make(images)

    def choice(self, ridge: float | None) -> dict[str, Any]:
        """What a result depends on where something is left open; empty where nothing is."""
        if isinstance(self.kernels, str) and ridge is not None:
            return {}
        kernels = self.kernels if isinstance(self.kernels, str) else self.kernels.describe
        ridges = {"decades of the mean of the diagonal": DECADES.tolist()} if ridge is None else [ridge]
        return {"choice": {"kernels": kernels, "ridges": ridges, "images": CHOSEN_ON}}


@dataclass(frozen=True)
class Table:
    """A table of the paper: its methods and their preprocessings, by name."""

    name: str
    methods: tuple[Method, ...]
    preprocessings: Mapping[str, Preprocessing]
    tilts: tuple[Tilt, ...] = (0.0,)

    def method(self, name: str) -> Method:
        """The method of a name."""
        return next(method for method in self.methods if method.name == name)

    def names(self) -> tuple[str, ...]:
        """The names of all methods."""
        return tuple(method.name for method in self.methods)


@dataclass(frozen=True)
class Settings:
    """What to run of a table."""

    methods: tuple[str, ...]
    train: int | None = None
    test: int | None = None
    seed: int = 0
    ridge: float | None = None  # instead of the paper's
    record: str | None = None


@dataclass(frozen=True)
class Outcome:
    """Rows of results, and the files written."""

    rows: list[dict[str, Any]]
    files: list[Path] = field(default_factory=list)


def reproduce(
    table: Table,
    dataset: Dataset,
    settings: Settings,
    *,
    backend: Backend,
    folder: Path,
    others: Sequence[Dataset] = (),
    store: Path | None = None,
    say: Say = print,
) -> Outcome:
    """Run the methods that are not there yet, and write the record; `others` are tested on besides."""
    chosen = choose(len(dataset.train), settings.train, settings.seed)
    train = dataset.train.take(chosen)
    tests = {one.name: one.test.take(slice(settings.test)) for one in (dataset, *others)}
    common = {
        "train": len(train),
        "seed": settings.seed,
        "tilts": table.tilts,
        "test images": {name: len(split) for name, split in tests.items()},
    }
    run = Run(
        table.name,
        folder,
        configuration={**common, "methods": settings.methods, "backend": backend.name, "ridge": settings.ridge},
        data={one.name: dict(one.hashes) for one in (dataset, *others)},
        machine=functools.partial(describe_machine, backend.name),
    )
    worker = _Worker(table, dataset, train, tests, backend, folder, store, settings.seed)
    rows: list[dict[str, Any]] = []
    for name in settings.methods:
        method = table.method(name)
        ridge = method.ridge if settings.ridge is None else settings.ridge
        of = {
            **common,
            "method": name,
            "preprocessing": table.preprocessings[method.preprocessing].describe,
            "ridge": "by leave-one-out" if ridge is None else ridge,
            "backend": backend.name if method.on_backend else "cpu",
            **method.choice(ridge),
        }
        piece = run.piece(of, functools.partial(worker.evaluate, method, ridge))
        for result in piece.value["scores"]:
            paper = _paper(table.name, name, result["test set"])
            shared = {key: value for key, value in piece.value.items() if key != "scores"}
            rows.append(
                {
                    "table": table.name,
                    "method": name,
                    "train": len(train),
                    **result,
                    **shared,
                    "preprocessing": of["preprocessing"],
                    "paper": paper,
                    "seconds": piece.seconds,
                    "machine": piece.machine,
                    "date": piece.date,
                }
            )
            if result["tilt asked"] == 0.0:
                say(f"{name}: {100 * result['accuracy']:.2f} % of {result['rows']:,} images of {result['test set']}")
    return Outcome(rows, [run.finish(rows, name=settings.record or f"{table.name}-{len(train)}")])


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the results beside the paper's."""
    columns = ("method", "train", "test set", "images", "tilt", "accuracy", "95 % interval", "leave-one-out", "paper")
    lines = []
    for row in rows:
        tilt = f"{row['tilt']:g}" + (" (loo)" if row["tilt asked"] == "loo" else "")
        interval = " to ".join(percent(end) for end in row["interval"])
        scores = percent(row["accuracy"]), interval, percent(row["leave-one-out accuracy"]), percent(row["paper"])
        lines.append((row["method"], f"{row['train']:,}", row["test set"], f"{row['rows']:,}", tilt, *scores))
    show_table(f"{rows[0]['table']}, accuracies in per cent", columns, lines)


def choose(count: int, train: int | None, seed: int) -> NDArray[np.intp]:
    """Which training images: the first of a random order, so that smaller sets are parts of larger ones.

    >>> bool(np.all(choose(100, 10, seed=0) == choose(100, None, seed=0)[:10]))
    True
    """
    if train is not None and train > count:
        raise ParameterError(f"there are {count:,} training images, so --train {train:,} is too many")
    return np.random.default_rng(seed).permutation(count)[:train]


class _Worker:
    """Computes rows, and keeps in memory the blocks that the next row may need: those of the last kernel."""

    def __init__(
        self,
        table: Table,
        dataset: Dataset,
        train: Split,
        tests: Mapping[str, Split],
        backend: Backend,
        folder: Path,
        store: Path | None,
        seed: int,
    ) -> None:
        self.seed = seed
        self.table, self.dataset, self.train, self.tests = table, dataset, train, tests
        self.backend, self.folder, self.store = backend, folder, store
        self.targets = np.eye(len(dataset.classes))[train.labels]
        self._images: tuple[str, Images, dict[str, Images]] | None = None
        self._blocks: dict[str, Array] = {}
        self._kept_for = ""

    def evaluate(self, method: Method, ridge: float | None) -> dict[str, Any]:
        """Train and test a method: its scores for every tilt and test set, and what was chosen and spent."""
        images, tests = self._preprocess(method.preprocessing)
        (kernel, ridge, candidates), choosing = timed(lambda: self._choose(method, ridge, images))
        K, computing = timed(lambda: self._block(method, kernel, images))
        beside = {}
        for name, tested in tests.items():
            beside[name], taken = timed(functools.partial(self._block, method, kernel, images, (name, tested)))
            computing += taken
        solver = "cuda" if self.backend.name == "cuda" else "cpu"
        scores, solving = [], 0.0
        for tilt in self.table.tilts:
            solve = functools.partial(
                solve_ridge, K, self.targets, ridge, tilt=tilt, criterion="accuracy", backend=solver
            )
            solution, taken = timed(solve)
            solving += taken
            for name, values in beside.items():
                predicted = (values.T @ solution.coefficients).argmax(axis=1)
                scores.append(
                    {
                        "test set": name,
                        "tilt asked": tilt,
                        "tilt": solution.tilt,
                        **Score.of(predicted, self.tests[name].labels).to_json(),
                        "leave-one-out accuracy": accuracy(self.targets, solution.leave_one_out),
                        "residual": solution.residual,
                    }
                )
        sides = 2 if method.flips else 1
        pairs = sides * (symmetric_pairs(len(images)) + sum(values.size for values in beside.values()))
        spent = {"choosing": choosing, "kernel": computing, "solving": solving}
        return {
            "kernel": repr(kernel),
            "flips": method.flips,
            "ridge": ridge,
            "candidates": candidates,
            "pairs": pairs,
            "spent": spent,
            "scores": scores,
        }

    def _preprocess(self, name: str) -> tuple[Images, dict[str, Images]]:
        """Training and test images, those of the last preprocessing kept."""
        if self._images is None or self._images[0] != name:
            transform = self.table.preprocessings[name].make(self.dataset, self.folder / "pieces", self.backend.name)
            tests = {place: transform(split.images) for place, split in self.tests.items()}
            self._images = (name, transform(self.train.images), tests)
        return self._images[1], self._images[2]

    def _choose(self, method: Method, ridge: float | None, images: Images) -> tuple[Kernel, float, list[Any]]:
        """The kernel and ridge of the best leave-one-out accuracy on some of the training images."""
        kernels = method.candidates(images)
        if len(kernels) == 1 and ridge is not None:
            return kernels[0], ridge, []
        some, targets = images[:CHOSEN_ON], self.targets[:CHOSEN_ON]
        found = []
        for place, candidate in enumerate(kernels):
            path = ridge_path(candidate(some, backend=self.backend), targets, None if ridge is None else [ridge])
            best = path.best("accuracy")
            at = int(np.flatnonzero(path.ridges == best)[0])
            share = 0.0 if path.accuracies is None else float(path.accuracies[at])
            found.append((-share, float(path.squared_errors[at]), place, best))
        _, _, place, best = min(found)
        report = [
            {"kernel": repr(kernels[at]), "ridge": its_best, "leave-one-out accuracy": -share}
            for share, _, at, its_best in found
        ]
        return kernels[place], best, report

    def _block(self, method: Method, kernel: Kernel, images: Images, tested: tuple[str, Images] | None = None) -> Array:
        """A matrix that a method works on: K, or K + M with flips."""
        straight = self._compute(method, kernel, images, tested)
        return straight + self._compute(method, Crossed(kernel), images, tested) if method.flips else straight

    def _compute(self, method: Method, kernel: Kernel, images: Images, tested: tuple[str, Images] | None) -> Array:
        base = kernel.base if isinstance(kernel, Crossed) else kernel
        if self._kept_for != f"{method.preprocessing} {base!r}":
            self._kept_for, self._blocks = f"{method.preprocessing} {base!r}", {}
        label = f"{kernel!r} {'among training images' if tested is None else f'with {tested[0]}'}"
        if label not in self._blocks:
            self._blocks[label] = self._fill(method, kernel, images, tested, label)
        return self._blocks[label]

    def _fill(
        self, method: Method, kernel: Kernel, images: Images, tested: tuple[str, Images] | None, label: str
    ) -> Array:
        others = None if tested is None else tested[1]
        if self.store is None:
            with progress_bar(label) as progress:
                matrix: Array = kernel(images, others, backend=self.backend, progress=progress)
            return matrix
        from ..gram import gram

        about = json.dumps(self.table.preprocessings[method.preprocessing].describe, sort_keys=True)
        # More training images extend the matrix among themselves; with test images, they start another.
        sizes = [] if others is None else [len(images), len(others)]
        key = json.dumps([label, about, self.seed, self.backend.name, sizes])
        digest = hashlib.sha256(key.encode()).hexdigest()[:12]
        place = self.store / f"{self.table.name}-{method.name.partition('+')[0]}-{digest}.zarr"
        found = gram(
            kernel, images, others, store=place, preprocessing=about, extend=tested is None, backend=self.backend
        )
        return np.asarray(found)


def _paper(table: str, method: str, test_set: str) -> float | None:
    row = next((row for row in TABLES[table] if row.method == method), None)
    percent = None if row is None else row.accuracies.get(test_set)
    return None if percent is None else percent / 100
