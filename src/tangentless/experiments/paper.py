"""The numbers of the paper's image tables, in per cent, and what this package calls their rows.

From "Neural Kernels Without Tangents" (Shankar et al., 2020). A row without a method is one that the paper itself cites
from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRow:
    """A row: its label in the paper, the method or recipe in our records, and accuracies by test set."""

    label: str
    method: str | None
    accuracies: dict[str, float]


def _rows(test_sets: tuple[str, ...], *rows: tuple[str, str | None, *tuple[float, ...]]) -> tuple[PaperRow, ...]:
    """Rows of a label, a method and the accuracies on the test sets, or on the first of them."""
    return tuple(PaperRow(label, method, dict(zip(test_sets, rest, strict=False))) for label, method, *rest in rows)


TABLES: dict[str, tuple[PaperRow, ...]] = {
    "mnist": _rows(
        ("mnist",),
        ("NTK", "ntk", 98.6),
        ("ArcCosine Kernel", "arc-cosine", 98.8),
        ("Gaussian Kernel", "gaussian", 98.8),
        ("Gabor Filters + Gaussian Kernel", "gabor-gaussian", 99.4),
        ("LeNet-5", None, 99.2),
        ("CKN", None, 99.6),
        ("Myrtle5 Kernel", "myrtle5", 99.5),
        ("Myrtle5 CNN", "mnist-myrtle5", 99.5),
    ),
    "cifar10": _rows(
        ("cifar10", "cifar10.1"),
        ("Gaussian Kernel", "gaussian", 57.4),
        ("CNTK + Flips", None, 81.4),
        ("CNN-GP + Flips", None, 82.2),
        ("CKN", None, 82.2),
        ("Coates-NG + Flips", None, 85.6, 73.1),
        ("Coates-NG + CNN-GP + Flips", None, 88.9),
        ("ResNet32", None, 92.5, 84.4),
        ("Myrtle5 Kernel + No ZCA", "myrtle5-no-zca", 77.7, 62.2),
        ("Myrtle5 Kernel", "myrtle5", 85.8, 71.6),
        ("Myrtle7 Kernel", "myrtle7", 86.6, 73.1),
        ("Myrtle10 Kernel", "myrtle10", 87.5, 74.5),
        ("Myrtle10-Gaussian Kernel", "myrtle10-gaussian", 88.2, 75.1),
        ("Myrtle10-Gaussian Kernel + Flips", "myrtle10-gaussian+flips", 89.8, 78.3),
        ("Myrtle5 CNN + No ZCA", "cifar10-myrtle5-no-zca", 87.8, 75.8),
        ("Myrtle5 CNN", "cifar10-myrtle5", 89.8, 79.0),
        ("Myrtle7 CNN", "cifar10-myrtle7", 90.2, 79.7),
        ("Myrtle10 CNN", "cifar10-myrtle10", 91.2, 79.9),
        ("Myrtle10 CNN + Flips", "cifar10-myrtle10-flips", 93.4, 84.8),
        ("Myrtle10 CNN + Flips + CutOut + Crops", "cifar10-myrtle10-augmented", 96.0, 89.8),
    ),
    "cifar100": _rows(
        ("cifar100",),
        ("Myrtle10-Gaussian Kernel", "myrtle10-gaussian", 65.3),
        ("Myrtle10-Gaussian Kernel + Flips", "myrtle10-gaussian+flips", 68.2),
        ("Myrtle10 CNN", "cifar100-myrtle10", 64.7),
        ("Myrtle10 CNN + Flips", "cifar100-myrtle10-flips", 71.4),
        ("Myrtle10 CNN + BatchNorm", "cifar100-myrtle10-bn", 70.3),
        ("Myrtle10 CNN + Flips + BatchNorm", "cifar100-myrtle10-bn-flips", 74.7),
    ),
}

SUBSET_SIZES = (10, 20, 40, 80, 160, 320, 640, 1280)
# Means and standard deviations over 20 random subsets of CIFAR-10 of each size.
_SUBSETS = """
cntk                  15.33 18.79 21.34 25.48 30.48 36.57 42.63 48.86  ± 2.43 2.13 1.91 1.91 1.17 0.88 0.68 0.68
myrtle5-cnn           11.29 11.83 12.16 18.96 20.36 34.79 43.36 53.27  ± 1.48 1.34 2.20 2.04 1.68 4.60 3.80 1.55
myrtle5-cnn+batchnorm 19.60 22.82 27.53 33.58 39.96 46.96 56.03 61.94  ± 3.32 2.56 1.61 1.22 1.44 1.29 0.80 0.74
myrtle5               17.22 22.16 26.74 32.56 38.61 46.03 53.45 60.46  ± 2.95 1.69 1.56 1.12 1.06 0.82 0.80 0.58
myrtle10-gaussian     19.15 21.65 27.20 34.22 41.89 50.06 57.60 64.40  ± 1.94 2.97 1.90 1.08 1.34 1.06 0.48 0.48
linear                12.94 13.54 14.66 15.54 17.15 19.18 22.30 25.64  ± 0.74 0.69 0.60 0.61 0.64 0.71 0.57 0.61
"""


def _by_size(means: str, deviations: str) -> dict[int, tuple[float, float]]:
    pairs = zip(map(float, means.split()), map(float, deviations.split()), strict=True)
    return dict(zip(SUBSET_SIZES, pairs, strict=True))


SUBSETS: dict[str, dict[int, tuple[float, float]]] = {
    name: _by_size(*numbers.split("±"))
    for name, numbers in (line.split(maxsplit=1) for line in _SUBSETS.strip().splitlines())
}
