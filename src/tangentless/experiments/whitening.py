"""ZCA of a whole training set, fitted once and kept in a file, since every run of an experiment needs the same one.

It is fitted to the images and their mirror images, so that it commutes with mirroring, and to all training images
whatever share of them a run trains on: whitening uses no labels, and one kernel matrix then serves every size.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import Dataset
from ..errors import InputError
from ..files import load_array, save_array
from ..preprocessing import ZCA
from .records import make_folder

Images = NDArray[np.float32]


@dataclass(frozen=True)
class Whitening:
    """Which ZCA: its epsilon, and how many augmented copies of every training image it is fitted to besides."""

    epsilon: float
    copies: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        about = {"epsilon": self.epsilon, "mirrors": True, "fitted to": "all training images"}
        return {"zca": {**about, "copies": self.copies} if self.copies else about}

    def fit(self, dataset: Dataset, folder: Path, backend: str = "cpu") -> ZCA:
        """The whitening of a data set, from a folder where it has been kept, or else fitted and kept there."""
        make_folder(folder)
        key = json.dumps([self.to_json(), dict(dataset.hashes)], sort_keys=True)
        path = folder / f"{dataset.name}-zca-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npy"
        shape = dataset.train.images.shape[1:]
        zca = ZCA(self.epsilon, mirrors=True, copies=self.copies, backend="cuda" if backend == "cuda" else "cpu")
        if not path.exists():
            save_array(path, zca.fit(dataset.train.images).whitening_)
            return zca
        whitening = load_array(path)
        if whitening.shape != (np.prod(shape),) * 2 or whitening.dtype != np.float64:
            raise InputError(f"{path} does not hold the whitening its name says; remove it, and it is fitted again")
        zca.shape_, zca.n_features_in_, zca.whitening_ = shape, len(whitening), whitening
        return zca
