"""The registry: which layers there are, by name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import TypeVar, get_type_hints

import numpy as np

from ..errors import ParameterError
from .base import Average, Layer, Nonlinearity, Stack, Windowed, is_own
from .branches import walk
from .nonlinearities import GELU, Abs, Cos, Erf, Gaussian, LeakyReLU, Normalize, Polynomial, ReLU, Sin, Step, Tanh
from .windows import Conv, GlobalPool, HalfPool, Patch, Pool

LAYERS: dict[str, type[Layer]] = {}
_COSINES = np.cos([0.3, 0.9, 1.4, 1.9, 2.5, 3.0])  # where duals are compared
_LENGTHS = range(1, 65)  # of axes on which windows are compared
_L = TypeVar("_L", bound=type[Layer])


def register(layer: _L) -> _L:
    """Make a layer available by its name in the text form, and so in model files, stores, networks and the CLI.

    Subclass `Nonlinearity` (and define `activation`), `Stack` or `Average` (and define `windows`). Parameters are
    fields of a frozen dataclass, integers or floats. `register` can be used as a decorator.

    >>> import math
    >>> @register
    ... class Square(Nonlinearity):
    ...     name = "square"
    ...
    ...     def activation(self, preactivation):
    ...         return preactivation**2 / math.sqrt(3.0)
    >>> round(float(Square().dual(0.5)), 6)  # (1 + 2 c^2) / 3
    0.5
    >>> del LAYERS["square"]
    """
    if not (isinstance(layer, type) and issubclass(layer, Nonlinearity | Stack | Average)):
        raise ParameterError(f"a layer to register is a subclass of Nonlinearity, Stack or Average, not {layer!r}")
    name = getattr(layer, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z]+", name):
        raise ParameterError(f"the name of {layer.__name__} must be small letters, such as 'swish', not {name!r}")
    known = LAYERS.get(name)
    if name in ("sum", "residual", "identity") or (known is not None and _origin(known) != _origin(layer)):
        raise ParameterError(f"there is a layer {name!r} already; give {layer.__name__} another name")
    if layer.__abstractmethods__:
        raise ParameterError(f"{layer.__name__} must define {', '.join(sorted(layer.__abstractmethods__))}")
    hints = get_type_hints(layer)
    parameters = {field.name: hints[field.name] for field in fields(layer)}
    if any(name not in parameters for name in vars(layer).get("__annotations__", {}) if name != "name"):
        raise ParameterError(f"{layer.__name__} has parameters, so it needs the decorator @dataclass(frozen=True)")
    for parameter, kind in parameters.items():
        if kind not in (int, float, int | None):
            raise ParameterError(
                f"parameter {parameter} of {layer.__name__} must be an int or a float, for its text form"
            )
    LAYERS[name] = layer
    return layer


_WINDOWS = (Conv, Patch, Pool, HalfPool, GlobalPool)
_NONLINEARITIES = (ReLU, LeakyReLU, Gaussian, Polynomial, Erf, GELU, Tanh, Sin, Cos, Abs, Step)
for _layer in (*_WINDOWS, *_NONLINEARITIES):
    register(_layer)
LAYERS[Normalize.name] = Normalize


def own_layers(layers: Iterable[Layer]) -> list[str]:
    """A text for each of the user's own layers among these, which changes if its dual or its windows do.

    Texts of architectures hold only the names of layers, and a class of that name may have been edited since.
    """
    own = filter(is_own, dict.fromkeys(walk(tuple(layers))))
    return [f"{layer} is {_digest(layer)}" for layer in own]


def _digest(layer: Layer) -> str:
    """A hash of what a layer computes, of few enough digits to be the same on all processors."""
    found: list[object] = [layer.keeps_mirrors, isinstance(layer, Stack)]
    if isinstance(layer, Nonlinearity):
        found += [f"{value:.8f}" for value in np.round(layer.dual(_COSINES), 8) + 0.0]
    if isinstance(layer, Windowed):
        found += [_windows_or_none(layer, length) for length in _LENGTHS]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def _windows_or_none(layer: Windowed, length: int) -> object:
    try:
        return layer.windows(length)
    except Exception:  # a user's code, on a length that it may not be meant for
        return None


def _origin(layer: type) -> tuple[str, str]:
    """Where a class was defined. A notebook cell that runs again may register its class again."""
    return layer.__module__, layer.__qualname__
