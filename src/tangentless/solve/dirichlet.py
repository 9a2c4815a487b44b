"""Classification by regression with Gaussian processes, with probabilities (Milios et al., 2018).

A label is treated as an observation of a Dirichlet distribution, with the concentration alpha = 1 + a for its own class
and alpha = a for all others. Its gamma variables are approximated by lognormal ones, so that the logarithm of class c
has the target `log(alpha) - v / 2` with noise of variance `v = log(1 + 1 / alpha)`. Each class is then a Gaussian
process with two noise variances: `small` for its own images, `large` for all others.

One factor, with the large noise for all rows, serves every class. With E the columns of I at the rows of the class, and
delta = large - small,

    (B - delta E E')^-1 = Q + Q E (I / delta - E' Q E)^-1 E' Q,      B = K + large I,  Q = B^-1,

so a class only adds the factor of a small matrix, with as many rows as it has images. That matrix is well conditioned,
since Q <= I / large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, softmax
from scipy.stats import qmc

from ..algebra import Algebra
from ..chunks import spans
from ..errors import NotPositiveDefinite
from . import blocked
from .factor import Factor, factorise
from .scores import log_likelihood, maximise

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_DRAWS = 512  # quasi-random points for the expectation of a softmax: errors of about 1e-3
_AT_ONCE = 2**22  # numbers of a panel while probabilities are averaged
_SCALES: Array = 10.0 ** np.arange(-1.0, 6.0)  # variances of the latent functions; targets differ by about 7
_CONCENTRATIONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def noises(concentration: float) -> tuple[float, float]:
    """(small, large): the noise variances of the rows of a class, and of all other rows.

    >>> [round(noise, 3) for noise in noises(0.01)]
    [0.688, 4.615]
    """
    return float(np.log1p(1 / (1 + concentration))), float(np.log1p(1 / concentration))


@dataclass(frozen=True, eq=False)
class ClassFactors:
    """The Gaussian processes of all classes, with the covariance `scale K + noise`.

    They share one factor, of `K + large / scale I`. `codes` are the numbers of the classes of all rows.
    """

    factor: Factor
    codes: Indices
    classes: int
    concentration: float
    scale: float

    @classmethod
    def of(
        cls,
        K: Any,
        codes: Indices,
        classes: int,
        concentration: float,
        scale: float,
        **options: Any,
    ) -> ClassFactors:
        """Factorise K, with the options of `factorise`."""
        large = noises(concentration)[1]
        return cls(factorise(K, large / scale, **options), codes, classes, concentration, scale)

    @functools.cached_property
    def targets(self) -> Array:
        """The targets of regression, (n, classes), less their mean, on which no probability depends."""
        small, large = noises(self.concentration)
        own = np.log1p(self.concentration) - small / 2
        others = np.log(self.concentration) - large / 2
        values = np.where(self.codes[:, None] == np.arange(self.classes), own, others)
        return np.asarray(values - values.mean())

    @functools.cached_property
    def coefficients(self) -> Any:
        """Coefficients of the posterior means, (n, classes): the means are `k(x, X) @ coefficients`."""
        on = self.factor.on
        with on.working():
            found = self.factor._solve(on.xp.asarray(self.targets))
            turned = on.xp.zeros_like(found)
            for number, (rows, root) in enumerate(self._corners):
                turned[rows, number] = blocked.solve(on, root, found[rows, number][:, None], _block(on, root))[:, 0]
            return found + self.factor._solve(turned)

    def latent(self, C: Any, d: Any) -> tuple[Array, Array]:
        """Means and variances of all classes at new rows, (m, classes) each; C and d are as for `Factor.variance`."""
        on = self.factor.on
        with on.working():
            rows = self.factor._rows(C)
            own = self.factor._own(d, len(rows))
            across = self.factor._solve(rows.T)
            shared = own - (rows.T * across).sum(axis=0)
            variances = on.xp.empty((len(rows), self.classes))
            for number, (members, root) in enumerate(self._corners):
                half = blocked.forward(on, root, across[members], _block(on, root))
                variances[:, number] = on.xp.maximum(shared - (half**2).sum(axis=0), 0.0)
            return on.download(rows @ self.coefficients), self.scale * on.download(variances)

    def leave_one_out(self) -> tuple[Array, Array]:
        """Means and variances of all classes at each row, (n, classes) each, given the other rows."""
        on, factor = self.factor.on, self.factor
        small, large = noises(self.concentration)
        with on.working():
            diagonals = on.xp.empty((len(self.codes), self.classes))
            for number, (members, root) in enumerate(self._corners):
                unit = on.xp.zeros((len(self.codes), len(members)))
                unit[members, on.xp.arange(len(members))] = 1.0
                half = blocked.forward(on, root, factor._solve(unit).T, _block(on, root))
                diagonals[:, number] = factor._inverse_diagonal + (half**2).sum(axis=0)
            inverse, found = on.download(diagonals), on.download(self.coefficients)
        noise = np.where(self.codes[:, None] == np.arange(self.classes), small, large)
        return self.targets - found / inverse, np.maximum(self.scale / inverse - noise, 0.0)

    def log_likelihood(self) -> float:
        """The log marginal likelihood of the targets, summed over classes."""
        rows, total = len(self.codes), 0.0
        values, found = self.targets, self.factor.on.download(self.coefficients)
        delta = self._delta
        for number, (_, root) in enumerate(self._corners):
            pivots = self.factor.on.download(root.diagonal())
            determinant = self.factor.log_determinant + float(np.sum(np.log(delta * pivots**2)))
            misfit = np.array([values[:, number] @ found[:, number]])
            total += log_likelihood(misfit, determinant, rows, np.array([self.scale]))
        return total

    @property
    def _delta(self) -> float:
        small, large = noises(self.concentration)
        return (large - small) / self.scale

    @functools.cached_property
    def _corners(self) -> list[tuple[Any, Any]]:
        """For each class, its rows and the factor of `I / delta - E' Q E`."""
        factor, on = self.factor, self.factor.on
        members = [np.flatnonzero(self.codes == number) for number in range(self.classes)]
        corners = [on.xp.zeros((len(rows), len(rows))) for rows in members]
        for part, panel in blocked.inverse_panels(on, factor.work):
            rest = slice(part.start, None)
            entries = blocked.backward(on, factor.work[rest, rest], panel, on.panel_rows(), overwrite=True)
            for rows, corner in zip(members, corners, strict=True):
                first, end = np.searchsorted(rows, [part.start, part.stop])
                if end > first:
                    places = on.xp.asarray(rows[first:] - part.start)
                    corner[first:, first:end] = -entries[places][:, places[: end - first]]
        found = []
        for rows, corner in zip(members, corners, strict=True):
            # Eigenvalues of Q are at most scale / large: this fails only if the factor is of some other matrix.
            if blocked.factorise(on, corner, corner.diagonal() + 1 / self._delta, _block(on, corner)) is not None:
                raise NotPositiveDefinite(
                    "the factor is not that of a kernel matrix with this noise: fit the model again"
                )
            found.append((on.xp.asarray(rows), corner))
        return found


def _block(on: Algebra, matrix: Any) -> int:
    return max(1, on.block_rows(len(matrix)))  # 1 for a class without rows


def pick(
    K: Any, codes: Indices, classes: int, concentration: float | None, scale: float | None, **options: Any
) -> tuple[float, float]:
    """The concentration and the scale to use; one that is given stays.

    A scale is picked by the marginal likelihood, a concentration by the log-likelihood of leave-one-out probabilities.
    """
    unit, found = float(K.diagonal().mean()), []
    if not unit > 0:
        raise NotPositiveDefinite(f"K is not a kernel matrix: the mean of its diagonal is {unit:g}")
    for one in _CONCENTRATIONS if concentration is None else [concentration]:
        fitted: Callable[[float], ClassFactors] = functools.partial(ClassFactors.of, K, codes, classes, one, **options)
        best = _best_scale(fitted, unit) if scale is None else scale
        if concentration is not None:
            return one, best
        shares = expected_softmax(*fitted(best).leave_one_out())
        found.append((-float(np.log(shares[np.arange(len(codes)), codes]).mean()), one, best))
    _, one, best = min(found)
    return one, best


def _best_scale(fitted: Callable[[float], ClassFactors], unit: float) -> float:
    return maximise(lambda scale: fitted(scale).log_likelihood(), _SCALES / unit)


def expected_softmax(means: Array, variances: Array) -> Array:
    """The expectation of `softmax(f)` for independent normal f, (m, classes), as a mean over quasi-random points.

    >>> expected_softmax(np.array([[2.0, 0.0]]), np.array([[0.0, 0.0]])).round(3)
    array([[0.881, 0.119]])
    >>> expected_softmax(np.array([[2.0, 0.0]]), np.array([[100.0, 0.0]])).round(1)  # almost no information
    array([[0.6, 0.4]])
    """
    classes = means.shape[1]
    points = ndtri(np.clip(qmc.Sobol(classes, rng=0).random(_DRAWS), 1e-12, 1 - 1e-12))
    found, roots = np.empty_like(means), np.sqrt(variances)
    for part in spans(len(means), max(1, _AT_ONCE // (_DRAWS * classes))):
        values = means[part, None, :] + roots[part, None, :] * points
        found[part] = softmax(values, axis=2).mean(axis=1)
    return found
