"""The Cholesky factor `K + ridge I = L L'` in float64, computed once and used for many results.

One matrix holds both: L in its lower triangle, K in the strict upper one, so that residuals and explanations of
failures need no second copy. A factor never changes. With `Q = (K + ridge I)^-1`:

    coefficients                        Q Y
    leave-one-out predictions           Y - Q Y / diag(Q)
    variance of a new row               d - c' Q c = d - |L^-1 c|^2

where c is the kernel of the new row with the old ones, and d with itself.

The factor costs n^3 / 3 multiplications and additions, `inverse_diagonal` as much again, a solution n^2 per column, and
a variance n^2. With weights w, the sum of `w_i (Y_i - f(x_i))^2` is minimised: row i has the ridge `ridge / w_i`, which
for a Gaussian process is the variance of its noise.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import InputError, NotPositiveDefinite, ParameterError
from ..layers import is_whole
from . import blocked
from .checks import check_ridge, check_targets, check_weights, fixed_ridge
from .diagnosis import explain
from .matrices import as_numbers, bring, check_fits, check_kernel, load, receive, send
from .path import score_path
from .scores import Criterion, check_criterion, log_likelihood
from .tilt import RidgeSolution, Tilting, check_tilt

Array = NDArray[np.float64]

_ENTRIES_AT_ONCE = 2**24  # entries of a panel between new and old rows: 128 MiB
_NARROW = 64  # least number of columns that a step of `downdate` rotates


def factorise(
    K: Any, ridge: float = 0.0, *, weights: Any = None, overwrite: bool = False, backend: str | Device = "auto"
) -> Factor:
    """The factor of `K + ridge I` for a symmetric K, (n, n): an array, a tensor, or a matrix in a store.

    With `overwrite`, the memory of K is used; otherwise `memory_needed` says how much is needed. `backend` is "cpu",
    "cuda", a `Device`, or "auto": where K is. Results are the same kind of array as K. `weights`, (n,), are positive.

    Raises `NotPositiveDefinite` for a matrix without a Cholesky factor, or with pivots that are no larger than rounding
    errors. The message names duplicate rows or the pivot that vanished, and a ridge that works.

    >>> factor = factorise([[2.0, 1.0], [1.0, 2.0]], ridge=1.0)
    >>> factor.solve([3.0, 6.0]).round(6)
    array([0.375, 1.875])
    >>> factor.leave_one_out([3.0, 6.0]).round(6)  # without the first row: 1 * 6 / (2 + 1)
    array([2., 1.])
    >>> factor.variance([[1.0, 1.0]], [2.0]).round(6)  # 2 - (1, 1) Q (1, 1)'
    array([1.5])
    """
    ridge = check_ridge(ridge)
    on, matrix, kind = receive(K, backend)
    with on.working():
        matrix = check_kernel(matrix)
        scales = check_weights(weights, len(matrix))
        return factorise_checked(on, matrix, ridge, scales, overwrite=overwrite, kind=kind)


def factorise_checked(
    on: Algebra, matrix: Any, ridge: float, weights: Array | None, *, overwrite: bool, kind: str, targets: int = 1
) -> Factor:
    """As `factorise`, for checked arguments; checks that memory is enough to solve for this number of targets."""
    work = load(on, matrix, targets, overwrite=overwrite)
    own = work.diagonal().copy()
    added = on.xp.asarray(np.full(len(work), ridge) if weights is None else ridge / weights)
    block = on.block_rows(len(work))
    failure = blocked.factorise(on, work, own + added, block)
    if failure is not None:
        raise NotPositiveDefinite(explain(on, work, own, added, failure, block))
    return Factor(on, work, own, added, ridge, weights, kind)


def solve_ridge(
    K: Any,
    Y: Any,
    ridge: float | str = 0.0,
    *,
    weights: Any = None,
    tilt: float | str = 0.0,
    criterion: Criterion = "squared error",
    overwrite: bool = False,
    backend: str | Device = "auto",
) -> RidgeSolution:
    """Solve `(K + ridge I) alpha = Y` for one or many columns of Y; a prediction is then `k(x, X) @ alpha`.

    The arguments are those of `factorise`. `ridge="loo"` picks the ridge, and `tilt="loo"` the tilt, by the
    leave-one-out `criterion`. For several Y or tilts, keep the factor: `factorise(K, ridge).tilted(Y, tilt)`.

    >>> solution = solve_ridge([[2.0, 1.0], [1.0, 2.0]], [3.0, 6.0], ridge=1.0)
    >>> solution.coefficients.round(6)
    array([0.375, 1.875])
    >>> solution.leave_one_out.round(6)  # without the first row: 1 * 6 / (2 + 1); without the second: 1 * 3 / (2 + 1)
    array([2., 1.])
    """
    fixed = fixed_ridge(ridge)
    check_tilt(tilt)
    on, matrix, kind = receive(K, backend)
    with on.working():
        matrix = check_kernel(matrix)
        targets, scales = check_targets(Y, len(matrix)), check_weights(weights, len(matrix))
        check_criterion(criterion, targets)
        if fixed is None:
            fixed = score_path(on, matrix, targets, None, scales).best(criterion)
        columns = targets.size // len(matrix)
        factor = factorise_checked(on, matrix, fixed, scales, overwrite=overwrite, kind=kind, targets=columns)
        return factor.tilted(targets, tilt, criterion=criterion)


@dataclass(frozen=True, eq=False, repr=False)
class Factor:
    """What `factorise` returns. Results are the same kind of array as K, of the shape of Y where they depend on it."""

    on: Algebra
    work: Any  # L in the lower triangle, K in the strict upper one
    own: Any  # the diagonal of K
    added: Any  # what was added to the diagonal, (n,)
    ridge: float
    weights: Array | None
    kind: str  # of array that results are; see `receive`

    def __len__(self) -> int:
        return len(self.work)

    def __repr__(self) -> str:
        return f"Factor({len(self):,} rows, ridge={self.ridge:g}, on the {self.on.name})"

    def solve(self, Y: Any) -> Any:
        """The coefficients `Q Y`, of the shape of Y; a prediction is then `k(x, X) @ coefficients`."""
        with self.on.working():
            targets = check_targets(Y, len(self))
            return self._send(self._solve(self._columns(targets)).reshape(targets.shape))

    def leave_one_out(self, Y: Any) -> Any:
        """The leave-one-out predictions, of the shape of Y: what the other rows predict for each row."""
        return self.tilted(Y, 0.0).leave_one_out

    def tilted(self, Y: Any, tilt: float | str = 0.0, *, criterion: Criterion = "squared error") -> RidgeSolution:
        """Coefficients and leave-one-out predictions of `Y - tilt Y_loo`; "loo" picks the tilt by the criterion."""
        return self.tilting(Y, criterion=criterion).at(tilt)

    def tilting(self, Y: Any, *, criterion: Criterion = "squared error") -> Tilting:
        """A `Tilting` of these targets, which gives the solutions at many tilts at the cost of one."""
        return Tilting(self, check_targets(Y, len(self)), criterion)

    def variance(self, C: Any, d: Any) -> Any:
        """The posterior variance of m new rows: C is their kernel with the old rows, (m, n), d with themselves, (m,).

        Negative results, which rounding may leave where a new row equals an old one, become 0.
        """
        with self.on.working():
            rows = self._rows(C)
            own = self._own(d, len(rows))
            explained = [self._squares(half) for half in self._halves(rows)]
            return self._send(self.on.xp.maximum(own - self.on.xp.concatenate(explained), 0.0))

    def covariance(self, C: Any, S: Any) -> Any:
        """The posterior covariance of m new rows, (m, m): C is their kernel with the old rows, S among themselves."""
        with self.on.working():
            rows = self._rows(C)
            return self._send(self._covariance(rows, self._among(S, len(rows))))

    def whiten(self, C: Any) -> Any:
        """`L^-1 C'`, (n, m): the inner products of its columns are the part of S that the old rows explain."""
        with self.on.working():
            return self._send(blocked.forward(self.on, self.work, self._rows(C).T, self._block))

    def sample(self, Y: Any, C: Any, S: Any, count: int = 1, *, scale: Any = 1.0, seed: Any = 0) -> Any:
        """Samples of the posterior at m new rows, (m, count) or (m, targets, count).

        The prior covariance is `scale (K + ridge I)`, one scale for all targets or one for each; C and S are as for
        `covariance`, and do not include the scale.
        """
        if not is_whole(count) or count < 1:
            raise ParameterError(f"the number of samples must be at least 1, not {count!r}")
        with self.on.working():
            targets, rows = check_targets(Y, len(self)), self._rows(C)
            scales = _check_scales(scale, targets.size // len(self))
            covariance = self._covariance(rows, self._among(S, len(rows)))
            mean = self.on.download(rows @ self._solve(self._columns(targets)))
            values, vectors = self.on.eigen(covariance)  # a Cholesky factorisation would fail for near duplicates
            root = self.on.download(vectors * self.on.xp.sqrt(self.on.xp.maximum(values, 0.0)))
        noise = np.random.default_rng(seed).standard_normal((len(mean), mean.shape[1], count))
        spread = np.sqrt(scales)[:, None]
        draws = mean[..., None] + spread * np.einsum("ij,jtc->itc", root, noise, optimize=True)
        return self._send(self.on.upload(draws[:, 0] if targets.ndim == 1 else draws))

    @functools.cached_property
    def log_determinant(self) -> float:
        """The logarithm of the determinant of `K + ridge I`."""
        return 2 * float(self.on.xp.log(self.work.diagonal()).sum())

    @property
    def inverse_diagonal(self) -> Any:
        """The diagonal of Q, (n,). Its inverse is the variance of each row given all others, noise included."""
        return self._send(self._inverse_diagonal)

    def misfits(self, Y: Any) -> Array:
        """`y' Q y` of every target y, (targets,): the quadratic term of the log-likelihood."""
        with self.on.working():
            values = self._columns(check_targets(Y, len(self)))
            half = blocked.forward(self.on, self.work, values, self._block)
            return np.asarray(self.on.download((half**2).sum(axis=0)))

    def log_likelihood(self, Y: Any, scale: Any = 1.0) -> float:
        """The log-likelihood of targets under the covariance `scale (K + ridge I)`, summed over targets."""
        misfits = self.misfits(Y)
        return log_likelihood(misfits, self.log_determinant, len(self), _check_scales(scale, len(misfits)))

    def update(self, C: Any, S: Any, *, weights: Any = None) -> Factor:
        """The factor with m more rows: C is their kernel with the old rows, (m, n), S among themselves, (m, m).

        It costs n^2 m and new memory. If `inverse_diagonal` has been computed, it is updated too, for n^2 m more.
        """
        on, before = self.on, len(self)
        with on.working():
            rows = self._rows(C)
            corner = self._among(S, len(rows))
            scales = check_weights(weights, len(rows))
            if (scales is None) != (self.weights is None):
                raise InputError("weights must be given to all rows or to none")
            own = on.xp.concatenate([self.own, corner.diagonal()])
            more = np.full(len(rows), self.ridge) if scales is None else self.ridge / scales
            added = on.xp.concatenate([self.added, on.xp.asarray(more)])
            total = before + len(rows)
            needed = 8 * (total**2 + 3 * before * len(rows))
            check_fits(needed, on.free_bytes(), f"{total:,} rows on the {on.name}", "start over with overwrite=True")
            # | L and K    C'                                        |
            # | half'      S above the diagonal, L of the rest below |    half = L^-1 C',  the rest = S - half' half
            work = on.xp.empty((total, total))
            for part in spans(before, 512):
                work[part, :before] = self.work[part]
            half = blocked.forward(on, self.work, rows.T, self._block)
            work[:before, before:], work[before:, :before] = rows.T, half.T
            work[before:, before:] = on.xp.triu(corner, 1) + on.xp.tril(corner - on.add_square(None, half))
            self._close(work, own, added, before)
            joined = None if self.weights is None or scales is None else np.concatenate([self.weights, scales])
            factor = replace(self, work=work, own=own, added=added, weights=joined)
            if "_inverse_diagonal" in self.__dict__:
                factor.__dict__["_inverse_diagonal"] = self._extend_inverse(work, half)
            return factor

    def downdate(self, rows: Any) -> Factor:
        """The factor without m rows, given by their numbers or a mask; costs about n^2 (m + 64) and new memory."""
        given = np.asarray(rows)
        if given.dtype == bool and given.shape == (len(self),):
            given = np.flatnonzero(given)
        if given.size and given.dtype.kind not in "iu":
            raise InputError(f"rows to remove are whole numbers or a mask of {len(self)}, not of dtype {given.dtype}")
        on, gone = self.on, np.unique(given.astype(np.intp))
        if not gone.size or gone[0] < 0 or gone[-1] >= len(self) or gone.size == len(self):
            raise InputError(f"rows to remove must be some, but not all, of 0 to {len(self) - 1}")
        kept = np.setdiff1d(np.arange(len(self)), gone)
        with on.working():
            places, removed = on.xp.asarray(kept), on.xp.asarray(gone)
            work = self.work[places[:, None], places[None, :]]
            # For the rows that stay, K + ridge I = L L' + M M', where M holds the removed columns of L. Orthogonal
            # transformations of L and M together, one block column of L at a time, make M zero.
            missing = on.xp.where(places[:, None] > removed, self.work[places[:, None], removed[None, :]], 0.0)
            for part in spans(len(kept), max(_NARROW, len(gone)), int(gone[0])):
                _absorb(on, work, missing, part)
            weights = None if self.weights is None else self.weights[kept]
            return replace(self, work=work, own=self.own[places], added=self.added[places], weights=weights)

    def pack(self) -> Array:
        """The lower triangle of L, row by row, as n (n + 1) / 2 numbers for a file."""
        return np.concatenate([self.on.download(self.work[row, : row + 1]) for row in range(len(self))])

    @classmethod
    def unpack(cls, packed: Array, added: Array, ridge: float, *, weights: Any = None, backend: Any = "cpu") -> Factor:
        """The factor from the result of `pack` and what was added to the diagonal of K; K is computed as L L'."""
        on, count = Device.of(backend).algebra, len(added)
        if packed.shape != (count * (count + 1) // 2,) or not np.isfinite(packed).all():
            raise InputError(f"a packed factor of {count} rows has {count * (count + 1) // 2} finite numbers")
        lower = np.zeros((count, count))
        lower[np.tri(count, dtype=bool)] = packed
        if (lower.diagonal() <= 0).any():
            raise InputError("a factor has positive numbers on its diagonal")
        with on.working():
            work = on.upload(lower)
            own = on.xp.empty(count)
            for part in reversed(list(spans(count, 1024))):  # upwards, because a product reads L of all rows before
                product = on.product(work[: part.stop, : part.stop], work[part, : part.stop].T)
                own[part] = product[part].diagonal()
                lower[: part.start, part] = on.download(product[: part.start])
                lower[part, part] += np.triu(on.download(product[part]), 1)
            return cls(on, on.upload(lower), own - on.xp.asarray(added), on.xp.asarray(added), ridge, weights, "numpy")

    @functools.cached_property
    def _inverse_diagonal(self) -> Any:
        with self.on.working():
            panels = blocked.inverse_panels(self.on, self.work)
            return self.on.xp.concatenate([self._squares(panel) for _, panel in panels])

    @property
    def _block(self) -> int:
        return self.on.block_rows(len(self))

    def _solve(self, values: Any) -> Any:
        return blocked.solve(self.on, self.work, values, self._block)

    def _residual(self, alpha: Any, values: Any) -> float:
        miss = blocked.symmetric_product(self.on, self.work, self.own + self.added, alpha) - values
        return float(self.on.xp.linalg.norm(miss)) / (float(self.on.xp.linalg.norm(values)) or 1.0)

    def _halves(self, rows: Any) -> Iterator[Any]:
        """L^-1 C', a panel of columns at a time."""
        for part in spans(len(rows), max(1, _ENTRIES_AT_ONCE // len(self))):
            yield blocked.forward(self.on, self.work, rows[part].T, self._block)

    def _covariance(self, rows: Any, corner: Any) -> Any:
        count = len(rows)
        needed = 8 * (3 * count**2 + count * len(self))
        what = f"the covariance of {count:,} rows, {8 * count**2 / 1e9:.1f} GB,"
        check_fits(needed, self.on.free_bytes(), what, "ask for standard deviations (variance), one number for a row")
        half = blocked.forward(self.on, self.work, rows.T, self._block)
        found = corner - self.on.product(half.T, half)
        found = (found + found.T) / 2
        blocked.set_diagonal(self.on, found, self.on.xp.maximum(found.diagonal(), 0.0))
        return found

    def _close(self, work: Any, own: Any, added: Any, before: int) -> None:
        """Factorise the corner of new rows, from which the part that the old rows explain is subtracted already."""
        on, corner = self.on, work[before:, before:]
        failure = blocked.factorise(on, corner, corner.diagonal() + added[before:], on.block_rows(len(corner)))
        if failure is None:
            pivots = on.download(corner.diagonal() ** 2 / (own + added)[before:])
            vanished = np.flatnonzero(~(pivots > blocked.rounding(len(work))))
            if not vanished.size:
                return
            row = int(vanished[0])
            failure = blocked.Failure(row, float(corner[row, row] ** 2))
        failure = blocked.Failure(before + failure.row, failure.pivot)
        raise NotPositiveDefinite(explain(on, work, own, added, failure, on.block_rows(len(work))))

    def _extend_inverse(self, work: Any, half: Any) -> Any:
        """The diagonal of the inverse with the new rows, from that of the old ones, the new L and `half = L^-1 C'`."""
        before, corner = len(self), work[len(self) :, len(self) :]
        block = self.on.block_rows(len(corner))
        across = blocked.forward(self.on, corner, blocked.backward(self.on, self.work, half, self._block).T, block)
        own = [self._squares(panel) for _, panel in blocked.inverse_panels(self.on, corner)]
        return self.on.xp.concatenate([self._inverse_diagonal + (across**2).sum(axis=0)[:before], *own])

    def _squares(self, columns: Any) -> Any:
        """The squared lengths of columns; needs no temporary array."""
        return self.on.xp.einsum("ij,ij->j", columns, columns)

    def _columns(self, targets: Array) -> Any:
        return self.on.xp.asarray(targets.reshape(len(targets), -1))

    def _rows(self, C: Any) -> Any:
        rows = bring(self.on, C, "C")
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(self):
            raise InputError(
                f"C must hold the kernel of new rows with the {len(self)} of this factor, (m, {len(self)}), "
                f"but its shape is {tuple(rows.shape)}"
            )
        return rows

    def _own(self, d: Any, rows: int) -> Any:
        own = bring(self.on, d, "d")
        if own.shape != (rows,):
            raise InputError(f"d must hold the kernel of each of {rows} rows with itself, not {tuple(own.shape)}")
        return own

    def _among(self, S: Any, rows: int) -> Any:
        matrix = bring(self.on, S, "S")
        if matrix.shape != (rows, rows):
            raise InputError(f"S must hold the kernel among {rows} new rows, but its shape is {tuple(matrix.shape)}")
        return check_kernel(matrix)

    def _send(self, values: Any) -> Any:
        return send(self.on, values, self.kind)


def _check_scales(scale: Any, targets: int) -> Array:
    """The scale of each target, (targets,), from one number or as many."""
    scales = as_numbers(scale, "scale").astype(np.float64)
    if scales.shape not in ((), (1,), (targets,)) or not (np.isfinite(scales).all() and (scales > 0).all()):
        raise InputError(f"scale is a finite number above 0, or one for each of {targets} targets, not {scale!r}")
    return np.broadcast_to(scales, (targets,))


def _absorb(on: Algebra, work: Any, missing: Any, part: slice) -> None:
    """Apply an orthogonal transformation to the columns [L[:, part], M] that makes M zero in the rows `part`."""
    width = part.stop - part.start
    corner = work[part, part]
    rotation, root = on.xp.linalg.qr(on.xp.concatenate([on.xp.tril(corner), missing[part]], axis=1).T, mode="complete")
    signs = on.xp.where(root.diagonal() < 0, -1.0, 1.0)
    corner[...] = on.xp.triu(corner, 1) + (root[:width] * signs[:, None]).T
    if part.stop < len(work):
        rotated = on.product(on.xp.concatenate([work[part.stop :, part], missing[part.stop :]], axis=1), rotation)
        work[part.stop :, part], missing[part.stop :] = rotated[:, :width] * signs, rotated[:, width:]
