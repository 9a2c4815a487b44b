"""Options that commands share, above all `--json`: what a command returns is then the one object on standard output.

Everything that the command prints for people goes to the error stream, where progress goes anyway. Numbers that JSON
does not have, such as NaN, become null.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
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


def sharing(options: Callable[..., dict[str, Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a function too, and call it with what the function makes of them.

    >>> @sharing(lambda jobs=1: {"n_jobs": jobs})
    ... def work(store, **how):
    ...     print(store, how)
    >>> work("k.zarr", jobs=2)
    k.zarr {'n_jobs': 2}
    """

    def share(command: Callable[..., Any]) -> Callable[..., Any]:
        own, more = (inspect.signature(one, eval_str=True) for one in (command, options))

        @functools.wraps(command)
        def run(*arguments: Any, **given: Any) -> Any:
            shared = {name: given.pop(name) for name in more.parameters if name in given}
            return command(*arguments, **given, **options(**shared))

        shown = {name: one for name, one in own.parameters.items() if one.kind is not one.VAR_KEYWORD}
        run.__signature__ = own.replace(parameters=[*(shown | more.parameters).values()])  # type: ignore[attr-defined]
        return run

    return share


def answers_json(command: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command the option `--json`, which prints what it returns; in text it has printed all it has to say.

    An answer that says of itself `"good": False` ends the program with status 1. A command may ask for `as_json` too.

    >>> @answers_json
    ... def greet(name):
    ...     print("Hello,", name)
    ...     return {"greeted": name}
    >>> greet("you")
    Hello, you
    >>> greet("you", as_json=True)
    {"greeted": "you"}
    """
    asks = "as_json" in inspect.signature(command).parameters

    def options(as_json: JsonOption = False) -> dict[str, Any]:
        return {"as_json": as_json}

    @sharing(options)
    @functools.wraps(command)
    def run(*arguments: Any, as_json: bool, **given: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            answer = command(*arguments, **given, **({"as_json": as_json} if asks else {}))
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
