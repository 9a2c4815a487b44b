"""Tables of accuracies: every row is a method, trained on the same images by exact ridge regression.

A method is a preprocessing, a kernel (or several, of which leave-one-out on training images picks one) and a ridge.
Four matrices serve all variants of a kernel: training × training and training × test images, each between the images
as they are (K) and with the images of one side mirrored (M). Training on K + M is training on the images and all their
mirror images. Each matrix is computed once, in memory, or in a store on disk. A learning curve uses one matrix too: it
is extended from size to size, and each leading block is solved when it is complete.

With an augmentation, a method is an ensemble over random draws (see `regression`). Each member is a piece of its own,
with its predictions for all images. So an interrupted run resumes with the next member, and a larger ensemble reuses
the members of a smaller one.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..console import percent, span
from ..datasets import Dataset, Split
from ..devices import Device
from ..errors import NotPositiveDefinite
from ..estimators import KernelRidgeClassifier
from ..features import PatchFeatures
from ..inputs import to_host
from ..kernel import Crossed, Kernel, kernel
from ..paper import printed
from ..preprocessing import Augmentation
from ..progress import progress_bar
from ..searching import search
from ..solve import factorise
from ..solve.path import DECADES
from ..solve.scores import accuracy, member_shares
from ..statistics import Score
from ..symmetries import Symmetry
from ..timing import describe_machine, symmetric_pairs, timed
from .records import Outcome, Piece, Row, Run, View, backend_name, digest
from .splits import by_class, check_test, choose
from .whitening import BytesFirst, Draw

Array = NDArray[np.float64]
Images = NDArray[np.float32]
Tilt = float | str
Choice = tuple[Kernel, float, list[Any]]  # a kernel, a ridge, and what was tried

TILTS: tuple[Tilt, ...] = (0.0, 0.3, "loo")
CHOSEN_ON = 4000  # training images that choose the kernel or ridge, where a method leaves it open
REFINED = (1.0, 0.25, 0.0625, 0.015625)  # factors of the chosen ridge; leave-one-out on all training images picks one
COLUMNS = ("method", "train", "test set", "images", "tilt", "accuracy", "95 % interval", "leave-one-out", "paper")


@dataclass(frozen=True)
class Preprocessing:
    """A preprocessing of images.

    `describe` states it in records, as JSON values. `fit(dataset, folder, backend)` returns a fitted object with
    `transform`, as scikit-learn's transformers have; `folder` is for files it keeps.
    """

    describe: Any
    fit: Callable[[Dataset, Path, str], Any]


@dataclass(frozen=True)
class Candidates:
    """Kernels to choose from: `describe` states them in records, `make` builds them from preprocessed images."""

    describe: Any
    make: Callable[[Images], Sequence[Kernel]]


def learnt_features(
    kind: type[PatchFeatures], variants: Sequence[dict[str, Any]], images_a_filter: int = 0
) -> Candidates:
    """Kernels of features that are learnt from the training images, one for each variant of the options.

    With `images_a_filter`, the number of filters is that of the training images divided by it.
    """

    def make(images: Images) -> Sequence[Kernel]:
        more: dict[str, Any] = {"filters": max(1, len(images) // images_a_filter)} if images_a_filter else {}
        return [kind(**more, **options).fit(images).kernel() for options in variants]

    return Candidates({"features": kind.__name__, "variants": variants, "images a filter": images_a_filter}, make)


@dataclass(frozen=True)
class Extras:
    """Options of a method: random copies or views to train on, and transforms to average predictions over."""

    augmentation: Augmentation | None = None
    ensemble: int = 1
    averaging: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values; empty without any options."""
        if self == Extras():
            return {}
        about = None if self.augmentation is None else self.augmentation.to_json()
        return {"extras": {"augmentation": about, "ensemble": self.ensemble, "averaging": self.averaging}}


