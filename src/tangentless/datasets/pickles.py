"""The pickles of CIFAR, read without running code from them.

A pickle is a program that may call any importable function. Here only the few instructions that those files use are
allowed, and the names that they import are replaced by stand-ins. Arrays are built here from their shapes and bytes,
after a check that the two agree.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INSTRUCTIONS = {
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD"),
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("STRING", "SHORT_BINSTRING", "BINSTRING", "UNICODE", "BINUNICODE"),
    *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
}


class UnreadablePickle(ValueError):  # noqa: N818 (callers turn it into an error that names the file)
    """A pickle that holds more than plain data, or is damaged."""


def read_pickle(data: bytes) -> Any:
    """The value of a pickle. Byte strings become `str`, one character per byte; arrays must hold bytes.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"labels": [6, 9]}, protocol=2))
    {'labels': [6, 9]}
    >>> read_pickle(pickle.dumps(print, protocol=2))
    Traceback (most recent call last):
        ...
    tangentless.datasets.pickles.UnreadablePickle: it imports '__builtin__ print', which no array needs
    """
    try:
        for instruction, _, _ in pickletools.genops(data):
            if instruction.name not in _INSTRUCTIONS:
                raise UnreadablePickle(f"it has the instruction {instruction.name}, which plain data does not need")
        # `optimize` renumbers the memo from 0: an index of four billion would allocate as many slots.
        # "(" and "l" put all that is left on the stack into a list, which must hold exactly one value.
        program = b"(" + pickletools.optimize(data)[:-1] + b"l."
        (value,) = _Reader(io.BytesIO(program), fix_imports=False, encoding="latin-1").load()
        if isinstance(value, dict):
            return {key: item.to_array() if isinstance(item, _StandIn) else item for key, item in value.items()}
        return value.to_array() if isinstance(value, _StandIn) else value
    except UnreadablePickle:
        raise
    except Exception as error:  # damaged bytes can fail in any way: cut short, empty stack, unhashable keys
        raise UnreadablePickle(f"it is cut short or damaged ({error})") from None


class _StandIn:
    """Replaces an array or a dtype of NumPy, and records what the pickle passes to it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def to_array(self) -> NDArray[np.uint8]:
        if len(self.state) != 5:
            raise UnreadablePickle("it holds an array without values")
        _, shape, dtype, by_columns, body = self.state
        if not isinstance(dtype, _StandIn) or dtype.arguments[:1] != ("u1",):
            raise UnreadablePickle("it holds an array of a dtype other than uint8")
        if not all(isinstance(side, int) and side >= 0 for side in shape) or math.prod(shape) != len(body):
            raise UnreadablePickle(f"it holds an array of shape {shape} with {len(body)} bytes")
        values = np.frombuffer(body.encode("latin-1"), np.uint8)
        return values.reshape(shape, order="F" if by_columns else "C")


_STAND_INS = {
    "numpy.core.multiarray _reconstruct": _StandIn,
    "numpy._core.multiarray _reconstruct": _StandIn,
    "numpy ndarray": None,  # an argument of _reconstruct; never called
    "numpy dtype": _StandIn,
}


class _Reader(pickle.Unpickler):
    """Replaces the names that occur in pickled arrays, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module} {name}"
        if asked not in _STAND_INS:
            raise UnreadablePickle(f"it imports {asked!r}, which no array needs")
        return _STAND_INS[asked]
