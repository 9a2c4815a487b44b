"""Conjugate gradients for matrices beyond memory: `(K + ridge I) alpha = Y` from products with K alone.

A product reads every tile of a store once and serves all columns of Y. The number of products grows with the square
root of the condition number. A Nyström preconditioner lowers it: it estimates the leading eigenvectors from some
columns of K and inverts K + ridge I along them. Vectors and preconditioner are in this process, or in blocks of rows on
the workers of a cluster. A checkpoint holds the state, so that a stopped run can continue.
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
from ..layers import is_whole
from .blocked import EPSILON
from .checks import check_ridge, check_targets
from .matrices import as_numbers, check_finite, check_kernel, is_stored
from .nystroem import choose_landmarks, factor_corner
from .spread import Blocks, Place, find_place, is_dask

Array = NDArray[np.float64]

_LANDMARKS = 500
_RESTARTS = 3
_NEGLIGIBLE = 1e-3  # relative improvement of the error on held-out rows below which it counts as none
_FORMAT, _VERSION = "tangentless conjugate gradients", 2
# The arrays of a checkpoint, and the fields of `_State` that they hold.
_PARTS = {"found": "solution", "missing": "residual", "direction": "direction"}


class NotConverged(TangentlessError, RuntimeError):  # noqa: N818 (what happened, as NotPositiveDefinite)
    """Conjugate gradients that did not reach their tolerance within their steps, or within float64."""


@dataclass(frozen=True)
class Step:
    """A progress report: the largest relative residual of a column, seconds so far, and seconds left by the trend.

    `held_out_error` is the mean squared error on held-out rows, NaN without any.
    """

    number: int
    residual: float
    seconds: float
    seconds_left: float
    held_out_error: float = math.nan


@dataclass(frozen=True, eq=False)
class ConjugateSolution:
    """Coefficients of the shape of Y, the largest `|(K + ridge I) alpha - Y| / |Y|` of a column, and the steps."""

    coefficients: Array
    residual: float
    steps: int


def solve_conjugate(
    K: Any,
    Y: Any,
    ridge: float,
    *,
    tolerance: float = 1e-8,
    landmarks: int | None = None,
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

    The result is that of `solve_ridge`, without leave-one-out.

    K is a matrix in a store, an array, or a `dask.array`, whose products run where Dask runs, on a cluster too. The
    preconditioner needs memory for 3 n `landmarks` numbers and one more pass over K. More landmarks mean fewer steps,
    up to the number of eigenvalues above the ridge; by default there are 500, or n if that is less. `scheduler` is that
    of a Dask cluster whose workers can read the store; vectors and preconditioner are then spread over the workers.
    `checkpoint` is a file, or an address with `storage_options`. It is written every `checkpoint_seconds`, and a run
    continues from it if it exists. `held_out` is the kernel of m held-out rows with those of K, (m, n), and their
    targets: a run then also ends when the error of their predictions has not improved for `patience` steps.

    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> K, Y = np.exp(X @ X.T / 8), X[:, 0]
    >>> solution = solve_conjugate(K, Y, ridge=0.1)
    >>> bool(np.linalg.norm(K @ solution.coefficients + 0.1 * solution.coefficients - Y) < 1e-7)
    True
    """
    ridge = check_ridge(ridge)
    matrix = K if is_dask(K) else check_kernel(K)
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise InputError(f"K must be a square matrix, (n, n), but its shape is {matrix.shape}")
    rows = matrix.shape[0]
    landmarks = min(_LANDMARKS, rows) if landmarks is None else landmarks
    targets = check_targets(Y, rows)
    _check_options(ridge, tolerance, landmarks, most_steps, rows)
    values = targets.reshape(rows, -1)
    with find_place(matrix, scheduler) as place:
        precondition = _preconditioner(place, rows, ridge, landmarks, seed)
        system = _System(place, ridge, place.put(values), np.linalg.norm(values, axis=0), precondition)
        checksum = hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
        name = f"{values.shape} {ridge!r} {landmarks} {seed} {checksum}"
        stopping = None if held_out is None else _EarlyStopping.of(held_out, values.shape, patience, place)
        file = _CheckpointFile(checkpoint, storage_options, checkpoint_seconds, name, _name_of(matrix), place, stopping)
        state = file.load(values.shape) or system.begin(None)
        for _ in range(_RESTARTS):
            _descend(system, state, tolerance, most_steps, file, stopping, progress)
            residual = system.relative(system.residual_of(state.solution))
            if residual <= tolerance or (stopping is not None and stopping.is_due):
                return ConjugateSolution(place.get(state.solution).reshape(targets.shape), residual, state.number)
            # The residual that steps update has drifted from the true one by rounding: restart with the true one.
            state = system.begin(state.solution, state.number)
    raise NotConverged(
        f"the relative residual stays at {residual:.1e} for rounding errors of float64, above tolerance={tolerance:g}; "
        "use a larger ridge or tolerance"
    )


