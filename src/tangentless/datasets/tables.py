"""Tables of the UCI repository as Fernández-Delgado et al. (2014) published them, with the splits they fixed.

A folder NAME holds four files. Row numbers start at 0.

- `NAME_R.dat`: a line of names, then on each line a row number, standardised features and the class
- `NAME.txt`: the numbers of rows, features and classes
- `conxuntos.dat`: one split into two halves, for tuning
- `conxuntos_kfold.dat`: four random splits, three quarters for training and one for testing

Other content is an error that names the file and the reason. Odd but usable tables are kept, with a note.

The archive has no published checksum. Instead, `tables.csv` has the sha256 of the files of each of the 90 tables that
studies of small data use, computed from other copies of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetDamagedError, DatasetMissingError, InputError, closest
from ..files import read_csv
from . import data_folders
from .download import fetch

Rows = NDArray[np.int64]
ADDRESS = "http://persoal.citius.usc.es/manuel.fernandez.delgado/papers/jmlr"
ARCHIVE, RESULTS = "data.tar.gz", "results.txt"
RESULTS_DIGEST = "sha256:19d78a177e75d34321d21c8784b984d419799349018cfdad997d06f5c1d9c649"
FOLDER = "uci"
_TUNING, _FOLDS = "conxuntos.dat", "conxuntos_kfold.dat"
_SPLITS = 4  # in _FOLDS
_LISTED = 6  # most tables that an error names
_SUMMARIES = ("min", "max", "mean", "std")  # columns of the published results that are not classifiers


@dataclass(frozen=True)
class Rowsets:
    """Rows to train on and rows to test with."""

    train: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class Table:
    """A table with its splits: one for tuning, and four whose accuracies are reported."""

    name: str
    features: NDArray[np.float64]  # (N, C)
    labels: Rows  # class numbers from 0, (N,)
    tuning: Rowsets
    folds: tuple[Rowsets, ...]
    digest: str  # sha256 of the four files
    notes: tuple[str, ...] = ()  # oddities that do not prevent its use

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.labels.max()) + 1


@functools.cache
def known_tables() -> dict[str, str]:
    """The 90 tables of at most 5,000 rows, each with the sha256 of its files.

    >>> len(known_tables()), "iris" in known_tables()
    (90, True)
    """
    return {row["table"]: row["sha256"] for row in read_csv(__package__, "tables.csv")}


def find_tables(folder: str | Path | None = None) -> Path:
    """The folder with the folders of tables: a data folder, or `uci` in it, to which missing tables are downloaded."""
    places = data_folders(folder)
    for place in places:
        for candidate in (place / FOLDER, place):
            if any(candidate.glob(f"*/{_FOLDS}")):
                return candidate
    target = places[-1] / FOLDER
    archive = fetch(f"{ADDRESS}/{ARCHIVE}", None, places[-1])
    unpack(archive, target)
    return target


def find_results(tables: Path) -> Path:
    """The file with the published accuracies of 179 classifiers, downloaded to the folder of tables if missing."""
    path = tables / RESULTS
    return path if path.is_file() else fetch(f"{ADDRESS}/{RESULTS}", RESULTS_DIGEST, tables)


@dataclass(frozen=True, eq=False)
class Results:
    """Published accuracies of classifiers on tables."""

    tables: tuple[str, ...]
    classifiers: tuple[str, ...]
    accuracies: NDArray[np.float64]  # in percent, (tables, classifiers); NaN where a classifier failed

    def take(self, tables: Sequence[str]) -> Results:
        """The rows of some tables, in the order given."""
        if missing := [name for name in tables if name not in self.tables]:
            raise InputError(f"the published results have no row for {', '.join(missing)}")
        rows = [self.tables.index(name) for name in tables]
        return Results(tuple(tables), self.classifiers, self.accuracies[rows])


def read_results(path: Path) -> Results:
    """The accuracies of 179 classifiers on 121 tables in `results.txt`, as Fernández-Delgado et al. published them."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not lines or lines[0][:1] != ["problema"]:
        raise InputError(f"{path} is not the table of published results: its first word is not 'problema'")
    names = [name for name in lines[0][1:] if name not in _SUMMARIES]
    rows = [line for line in lines[1:] if len(line) == len(lines[0])]
    try:
        values = [[math.nan if word == "--" else float(word) for word in row[1 : len(names) + 1]] for row in rows]
    except ValueError as error:
        raise InputError(f"{path} holds something other than numbers: {error}") from None
    return Results(tuple(row[0] for row in rows), tuple(names), np.array(values))


