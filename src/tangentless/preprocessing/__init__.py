"""Preprocessing of images: whitening, standardisation, mirror images, and random copies for whitening.

`ZCA` and `Standardize` are transformers of scikit-learn: put them before an estimator in a pipeline, and they are saved
with it. `Augmentation`, `RandAugment` and `add_mirrors` make more training images, which a pipeline must not do to
those it predicts for; they are called by hand, by estimators with `augmentation=...`, or by `ZCA(copies=...)`.
"""

from .augmentation import Augmentation
from .mirrors import add_mirrors, mirror
from .randaugment import OPERATIONS, RandAugment
from .standardize import CIFAR10, Standardize
from .zca import ZCA

__all__ = ["CIFAR10", "OPERATIONS", "ZCA", "Augmentation", "RandAugment", "Standardize", "add_mirrors", "mirror"]
