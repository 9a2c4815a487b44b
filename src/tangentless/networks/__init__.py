"""Networks of the same shape as the kernels, in PyTorch: one architecture gives both sides of a comparison.

`Architecture.to_torch` is a network whose kernel, at random weights, approaches that of the architecture as it grows
wider. `train` trains it by a `Recipe`, which is data; the paper's recipes are in `RECIPES`. PyTorch comes with the
extra `tangentless[networks]` and is imported when something here needs it.

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
    """What imports PyTorch, once it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"LeNet5": "baselines", "Network": "model", "ResNet32": "baselines"}.get(name, "training")
    return getattr(importlib.import_module(f".{module}", __name__), name)
