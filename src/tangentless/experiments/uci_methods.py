"""The classifiers of the UCI study: support vector machines with families of kernels, and random forests."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..classical import median_squared_distance, ntk_family, squared_distances
from ..classical.vectors import bell
from ..datasets.tables import Rowsets, Table
from ..solve.board import Array, Cells, Kernels

POWERS_OF_TWO = tuple(2.0**power for power in range(-19, 21))
POWERS_OF_TEN = tuple(10.0**power for power in range(-2, 5))
_PAIRS = [(depth, fixed) for depth in range(1, 6) for fixed in range(depth)]
_POLYNOMIALS = [(degree, scale) for degree in (1, 2, 3) for scale in (0.001, 0.01, 0.1, 1.0)]


@dataclass(frozen=True)
class Machine(Cells):
    """A grid of support vector machines: its title, and a function from a table to its kernel matrices."""

    title: str
    kernels: Callable[[Table], Kernels]


def _gaussian(table: Table) -> Kernels:
    distances = squared_distances(table.features, n_jobs=1)
    unit = median_squared_distance(table.features)
    return lambda place: bell(distances, unit * POWERS_OF_TWO[place])


def _tangent(table: Table) -> Kernels:
    @functools.lru_cache(maxsize=1)
    def family(depth: int) -> dict[tuple[int, int], Array]:
        return ntk_family(table.features, depths=[depth], n_jobs=1)

    def kernel(place: int) -> Array:
        depth, fixed = _PAIRS[place]
        # Arora et al. use ReLUs without the factor √2; C has the scale of their kernel.
        return family(depth)[depth, fixed] / 2.0 ** (depth - 1)

    return kernel


def _polynomial(table: Table) -> Kernels:
    products = table.features @ table.features.T

    def kernel(place: int) -> Array:
        degree, scale = _POLYNOMIALS[place]
        return (scale * products + 1) ** degree

    return kernel


_GAMMAS = tuple(f"gamma 2^{power} median" for power in range(-19, 21))
_TANGENTS = tuple(f"depth {depth}, {fixed} fixed" for depth, fixed in _PAIRS)
_DEGREES = tuple(f"degree {degree}, scale {scale:g}" for degree, scale in _POLYNOMIALS)
MACHINES = {
    "gaussian": Machine(_GAMMAS, POWERS_OF_TWO, True, 2, "SVM, Gaussian kernel", _gaussian),
    "ntk": Machine(_TANGENTS, POWERS_OF_TEN, False, 1, "SVM, NTK", _tangent),
    "ntk-fine": Machine(_TANGENTS, POWERS_OF_TWO, False, 2, "SVM, NTK, the Gaussian's costs", _tangent),
    "polynomial": Machine(_DEGREES, POWERS_OF_TEN, False, 1, "SVM, polynomial kernel", _polynomial),
}


@dataclass(frozen=True)
class Forest:
    """Random forests. The number of features tried at each split is tuned.

    Nested tuning uses the out-of-bag accuracy in place of cross-validation.
    """

    title: str = "random forest"
    trees: int = 500
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)  # features tried at a split, over the root of their number

    def features(self, table: Table) -> list[int]:
        """Numbers of features to try at a split: `factors` times the square root of the number of features."""
        root, most = np.sqrt(table.features.shape[1]), table.features.shape[1]
        return sorted({int(np.clip(round(factor * root), 1, most)) for factor in self.factors})

    def try_split(self, table: Table, split: Rowsets, features: int, threads: int) -> tuple[int, float]:
        """The number of test rows predicted right, and the out-of-bag accuracy."""
        from sklearn.ensemble import RandomForestClassifier

        forest: Any = RandomForestClassifier(
            self.trees, max_features=features, oob_score=True, random_state=0, n_jobs=threads
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tiny tables have rows that are in every bag: no out-of-bag prediction
            forest.fit(table.features[split.train], table.labels[split.train])
        predicted = forest.predict(table.features[split.test])
        return int((predicted == table.labels[split.test]).sum()), float(forest.oob_score_)


FOREST = Forest()
METHODS = (*MACHINES, "forest")
