"""Copies of an image that show the same thing: mirrored, turned by 90°, shifted by a few pixels, and combinations.

A `Symmetry` is a set of such transforms with a text form: `"mirror"`, `"mirror rotations"`, `"mirror shifts1"`. A
`Transform` moves pixels. Its method `back` is the adjoint, which gradients need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InputError, ParameterError
from .layers import is_whole

BORDERS = ("zero", "reflect", "wrap")
_WAYS = ("corners", "across")
_SHIFTS = re.compile(r"shifts([1-9]\d?)(?:\(([a-z, ]*)\))?")
_MOST = 99  # pixels of a shift: two digits, as the text form reads
_KNOWN = (
    "mirror, rotations, and shifts by up to 1 (or 2, 3, ...) pixels along one axis: shifts1, shifts1(reflect), "
    "shifts1(wrap), shifts1(corners), shifts1(across)"
)


@dataclass(frozen=True)
class Transform:
    """Quarter turns, then a mirror, then a shift, of images (N, H, W, C) or sequences (N, L, C).

    >>> move = Transform(mirror=True, right=1)
    >>> move(np.arange(1.0, 4.0).reshape(1, 1, 3, 1)).ravel()
    array([0., 3., 2.])
    >>> move.back(np.arange(1.0, 4.0).reshape(1, 1, 3, 1)).ravel()
    array([0., 3., 2.])
    """

    turns: int = 0
    mirror: bool = False
    down: int = 0
    right: int = 0
    border: str = "zero"

    def __call__(self, images: Any) -> Any:
        """The transformed images; the identity returns the array itself."""
        if self.turns:
            images = np.rot90(images, self.turns, axes=(1, 2))
        if self.mirror:
            images = np.flip(images, axis=-2)
        for by, axis in ((self.down, -3), (self.right, -2)):
            images = _shift(images, by, axis, self.border)
        return images

    def back(self, cotangents: Any) -> Any:
        """Cotangents of the images from those of their transformed copies."""
        for by, axis in ((self.right, -2), (self.down, -3)):
            cotangents = _shift_back(cotangents, by, axis, self.border)
        if self.mirror:
            cotangents = np.flip(cotangents, axis=-2)
        return np.rot90(cotangents, -self.turns, axes=(1, 2)) if self.turns else cotangents


@dataclass(frozen=True)
class Symmetry:
    """A set of transforms: all combinations of mirroring, quarter turns and shifts that its fields allow.

    >>> print(Symmetry.parse("shifts1(reflect) mirror"))
    mirror shifts1(reflect)
    >>> len(Symmetry.parse("mirror shifts1").transforms), len(Symmetry.parse("rotations shifts2(across)").transforms)
    (10, 20)
    """

    mirror: bool = False
    rotations: bool = False
    shifts: int = 0  # the most pixels of a shift along one axis
    border: str = "zero"
    corners: bool = False  # also shift along both axes at once
    across: bool = False  # shift to the left and right only; the one kind that sequences have

    def __post_init__(self) -> None:
        if not is_whole(self.shifts) or not 0 <= self.shifts <= _MOST:
            raise ParameterError(f"shifts is a whole number of pixels from 0 to {_MOST}, not {self.shifts!r}")
        object.__setattr__(self, "shifts", int(self.shifts))
        if self.border not in BORDERS:
            raise ParameterError(f"the border of shifts is {', '.join(BORDERS)}, not {self.border!r}")
        if not (self.mirror or self.rotations or self.shifts):
            raise ParameterError(f"a symmetry is made of {_KNOWN}; this one has none of them")

    @classmethod
    def parse(cls, text: str | Symmetry) -> Symmetry:
        """Read a text form."""
        if isinstance(text, Symmetry):
            return text
        words = re.findall(r"[^\s(]+(?:\([^)]*\))?", text) if isinstance(text, str) else []
        found: dict[str, Any] = {}
        for word in words:
            for name, value in cls._read(word, text):
                if name in found:
                    raise ParameterError(f"the symmetry {text!r} names {word!r} or its kind twice")
                found[name] = value
        if not found:
            raise ParameterError(f"a symmetry is made of {_KNOWN}; not {text!r}")
        return cls(**found)

    @staticmethod
    def _read(word: str, text: str) -> Iterator[tuple[str, Any]]:
        match = _SHIFTS.fullmatch(word)
        options = [option.strip() for option in (match[2] or "").split(",") if option.strip()] if match else []
        if word in ("mirror", "rotations"):
            yield word, True
        elif match and all(option in (*BORDERS, *_WAYS) for option in options):
            yield "shifts", int(match[1])
            yield from ((option, True) if option in _WAYS else ("border", option) for option in options)
        else:
            raise ParameterError(f"cannot read {word!r} in the symmetry {text!r}; there are {_KNOWN}")

    def __str__(self) -> str:
        words = [word for word in ("mirror", "rotations") if getattr(self, word)]
        if self.shifts:
            given = [self.border] * (self.border != "zero") + [way for way in _WAYS if getattr(self, way)]
            words.append(f"shifts{self.shifts}" + (f"({', '.join(given)})" if given else ""))
        return " ".join(words)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """All transforms; the first is the identity."""
        return tuple(
            Transform(turns, mirror, shift.down, shift.right, self.border)
            for shift in self.translations
            for turns in range(4 if self.rotations else 1)
            for mirror in ((False, True) if self.mirror else (False,))
        )

    @property
    def isotropic(self) -> bool:
        """Whether turning images by 90° turns the set of shifts into itself: not if all go to the left and right."""
        return not (self.shifts and self.across)

    @property
    def translations(self) -> tuple[Transform, ...]:
        """The transforms that only shift; the first is the identity."""
        steps = range(-self.shifts, self.shifts + 1)
        places = [(down, right) for down in ((0,) if self.across else steps) for right in steps]
        kept = sorted((place for place in places if self.corners or 0 in place), key=lambda place: (any(place), place))
        return tuple(Transform(down=down, right=right, border=self.border) for down, right in kept)

    def check(self, images: Any) -> None:
        """Refuse images to which the transforms do not apply."""
        grid = tuple(images.shape[1:-1])
        if not grid:
            raise InputError("vectors have no mirror image and no other copies; symmetries need sequences or images")
        if self.rotations and (len(grid) < 2 or grid[0] != grid[1]):
            raise InputError(f"only square images can be turned by 90°, and these are of shape {images.shape[1:]}")
        if self.shifts and len(grid) < 2 and not self.across:
            raise InputError(f"sequences shift along one axis only: write shifts{self.shifts}(across)")
        if self.shifts >= min(grid[-1:] if self.across else grid):
            raise InputError(f"a shift by {self.shifts} leaves nothing of images {images.shape[1:]}; shift less")


MIRROR = Symmetry(mirror=True)


def _shift(images: Any, by: int, axis: int, border: str) -> Any:
    """Images moved by `by` pixels along an axis, to higher positions if positive."""
    if by == 0:
        return images
    if border == "wrap":
        return np.roll(images, by, axis=axis)
    if by < 0:
        return np.flip(_shift(np.flip(images, axis=axis), -by, axis, border), axis=axis)
    moved = np.zeros_like(images)
    moved[_part(axis, by, None)] = images[_part(axis, None, -by)]
    if border == "reflect":  # about the centre of the first pixel, which is not repeated
        moved[_part(axis, None, by)] = np.flip(images[_part(axis, 1, by + 1)], axis=axis)
    return moved


def _shift_back(cotangents: Any, by: int, axis: int, border: str) -> Any:
    if border != "reflect" or by == 0:
        return _shift(cotangents, -by, axis, border)
    if by < 0:
        return np.flip(_shift_back(np.flip(cotangents, axis=axis), -by, axis, border), axis=axis)
    # A shift to lower positions returns a flipped view; adding in place needs an array of its own.
    found = np.ascontiguousarray(_shift(cotangents, -by, axis, "zero"))
    found[_part(axis, 1, by + 1)] += np.flip(cotangents[_part(axis, None, by)], axis=axis)
    return found


def _part(axis: int, start: int | None, stop: int | None) -> tuple[Any, ...]:
    """The index of a slice along an axis, which is negative."""
    return (Ellipsis, slice(start, stop), *(slice(None),) * (-axis - 1))
