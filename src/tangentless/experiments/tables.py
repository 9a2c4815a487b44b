"""Tables of accuracies: every row is a method, trained on the same images by exact ridge regression.

A method is a preprocessing, a kernel (or several, of which leave-one-out on training images picks one) and a ridge.
Four matrices serve all variants of a kernel: among training images and with test images, each with the images as they
are (K) and with one of the two mirrored (M). Training on K + M is training on the images and all their mirror images.
Each matrix is computed once, in memory, or in a store that outlives the process.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..console import percent, span
from ..datasets import Dataset, Split
from ..devices import Device
from ..errors import NotPositiveDefinite, ParameterError
from ..features import PatchFeatures
from ..inputs import to_host
from ..kernel import Crossed, Kernel, kernel
from ..paper import printed
from ..progress import progress_bar
from ..solve import factorise, ridge_path
from ..solve.path import DECADES
from ..solve.scores import accuracy
from ..statistics import Score
from ..timing import describe_machine, symmetric_pairs, timed
from .records import Outcome, Row, Run, View, backend_name, digest

Array = NDArray[np.float64]
Images = NDArray[np.float32]
Tilt = float | str

TILTS: tuple[Tilt, ...] = (0.0, 0.3, "loo")
CHOSEN_ON = 4000  # training images that choose the kernel or ridge, where a method leaves it open
REFINED = (1.0, 0.25, 0.0625, 0.015625)  # shares of that ridge, of which all training images choose one
COLUMNS = ("method", "train", "test set", "images", "tilt", "accuracy", "95 % interval", "leave-one-out", "paper")


@dataclass(frozen=True)
class Preprocessing:
    """What is done to pixels: in words for records, and how to fit it to data, with a folder for files and a backend.

    What is fitted has `transform`, as scikit-learn's transformers do.
    """

    describe: Any
    fit: Callable[[Dataset, Path, str], Any]


@dataclass(frozen=True)
class Candidates:
    """Kernels to choose from: what they are, for records, and how to make them from preprocessed training images."""

    describe: Any
    make: Callable[[Images], Sequence[Kernel]]


def learnt(kind: type[PatchFeatures], variants: Sequence[dict[str, Any]], images_a_filter: int = 0) -> Candidates:
    """Kernels of features that are learnt from the training images, one for each variant of the options.

    With `images_a_filter`, there is a filter for so many training images.
    """

    def make(images: Images) -> Sequence[Kernel]:
        more = {"filters": max(1, len(images) // images_a_filter)} if images_a_filter else {}
        return [kind(**more, **options).fit(images).kernel() for options in variants]

    return Candidates({"features": kind.__name__, "variants": variants, "images a filter": images_a_filter}, make)


@dataclass(frozen=True)
class Method:
    """A row: a kernel by its text, or candidates to choose from; a ridge of None is chosen too."""

    name: str
    preprocessing: str
    kernels: str | Candidates
    ridge: float | None
    flips: bool = False

    def candidates(self, images: Images) -> Sequence[Kernel]:
        """The kernels, of which there may be one."""
        return [kernel(self.kernels)] if isinstance(self.kernels, str) else self.kernels.make(images)

    def choice(self, ridge: float | None) -> dict[str, Any]:
        """What a result depends on where something is left open; empty where nothing is."""
        if isinstance(self.kernels, str) and ridge is not None:
            return {}
        kernels = self.kernels if isinstance(self.kernels, str) else self.kernels.describe
        ridges = {"decades of the mean of the diagonal": DECADES.tolist()} if ridge is None else [ridge]
        choice = {"kernels": kernels, "ridges": ridges, "images": CHOSEN_ON}
        return {"choice": choice | ({"of that, by all images": REFINED} if ridge is None else {})}


@dataclass(frozen=True)
class Table:
    """A table of the paper: its methods and their preprocessings, by name."""

    name: str
    methods: tuple[Method, ...]
    preprocessings: Mapping[str, Preprocessing]
    tilts: tuple[Tilt, ...] = (0.0,)
    also: tuple[str, ...] = ()  # more data sets to test on, where they are found

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
    store: Path | None = None


def reproduce(
    table: Table,
    dataset: Dataset,
    settings: Settings,
    *,
    backend: str = "auto",
    folder: Path,
    others: Sequence[Dataset] = (),
) -> Outcome:
    """Run the methods that are not there yet, and write the record; `others` are tested on besides."""
    backend = backend_name(backend)
    work = _Work(table, dataset, settings, backend, folder / "pieces", others)
    common = {
        "train": len(work.train),
        "seed": settings.seed,
        "tilts": table.tilts,
        "test images": {name: len(split) for name, split in work.tests.items()},
    }
    run = Run(
        table.name,
        folder,
        configuration={**common, "methods": settings.methods, "backend": backend, "ridge": settings.ridge},
        data={one.name: dict(one.hashes) for one in (dataset, *others)},
        machine=functools.partial(describe_machine, backend),
    )
    view = View(f"{table.name}, accuracies in per cent", COLUMNS, cells)
    return run.conduct(work.rows(run, common), view, name=settings.record or f"{table.name}-{len(work.train)}")


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    tilt = f"{row['tilt']:g}" + (" (loo)" if row["tilt asked"] == "loo" else "")
    scores = percent(row["accuracy"]), span(row["interval"]), percent(row["leave-one-out accuracy"])
    return row["method"], f"{row['train']:,}", row["test set"], f"{row['rows']:,}", tilt, *scores, percent(row["paper"])


def choose(count: int, train: int | None, seed: int) -> NDArray[np.intp]:
    """Which training images: the first of a random order, so that smaller sets are parts of larger ones.

    >>> bool(np.all(choose(100, 10, seed=0) == choose(100, None, seed=0)[:10]))
    True
    """
    if train is not None and train > count:
        raise ParameterError(f"there are {count:,} training images, so --train {train:,} is too many")
    return np.random.default_rng(seed).permutation(count)[:train]


@dataclass(eq=False)
class _Work:
    """Computes rows, and keeps in memory what the next row may need: the images and matrices of the last kernel."""

    table: Table
    dataset: Dataset
    settings: Settings
    backend: str
    folder: Path
    others: Sequence[Dataset]
    images: dict[str | None, Images] = field(default_factory=dict)  # by test set; None: training images
    matrices: dict[str, Array] = field(default_factory=dict)
    kept: tuple[str, str] = ("", "")  # the preprocessing of those images, and the kernel of those matrices

    def __post_init__(self) -> None:
        whole, settings = self.dataset.train, self.settings
        self.train = whole.take(choose(len(whole), settings.train, settings.seed))
        self.tests = {one.name: one.test.take(slice(settings.test)) for one in (self.dataset, *self.others)}
        self.targets = np.eye(len(self.dataset.classes))[self.train.labels]

    def rows(self, run: Run, common: Row) -> Iterator[Row]:
        """The rows of every method: one for each tilt and test set."""
        for name in self.settings.methods:
            method = self.table.method(name)
            ridge = method.ridge if self.settings.ridge is None else self.settings.ridge
            of = {
                **common,
                "method": name,
                "preprocessing": self.table.preprocessings[method.preprocessing].describe,
                "ridge": "by leave-one-out" if ridge is None else ridge,
                "backend": self.backend,
                **method.choice(ridge),
            }
            piece = run.piece(of, functools.partial(self.evaluate, method, ridge))
            about = {"table": self.table.name, "method": name, "train": len(self.train)}
            about |= {"preprocessing": of["preprocessing"], "seconds": piece.seconds}
            about |= {"machine": piece.machine, "date": piece.date}
            about |= {key: value for key, value in piece.value.items() if key != "scores"}
            for result in piece.value["scores"]:
                theirs = printed(self.table.name, name, result["test set"])
                yield {**about, **result, "paper": None if theirs is None else theirs / 100}

    def evaluate(self, method: Method, ridge: float | None) -> dict[str, Any]:
        """Train and test a method: its scores for every tilt and test set, and what was chosen and spent."""
        self._preprocess(method.preprocessing)
        given = ridge
        (kernel, ridge, candidates), choosing = timed(lambda: self._choose(method, given))
        matrices, computing = timed(lambda: {name: self._matrix(method, kernel, name) for name in (None, *self.tests)})
        K = matrices.pop(None)
        refined = None
        if given is None and ridge > 0 and len(K) > CHOSEN_ON:
            (ridge, refined), more = timed(functools.partial(self._refine, K, ridge))
            choosing += more
        where = "cuda" if self.backend == "cuda" else "cpu"
        factor, solving = timed(lambda: factorise(K, ridge, backend=where))
        tilting, scores = factor.tilting(self.targets, criterion="accuracy"), []
        for tilt in self.table.tilts:
            solution, taken = timed(functools.partial(tilting.at, tilt))
            solving += taken
            about = {"tilt asked": tilt, "tilt": solution.tilt, "residual": solution.residual}
            about["leave-one-out accuracy"] = accuracy(self.targets, solution.leave_one_out)
            for name, values in matrices.items():
                score = Score.of((values.T @ solution.coefficients).argmax(axis=1), self.tests[name].labels)
                scores.append({"test set": name, **score.to_json(), **about})
        pairs = symmetric_pairs(len(self.train)) + sum(values.size for values in matrices.values())
        return {
            "kernel": repr(kernel),
            "flips": method.flips,
            "ridge": ridge,
            "candidates": candidates,
            "refined": refined,
            "pairs": 2 * pairs if method.flips else pairs,
            "spent": {"choosing": choosing, "kernel": computing, "solving": solving},
            "scores": scores,
        }

    def _preprocess(self, name: str) -> None:
        if self.kept[0] == name:
            return
        fitted = self.table.preprocessings[name].fit(self.dataset, self.folder, self.backend)
        splits: dict[Any, Split] = {None: self.train, **self.tests}
        self.images = {place: fitted.transform(split.images).astype(np.float32) for place, split in splits.items()}
        self.kept, self.matrices = (name, ""), {}

    def _choose(self, method: Method, ridge: float | None) -> tuple[Kernel, float, list[Any]]:
        """The kernel and ridge of the best leave-one-out accuracy on some of the training images."""
        kernels = method.candidates(self.images[None])
        if len(kernels) == 1 and ridge is not None:
            return kernels[0], ridge, []
        some, targets = self.images[None][:CHOSEN_ON], self.targets[:CHOSEN_ON]
        found = []
        for place, candidate in enumerate(kernels):
            K = candidate.on_device(Device(self.backend), some)  # and what a GPU computes it also scores
            path = ridge_path(K, targets, None if ridge is None else [ridge])
            at = int(np.flatnonzero(path.ridges == path.best("accuracy"))[0])
            share = 0.0 if path.accuracies is None else float(path.accuracies[at])
            found.append((-share, float(path.squared_errors[at]), place, float(path.ridges[at])))
        _, _, place, best = min(found)  # equal accuracies are told apart by the squared error
        report = [
            {"kernel": repr(kernels[at]), "ridge": own, "leave-one-out accuracy": -share} for share, _, at, own in found
        ]
        return kernels[place], best, report

    def _refine(self, K: Array, ridge: float) -> tuple[float, list[Any]]:
        """The share of a ridge, chosen on some images, that has the best leave-one-out accuracy on all of them."""
        on, found = Device(self.backend).algebra, []
        there = on.upload(K)
        for share in REFINED:
            try:
                left_out = to_host(factorise(there, share * ridge).leave_one_out(self.targets))
            except NotPositiveDefinite:  # and so are all smaller ones
                break
            found.append({"ridge": share * ridge, "leave-one-out accuracy": accuracy(self.targets, left_out)})
        best = max(found, key=lambda one: one["leave-one-out accuracy"], default={"ridge": ridge})
        return best["ridge"], found

    def _matrix(self, method: Method, kernel: Kernel, tested: str | None) -> Array:
        """K among the training images, or with a test set; K + M with flips."""
        if self.kept[1] != repr(kernel):
            self.kept, self.matrices = (self.kept[0], repr(kernel)), {}
        halves = []
        for half in (kernel, Crossed(kernel)) if method.flips else (kernel,):
            label = f"{half!r} {'among training images' if tested is None else f'with {tested}'}"
            if label not in self.matrices:
                self.matrices[label] = self._compute(method, half, tested, label)
            halves.append(self.matrices[label])
        return halves[0] + halves[1] if method.flips else halves[0]

    def _compute(self, method: Method, kernel: Kernel, tested: str | None, label: str) -> Array:
        images, others = self.images[None], None if tested is None else self.images[tested]
        if self.settings.store is None:
            with progress_bar(label) as progress:
                matrix: Array = kernel(images, others, backend=self.backend, progress=progress)
            return matrix
        from ..gram import gram

        about = json.dumps(self.table.preprocessings[method.preprocessing].describe, sort_keys=True)
        # More training images extend their own matrix; the matrix with test images starts anew.
        sizes = [] if others is None else [len(images), len(others)]
        key = digest([label, about, self.settings.seed, self.backend, sizes])[:12]
        place = self.settings.store / f"{self.table.name}-{method.name.partition('+')[0]}-{key}.zarr"
        options: dict[str, Any] = {"preprocessing": about, "extend": tested is None, "backend": self.backend}
        return np.asarray(gram(kernel, images, others, store=place, **options))
