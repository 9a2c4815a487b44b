"""Checks of ridges, targets and weights, common to all solvers."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from .matrices import as_numbers, check_finite

Array = NDArray[np.float64]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether the value is a finite real number within the range of float64, and not a bool.

    >>> is_number(3), is_number(True), is_number("3"), is_number(float("nan")), is_number(10**400)
    (True, False, False, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return False
    number: Any = value.item() if isinstance(value, np.generic) else value
    return bool(-sys.float_info.max <= number <= sys.float_info.max)


def check_ridge(ridge: Any, others: str = "") -> float:
    """The ridge as a float; raises `ParameterError` unless it is finite and at least 0.

    >>> check_ridge(-1)
    Traceback (most recent call last):
        ...
    tangentless.errors.ParameterError: ridge must be a finite number of at least 0, not -1
    """
    if not is_number(ridge) or ridge < 0:
        raise ParameterError(f"ridge must be a finite number of at least 0{others}, not {ridge!r}")
    return float(ridge)


def fixed_ridge(ridge: Any) -> float | None:
    """As `check_ridge`; None for "loo", where leave-one-out will choose the ridge.

    >>> fixed_ridge("lo")
    Traceback (most recent call last):
        ...
    tangentless.errors.ParameterError: ridge must be a finite number of at least 0, or 'loo', not 'lo'
    """
    return None if isinstance(ridge, str) and ridge == "loo" else check_ridge(ridge, ", or 'loo'")


def check_targets(Y: Any, rows: int) -> Array:
    """Y as a float64 array, (rows,) or (rows, targets); raises `InputError` unless it has this shape and is finite.

    >>> check_targets([1, 2], rows=3)
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: K has 3 rows, but Y has 2; they must match
    """
    targets = as_numbers(Y, "Y").astype(np.float64)
    if targets.ndim not in (1, 2) or not targets.size:
        raise InputError(f"Y must be of shape (n,) or (n, targets), but its shape is {targets.shape}")
    if len(targets) != rows:
        raise InputError(f"K has {rows} rows, but Y has {len(targets)}; they must match")
    check_finite(targets, "Y")
    return targets


def check_weights(weights: Any, rows: int) -> Array | None:
    """Weights as a float64 array, (rows,); raises `InputError` unless all are positive and finite. None stays None.

    >>> check_weights([1.0, 0.0], rows=2)
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: weights must be positive, but that of row 1 is 0; drop such rows
    """
    if weights is None:
        return None
    scales = as_numbers(weights, "weights").astype(np.float64)
    if scales.shape != (rows,):
        raise InputError(f"K has {rows} rows, but weights are of shape {scales.shape}; they must match")
    check_finite(scales, "weights")
    if (scales <= 0).any():
        row = int((scales <= 0).argmax())
        raise InputError(f"weights must be positive, but that of row {row} is {scales[row]:g}; drop such rows")
    return scales
