"""Recipes of training, as data: from the paper's appendix, completed by its published configuration.

The paper's text does not mention: batches of 128 for MNIST too, initial weights of variance 1 / (3 fan-in), ReLUs
without a factor, crops from a border of 4 zeros and holes of 16×16 for CIFAR-10, ZCA with epsilon 1e-4, and everything
about networks on subsets (widths that double at every pool, 400 epochs, a learning rate that rises for a fifth of them
and then falls to 0, features that are not normalised, batch normalisation without parameters).

For Myrtle5 on CIFAR-10, which the paper trains in half precision, that configuration normalises features only down to a
length of 1e-3: shorter ones stay shorter than 1. This matters. If all features had length 1, the output would not
depend on their length before, and weight decay, which shortens them, would not keep the network from fitting every
image.

>>> RECIPES["cifar10-myrtle5"].schedule.rate(epoch=20.0, epochs=60)
0.1
>>> print(RECIPES["cifar10-myrtle5"].describe())
myrtle5, 1,024 filters, zca; mse, sgd at 0.1, 60 epochs in batches of 128
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from ..errors import ParameterError, closest
from ..layers import is_real
from ..paper import SUBSETS, printed
from .checks import check_choice, check_counts, require

Loss = Literal["mse", "squares", "cross-entropy"]
Inputs = Literal["pixels", "standardize", "zca"]
LOSSES, OPTIMIZERS, INPUTS = ("mse", "squares", "cross-entropy"), ("sgd", "adam"), ("pixels", "standardize", "zca")
PYTORCH_GAIN = 3**-0.5  # PyTorch's default initial weights have variance 1 / (3 fan-in)


def as_python(value: Any) -> Any:
    """Convert NumPy numbers to Python numbers, which JSON accepts, and lists and arrays to tuples.

    >>> as_python([np.int64(4), np.float32(0.5)])
    (4, 0.5)
    """
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(as_python(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def _set(frozen: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass, in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


@dataclass(frozen=True)
class Steps:
    """A learning rate that is multiplied by a factor at each milestone, in epochs.

    >>> Steps((15, 30), 0.1).rate(epoch=30.0, epochs=60).__round__(9)
    0.01
    """

    milestones: tuple[float, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        several = isinstance(self.milestones, tuple | list)
        right = several and all(is_real(milestone) and milestone >= 0 for milestone in self.milestones)
        require(right, "milestones", "a list of epochs, such as (15, 30, 45)", self.milestones)
        require(is_real(self.factor) and self.factor > 0, "factor", "a number above 0", self.factor)
        _set(self, milestones=as_python(self.milestones), factor=float(self.factor))

    def rate(self, epoch: float, epochs: int) -> float:
        """The factor of the learning rate at a time, in epochs."""
        return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))

    def stretch(self, share: float) -> Steps:
        """The schedule for `share` times the epochs."""
        return Steps(tuple(milestone * share for milestone in self.milestones), self.factor)


@dataclass(frozen=True)
class Ramp:
    """A learning rate that rises in a straight line for a share of the epochs, then falls to 0.

    >>> [Ramp(0.2).rate(epoch, epochs=10) for epoch in (0.0, 1.0, 2.0, 6.0, 10.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    rise: float = 0.2

    def __post_init__(self) -> None:
        require(is_real(self.rise) and 0 <= self.rise <= 1, "rise", "a share, from 0 to 1", self.rise)
        _set(self, rise=float(self.rise))

    def rate(self, epoch: float, epochs: int) -> float:
        """The factor of the learning rate at a time, in epochs."""
        peak = int(epochs * self.rise) or 1
        return epoch / peak if epoch < peak else max(epochs - epoch, 0.0) / max(epochs - peak, 1)

    def stretch(self, share: float) -> Ramp:
        """The schedule for `share` times the epochs: the same, since it is defined by shares."""
        return self


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Two losses are squared errors with targets 0 and 1. `mse` is the mean over images and classes. `squares` is the sum
    over both, divided by the full size of a batch, so that a smaller last batch counts less.
    """

    data: str
    architecture: str
    width: int | tuple[int, ...]
    epochs: int
    batch_norm: bool = False
    batch_norm_parameters: bool = True
    usual_activations: bool = False  # ReLUs without the factor that keeps norms
    shortest: float = 1e-12  # feature vectors shorter than this are divided by it, not by their length
    loss: Loss = "mse"
    optimizer: Literal["sgd", "adam"] = "sgd"  # sgd has Nesterov momentum
    learning_rate: float = 0.1
    schedule: Steps | Ramp = Steps()
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch: int = 128
    flips: bool = False
    crop: int = 0  # pixels of zeros around the image to crop from
    cutout: int = 0  # side of the square that is set to zero
    inputs: Inputs = "zca"
    epsilon: float = 1e-4  # of ZCA
    gain: float = 1.0  # of the initial weights
    output_scale: float = 1.0
    images: int | None = None  # training images, balanced over the classes; None: all
    paper: float | None = None  # the paper's accuracy in percent
    paper_deviation: float | None = None  # over its trials

    def __post_init__(self) -> None:
        _set(self, **{name: as_python(value) for name, value in vars(self).items()})
        widths = {f"width {place}": width for place, width in enumerate(self.widths, start=1)}
        check_counts(epochs=self.epochs, batch=self.batch, **widths)
        check_counts(images=1 if self.images is None else self.images)
        check_counts(0, crop=self.crop, cutout=self.cutout)
        for name in ("learning_rate", "gain", "output_scale", "epsilon", "shortest"):
            value = getattr(self, name)
            require(is_real(value) and 0 < value < math.inf, name, "a number above 0", value)
        require(is_real(self.weight_decay) and self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        require(is_real(self.momentum) and 0 <= self.momentum < 1, "momentum", "from 0 to below 1", self.momentum)
        for name in ("batch_norm", "batch_norm_parameters", "usual_activations", "flips"):
            require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        require(isinstance(self.schedule, Steps | Ramp), "schedule", "Steps(...) or Ramp(...)", self.schedule)
        for name, known in (("loss", LOSSES), ("optimizer", OPTIMIZERS), ("inputs", INPUTS)):
            check_choice(name, getattr(self, name), known)

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of filters of each convolution, or one number for all."""
        return self.width if isinstance(self.width, tuple) else (self.width,)

    def change(self, **changes: Any) -> Recipe:
        """The recipe with some of its fields replaced, and without the paper's accuracy, which is of the original.

        If `epochs` changes, the schedule is stretched accordingly, unless it is given too.

        >>> RECIPES["cifar10-myrtle5"].change(width=32, epochs=20).schedule.milestones
        (5.0, 10.0, 15.0)
        """
        known = tuple(sorted(field.name for field in fields(self)))
        for name in changes:
            check_choice("a field of a recipe", name, known)
        changed = replace(self, **{"paper": None, "paper_deviation": None, **changes})
        if "schedule" in changes or changed.epochs == self.epochs:
            return changed
        return replace(changed, schedule=self.schedule.stretch(changed.epochs / self.epochs))

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the class of the schedule by name."""
        return asdict(self) | {"schedule": {"kind": type(self.schedule).__name__, **vars(self.schedule)}}

    def describe(self) -> str:
        """The recipe in one line."""
        body = f"{self.architecture}, {'/'.join(f'{w:,}' for w in self.widths)} filters"
        extras = {
            "batch norm": self.batch_norm,
            "flips": self.flips,
            f"crops {self.crop}": self.crop,
            f"cutout {self.cutout}": self.cutout,
            f"{self.images} images": self.images,
        }
        named = ", ".join([body, self.inputs, *(name for name, on in extras.items() if on)])
        rate = f"{self.optimizer} at {self.learning_rate:g}"
        return f"{named}; {self.loss}, {rate}, {self.epochs} epochs in batches of {self.batch}"


_CIFAR10 = Recipe(
    "cifar10", "myrtle5", 1024, 60, schedule=Steps((15, 30, 45)), gain=PYTORCH_GAIN, usual_activations=True
)
_MNIST = replace(
    _CIFAR10,
    data="mnist",
    epochs=20,
    inputs="pixels",
    optimizer="adam",
    learning_rate=1e-3,
    schedule=Steps(),
    weight_decay=0.0,
)
_DECAYED = replace(_CIFAR10, shortest=1e-3)
_DEEP = replace(_CIFAR10, architecture="myrtle10", epochs=200, learning_rate=0.05, schedule=Steps((80, 120, 160)))
_AUGMENTED = replace(
    _DEEP, width=2048, epochs=400, learning_rate=0.1, schedule=Steps((80, 160, 240, 320)), crop=4, cutout=16
)
_CIFAR100 = replace(_DEEP, data="cifar100", width=2048, loss="cross-entropy", schedule=Steps((60, 120, 160), 0.2))
_BATCH_NORM = replace(_CIFAR100, batch_norm=True, learning_rate=0.1)
_SUBSET = replace(
    _CIFAR10,
    architecture="conv3 relu conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool",
    width=(64, 128, 256, 512),
    epochs=400,
    batch=256,
    loss="squares",
    learning_rate=0.8,
    schedule=Ramp(0.2),
    output_scale=0.125,
    batch_norm_parameters=False,
)
_FULL = {  # recipes for whole data sets
    "mnist-myrtle5": _MNIST,
    "cifar10-myrtle5": _DECAYED,
    "cifar10-myrtle5-no-zca": replace(_DECAYED, inputs="standardize"),
    "cifar10-myrtle7": replace(_DEEP, architecture="myrtle7"),
    "cifar10-myrtle10": _DEEP,
    "cifar10-myrtle10-flips": replace(_DEEP, flips=True),
    "cifar10-myrtle10-augmented": replace(_AUGMENTED, flips=True),
    "cifar100-myrtle10": replace(_CIFAR100, learning_rate=0.01),
    "cifar100-myrtle10-flips": replace(_CIFAR100, learning_rate=0.05, flips=True),
    "cifar100-myrtle10-bn": _BATCH_NORM,
    "cifar100-myrtle10-bn-flips": replace(_BATCH_NORM, flips=True),
}
RECIPES: dict[str, Recipe] = {
    **{name: replace(recipe, paper=printed(recipe.data, name, recipe.data)) for name, recipe in _FULL.items()},
    **{
        f"{name}-{images}": replace(_SUBSET, batch_norm=bn, images=images, paper=mean, paper_deviation=deviation)
        for name, bn, row in (("subset", False, "myrtle5-cnn"), ("subset-bn", True, "myrtle5-cnn+batchnorm"))
        for images, (mean, deviation) in SUBSETS[row].items()
    },
}


def recipe_of(name: str) -> Recipe:
    """The recipe with a name.

    >>> recipe_of("cifar-myrtle5")
    Traceback (most recent call last):
        ...
    tangentless.errors.ParameterError: there is no recipe 'cifar-myrtle5'; did you mean 'cifar10-myrtle5'?
    """
    if name not in RECIPES:
        raise ParameterError(f"there is no recipe {name!r}; {closest(name, RECIPES, cutoff=0.0)}".strip())
    return RECIPES[name]
