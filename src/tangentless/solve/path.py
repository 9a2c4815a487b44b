"""A path of ridges, scored by leave-one-out from one eigendecomposition.

With `K = V E V'`, `Q = (K + ridge I)^-1 = V (E + ridge I)^-1 V'` for every ridge, so coefficients and the diagonal of Q
are products with V, which cost n^2 each. The eigendecomposition takes the time of about ten Cholesky factorisations
with leave-one-out, and the memory of four matrices, so it pays from a dozen ridges on.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..devices import Device
from ..errors import NotPositiveDefinite, ParameterError
from .blocked import rounding
from .checks import check_ridge, check_targets, check_weights
from .matrices import check_fits, check_kernel, load, memory_needed, receive
from .scores import accuracy, log_density, log_likelihood, squared_error

Array = NDArray[np.float64]
PathCriterion = Literal["squared error", "accuracy", "marginal likelihood"]

_LARGEST = 32_766  # rows: LAPACK's eigensolver counts its workspace of 2 n^2 numbers in 32 bits
DECADES = np.arange(-40, 13) / 4  # log10 of the default ridges relative to the mean of the diagonal: 1e-10 to 1e3
_MATRICES = 4  # in memory at once: the eigenvectors, LAPACK's workspace of two, and the squared eigenvectors


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Leave-one-out scores at each ridge. Errors are infinite where `K + ridge I` is not positive definite.

    `accuracies` exist for one-hot targets, otherwise they are None. `log_likelihoods` are those of a Gaussian process
    with the covariance `scale (K + ridge I)`, at the best scale. `conditions` are condition numbers of `K + ridge I`.
    """

    ridges: Array
    squared_errors: Array
    accuracies: Array | None
    log_likelihoods: Array
    conditions: Array

    def best(self, criterion: PathCriterion = "squared error") -> float:
        """The best ridge by a criterion."""
        return float(self.ridges[self.place(criterion)])

    def place(self, criterion: PathCriterion = "squared error") -> int:
        """The index of the best ridge; among equal accuracies, that of the smallest squared error."""
        return min(range(len(self.ridges)), key=lambda at: self.rank(criterion, at))

    def rank(self, criterion: PathCriterion, at: int) -> tuple[float, float]:
        """A sort key of the ridge with index `at`; better ridges have smaller keys."""
        first = 0.0
        if criterion == "marginal likelihood":
            first = -float(self.log_likelihoods[at])
        elif criterion == "accuracy" and self.accuracies is not None:
            first = -float(self.accuracies[at])
        return first, float(self.squared_errors[at])


def ridge_path(K: Any, Y: Any, ridges: Any = None, *, weights: Any = None, backend: str | Device = "auto") -> RidgePath:
    """Score ridges by leave-one-out, by default 0 and quarters of decades from 1e-10 to 1e3 of the mean of diag(K).

    `weights` and `backend` are as for `solve_ridge`.

    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> path = ridge_path(X @ X.T, X[:, 0] + np.random.default_rng(1).standard_normal(50), [0.1, 1.0, 10.0, 1000.0])
    >>> path.best()
    1.0
    """
    on, matrix, _ = receive(K, backend)
    with on.working():
        matrix = check_kernel(matrix)
        targets, scales = check_targets(Y, len(matrix)), check_weights(weights, len(matrix))
        return score_path(on, matrix, targets, ridges, scales)


