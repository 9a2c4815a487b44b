"""Random copies of images: crops, mirror images, holes and RandAugment.

Crops, mirror images and holes are computed by the same functions for NumPy arrays and PyTorch tensors. Only the source
of random numbers differs, the protocol `Draws`: `NumpyDraws` here, and one for PyTorch in `networks`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError
from ..inputs import check_switch
from ..views import VIEWS, View
from .parameters import check_whole, to_json
from .randaugment import RandAugment


@dataclass(frozen=True)
class Augmentation:
    """Random copies of images (N, H, W, C): crops, then mirror images, then holes; reproducible by seed and key.

    Parameters
    ----------
    crop
        Shift each image by up to so many pixels along both axes; pixels from outside are zero.
    flips
        Mirror each image with probability 1/2.
    cutout
        Set a square of so many pixels a side to zero in each image. Its centre is any pixel, so part of the square may
        be outside the image.
    randaugment
        Apply this first; images must then be bytes.
    seed
        A whole number from 0. It replaces that of `randaugment` too.
    view
        A view that every second member of an ensemble sees instead of the images, in training and in prediction:
        "gray", "edges" or "edges(full)" (see `Kernel.seen`).

    Examples
    --------
    >>> images = np.ones((2, 4, 4, 1))
    >>> copies = Augmentation(crop=1, cutout=2).copy(images, 0)
    >>> copies.shape, bool((copies == Augmentation(crop=1, cutout=2).copy(images, 0)).all())
    ((2, 4, 4, 1), True)
    """

    crop: int = 0
    flips: bool = False
    cutout: int = 0
    randaugment: RandAugment | None = None
    seed: int = 0
    view: str | None = None

    def __post_init__(self) -> None:
        for name in ("crop", "cutout", "seed"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), least=0))
        check_switch("flips", self.flips)
        object.__setattr__(self, "flips", bool(self.flips))
        if self.view is not None:
            object.__setattr__(self, "view", str(View.parse(self.view)))
        if self.randaugment is not None:
            if not isinstance(self.randaugment, RandAugment):
                raise ParameterError(f"randaugment is a RandAugment(...) or None, not {self.randaugment!r}")
            self.randaugment.check_parameters()
            object.__setattr__(self, "randaugment", copy.copy(self.randaugment))  # nobody else may change it

    @classmethod
    def parse(cls, text: str) -> Augmentation:
        """Read a text such as `crop=2, flips, cutout=8`; `randaugment` stands for `RandAugment()`.

        >>> Augmentation.parse("flips, crop=2")
        Augmentation(crop=2, flips=True, cutout=0, randaugment=None, seed=0, view=None)
        """
        found: dict[str, Any] = {}
        for word in text.split(","):
            name, equals, value = (part.strip() for part in word.partition("="))
            if name in ("crop", "cutout", "seed") and value.isdecimal():
                found[name] = int(value)
            elif name in ("flips", "randaugment") and not equals:
                found[name] = RandAugment() if name == "randaugment" else True
            elif name in VIEWS and not equals and "view" not in found:
                found["view"] = name
            else:
                raise ParameterError(
                    f"cannot read {word.strip()!r} in the augmentation {text!r}; write crop=2, flips, cutout=8, "
                    f"randaugment, seed=1 or one of {', '.join(VIEWS)}, separated by commas"
                )
        return cls(**found)

    def copy(self, images: NDArray[Any], *key: int) -> NDArray[Any]:
        """A random copy of each image. The key is any whole numbers from 0; equal keys give equal copies."""
        if self.draws < math.inf:
            return images
        if images.ndim != 4:
            raise InputError(f"augmentation needs images (N, H, W, C), but X has shape {images.shape}")
        if self.crop >= min(images.shape[1:3]):
            raise InputError(f"a crop by {self.crop} leaves nothing of images {images.shape[1:]}; crop less")
        if self.randaugment is not None:
            operations = RandAugment(**self.randaugment.get_params(deep=False) | {"seed": self.seed})
            images = operations.copy(images, *key)
        copies: NDArray[Any] = augment(images, self, NumpyDraws(np.random.default_rng([self.seed, *key])))
        return copies

    def views(self, members: int) -> list[str | None]:
        """The view of each member of an ensemble; None for the images themselves.

        >>> Augmentation(view="edges").views(3)
        [None, 'edges', None]
        """
        return [self.view if member % 2 else None for member in range(members)]

    @property
    def draws(self) -> float:
        """How many different members an ensemble can have; infinity if copies are random."""
        random = self.crop or self.flips or self.cutout or self.randaugment is not None
        return math.inf if random else 1 + (self.view is not None)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(replace(self, randaugment=None)) | {"randaugment": to_json(self.randaugment)}

    @classmethod
    def from_json(cls, content: Any) -> Augmentation:
        """The augmentation that `to_json` described."""
        try:
            parameters = dict(content)
            if parameters["randaugment"] is not None:
                parameters["randaugment"] = RandAugment(**parameters["randaugment"])
            return cls(**parameters)
        except (TypeError, ValueError, KeyError, ParameterError):
            raise InputError(f"{content!r} does not describe an augmentation") from None


class Changes(Protocol):
    """What `augment` reads: an `Augmentation`, or the recipe of a network."""

    @property
    def crop(self) -> int: ...
    @property
    def flips(self) -> bool: ...
    @property
    def cutout(self) -> int: ...


class Draws(Protocol):
    """A source of random integers, in arrays of the library of the images."""

    @property
    def xp(self) -> Any:
        """NumPy or torch."""

    def below(self, end: int, count: int) -> Any:
        """Random integers from 0 to end - 1, (count, 1)."""

    def positions(self, length: int) -> Any:
        """0, 1, ..., length - 1."""


@dataclass(frozen=True)
class NumpyDraws:
    """Draws by NumPy."""

    generator: np.random.Generator
    xp: Any = np

    def below(self, end: int, count: int) -> Any:
        return self.generator.integers(end, size=(count, 1))

    def positions(self, length: int) -> Any:
        return np.arange(length)


def augment(images: Any, changes: Changes, draws: Draws) -> Any:
    """Randomly changed images (N, H, W, C); the same array if nothing is asked for."""
    if changes.crop:
        images = random_crops(images, changes.crop, draws)
    if changes.flips:
        images = random_flips(images, draws)
    if changes.cutout:
        images = random_holes(images, changes.cutout, draws)
    return images


def random_crops(images: Any, border: int, draws: Draws) -> Any:
    """Each image shifted by up to `border` pixels along both axes; pixels from outside are zero."""
    count, height, width, _ = images.shape
    rows, columns = (
        draws.below(2 * border + 1, count) - border + draws.positions(length) for length in (height, width)
    )
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    which = draws.positions(count)[:, None, None]
    moved = images[which, rows.clip(0, height - 1)[:, :, None], columns.clip(0, width - 1)[:, None, :]]
    return draws.xp.where(inside[..., None], moved, 0)


def random_flips(images: Any, draws: Draws) -> Any:
    """Each image, or with probability 1/2 its mirror image."""
    mirrored = (draws.below(2, len(images)) == 1)[:, :, None, None]
    return draws.xp.where(mirrored, draws.xp.flip(images, (2,)), images)


def random_holes(images: Any, side: int, draws: Draws) -> Any:
    """Each image with a square of zeros, centred on any pixel; part of it may be outside the image."""
    count, height, width, _ = images.shape
    rows, columns = (_in_square(length, count, side, draws) for length in (height, width))
    return draws.xp.where((rows[:, :, None] & columns[:, None, :])[..., None], 0, images)


def _in_square(length: int, count: int, side: int, draws: Draws) -> Any:
    """Which positions along an axis are within the square of each image, (count, length)."""
    distance = draws.positions(length) - (draws.below(length, count) - side // 2)
    return (distance >= 0) & (distance < side)
