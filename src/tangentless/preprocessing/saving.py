"""Fitted transformers in model files: parameters as JSON, and arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from ..files import Arrays
from .parameters import NOT_SAVED, to_json
from .randaugment import RandAugment
from .rows import set_shape
from .standardize import Standardize
from .whitening import Dense, Form, LowRank, Patches
from .zca import ZCA

Step = ZCA | Standardize
STEPS: dict[str, type[Step]] = {"zca": ZCA, "standardize": Standardize}
_FORMS: dict[str, tuple[type[Form], tuple[str, ...]]] = {
    "dense": (Dense, ("whitening",)),
    "low rank": (LowRank, ("images", "inner", "scale")),
    "patches": (Patches, ("filters",)),
}


def describe_step(step: Step) -> tuple[dict[str, Any], Arrays]:
    """The parameters of a fitted transformer as JSON values, and its arrays by name."""
    kind = next(name for name, kind in STEPS.items() if isinstance(step, kind))
    if isinstance(step, Standardize):
        return {"kind": kind} | to_json(step) | {"scale": step.scale_}, {"mean": step.mean_, "std": step.std_}
    form, names = next((form, names) for form, (of, names) in _FORMS.items() if isinstance(step.form_, of))
    text = {"kind": kind, "form": form} | to_json(step) | _of_the_fit(step.form_)
    return text, {name: getattr(step.form_, name) for name in names}


def _of_the_fit(form: Form) -> dict[str, Any]:
    """The parameters by which a form is read, from the form itself: those of the ZCA may have changed since the fit."""
    if isinstance(form, Patches):
        return {"patch": (len(form.filters) + 1) // 2}
    return {"patch": None} | ({"mirrors": len(form.inner) > len(form.images)} if isinstance(form, LowRank) else {})


def restore_step(text: Any, array: Callable[[str], NDArray[Any]], shape: tuple[int, ...]) -> Step:
    """The transformer that `describe_step` described, for images of a shape; `array` returns arrays by name."""
    step, form = _parse_step(text, shape)
    if isinstance(step, ZCA):
        step.form_ = _restore_form(step, form, array, shape)
        return step
    step.scale_ = float(step.scale)
    step.mean_, step.std_ = (_shaped(array(name), shape[-1:], shape) for name in ("mean", "std"))
    if not (step.std_ > 0).all():
        raise InputError("preprocessing has standard deviations that are not above 0")
    return step


def _restore_form(step: ZCA, form: str, array: Callable[[str], NDArray[Any]], shape: tuple[int, ...]) -> Form:
    if form == "dense":
        return Dense(_shaped(array("whitening"), (step.n_features_in_,) * 2, shape))
    if form == "patches":
        side = 2 * int(step.patch or 0) - 1
        return Patches(_shaped(array("filters"), (side, side, *shape[-1:] * 2), shape), shape)
    images, scale = array("images"), _shaped(array("scale"), (1,), shape)
    rows = len(images) * (1 + step.mirrors)
    return LowRank(_shaped(images, (len(images), *shape), shape), _shaped(array("inner"), (rows, rows), shape), scale)


def _parse_step(text: Any, shape: tuple[int, ...]) -> tuple[Step, str]:
    try:
        entries = {"kind": "zca", "form": "dense"} | text
        kind, form = STEPS[str(entries.pop("kind"))], str(entries.pop("form"))
        if kind is ZCA:  # the oldest files have none of these, nor kind and form
            entries = {"copies": 0, "augmentation": None, "patch": None} | entries
        step = kind(**entries)
        if missing := step.get_params(deep=False).keys() - entries.keys() - NOT_SAVED:
            raise KeyError(*missing)
        if isinstance(step, ZCA) and ((form == "patches") != (step.patch is not None) or form not in _FORMS):
            raise KeyError(form)
        set_shape(step, shape)
        if isinstance(step, ZCA) and step.augmentation is not None:
            step.augmentation = RandAugment(**entries["augmentation"])
            step.augmentation.check_parameters()
        step.check_parameters()
    except (TypeError, KeyError, InputError, ParameterError):
        raise InputError("its header has no valid 'preprocessing'") from None
    return step, form


def _shaped(array: NDArray[Any], expected: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape != expected:
        raise InputError(f"preprocessing has an array of shape {array.shape}, but images of {shape} need {expected}")
    return array
