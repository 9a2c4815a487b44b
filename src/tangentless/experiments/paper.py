"""The numbers of the paper's image tables, in per cent, and what this package calls their rows.

From "Neural Kernels Without Tangents" (Shankar et al., 2020). A row without a method is one that the paper itself cites
from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRow:
    """A row: its label in the paper, the method in our records, and accuracies by test set."""

    label: str
    method: str | None
    accuracies: dict[str, float]


def _cifar10(label: str, method: str | None, accuracy: float, newer: float | None = None) -> PaperRow:
    return PaperRow(label, method, {"cifar10": accuracy} | ({} if newer is None else {"cifar10.1": newer}))


TABLES: dict[str, tuple[PaperRow, ...]] = {
    "mnist": tuple(
        PaperRow(label, method, {"mnist": accuracy})
        for label, method, accuracy in (
            ("NTK", "ntk", 98.6),
            ("ArcCosine Kernel", "arc-cosine", 98.8),
            ("Gaussian Kernel", "gaussian", 98.8),
            ("Gabor Filters + Gaussian Kernel", "gabor-gaussian", 99.4),
            ("LeNet-5", None, 99.2),
            ("CKN", None, 99.6),
            ("Myrtle5 Kernel", "myrtle5", 99.5),
            ("Myrtle5 CNN", "myrtle5-cnn", 99.5),
        )
    ),
    "cifar10": (
        _cifar10("Gaussian Kernel", "gaussian", 57.4),
        _cifar10("CNTK + Flips", None, 81.4),
        _cifar10("CNN-GP + Flips", None, 82.2),
        _cifar10("CKN", None, 82.2),
        _cifar10("Coates-NG + Flips", None, 85.6, 73.1),
        _cifar10("Coates-NG + CNN-GP + Flips", None, 88.9),
        _cifar10("ResNet32", None, 92.5, 84.4),
        _cifar10("Myrtle5 Kernel + No ZCA", "myrtle5-no-zca", 77.7, 62.2),
        _cifar10("Myrtle5 Kernel", "myrtle5", 85.8, 71.6),
        _cifar10("Myrtle7 Kernel", "myrtle7", 86.6, 73.1),
        _cifar10("Myrtle10 Kernel", "myrtle10", 87.5, 74.5),
        _cifar10("Myrtle10-Gaussian Kernel", "myrtle10-gaussian", 88.2, 75.1),
        _cifar10("Myrtle10-Gaussian Kernel + Flips", "myrtle10-gaussian+flips", 89.8, 78.3),
        _cifar10("Myrtle5 CNN + No ZCA", "myrtle5-cnn-no-zca", 87.8, 75.8),
        _cifar10("Myrtle5 CNN", "myrtle5-cnn", 89.8, 79.0),
        _cifar10("Myrtle7 CNN", "myrtle7-cnn", 90.2, 79.7),
        _cifar10("Myrtle10 CNN", "myrtle10-cnn", 91.2, 79.9),
        _cifar10("Myrtle10 CNN + Flips", "myrtle10-cnn+flips", 93.4, 84.8),
        _cifar10("Myrtle10 CNN + Flips + CutOut + Crops", "myrtle10-cnn+flips+cutout+crops", 96.0, 89.8),
    ),
    "cifar100": tuple(
        PaperRow(label, method, {"cifar100": accuracy})
        for label, method, accuracy in (
            ("Myrtle10-Gaussian Kernel", "myrtle10-gaussian", 65.3),
            ("Myrtle10-Gaussian Kernel + Flips", "myrtle10-gaussian+flips", 68.2),
            ("Myrtle10 CNN", "myrtle10-cnn", 64.7),
            ("Myrtle10 CNN + Flips", "myrtle10-cnn+flips", 71.4),
            ("Myrtle10 CNN + BatchNorm", "myrtle10-cnn+batchnorm", 70.3),
            ("Myrtle10 CNN + Flips + BatchNorm", "myrtle10-cnn+flips+batchnorm", 74.7),
        )
    ),
}

SUBSET_SIZES = (10, 20, 40, 80, 160, 320, 640, 1280)


def _by_size(*values: tuple[float, float]) -> dict[int, tuple[float, float]]:
    return dict(zip(SUBSET_SIZES, values, strict=True))


# Means and standard deviations over 20 random subsets of CIFAR-10 of each size.
SUBSETS: dict[str, dict[int, tuple[float, float]]] = {
    "cntk": _by_size(
        (15.33, 2.43),
        (18.79, 2.13),
        (21.34, 1.91),
        (25.48, 1.91),
        (30.48, 1.17),
        (36.57, 0.88),
        (42.63, 0.68),
        (48.86, 0.68),
    ),
    "myrtle5-cnn": _by_size(
        (11.29, 1.48),
        (11.83, 1.34),
        (12.16, 2.20),
        (18.96, 2.04),
        (20.36, 1.68),
        (34.79, 4.60),
        (43.36, 3.80),
        (53.27, 1.55),
    ),
    "myrtle5-cnn+batchnorm": _by_size(
        (19.60, 3.32),
        (22.82, 2.56),
        (27.53, 1.61),
        (33.58, 1.22),
        (39.96, 1.44),
        (46.96, 1.29),
        (56.03, 0.80),
        (61.94, 0.74),
    ),
    "myrtle5": _by_size(
        (17.22, 2.95),
        (22.16, 1.69),
        (26.74, 1.56),
        (32.56, 1.12),
        (38.61, 1.06),
        (46.03, 0.82),
        (53.45, 0.80),
        (60.46, 0.58),
    ),
    "myrtle10-gaussian": _by_size(
        (19.15, 1.94),
        (21.65, 2.97),
        (27.20, 1.90),
        (34.22, 1.08),
        (41.89, 1.34),
        (50.06, 1.06),
        (57.60, 0.48),
        (64.40, 0.48),
    ),
    "linear": _by_size(
        (12.94, 0.74),
        (13.54, 0.69),
        (14.66, 0.60),
        (15.54, 0.61),
        (17.15, 0.64),
        (19.18, 0.71),
        (22.30, 0.57),
        (25.64, 0.61),
    ),
}