@dataclass(frozen=True)
class Method:
    """A row of a table: a preprocessing, a kernel or candidates to choose from, and a ridge; None: chosen too."""

    name: str
    preprocessing: str
    kernels: str | Kernel | Candidates
    ridge: float | None
    flips: bool = False
    extras: Extras = Extras()

    def candidates(self, images: Images) -> Sequence[Kernel]:
        """The kernels to choose from; a single one if the kernel is given."""
        if isinstance(self.kernels, Candidates):
            return self.kernels.make(images)
        return [kernel(self.kernels) if isinstance(self.kernels, str) else self.kernels]

    def choice(self, ridge: float | None) -> dict[str, Any]:
        """The part of a piece's key that says what kernel and ridge are chosen from; empty if both are given."""
        if isinstance(self.kernels, str) and ridge is not None:
            return {}
        if isinstance(self.kernels, Kernel):  # the kernel behind the method's name may change in a later version
            return {"kernel": repr(self.kernels), "flips": self.flips}
        kernels = self.kernels if isinstance(self.kernels, str) else self.kernels.describe
        ridges = {"decades of the mean of the diagonal": DECADES.tolist()} if ridge is None else [ridge]
        choice = {"kernels": kernels, "ridges": ridges, "images": CHOSEN_ON}
        return {"choice": choice | ({"of that, by all images": REFINED} if ridge is None else {})}


@dataclass(frozen=True)
class Table:
    """A table of the paper: its methods, and their preprocessings by name."""

    name: str
    methods: tuple[Method, ...]
    preprocessings: Mapping[str, Preprocessing]
    tilts: tuple[Tilt, ...] = (0.0,)
    also: tuple[str, ...] = ()  # more data sets to test on, if their files are found

    def method(self, name: str) -> Method:
        """The method with a name."""
        return next(method for method in self.methods if method.name == name)

    def names(self) -> tuple[str, ...]:
        """The names of all methods."""
        return tuple(method.name for method in self.methods)


@dataclass(frozen=True)
class Settings:
    """Which methods of a table to run, and on what."""

    methods: tuple[str, ...]
    train: int | None = None
    test: int | None = None
    seed: int = 0
    ridge: float | None = None  # instead of the paper's
    record: str | None = None
    store: Path | None = None
    sizes: tuple[int, ...] = ()  # numbers of training images, in place of `train`
    extras: Extras = Extras()  # from the command line; they replace those of the methods


def reproduce(
    table: Table,
    dataset: Dataset,
    settings: Settings,
    *,
    backend: str = "auto",
    folder: Path,
    others: Sequence[Dataset] = (),
) -> Outcome:
    """Run the methods that are not saved yet, and write the record; `others` are further data sets to test on."""
    backend = backend_name(backend)
    work = _Work(table, dataset, settings, backend, folder / "pieces", others)
    for extras in map(work.extras, map(table.method, settings.methods)):
        KernelRidgeClassifier(**vars(extras)).check_copies()
        if extras.averaging is not None:
            Symmetry.parse(extras.averaging).check(work.train.images)
    sizes = settings.sizes or (len(work.train),)
    common = {
        "seed": settings.seed,
        "tilts": table.tilts,
        "test images": {name: len(split) for name, split in work.tests.items()},
    }
    run = Run(
        table.name,
        folder,
        configuration={
            **common,
            "train": list(settings.sizes) or len(work.train),
            "methods": settings.methods,
            "backend": backend,
            "ridge": settings.ridge,
            **settings.extras.to_json(),
        },
        data={one.name: dict(one.hashes) for one in (dataset, *others)},
        machine=functools.partial(describe_machine, backend),
    )
    view = View(f"{table.name}, accuracies in per cent", COLUMNS, cells)
    usual = f"{table.name}-{'curve-' if settings.sizes else ''}{sizes[-1]}"
    return run.conduct(work.rows(run, common, sizes), view, name=settings.record or usual, keep=True)


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    tilt = f"{row['tilt']:g}" + (" (loo)" if row["tilt asked"] == "loo" else "")
    scores = percent(row["accuracy"]), span(row["interval"]), percent(row["leave-one-out accuracy"])
    return row["method"], f"{row['train']:,}", row["test set"], f"{row['rows']:,}", tilt, *scores, percent(row["paper"])


