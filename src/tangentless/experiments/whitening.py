"""ZCA of a whole training set, fitted once and saved to a file, since every run of an experiment needs the same one.

It is fitted to the images and their mirror images, so that it commutes with mirroring. It is always fitted to all
training images, however many of them a run trains on: whitening uses no labels, and one kernel matrix then serves every
size of training set. Augmentations that the tables need beside it are here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..datasets import Dataset
from ..errors import InputError
from ..files import load_array, make_folder, save_array
from ..preprocessing import ZCA, Augmentation
from ..preprocessing.saving import restore_step
from .records import digest


@dataclass(frozen=True)
class Whitening:
    """The options of a ZCA: its epsilon, and the number of augmented copies of every image to fit it to as well."""

    epsilon: float
    copies: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        about = {"epsilon": self.epsilon, "mirrors": True, "fitted to": "all training images"}
        return {"zca": {**about, "copies": self.copies} if self.copies else about}

    def fit(self, dataset: Dataset, folder: Path, backend: str = "cpu") -> ZCA:
        """The ZCA of a data set: read from its file in `folder`, or fitted and saved there."""
        make_folder(folder)
        path = folder / f"{dataset.name}-zca-{digest([self.to_json(), dict(dataset.hashes)])}.npy"
        zca = ZCA(self.epsilon, mirrors=True, copies=self.copies, verbose=True)
        zca.backend = "cuda" if backend == "cuda" else "cpu"
        if not path.exists():
            save_array(path, zca.fit(dataset.train.images).whitening_)
        try:
            shape = dataset.train.images.shape[1:]
            kept = cast(ZCA, restore_step(zca.get_params(deep=False), lambda name: load_array(path), shape))
        except InputError as error:
            raise InputError(f"{path} does not hold this whitening; remove it to fit it again: {error}") from None
        kept.backend = zca.backend
        return kept


@dataclass(frozen=True, eq=False)
class BytesFirst(Augmentation):
    """An augmentation of whitened images whose RandAugment is applied to the bytes, before whitening."""

    rows: Any = None  # the images as bytes, in the order of the whitened ones
    whiten: Callable[[Any], Any] = np.asarray

    def copy(self, images: NDArray[Any], *key: int) -> NDArray[Any]:
        changed = Augmentation(randaugment=self.randaugment, seed=self.seed).copy(self.rows[: len(images)], *key)
        rest = Augmentation(self.crop, self.flips, self.cutout, seed=self.seed)
        return rest.copy(self.whiten(changed).astype(images.dtype), *key)


@dataclass(frozen=True)
class Draw(Augmentation):
    """Draw `number` of the augmentation `of`: lets the estimator fit one member of an ensemble alone."""

    of: Augmentation = field(default_factory=Augmentation)
    number: int = 0

    def copy(self, images: NDArray[Any], *key: int) -> NDArray[Any]:
        return self.of.copy(images, self.number)

    def views(self, members: int) -> list[str | None]:
        return self.of.views(self.number + 1)[-1:]