def unpack(archive: Path, target: Path) -> None:
    """Extract the files of the tables from the published archive, and nothing else."""
    try:
        with tarfile.open(archive) as stream:
            for member in stream:
                path = Path(member.name)
                table = path.parent.name
                content = stream.extractfile(member) if member.isfile() and path.name in _files(table) else None
                if content is not None:
                    (target / table).mkdir(parents=True, exist_ok=True)
                    (target / table / path.name).write_bytes(content.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        problem = f"{archive} cannot be unpacked: {error}"
        raise DatasetDamagedError(f"{problem}; remove it to have it downloaded again") from None
    if not any(target.glob(f"*/{_FOLDS}")):
        raise DatasetDamagedError(f"{archive} holds no tables: none of its folders has {_FOLDS}")


def read_table(name: str, folder: Path, *, verify: bool = True) -> Table:
    """Read a table from its folder in `folder`. With `verify`, one of `known_tables` must have its digest."""
    place = folder / name
    if not place.is_dir():
        raise missing_table(name, folder)
    contents = {file: _read(place / file) for file in _files(name)}
    digest = hashlib.sha256(b"\0".join(contents[file] for file in sorted(contents))).hexdigest()
    known = known_tables().get(name)
    if verify and known is not None and known != digest:
        raise DatasetDamagedError(
            f"the files in {place} do not have the known checksum of the table {name}; get them again, or rename the "
            "folder if they are another table"
        )
    rows, counts, tuning, folds = ((place / file, _lines(content)) for file, content in contents.items())
    features, labels, notes = _parse_rows(*rows)
    _check_counts(*counts, features, labels)
    halves, quarters = _parse_splits(*tuning, len(labels), 1), _parse_splits(*folds, len(labels), _SPLITS)
    for split in (*halves, *quarters):
        if len(np.unique(labels[split.train])) < 2:
            raise DatasetDamagedError(f"{place}: the training rows of a split are all of one class")
    return Table(name, features, labels, halves[0], quarters, digest, notes)


def _files(name: str) -> tuple[str, ...]:
    return (f"{name}_R.dat", f"{name}.txt", _TUNING, _FOLDS)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetMissingError(f"cannot read {path}: {error.strerror}; every table needs this file") from None


def _lines(content: bytes) -> dict[int, str]:
    """The lines that are not empty, by line number."""
    lines = enumerate(content.decode("ascii", errors="replace").splitlines(), start=1)
    return {number: line for number, line in lines if line.strip()}


def _parse_rows(path: Path, lines: dict[int, str]) -> tuple[NDArray[np.float64], Rows, tuple[str, ...]]:
    lines.pop(1, None)  # the names of the columns
    rows: list[list[float]] = []
    for number, line in lines.items():
        try:
            row = [float(word) for word in line.split()[1:]]
        except ValueError:
            raise DatasetDamagedError(f"{path}, line {number}: not numbers: {line[:60]!r}") from None
        if rows and len(row) != len(rows[0]):
            raise DatasetDamagedError(f"{path}, line {number}: {len(row)} numbers instead of {len(rows[0])}")
        if not np.isfinite(row).all():
            raise DatasetDamagedError(f"{path}, line {number}: a value is not finite")
        rows.append(row)
    if not rows or len(rows[0]) < 2:
        raise DatasetDamagedError(f"{path} holds no rows of features and a class")
    values = np.array(rows)
    classes, labels, counts = np.unique(values[:, -1], return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise DatasetDamagedError(f"all rows of {path} are of one class")
    features, notes = values[:, :-1], []
    if constant := int((features == features[0]).all(axis=0).sum()):
        notes.append(f"{constant} constant feature{'s' if constant > 1 else ''}, which no kernel here sees")
    if alone := int((counts == 1).sum()):
        notes.append(f"{alone} class{'es' if alone > 1 else ''} of one row, which cannot be both trained on and tested")
    return np.ascontiguousarray(features), labels.astype(np.int64), tuple(notes)


def _check_counts(path: Path, lines: dict[int, str], features: NDArray[np.float64], labels: Rows) -> None:
    """Compare with the counts in NAME.txt, to notice files that were cut off at the end of a line."""
    pairs = (line.partition("=") for line in lines.values())
    said = {key.strip(): value.strip() for key, _, value in pairs}
    if (files := said.get("n_arquivos", "1")) != "1":
        raise DatasetDamagedError(f"{path}: tables in {files} files, with a separate test set, are not supported")
    found = {
        ("n_entradas", "features"): features.shape[1],
        ("n_clases", "classes"): int(labels.max()) + 1,
        ("n_patrons1", "rows"): len(labels),
    }
    for (key, meaning), count in found.items():
        if said.get(key) != str(count):
            rows = path.with_name(f"{path.stem}_R.dat")
            raise DatasetDamagedError(f"{rows} has {count} {meaning}, but {path} says {said.get(key, 'nothing')}")


def _parse_splits(path: Path, lines: dict[int, str], rows: int, count: int) -> tuple[Rowsets, ...]:
    parts = []
    for number, line in lines.items():
        try:
            part = np.array(line.split(), dtype=np.int64)
        except (ValueError, OverflowError):
            raise DatasetDamagedError(f"{path}, line {number}: not row numbers: {line[:60]!r}") from None
        if part.min() < 0 or part.max() >= rows or len(np.unique(part)) != len(part):
            raise DatasetDamagedError(f"{path}, line {number}: rows repeat, or are not from 0 to {rows - 1}")
        parts.append(part)
    if len(parts) != 2 * count:
        raise DatasetDamagedError(f"{path} has {len(parts)} lines of rows instead of {2 * count}: folds are missing")
    splits = tuple(Rowsets(*parts[i : i + 2]) for i in range(0, len(parts), 2))
    for place, split in enumerate(splits):
        if len(np.intersect1d(split.train, split.test)):
            raise DatasetDamagedError(f"{path}, split {place + 1}: some rows are both in its training and its test set")
    return splits


def missing_table(name: str, folder: Path) -> DatasetMissingError:
    """The error for a table that has no folder. It suggests a similar name, or else lists some tables."""
    names = sorted(path.parent.name for path in folder.glob(f"*/{_FOLDS}"))
    others = f" and {len(names) - _LISTED} others" if len(names) > _LISTED else ""
    hint = closest(name, names) or f"there are {', '.join(names[:_LISTED])}{others}"
    return DatasetMissingError(f"there is no folder {folder / name}; {hint}".strip())
