"""Your own images, of any size and in any format that Pillow reads: one folder per class, or any folder of images."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetDamagedError, DatasetError, DatasetMissingError, ParameterError
from ..layers import is_whole

if TYPE_CHECKING:
    from PIL import Image

Crop = Literal["centre", "center", "none"]
Colour = Literal["rgb", "grey", "gray"]
OnError = Literal["raise", "skip"]
_MODES = {"rgb": "RGB", "grey": "L", "gray": "L"}
_CROPS = ("centre", "center", "none")
_ON_ERROR = ("raise", "skip")
_LEFTOVERS = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir", "__macosx"}  # made by file managers
_NAMED = 5  # most files that a warning names


@dataclass(frozen=True, eq=False)
class Photographs:
    """Images and the files that they came from."""

    images: NDArray[np.uint8]  # (N, H, W, C)
    files: tuple[Path, ...]  # (N,)
    skipped: tuple[tuple[Path, str], ...]  # files that could not be read, each with the reason


def from_folder(
    path: str | Path,
    size: int | tuple[int, int] = (32, 32),
    crop: Crop = "centre",
    colour: Colour = "rgb",
    on_error: OnError = "raise",
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Images (N, H, W, C), their class numbers (N,), and the names of the classes, from one folder per class.

    Every folder in `path` is a class. Classes, and the images of each, are sorted by name. Hidden files and files that
    file managers create are ignored. Images beside the folders are left out, with a warning. A file that Pillow cannot
    read, or a folder within a class, is an error. Photographs are rotated as their EXIF orientation says, and
    transparent parts become white.

    Parameters
    ----------
    size
        Height and width of all images, or one number for both.
    crop
        "centre" (or "center") scales an image until it covers the size, and crops it evenly on both sides; "none"
        stretches it. Both are antialiased.
    colour
        "rgb" for three channels, "grey" (or "gray") for one.
    on_error
        "skip" leaves out files that cannot be read, with a warning; `read_photographs` returns a list of them.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (64, 48), "white").save(folder / name / "1.png")
    >>> images, labels, classes = from_folder(folder, size=8)
    >>> images.shape, labels, classes
    ((2, 8, 8, 3), array([0, 1]), ('cat', 'dog'))
    """
    files = labelled_files(path)
    classes = tuple(dict.fromkeys(file.parent.name for file in files))
    found = read_photographs(files, size, crop, colour, on_error)
    if found.skipped:
        named = "; ".join(f"{file}: {reason}" for file, reason in found.skipped[:_NAMED])
        rest = f"; and {len(found.skipped) - _NAMED} more" if len(found.skipped) > _NAMED else ""
        warnings.warn(f"skipped {len(found.skipped)} of {len(files)} files: {named}{rest}", stacklevel=2)
    labels = np.array([classes.index(file.parent.name) for file in found.files], np.int64)
    return found.images, labels, classes


def labelled_files(path: str | Path) -> list[Path]:
    """The files of all classes; the class of a file is the name of the folder it is in.

    Images beside these folders have no class: a warning says how many there are.
    """
    inside = _entries(existing_folder(path))
    classes = [below for below in inside if below.is_dir()]
    if not classes:
        raise DatasetMissingError(f"{path} has no folders in it; put the images of each class in a folder of their own")
    if outside := [one for one in inside if one.is_file() and _has_image_suffix(one)]:
        warnings.warn(
            f"images in {path} that are in no class are left out: {len(outside)}, such as {outside[0].name}; "
            "move each into the folder of its class",
            stacklevel=3,
        )
    return [file for folder in classes for file in _files(folder)]


def find_photographs(path: str | Path) -> list[Path]:
    """All files below a folder, sorted by name, without hidden files and those that file managers create."""
    files = list(_walk(existing_folder(path)))
    if not files:
        raise DatasetMissingError(f"{path} has no files in it; give a folder of images")
    return files


def read_photographs(
    files: list[Path],
    size: int | tuple[int, int] = (32, 32),
    crop: Crop = "centre",
    colour: Colour = "rgb",
    on_error: OnError = "raise",
    progress: Callable[[int, int], None] | None = None,
) -> Photographs:
    """Images from files, as `from_folder` reads them. `progress(done, total)` is called after each file."""
    if isinstance(files, str | Path) or not len(files):
        raise ParameterError(f"files must be a list of one or more; find_photographs(FOLDER) makes it, not {files!r}")
    height, width = _check_size(size)
    for name, value, known in (("crop", crop, _CROPS), ("colour", colour, _MODES), ("on_error", on_error, _ON_ERROR)):
        if value not in known:
            raise ParameterError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
    images = np.empty((len(files), height, width, len(_MODES[colour])), np.uint8)
    read: list[Path] = []
    skipped: list[tuple[Path, str]] = []
    for number, file in enumerate(files, 1):
        try:
            images[len(read)] = _read(file, (height, width), crop, _MODES[colour])
            read.append(file)
        except DatasetDamagedError as error:
            if on_error == "raise":
                raise
            skipped.append((file, str(error.__cause__)))
        if progress is not None:
            progress(number, len(files))
    if not read:
        raise DatasetDamagedError(
            f"none of {len(files)} files can be read as an image; {skipped[0][0]}: {skipped[0][1]}"
        )
    return Photographs(images[: len(read)], tuple(read), tuple(skipped))


def _check_size(size: int | tuple[int, int]) -> tuple[int, int]:
    sides: Any = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(is_whole(side) and 0 < side <= 4096 for side in sides):
        raise ParameterError(f"size must be a height and a width from 1 to 4096, or one number for both, not {size!r}")
    return sides[0], sides[1]


def existing_folder(folder: str | Path, advice: str = "give one that has a folder of images for each class") -> Path:
    """The path of an existing folder, `~` expanded; otherwise an error that ends with the advice."""
    path = Path(os.path.expanduser(folder))  # noqa: PTH111  # `Path.expanduser` raises for an unknown user
    if not path.is_dir():
        problem = f"{path} is not a folder" if path.exists() else f"there is no folder {path}"
        raise DatasetMissingError(f"{problem}; {advice}")
    return path


def _entries(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name[0] != "." and one.name.lower() not in _LEFTOVERS)


def _walk(folder: Path) -> Iterator[Path]:
    for one in _entries(folder):
        if one.is_dir():
            yield from _walk(one)
        elif one.is_file():
            yield one


def _files(folder: Path) -> list[Path]:
    inside = _entries(folder)
    if below := next((file for file in inside if file.is_dir()), None):
        raise DatasetError(f"{below} is a folder within a class; move its images to {folder}, or remove it")
    files = [file for file in inside if file.is_file()]
    if not files:
        raise DatasetMissingError(f"{folder} has no images; put some there, or remove the folder")
    return files


def _has_image_suffix(file: Path) -> bool:
    from PIL import Image

    return Image.registered_extensions().get(file.suffix.lower()) in Image.OPEN


def _read(file: Path, size: tuple[int, int], crop: str, mode: str) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            # Pillow warns of images above 89 megapixels, which cameras make, and refuses those above 178.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                # Decode a JPEG at 1/2, 1/4 or 1/8 of its size, as long as both sides stay at twice the target.
                image.draft(image.mode, (2 * max(size), 2 * max(size)))
                upright = _flatten(ImageOps.exif_transpose(image)).convert(mode)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DatasetDamagedError(
            f"{file} cannot be read as an image: {error}; replace it, or remove it from the folder"
        ) from error
    height, width = size
    fit = Image.Image.resize if crop == "none" else ImageOps.fit
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
