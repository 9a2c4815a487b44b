"""Readers of the published layouts: bytes to images (N, H, W, C) and labels (N,), with every length checked.

- CIFAR: rows of one label (CIFAR-10) or a coarse and a fine one (CIFAR-100), then the red, green and blue planes of an
  image; the pickles are dictionaries with the same rows.
- MNIST: a file of images and one of labels, each with a header of big-endian numbers (the idx format).
- CIFAR-10.1: a file of images and one of labels, saved by NumPy.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .pickles import UnreadablePickle, read_pickle

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Reader = Callable[..., tuple[Images, Labels]]  # takes the contents of one or more files
_SIDE, _PIXELS = 32, 3072  # of CIFAR; _PIXELS counts bytes: 32 * 32 * 3


class LayoutError(ValueError):
    """Bytes in the wrong layout; callers add the name of the file."""


def read_rows(content: bytes, labels: int) -> tuple[Images, Labels]:
    """A binary file of CIFAR: rows of `labels` bytes, of which the last one is returned, and of pixels."""
    row = labels + _PIXELS
    if not content or len(content) % row:
        raise LayoutError(f"it has {len(content):,} bytes, which is not a multiple of {row:,}, the bytes of an image")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return _planes_to_images(rows[:, labels:]), rows[:, labels - 1].astype(np.int64)


def read_dictionary(content: bytes, key: str) -> tuple[Images, Labels]:
    """A pickle of CIFAR; `key` names the labels in its dictionary."""
    try:
        entries = read_pickle(content)
    except UnreadablePickle as error:
        raise LayoutError(str(error)) from None
    if not isinstance(entries, dict) or not {"data", key} <= entries.keys():
        raise LayoutError(f"it has no 'data' and {key!r}")
    data, labels = entries["data"], entries[key]
    if not isinstance(data, np.ndarray) or data.shape[1:] != (_PIXELS,):
        raise LayoutError(f"its 'data' are not rows of {_PIXELS:,} bytes")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise LayoutError(f"its {key!r} are not a list of numbers from 0 to 255")
    return _pair(_planes_to_images(data), np.array(labels, np.int64))


def read_mnist(images: bytes, labels: bytes) -> tuple[Images, Labels]:
    """A file of images and one of labels, in the idx format.

    >>> header = struct.pack(">BBBBIII", 0, 0, 8, 3, 1, 2, 1)  # bytes, three axes: one image of 2×1 pixels
    >>> images, labels = read_mnist(header + b"ab", struct.pack(">BBBBI", 0, 0, 8, 1, 1) + bytes([7]))
    >>> images.shape, labels
    ((1, 2, 1, 1), array([7]))
    """
    return _pair(_read_idx(images, axes=3)[..., None], _read_idx(labels, axes=1))


def read_arrays(images: bytes, labels: bytes) -> tuple[Images, Labels]:
    """An array of images and one of labels, as NumPy saves them."""
    pixels, numbers = _read_npy(images), _read_npy(labels)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (_SIDE, _SIDE, 3) or numbers.dtype.kind not in "iu":
        raise LayoutError(f"it holds {pixels.dtype} of shape {pixels.shape} with labels of {numbers.dtype}")
    return _pair(pixels, numbers)


def _planes_to_images(rows: Images) -> Images:
    return np.ascontiguousarray(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _read_idx(content: bytes, axes: int) -> Images:
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        raise LayoutError(f"it does not have the header of an idx file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if math.prod(shape) != len(content) - start:
        raise LayoutError(f"its header says {shape}, but {len(content) - start:,} bytes follow")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_npy(content: bytes) -> NDArray[Any]:
    try:
        return npy.read_array(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise LayoutError(f"it is not an array saved by NumPy, or is damaged ({error})") from None


def _pair(images: Images, labels: NDArray[Any]) -> tuple[Images, Labels]:
    if labels.ndim != 1 or len(images) != len(labels):
        raise LayoutError(f"{len(images):,} images do not go with labels of shape {labels.shape}")
    return images, labels.astype(np.int64)
