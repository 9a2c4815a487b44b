"""The pickles of CIFAR, read without running them.

A pickle is a program for a small machine, which may call any function that can be imported. This reader is another
machine: it knows the few instructions that those files are made of, dictionaries, lists, numbers, texts and arrays of
bytes, and imports and calls nothing. An array is put together here, from its shape and its bytes, once both agree.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMES = {  # functions that occur in pickled NumPy arrays: here they are names only, and never called
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "class of arrays",
    "numpy dtype": "dtype",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"}
_TEXTS = {"STRING", "SHORT_BINSTRING", "BINSTRING", "UNICODE", "BINUNICODE"}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class UnreadablePickle(ValueError):  # noqa: N818 (callers turn it into an error that names the file)
    """A pickle that holds anything but plain data."""


def read_pickle(data: bytes) -> Any:
    """The value of a pickle: texts as `str`, one character per byte, and arrays of bytes.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"labels": [6, 9]}, protocol=2))
    {'labels': [6, 9]}
    >>> read_pickle(pickle.dumps(print, protocol=2))
    Traceback (most recent call last):
        ...
    tangentless.datasets.pickles.UnreadablePickle: it asks for '__builtin__ print', which no array needs
    """
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(data):
            machine.run(instruction.name, argument)
        (value,) = machine.stack
        return _finish(value)
    except UnreadablePickle:
        raise
    except Exception as error:  # unknown bytes can fail in any way: too short, empty stack, unhashable keys
        raise UnreadablePickle(f"it is cut short or damaged ({error})") from None


class _Part:
    """An array or a dtype that is being put together."""

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments, self.state = kind, arguments, ()

    def to_array(self) -> NDArray[np.uint8]:
        if self.kind != "array" or len(self.state) != 5:
            raise UnreadablePickle("it holds an array without values")
        _, shape, dtype, by_columns, body = self.state
        if not isinstance(dtype, _Part) or dtype.kind != "dtype" or dtype.arguments[0] != "u1":
            raise UnreadablePickle("it holds an array of something else than bytes")
        if not all(isinstance(side, int) and side >= 0 for side in shape) or math.prod(shape) != len(body):
            raise UnreadablePickle(f"it holds an array of shape {shape} with {len(body)} bytes")
        values = np.frombuffer(body.encode("latin-1"), np.uint8)
        return values.reshape(shape, order="F" if by_columns else "C")


class _Machine:
    """The stack of the pickle machine, and its memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _NUMBERS or name in _TEXTS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _PUTS:
            self.memory[int(argument)] = stack[-1]
        elif name in _GETS:
            stack.append(self.memory[int(argument)])
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in _OPERATIONS:
            _OPERATIONS[name](self)
        elif name == "GLOBAL":
            if argument not in _NAMES:
                raise UnreadablePickle(f"it asks for {argument!r}, which no array needs")
            stack.append(_Part(_NAMES[argument], ()))
        elif name not in ("PROTO", "STOP"):
            raise UnreadablePickle(f"it has the instruction {name}, which plain data does not need")

    def since_mark(self) -> list[Any]:
        place = next(index for index in reversed(range(len(self.stack))) if self.stack[index] is _MARK)
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def append(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def store(self, values: list[Any]) -> None:
        self._top(dict).update(zip(values[::2], values[1::2], strict=True))

    def call(self) -> None:
        function, arguments = self.stack[-2:]
        if not isinstance(function, _Part) or function.arguments or function.kind == "class of arrays":
            raise UnreadablePickle("it calls something")
        self.stack[-2:] = [_Part(function.kind, arguments)]

    def build(self) -> None:
        state = self.stack.pop()
        self._top(_Part).state = state

    def pop(self, count: int) -> list[Any]:
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise UnreadablePickle(f"it puts something into {type(self.stack[-1]).__name__}")
        return self.stack[-1]


_OPERATIONS: dict[str, Callable[[_Machine], None]] = {
    "MARK": lambda machine: machine.stack.append(_MARK),
    "EMPTY_DICT": lambda machine: machine.stack.append({}),
    "EMPTY_LIST": lambda machine: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine: machine.stack.append(()),
    "DICT": lambda machine: machine.stack.append(_pairs(machine.since_mark())),
    "LIST": lambda machine: machine.stack.append(machine.since_mark()),
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.since_mark())),
    "APPEND": lambda machine: machine.append(machine.pop(1)),
    "APPENDS": lambda machine: machine.append(machine.since_mark()),
    "SETITEM": lambda machine: machine.store(machine.pop(2)),
    "SETITEMS": lambda machine: machine.store(machine.since_mark()),
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _finish(value: Any) -> Any:
    """The dictionary of a CIFAR file, with arrays assembled from their parts."""
    if isinstance(value, dict):
        return {key: item.to_array() if isinstance(item, _Part) else item for key, item in value.items()}
    return value.to_array() if isinstance(value, _Part) else value
