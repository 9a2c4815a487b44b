"""The typed errors of the package.

Every message says what was wrong, where, and what to do about it. Every class derives from `TangentlessError` and from
the built-in exception that users of NumPy or scikit-learn already catch.
"""

import difflib
from collections.abc import Iterable

import numpy as np


class TangentlessError(Exception):
    """Base class of every error this package raises on purpose."""


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The question `did you mean` with the known word most similar to `word`; empty if no word is similar.

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
    """A backend that is missing, or that cannot run this computation."""


class NotPositiveDefinite(TangentlessError, np.linalg.LinAlgError):  # noqa: N818 (the name linear algebra uses)
    """A kernel matrix that has no Cholesky factor at the given ridge."""


class DoesNotFit(TangentlessError, MemoryError):  # noqa: N818 (named like NotPositiveDefinite)
    """A matrix or computation that is too large for the memory of its device."""


class ArchiveError(InputError):
    """Base class of errors in the file of a model or a checkpoint."""


class ArchiveForeignError(ArchiveError):
    """A file that is not a model or checkpoint of this package."""


class ArchiveDamagedError(ArchiveError):
    """A file that is cut short, or whose checksums are wrong."""


class ArchiveVersionError(ArchiveError):
    """A file in a format newer than this package reads."""


class StoreError(TangentlessError, OSError):
    """Base class of errors in a store, which holds a kernel matrix."""


class NotAStoreError(StoreError):
    """An address that holds no store: something else, or nothing."""


class StoreVersionError(StoreError):
    """A store in a format newer than this package reads."""


class StoreMismatchError(StoreError):
    """A store whose kernel, data or settings are not those it is to be continued with."""


class StoreLockedError(StoreError):
    """A store that another process is writing."""


class StoreDamagedError(StoreError):
    """A file of a store whose checksum or length is wrong."""


class StoreIncompleteError(StoreError):
    """A requested part of a store that has not been computed yet."""


class StoreWriteError(StoreError):
    """A store that cannot be written: full, read-only, or gone."""


class StoreAccessError(StoreError):
    """A store whose address or credentials are refused, or that does not answer."""


class ClusterError(TangentlessError, RuntimeError):
    """A cluster that is gone, or whose workers cannot do the work."""


class DatasetError(TangentlessError, OSError):
    """Base class of errors in the files of a data set."""


class DatasetMissingError(DatasetError):
    """Files of a data set that cannot be found."""


class DatasetDamagedError(DatasetError):
    """A file of a data set that is cut short, or differs from the published one."""


class DownloadError(DatasetError):
    """A file that could not be downloaded."""
