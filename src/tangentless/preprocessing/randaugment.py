"""RandAugment (Cubuk et al., 2019): copies of images, each changed by a few operations drawn at random.

The operations and what a magnitude from 0 to 10 means to each are those of AutoAugment's experiments on CIFAR-10, which
the paper's authors used; only those are here that leave pixels in their places, or mirror the image. They work on
bytes, on many images at once, and agree with Pillow to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from ..errors import InputError, ParameterError
from ..inputs import to_numpy
from ..layers import is_whole
from ..solve import is_number
from .mirrors import mirror
from .rows import parts

Images = NDArray[np.uint8]
_GREATEST = 10  # magnitude


class RandAugment(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Random copies of images, uint8 (N, H, W, C) with one channel or three; the same for the same seed.

    This is no transformer: in a pipeline it would change the images that are predicted for, too.

    Parameters
    ----------
    number
        How many operations change each image, no two of them the same.
    magnitude
        How much they change it, from 0 to 10. At 4: colours, brightness, contrast and sharpness at 82 %, three bits
        left, and values above 153 inverted.
    operations
        The names of those that are drawn from.
    seed
        Any whole number from 0.

    Examples
    --------
    >>> images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    >>> first, again, other = (RandAugment().copy(images, key) for key in (0, 0, 1))
    >>> first.shape, first.dtype, bool((first == again).all()), bool((first == other).all())
    ((5, 8, 8, 3), dtype('uint8'), True, False)
    """

    def __init__(
        self, number: int = 2, magnitude: float = 4, operations: Sequence[str] | None = None, seed: int = 0
    ) -> None:
        self.number = number
        self.magnitude = magnitude
        self.operations = operations
        self.seed = seed

    def copy(self, images: Images, *key: int) -> Images:
        """A random copy of each image; another one for another key, which is any whole numbers from 0."""
        return np.concatenate(list(self.chunks(images, *key)))

    def chunks(self, images: Images, *key: int) -> Iterator[Images]:
        """What `copy` gives, a few thousand images at a time."""
        names, images = self.check_parameters(), to_numpy(images)[0]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise InputError(
                f"RandAugment changes images of bytes (N, H, W, C) with one channel or three, not {images.dtype} of "
                f"shape {images.shape}; do so before other preprocessing"
            )
        # All draws at once, so that they do not depend on the chunks.
        draws = np.random.default_rng([self.seed, *key]).random((len(images), len(names)))
        chosen = draws.argsort(axis=1)[:, : self.number]
        for part in parts(len(images)):
            copy = images[part].copy()
            for place in range(self.number):
                for operation, name in enumerate(names):
                    rows = np.flatnonzero(chosen[part, place] == operation)
                    if len(rows):
                        copy[rows] = _OPERATIONS[name](copy[rows], self.magnitude)
            yield copy

    def check_parameters(self) -> Sequence[str]:
        """Refuse parameters outside their ranges; the names of the operations."""
        names = OPERATIONS if self.operations is None else tuple(self.operations)
        if unknown := [name for name in names if name not in _OPERATIONS]:
            raise ParameterError(f"there is no operation {unknown[0]!r}; there are {', '.join(OPERATIONS)}")
        if not is_number(self.magnitude) or not 0 <= self.magnitude <= _GREATEST:
            raise ParameterError(f"magnitude must be from 0 to {_GREATEST}, not {self.magnitude!r}")
        if not is_whole(self.number) or not 0 < self.number <= len(names):
            raise ParameterError(
                f"number must be from 1 to {len(names)}, the number of operations, not {self.number!r}"
            )
        if not is_whole(self.seed) or self.seed < 0:
            raise ParameterError(f"seed must be a whole number from 0, not {self.seed!r}")
        return names


def _enhance(images: Images, plain: NDArray[Any], magnitude: float) -> Images:
    """A mixture of each image and a plain version of it; below 1 the plain one gains, above 1 it is taken away."""
    factor = np.float32(0.1 + 1.8 * magnitude / _GREATEST)
    start = plain.astype(np.float32)
    mixed = start + factor * (images.astype(np.float32) - start)
    return mixed.clip(0, 255).astype(np.uint8)


def _luma(images: Images) -> Images:
    """Grey, (N, H, W, 1), in the fixed-point weights of television that Pillow takes."""
    if images.shape[-1] == 1:
        return images
    weighted = images.astype(np.int32) @ np.array([19595, 38470, 7471], np.int32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]


def _mean_grey(images: Images) -> NDArray[Any]:
    means: NDArray[Any] = _luma(images).mean(axis=(1, 2, 3), keepdims=True)
    return np.floor(means + 0.5)


def _smooth(images: Images) -> Images:
    """The mean of nine pixels, the middle one five times; pixels at the edge stay as they are."""
    result = images.copy()
    if min(images.shape[1:3]) > 2:
        height, width = images.shape[1] - 2, images.shape[2] - 2
        total = 4 * images[:, 1:-1, 1:-1].astype(np.int32)
        for down in range(3):
            for right in range(3):
                total += images[:, down : down + height, right : right + width]
        result[:, 1:-1, 1:-1] = (2 * total + 13) // 26
    return result


def _posterize(images: Images, magnitude: float) -> Images:
    bits = 4 - int(4 * magnitude / _GREATEST)
    return images & np.uint8(256 - (1 << (8 - bits)))


def _solarize(images: Images, magnitude: float) -> Images:
    threshold = 256 - int(256 * magnitude / _GREATEST)
    return np.where(images < threshold, images, 255 - images)


def _equalize(images: Images) -> Images:
    """Each channel of each image by a table that makes its values about equally frequent."""
    count, height, width, channels = images.shape
    planes = images.transpose(0, 3, 1, 2).reshape(count * channels, -1)
    index = planes + 256 * np.arange(len(planes))[:, None]
    frequency = np.bincount(index.ravel(), minlength=256 * len(planes)).reshape(-1, 256)
    greatest = planes.max(axis=1)
    step = (height * width - frequency[np.arange(len(planes)), greatest]) // 255
    below = frequency.cumsum(axis=1) - frequency
    table = (below + (step // 2)[:, None]) // np.maximum(step, 1)[:, None]
    table = np.where(step[:, None] > 0, table.clip(0, 255), np.arange(256))
    equal: Images = table.ravel()[index].astype(np.uint8)
    return equal.reshape(count, channels, height, width).transpose(0, 2, 3, 1)


_OPERATIONS: dict[str, Callable[[Images, float], Images]] = {
    "FlipLR": lambda images, _: mirror(images),
    "Solarize": _solarize,
    "Color": lambda images, magnitude: _enhance(images, _luma(images), magnitude),
    "Brightness": lambda images, magnitude: _enhance(images, np.zeros_like(images), magnitude),
    "Contrast": lambda images, magnitude: _enhance(images, _mean_grey(images), magnitude),
    "Sharpness": lambda images, magnitude: _enhance(images, _smooth(images), magnitude),
    "Posterize": _posterize,
    "Equalize": lambda images, _: _equalize(images),
    "Identity": lambda images, _: images,
}
OPERATIONS = tuple(_OPERATIONS)
