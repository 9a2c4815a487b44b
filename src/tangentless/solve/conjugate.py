"""Conjugate gradients for matrices beyond memory: `(K + ridge I) alpha = Y` from products with K alone.

A product reads every tile of a store once, a panel of tiles at a time, and serves all columns of Y. The number of
products goes with the square root of the condition number, which a Nyström preconditioner brings down: it treats the
leading eigenvectors, estimated from some columns of K, exactly. Progress is kept in a checkpoint, from which a run that
was stopped goes on with the same numbers.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, svd

from ..chunks import spans
from ..errors import InputError, NotPositiveDefinite, ParameterError, TangentlessError
from ..files import Arrays, Header, load_archive, save_archive
from .checks import check_ridge, check_targets
from .matrices import as_numbers, check_kernel, is_stored
from .nystroem import choose_landmarks, factor_corner

Array = NDArray[np.float64]

_RESTARTS = 3
_NEGLIGIBLE = 1e-3  # of the error on held-out rows: an improvement of less is none
_FORMAT, _VERSION = "tangentless conjugate gradients", 2
_PARTS = ("found", "missing", "direction", "sizes")


class NotConverged(TangentlessError, RuntimeError):  # noqa: N818 (what happened, as NotPositiveDefinite)
    """Conjugate gradients that did not reach their tolerance in the steps they were given."""


@dataclass(frozen=True)
class Step:
    """How far a run is: the largest relative residual of a column, seconds so far and, by the trend, to come.

    `held_out_error` is the mean squared error on rows that were held out, NaN where none were.
    """

    number: int
    residual: float
    seconds: float
    seconds_left: float
    held_out_error: float = math.nan


@dataclass(frozen=True, eq=False)
class ConjugateSolution:
    """Coefficients of the shape of Y, the largest residual `|(K + ridge I) alpha - Y| / |Y|` of a column, and steps."""

    coefficients: Array
    residual: float
    steps: int


def solve_conjugate(
    K: Any,
    Y: Any,
    ridge: float,
    *,
    tolerance: float = 1e-8,
    landmarks: int = 500,
    most_steps: int = 1000,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    held_out: tuple[Any, Any] | None = None,
    patience: int = 10,
    progress: Callable[[Step], None] | None = None,
    seed: int = 0,
) -> ConjugateSolution:
    """Solve `(K + ridge I) alpha = Y` by preconditioned conjugate gradients, to a relative residual of `tolerance`.

    K is a matrix in a store, a `dask.array` (its products then run where Dask runs, on a cluster too), or an array. The
    preconditioner takes memory for 3 n `landmarks` numbers and one more pass over K; more of them, up to the number
    of eigenvalues above the ridge, mean fewer steps. `checkpoint` names a file that is written every
    `checkpoint_seconds` and continued from if it is there. With `held_out`, the kernel of rows that were left out with
    those of K, (m, n), and their targets, a run also ends when it predicts these no better for `patience` steps.
    Otherwise it is the solution of `solve_ridge`, without leave-one-out.

    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> K, Y = np.exp(X @ X.T / 8), X[:, 0]
    >>> solution = solve_conjugate(K, Y, ridge=0.1, landmarks=20)
    >>> bool(np.linalg.norm(K @ solution.coefficients + 0.1 * solution.coefficients - Y) < 1e-7)
    True
    """
    ridge = check_ridge(ridge)
    matrix = K if _is_dask(K) else check_kernel(K)
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise InputError(f"K must be a square matrix, (n, n), but its shape is {matrix.shape}")
    rows = matrix.shape[0]
    targets = check_targets(Y, rows)
    _check_options(ridge, tolerance, landmarks, most_steps, rows)
    values = targets.reshape(rows, -1)
    system = _System(matrix, ridge, values, _preconditioner(matrix, ridge, landmarks, seed))
    place = None if checkpoint is None else Path(checkpoint)
    journal = _Journal(place, checkpoint_seconds, system.name(landmarks, seed))
    judge = None if held_out is None else _Judge.of(held_out, values.shape, patience)
    state = journal.load(values.shape) or system.begin(np.zeros_like(values))
    for _ in range(_RESTARTS):
        _descend(system, state, tolerance, most_steps, journal, judge, progress)
        residual = system.relative(system.residual(state.found))
        if residual <= tolerance or (judge is not None and judge.is_settled):
            return ConjugateSolution(state.found.reshape(targets.shape), residual, state.number)
        state = system.begin(state.found, state.number)  # rounding has parted what is missing from its running value
    raise NotConverged(f"float64 reaches a residual of {residual:.1e} here, not {tolerance:g}; use a larger ridge")


def multiply(K: Any, vectors: Array) -> Array:
    """K @ vectors, (n, k), a panel of tiles at a time.

    >>> multiply(np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones((2, 1))).ravel()
    array([3., 4.])
    """
    if _is_dask(K):
        return np.asarray((K @ vectors).compute())
    if not is_stored(K):
        return np.asarray(K @ vectors)
    product = np.zeros_like(vectors)
    for part in spans(len(K), K.manifest.tile):  # of a symmetric matrix, every tile is read once
        panel = K[part, part.start :]
        product[part] += panel @ vectors[part.start :]
        beyond = panel[:, part.stop - part.start :]
        product[part.stop :] += beyond.T @ vectors[part]
    return product


@dataclass
class _State:
    """Conjugate gradients of every column by itself, with one product for all; everything that the next step needs."""

    number: int
    found: Array
    missing: Array
    direction: Array
    sizes: Array  # of what is missing, in the norm of the preconditioner


@dataclass(frozen=True)
class _System:
    """The equations and their preconditioner."""

    matrix: Any
    ridge: float
    values: Array
    precondition: Callable[[Array], Array]

    def name(self, landmarks: int, seed: int) -> str:
        """What a checkpoint belongs to."""
        checksum = hashlib.sha256(np.ascontiguousarray(self.values).data).hexdigest()
        return f"{self.values.shape} {self.ridge!r} {landmarks} {seed} {checksum}"

    def apply(self, vectors: Array) -> Array:
        return multiply(self.matrix, vectors) + self.ridge * vectors

    def residual(self, found: Array) -> Array:
        return self.values - self.apply(found)

    def relative(self, missing: Array) -> float:
        """The largest length of a column of what is missing, relative to that of Y."""
        lengths = np.linalg.norm(self.values, axis=0)
        return float((np.linalg.norm(missing, axis=0) / np.where(lengths > 0, lengths, 1.0)).max())

    def begin(self, found: Array, number: int = 0) -> _State:
        missing = self.residual(found) if found.any() else self.values.copy()
        direction = self.precondition(missing)
        return _State(number, found, missing, direction, np.sum(missing * direction, axis=0))

    def advance(self, state: _State) -> None:
        """One step: along the direction to where the error is smallest, then to a direction conjugate to it."""
        image = self.apply(state.direction)
        curvature = np.sum(state.direction * image, axis=0)
        active = state.sizes > 0
        if (curvature[active] <= 0).any():
            raise NotPositiveDefinite(
                "K + ridge I is not positive definite: it turned a vector to the other side; use a larger ridge, "
                "at least as large as the errors of the entries of K times the root of its rows"
            )
        stride = np.where(active, state.sizes / np.where(active, curvature, 1.0), 0.0)
        state.found += stride * state.direction
        state.missing -= stride * image
        step = self.precondition(state.missing)
        sizes = np.sum(state.missing * step, axis=0)
        state.direction = step + np.where(active, sizes / np.where(active, state.sizes, 1.0), 0.0) * state.direction
        state.sizes = sizes
        state.number += 1


def _descend(
    system: _System,
    state: _State,
    tolerance: float,
    most_steps: int,
    journal: _Journal,
    judge: _Judge | None,
    progress: Callable[[Step], None] | None,
) -> None:
    begun, first = time.monotonic(), system.relative(state.missing)
    residual = first
    while residual > tolerance:
        if state.number >= most_steps:
            journal.save(state)
            raise NotConverged(
                f"after {state.number} steps the residual is {residual:.1e}, not {tolerance:g}; "
                "use more landmarks, a larger ridge, or more steps"
            )
        system.advance(state)
        journal.save_if_due(state)
        residual = system.relative(state.missing)
        error = math.nan if judge is None else judge.look(state.found)
        if progress is not None:
            seconds = time.monotonic() - begun
            progress(Step(state.number, residual, seconds, _seconds_left(first, residual, tolerance, seconds), error))
        if judge is not None and judge.is_settled:
            return


@dataclass
class _Judge:
    """Rows that were held out, and for how many steps they have not been predicted better."""

    kernel: Array
    targets: Array
    patience: int
    best: float = math.inf
    waited: int = 0

    @classmethod
    def of(cls, held_out: tuple[Any, Any], shape: tuple[int, ...], patience: int) -> _Judge:
        kernel = as_numbers(held_out[0], "the kernel of held_out")
        targets = as_numbers(held_out[1], "the targets of held_out").astype(np.float64)
        targets = targets.reshape(len(targets), -1)
        if kernel.shape != (len(targets), shape[0]) or targets.shape[1] != shape[1]:
            raise InputError(
                f"held_out is a kernel of shape (m, {shape[0]}) and targets of shape (m, {shape[1]}), "
                f"not {kernel.shape} and {targets.shape}"
            )
        if patience < 1:
            raise ParameterError(f"patience must be at least 1 step, not {patience!r}")
        return cls(kernel, targets, patience)

    @property
    def is_settled(self) -> bool:
        return self.waited >= self.patience

    def look(self, found: Array) -> float:
        error = float(np.mean(np.square(self.kernel @ found - self.targets)))
        self.waited = 0 if error < (1 - _NEGLIGIBLE) * self.best else self.waited + 1
        self.best = min(error, self.best)
        return error


@dataclass
class _Journal:
    """The checkpoint of a run, where there is one."""

    path: Path | None
    seconds: float
    name: str
    saved: float = field(default_factory=time.monotonic)

    def save_if_due(self, state: _State) -> None:
        if time.monotonic() - self.saved >= self.seconds:
            self.save(state)

    def save(self, state: _State) -> None:
        if self.path is None:
            return
        header = {"name": self.name, "number": state.number}
        save_archive(self.path, _FORMAT, _VERSION, header, {part: getattr(state, part) for part in _PARTS})
        self.saved = time.monotonic()

    def load(self, shape: tuple[int, ...]) -> _State | None:
        if self.path is None or not self.path.exists():
            return None
        header, arrays = load_archive(self.path, _FORMAT, _VERSION, old=_header_of_version_1)
        if header.get("name") != self.name:
            raise InputError(f"{self.path} is the checkpoint of another system; name another file, or remove it")
        for part in _PARTS:
            array = arrays.get(part)
            expected = shape[1:] if part == "sizes" else shape
            if array is None or array.shape != expected or not np.isfinite(array).all():
                raise InputError(f"{self.path} is not a whole checkpoint; remove it to start again")
        return _State(int(header["number"]), *(arrays[part] for part in _PARTS))


def _header_of_version_1(arrays: Arrays) -> Header:
    """What version 0.1.0 of this package wrote had its name and number among the arrays."""
    name, number = arrays.pop("name", None), arrays.pop("number", None)
    if name is None or number is None or number.shape != ():
        raise InputError("it is not a checkpoint of conjugate gradients")
    return {"name": str(name), "number": int(number)}


def _preconditioner(matrix: Any, ridge: float, landmarks: int, seed: int) -> Callable[[Array], Array]:
    """The inverse of ridge I + the Nyström approximation of K, up to scale: identity but for leading directions."""
    if landmarks == 0:
        return np.copy
    chosen = choose_landmarks(matrix.shape[0], landmarks, seed=seed)
    columns = matrix[:, chosen].compute() if _is_dask(matrix) else np.asarray(matrix[:, chosen], dtype=np.float64)
    values, vectors = nystroem_eigenvectors(columns, columns[chosen])
    scales = (values[-1] + ridge) / (values + ridge) - 1
    return lambda vector: vector + vectors @ (scales[:, None] * (vectors.T @ vector))


def nystroem_eigenvectors(columns: Array, corner: Array) -> tuple[Array, Array]:
    """Eigenvalues, largest first, and eigenvectors of `C W^-1 C'`, for columns C of a matrix and their rows W in it.

    >>> K = np.diag([4.0, 2.0, 0.0])
    >>> nystroem_eigenvectors(K[:, :2], K[:2, :2])[0].round(6)
    array([4., 2.])
    """
    factor, shift = factor_corner(corner, len(columns))
    vectors, roots, _ = svd(solve_triangular(factor, columns.T, lower=True).T, full_matrices=False)
    return np.maximum(roots**2 - shift, 0.0), vectors


def _seconds_left(first: float, residual: float, tolerance: float, seconds: float) -> float:
    """The trend since this run began, in logarithms, tells how many steps are to come."""
    if residual <= tolerance:
        return 0.0
    gained = math.log(first / residual)
    return math.log(residual / tolerance) / gained * seconds if gained > 0 else math.inf


def _is_dask(K: Any) -> bool:
    return type(K).__module__.partition(".")[0] == "dask"


def _check_options(ridge: float, tolerance: float, landmarks: int, most_steps: int, rows: int) -> None:
    if ridge == 0:
        raise ParameterError("conjugate gradients need a ridge above 0; without one use solve_ridge")
    if not 0 < tolerance < 1:
        raise ParameterError(f"tolerance must lie between 0 and 1, not {tolerance!r}")
    if not 0 <= int(as_numbers(landmarks, "landmarks")) <= rows:
        raise ParameterError(f"landmarks must be a number from 0 to the {rows} rows of K, not {landmarks!r}")
    if most_steps < 1:
        raise ParameterError(f"most_steps must be at least 1, not {most_steps!r}")
