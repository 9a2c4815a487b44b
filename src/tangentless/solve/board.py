"""Support vector machines over a board of cells, kernels by costs C, each tried on many splits of the same rows.

A kernel matrix is computed once for all splits and costs. Large boards are searched from coarse to fine: every other
kernel and cost first, then whatever lies next to a cell that is nearly the best so far, until nothing new does.
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
Kernels = Callable[[int], Array]  # the matrix of a kernel, by its place on the board

UNSEEN, UNSOLVED = -1, -2
MOST_STEPS = 100_000  # of a machine for two classes; a C that needs more is given up, with all larger ones,
PATIENCE = 1_000_000  # except close to the best cells, where so many may be granted
TOLERANCE = 1e-3  # libsvm's own
MARGIN = 0.5  # standard errors of the best accuracy: the search goes on around cells this close to it


@dataclass(frozen=True)
class Cells:
    """Kernels, by name, and costs. Kernels in `line` are neighbours; `stride` is the step of the coarse part."""

    names: tuple[str, ...]
    costs: tuple[float, ...]
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

        >>> board = Cells(("a", "b", "c"), (1.0, 2.0, 4.0), line=True, stride=2)
        >>> int(board.around(np.eye(3, dtype=bool) & (np.arange(3) == 0)).sum())
        4
        """
        from scipy.ndimage import binary_dilation

        wide: Mask = binary_dilation(cells, np.ones((3 if self.line else 1, 3)))
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


def mean_accuracies(right: Any, tests: Any) -> Array:
    """Mean accuracy over splits, (kernels, costs), from right answers and test rows of each; NaN where one has none."""
    counts = np.where(np.asarray(right) < 0, np.nan, right)
    mean: Array = (counts / np.asarray(tests)[:, None, None]).mean(axis=0)
    return mean


class Board:
    """Right answers of every split at every cell, (splits, kernels, costs), as far as they were tried."""

    def __init__(self, cells: Cells, kernels: Kernels, labels: Any, splits: Sequence[Any], threads: int = 1) -> None:
        self.cells, self.kernels, self.labels = cells, kernels, labels
        self.splits, self.threads = list(splits), threads  # a split has rows to `train` on and to `test` with
        self.right: Any = np.full((len(self.splits), *cells.shape), UNSEEN)
        self.tests = np.array([len(split.test) for split in self.splits])

    def fill(self, wanted: Mask, most: int | None = None) -> None:
        """Try the cells wanted, (splits, kernels, costs) or what broadcasts to it, that were not tried yet.

        With `most` steps, cells that were given up are tried again as well.
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
        return mean_accuracies(self.right[splits], self.tests[splits])

    def search(self, splits: slice) -> None:
        """Try the cells that `explore` asks for on some splits."""
        chosen = np.zeros((len(self.splits), 1, 1), bool)
        chosen[splits] = True

        def look(cells: Mask) -> Array:
            self.fill(chosen & cells)
            return self.accuracies(splits)

        self.cells.explore(look, int(self.tests[splits].sum()))

    def persist(self) -> Mask:
        """Grant more steps to machines next to the best cells, over all splits, until none is left; returns those."""
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
