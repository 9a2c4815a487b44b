"""Views of images, on which a kernel can work: grey values instead of colours, or edges instead of pixels.

A fit to images and a fit to views of them err on different images, so the mean of their predictions is more accurate
than either. `k.seen("edges")` is the kernel of a view. `Augmentation(view="edges")` fits both and averages them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from .chunks import spans
from .errors import InputError, ParameterError

_AT_ONCE = 2**20  # numbers in the images that are mapped at once
_ORIENTATIONS = 6
_TURN = _ORIENTATIONS / math.pi  # orientations per radian


class View(ABC):
    """A map from images (N, H, W, C) to images (N, H', W', C'), for NumPy and CuPy arrays."""

    @staticmethod
    def parse(text: str | View) -> View:
        """Read a text form: `gray`, `edges` or `edges(full)`.

        >>> str(View.parse("edges"))
        'edges'
        """
        for name, view in VIEWS.items():
            if text in (name, view):
                return view
        raise ParameterError(f"there is no view {text!r}; there are {', '.join(VIEWS)}")

    def __str__(self) -> str:
        return next(text for text, view in VIEWS.items() if view == self)

    def __call__(self, images: Any) -> Any:
        """The view of the images, in float64."""
        self.shape(images.shape[1:])
        found = [self._show(images[part].astype(np.float64)) for part in _parts(images)]
        return np.concatenate(found)

    def back(self, images: Any, cotangents: Any) -> Any:
        """Cotangents of the images from those of their view."""
        found = [self._pull(images[part].astype(np.float64), cotangents[part]) for part in _parts(images)]
        return np.concatenate(found)

    @abstractmethod
    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the view of an image of this shape; raises if there is none."""

    @abstractmethod
    def _show(self, images: Any) -> Any: ...

    @abstractmethod
    def _pull(self, images: Any, cotangents: Any) -> Any: ...


@dataclass(frozen=True)
class Gray(View):
    """The mean of all channels.

    >>> Gray()(np.array([[[[1.0, 2.0, 6.0]]]]))
    array([[[[3.]]]])
    """

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 2:
            raise InputError("vectors have no colours; the view gray needs sequences or images")
        if shape[-1] == 1:
            raise InputError("the view gray averages channels, and these images have one channel; leave it out")
        return *shape[:-1], 1

    def _show(self, images: Any) -> Any:
        return images.mean(axis=-1, keepdims=True)

    def _pull(self, images: Any, cotangents: Any) -> Any:
        return np.broadcast_to(cotangents / images.shape[-1], images.shape)


@dataclass(frozen=True)
class Edges(View):
    """The strength of edges at every pixel, in six channels, one for each orientation.

    1. The gradient at a pixel is the difference of its neighbours along either axis, in the channel where it is longest
       (the first of several). At the border, the pixel itself replaces the missing neighbour.
    2. The square root of its length is divided between the two nearest of the six orientations. A gradient and its
       opposite have the same orientation.
    3. Unless `full`, blocks of 2×2 pixels are averaged. If half a side is even but no multiple of four, a line of zeros
       is added at both of its ends, so that two pools of size 2 fit.

    Mirroring or turning an image mirrors or turns its view and permutes the channels. Where the gradient is zero, the
    root has no derivative, and `back` uses zero. Near that it is steep, so nearly flat pixels dominate cotangents.

    >>> image = np.tile(np.arange(8.0) ** 2, (8, 1))[None, :, :, None]  # it gets brighter to the right
    >>> Edges()(image)[0, 0, :2].round(2)
    array([[1.5 , 0.  , 0.  , 0.  , 0.  , 0.  ],
           [3.15, 0.  , 0.  , 0.  , 0.  , 0.  ]])
    """

    full: bool = False

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) != 3:
            raise InputError(
                f"the view edges needs images (N, H, W, C), not (N, {', '.join(map(str, shape))}); leave it out"
            )
        if self.full:
            return *shape[:2], _ORIENTATIONS
        if shape[0] % 2 or shape[1] % 2:
            raise InputError(
                f"the view edges halves the sides of images, and those of {shape[0]}×{shape[1]} are not even; "
                "edges(full) keeps them"
            )
        return *(side // 2 + 2 * _margin(side) for side in shape[:2]), _ORIENTATIONS

    def _show(self, images: Any) -> Any:
        across, down, _ = _strongest(images)
        root, weights, _ = _shares(across, down)
        maps = root[..., None] * weights
        if self.full:
            return maps
        count, height, width, channels = maps.shape
        halved = maps.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))
        around = [(0, 0), *((_margin(side),) * 2 for side in (height, width)), (0, 0)]
        return np.pad(halved, around)

    def _pull(self, images: Any, cotangents: Any) -> Any:
        if not self.full:
            top, left = (_margin(side) for side in images.shape[1:3])
            inner = cotangents[:, top : cotangents.shape[1] - top, left : cotangents.shape[2] - left]
            cotangents = inner.repeat(2, axis=1).repeat(2, axis=2) / 4
        across, down, which = _strongest(images)
        root, weights, slopes = _shares(across, down)
        by_length = (cotangents * weights).sum(axis=-1) * root / 2
        by_angle = (cotangents * slopes).sum(axis=-1) * root * _TURN
        square = across**2 + down**2
        inverse = np.where(square > 0, 1 / np.where(square > 0, square, 1), 0)
        of_across = (by_length * across - by_angle * down) * inverse
        of_down = (by_length * down + by_angle * across) * inverse
        channels = [np.where(which == channel, 1.0, 0.0) for channel in range(images.shape[-1])]
        pulled = ((of_across, 2), (of_down, 1))
        return sum(_difference_back(np.stack([one * own for own in channels], axis=-1), axis) for one, axis in pulled)


VIEWS: dict[str, View] = {"gray": Gray(), "edges": Edges(), "edges(full)": Edges(full=True)}


def _parts(images: Any) -> Any:
    return spans(len(images), max(1, _AT_ONCE // math.prod(images.shape[1:])))


def _margin(side: int) -> int:
    """Zeros to add at each end of half a side: 1 if it is even but no multiple of four, else 0."""
    return int(side // 2 % 4 == 2)


def _strongest(images: Any) -> tuple[Any, Any, Any]:
    """Gradients to the right and down, in the channel where they are longest, and that channel; (N, H, W) each."""
    across, down = _difference(images, 2), _difference(images, 1)
    which = (across**2 + down**2).argmax(axis=-1)
    return *(np.take_along_axis(one, which[..., None], axis=-1)[..., 0] for one in (across, down)), which


def _shares(across: Any, down: Any) -> tuple[Any, Any, Any]:
    """The roots of lengths (N, H, W), the shares of the orientations (N, H, W, 6), and their slopes by the angle."""
    turn = np.arctan2(down, across) * _TURN
    far = np.stack([(turn - one + _ORIENTATIONS / 2) % _ORIENTATIONS for one in range(_ORIENTATIONS)], axis=-1)
    far = far - _ORIENTATIONS / 2
    weights = np.maximum(1 - np.abs(far), 0)
    return np.sqrt(np.hypot(across, down)), weights, np.where(weights > 0, -np.sign(far), 0)


def _difference(images: Any, axis: int) -> Any:
    """values[i + 1] - values[i - 1] along an axis; the first and the last value are repeated beyond the ends."""
    values = np.moveaxis(images, axis, 0)
    longer = np.concatenate([values[:1], values, values[-1:]])
    return np.moveaxis(longer[2:] - longer[:-2], 0, axis)


def _difference_back(cotangents: Any, axis: int) -> Any:
    given = np.moveaxis(cotangents, axis, 0)
    longer = np.zeros_like(given, shape=(len(given) + 2, *given.shape[1:]))
    longer[2:] += given
    longer[:-2] -= given
    values = longer[1:-1]
    values[0] += longer[0]
    values[-1] += longer[-1]
    return np.moveaxis(values, 0, axis)
