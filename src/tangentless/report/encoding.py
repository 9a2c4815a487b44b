"""Images and matrices as text inside a page, each within a budget of bytes.

All thumbnails are in one picture, a sprite sheet: a PNG if that is small, else a JPEG of the best quality that fits. Of
a kernel matrix, the page holds the triangle above the diagonal as integer codes with as many bits as fit.
"""

from __future__ import annotations

import base64
import io
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SPRITE_BYTES, MATRIX_BYTES = 1_400_000, 2_600_000  # before base64, which adds a third: 5.3 MB together
_LOSSLESS = 600_000  # bytes of the largest PNG
_QUALITIES = (92, 85, 75, 60, 40, 20)
_BITS = (16, 14, 12, 10, 8)
_BLOCK = 8  # pixels: JPEG codes blocks of 8×8, and a thumbnail must not bleed into the next
_SIDES = ((500, 96), (1500, 64), (4000, 32))  # (most thumbnails, their longest side in pixels)
_SMALLEST_SIDE = 24


@dataclass(frozen=True)
class Sprite:
    """Thumbnails in one picture, in rows of `columns`. Each is in the upper left corner of its cell."""

    url: str  # a data URL
    width: int  # of a thumbnail, in pixels
    height: int
    cell_width: int
    cell_height: int
    columns: int
    rows: int


@dataclass(frozen=True)
class PackedMatrix:
    """The triangle above the diagonal, row by row: an entry is `low + step * code`.

    `text` holds the codes, compressed by zlib, in base64: first the high bytes of all, if there are more than 8 bits,
    then the low bytes.
    """

    text: str
    low: float
    step: float
    bits: int

    @property
    def error(self) -> float:
        """The largest error of an entry."""
        return self.step / 2


def picture_values(images: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Images (N, H, W, C) as bytes, grey (N, H, W) or coloured (N, H, W, 3); None for arrays of another shape.

    Integers from 0 to 255 and fractions from 0 to 1 keep their scale. Otherwise the range between the 1st and the 99th
    percentile is shown.

    >>> picture_values(np.array([0.0, 0.5, 1.0]).reshape(1, 1, 3, 1))
    array([[[  0, 128, 255]]], dtype=uint8)
    """
    if images.ndim != 4 or not images.size:
        return None
    values = images[..., :3] if images.shape[-1] in (3, 4) else images.mean(axis=-1, dtype=np.float64)
    if values.dtype == np.uint8:
        return values
    values = values.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255 and images.dtype.kind in "iu":
        low, high = 0.0, 255.0
    else:
        low, high = np.percentile(values, [1, 99])
    shares = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    return np.round(255 * shares).astype(np.uint8)


def make_sprite(pictures: NDArray[np.uint8], budget: int = SPRITE_BYTES) -> Sprite:
    """One sheet with all pictures, in bytes within the budget if the lowest quality allows it.

    >>> sheet = make_sprite(np.zeros((5, 8, 8), np.uint8))
    >>> sheet.columns, sheet.rows, sheet.cell_width, sheet.url[:21]
    (3, 2, 8, 'data:image/png;base64')
    """
    from PIL import Image

    side = next((side for most, side in _SIDES if len(pictures) <= most), _SMALLEST_SIDE)
    shrink = min(1.0, side / max(pictures.shape[1:3]))
    height, width = (max(1, round(shrink * length)) for length in pictures.shape[1:3])
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    high, wide = (_BLOCK * math.ceil(length / _BLOCK) for length in (height, width))
    sheet = Image.new("L" if pictures.ndim == 3 else "RGB", (columns * wide, rows * high))
    for place, picture in enumerate(pictures):
        # Repeat the last row and column up to the edge of the cell: black would bleed into a picture that is scaled.
        one = Image.fromarray(picture).resize((width, height), Image.Resampling.BOX)
        edged = np.pad(np.asarray(one), [(0, high - height), (0, wide - width), (0, 0)][: picture.ndim], mode="edge")
        sheet.paste(Image.fromarray(edged), (place % columns * wide, place // columns * high))
    kind, data = _compress(sheet, budget)
    return Sprite(data_url(f"image/{kind}", data), width, height, wide, high, columns, rows)


def _compress(sheet: Any, budget: int) -> tuple[str, bytes]:
    content = io.BytesIO()
    sheet.save(content, "PNG", optimize=True)
    if content.tell() <= min(_LOSSLESS, budget):
        return "png", content.getvalue()
    for quality in _QUALITIES:
        content = io.BytesIO()
        sheet.save(content, "JPEG", quality=quality, subsampling=0)
        if content.tell() <= budget:
            break
    return "jpeg", content.getvalue()


def pack_matrix(K: Array, budget: int = MATRIX_BYTES) -> PackedMatrix:
    """A symmetric matrix with as many bits per entry, 16 to 8, as the budget allows.

    >>> K = np.array([[1.0, 0.25, 0.5], [0.25, 1.0, 0.75], [0.5, 0.75, 1.0]])
    >>> packed = pack_matrix(K)
    >>> packed.low, packed.bits, packed.error < 1e-5
    (0.25, 16, True)
    """
    values = K[np.triu_indices(len(K), 1)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    for bits in _BITS:
        step = max(high - low, np.finfo(np.float64).tiny) / (2**bits - 1)
        codes = np.round((values - low) / step).astype(np.uint16)
        planes = [codes >> 8, codes & 255] if bits > 8 else [codes]  # high bytes are alike: apart they compress well
        data = zlib.compress(b"".join(plane.astype(np.uint8).tobytes() for plane in planes), 6)
        if len(data) <= budget:
            break
    return PackedMatrix(base64.b64encode(data).decode(), low, step, bits)


def data_url(kind: str, data: bytes) -> str:
    """Bytes as a data URL of a media type."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
