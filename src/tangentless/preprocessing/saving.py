"""Fitted transformers as plain data, parameters in JSON and arrays beside them, for the files of models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from ..layers import is_whole
from ..solve import is_number
from .randaugment import RandAugment
from .standardize import Standardize
from .zca import ZCA

Step = ZCA | Standardize
Arrays = dict[str, NDArray[Any]]
STEPS = (ZCA, Standardize)
_BEFORE_KINDS = {"kind": "zca", "copies": 0, "augmentation": None}  # what the first files leave out


def describe_step(step: Step) -> tuple[dict[str, Any], Arrays]:
    """The parameters of a fitted transformer as JSON has them, and its arrays."""
    if isinstance(step, Standardize):
        given = {name: _plain(getattr(step, name)) for name in ("mean", "std")}
        return {"kind": "standardize", "scale": float(step.scale)} | given, {"mean": step.mean_, "std": step.std_}
    return {
        "kind": "zca",
        "epsilon": float(step.epsilon),
        "mirrors": bool(step.mirrors),
        "copies": int(step.copies),
        "augmentation": None if step.augmentation is None else _describe_augmentation(step.augmentation),
    }, {"whitening": step.whitening_}


def _describe_augmentation(augmentation: RandAugment) -> dict[str, Any]:
    """Plain numbers: those of NumPy, from a search over parameters, have no JSON."""
    magnitude, operations = augmentation.magnitude, augmentation.operations
    return {
        "number": int(augmentation.number),
        "magnitude": int(magnitude) if is_whole(magnitude) else float(magnitude),
        "operations": None if operations is None else list(operations),
        "seed": int(augmentation.seed),
    }


def restore_step(text: Any, array: Callable[[str], NDArray[Any]], shape: tuple[int, ...]) -> Step:
    """The transformer of images of a shape that was described, with a function that gives its arrays by name."""
    entries = _BEFORE_KINDS | text if isinstance(text, dict) else {}
    restore = {"zca": _restore_zca, "standardize": _restore_standardize}.get(str(entries.get("kind")))
    step = restore(entries) if restore else None
    if step is None:
        raise InputError("its header has no valid 'preprocessing'")
    step.shape_, step.n_features_in_ = shape, math.prod(shape)
    if isinstance(step, ZCA):
        step.whitening_ = _shaped(array("whitening"), (step.n_features_in_,) * 2, shape)
    else:
        step.mean_, step.std_ = (_shaped(array(name), shape[-1:], shape) for name in ("mean", "std"))
        if not (step.std_ > 0).all():
            raise InputError("its standard deviations are not all above 0")
    return step


def _restore_zca(entries: dict[str, Any]) -> ZCA | None:
    epsilon, mirrors, copies = _values(entries, "epsilon", "mirrors", "copies")
    if not is_number(epsilon) or not isinstance(mirrors, bool) or type(copies) is not int:
        return None
    zca = ZCA(float(epsilon), mirrors, copies)
    try:
        if entries["augmentation"] is not None:
            zca.augmentation = RandAugment(**entries["augmentation"])
            zca.augmentation.check_parameters()
        zca.check_parameters()
    except (TypeError, ParameterError):
        return None
    return zca


def _restore_standardize(entries: dict[str, Any]) -> Standardize | None:
    scale, mean, std = _values(entries, "scale", "mean", "std")
    if not is_number(scale) or scale <= 0:
        return None
    if not all(value is None or (isinstance(value, list) and all(map(is_number, value))) for value in (mean, std)):
        return None
    return Standardize(mean, std, float(scale))


def _values(entries: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(entries.get(name) for name in names)


def _plain(values: Any) -> Any:
    return None if values is None else np.asarray(values, dtype=np.float64).tolist()


def _shaped(array: NDArray[Any], expected: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape != expected:
        raise InputError(f"preprocessing by an array of shape {array.shape} does not go with images of {shape}")
    return array
