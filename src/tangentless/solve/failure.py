"""Why a matrix has no Cholesky factor, and a ridge that gives it one: the text of `NotPositiveDefinite`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra import Algebra
from ..chunks import spans
from .blocked import EPSILON, Failure, factorise, restore, rounding

Array = NDArray[np.float64]

_NAMED = 5  # rows or pairs that an error spells out
_FLOAT32_NOISE = 1e-6  # kernels computed in float32 are right to 1e-7; a pivot collects several such errors
_FEW_DIGITS = 1e-3  # of the diagonal: a ridge that errors of float32 in many rows together may need
_COLUMNS_AT_ONCE = 256


def explain(on: Algebra, work: Any, diagonal: Any, added: Any, failure: Failure, block: int) -> str:
    """What is wrong with a matrix, of which `work` still holds the upper triangle, and a ridge that puts it right.

    `added` is what was added to the diagonal; it is the ridge where rows have no weights.
    """
    own, ridge = on.download(diagonal), float(added.min())
    scale = max(ridge, float(np.abs(own).max())) or 1.0
    # A negative pivot shows errors of about its size in K; those that float32 arithmetic may leave hide duplicates.
    noise = max(rounding(len(own)) * scale, min(-2 * failure.pivot, _FLOAT32_NOISE * scale))
    cause = ""
    if ridge <= noise:  # a larger ridge keeps even such rows apart, so they are not to blame
        cause = _name_empty(own) or _name_duplicates(on, work, diagonal, noise)
    cause = cause or _name_pivot(own + on.download(added), failure)
    remedy = _find_ridge(on, work, diagonal, max(10 * noise, 2 * ridge), block)
    doubt = ""
    if remedy > math.sqrt(EPSILON) * scale:
        few_digits = remedy < _FEW_DIGITS * scale
        reason = "was computed with too few digits" if few_digits else "is not a kernel matrix"
        doubt = f", but so large a ridge means that K {reason}"
    return f"K + ridge I is not positive definite at ridge={ridge:g}: {cause}; ridge={remedy:.0e} would work{doubt}"


def close_pairs(on: Algebra, work: Any, diagonal: Any, noise: float) -> Iterator[NDArray[np.intp]]:
    """Pairs i < j at a squared distance `K[i, i] + K[j, j] - 2 K[i, j]` that is not above the noise, by j, (k, 2)."""
    for columns in spans(len(work), _COLUMNS_AT_ONCE):
        distances = diagonal[: columns.stop, None] + diagonal[None, columns] - 2 * work[: columns.stop, columns]
        close = on.xp.triu(abs(distances) <= noise, 1 - columns.start)
        found = np.argwhere(on.download(close).T)
        yield np.column_stack([found[:, 1], columns.start + found[:, 0]])


def _name_empty(diagonal: Array) -> str:
    """Rows without any feature, such as black images."""
    rows = np.flatnonzero(diagonal == 0)
    if not rows.size:
        return ""
    named = ", ".join(map(str, rows[:_NAMED])) + (", ..." if len(rows) > _NAMED else "")
    return f"K[i, i] = 0, as of a black image, for {len(rows)} of {len(diagonal)} rows ({named}): drop them"


def _name_duplicates(on: Algebra, work: Any, diagonal: Any, noise: float) -> str:
    count = 0
    named: list[str] = []
    for pairs in close_pairs(on, work, diagonal, noise):
        count += len(pairs)
        named += [f"{i} and {j}" for i, j in pairs[: _NAMED - len(named)]]
    if not count:
        return ""
    counted = "1 pair" if count == 1 else f"{count} pairs"
    rest = ", ..." if count > len(named) else ""
    return f"to the kernel, {counted} of rows are duplicates ({', '.join(named)}{rest}): drop one of each"


def _name_pivot(diagonal: Array, failure: Failure) -> str:
    row, pivot = failure
    return f"the rows before row {row} explain all of it, and leave a pivot of {pivot:.2g} of {diagonal[row]:.6g}"


def _find_ridge(on: Algebra, work: Any, diagonal: Any, least: float, block: int) -> float:
    """The first power of ten from `least` on at which the factorisation passes.

    Attempts that fail stop at the row where they do, so the search costs little more than one factorisation.
    """
    remedy = 10.0 ** math.ceil(math.log10(least))
    while math.isfinite(remedy):
        restore(on, work)
        if factorise(on, work, diagonal + remedy, block) is None:
            break
        remedy *= 10
    return remedy
