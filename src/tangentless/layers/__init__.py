"""The layers an architecture is made of, and the registry through which anyone adds one.

A layer declares its meaning once. The graph, every backend, the text form, model files, stores and the PyTorch network
are derived from that declaration. `register` adds a user's layer, which then works in all of these.
"""

from .base import (
    Average,
    Grid,
    Layer,
    Nonlinearity,
    Stack,
    Windowed,
    Windows,
    check_dual,
    format_grid,
    is_real,
    is_whole,
)
from .branches import Residual, Sum, branches_of, walk
from .nonlinearities import GELU, Abs, Cos, Erf, Gaussian, LeakyReLU, Normalize, Polynomial, ReLU, Sin, Step, Tanh
from .registry import LAYERS, own_layers, register
from .windows import Conv, GlobalPool, HalfPool, Patch, Pool

__all__ = [
    "GELU",
    "LAYERS",
    "Abs",
    "Average",
    "Conv",
    "Cos",
    "Erf",
    "Gaussian",
    "GlobalPool",
    "Grid",
    "HalfPool",
    "Layer",
    "LeakyReLU",
    "Nonlinearity",
    "Normalize",
    "Patch",
    "Polynomial",
    "Pool",
    "ReLU",
    "Residual",
    "Sin",
    "Stack",
    "Step",
    "Sum",
    "Tanh",
    "Windowed",
    "Windows",
    "branches_of",
    "check_dual",
    "format_grid",
    "is_real",
    "is_whole",
    "own_layers",
    "register",
    "walk",
]
