"""Choosing kernel, ridge and whitening without test data: by leave-one-out, or by the marginal likelihood.

One eigendecomposition of a matrix scores all ridges. Every candidate is tried on a few images, the better half on twice
as many, and so on (successive halving): most of the work goes to promising candidates, and the last round confirms the
winner on the most images. No kernel entry is computed twice, and sums of kernels reuse the entries of their terms. At
the end, gradients may improve the parameters of the winner (`refining`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline
from sklearn.utils.multiclass import type_of_target

from .aside import announce
from .backends import AnyDevice, Precision
from .console import markdown
from .devices import Device
from .errors import InputError, NotPositiveDefinite, ParameterError
from .estimators import KernelRidgeClassifier, KernelRidgeRegressor
from .inputs import check_images, to_host
from .kernel import AnyKernel, Kernel, kernel_of
from .labels import check_labelled, check_varied, read_classes
from .markup import html_table, tag
from .plots import COLOURS, new_axes, save_figure
from .preprocessing import ZCA
from .preprocessing.parameters import check_whole
from .refining import Refinement
from .refining import refine as refine_kernel
from .solve import RidgePath, check_targets, ridge_path
from .solve.path import PathCriterion

Array = NDArray[np.float64]
SearchCriterion = Literal["loo", "marginal likelihood"]
CRITERIA = ("loo", "marginal likelihood")
COLUMNS = ("kernel", "whitening", "images", "ridge", "accuracy", "squared error", "log likelihood")

_SHARES = (0.25, 0.5, 0.75)  # weights to try for the first kernel in a sum of two
_DRAWN = 6  # the most candidates in a plot


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate on a number of images, with its best ridge. `accuracy` is None if targets are numbers.

    `accuracy` and `squared_error` are leave-one-out, and a little optimistic because the ridge was chosen by them.
    """

    kernel: Kernel
    whitening: float | None
    rows: int
    ridge: float
    accuracy: float | None
    squared_error: float
    log_likelihood: float
    path: RidgePath = field(repr=False)

    def cells(self) -> tuple[str, ...]:
        """A row of the table, under COLUMNS."""
        whitening = "none" if self.whitening is None else f"{self.whitening:g}"
        share = "" if self.accuracy is None else f"{100 * self.accuracy:.2f} %"
        scores = share, f"{self.squared_error:.4g}", f"{self.log_likelihood:.5g}"
        return repr(self.kernel), whitening, f"{self.rows:,}", f"{self.ridge:.2g}", *scores

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON values."""
        names = ("whitening", "rows", "ridge", "accuracy", "squared_error", "log_likelihood")
        return {"kernel": repr(self.kernel), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, eq=False)
class Search:
    """The result of a search: all trials, the last round first, best first in every round."""

    criterion: SearchCriterion
    trials: tuple[Trial, ...]
    regression: bool

    @property
    def best(self) -> Trial:
        """The winner of the last round, which had the most images."""
        return self.trials[0]

    def model(self, **options: Any) -> Any:
        """The winner as an estimator, not fitted, or as a pipeline of its whitening and the estimator."""
        kind = KernelRidgeRegressor if self.regression else KernelRidgeClassifier
        estimator = kind(self.best.kernel, self.best.ridge, **options)
        return estimator if self.best.whitening is None else make_pipeline(ZCA(self.best.whitening), estimator)

    def __str__(self) -> str:
        return "\n".join(markdown(COLUMNS, (trial.cells() for trial in self.trials)))

    def _repr_html_(self) -> str:
        """The trials as a table, for notebooks."""
        caption = f"best first, by {self.criterion}"
        return tag("div", tag("p", caption), html_table(COLUMNS, (trial.cells() for trial in self.trials)))

    @property
    def score_name(self) -> str:
        """The name of the score in `curves`."""
        return {"loo": "leave-one-out error", "marginal likelihood": "log likelihood, per image"}[self.criterion]

    def curves(self) -> list[tuple[str, Array, Array]]:
        """Name, ridges and scores of the best candidates, each from its trial with the most images."""
        seen: dict[tuple[str, float | None], Trial] = {}
        for trial in self.trials:
            seen.setdefault((repr(trial.kernel), trial.whitening), trial)
        found = []
        for trial in list(seen.values())[:_DRAWN]:
            values = self._curve(trial)
            usable = (trial.path.ridges > 0) & np.isfinite(values)
            name = f"{_short(trial.kernel)}{'' if trial.whitening is None else f', zca {trial.whitening:g}'}"
            found.append((name, trial.path.ridges[usable], values[usable]))
        return found

    def plot(self, path: str | Path) -> None:
        """Plot the scores of the best candidates over the ridge, into a file."""
        figure, axes = new_axes(6.4, 4.4, "Candidates", "ridge", self.score_name)
        for colour, (name, ridges, values) in zip(itertools.cycle(COLOURS), self.curves(), strict=False):
            axes.plot(ridges, values, color=colour, linewidth=1.4, label=name)
        axes.set_xscale("log")
        axes.legend(frameon=False, fontsize=8)
        save_figure(figure, Path(path), bbox_inches="tight")

    def _curve(self, trial: Trial) -> Array:
        if self.criterion == "marginal likelihood":
            return trial.path.log_likelihoods / trial.rows
        return trial.path.squared_errors if trial.path.accuracies is None else 1 - trial.path.accuracies


def search(
    kernels: Iterable[AnyKernel],
    X: Any,
    y: Any,
    criterion: SearchCriterion = "loo",
    *,
    ridges: Any = None,
    whitening: Sequence[float | None] = (None,),
    mix: int = 0,
    subset: int = 500,
    largest: int | None = None,
    refine: int = 0,
    seed: int = 0,
    backend: str | AnyDevice = "auto",
    precision: Precision = "float32",
    n_jobs: int | None = None,
    progress: Callable[[str], None] | None = None,
    verbose: bool = False,
) -> Search:
    """The best of many kernels, ridges and whitenings, on training data alone.

    Parameters
    ----------
    kernels
        Names, text forms, architectures or kernel objects, such as `classical.Gaussian(gamma)` for several gammas.
    X, y
        Images, and their labels or real targets.
    criterion
        "loo": leave-one-out accuracy for labels (squared error breaks ties), or squared error for real targets.
        "marginal likelihood": that of a Gaussian process with the ridge as its noise and the best scale.
    ridges
        Ridges to try; by default 0, and four per decade from 1e-10 to 1e3 times the mean of the diagonal.
    whitening
        Epsilons of ZCA to try; None is no whitening. ZCA is fitted to all of X.
    mix
        After the first round, try weighted sums of all pairs of the best `mix` kernels of each whitening.
    subset, largest
        The number of images in the first round and in the last round (by default all). Each round has twice as many
        images as the one before, and the better half of its candidates.
    refine
        The most evaluations for improving the real parameters of the best kernel, such as gamma, by the gradient of
        the leave-one-out squared error or of the likelihood on the images of the first round; 0 for none. The improved
        kernel becomes one more candidate of the last round.
    progress
        Called with a line of text for every trial.
    verbose
        Without `progress`: log these lines to `tangentless`, and print them to stderr if that is a terminal.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> found = search(["relu", "gaussian"], X, np.maximum(X[:, 0], 0), backend="reference")
    >>> len(found.trials), found.best.rows
    (2, 60)
    """
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {' or '.join(map(repr, CRITERIA))}, not {criterion!r}")
    if isinstance(kernels, str):
        raise ParameterError(f"kernels is a list, such as [{kernels!r}], not one text")
    for name, count, least in (("mix", mix, 0), ("refine", refine, 0), ("seed", seed, 0), ("subset", subset, 1)):
        check_whole(name, count, least)
    if largest is not None:
        check_whole("largest", largest)
    images = check_images(np.asarray(X))
    targets, regression = _read_targets(y, len(images))
    made = [kernel_of(one) for one in kernels]
    if not made or not len(whitening):
        raise ParameterError("a search needs at least one kernel, and at least one whitening, None for none")
    by: PathCriterion = "marginal likelihood" if criterion != "loo" else "squared error" if regression else "accuracy"
    progress = announce if verbose and progress is None else progress
    device = Device.of(backend, precision, n_jobs)
    run = _Run(images, targets, ridges, by, device, np.random.default_rng(seed).permutation(len(images)))
    candidates = [_Candidate(((1.0, one),), epsilon) for epsilon in whitening for one in dict.fromkeys(made)]
    trials: list[Trial] = []
    sizes = _sizes(len(images), subset, largest, len(candidates))
    for place, rows in enumerate(sizes):
        ranked = run.rank(candidates, rows, progress)
        if place == 0 and mix > 1:
            ranked = sorted(ranked + run.rank(_mixtures(ranked, mix), rows, progress), key=lambda pair: pair[0])
        if place == len(sizes) - 1 and refine:
            better = run.refine(ranked[0], sizes[0], refine)
            ranked = sorted(ranked + run.rank(better, rows, progress), key=lambda pair: pair[0])
        trials = [trial for _, _, trial in ranked] + trials
        candidates = [candidate for _, candidate, _ in ranked[: math.ceil(len(ranked) / 2)]]
        run.keep(candidates)
    return Search(criterion, tuple(trials), regression)


@dataclass(frozen=True)
class _Candidate:
    """A weighted sum of given kernels, (weight, kernel) each, and the epsilon of the whitening."""

    terms: tuple[tuple[float, Kernel], ...]
    whitening: float | None

    @property
    def kernel(self) -> Kernel:
        (share, first), *rest = self.terms
        total = first if not rest else share * first
        for weight, term in rest:
            total = total + weight * term
        return total


_Ranked = tuple[tuple[float, float], _Candidate, Trial]


@dataclass(eq=False)
class _Run:
    """Scores candidates, and keeps their matrices, which the next round extends."""

    images: NDArray[Any]
    targets: Array
    ridges: Any
    criterion: PathCriterion
    device: Device
    order: NDArray[np.intp]
    matrices: dict[tuple[Kernel, float | None], Array] = field(default_factory=dict)
    whitened: dict[float | None, NDArray[Any]] = field(default_factory=dict)

    def rank(
        self, candidates: Iterable[_Candidate], rows: int, progress: Callable[[str], None] | None
    ) -> list[_Ranked]:
        """Score the candidates on `rows` images, best first; a matrix that no ridge makes definite comes last."""
        found = []
        for candidate in candidates:
            trial, key = self._score(candidate, rows)
            if progress is not None:
                progress(", ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, trial.cells(), strict=True) if cell))
            found.append((key, candidate, trial))
        return sorted(found, key=lambda pair: pair[0])

    def refine(self, best: _Ranked, rows: int, evaluations: int) -> list[_Candidate]:
        """The best candidate with better parameters; empty if none were found."""
        _, candidate, trial = best
        part = self.order[:rows]
        images, targets = self._whiten(candidate.whitening)[part], self.targets[part].reshape(rows, -1)
        by: Refinement = "marginal likelihood" if self.criterion == "marginal likelihood" else "squared error"
        kernel = refine_kernel(trial.kernel, images, targets, trial.path.best(by), by, evaluations, self.device)
        return [] if kernel == trial.kernel else [_Candidate(((1.0, kernel),), candidate.whitening)]

    def keep(self, candidates: Iterable[_Candidate]) -> None:
        """Drop the matrices that none of the candidates needs."""
        kept = {(kernel, one.whitening) for one in candidates for _, kernel in one.terms}
        self.matrices = {key: matrix for key, matrix in self.matrices.items() if key in kept}

    def _score(self, candidate: _Candidate, rows: int) -> tuple[Trial, tuple[float, float]]:
        about = candidate.kernel, candidate.whitening, rows
        K = sum(weight * self._matrix(kernel, candidate.whitening, rows) for weight, kernel in candidate.terms)
        try:
            path = ridge_path(K, self.targets[self.order[:rows]], self.ridges, backend=self.device)
        except NotPositiveDefinite:
            empty = np.full(1, np.nan)
            path = RidgePath(np.zeros(1), np.full(1, np.inf), None, np.full(1, -np.inf), empty)
        at = path.place(self.criterion)
        share = None if path.accuracies is None else float(path.accuracies[at])
        error, likelihood = float(path.squared_errors[at]), float(path.log_likelihoods[at])
        trial = Trial(*about, float(path.ridges[at]), share, error, likelihood, path)
        return trial, path.rank(self.criterion, at)

    def _matrix(self, kernel: Kernel, whitening: float | None, rows: int) -> Array:
        """The kernel matrix of the first `rows` images in `order`; entries of earlier rounds are reused."""
        known = self.matrices.get((kernel, whitening))
        before = 0 if known is None else len(known)
        if before < rows:
            images = self._whiten(whitening)
            old, new = images[self.order[:before]], images[self.order[before:rows]]
            corner = np.asarray(to_host(kernel.on_device(self.device, new)))
            if known is not None:
                across = np.asarray(to_host(kernel.on_device(self.device, new, old)))
                corner = np.block([[known, across.T], [across, corner]])
            self.matrices[kernel, whitening] = corner
        return self.matrices[kernel, whitening]

    def _whiten(self, epsilon: float | None) -> NDArray[Any]:
        if epsilon is None:
            return self.images
        if epsilon not in self.whitened:
            self.whitened[epsilon] = ZCA(epsilon).fit_transform(self.images)
        return self.whitened[epsilon]


def _sizes(count: int, subset: int, largest: int | None, candidates: int) -> list[int]:
    """The number of images in each round: doubled until one candidate is left, then `largest` to confirm it."""
    most = count if largest is None else largest
    if not 2 <= most <= count or subset < 2:
        raise ParameterError(f"subset and largest must be from 2 to the {count} images, not {subset} and {largest}")
    sizes = [min(subset, most)]
    while sizes[-1] < most and 2 ** len(sizes) < 2 * candidates:
        sizes.append(min(2 * sizes[-1], most))
    return sizes if sizes[-1] == most else [*sizes, most]


def _mixtures(ranked: list[_Ranked], best: int) -> Iterator[_Candidate]:
    for epsilon in dict.fromkeys(candidate.whitening for _, candidate, _ in ranked):
        mine = [candidate.terms[0][1] for _, candidate, _ in ranked if candidate.whitening == epsilon][:best]
        for first, second in itertools.combinations(mine, 2):
            for share in _SHARES:
                yield _Candidate(((share, first), (1 - share, second)), epsilon)


def _read_targets(y: Any, rows: int) -> tuple[Array, bool]:
    check_labelled(y)
    values = np.asarray(y)
    if values.ndim == 0 or len(values) != rows:
        raise InputError(f"X has {rows} rows, but y is of shape {values.shape}; they must match")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError("y holds NaN or infinite values")
    if type_of_target(values).startswith("continuous"):
        check_varied(values)
        return check_targets(values, rows), True
    classes, codes = read_classes(values)
    return np.eye(len(classes))[codes], False


def _short(kernel: Kernel) -> str:
    text = repr(kernel)
    return text if len(text) <= 50 else f"{text[:47]}..."
