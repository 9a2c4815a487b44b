"""`--json` of the commands: what a command returns is then the one object on standard output.

Everything that the command prints for people goes to the error stream, where progress goes anyway. Numbers that JSON
does not have, such as NaN, become null.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Answer = dict[str, Any]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, and everything else on the error stream.")
]


def answers_json(command: Callable[..., Answer]) -> Callable[..., None]:
    """Print what a command returns if its option `as_json` is given; in text it has printed all it has to say.

    An answer that says of itself `"good": False` ends the program with status 1.

    >>> @answers_json
    ... def greet(name, as_json=False):
    ...     print("Hello,", name)
    ...     return {"greeted": name}
    >>> greet("you")
    Hello, you
    >>> greet("you", as_json=True)
    {"greeted": "you"}
    """

    @functools.wraps(command)
    def run(*arguments: Any, as_json: bool = False, **options: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            answer = command(*arguments, as_json=as_json, **options)
        if as_json:
            print_json(answer)
        if answer.get("good") is False:
            raise typer.Exit(1)

    return run


def print_json(answer: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    print(json.dumps(plain(answer), allow_nan=False), flush=True)


def plain(value: Any) -> Any:
    """A value as JSON has it: paths as text, arrays as lists, and null for what is no finite number.

    >>> plain({"file": Path("K.npy"), "shape": (2, 3), "ridge": float("nan")})
    {'file': 'K.npy', 'shape': [2, 3], 'ridge': None}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
