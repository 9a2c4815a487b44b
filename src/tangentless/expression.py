"""Reading a kernel back from its text, as model files and stores need it.

The text is an expression of calls, numbers, `+`, `*`, `.mirrored()`, `.symmetrized(...)` and `.seen(...)`. It is parsed
and never executed: only constructors of kernels are called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, cast

from .errors import StoreMismatchError, TangentlessError
from .kernel import Kernel, kernel

_SHOWN = 200  # characters of a text that a message quotes
Makers = Mapping[str, Callable[..., Kernel]]


def read_kernel(text: str, makers: Makers | None = None) -> Kernel:
    """The kernel whose repr is this text; `makers` are further functions that the text may call, by name.

    >>> read_kernel("0.5 * (kernel('myrtle5') + kernel('myrtle7')).mirrored()")
    0.5 * (kernel('myrtle5') + kernel('myrtle7')).mirrored()
    """
    try:
        known = {"kernel": kernel, **_subclasses(cast(type[Any], Kernel)), **(makers or {})}
        value = _evaluate(ast.parse(text, mode="eval").body, known)
        if isinstance(value, Kernel) and repr(value) == text:
            return value
        reason = f"it came back as {value!r}"
    except (SyntaxError, TypeError, ValueError, AttributeError, TangentlessError) as error:
        reason = str(error)
    except (RecursionError, MemoryError):  # the parser raises either
        reason = "it is nested too deeply"
    shown, reason = (part if len(part) <= _SHOWN else f"{part[:_SHOWN]}..." for part in (text, reason))
    raise StoreMismatchError(f"the kernel {shown} cannot be read from its text ({reason}); give it as kernel=...")


def _evaluate(node: ast.expr, known: Makers) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluate(node.operand, known)
        case ast.Tuple() | ast.List():
            return tuple(_evaluate(item, known) for item in node.elts)
        case ast.BinOp(op=ast.Add() | ast.Mult() as operation):
            left, right = _evaluate(node.left, known), _evaluate(node.right, known)
            # This also refuses texts: "a" * 10**9 would fill the memory.
            if not all(isinstance(side, Kernel | float | int) for side in (left, right)):
                raise ValueError(f"{ast.unparse(node)} is no sum or product of kernels")
            return left + right if isinstance(operation, ast.Add) else left * right
        case ast.Call(func=ast.Attribute(attr="mirrored", value=base), args=[], keywords=[]):
            return _evaluate(base, known).mirrored()
        case ast.Call(func=ast.Attribute(attr="symmetrized" | "seen" as method, value=base), args=[how], keywords=[]):
            return getattr(_evaluate(base, known), method)(_evaluate(how, known))
        case ast.Call(func=ast.Name(id=name)):
            positional = [_evaluate(value, known) for value in node.args]
            named = {word.arg: _evaluate(word.value, known) for word in node.keywords if word.arg}
            if name not in known:
                raise ValueError(f"there is no kernel {name}")
            return known[name](*positional, **named)
    raise ValueError(f"{ast.unparse(node)} is not part of a kernel")


def _subclasses(base: type[Any]) -> dict[str, Any]:
    """All subclasses of a class, by name."""
    found: dict[str, Any] = {}
    for kind in base.__subclasses__():
        found |= {kind.__name__: kind} | _subclasses(kind)
    return found