@dataclass(eq=False)
class _Work:
    """Computes rows. The images and matrices of the last kernel stay in memory, since the next row may need them."""

    table: Table
    dataset: Dataset
    settings: Settings
    backend: str
    folder: Path
    others: Sequence[Dataset]
    images: dict[str | None, Images] = field(default_factory=dict)  # by test set; None: training images
    matrices: dict[str, Array] = field(default_factory=dict)
    preprocessing: str = ""  # by which `images` were made
    kernel: str = ""  # of `matrices`

    def __post_init__(self) -> None:
        whole, settings = self.dataset.train, self.settings
        count = settings.sizes[-1] if settings.sizes else settings.train
        self.train = whole.take(choose(len(whole), count, settings.seed))
        check_test(self.dataset, settings.test)
        self.tests = {one.name: one.test.take(slice(settings.test)) for one in (self.dataset, *self.others)}
        self.targets = np.eye(len(self.dataset.classes))[self.train.labels]

    def rows(self, run: Run, common: Row, sizes: Sequence[int]) -> Iterator[Row]:
        """The rows of every method: one for each size, tilt and test set."""
        for name, size in itertools.product(self.settings.methods, sizes):
            method = self.table.method(name)
            ridge = method.ridge if self.settings.ridge is None else self.settings.ridge
            extras = self.extras(method).to_json()
            of = {
                **common,
                "train": size,
                "method": name,
                "preprocessing": self.table.preprocessings[method.preprocessing].describe,
                "ridge": "by leave-one-out" if ridge is None else ridge,
                "backend": self.backend,
                **method.choice(ridge),
                **extras,
            }
            if extras:
                piece = self.ensemble(run, of, method, ridge, size)
            else:
                piece = run.piece(of, functools.partial(self.evaluate, method, ridge, size))
            # Extras from the command line make it another method than the paper's.
            label = name if self.settings.extras == Extras() else f"{name}+extras"
            about = {"table": self.table.name, "method": label, "train": size, **extras}
            about |= {"preprocessing": of["preprocessing"], "seconds": piece.seconds}
            about |= {"machine": piece.machine, "date": piece.date}
            about |= {key: value for key, value in piece.value.items() if key != "scores"}
            for result in piece.value["scores"]:
                theirs = printed(self.table.name, label, result["test set"])
                yield {**about, **result, "paper": None if theirs is None else theirs / 100}

    def evaluate(self, method: Method, ridge: float | None, size: int) -> dict[str, Any]:
        """Train and test a method; returns its scores for every tilt and test set, the choices made, and the times."""
        self._preprocess(method.preprocessing)
        given = ridge
        (kernel, ridge, candidates), choosing = timed(lambda: self._choose(method, given, size))
        places = (None, *self.tests)
        matrices, computing = timed(lambda: {name: self._matrix(method, kernel, name, size) for name in places})
        K = matrices.pop(None)
        where, targets, refined = "cuda" if self.backend == "cuda" else "cpu", self.targets[:size], None
        if given is None and ridge > 0 and len(K) > CHOSEN_ON:
            (ridge, refined), more = timed(functools.partial(self._refine, K, ridge, targets))
            choosing += more
        factor, solving = timed(lambda: factorise(K, ridge, backend=where))
        tilting, scores = factor.tilting(targets, criterion="accuracy"), []
        for tilt in self.table.tilts:
            solution, taken = timed(functools.partial(tilting.at, tilt))
            solving += taken
            about = {"tilt asked": tilt, "tilt": solution.tilt, "residual": solution.residual}
            about["leave-one-out accuracy"] = accuracy(targets, solution.leave_one_out)
            for name, values in matrices.items():
                score = Score.of((values.T @ solution.coefficients).argmax(axis=1), self.tests[name].labels)
                scores.append({"test set": name, **score.to_json(), **about})
        pairs = symmetric_pairs(size) + sum(values.size for values in matrices.values())
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

    def ensemble(self, run: Run, of: Row, method: Method, ridge: float | None, size: int) -> Piece:
        """As `evaluate`, with random copies and averaged predictions; the first member chooses the tilt."""
        members, tilt = list[Piece](), "loo"
        alone = {**of, "extras": {**of["extras"], "ensemble": 1}}
        choose = functools.cache(lambda: self._choose(method, ridge, size))  # once for all members
        extras = self.extras(method)
        for number in range(extras.ensemble):
            fit = functools.partial(self._member, method, choose, size, number, tilt)
            members.append(run.piece({**alone, "member": number}, fit))
            tilt = members[0].value["tilt"]
        first, values = members[0].value, [member.value for member in members]
        views = [None] if extras.augmentation is None else extras.augmentation.views(extras.ensemble)
        shares = member_shares(self.targets[:size], [np.array(one["values"][""]) for one in values], views)
        left_out, *tested = (
            np.tensordot(shares, [one["values"][name] for one in values], axes=1) for name in ("", *self.tests)
        )
        about = {"tilt asked": "loo", "tilt": tilt, "leave-one-out accuracy": accuracy(self.targets[:size], left_out)}
        about["shares"] = shares.tolist()
        scores = []
        for (name, split), found in zip(self.tests.items(), tested, strict=True):
            score = Score.of(found.argmax(axis=1), split.labels)
            scores.append({"test set": name, **score.to_json(), **about})
        spent = {name: sum(one["spent"][name] for one in values) for name in first["spent"]}
        shared = {name: first[name] for name in ("kernel", "flips", "ridge", "candidates")}
        seconds = sum(member.seconds for member in members)
        return replace(members[-1], value={**shared, "spent": spent, "scores": scores}, seconds=seconds)

    def _member(
        self, method: Method, choose: Callable[[], Choice], size: int, number: int, tilt: Tilt
    ) -> dict[str, Any]:
        """Fit a member of an ensemble and predict all images.

        The values are by test set; under "" are leave-one-out values of the training images, with all copies of an
        image left out.
        """
        self._preprocess(method.preprocessing)
        (kernel, ridge, candidates), choosing = timed(choose)
        extras = self.extras(method)
        copies = extras.augmentation
        if copies is not None and copies.randaugment is not None:
            copies = BytesFirst(**vars(copies), rows=self.train.images, whiten=self.fitted.transform)
        draw = None if copies is None else Draw(of=copies, number=number)
        how: dict[str, Any] = {"ridge": ridge, "flips": method.flips, "tilt": tilt, "backend": self.backend}
        how |= {"augmentation": draw, "averaging": extras.averaging, "verbose": True}
        model = KernelRidgeClassifier(kernel, **how)
        _, fitting = timed(lambda: model.fit(self.images[None][:size], self.train.labels[:size]))
        found, predicting = timed(lambda: {name: model.decision_function(self.images[name]) for name in self.tests})
        found = {"": model.loo_decision_, **found}
        return {
            "kernel": repr(kernel),
            "flips": method.flips,
            "ridge": ridge,
            "candidates": candidates,
            "tilt": model.tilt_,
            "spent": {"choosing": choosing, "fitting": fitting, "predicting": predicting},
            "values": {
                name: by_class(one, model.classes_, len(self.dataset.classes)).round(9).tolist()
                for name, one in found.items()
            },
        }

    def extras(self, method: Method) -> Extras:
        """The extras from the command line; where they leave something out, those of the method."""
        given, own = self.settings.extras, method.extras
        copies = own if given.augmentation is None else given
        return Extras(copies.augmentation, copies.ensemble, given.averaging or own.averaging)

    def _preprocess(self, name: str) -> None:
        if self.preprocessing == name:
            return
        self.fitted = self.table.preprocessings[name].fit(self.dataset, self.folder, self.backend)
        splits: dict[Any, Split] = {None: self.train, **self.tests}
        self.images = {place: self.fitted.transform(split.images).astype(np.float32) for place, split in splits.items()}
        self.preprocessing, self.kernel, self.matrices = name, "", {}

    def _first(self, count: int) -> Images:
        """The first `count` training images of the random order, preprocessed; there may be more than this run has."""
        if count <= len(self.train):
            return self.images[None][:count]
        whole = self.dataset.train
        rows = whole.images[choose(len(whole), count, self.settings.seed)]
        return np.asarray(self.fitted.transform(rows)).astype(np.float32)

    def _choose(self, method: Method, ridge: float | None, size: int) -> Choice:
        """The kernel and ridge with the best leave-one-out accuracy on the first CHOSEN_ON training images."""
        kernels = method.candidates(self.images[None][:size])
        if len(kernels) == 1 and ridge is not None:
            return kernels[0], ridge, []
        some, ridges = min(size, CHOSEN_ON), None if ridge is None else [ridge]
        images, labels = self.images[None][:some], self.train.labels[:some]
        found = search(kernels, images, labels, ridges=ridges, subset=some, backend=self.backend)
        tried = {repr(trial.kernel): trial for trial in found.trials}
        if failed := [name for name, trial in tried.items() if trial.accuracy is None]:
            tried_at = "any ridge that was tried" if ridge is None else f"ridge {ridge:g}"
            raise NotPositiveDefinite(
                f"the matrix of {failed[0]} is not positive definite at {tried_at}; give a larger one by --ridge"
            )
        report = [
            {"kernel": name, "ridge": tried[name].ridge, "leave-one-out accuracy": tried[name].accuracy}
            for name in map(repr, kernels)
        ]
        return found.best.kernel, found.best.ridge, report

    def _refine(self, K: Array, ridge: float, targets: Array) -> tuple[float, list[Any]]:
        """Refine a ridge that was chosen on CHOSEN_ON images: the best of its REFINED shares on all of them."""
        on, found = Device(self.backend).algebra, []
        there = on.upload(K)
        for share in REFINED:
            try:
                left_out = to_host(factorise(there, share * ridge).leave_one_out(targets))
            except NotPositiveDefinite:  # smaller ridges would fail too
                break
            found.append({"ridge": share * ridge, "leave-one-out accuracy": accuracy(targets, left_out)})
        best = max(found, key=lambda one: one["leave-one-out accuracy"], default={"ridge": ridge})
        return best["ridge"], found

    def _matrix(self, method: Method, kernel: Kernel, tested: str | None, size: int) -> Array:
        """K, or K + M with flips, of the first `size` training images: among themselves, or with the set `tested`."""
        if self.kernel != repr(kernel):
            self.kernel, self.matrices = repr(kernel), {}
        halves = []
        for half in (kernel, Crossed(kernel)) if method.flips else (kernel,):
            label = f"{half!r} {'among training images' if tested is None else f'with {tested}'}"
            known = self.matrices.get(label)
            if known is None or len(known) < size:
                known = self.matrices[label] = self._extend(method, half, tested, label, known, size)
            halves.append(known[:size, :size] if tested is None else known[:size])
        return halves[0] + halves[1] if method.flips else halves[0]

    def _extend(
        self, method: Method, kernel: Kernel, tested: str | None, label: str, known: Array | None, size: int
    ) -> Array:
        """Extend the matrix `known` to `size` rows; entries that it has are not computed again."""
        if self.settings.store is not None:
            return self._extend_store(self.settings.store, method, kernel, tested, label, size)
        images, done = self.images[None][:size], 0 if known is None else len(known)
        with progress_bar(label) as progress:
            compute = functools.partial(kernel, backend=self.backend, progress=progress)
            if tested is not None:
                rows: Array = compute(images[done:], self.images[tested])
                return rows if known is None else np.concatenate([known, rows])
            corner: Array = compute(images[done:])
            if known is None:
                return corner
            below = compute(images[done:], images[:done])
        return np.block([[known, below.T], [below, corner]])

    def _extend_store(
        self, store: Path, method: Method, kernel: Kernel, tested: str | None, label: str, size: int
    ) -> Array:
        """As `_extend`, but kept in stores.

        The training matrix is one store, which is extended. A test matrix has a store for each step of a curve.
        """
        from ..gram import gram, open_gram

        images, others = self.images[None], None if tested is None else self.images[tested]
        about = json.dumps(self.table.preprocessings[method.preprocessing].describe, sort_keys=True)
        ends = [end for end in self.settings.sizes if end <= size] or [size]

        def read(start: int, end: int) -> Array:
            sizes = [] if others is None else [end, len(others)] + [start] * (start > 0)
            key = digest([label, about, self.settings.seed, self.backend, sizes])[:12]
            place = store / f"{self.table.name}-{method.name.partition('+')[0]}-{key}.zarr"
            options: dict[str, Any] = {"preprocessing": about, "extend": others is None, "backend": self.backend}
            rows = images[start:end]
            if others is None and place.exists():  # an earlier run may have extended it further
                rows = self._first(max(end, len(open_gram(place))))
            return np.asarray(gram(kernel, rows, others, store=place, **options))

        if others is None:
            return read(0, size)[:size, :size]
        return np.concatenate([read(start, end) for start, end in itertools.pairwise([0, *ends])])
