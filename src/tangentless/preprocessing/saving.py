"""Fitted transformers as plain data, parameters in JSON and arrays beside them, for the files of models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from ..files import Arrays
from .randaugment import RandAugment
from .standardize import Standardize
from .zca import ZCA

Step = ZCA | Standardize
STEPS: dict[str, type[Step]] = {"zca": ZCA, "standardize": Standardize}


def describe_step(step: Step) -> tuple[dict[str, Any], Arrays]:
    """The parameters of a fitted transformer as JSON has them, and its arrays."""
    kind = next(name for name, kind in STEPS.items() if isinstance(step, kind))
    names = ("whitening",) if isinstance(step, ZCA) else ("mean", "std")
    return {"kind": kind} | _plain(step), {name: getattr(step, f"{name}_") for name in names}


def restore_step(text: Any, array: Callable[[str], NDArray[Any]], shape: tuple[int, ...]) -> Step:
    """The transformer of images of a shape that was described, with a function that gives its arrays by name."""
    step = _unfitted(text, shape)
    if isinstance(step, ZCA):
        step.whitening_ = _shaped(array("whitening"), (step.n_features_in_,) * 2, shape)
        return step
    step.mean_, step.std_ = (_shaped(array(name), shape[-1:], shape) for name in ("mean", "std"))
    if not (step.std_ > 0).all():
        raise InputError("its standard deviations are not all above 0")
    return step


def _unfitted(text: Any, shape: tuple[int, ...]) -> Step:
    try:
        entries = {"kind": "zca"} | text
        kind = STEPS[str(entries.pop("kind"))]
        if kind is ZCA:
            entries = {"copies": 0, "augmentation": None} | entries  # the first files leave these out, and their kind
        step = kind(**entries)
        if missing := step.get_params(deep=False).keys() - entries.keys() - {"backend"}:
            raise KeyError(*missing)
        step.shape_, step.n_features_in_ = shape, math.prod(shape)
        if isinstance(step, ZCA) and step.augmentation is not None:
            step.augmentation = RandAugment(**entries["augmentation"])
            step.augmentation.check_parameters()
        step.check_parameters()
    except (TypeError, KeyError, InputError, ParameterError):
        raise InputError("its header has no valid 'preprocessing'") from None
    return step


def _plain(value: Any) -> Any:
    """Parameters as JSON has them; numbers of NumPy, from a search over parameters, have none."""
    if isinstance(value, ZCA | Standardize | RandAugment):
        parameters = value.get_params(deep=False)
        return {name: _plain(own) for name, own in parameters.items() if name != "backend"}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _shaped(array: NDArray[Any], expected: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape != expected:
        raise InputError(f"preprocessing by an array of shape {array.shape} does not go with images of {shape}")
    return array
