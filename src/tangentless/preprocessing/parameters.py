"""Parameters of transformers: how they are checked, and what model files hold of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from ..errors import ParameterError
from ..layers import is_whole
from ..solve import is_number

NOT_SAVED = frozenset({"backend", "verbose"})  # parameters that do not change results


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """The value as an int if it is a whole number from `least`; otherwise an error that names the parameter."""
    if not is_whole(value) or value < least:
        raise ParameterError(f"{name} must be a whole number from {least}, not {value!r}")
    return int(value)


def check_above(name: str, value: Any, *, zero: bool = False) -> float:
    """The value as a float if it is finite and above 0, or with `zero` also 0; otherwise an error."""
    if not is_number(value) or value < 0 or (value == 0 and not zero):
        raise ParameterError(f"{name} must be a finite number {'from' if zero else 'above'} 0, not {value!r}")
    return float(value)


def to_json(value: Any) -> Any:
    """A parameter as JSON values: NumPy's numbers become Python's, and a transformer the dictionary of its parameters.

    >>> to_json((np.int64(3), None))
    [3, None]
    """
    if isinstance(value, BaseEstimator):
        return {name: to_json(own) for name, own in value.get_params(deep=False).items() if name not in NOT_SAVED}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
