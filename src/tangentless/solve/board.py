"""Grid search for support vector machines: a board of kernels × costs C, each cell tried on many splits of the rows.

A kernel matrix is computed once for all splits and costs. Large boards are searched from coarse to fine: first every
`stride`-th kernel and cost, then the neighbours of all cells within a margin of the best, until no new cell turns up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Kernels = Callable[[int], Array]  # the matrix of a kernel, by its row of the board

UNSEEN, UNSOLVED = -1, -2  # in place of a count of right answers: not tried yet, given up
MOST_STEPS = 100_000  # of a machine for two classes; a C that needs more is given up, and all larger ones with it
PATIENCE = 1_000_000  # the same limit near the best cells, which `persist` tries again
TOLERANCE = 1e-3  # libsvm's default
MARGIN = 0.5  # standard errors of the best accuracy: the search continues around cells this close to it


@dataclass(frozen=True)
class Cells:
    """The axes of a board: names of kernels (rows) and costs C (columns).

    With `line`, kernels are ordered, and consecutive ones are neighbours; otherwise only costs are. `stride` is the
    step of the coarse grid.
    """

    names: tuple[str, ...]
    costs: tuple[float, ...]
    line: bool
    stride: int

    @property
    def shape(self) -> tuple[int, int]:
        """(kernels, costs)."""
        return len(self.names), len(self.costs)

    def describe(self, cell: Sequence[int]) -> dict[str, Any]:
        """The kernel and the cost of a cell (kernel, cost), for a record."""
        return {"kernel": self.names[cell[0]], "C": self.costs[cell[1]]}

    def coarse(self) -> Mask:
        """The coarse grid, which is tried first; all kernels unless they are in `line`."""
        mask = np.zeros(self.shape, bool)
        mask[:: self.stride if self.line else 1, :: self.stride] = True
        return mask

    def around(self, cells: Mask) -> Mask:
        """These cells and their neighbours, diagonal ones included.

        >>> board = Cells(("a", "b", "c"), (1.0, 2.0, 4.0), line=True, stride=2)
        >>> int(board.around(np.eye(3, dtype=bool) & (np.arange(3) == 0)).sum())
        4
        """
        from scipy.ndimage import binary_dilation

        wide: Mask = binary_dilation(cells, np.ones((3 if self.line else 1, 3)))
        return wide

    def explore(self, look: Callable[[Mask], Array], tests: int) -> Mask:
        """Search from coarse to fine; returns the mask of all cells that were tried.

        `look(cells)` tries cells and returns the accuracies of all cells tried so far, NaN for others. `tests` is the
        number of test rows behind an accuracy, from which its standard error follows.
        """
        new = seen = self.coarse()
        while new.any():
            near = self.near(look(new), tests)
            new, seen = near & ~seen, seen | near
        return seen

    def replay(self, means: Array, tests: int) -> Mask:
        """The cells that `explore` would try on a board with these accuracies, (kernels, costs)."""
        known = np.zeros(self.shape, bool)

        def look(cells: Mask) -> Array:
            known[cells] = True
            return np.where(known, means, np.nan)

        return self.explore(look, tests)

    def near(self, means: Array, tests: int) -> Mask:
        """The cells within `MARGIN` of the best accuracy, and their neighbours."""
        best = np.nanmax(means)
        return self.around(means >= best - MARGIN * np.sqrt(best * (1 - best) / tests))


def mean_accuracies(right: Any, tests: Any) -> Array:
    """Mean accuracy over splits, (kernels, costs), from counts of right answers, (splits, kernels, costs).

    `tests` holds the number of test rows of each split. A cell that any split has not solved is NaN.
    """
    counts = np.where(np.asarray(right) < 0, np.nan, right)
    mean: Array = (counts / np.asarray(tests)[:, None, None]).mean(axis=0)
    return mean


class Board:
    """Runs cells, and keeps the number of right answers of every split at every cell, (splits, kernels, costs)."""

    def __init__(self, cells: Cells, kernels: Kernels, labels: Any, splits: Sequence[Any], threads: int = 1) -> None:
        self.cells, self.kernels, self.labels = cells, kernels, labels
        self.splits, self.threads = list(splits), threads  # a split has the attributes `train` and `test`, row numbers
        self.right: Any = np.full((len(self.splits), *cells.shape), UNSEEN)
        self.tests = np.array([len(split.test) for split in self.splits])

    def fill(self, wanted: Mask, most: int | None = None) -> None:
        """Try those cells of a mask that were not tried yet; it broadcasts to (splits, kernels, costs).

        With `most`, a limit of steps, cells that were given up are tried again as well.
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
        """Mean accuracy over some splits, (kernels, costs); NaN where any of them is not solved."""
        return mean_accuracies(self.right[splits], self.tests[splits])

    def search(self, splits: slice) -> None:
        """Search the board from coarse to fine by the mean accuracy of some splits."""
        chosen = np.zeros((len(self.splits), 1, 1), bool)
        chosen[splits] = True

        def look(cells: Mask) -> Array:
            self.fill(chosen & cells)
            return self.accuracies(splits)

        self.cells.explore(look, int(self.tests[splits].sum()))

    def persist(self) -> Mask:
        """Try given-up cells near the best ones again, with more steps, on all splits; returns the mask of them."""
        tried = np.zeros(self.cells.shape, bool)
        while True:
            means = self.accuracies(slice(None))
            missing = (self.right < 0).any(axis=0) & ~tried
            again = self.cells.near(means, int(self.tests.sum())) & missing
            if np.nanmax(means) == 1 or not again.any():
                return tried
            self.fill(again, PATIENCE)
            tried |= again

    def _try(self, K: Array, split: int, place: int, cells: Mask, most: int) -> None:
        """Train and test one kernel on one split, at all costs of the mask `cells`, (costs,)."""
        from .smo import predict_pairwise, sort_by_class

        rows, labels = self.splits[split], self.labels
        order = rows.train[np.argsort(labels[rows.train], kind="stable")]
        present, counts = np.unique(labels[order], return_counts=True)
        starts = np.concatenate(([0], np.cumsum(counts)))
        costs = np.array(self.cells.costs)[cells]
        parts = sort_by_class(K, order, rows.test)
        winners, solved = predict_pairwise(*parts[:2], starts, parts[2], costs, TOLERANCE, most)
        right = (present[winners] == labels[rows.test]).sum(axis=1)
        right[solved:] = UNSOLVED
        self.right[split, place, cells] = right
