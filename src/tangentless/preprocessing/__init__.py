"""Preprocessing of images: whitening, standardisation, mirror images and random copies.

`ZCA` and `Standardize` are scikit-learn transformers: put them before an estimator in a pipeline, and they are saved
with it. `Augmentation`, `RandAugment` and `add_mirrors` make additional training images. They are no transformers,
since a pipeline would apply them to test images too: call them yourself, or pass them as `augmentation=...` to an
estimator or to `ZCA(copies=...)`.
"""

from .augmentation import Augmentation
from .mirrors import add_mirrors, mirror
from .randaugment import OPERATIONS, RandAugment
from .standardize import CIFAR10, Standardize
from .zca import ZCA

__all__ = ["CIFAR10", "OPERATIONS", "ZCA", "Augmentation", "RandAugment", "Standardize", "add_mirrors", "mirror"]
