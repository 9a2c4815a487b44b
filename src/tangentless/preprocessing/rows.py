"""Checks of the rows that transformers and estimators take, and their chunks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_array, validate_data

from ..chunks import spans
from ..errors import InputError
from ..inputs import shape_hint, without_tensor

ROWS_AT_ONCE = 4096  # rows in a chunk: 100 MB of CIFAR-10 in float64
_NUMBERS_AT_ONCE = 2**24  # numbers in a chunk of larger images: 128 MiB in float64


Fit = TypeVar("Fit", bound=Callable[..., Any])


def whole_or_not(fit: Fit) -> Fit:
    """A fit that leaves an estimator as it was if it fails or is interrupted: no new images with old coefficients."""

    @functools.wraps(fit)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast(Fit, run)


class KeepsInputs(TransformerMixin):  # type: ignore[misc]  # scikit-learn is untyped
    """A transformer that keeps a reference to its training rows if they have fewer bytes than their transforms.

    Model files then hold these rows instead of the transformed ones, which are computed again on loading.
    """

    inputs_: NDArray[Any] | None = None

    def fit_transform(self, X: Any, y: Any = None, **parameters: Any) -> NDArray[Any]:
        """Fit to X and transform it."""
        result: NDArray[Any] = super().fit_transform(X, y, **parameters)
        self.inputs_ = X if isinstance(X, np.ndarray) and X.nbytes < np.asarray(result).nbytes else None
        return result


def read_rows(estimator: Any, X: Any, shape: tuple[int, ...] | None = None, *, finite: bool = True) -> NDArray[Any]:
    """Rows in their own dtype, checked: images (N, H, W, C), sequences or vectors.

    `fit` passes no shape. Later calls pass the shape that the estimator was fitted to, which the rows must have.
    """
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


def set_shape(estimator: Any, shape: tuple[int, ...]) -> None:
    """Set `shape_` and `n_features_in_` of an estimator; with `mirrors` it cannot take vectors."""
    estimator.shape_, estimator.n_features_in_ = shape, math.prod(shape)
    if getattr(estimator, "mirrors", False) and len(shape) < 2:
        raise InputError("vectors have no mirror image; mirrors=True needs sequences or images")


def parts(count: int, numbers: int = 1) -> Iterator[slice]:
    """Slices of `count` rows, in chunks of bounded memory; a row has `numbers` numbers."""
    return spans(count, min(ROWS_AT_ONCE, max(1, _NUMBERS_AT_ONCE // numbers)))


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn scikit-learn's errors about data into `InputError`."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None