@dataclass
class _State:
    """What the next step needs. Every column of Y is solved by itself; one product with K serves all columns."""

    number: int  # steps so far
    solution: Blocks
    residual: Blocks  # r = Y - (K + ridge I) solution, as steps update it
    direction: Blocks
    energies: Array  # r' P r of every column, with the preconditioner P


@dataclass(frozen=True)
class _System:
    """The equations `(K + ridge I) solution = values` and their preconditioner."""

    place: Place
    ridge: float
    values: Blocks
    lengths: Array  # of the columns of Y
    precondition: Callable[[Blocks], Blocks]

    def apply(self, vector: Blocks) -> Blocks:
        return self.place.each(add, self.place.product(vector), vector, factor=self.ridge)

    def residual_of(self, solution: Blocks) -> Blocks:
        return self.place.each(add, self.values, self.apply(solution), factor=-1.0)

    def relative(self, residual: Blocks) -> float:
        """The largest length of a column of the residual, relative to that of the column of Y."""
        lengths = np.sqrt(self.place.total(dots, residual, residual))
        return float((lengths / np.where(self.lengths > 0, self.lengths, 1.0)).max())

    def begin(self, solution: Blocks | None, number: int = 0) -> _State:
        residual = self.values if solution is None else self.residual_of(solution)
        solution = self.place.each(np.zeros_like, self.values) if solution is None else solution
        direction = self.precondition(residual)
        return _State(number, solution, residual, direction, self.place.total(dots, residual, direction))

    def advance(self, state: _State) -> None:
        """One step: minimise the error along the direction, then choose a direction conjugate to it."""
        image = self.apply(state.direction)
        curvature = self.place.total(dots, state.direction, image)
        active = state.energies > 0
        if (curvature[active] <= 0).any():
            raise NotPositiveDefinite(
                "K + ridge I is not positive definite: v' (K + ridge I) v is not above 0 for some vector v; "
                "use a larger ridge, at least the errors of the entries of K times the square root of its rows"
            )
        step_length = np.where(active, state.energies / np.where(active, curvature, 1.0), 0.0)
        state.solution = self.place.each(add, state.solution, state.direction, factor=step_length)
        state.residual = self.place.each(add, state.residual, image, factor=-step_length)
        step = self.precondition(state.residual)
        energies = self.place.total(dots, state.residual, step)
        ratio = np.where(active, energies / np.where(active, state.energies, 1.0), 0.0)
        state.direction = self.place.each(add, step, state.direction, factor=ratio)
        state.energies = energies
        state.number += 1


def _descend(
    system: _System,
    state: _State,
    tolerance: float,
    most_steps: int,
    file: _CheckpointFile,
    stopping: _EarlyStopping | None,
    progress: Callable[[Step], None] | None,
) -> None:
    begun, first = time.monotonic(), system.relative(state.residual)
    residual = first
    while residual > tolerance and not (stopping is not None and stopping.is_due):
        if state.number >= most_steps:
            file.save(state)
            raise NotConverged(
                f"after {state.number} steps the residual is {residual:.1e}, not {tolerance:g}; "
                "use more landmarks, a larger ridge, or more steps"
            )
        system.advance(state)
        residual = system.relative(state.residual)
        error = math.nan if stopping is None else stopping.update(state.solution)
        file.save_if_due(state)
        if progress is not None:
            seconds = time.monotonic() - begun
            progress(Step(state.number, residual, seconds, _seconds_left(first, residual, tolerance, seconds), error))


