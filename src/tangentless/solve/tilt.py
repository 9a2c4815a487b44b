"""Tilting: coefficients `Q (Y - t Y_loo)`, and their own leave-one-out predictions in closed form.

Leaving row i out of a tilted fit leaves it out of the predictions `Y_loo` of the others too, which are then made
without i and j both. With `alpha = Q Y`, what i and j miss by when both are left out is

    (q_ii alpha_j - q_ij alpha_i) / (q_ii q_jj - q_ij^2)

for row j, so that the tilted prediction of row i, made without it, is `(1 - t) Y_loo_i + t g_i` with

    g_i = - sum_{j != i} q_ij / q_ii * (q_ii alpha_j - q_ij alpha_i) / (q_ii q_jj - q_ij^2).

It is linear in t. So all t are scored at the price of g, which needs every entry of Q once: another n^3 / 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..errors import ParameterError
from .blocked import inverse_panels
from .checks import is_number
from .scores import Criterion, rank

Array = NDArray[np.float64]
_CANDIDATES = np.arange(-20, 21) / 20  # for accuracy, which has no closed form


def check_tilt(tilt: Any) -> float | None:
    """A finite number, or None for "loo".

    >>> check_tilt(0.3), check_tilt("loo")
    (0.3, None)
    """
    if isinstance(tilt, str) and tilt == "loo":
        return None
    if not is_number(tilt):
        raise ParameterError(f"tilt must be a finite number, or 'loo' to pick it by leave-one-out, not {tilt!r}")
    return float(tilt)


def leave_two_out(on: Algebra, inverse: Any, shrinkage: Any, alpha: Any) -> Any:
    """The g of the module's text, of the shape of alpha; `shrinkage` is the diagonal of Q = M' M, `inverse` is M."""
    sums, weights = on.xp.zeros_like(alpha), on.xp.zeros(len(alpha))
    for rows, entries in inverse_panels(on, inverse):
        own = on.xp.arange(rows.stop - rows.start)
        ratios = shrinkage[rows, None] * shrinkage[None, : rows.stop]
        ratios -= entries**2
        ratios[own, rows.start + own] = 1.0  # a row is no pair with itself; set to zero below
        on.xp.divide(entries, ratios, out=ratios)
        ratios[own, rows.start + own] = 0.0
        sums[rows] -= on.product(ratios, alpha[: rows.stop])
        if rows.start:
            sums[: rows.start] -= on.product(ratios[:, : rows.start].T, alpha[rows])
        ratios *= entries
        weights[rows] += ratios.sum(axis=1)
        weights[: rows.start] += ratios[:, : rows.start].sum(axis=0)
    return sums + alpha * (weights / shrinkage)[:, None]


def pick_tilt(criterion: Criterion, Y: Array, loo: Array, second: Array, weights: Array | None) -> float:
    """The t whose leave-one-out predictions `(1 - t) loo + t second` are best; in closed form for the squared error.

    >>> pick_tilt("squared error", np.array([2.0, 0.0]), np.array([1.0, 1.0]), np.array([3.0, -1.0]), None)
    0.5
    """
    if criterion == "accuracy":
        keys = [rank(criterion, Y, (1 - t) * loo + t * second, weights) for t in _CANDIDATES]
        return float(_CANDIDATES[min(range(len(keys)), key=keys.__getitem__)])
    step = second - loo
    scale = np.ones(len(Y)) if weights is None else weights
    scale = scale.reshape(-1, *(1,) * (Y.ndim - 1))
    length = float(np.sum(scale * step**2))
    return float(np.sum(scale * step * (Y - loo))) / length if length else 0.0
