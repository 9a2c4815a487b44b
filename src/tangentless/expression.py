"""Reading a kernel back from its text, as model files and stores need it.

The text is an expression of calls, numbers, `+`, `*`, `.mirrored()`, `.symmetrized(...)` and `.seen(...)`. It is parsed
and never executed: only constructors of kernels are called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, cast

from .errors import ParameterError, StoreMismatchError, TangentlessError, closest
from .kernel import Kernel, kernel

_SHOWN = 200  # characters of a text that a message quotes
Makers = Mapping[str, Callable[..., Kernel]]


def read_kernel(text: str, makers: Makers | None = None, remedy: str = "give it as kernel=...") -> Kernel:
    """The kernel whose repr is this text; `makers` are further functions that the text may call, by name.

    `remedy` is what the error message advises.

    >>> read_kernel("0.5 * (kernel('myrtle5') + kernel('myrtle7')).mirrored()")
    0.5 * (kernel('myrtle5') + kernel('myrtle7')).mirrored()
    """
    value, reason = _read(text, makers or {})
    if value is not None and repr(value) == text:
        return value
    shown, reason = _shorten(text), _shorten(reason or f"it came back as {value!r}")
    raise StoreMismatchError(f"the kernel {shown} cannot be read from its text ({reason}); {remedy}")


def parse_kernel(text: str) -> Kernel:
    """The kernel of an expression as users write it: with any blanks, and arguments by position or by name.

    >>> parse_kernel("0.5*Gaussian(0.010)")
    0.5 * Gaussian(gamma=0.01)
    """
    value, reason = _read(text, {})
    if value is None:
        raise ParameterError(f"{_shorten(text)} is no kernel: {_shorten(reason)}")
    return value


def kernel_of_text(text: str) -> Kernel:
    """The kernel of an expression such as NTK(3), or else of an architecture; all commands read texts so.

    >>> kernel_of_text("Gaussian(gamma=0.1)"), kernel_of_text("gaussian(0.1)")
    (Gaussian(gamma=0.1), kernel('gaussian(0.1)'))
    """
    try:
        return parse_kernel(text)
    except ParameterError as error:
        try:
            return kernel(text)
        except TangentlessError:
            if calls_a_kernel(text):
                raise error from None
            raise


def calls_a_kernel(text: str) -> bool:
    """Whether a text is meant as an expression of kernels, such as 0.5 * NTK(3), and not as an architecture.

    >>> calls_a_kernel("Gausian(gamma=0.1)"), calls_a_kernel("conv3 gaussian(0.1) globalpool")
    (True, False)
    """
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return any(name == "kernel" or name[0].isupper() for name in names)


def _read(text: str, makers: Makers) -> tuple[Kernel | None, str]:
    """The kernel of an expression, or None and the reason."""
    try:
        known = {"kernel": kernel, **_subclasses(cast(type[Any], Kernel)), **makers}
        value = _evaluate(ast.parse(text.strip(), mode="eval").body, known)
        shown = repr(value)  # fails here if at all
        return (value, "") if isinstance(value, Kernel) else (None, f"it came back as {shown}")
    except (SyntaxError, TypeError, ValueError, AttributeError, TangentlessError) as error:
        return None, str(error)
    except (RecursionError, MemoryError):  # the parser raises either
        return None, "it is nested too deeply"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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
                raise ValueError(f"there is no kernel {name}; {closest(name, known)}".rstrip("; "))
            return known[name](*positional, **named)
    raise ValueError(f"{ast.unparse(node)} is not part of a kernel")


def _subclasses(base: type[Any]) -> dict[str, Any]:
    """All subclasses of a class, by name."""
    found: dict[str, Any] = {}
    for kind in base.__subclasses__():
        found |= {kind.__name__: kind} | _subclasses(kind)
    return found
