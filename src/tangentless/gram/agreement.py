"""Whether a store may be continued with what is given; if not, the error names every difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ..errors import ParameterError, StoreMismatchError
from .files import Files
from .manifest import Manifest, differences, hash_rows
from .metadata import clear_leftovers, is_vacant, read_manifest


def settle(files: Files, given: Manifest, x: NDArray[Any], *, extend: bool, tile: int | None) -> Manifest:
    """The manifest to go on with: the given one for a new store, else the stored one, extended if that is allowed."""
    if extend and given.z is not None:
        raise ParameterError(
            "only the matrix of X with itself can be extended; for new rows of k(X, Z) start a new store"
        )
    if is_vacant(files):
        clear_leftovers(files)
        return given
    stored = read_manifest(files, derived=False)
    given = replace(given, tile=tile or stored.tile, grown_from=stored.grown_from)
    longer = stored.symmetric and given.symmetric and _continues(stored, given, x)
    if longer and extend:
        stored = stored.grown_to(given.x)
    hint = "The first rows are the same: to add the new ones, pass extend=True. " if longer else ""
    refuse_differences(stored, given, files.address, hint)
    return stored


def refuse_differences(stored: Manifest, given: Manifest, where: str, hint: str = "") -> None:
    """Raise `StoreMismatchError` unless two manifests agree."""
    found = list(differences(stored, given))
    if found:
        raise StoreMismatchError(
            f"{where} cannot be continued: {'; '.join(found)}. {hint}Give what it was made with, or start a new store."
        )


def _continues(stored: Manifest, given: Manifest, x: NDArray[Any]) -> bool:
    """Whether X begins with the images that are stored, and goes on."""
    rows = stored.x.shape[0]
    alike = stored.x.dtype == given.x.dtype and stored.x.shape[1:] == given.x.shape[1:]
    return alike and len(x) > rows and hash_rows(x, rows) == [stored.x.sha256]
