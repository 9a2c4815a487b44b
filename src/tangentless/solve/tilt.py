"""Tilting: coefficients `Q (Y - t Y_loo)`, and leave-one-out predictions of the tilted fit in closed form.

To leave row i out of a tilted fit, it must also be left out of the predictions `Y_loo` of all other rows j, which then
leave out both i and j. With `alpha = Q Y`, the error of row j when i and j are left out is

    (q_ii alpha_j - q_ij alpha_i) / (q_ii q_jj - q_ij^2).

The leave-one-out prediction of row i in the tilted fit is `(1 - t) Y_loo_i + t g_i`, with

    g_i = - sum_{j != i} q_ij / q_ii * (q_ii alpha_j - q_ij alpha_i) / (q_ii q_jj - q_ij^2).

It is linear in t, so g is enough to score every t. g needs every entry of Q once, which costs another 2 n^3 / 3.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ParameterError
from .blocked import EPSILON, backward, inverse_panels
from .checks import is_number
from .scores import Criterion, check_criterion, rank

if TYPE_CHECKING:
    from .factor import Factor

Array = NDArray[np.float64]
_CANDIDATES = np.arange(-20, 21) / 20  # tilts that are tried for accuracy, which has no closed form


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """The coefficients alpha and the leave-one-out predictions, both of the shape of Y and of the tilted fit.

    `residual` is `|(K + ridge I) alpha - Y| / |Y|` before tilting: how well the system was solved.
    """

    ridge: float
    coefficients: Any
    leave_one_out: Any
    tilt: float
    residual: float


@dataclass(frozen=True, eq=False)
class Tilting:
    """Solutions of some targets at any tilt. What they have in common is computed once, when it is needed."""

    factor: Factor
    targets: Array
    criterion: Criterion

    def __post_init__(self) -> None:
        check_criterion(self.criterion, self.targets)

    def at(self, tilt: float | str) -> RidgeSolution:
        """The solution at a tilt, or with "loo" at the tilt of the best leave-one-out predictions."""
        t = check_tilt(tilt)
        with self.factor.on.working():
            alpha, loo = self._alpha, self._loo
            if t != 0:
                if t is None:
                    t = pick_tilt(
                        self.criterion, self.targets, self._host(loo), self._host(self._second), self.factor.weights
                    )
                alpha = alpha - t * self.factor._solve(loo)
                loo = (1 - t) * loo + t * self._second
            shape, send = self.targets.shape, self.factor._send
            return RidgeSolution(
                self.factor.ridge, send(alpha.reshape(shape)), send(loo.reshape(shape)), t, self._residual
            )

    @functools.cached_property
    def _values(self) -> Any:
        return self.factor._columns(self.targets)

    @functools.cached_property
    def _alpha(self) -> Any:
        return self.factor._solve(self._values)

    @functools.cached_property
    def _loo(self) -> Any:
        return self._values - self._alpha / self.factor._inverse_diagonal[:, None]

    @functools.cached_property
    def _second(self) -> Any:
        return leave_two_out(self.factor, self._alpha)

    @functools.cached_property
    def _residual(self) -> float:
        return self.factor._residual(self._alpha, self._values)

    def _host(self, values: Any) -> Array:
        found: Array = self.factor.on.download(values).reshape(self.targets.shape)
        return found


def check_tilt(tilt: Any) -> float | None:
    """The tilt as a float, or None for "loo"; raises `ParameterError` for anything else.

    >>> check_tilt(0.3), check_tilt("loo")
    (0.3, None)
    """
    if isinstance(tilt, str) and tilt == "loo":
        return None
    if not is_number(tilt):
        raise ParameterError(f"tilt must be a finite number, or 'loo' to pick it by leave-one-out, not {tilt!r}")
    return float(tilt)


def leave_two_out(factor: Factor, alpha: Any) -> Any:
    """The g of the module's docstring, of the shape of alpha, (n, columns)."""
    on, inverse_diagonal = factor.on, factor._inverse_diagonal
    sums, weights = on.xp.zeros_like(alpha), on.xp.zeros(len(alpha))
    for rows, panel in inverse_panels(on, factor.work):
        rest, beyond = slice(rows.start, None), slice(rows.stop, None)
        # Rows of Q, from the diagonal on: (rows, n - rows.start).
        entries = backward(on, factor.work[rest, rest], panel, on.panel_rows(), overwrite=True).T
        own = on.xp.arange(len(entries))
        ratios = inverse_diagonal[rows, None] * inverse_diagonal[None, rest]
        ratios -= entries**2
        ratios[own, own] = 1.0  # avoids 0 / 0 for j = i; set to zero below
        on.xp.divide(entries, ratios, out=ratios)
        ratios[own, own] = 0.0
        sums[rows] -= on.product(ratios, alpha[rest])
        if rows.stop < len(alpha):
            sums[beyond] -= on.product(ratios[:, len(own) :].T, alpha[rows])
        ratios *= entries
        weights[rows] += ratios.sum(axis=1)
        weights[beyond] += ratios[:, len(own) :].sum(axis=0)
    return sums + alpha * (weights / inverse_diagonal)[:, None]


def pick_tilt(criterion: Criterion, Y: Array, loo: Array, second: Array, weights: Array | None) -> float:
    """The t of the best leave-one-out predictions `(1 - t) loo + t second`; in closed form for the squared error.

    >>> pick_tilt("squared error", np.array([2.0, 0.0, 0.0]), np.array([1.0, 1.0, 0]), np.array([3.0, -1.0, 0]), None)
    0.5
    """
    if criterion == "accuracy":
        return float(min(_CANDIDATES, key=lambda t: rank(criterion, Y, (1 - t) * loo + t * second, weights)))
    step = second - loo
    scale = np.ones(len(Y)) if weights is None else weights
    scale = scale.reshape(-1, *(1,) * (Y.ndim - 1))
    length, whole = float(np.sum(scale * step**2)), float(np.sum(scale * (loo**2 + second**2)))
    # Where no row is predicted by more than one other, no tilt makes a difference, and the step is rounding errors.
    if len(Y) < 3 or length <= EPSILON * whole:
        return 0.0
    return float(np.sum(scale * step * (Y - loo))) / length
