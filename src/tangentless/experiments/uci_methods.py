"""The classifiers of the UCI study: support vector machines on families of kernels, and a forest of random trees.

A machine has a board of cells, kernels by costs C. A cell is tried on many splits at once, from one kernel matrix; what
is right there is counted. Larger boards are searched from coarse to fine: every other kernel and cost first, then
whatever lies next to a cell that is nearly the best so far, until nothing new does.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..classical import median_squared_distance, ntk_family, squared_distances
from ..datasets.tables import Rowsets, Table

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Kernels = Callable[[int], Array]  # the matrix of a kernel, by its place in a machine

UNSEEN, UNSOLVED = -1, -2
MOST_STEPS = 100_000  # of a machine for two classes; where C needs more, that C and larger ones are left out,
PATIENCE = 1_000_000  # but close to the best cells of the paper's protocol, where so many steps are granted
TOLERANCE = 1e-3  # libsvm's own
MARGIN = 0.5  # standard errors of the best accuracy: the search goes on around cells this close to it
POWERS_OF_TWO = tuple(2.0**power for power in range(-19, 21))
POWERS_OF_TEN = tuple(10.0**power for power in range(-2, 5))
DEPTHS = (1, 2, 3, 4, 5)
_DEGREES, _SCALES = (1, 2, 3), (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Machine:
    """Support vector machines: kernels of a table and how they are called, and the costs.

    Kernels in `line` are neighbours of one another; `stride` is the step of the coarse part of the board.
    """

    title: str
    names: tuple[str, ...]
    costs: tuple[float, ...]
    kernels: Callable[[Table], Kernels]
    line: bool
    stride: int

    @property
    def shape(self) -> tuple[int, int]:
        """The sides of the board."""
        return len(self.names), len(self.costs)

    def describe(self, cell: Sequence[int]) -> dict[str, Any]:
        """The kernel and the cost of a cell, as a record has them."""
        return {"kernel": self.names[cell[0]], "C": self.costs[cell[1]]}

    def coarse(self) -> Mask:
        """The cells that are tried first."""
        mask = np.zeros(self.shape, bool)
        mask[:: self.stride if self.line else 1, :: self.stride] = True
        return mask

    def around(self, cells: Mask) -> Mask:
        """These cells and their neighbours.

        >>> machine = Machine("", ("a", "b", "c"), (1.0, 2.0, 4.0), lambda table: None, line=True, stride=2)
        >>> int(machine.around(np.eye(3, dtype=bool) & (np.arange(3) == 0)).sum())
        4
        """
        wide = cells.copy()
        wide[:, 1:] |= cells[:, :-1]
        wide[:, :-1] |= cells[:, 1:]
        if self.line:
            tall = wide.copy()
            tall[1:] |= wide[:-1]
            tall[:-1] |= wide[1:]
            return tall
        return wide

    def explore(self, look: Callable[[Mask], Array], tests: int) -> Mask:
        """From coarse to fine: look at what is next to the best cell and to those within the margin of it.

        `look` tries cells on so many test rows, and returns the accuracies of all that were tried, NaN for the others.
        Returns the cells it was asked for.
        """
        new = seen = self.coarse()
        while new.any():
            near = self.near(look(new), tests)
            new, seen = near & ~seen, seen | near
        return seen

    def replay(self, means: Array, tests: int) -> Mask:
        """The cells that `explore` would ask for on a board with these accuracies."""
        known = np.zeros(self.shape, bool)

        def look(cells: Mask) -> Array:
            known[cells] = True
            return np.where(known, means, np.nan)

        return self.explore(look, tests)

    def near(self, means: Array, tests: int) -> Mask:
        """The cells within the margin of the best, and their neighbours."""
        best = np.nanmax(means)
        return self.around(means >= best - MARGIN * np.sqrt(best * (1 - best) / tests))


class Board:
    """Right answers of every split at every cell of a machine, (splits, kernels, costs), as far as they were tried."""

    def __init__(self, machine: Machine, table: Table, splits: Sequence[Rowsets], threads: int = 1) -> None:
        self.machine, self.table, self.splits, self.threads = machine, table, list(splits), threads
        self.kernels = machine.kernels(table)
        self.right: Any = np.full((len(self.splits), *machine.shape), UNSEEN)
        self.tests = np.array([len(split.test) for split in self.splits])

    def fill(self, wanted: Mask, most: int | None = None) -> None:
        """Try what is wanted, (splits, kernels, costs) or what broadcasts to it, and was not tried.

        With a number of steps, those that were given up are tried again as well.
        """
        missing = self.right == UNSEEN if most is None else self.right < 0
        todo = np.broadcast_to(wanted, self.right.shape) & missing
        with ThreadPoolExecutor(self.threads) as pool:
            for place in np.flatnonzero(todo.any(axis=(0, 2))).tolist():
                K, splits = self.kernels(place), np.flatnonzero(todo[:, place].any(axis=1)).tolist()
                tasks = [pool.submit(self._try, K, s, place, todo[s, place], most or MOST_STEPS) for s in splits]
                for task in tasks:
                    task.result()

    def accuracies(self, splits: slice) -> Array:
        """Mean accuracy over some splits, (kernels, costs); NaN where one of them has none."""
        right = self.right[splits].astype(float)
        right[right < 0] = np.nan
        mean: Array = (right / self.tests[splits, None, None]).mean(axis=0)
        return mean

    def search(self, splits: slice) -> None:
        """Try the cells that `explore` asks for on some splits."""
        chosen = np.zeros((len(self.splits), 1, 1), bool)
        chosen[splits] = True

        def look(cells: Mask) -> Array:
            self.fill(chosen & cells)
            return self.accuracies(splits)

        self.machine.explore(look, int(self.tests[splits].sum()))

    def persist(self) -> Mask:
        """Grant more steps to machines next to the best cells, over all splits, until none is left; returns those."""
        tried = np.zeros(self.machine.shape, bool)
        while True:
            means = self.accuracies(slice(None))
            missing = (self.right < 0).any(axis=0) & ~tried
            again = self.machine.near(means, int(self.tests.sum())) & missing
            if np.nanmax(means) == 1 or not again.any():
                return tried
            self.fill(again, PATIENCE)
            tried |= again

    def _try(self, K: Array, split: int, place: int, cells: Mask, most: int) -> None:
        from ..solve.smo import predict_pairwise, sort_by_class

        rows, labels = self.splits[split], self.table.labels
        order = rows.train[np.argsort(labels[rows.train], kind="stable")]
        present, counts = np.unique(labels[order], return_counts=True)
        starts = np.concatenate(([0], np.cumsum(counts)))
        costs = np.array(self.machine.costs)[cells]
        parts = sort_by_class(K, order, rows.test)
        winners, solved = predict_pairwise(*parts[:2], starts, parts[2], costs, TOLERANCE, most)
        right = (present[winners] == labels[rows.test]).sum(axis=1)
        right[solved:] = UNSOLVED
        self.right[split, place, cells] = right


def _gaussian(table: Table) -> Kernels:
    distances = squared_distances(table.features, n_jobs=1)
    unit = median_squared_distance(table.features)

    def kernel(place: int) -> Array:
        values = np.multiply(distances, -unit * POWERS_OF_TWO[place])
        return np.exp(values, out=values)

    return kernel


def _tangent(table: Table) -> Kernels:
    @functools.lru_cache(maxsize=1)
    def family(depth: int) -> dict[tuple[int, int], Array]:
        return ntk_family(table.features, depths=[depth], n_jobs=1)

    def kernel(place: int) -> Array:
        depth, fixed = _PAIRS[place]
        # Arora et al. do not scale ReLUs; C counts in units of their kernel.
        return family(depth)[depth, fixed] / 2.0 ** (depth - 1)

    return kernel


def _polynomial(table: Table) -> Kernels:
    products = table.features @ table.features.T

    def kernel(place: int) -> Array:
        degree, scale = _POLYNOMIALS[place]
        return (scale * products + 1) ** degree

    return kernel


_PAIRS = [(depth, fixed) for depth in DEPTHS for fixed in range(depth)]
_POLYNOMIALS = [(degree, scale) for degree in _DEGREES for scale in _SCALES]
_GAMMAS = tuple(f"gamma 2^{power} median" for power in range(-19, 21))
_TANGENTS = tuple(f"depth {depth}, {fixed} fixed" for depth, fixed in _PAIRS)

MACHINES = {
    "gaussian": Machine("SVM, Gaussian kernel", _GAMMAS, POWERS_OF_TWO, _gaussian, line=True, stride=2),
    "ntk": Machine("SVM, NTK", _TANGENTS, POWERS_OF_TEN, _tangent, line=False, stride=1),
    "ntk-fine": Machine("SVM, NTK, the Gaussian's costs", _TANGENTS, POWERS_OF_TWO, _tangent, line=False, stride=2),
    "polynomial": Machine(
        "SVM, polynomial kernel",
        tuple(f"degree {degree}, scale {scale:g}" for degree, scale in _POLYNOMIALS),
        POWERS_OF_TEN,
        _polynomial,
        line=False,
        stride=1,
    ),
}


@dataclass(frozen=True)
class Forest:
    """Random forests, with some numbers of features to choose among at each branch; rows out of the bag tune them."""

    title: str = "random forest"
    trees: int = 500
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)  # of the square root of the number of features

    def features(self, table: Table) -> list[int]:
        """Numbers of features to choose among: half the root of all, the root, and twice the root."""
        root, most = np.sqrt(table.features.shape[1]), table.features.shape[1]
        return sorted({int(np.clip(round(factor * root), 1, most)) for factor in self.factors})

    def try_split(self, table: Table, split: Rowsets, features: int, threads: int) -> tuple[int, float]:
        """Right answers on the test rows, and the accuracy out of the bag."""
        from sklearn.ensemble import RandomForestClassifier

        forest: Any = RandomForestClassifier(
            self.trees, max_features=features, oob_score=True, random_state=0, n_jobs=threads
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some rows of tiny tables are in every bag, and count as wrong out of it
            forest.fit(table.features[split.train], table.labels[split.train])
        predicted = forest.predict(table.features[split.test])
        return int((predicted == table.labels[split.test]).sum()), float(forest.oob_score_)


FOREST = Forest()
METHODS = (*MACHINES, "forest")