@dataclass
class _EarlyStopping:
    """Ends a run when predictions of held-out rows have not improved for `patience` steps."""

    place: Place
    kernel: Blocks  # (n, m)
    targets: Array
    patience: int
    checksum: str  # of the rows and their targets
    best: float = math.inf
    waited: int = 0  # steps since the last improvement

    @classmethod
    def of(cls, held_out: tuple[Any, Any], shape: tuple[int, ...], patience: int, place: Place) -> _EarlyStopping:
        if not isinstance(held_out, list | tuple) or len(held_out) != 2:
            raise InputError(f"held_out is a pair, a kernel and targets, not {type(held_out).__name__}")
        kernel = as_numbers(held_out[0], "the kernel of held_out")
        targets = as_numbers(held_out[1], "the targets of held_out").astype(np.float64)
        targets = targets.reshape(len(targets) if targets.ndim else 1, -1)
        if kernel.shape != (len(targets), shape[0]) or targets.shape[1] != shape[1]:
            raise InputError(
                f"held_out is a kernel of shape (m, {shape[0]}) and targets of shape (m, {shape[1]}), "
                f"not {kernel.shape} and {targets.shape}"
            )
        check_finite(kernel, "held_out, in its kernel,")
        check_finite(targets, "held_out, in its targets,")
        if patience < 1:
            raise ParameterError(f"patience must be at least 1 step, not {patience!r}")
        checksum = hashlib.sha256(np.ascontiguousarray(kernel).data)
        checksum.update(np.ascontiguousarray(targets).data)
        return cls(place, place.put(np.ascontiguousarray(kernel.T)), targets, patience, checksum.hexdigest())

    @property
    def is_due(self) -> bool:
        return self.waited >= self.patience

    def update(self, solution: Blocks) -> float:
        """Count a step; returns the mean squared error of the held-out rows."""
        error = float(np.mean(np.square(self.place.total(products, self.kernel, solution) - self.targets)))
        self.waited = 0 if error < (1 - _NEGLIGIBLE) * self.best else self.waited + 1
        self.best = min(error, self.best)
        return error

    def to_json(self) -> Header:
        """What a checkpoint needs, so that a run which goes on from it stops where it would have."""
        return {"checksum": self.checksum, "best": self.best, "waited": self.waited}

    def go_on(self, saved: Any) -> None:
        """Take over the counts of a checkpoint, if they are of the same held-out rows."""
        if isinstance(saved, dict) and saved.get("checksum") == self.checksum:
            self.best, self.waited = float(saved["best"]), int(saved["waited"])


@dataclass
class _CheckpointFile:
    """The checkpoint of a run; without an address it does nothing. `name` and `matrix` say what it belongs to."""

    address: str | Path | None
    options: Options | None
    seconds: float
    name: str
    matrix: str
    place: Place
    stopping: _EarlyStopping | None
    saved: float = field(default_factory=time.monotonic)

    def save_if_due(self, state: _State) -> None:
        if time.monotonic() - self.saved >= self.seconds:
            self.save(state)

    def save(self, state: _State) -> None:
        if self.address is None:
            return
        header: Header = {"name": self.name, "number": state.number, "matrix": self.matrix}
        if self.stopping is not None:
            header["held_out"] = self.stopping.to_json()
        arrays = {part: self.place.get(getattr(state, field)) for part, field in _PARTS.items()} | {
            "sizes": state.energies
        }
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
            raise InputError(
                f"{self.address} is the checkpoint of another system, with another K, Y, ridge, landmarks or seed; "
                "name another file, or remove it"
            )
        for part in (*_PARTS, "sizes"):
            array = arrays.get(part)
            expected = shape[1:] if part == "sizes" else shape
            if array is None or array.shape != expected or not np.isfinite(array).all():
                raise InputError(f"{self.address} lacks a valid array {part!r}; remove it to start again")
        if self.stopping is not None:
            self.stopping.go_on(header.get("held_out"))
        solution, residual, direction = (self.place.put(arrays[part]) for part in _PARTS)
        return _State(int(header["number"]), solution, residual, direction, arrays["sizes"])


