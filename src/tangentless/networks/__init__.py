"""PyTorch networks of the same architectures as the kernels, to compare both.

`Architecture.to_torch` builds a network. At random weights its kernel approaches that of the architecture as its width
grows. `train` trains it by a `Recipe`, which is plain data; the paper's recipes are in `RECIPES`. PyTorch comes with
the extra `tangentless[networks]` and is imported only when something here needs it.

>>> from tangentless.networks import RECIPES
>>> RECIPES["cifar10-myrtle5"].epochs
60
"""

import importlib
from typing import TYPE_CHECKING, Any

from .recipes import RECIPES, Ramp, Recipe, Steps, recipe_of

if TYPE_CHECKING:
    from .baselines import LeNet5, ResNet32
    from .model import Network
    from .training import DivergedError, Machine, Training, network_of, predict, train

__all__ = [
    "RECIPES",
    "DivergedError",
    "LeNet5",
    "Machine",
    "Network",
    "Ramp",
    "Recipe",
    "ResNet32",
    "Steps",
    "Training",
    "network_of",
    "predict",
    "recipe_of",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the names that need PyTorch on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"LeNet5": "baselines", "Network": "model", "ResNet32": "baselines"}.get(name, "training")
    return getattr(importlib.import_module(f".{module}", __name__), name)
