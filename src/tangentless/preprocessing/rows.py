"""Rows at the door of transformers and estimators: checked, and worked on a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_array, validate_data

from ..chunks import spans
from ..errors import InputError
from ..inputs import shape_hint, without_tensor

ROWS_AT_ONCE = 4096  # images in float64 beside the result: 100 MB of CIFAR-10
_NUMBERS_AT_ONCE = 2**24  # and of larger images as many as that


class KeepsInputs(TransformerMixin):  # type: ignore[misc]  # scikit-learn is untyped
    """A transformer in a pipeline keeps what it was fitted to, not a copy, where that has fewer bytes than its result.

    Model files hold these bytes in place of the result, which is computed again when they are read.
    """

    inputs_: NDArray[Any] | None = None

    def fit_transform(self, X: Any, y: Any = None, **parameters: Any) -> NDArray[Any]:
        """Fit to X, and transform it."""
        result: NDArray[Any] = super().fit_transform(X, y, **parameters)
        self.inputs_ = X if isinstance(X, np.ndarray) and X.nbytes < np.asarray(result).nbytes else None
        return result


def read_rows(estimator: Any, X: Any, shape: tuple[int, ...] | None = None, *, finite: bool = True) -> NDArray[Any]:
    """Images (N, H, W, C), sequences or vectors, in their own dtype; with a shape, of that, as they were fitted."""
    first, X = shape is None, without_tensor(X)
    with input_errors():
        if shape is None or len(shape) == 1:
            options = {"reset": first, "allow_nd": first, "ensure_all_finite": finite}
            rows: NDArray[Any] = validate_data(estimator, X, **options)
        else:
            rows = check_array(X, allow_nd=True, ensure_2d=False, ensure_all_finite=finite)
    if shape is None and not 2 <= rows.ndim <= 4:
        raise InputError(f"X must hold images (N, H, W, C), sequences or vectors, but its shape is {rows.shape}")
    if shape is not None and rows.shape[1:] != shape:
        fitted = f"{type(estimator).__name__} was fitted to rows of shape {shape}"
        hint = shape_hint(rows.shape, shape)
        raise InputError(f"X holds rows of shape {rows.shape[1:]}, but {fitted}{hint}")
    return rows


def parts(count: int, numbers: int = 1) -> Iterator[slice]:
    """Chunks of that many rows, of so many numbers each."""
    return spans(count, min(ROWS_AT_ONCE, max(1, _NUMBERS_AT_ONCE // numbers)))


@contextmanager
def input_errors() -> Iterator[None]:
    """Scikit-learn's complaints about data, as the typed error of this package."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None
