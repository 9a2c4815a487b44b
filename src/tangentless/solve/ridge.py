"""Exact kernel ridge regression, `(K + ridge I) alpha = Y`, by Cholesky in float64, with closed-form leave-one-out.

Everything happens in one triangle of one matrix: first the factor, then its inverse, which gives the diagonal of
`Q = (K + ridge I)^-1` and hence leave-one-out predictions `Y - alpha / diag(Q)`. The other triangle still holds K,
so the residual can be told, a failed factorisation explained and a ridge that works be found, without a second copy.
Factor and leave-one-out cost n^3 / 3 multiplications and additions each.

With weights w the sum of `w_i (Y_i - f(x_i))^2` is minimised: the ridge of row i is then `ridge / w_i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..devices import Device
from ..errors import NotPositiveDefinite
from ..inputs import is_cupy
from . import blocked
from .checks import check_ridge, check_targets, check_weights
from .failure import explain
from .matrices import algebra_for, check_kernel, load
from .path import score_path
from .scores import Criterion, check_criterion
from .tilt import check_tilt, leave_two_out, pick_tilt

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """The coefficients alpha, and for every row what the other rows predict; both have the shape of Y.

    `residual` is `|(K + ridge I) alpha - Y| / |Y|` (before tilting): how well the system was solved. Coefficients and
    leave-one-out predictions are those of the tilted fit where `tilt` is not zero.
    """

    ridge: float
    coefficients: Any
    leave_one_out: Any
    tilt: float
    residual: float


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

    K is symmetric, (n, n): an array, a CuPy array, or a matrix in a store. With `overwrite` its memory is used for the
    factor, and the solution needs next to nothing beyond it; `memory_needed` says how much otherwise. `backend` is
    "cpu", "cuda", a `Device`, or "auto", where K is; a CuPy matrix gives CuPy results. `ridge="loo"` picks the ridge,
    and `tilt="loo"` the tilt, by the leave-one-out `criterion`. `weights` are positive, one for each row.

    A matrix without a Cholesky factor, or with one that rounding alone could have made, raises `NotPositiveDefinite`,
    which names the rows that are duplicates or the pivot that vanished, and a ridge that works.

    >>> solution = solve_ridge([[2.0, 1.0], [1.0, 2.0]], [3.0, 6.0], ridge=1.0)
    >>> solution.coefficients.round(6)
    array([0.375, 1.875])
    >>> solution.leave_one_out.round(6)  # without the first row: 1 * 6 / (2 + 1); without the second: 1 * 3 / (2 + 1)
    array([2., 1.])
    """
    fixed = None if isinstance(ridge, str) and ridge == "loo" else check_ridge(ridge)
    check_tilt(tilt)
    on = algebra_for(backend, K)
    with on.working():
        matrix = check_kernel(K)
        targets, scales = check_targets(Y, len(matrix)), check_weights(weights, len(matrix))
        check_criterion(criterion, targets)
        if fixed is None:
            fixed = score_path(on, matrix, targets, None, scales).best(criterion)
        work = load(on, matrix, targets.size // len(matrix), overwrite=overwrite)
        solution = _solve(on, work, targets, fixed, scales, check_tilt(tilt), criterion)
    if is_cupy(K):
        return solution
    arrays = on.download(solution.coefficients), on.download(solution.leave_one_out)
    return RidgeSolution(solution.ridge, *arrays, solution.tilt, solution.residual)


def _solve(
    on: Algebra,
    work: Any,
    targets: Array,
    ridge: float,
    weights: Array | None,
    tilt: float | None,
    criterion: Criterion,
) -> RidgeSolution:
    block = on.block_rows(len(work))
    values = on.xp.asarray(targets.reshape(len(targets), -1))
    diagonal = work.diagonal().copy()
    added = on.xp.asarray(np.full(len(targets), ridge) if weights is None else ridge / weights)
    failure = blocked.factorise(on, work, diagonal + added, block)
    if failure is not None:
        raise NotPositiveDefinite(explain(on, work, diagonal, added, failure, block))
    alpha = blocked.solve(on, work, values, block)
    shrinkage = blocked.invert(on, work, block)
    miss = blocked.symmetric_product(on, work, diagonal + added, alpha) - values
    residual = float(on.xp.linalg.norm(miss)) / (float(on.xp.linalg.norm(values)) or 1.0)
    loo = values - alpha / shrinkage[:, None]
    if tilt != 0:
        second = leave_two_out(on, work, shrinkage, alpha)
        if tilt is None:
            shape = targets.shape
            tilt = pick_tilt(
                criterion, targets, on.download(loo).reshape(shape), on.download(second).reshape(shape), weights
            )
        alpha = alpha - tilt * blocked.apply_inverse(on, work, loo)
        loo = (1 - tilt) * loo + tilt * second
    return RidgeSolution(ridge, alpha.reshape(targets.shape), loo.reshape(targets.shape), tilt, residual)
