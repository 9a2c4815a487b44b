"""Kernel matrices in `torch.autograd`: the matrix of tensors that require gradients has a backward pass.

PyTorch is an optional dependency. This module takes it from `sys.modules`: whoever passes a tensor has imported it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .errors import InputError

Compute = Callable[[Any, Any], Any]  # (X, Z or None) -> matrix
Pull = Callable[[Any, Any, Any, str], Any]  # (X, Z, cotangent of the matrix, wrt) -> gradients


def requires_gradient(*values: Any) -> bool:
    """Whether one of the values is a tensor that takes part in automatic differentiation."""
    return any(getattr(value, "requires_grad", False) for value in values) and sys.modules["torch"].is_grad_enabled()


def with_backward(compute: Compute, pull: Pull, X: Any, Z: Any) -> Any:
    """The result of `compute(X, Z)` as a tensor whose backward pass is `pull`."""
    torch = sys.modules["torch"]
    both = (one if one is None or isinstance(one, torch.Tensor) else torch.tensor(one) for one in (X, Z))
    return _function().apply(compute, pull, *both)


@functools.cache
def _function() -> Any:
    torch: Any = sys.modules["torch"]

    class Entries(torch.autograd.Function):  # type: ignore[misc]  # torch is imported at run time
        """The entries of a kernel matrix."""

        @staticmethod
        def forward(ctx: Any, compute: Compute, pull: Pull, X: Any, Z: Any) -> Any:
            ctx.pull = pull
            ctx.save_for_backward(X, Z)
            return compute(X, Z)

        @staticmethod
        def backward(ctx: Any, cotangent: Any) -> tuple[Any, ...]:
            X, Z = ctx.saved_tensors
            wrt = "".join(name for name, needed in zip("XZ", ctx.needs_input_grad[2:], strict=True) if needed)
            return None, None, *Gradients.apply(ctx.pull, wrt, X, Z, cotangent)

    class Gradients(torch.autograd.Function):  # type: ignore[misc]
        """Gradients by X and Z: functions of both and of the cotangent, so that nobody takes them for constants."""

        @staticmethod
        def forward(ctx: Any, pull: Pull, wrt: str, X: Any, Z: Any, cotangent: Any) -> tuple[Any, Any]:
            found = (pull(X, None, cotangent, wrt), None) if Z is None else pull(X, Z, cotangent, wrt)
            left, right = (None if by is None else by.to(one.dtype) for by, one in zip(found, (X, Z), strict=True))
            return left, right

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            raise InputError(
                "kernels have first derivatives only; leave create_graph=True out, or take second derivatives as "
                "differences of gradients"
            )

    return Entries