def score_path(on: Algebra, matrix: Any, targets: Array, ridges: Any, weights: Array | None) -> RidgePath:
    """As `ridge_path`, for checked arguments."""
    spectrum = Spectrum.of(on, matrix, targets, weights)
    grid = spectrum.default_ridges if ridges is None else _check_ridges(ridges)
    usable = spectrum.usable(grid)
    if not usable.any():
        values = spectrum.values
        raise NotPositiveDefinite(
            f"K + ridge I is not positive definite at any ridge of the path: the smallest eigenvalue is "
            f"{values[0]:.2g}, the largest ridge {grid.max():g}; try larger ones, from {_remedy(values):.0e} on"
        )
    errors, accuracies, likelihoods = np.full(len(grid), np.inf), np.zeros(len(grid)), np.full(len(grid), -np.inf)
    one_hot = _is_one_hot(targets)
    inverse_diagonals = spectrum.inverse_diagonals(np.where(usable, grid, np.inf))
    for place in np.flatnonzero(usable):
        left_out = spectrum.targets - spectrum.residuals(grid[place], inverse_diagonals[:, place])
        errors[place] = squared_error(spectrum.targets, left_out, weights)
        likelihoods[place] = spectrum.log_likelihood(grid[place])
        if one_hot:
            accuracies[place] = accuracy(spectrum.targets, left_out, weights)
    smallest, largest = spectrum.values[[0, -1]]
    conditions = np.where(usable, (largest + grid) / np.where(usable, smallest + grid, 1.0), np.inf)
    return RidgePath(grid, errors, accuracies if one_hot else None, likelihoods, conditions)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The eigendecomposition of K, or with weights w of `diag(w)^1/2 K diag(w)^1/2`, and the projected targets."""

    on: Algebra
    values: Array  # ascending
    vectors: Any
    targets: Array  # (n, columns)
    projected: Any  # V' diag(w)^1/2 Y
    roots: Array  # w^1/2
    default_ridges: Array

    @classmethod
    def of(cls, on: Algebra, matrix: Any, targets: Array, weights: Array | None = None) -> Spectrum:
        """Decompose a matrix; the arguments are checked already."""
        rows = len(matrix)
        _check_size(on, rows)
        work = load(on, matrix, 1, overwrite=False)
        default = np.concatenate([[0.0], (float(work.diagonal().mean()) or 1.0) * 10.0**DECADES])
        roots = np.ones(rows) if weights is None else np.sqrt(weights)
        scales, columns = on.xp.asarray(roots), targets.reshape(rows, -1)
        work *= scales[:, None]
        work *= scales
        values, vectors = on.eigen(work)
        projected = on.product(vectors.T, on.xp.asarray(roots[:, None] * columns))
        return cls(on, on.download(values), vectors, columns, projected, roots, default)

    def usable(self, ridges: Array) -> NDArray[np.bool_]:
        """Whether the smallest eigenvalue is positive beyond rounding errors, at each ridge."""
        return np.asarray(self.values[0] + ridges > rounding(len(self.values)) * (self.values[-1] + ridges))

    def inverse_diagonals(self, ridges: Array) -> Array:
        """The diagonal of Q at each ridge, (n, ridges)."""
        inverses = 1 / (self.values[:, None] + ridges)
        found: Array = self.on.download(self.on.product(self.vectors**2, self.on.xp.asarray(inverses)))
        return found

    def residuals(self, ridge: float, inverse_diagonal: Array) -> Array:
        """Targets less their leave-one-out predictions, (n, columns); `inverse_diagonal` is the diagonal of Q."""
        inverses = self.on.xp.asarray(1 / (self.values + ridge))
        alpha = self.on.download(self.on.product(self.vectors, self.projected * inverses[:, None]))
        return np.asarray(alpha / (self.roots * inverse_diagonal)[:, None])

    def misfits(self, ridge: float) -> Array:
        """`y' Q y` of each column y of the targets."""
        return np.asarray((self._squares / (self.values + ridge)[:, None]).sum(axis=0))

    def log_likelihood(self, ridge: float, scale: float | None = None) -> float:
        """The log-likelihood for the covariance `scale (K + ridge I)`, by default at the best scale of each target."""
        rows, misfits = len(self.values), self.misfits(ridge)
        scales = self._scales(misfits, scale)
        some = scales > 0  # the best scale of a target that is zero in all rows is 0: such targets are left out
        if not some.any():
            return -math.inf
        determinant = float(np.log(self.values + ridge).sum() - 2 * np.log(self.roots).sum())
        return log_likelihood(misfits[some], determinant, rows, scales[some])

    def log_density(self, ridge: float, scale: float | None = None) -> float:
        """The log-density of the targets under their leave-one-out predictions, with the same scales."""
        inverse_diagonal = self.inverse_diagonals(np.array([ridge]))[:, 0]
        scales = self._scales(self.misfits(ridge), scale)
        some = scales > 0
        residuals = self.residuals(ridge, inverse_diagonal)[:, some]
        return log_density(residuals, inverse_diagonal, scales[some]) if some.any() else -math.inf

    def _scales(self, misfits: Array, scale: float | None) -> Array:
        """The given scale for every target, or the one of the largest likelihood, `y' Q y / n`."""
        return misfits / len(self.values) if scale is None else np.full(len(misfits), scale)

    @functools.cached_property
    def _squares(self) -> Array:
        return np.asarray(self.on.download(self.projected)) ** 2


def _remedy(values: Array) -> float:
    """A ridge above rounding errors, and above twice the size of a negative smallest eigenvalue."""
    return float(max(-2 * values[0], 10 * rounding(len(values)) * abs(values[-1]))) or 1.0


def _is_one_hot(targets: Array) -> bool:
    if targets.ndim != 2 or targets.shape[1] < 2:
        return False
    return bool(((targets == targets.max(axis=1, keepdims=True)).sum(axis=1) == 1).all())


def _check_size(on: Algebra, rows: int) -> None:
    instead = "score a few ridges one at a time with solve_ridge"
    if rows > _LARGEST:
        raise ParameterError(f"a path of ridges takes at most {_LARGEST:,} rows, not {rows:,}; {instead}")
    check_fits(memory_needed(rows, matrices=_MATRICES), on.free_bytes(), f"a path of ridges for {rows:,} rows", instead)


def _check_ridges(ridges: Any) -> Array:
    grid = np.array([check_ridge(ridge) for ridge in np.atleast_1d(np.asarray(ridges, dtype=object)).ravel()])
    if not grid.size:
        raise ParameterError("ridges is empty; a path needs at least one ridge")
    return grid
