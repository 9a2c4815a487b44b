"""Data sets of images: published files, and your own folders.

`load` looks for the published files in a folder, packed or unpacked, and downloads missing ones. Every file is checked
against a published checksum. None is executed: the pickles of CIFAR are read as plain data.

>>> digits = load("digits")
>>> digits.train.images.shape, len(digits.test), digits.classes[7]
((1000, 8, 8, 1), 797, '7')
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetDamagedError, DatasetMissingError, ParameterError
from .catalogue import CATALOGUE, Entry
from .download import fetch
from .folders import Photographs, existing_folder, find_photographs, from_folder, read_photographs
from .formats import LayoutError
from .sources import Source, damaged, find_sources

__all__ = [
    "NAMES",
    "Dataset",
    "Photographs",
    "Split",
    "data_folders",
    "find_photographs",
    "from_folder",
    "load",
    "read_photographs",
]

NAMES = (*CATALOGUE, "digits")
_DIGITS_TRAIN = 1000
_DIGITS_HASH = "65e5b4619795efb40c1082f4c350c049e4ad552200d369b6ae99e21eef5e72c5"


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Images, uint8 (N, H, W, C), and their class numbers, int64 (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Split({len(self):,} images of {'×'.join(map(str, self.images.shape[1:]))})"

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Any) -> Split:
        """The images at some indices: a slice, an array of numbers or a mask.

        >>> len(load("digits").train.take(slice(10)))
        10
        """
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images, and the names of their classes."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    hashes: Mapping[str, str] = field(repr=False)  # sha256 by the names of the files that were read


def load(name: str, folder: str | Path | None = None, download: bool = True, *, verify: bool = True) -> Dataset:
    """A data set by name: "mnist", "cifar10", "cifar10.1", "cifar100" or "digits".

    Parameters
    ----------
    name
        "cifar10.1" (version 6) has test images only; its training split is empty. "cifar100" has the 100 fine labels.
        "digits" comes with scikit-learn: 8×8 pixels with values from 0 to 16. The first 1,000 are for training; the
        other 797, mostly written by other people, are for testing.
    folder
        An existing folder in which files are looked for, and to which missing ones are downloaded. By default files are
        looked for in `$TANGENTLESS_DATA`, then in the cache folder of the user, and downloaded to the latter.
    download
        Whether missing files may be downloaded.
    verify
        Whether every file must have the published checksum. With `verify=False`, files in the same layout may hold any
        number of images: part of a data set, or another one in its format.
    """
    if name not in NAMES:
        raise ParameterError(f"there is no data set {name!r}; there are {', '.join(NAMES)}")
    if name == "digits":
        if folder is not None:
            data_folders(folder)  # nothing is read from it, but a missing folder is still an error
        return _load_digits()
    entry, folders = CATALOGUE[name], data_folders(folder)
    try:
        source = _find(entry, folders)
    except DatasetMissingError:
        if not download:
            raise
        edition = entry.editions[0]
        place = folders[-1] if edition.archive is not None else folders[-1] / edition.folders[0]
        for address, digest in edition.remote.items():
            fetch(address, digest, place)
        source = _find(entry, folders)
    contents = source.read(verify=verify)
    hashes = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    train, test = (_join(entry, source, parts, contents) for parts in (source.edition.train, source.edition.test))
    return Dataset(name, train, test, entry.classes, hashes)


def locate(name: str) -> Path:
    """The folder or archive that `load` would read a data set of the catalogue from. Nothing is read or downloaded."""
    return _find(CATALOGUE[name], data_folders()).place


def data_folders(folder: str | Path | None = None) -> tuple[Path, ...]:
    """The folders in which data sets are looked for, in this order; downloads go to the last one.

    A folder that the caller or `$TANGENTLESS_DATA` names must exist, so that a mistyped name does not start a download.
    """
    if folder is not None:
        return (existing_folder(folder, "name a folder with data sets, or create it to download them to it"),)
    import platformdirs

    cache = Path(platformdirs.user_cache_dir("tangentless"))
    given = os.environ.get("TANGENTLESS_DATA")
    if not given:
        return (cache,)
    return existing_folder(given, "the variable TANGENTLESS_DATA names it; correct or unset it"), cache


def _find(entry: Entry, folders: tuple[Path, ...]) -> Source:
    """The first source that has all files of an edition."""
    found = [source for folder in folders for source in find_sources(entry.editions, folder)]
    for source in found:
        if not source.missing():
            return source
    if found:
        lacking = "; ".join(f"{source.place} lacks {', '.join(source.missing())}" for source in found)
        problem = f"{entry.title} is not complete: {lacking}"
    else:
        names = [edition.archive or ", ".join(edition.files()) for edition in entry.editions]
        problem = f"{entry.title} is not in {' or '.join(map(str, folders))}, which have no {' or '.join(names)}"
    advice = "put them there, set TANGENTLESS_DATA to the folder that has them, or load with download=True"
    raise DatasetMissingError(f"{problem}; {advice}")


def _join(entry: Entry, source: Source, parts: tuple[tuple[str, ...], ...], contents: dict[str, bytes]) -> Split:
    """One split from the files in `contents`; they are removed from there, to save memory."""
    images, labels = [np.empty((0, *entry.shape), np.uint8)], [np.empty(0, np.int64)]
    for files in parts:
        path = source.place / " and ".join(files)
        try:
            some, of_class = source.edition.read(*(contents.pop(file) for file in files))
        except LayoutError as error:
            raise damaged(path, str(error)) from None
        if some.shape[1:] != entry.shape:
            raise damaged(path, f"its images have shape {some.shape[1:]} instead of {entry.shape}")
        if len(of_class) and not 0 <= of_class.min() <= of_class.max() < len(entry.classes):
            known = len(entry.classes)
            raise damaged(path, f"it has labels from {of_class.min()} to {of_class.max()} instead of 0 to {known - 1}")
        images.append(some)
        labels.append(of_class)
    return Split(np.concatenate(images), np.concatenate(labels))


def _load_digits() -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images[..., None].astype(np.uint8), digits.target.astype(np.int64)
    found = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if found != _DIGITS_HASH:
        raise DatasetDamagedError("the digits of scikit-learn have an unknown checksum; install scikit-learn again")
    whole, cut = Split(images, labels), _DIGITS_TRAIN
    classes = tuple("0123456789")
    return Dataset("digits", whole.take(slice(cut)), whole.take(slice(cut, None)), classes, {"digits": found})
