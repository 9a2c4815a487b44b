"""RandAugment (Cubuk et al., 2019): copies of images, each changed by a few operations drawn at random.

The operations, and what magnitudes from 0 to 10 mean, are those of AutoAugment's experiments on CIFAR-10, which the
paper's authors used. Of these, only the ones that do not move pixels are here, and the mirror image. They take many
images of bytes at once and agree with Pillow in every bit.
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
from .parameters import check_whole
from .rows import parts

Images = NDArray[np.uint8]
_GREATEST = 10  # the largest magnitude


class RandAugment(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Random copies of images, uint8 (N, H, W, C) with one channel or three; reproducible by seed.

    This is not a transformer: a pipeline would apply it to test images too.

    Parameters
    ----------
    number
        How many different operations are applied to each image.
    magnitude
        The strength of the operations, from 0 to 10. At 4, colour, brightness, contrast and sharpness are reduced to
        82 %, posterizing leaves three bits, and solarizing inverts values from 154.
    operations
        The names of the operations to draw from, by default all of `OPERATIONS`.
    seed
        A whole number from 0.

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
        """A random copy of each image. The key is any whole numbers from 0; equal keys give equal copies."""
        return np.concatenate(list(self.chunks(images, *key)))

    def chunks(self, images: Images, *key: int) -> Iterator[Images]:
        """The result of `copy`, a few thousand images at a time."""
        names, images = self.check_parameters(), to_numpy(images)[0]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise InputError(
                f"RandAugment needs uint8 images (N, H, W, C) with one channel or three, not {images.dtype} of shape "
                f"{images.shape}; apply it before other preprocessing"
            )
        # Draw for all images at once: results must not depend on the size of the chunks.
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
        """Refuse parameters outside their ranges, and return the names of the operations."""
        names = OPERATIONS if self.operations is None else tuple(self.operations)
        if unknown := [name for name in names if name not in _OPERATIONS]:
            raise ParameterError(f"there is no operation {unknown[0]!r}; there are {', '.join(OPERATIONS)}")
        if not is_number(self.magnitude) or not 0 <= self.magnitude <= _GREATEST:
            raise ParameterError(f"magnitude must be from 0 to {_GREATEST}, not {self.magnitude!r}")
        if not is_whole(self.number) or not 0 < self.number <= len(names):
            raise ParameterError(
                f"number must be from 1 to {len(names)}, the number of operations, not {self.number!r}"
            )
        check_whole("seed", self.seed, least=0)
        return names


def _enhance(images: Images, plain: NDArray[Any], magnitude: float) -> Images:
    """plain + factor (image - plain), as Pillow's `ImageEnhance`: factors below 1 move towards the plain version."""
    factor = np.float32(0.1 + 1.8 * magnitude / _GREATEST)
    start = plain.astype(np.float32)
    mixed = start + factor * (images.astype(np.float32) - start)
    return mixed.clip(0, 255).astype(np.uint8)


def _luma(images: Images) -> Images:
    """Grey values, (N, H, W, 1), by the fixed-point luma weights of ITU-R 601 that Pillow uses."""
    if images.shape[-1] == 1:
        return images
    weighted = images.astype(np.int32) @ np.array([19595, 38470, 7471], np.int32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]


def _mean_grey(images: Images) -> NDArray[Any]:
    means: NDArray[Any] = _luma(images).mean(axis=(1, 2, 3), keepdims=True)
    return np.floor(means + 0.5)


def _smooth(images: Images) -> Images:
    """Means over 3×3 pixels, in which the centre has weight 5; pixels at the border are unchanged."""
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
    """Equalise the histogram of each channel of each image, by a table of 256 values."""
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
