"""Options shared by commands, and `--json`, which prints what a command returns as one JSON object.

With `--json` that object is all there is on standard output: what the command prints for people goes to the error
stream, like progress. Numbers that JSON does not have, such as NaN, become null.
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
    """Decorate a command: add the options of the function `options`, and pass on the keywords that it returns.

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
    """Decorate a command with the option `--json`, which prints the returned dictionary as JSON.

    Without the option the returned value is not shown: the command prints its own text. If the dictionary holds
    `"good": False`, the program ends with status 1. A parameter `as_json` of the command receives the option.

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
    """Convert a value to types that JSON has: paths to text, arrays to lists, NaN and infinities to None.

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
