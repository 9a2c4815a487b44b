"""The numbers in the report of a fit, from leave-one-out predictions and from the kernel matrix.

Scores, confusion counts and lists of examples cover all training images. Matrix, neighbours, ridge path and learning
curve cover a random sample of at most `limit` of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score
from sklearn.pipeline import Pipeline

from ..errors import InputError, NotPositiveDefinite, ParameterError
from ..estimators import KernelRidgeClassifier, KernelRidgeRegressor
from ..gram import open_gram
from ..inputs import to_host, without_tensor
from ..solve import Calibration, RidgePath, calibration, probabilities, ridge_path, solve_ridge
from ..statistics import Score
from .charts import Series

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

LIMIT = 2000  # training images shown
NEIGHBOURS = 12
LISTED = 24  # examples in each list
SURE, UNLIKELY = 0.8, 0.1  # a label is suspect if p(prediction) >= SURE and p(label) <= UNLIKELY
_TESTED = 200  # right and wrong test images shown, at most so many of each
_SMALLEST = 6  # fewest training images in the learning curve: 60 images give four points
_DRAWS = 8  # most subsets of one size in the learning curve


@dataclass(frozen=True, eq=False)
class Data:
    """A training or test set: rows, labels, and the images to show."""

    X: Any
    y: NDArray[Any]
    images: NDArray[Any]

    @classmethod
    def of(cls, X: Any, y: Any, images: Any, what: str) -> Data:
        """Check that the lengths agree. Without images, the rows are shown."""
        labels, shown = (np.asarray(without_tensor(one)) for one in (y, X if images is None else images))
        for count, name in ((len(X), "rows"), (len(shown), "images to show")):
            if labels.ndim == 0 or len(labels) != count:
                raise InputError(f"{count} {what} {name} need one label each, but the labels have shape {labels.shape}")
        return cls(X, labels, shown)


@dataclass(frozen=True, eq=False)
class Items:
    """Images with their labels and predictions; all arrays are (N,).

    Classifiers have class numbers in `truth` and `guess`, and probabilities in `sure` and `own`. Regressors have the
    first target there, zeros in `sure`, and minus the error (a norm over all targets) in `own`.
    """

    row: Indices  # in the training or the test set
    test: NDArray[np.bool_]  # whether the image is of the test set
    truth: NDArray[Any]  # label
    guess: NDArray[Any]  # prediction
    sure: Array  # probability of the predicted class
    own: Array  # probability of the label; larger is better

    def __len__(self) -> int:
        return len(self.row)

    def take(self, places: Any) -> Items:
        """The items at some places, a slice or a mask."""
        return Items(*(part[places] for part in vars(self).values()))

    def __add__(self, other: Items) -> Items:
        return Items(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True, eq=False)
class Examples:
    """Places of the items to list, by leave-one-out."""

    hardest: Indices  # worst first
    typical: Indices  # the best of each class; for regressors, the smallest errors
    suspects: Indices  # labels that are probably wrong
    suspected: int  # how many suspects there are, listed or not

    def places(self, where: Indices) -> Examples:
        """The same examples with place p renumbered to where[p]."""
        return Examples(where[self.hardest], where[self.typical], where[self.suspects], self.suspected)


@dataclass(frozen=True, eq=False)
class Fit:
    """All numbers of a report.

    `items` are the images that it shows, in this order: the rows of the matrix, further training images that
    `examples` lists, and test images.
    """

    model: Any
    estimator: Any  # the last step of the model
    classes: tuple[str, ...]  # empty for regressors
    everything: Items  # all training images
    tested: Items | None  # all test images
    items: Items
    images: NDArray[Any]  # of the items
    K: Array
    neighbours: Indices  # (len(K), NEIGHBOURS), nearest first
    examples: Examples  # places in items
    calibration: Calibration | None
    path: RidgePath | None
    curve: Series | None  # leave-one-out scores by the size of the training set; accuracies have 95 % intervals
    trouble: str  # why there is no path and no curve


def gather(model: Any, train: Data, test: Data | None, matrix: Any, limit: int) -> Fit:
    """Compute everything that a report shows of a fitted model."""
    *steps, estimator = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    check_model(estimator, len(train.y))
    classifies = isinstance(estimator, KernelRidgeClassifier)
    left_out = _leave_one_out(estimator)
    everything = _make_items(estimator, train.y, left_out, tested=False)
    examples = _choose_examples(everything, classifies)
    shown = np.sort(np.random.default_rng(0).permutation(len(everything))[:limit])
    listed = np.concatenate([examples.hardest, examples.typical, examples.suspects])
    rows = np.concatenate([shown, np.setdiff1d(listed, shown)])
    where = np.zeros(len(everything), np.intp)
    where[rows] = np.arange(len(rows))
    items, images, tested = everything.take(rows), train.images[rows], None
    if test is not None:
        values = model.predict_proba(test.X) if classifies else model.predict(test.X)
        tested = _make_items(estimator, test.y, np.asarray(values), tested=True)
        some = _shown_tests(tested)
        items, images = items + tested.take(some), _stack_images(images, test.images[some])
    K = _matrix(estimator, steps, train.X, shown, matrix)
    targets = np.eye(len(estimator.classes_))[everything.truth] if classifies else train.y.astype(np.float64)
    path, curve, trouble = _path_and_curve(estimator, K, targets[shown])
    return Fit(
        model=model,
        estimator=estimator,
        classes=tuple(map(str, estimator.classes_)) if classifies else (),
        everything=everything,
        tested=tested,
        items=items,
        images=images,
        K=K,
        neighbours=nearest(K),
        examples=examples.places(where),
        calibration=calibration(left_out, everything.truth) if classifies else None,
        path=path,
        curve=curve,
        trouble=trouble,
    )


def check_model(estimator: Any, count: int) -> None:
    """Refuse estimators that are not fitted, have no leave-one-out predictions, or were fitted to other rows."""
    if not isinstance(estimator, KernelRidgeClassifier | KernelRidgeRegressor):
        raise ParameterError(
            f"a report shows leave-one-out predictions, which a {type(estimator).__name__} does not have; "
            "fit a KernelRidgeClassifier or a KernelRidgeRegressor"
        )
    if not hasattr(estimator, "loo_predictions_"):
        raise ParameterError(f"this {type(estimator).__name__} is not fitted yet; call fit before the report")
    if len(estimator.loo_predictions_) != count:
        raise InputError(f"the model was fitted to {len(estimator.loo_predictions_)} rows, but {count} are given")


def nearest(K: Array) -> Indices:
    """For each row its nearest other rows, nearest first, by the kernel's distance K_ii + K_jj - 2 K_ij.

    >>> nearest(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]))
    array([[1, 2],
           [0, 2],
           [1, 0]])
    """
    diagonal = K.diagonal()
    distances = diagonal[:, None] + diagonal - 2 * K
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, : min(NEIGHBOURS, len(K) - 1)]


def _leave_one_out(estimator: Any) -> Array:
    """Leave-one-out probabilities (N, classes), or the leave-one-out predictions of a regressor."""
    if not isinstance(estimator, KernelRidgeClassifier):
        return np.asarray(estimator.loo_predictions_)
    decision = estimator.loo_decision_
    values = decision if decision.ndim == 2 else np.stack([np.zeros(len(decision)), decision], axis=1)
    return probabilities(values, estimator.scale_)


def _make_items(estimator: Any, y: NDArray[Any], values: Array, *, tested: bool) -> Items:
    """Items from labels and probabilities (or predicted values). Labels of unknown classes are refused."""
    rows, test = np.arange(len(y)), np.full(len(y), tested)
    if not isinstance(estimator, KernelRidgeClassifier):
        truth, guess = (np.asarray(one, np.float64).reshape(len(y), -1) for one in (y, values))
        return Items(rows, test, truth[:, 0], guess[:, 0], np.zeros(len(y)), -np.linalg.norm(truth - guess, axis=1))
    if not np.isin(y, estimator.classes_).all():
        strange = np.setdiff1d(y, estimator.classes_)[0]
        raise InputError(f"the model has no class {strange!r}, which is among the labels; leave those rows out")
    codes = np.searchsorted(estimator.classes_, y)
    return Items(rows, test, codes, values.argmax(axis=1), values.max(axis=1), values[rows, codes])


def _choose_examples(items: Items, classifies: bool) -> Examples:
    order = np.argsort(items.own, kind="stable")
    if not classifies:
        return Examples(order[:LISTED], order[::-1][:LISTED], order[:0], 0)
    best = [order[::-1][items.truth[order[::-1]] == code] for code in np.unique(items.truth)]
    each = max(1, LISTED // len(best))
    typical = np.concatenate([one[:each] for one in best[:LISTED]])
    doubtful = np.flatnonzero((items.guess != items.truth) & (items.sure >= SURE) & (items.own <= UNLIKELY))
    ranked = doubtful[np.argsort(-items.sure[doubtful], kind="stable")]
    return Examples(order[:LISTED], typical, ranked[:LISTED], len(doubtful))


def _shown_tests(tested: Items) -> Indices:
    """Test images to show: the first wrong ones, and the first right ones."""
    wrong = tested.guess != tested.truth
    return np.sort(np.concatenate([np.flatnonzero(kind)[:_TESTED] for kind in (wrong, ~wrong)]))


def _stack_images(images: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    if images.shape[1:] != others.shape[1:]:
        raise InputError(
            f"training images have shape {images.shape[1:]}, test images {others.shape[1:]}; the two must be the same"
        )
    return np.concatenate([images, others])


def _matrix(estimator: Any, steps: list[Any], X: Any, shown: Indices, matrix: Any) -> Array:
    """The kernel matrix of the shown training rows: part of an existing one, or else computed."""
    if matrix is None and estimator.kernel_ is None:
        matrix = X
    elif matrix is None and estimator.store is not None and estimator.landmarks is None:
        matrix = open_gram(estimator._store(0))
    if matrix is not None:
        count = len(estimator.loo_predictions_)
        if tuple(matrix.shape) != (count, count):
            raise InputError(f"the matrix of {count} training rows must be {count} × {count}, not {matrix.shape}")
        return np.asarray(to_host(matrix[np.ix_(shown, shown)]), dtype=np.float64)
    rows = np.asarray(without_tensor(X))[shown]
    for step in steps:
        rows = step.transform(rows)
    options = {"backend": estimator.backend, "precision": estimator.precision_, "n_jobs": estimator.n_jobs}
    return np.asarray(estimator.kernel_(rows, **options))


def _path_and_curve(estimator: Any, K: Array, targets: Array) -> tuple[RidgePath | None, Series | None, str]:
    """The ridge path and the learning curve, and why they are missing. They ignore sample weights and landmarks."""
    try:
        return ridge_path(K, targets), _learning_curve(estimator, K, targets), ""
    except NotPositiveDefinite as error:
        return None, None, str(error)


def _learning_curve(estimator: Any, K: Array, targets: Array) -> Series:
    """Leave-one-out scores of subsets of half the size, a quarter and so on: several disjoint ones of each size."""
    order, classifies = np.random.default_rng(1).permutation(len(K)), isinstance(estimator, KernelRidgeClassifier)
    sizes = [size for size in (len(K) >> halvings for halvings in range(12)) if size >= min(_SMALLEST, len(K))][::-1]
    scores: list[tuple[float, float, float]] = []
    for size in sizes:
        parts = [order[start : start + size] for start in range(0, len(K) - size + 1, size)][:_DRAWS]
        left_out = [
            solve_ridge(K[np.ix_(part, part)], targets[part], estimator.ridge_, tilt=estimator.tilt_).leave_one_out
            for part in parts
        ]
        scores.append(_score(targets[np.concatenate(parts)], np.concatenate(left_out), classifies))
    middle, low, high = np.array(scores).T
    bounds = (low, high) if classifies else (None, None)
    return Series("score", np.array(sizes, dtype=np.float64), middle, *bounds)


def _score(truth: Array, left_out: Array, classifies: bool) -> tuple[float, float, float]:
    if not classifies:
        value = float(r2_score(truth, left_out))
        return value, value, value
    score = Score.of(left_out.argmax(axis=1), truth.argmax(axis=1))
    return score.accuracy, *score.interval
