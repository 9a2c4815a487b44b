"""Imports PyTorch, or raises an error that says how to install it."""

from ..errors import BackendError

INSTALL = "pip install 'tangentless[networks]'"

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise BackendError(f"networks need PyTorch: {INSTALL}") from error

__all__ = ["Tensor", "functional", "nn", "torch"]
