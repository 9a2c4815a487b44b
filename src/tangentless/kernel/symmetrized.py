"""Averages of a kernel over copies of images that are mirrored, turned or shifted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import Advance, AnyDevice
from ..chunks import spans
from ..gradients import Branches, Slopes, Tile, with_prefix
from ..symmetries import MIRROR, Symmetry
from ..tiles import Several
from .base import Elementary, Kernel
from .combined import Product, Scaled, Sum, inner_repr


@dataclass(frozen=True, repr=False)
class Symmetrized(Kernel):
    """The average of k(s x, t z) over copies s x and t z of both images, which are mirrored, turned or shifted.

    If k does not change when both images are mirrored or turned, shifted copies of the left image are enough, because a
    turn of both images can undo the turn of the left one. This needs shifts that a turn does not change as a set.
    """

    base: Kernel
    symmetry: Symmetry

    def __post_init__(self) -> None:
        object.__setattr__(self, "symmetry", Symmetry.parse(self.symmetry))

    @property
    def invariant(self) -> bool:
        # A turn of both images makes horizontal mirroring, and shifts across, vertical.
        upright = self.symmetry.mirror or not self.symmetry.isotropic
        return self.base.invariant and (self.symmetry.rotations or not upright)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Which copies are compared: (i, j) is transform i of the left image with transform j of the right image."""
        copies = self.symmetry.transforms
        enough = self.base.invariant and (self.symmetry.isotropic or not self.symmetry.rotations)
        left = self.symmetry.translations if enough else copies
        return [(copies.index(one), other) for one in left for other in range(len(copies))]

    def prepare(self, device: AnyDevice, images: Any) -> Several:
        self.symmetry.check(images)
        parts = tuple(self.base.prepare(device, transform(images)) for transform in self.symmetry.transforms)
        return Several(parts, self._diagonal(device, parts))

    def _diagonal(self, device: AnyDevice, parts: Sequence[Any]) -> Any:
        found = [self._between(device, parts, *pair) for pair in self.pairs]
        return sum(found[1:], found[0]) / len(found)

    def _between(self, device: AnyDevice, parts: Sequence[Any], one: int, other: int) -> Any:
        """k between two copies of each image, (N,)."""
        if one == other:
            return parts[one].diagonal
        blocks = ((parts[one][part], parts[other][part]) for part in spans(len(parts[one]), 16))
        return np.concatenate([np.diagonal(self.base.block(device, *both, upper=True)) for both in blocks])

    def block(
        self, device: AnyDevice, left: Several, right: Several, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        values: Any = None
        for one, other in self.pairs:
            more = self.base.block(device, left.parts[one], right.parts[other], upper=upper, advance=advance)
            values = more if values is None else np.add(values, more, out=values)
        return np.divide(values, len(self.pairs), out=values)

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        self.symmetry.check(images)
        copies = (transform(images) for transform in self.symmetry.transforms)
        parts = tuple(self.base.gradient(device, one, parameters=parameters, wanted=wanted) for one in copies)
        return Branches(parts, Several, self._diagonal(device, [part.images for part in parts]))

    def pullback(self, tile: Tile) -> None:
        for one, other in self.pairs:
            self.base.pullback(tile.of(one, other, 1 / len(self.pairs)))

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        for one, other in self.pairs:
            if one == other:
                self.base.pull_diagonal(device, images.parts[one], cotangent / len(self.pairs))
                continue
            for part in spans(len(images), 16):
                some = images[part].parts
                self.base.pullback(Tile(device, some[one], some[other], np.diag(cotangent[part]) / len(self.pairs)))

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        found = [self.base.finish(part) for part in images.parts]
        pixels = [transform.back(own) for transform, (own, _) in zip(self.symmetry.transforms, found, strict=True)]
        slopes = {name: sum(own[name] for _, own in found) for name in found[0][1]}
        return sum(pixels[1:], pixels[0]), with_prefix("base", slopes)

    def leaves(self) -> Iterator[Elementary]:
        for _ in self.pairs:
            yield from self.base.leaves()

    def __repr__(self) -> str:
        end = "mirrored()" if self.symmetry == MIRROR else f"symmetrized({str(self.symmetry)!r})"
        return f"{inner_repr(self.base, Sum, Product, Scaled)}.{end}"


@dataclass(frozen=True, repr=False)
class Crossed(Symmetrized):
    """k(x, mirror z), the other half of `mirrored()`: with M its matrix, training on flipped copies uses K + M.

    It is symmetric if k is invariant under mirroring both images.

    >>> from tangentless import kernel
    >>> Crossed(kernel("myrtle5"))
    Crossed(kernel('myrtle5'))
    """

    symmetry: Symmetry = MIRROR

    @property
    def invariant(self) -> bool:
        return False  # turning both images changes it

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(0, 1)]

    def __repr__(self) -> str:
        return f"Crossed({self.base!r})"
