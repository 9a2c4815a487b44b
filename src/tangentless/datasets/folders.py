"""Your own images: one folder per class, any format that Pillow reads, any size."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetDamagedError, DatasetError, DatasetMissingError, ParameterError
from ..layers import is_whole

if TYPE_CHECKING:
    from PIL import Image

Crop = Literal["centre", "none"]
Colour = Literal["rgb", "grey"]
_MODES = {"rgb": "RGB", "grey": "L"}
_CROPS = ("centre", "none")


def from_folder(
    path: str | Path, size: tuple[int, int] = (32, 32), crop: Crop = "centre", colour: Colour = "rgb"
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Images (N, H, W, C), the number of the class of each, and the names of the classes, from a folder of folders.

    Every folder in `path` is a class; classes, and the images of each, come in the order of their names. Hidden files
    are left out; a file that Pillow cannot read, or a folder within a class, is an error which names it. A photograph
    is turned upright as its camera noted, and transparent parts become white.

    Parameters
    ----------
    size
        Height and width of all images.
    crop
        "centre" scales an image until it covers the size, and cuts off what is left over at both sides; "none"
        stretches it. Either takes means over pixels that become one (antialiasing).
    colour
        "rgb" for three channels, "grey" for one.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (64, 48), "white").save(folder / name / "1.png")
    >>> images, labels, classes = from_folder(folder, size=(8, 8))
    >>> images.shape, labels, classes
    ((2, 8, 8, 3), array([0, 1]), ('cat', 'dog'))
    """
    sides = size if isinstance(size, tuple | list) else ()
    if len(sides) != 2 or not all(is_whole(side) and 0 < side <= 4096 for side in sides):
        raise ParameterError(f"size must be a height and a width from 1 to 4096, not {size!r}")
    for name, value, known in (("crop", crop, _CROPS), ("colour", colour, _MODES)):
        if value not in known:
            raise ParameterError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
    folder = Path(path)
    if not folder.is_dir():
        raise DatasetMissingError(f"there is no folder {folder}; give one that has a folder of images for each class")
    classes = sorted(below.name for below in folder.iterdir() if below.is_dir() and not below.name.startswith("."))
    files = [(file, label) for label, name in enumerate(classes) for file in _files(folder / name)]
    if not classes:
        raise DatasetMissingError(f"{folder} has no folders; put the images of each class in a folder of its own in it")
    images = np.empty((len(files), *size, len(_MODES[colour])), np.uint8)
    for place, (file, _) in enumerate(files):
        images[place] = _read(file, size, crop, _MODES[colour])
    return images, np.array([label for _, label in files], np.int64), tuple(classes)


def _files(folder: Path) -> list[Path]:
    inside = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    if below := next((file for file in inside if file.is_dir()), None):
        raise DatasetError(f"{below} is a folder within a class; put its images into {folder}, or take it out")
    files = [file for file in inside if file.is_file()]
    if not files:
        raise DatasetMissingError(f"{folder} has no images; put some there, or remove the folder")
    return files


def _read(file: Path, size: tuple[int, int], crop: str, mode: str) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                upright = _flatten(ImageOps.exif_transpose(image)).convert(mode)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, Warning) as error:
        raise DatasetDamagedError(
            f"{file} cannot be read as an image: {error}; replace it, or take it out of the folder"
        ) from None
    height, width = size
    fit = ImageOps.fit if crop == "centre" else Image.Image.resize
    pixels = np.asarray(fit(upright, (width, height), Image.Resampling.BICUBIC))
    return pixels.reshape(height, width, -1)


def _flatten(image: Image.Image) -> Image.Image:
    """The image with transparent parts on white, and 16 bits of grey reduced to 8."""
    from PIL import Image

    if image.mode in ("I", "I;16", "I;16B", "I;16L"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