@contextlib.contextmanager
def _local_copy(address: str | Path, options: Options | None, *, read: bool) -> Iterator[Path]:
    """The path of a checkpoint on disk, or of a local copy of one at an fsspec address.

    The copy is downloaded first with `read`, and uploaded at the end without it.
    """
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
    """A text that identifies a matrix: the checksum of its manifest, Dask's name, or a hash of the first row."""
    if is_stored(matrix):
        return str(replace(matrix.manifest, bits=()).to_json()["checksum"])
    if is_dask(matrix):
        return str(matrix.name)
    return hashlib.sha256(np.ascontiguousarray(matrix[0]).data).hexdigest()


def _header_of_version_1(arrays: Arrays) -> Header:
    """The header of a checkpoint of version 0.1.0 of this package, which kept its name and number among the arrays."""
    name, number = arrays.pop("name", None), arrays.pop("number", None)
    if name is None or number is None or number.shape != ():
        raise InputError("it is not a checkpoint of conjugate gradients")
    return {"name": str(name), "number": int(number)}


def _preconditioner(place: Place, rows: int, ridge: float, landmarks: int, seed: int) -> Callable[[Blocks], Blocks]:
    """The function r -> P r, where P is the inverse of (the Nyström approximation of K) + ridge I, up to a factor.

        P r = r + D ((e_min + ridge) / (e + ridge) - 1) D' r

    D are the eigenvectors of the approximation `A A'`, e its eigenvalues, and `A = C L'^-1` for the columns C of K at
    the landmarks and the Cholesky factor L of the rows of C at the landmarks. The eigenvalues are those of the small
    matrix `A'A`, a sum over blocks of rows. Eigenvalues within rounding errors of 0 are left out.
    """
    if landmarks == 0:
        return lambda residual: residual
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

    def precondition(residual: Blocks) -> Blocks:
        weights = place.kept_total(products, directions, residual)
        return place.each(correct, residual, directions, weights=weights, scales=scales)

    return precondition


# Functions of blocks; on a cluster they run on the workers.


def add(one: Array, other: Array, factor: Any) -> Array:
    """one + factor * other."""
    return np.asarray(one + factor * other)


def dots(one: Array, other: Array) -> Array:
    """The inner product of every column of one with the same column of the other, (columns,)."""
    return np.asarray(np.sum(one * other, axis=0))


def products(one: Array, other: Array) -> Array:
    """one' @ other: the inner products of all columns of one with all of the other."""
    return np.asarray(one.T @ other)


def times(one: Array, matrix: Array) -> Array:
    """one @ matrix."""
    return np.asarray(one @ matrix)


def divide(columns: Array, factor: Array) -> Array:
    """columns @ L'^-1, for a lower triangular factor L."""
    divided: Array = np.ascontiguousarray(solve_triangular(factor, columns.T, lower=True).T)
    return divided


def correct(residual: Array, directions: Array, weights: Array, scales: Array) -> Array:
    """r + D (scales * weights), for weights = D' r: the preconditioner."""
    return np.asarray(residual + directions @ (scales[:, None] * weights))


def _seconds_left(first: float, residual: float, tolerance: float, seconds: float) -> float:
    """Seconds until the tolerance is reached, if the logarithm of the residual keeps falling at its mean rate."""
    if residual <= tolerance:
        return 0.0
    gained = math.log(first / residual)
    return math.log(residual / tolerance) / gained * seconds if gained > 0 else math.inf


def _check_options(ridge: float, tolerance: float, landmarks: int, most_steps: int, rows: int) -> None:
    if ridge == 0:
        raise ParameterError("conjugate gradients need a ridge above 0; use solve_ridge for a ridge of 0")
    if not 0 < tolerance < 1:
        raise ParameterError(f"tolerance must lie between 0 and 1, not {tolerance!r}")
    if not is_whole(landmarks) or not 0 <= landmarks <= rows:
        raise ParameterError(f"landmarks must be a number from 0 to the {rows} rows of K, not {landmarks!r}")
    if most_steps < 1:
        raise ParameterError(f"most_steps must be at least 1, not {most_steps!r}")
