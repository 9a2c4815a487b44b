"""Compositional kernels: the exact kernels of infinitely wide networks, from a list of layers.

>>> import tangentless as tl
>>> tl.kernel("myrtle10-gaussian")
kernel('myrtle10-gaussian')
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import classical
from .architecture import Architecture
from .devices import Device
from .gram import GramMatrix, open_gram
from .kernel import kernel
from .layers import (
    GELU,
    Abs,
    Average,
    Conv,
    Cos,
    Erf,
    Gaussian,
    GlobalPool,
    HalfPool,
    LeakyReLU,
    Nonlinearity,
    Normalize,
    Patch,
    Polynomial,
    Pool,
    ReLU,
    Residual,
    Sin,
    Stack,
    Step,
    Sum,
    Tanh,
    Windows,
    register,
)

if TYPE_CHECKING:
    from .choosing import choose
    from .distillation import distill
    from .estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
    from .features import ConvolutionalKernelNetwork, RandomPatchFeatures
    from .gram import gram  # at run time `tangentless.gram` is the package, which is callable
    from .models import load_model, save_model
    from .preprocessing import ZCA, Augmentation, RandAugment, Standardize
    from .processes import GaussianProcessClassifier, GaussianProcessRegressor
    from .recipes import recipe
    from .report import write_report
    from .searching import search
    from .sklearn_kernels import sklearn_kernel

__all__ = [
    "GELU",
    "ZCA",
    "Abs",
    "Architecture",
    "Augmentation",
    "Average",
    "Conv",
    "ConvolutionalKernelNetwork",
    "Cos",
    "Device",
    "Erf",
    "Gaussian",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
    "GlobalPool",
    "GramMatrix",
    "HalfPool",
    "KernelRidgeClassifier",
    "KernelRidgeRegressor",
    "KernelSVC",
    "LeakyReLU",
    "Nonlinearity",
    "Normalize",
    "Patch",
    "Polynomial",
    "Pool",
    "RandAugment",
    "RandomPatchFeatures",
    "ReLU",
    "Residual",
    "Sin",
    "Stack",
    "Standardize",
    "Step",
    "Sum",
    "Tanh",
    "Windows",
    "choose",
    "classical",
    "distill",
    "gram",
    "kernel",
    "load_model",
    "open_gram",
    "recipe",
    "register",
    "save_model",
    "search",
    "sklearn_kernel",
    "write_report",
]
__version__ = "0.2.0"

_LAZY = {  # imported on first access: scikit-learn is slow to import
    "ConvolutionalKernelNetwork": "features",
    "GaussianProcessClassifier": "processes",
    "GaussianProcessRegressor": "processes",
    "KernelRidgeClassifier": "estimators",
    "KernelRidgeRegressor": "estimators",
    "KernelSVC": "estimators",
    "Augmentation": "preprocessing",
    "RandAugment": "preprocessing",
    "RandomPatchFeatures": "features",
    "Standardize": "preprocessing",
    "ZCA": "preprocessing",
    "distill": "distillation",
    "load_model": "models",
    "save_model": "models",
    "recipe": "recipes",
    "choose": "choosing",
    "search": "searching",
    "sklearn_kernel": "sklearn_kernels",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
