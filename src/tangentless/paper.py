"""The numbers of the paper's image tables, in per cent, and the names of their rows in this package.

The paper is "Neural Kernels Without Tangents" (Shankar et al., 2020). A row without a method is one that the paper
cites from other work. The numbers are in `paper.csv`, those of random subsets of CIFAR-10 in `paper_subsets.csv`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .files import read_csv


@dataclass(frozen=True)
class PaperRow:
    """A row: its label in the paper, the name of our method or recipe (None if cited), and accuracies by test set."""

    label: str
    method: str | None
    accuracies: dict[str, float]


TABLES: dict[str, list[PaperRow]] = {}
for _row in read_csv(__package__, "paper.csv"):
    _table, _label, _method = (_row.pop(_name) for _name in ("table", "label", "method"))
    _accuracies = {test_set: float(value) for test_set, value in _row.items() if value}
    TABLES.setdefault(_table, []).append(PaperRow(_label, _method or None, _accuracies))

# Means and standard deviations over 20 random subsets of CIFAR-10, by kernel or network and number of images.
SUBSETS: dict[str, dict[int, tuple[float, float]]] = {}
for _row in read_csv(__package__, "paper_subsets.csv"):
    SUBSETS.setdefault(_row["name"], {})[int(_row["images"])] = float(_row["mean"]), float(_row["deviation"])


def printed(table: str, method: str, test_set: str) -> float | None:
    """The accuracy that the paper prints for a method on a test set; None if there is none.

    >>> printed("cifar10", "myrtle5", "cifar10.1")
    71.6
    """
    row = next((row for row in TABLES[table] if row.method == method), None)
    return None if row is None else row.accuracies.get(test_set)
