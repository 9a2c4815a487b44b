"""Ridge regression in feature space: n rows of m features, for m < n.

It solves `(F' F + ridge I) w = F' Y`, with the same ridge, predictions and leave-one-out predictions as kernel ridge
regression with the matrix F F'. F is read twice, a panel of rows at a time: first for F' F and F' Y, then for the
leave-one-out predictions of all ridges at once. Memory is a few m^2 numbers and a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import InputError, NotPositiveDefinite, ParameterError
from .blocked import EPSILON, rounding
from .checks import check_targets, fixed_ridge
from .matrices import as_numbers, bring, receive
from .path import DECADES
from .scores import Criterion, check_criterion, rank

Array = NDArray[np.float64]
Panels = Callable[[], Iterable[Any]]
PANEL = 1024  # rows


@dataclass(frozen=True, eq=False)
class PrimalSolution:
    """The ridge, and coefficients, (m,) or (m, targets): a prediction is `row @ coefficients`.

    `leave_one_out` is what the other rows predict for each row; it has the shape of Y.
    """

    ridge: float
    coefficients: Array
    leave_one_out: Array


def solve_primal(
    F: Any | Panels,
    Y: Any,
    ridge: float | str,
    *,
    weights: Any = None,
    criterion: Criterion = "squared error",
    backend: str | Device = "auto",
) -> PrimalSolution:
    """Ridge regression on features F, (n, m), with one target or many.

    F may also be a function that returns the panels of rows, in order, each time it is called; then they need not be in
    memory together. The ridge is above 0; "loo" picks it by the leave-one-out `criterion`. `weights`, (n,), are at
    least 0.

    >>> F = np.random.default_rng(0).standard_normal((200, 3))
    >>> solution = solve_primal(lambda: (F[:150], F[150:]), F[:, 0] - F[:, 2], ridge=1e-6)
    >>> solution.coefficients.round(6) + 0.0
    array([ 1.,  0., -1.])
    """
    if callable(F):
        on, panels = receive(None, backend)[0], F
    else:
        on, rows, _ = receive(F, backend)
        if len(np.shape(rows)) != 2 or 0 in np.shape(rows):
            raise InputError(f"F must be of shape (n, m), a row of features each, but its shape is {np.shape(rows)}")
        panels = lambda: (rows[part] for part in spans(len(rows), PANEL))  # noqa: E731
    with on.working():
        return solve_panels(on, panels, Y, ridge, weights=weights, criterion=criterion)


def solve_panels(
    on: Algebra,
    panels: Panels,
    Y: Any,
    ridge: float | str,
    *,
    weights: Any = None,
    criterion: Criterion = "squared error",
    scale: float | None = None,
) -> PrimalSolution:
    """As `solve_primal`. "loo" tries ridges relative to `scale`, by default the mean squared length of rows."""
    fixed = fixed_ridge(ridge)
    if fixed == 0:
        raise ParameterError(
            "features and landmarks need a ridge above 0; for a ridge of 0 use solve_ridge on all rows"
        )
    targets = check_targets(Y, len(Y))
    check_criterion(criterion, targets)
    moments = _Moments.of(on, panels, targets.reshape(len(targets), -1), weights)
    scale = (moments.scale if scale is None else scale) or 1.0
    grid = scale * 10.0**DECADES if fixed is None else np.array([fixed])
    grid = grid[grid > rounding(len(moments.vectors)) * moments.largest]
    if not grid.size:
        raise NotPositiveDefinite(f"ridge={ridge} is lost in rounding errors of the kernel; use a larger one")
    predictions = moments.leave_one_out(grid).reshape(len(grid), *targets.shape)
    place = min(range(len(grid)), key=lambda at: rank(criterion, targets, predictions[at], moments.weights))
    coefficients = moments.coefficients(float(grid[place])).reshape(-1, *targets.shape[1:])
    return PrimalSolution(float(grid[place]), coefficients, predictions[place])


@dataclass(frozen=True, eq=False)
class _Moments:
    """The eigendecomposition `F' W F = V E V'` with the weights W, and `V' F' W Y`."""

    on: Algebra
    panels: Panels
    targets: Array  # (n, columns)
    weights: Array
    values: Any  # E, ascending
    vectors: Any  # V
    projected: Any  # V' F' W Y
    scale: float  # mean squared length of a row

    @classmethod
    def of(cls, on: Algebra, panels: Panels, targets: Array, weights: Any) -> _Moments:
        count = len(targets)
        scales = np.ones(count) if weights is None else as_numbers(weights, "weights").astype(np.float64)
        if scales.shape != (count,) or not (np.isfinite(scales).all() and (scales >= 0).all() and scales.any()):
            raise InputError(f"weights must be {count} finite numbers of at least 0, and not all 0")
        total: Any = None
        products: Any = 0.0
        squares = 0.0
        for part, rows in _parts(on, panels, count):
            own = on.upload(scales[part])[:, None]
            total = on.add_square(total, rows * on.xp.sqrt(own))
            products += rows.T @ (own * on.upload(targets[part]))
            squares += float(on.xp.square(rows).sum())
        values, vectors = on.eigen(on.fill(total))
        return cls(on, panels, targets, scales, values, vectors, vectors.T @ products, squares / count)

    @property
    def largest(self) -> float:
        return float(self.values[-1])

    def leave_one_out(self, ridges: Array) -> Array:
        """Leave-one-out predictions, (ridges, n, columns), by a second pass over the rows."""
        on, found = self.on, np.empty((len(ridges), *self.targets.shape))
        inverses = 1 / (self.values[:, None] + on.upload(ridges))
        for part, rows in _parts(on, self.panels, len(self.targets)):
            turned = rows @ self.vectors
            shares = self.weights[part, None] * on.download(on.xp.square(turned) @ inverses)
            for place in range(len(ridges)):
                fitted = on.download(turned @ (self.projected * inverses[:, place, None]))
                residuals = (self.targets[part] - fitted) / np.maximum(1 - shares[:, place], EPSILON)[:, None]
                found[place, part] = self.targets[part] - residuals
        return found

    def coefficients(self, ridge: float) -> Array:
        found: Array = self.on.download(self.vectors @ (self.projected / (self.values + ridge)[:, None]))
        return found


def _parts(on: Algebra, panels: Panels, count: int) -> Iterator[tuple[slice, Any]]:
    """Yield panels with their slices of rows, in float64 on the device; raises unless they have `count` rows in all."""
    start = 0
    for panel in panels():
        rows = bring(on, panel, "features")
        if start + len(rows) > count:
            raise InputError(f"there are more rows of features than the {count} targets")
        yield slice(start, start + len(rows)), rows
        start += len(rows)
    if start < count:
        raise InputError(f"there are {start} rows of features, but {count} targets")
