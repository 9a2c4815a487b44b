"""Exact kernel ridge regression in one call: a factor, asked once."""

from __future__ import annotations

from typing import Any

from ..devices import Device
from .checks import check_ridge, check_targets, check_weights
from .factor import factorise_checked
from .matrices import check_kernel, receive
from .path import score_path
from .scores import Criterion, check_criterion
from .tilt import RidgeSolution, check_tilt


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
    leave-one-out `criterion`. To ask more than once, keep the factor: `factorise(K, ridge).tilted(Y, tilt)`.

    >>> solution = solve_ridge([[2.0, 1.0], [1.0, 2.0]], [3.0, 6.0], ridge=1.0)
    >>> solution.coefficients.round(6)
    array([0.375, 1.875])
    >>> solution.leave_one_out.round(6)  # without the first row: 1 * 6 / (2 + 1); without the second: 1 * 3 / (2 + 1)
    array([2., 1.])
    """
    fixed = None if isinstance(ridge, str) and ridge == "loo" else check_ridge(ridge)
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
