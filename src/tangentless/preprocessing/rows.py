"""What the transformers share: images in, checked, a chunk at a time."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data

from ..errors import InputError
from ..kernel import slices

ROWS_AT_ONCE = 4096  # images in float64 beside the result: 100 MB of CIFAR-10


def read_rows(estimator: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Finite images (N, H, W, C), sequences or vectors, in their own dtype; unless `reset`, of the fitted shape."""
    try:
        if reset or len(estimator.shape_) == 1:
            rows: NDArray[Any] = validate_data(estimator, X, reset=reset, allow_nd=reset)
        else:
            rows = check_array(X, allow_nd=True, ensure_2d=False)
    except ValueError as error:
        raise InputError(str(error)) from None
    if not 2 <= rows.ndim <= 4:
        raise InputError(f"X must hold images (N, H, W, C), sequences or vectors, but its shape is {rows.shape}")
    if not reset and rows.shape[1:] != estimator.shape_:
        name = type(estimator).__name__
        raise InputError(f"X holds images of shape {rows.shape[1:]}, but {name} was fitted to {estimator.shape_}")
    return rows


def parts(count: int) -> list[slice]:
    """Chunks of that many rows."""
    return slices(count, ROWS_AT_ONCE)
