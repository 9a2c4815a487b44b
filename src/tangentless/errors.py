"""The typed errors of the package.

Every one says what was wrong, where, and what to do about it. All derive from `TangentlessError`, and from
the built-in that scikit-learn or NumPy users already catch.
"""

import difflib
from collections.abc import Iterable

import numpy as np


class TangentlessError(Exception):
    """Base class of every error this package raises on purpose."""


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A question that names the known word most like another, or nothing where none is like it.

    >>> closest("rulu", ["conv", "relu"])
    "did you mean 'relu'? "
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""


class ArchitectureError(TangentlessError, ValueError):
    """An architecture that cannot be read, or does not fit its input shape."""


class InputError(TangentlessError, ValueError):
    """Data of the wrong shape, kind or content."""


class ParameterError(TangentlessError, ValueError):
    """A parameter outside its range."""


class BackendError(TangentlessError, RuntimeError):
    """A backend that is missing, or cannot run this program."""


class NotPositiveDefinite(TangentlessError, np.linalg.LinAlgError):  # noqa: N818 (the name linear algebra uses)
    """A kernel matrix that has no Cholesky factor at the given ridge."""


class DoesNotFit(TangentlessError, MemoryError):  # noqa: N818 (what happened, as NotPositiveDefinite)
    """A matrix that is too large for the memory it was to be solved in."""


class ArchiveError(InputError):
    """Base class of what can go wrong with the file of a model or a checkpoint."""


class ArchiveForeignError(ArchiveError):
    """A file that is something else."""


class ArchiveDamagedError(ArchiveError):
    """A file that is cut short, or whose checksums are wrong."""


class ArchiveVersionError(ArchiveError):
    """A file in a format newer than this package reads."""


class StoreError(TangentlessError, OSError):
    """Base class of what can go wrong with a kernel matrix in a store."""


class NotAStoreError(StoreError):
    """An address that holds something else, or nothing."""


class StoreVersionError(StoreError):
    """A store in a format newer than this package reads."""


class StoreMismatchError(StoreError):
    """A store made from something other than what it is to be continued with."""


class StoreLockedError(StoreError):
    """A store that another process is writing."""


class StoreDamagedError(StoreError):
    """A file of a store whose checksum or length is wrong."""


class StoreIncompleteError(StoreError):
    """A part of a store that was asked for before it was computed."""


class StoreWriteError(StoreError):
    """A store that cannot be written: full, read-only, or gone."""


class StoreAccessError(StoreError):
    """A store whose address or credentials are refused, or that does not answer."""


class ClusterError(TangentlessError, RuntimeError):
    """A cluster that is gone, or whose workers cannot do the work."""


class DatasetError(TangentlessError, OSError):
    """Base class of what can go wrong with the files of a data set."""


class DatasetMissingError(DatasetError):
    """Files of a data set that are nowhere to be found."""


class DatasetDamagedError(DatasetError):
    """A file of a data set that is cut short, or not the one that was published."""


class DownloadError(DatasetError):
    """A file that could not be downloaded."""
