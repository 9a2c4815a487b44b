"""Conjugate gradients for matrices beyond memory: `(K + ridge I) alpha = Y` from products with K alone.

A product reads every tile of a store once, and serves all columns of Y. The number of products goes with the square
root of the condition number, which a Nyström preconditioner brings down: it treats the leading eigenvectors, estimated
from some columns of K, exactly. Vectors and preconditioner are here or, in blocks of rows, on the workers of a cluster.
Progress is kept in a checkpoint, from which a run that was stopped goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..errors import InputError, NotPositiveDefinite, ParameterError, TangentlessError
from ..files import Arrays, Header, load_archive, save_archive
from ..gram.files import Options, find_files
from .blocked import EPSILON
from .checks import check_ridge, check_targets
from .matrices import as_numbers, check_kernel, is_stored
from .nystroem import choose_landmarks, factor_corner
from .spread import Blocks, Here, Spread, find_place, is_dask

Array = NDArray[np.float64]

_RESTARTS = 3
_NEGLIGIBLE = 1e-3  # of the error on held-out rows: an improvement of less is none
_FORMAT, _VERSION = "tangentless conjugate gradients", 2
_PARTS = ("found", "missing", "direction")


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
    scheduler: Any = None,
    storage_options: Options | None = None,
) -> ConjugateSolution:
    """Solve `(K + ridge I) alpha = Y` by preconditioned conjugate gradients, to a relative residual of `tolerance`.

    K is a matrix in a store, a `dask.array` (its products then run where Dask runs, on a cluster too), or an array. The
    preconditioner takes memory for 3 n `landmarks` numbers and one more pass over K; more of them, up to the number
    of eigenvalues above the ridge, mean fewer steps. `scheduler` is that of a Dask cluster whose workers see the store:
    they keep the vectors, and the preconditioner is spread over them. `checkpoint` names a file, or an address with
    `storage_options`, that is written every `checkpoint_seconds` and continued from if it is there. With `held_out`,
    the kernel of rows that were left out with those of K, (m, n), and their targets, a run also ends when it predicts
    these no better for `patience` steps.
    Otherwise it is the solution of `solve_ridge`, without leave-one-out.

    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> K, Y = np.exp(X @ X.T / 8), X[:, 0]
    >>> solution = solve_conjugate(K, Y, ridge=0.1, landmarks=20)
    >>> bool(np.linalg.norm(K @ solution.coefficients + 0.1 * solution.coefficients - Y) < 1e-7)
    True
    """
    ridge = check_ridge(ridge)
    matrix = K if is_dask(K) else check_kernel(K)
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise InputError(f"K must be a square matrix, (n, n), but its shape is {matrix.shape}")
    rows = matrix.shape[0]
    targets = check_targets(Y, rows)
    _check_options(ridge, tolerance, landmarks, most_steps, rows)
    values = targets.reshape(rows, -1)
    with find_place(matrix, scheduler) as place:
        precondition = _preconditioner(place, rows, ridge, landmarks, seed)
        system = _System(place, ridge, place.put(values), np.linalg.norm(values, axis=0), precondition)
        checksum = hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
        name = f"{values.shape} {ridge!r} {landmarks} {seed} {checksum}"
        journal = _Journal(checkpoint, storage_options, checkpoint_seconds, name, _name_of(matrix), place)
        judge = None if held_out is None else _Judge.of(held_out, values.shape, patience, place)
        state = journal.load(values.shape) or system.begin(None)
        for _ in range(_RESTARTS):
            _descend(system, state, tolerance, most_steps, journal, judge, progress)
            residual = system.relative(system.residual(state.found))
            if residual <= tolerance or (judge is not None and judge.is_settled):
                return ConjugateSolution(place.get(state.found).reshape(targets.shape), residual, state.number)
            # Rounding has parted what is missing from its running value.
            state = system.begin(state.found, state.number)
    raise NotConverged(f"float64 reaches a residual of {residual:.1e} here, not {tolerance:g}; use a larger ridge")


@dataclass
class _State:
    """Conjugate gradients of every column by itself, with one product for all; everything that the next step needs."""

    number: int
    found: Blocks
    missing: Blocks
    direction: Blocks
    sizes: Array  # of what is missing, in the norm of the preconditioner


@dataclass(frozen=True)
class _System:
    """The equations and their preconditioner."""

    place: Here | Spread
    ridge: float
    values: Blocks
    lengths: Array  # of the columns of Y
    precondition: Callable[[Blocks], Blocks]

    def apply(self, vector: Blocks) -> Blocks:
        return self.place.each(add, self.place.product(vector), vector, factor=self.ridge)

    def residual(self, found: Blocks) -> Blocks:
        return self.place.each(add, self.values, self.apply(found), factor=-1.0)

    def relative(self, missing: Blocks) -> float:
        """The largest length of a column of what is missing, relative to that of Y."""
        lengths = np.sqrt(self.place.total(dots, missing, missing))
        return float((lengths / np.where(self.lengths > 0, self.lengths, 1.0)).max())

    def begin(self, found: Blocks | None, number: int = 0) -> _State:
        missing = self.values if found is None else self.residual(found)
        found = self.place.each(np.zeros_like, self.values) if found is None else found
        direction = self.precondition(missing)
        return _State(number, found, missing, direction, self.place.total(dots, missing, direction))

    def advance(self, state: _State) -> None:
        """One step: along the direction to where the error is smallest, then to a direction conjugate to it."""
        image = self.apply(state.direction)
        curvature = self.place.total(dots, state.direction, image)
        active = state.sizes > 0
        if (curvature[active] <= 0).any():
            raise NotPositiveDefinite(
                "K + ridge I is not positive definite: it turned a vector to the other side; use a larger ridge, "
                "at least as large as the errors of the entries of K times the root of its rows"
            )
        stride = np.where(active, state.sizes / np.where(active, curvature, 1.0), 0.0)
        state.found = self.place.each(add, state.found, state.direction, factor=stride)
        state.missing = self.place.each(add, state.missing, image, factor=-stride)
        step = self.precondition(state.missing)
        sizes = self.place.total(dots, state.missing, step)
        ratio = np.where(active, sizes / np.where(active, state.sizes, 1.0), 0.0)
        state.direction = self.place.each(add, step, state.direction, factor=ratio)
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

    place: Here | Spread
    kernel: Blocks  # (n, m)
    targets: Array
    patience: int
    best: float = math.inf
    waited: int = 0

    @classmethod
    def of(cls, held_out: tuple[Any, Any], shape: tuple[int, ...], patience: int, place: Here | Spread) -> _Judge:
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
        return cls(place, place.put(np.ascontiguousarray(kernel.T)), targets, patience)

    @property
    def is_settled(self) -> bool:
        return self.waited >= self.patience

    def look(self, found: Blocks) -> float:
        error = float(np.mean(np.square(self.place.total(products, self.kernel, found) - self.targets)))
        self.waited = 0 if error < (1 - _NEGLIGIBLE) * self.best else self.waited + 1
        self.best = min(error, self.best)
        return error


@dataclass
class _Journal:
    """The checkpoint of a run, where there is one; it belongs to a system and to a matrix."""

    address: str | Path | None
    options: Options | None
    seconds: float
    name: str
    matrix: str
    place: Here | Spread
    saved: float = field(default_factory=time.monotonic)

    def save_if_due(self, state: _State) -> None:
        if time.monotonic() - self.saved >= self.seconds:
            self.save(state)

    def save(self, state: _State) -> None:
        if self.address is None:
            return
        header = {"name": self.name, "number": state.number, "matrix": self.matrix}
        arrays = {part: self.place.get(getattr(state, part)) for part in _PARTS} | {"sizes": state.sizes}
        with _local_copy(self.address, self.options, read=False) as path:
            save_archive(path, _FORMAT, _VERSION, header, arrays)
        self.saved = time.monotonic()

    def load(self, shape: tuple[int, ...]) -> _State | None:
        if self.address is None:
            return None
        with _local_copy(self.address, self.options, read=True) as path:
            if not path.exists():
                return None
            header, arrays = load_archive(path, _FORMAT, _VERSION, old=_header_of_version_1)
        if header.get("name") != self.name or header.get("matrix", self.matrix) != self.matrix:
            raise InputError(f"{self.address} is the checkpoint of another system; name another file, or remove it")
        for part in (*_PARTS, "sizes"):
            array = arrays.get(part)
            expected = shape[1:] if part == "sizes" else shape
            if array is None or array.shape != expected or not np.isfinite(array).all():
                raise InputError(f"{self.address} is not a whole checkpoint; remove it to start again")
        found, missing, direction = (self.place.put(arrays[part]) for part in _PARTS)
        return _State(int(header["number"]), found, missing, direction, arrays["sizes"])


@contextlib.contextmanager
def _local_copy(address: str | Path, options: Options | None, *, read: bool) -> Iterator[Path]:
    """The path of a checkpoint; of one at an address of fsspec, that of a copy, fetched before or sent after."""
    folder, _, name = str(address).rpartition("/")
    if "://" not in folder:
        yield Path(address)
        return
    files = find_files(folder, options)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, name)
        if read:
            with contextlib.suppress(FileNotFoundError):
                path.write_bytes(files.read(name))
        yield path
        if not read:
            files.write(name, path.read_bytes())


def _name_of(matrix: Any) -> str:
    """What tells a matrix from others: of one in a store, the checksum of its manifest."""
    if is_stored(matrix):
        return str(replace(matrix.manifest, bits=()).to_json()["checksum"])
    if is_dask(matrix):
        return str(matrix.name)
    return hashlib.sha256(np.ascontiguousarray(matrix[0]).data).hexdigest()


def _header_of_version_1(arrays: Arrays) -> Header:
    """What version 0.1.0 of this package wrote had its name and number among the arrays."""
    name, number = arrays.pop("name", None), arrays.pop("number", None)
    if name is None or number is None or number.shape != ():
        raise InputError("it is not a checkpoint of conjugate gradients")
    return {"name": str(name), "number": int(number)}


def _preconditioner(
    place: Here | Spread, rows: int, ridge: float, landmarks: int, seed: int
) -> Callable[[Blocks], Blocks]:
    """The inverse of ridge I + the Nyström approximation of K, up to scale: identity but for leading directions.

    The approximation is `A A'` with `A = C L'^-1`, for columns C of K and the factor L of their corner. Its eigenvalues
    are those of the small matrix `A'A`, to which every block of rows adds a part. Those within rounding errors are left
    out.
    """
    if landmarks == 0:
        return lambda missing: missing
    chosen = choose_landmarks(rows, landmarks, seed=seed)
    columns = place.columns(chosen)
    factor, shift = factor_corner(place.rows(columns, chosen), rows)
    roots = place.each(divide, columns, factor=factor)
    values, vectors = np.linalg.eigh(place.total(products, roots, roots))
    kept = values > rows * EPSILON * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    directions = place.each(times, roots, matrix=vectors / np.sqrt(values))
    eigenvalues = np.maximum(values - shift, 0.0)
    scales = (eigenvalues[0] + ridge) / (eigenvalues + ridge) - 1

    def precondition(missing: Blocks) -> Blocks:
        weights = place.kept_total(products, directions, missing)
        return place.each(correct, missing, directions, weights=weights, scales=scales)

    return precondition


# What is done to blocks


def add(one: Array, other: Array, factor: Any) -> Array:
    """one + factor * other."""
    return np.asarray(one + factor * other)


def dots(one: Array, other: Array) -> Array:
    """The inner products of columns."""
    return np.asarray(np.sum(one * other, axis=0))


def products(one: Array, other: Array) -> Array:
    """All inner products between columns."""
    return np.asarray(one.T @ other)


def times(one: Array, matrix: Array) -> Array:
    """one @ matrix."""
    return np.asarray(one @ matrix)


def divide(columns: Array, factor: Array) -> Array:
    """The columns times the inverse of the transposed factor."""
    divided: Array = np.ascontiguousarray(solve_triangular(factor, columns.T, lower=True).T)
    return divided


def correct(missing: Array, directions: Array, weights: Array, scales: Array) -> Array:
    """What is missing, with its parts along some directions scaled."""
    return np.asarray(missing + directions @ (scales[:, None] * weights))


def _seconds_left(first: float, residual: float, tolerance: float, seconds: float) -> float:
    """The trend since this run began, in logarithms, tells how many steps are to come."""
    if residual <= tolerance:
        return 0.0
    gained = math.log(first / residual)
    return math.log(residual / tolerance) / gained * seconds if gained > 0 else math.inf


def _check_options(ridge: float, tolerance: float, landmarks: int, most_steps: int, rows: int) -> None:
    if ridge == 0:
        raise ParameterError("conjugate gradients need a ridge above 0; without one use solve_ridge")
    if not 0 < tolerance < 1:
        raise ParameterError(f"tolerance must lie between 0 and 1, not {tolerance!r}")
    if not 0 <= int(as_numbers(landmarks, "landmarks")) <= rows:
        raise ParameterError(f"landmarks must be a number from 0 to the {rows} rows of K, not {landmarks!r}")
    if most_steps < 1:
        raise ParameterError(f"most_steps must be at least 1, not {most_steps!r}")
