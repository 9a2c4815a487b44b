"""Kernels: the objects users hold.

`tangentless.kernel("myrtle10-gaussian")` gives a kernel k; `k(X)` is the symmetric matrix of X with itself, `k(X,
Z)` the matrix between two sets and `k.diag(X)` the diagonal. Kernels add and multiply, and compare equal when their
parameters do. Matrices are filled tile by tile, so memory beyond the result stays bounded for any number of images.

>>> X = np.random.default_rng(0).standard_normal((4, 8, 8, 3))
>>> k = kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")
>>> K = k(X)
>>> K.shape, bool(np.all(K == K.T)), float(K[0, 0])
((4, 4), True, 1.0)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .autograd import requires_gradient, tracked
from .backends import Advance, AnyDevice, Precision, Prepared
from .chunks import spans
from .devices import Device
from .diagram import draw_beside
from .errors import ParameterError
from .gradients import Branches, Differentiable, Slopes, Tile, gradient_backend, named
from .graph import Graph, compile_graph
from .inputs import check_images, check_pair, device_of, take, to_host
from .layers import Layer, walk
from .progress import Forecast
from .pullback import parameters_of
from .symmetries import MIRROR, Symmetry
from .tiles import Leaf, Progress, Several, counter, fill

Array = NDArray[np.float64]


def kernel(architecture: str | Architecture | Iterable[Layer]) -> CompositionalKernel:
    """The kernel of an architecture: a name, a text form, a list of layers or an `Architecture`.

    >>> kernel("myrtle5")
    kernel('myrtle5')
    """
    return CompositionalKernel(Architecture.of(architecture))


class Kernel(Differentiable):
    """What all kernels share: calls, the diagonal, gradients, and the algebra of sums and products."""

    def __call__(
        self,
        X: Any,
        Z: Any = None,
        *,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """The kernel matrix, float64: (N, N) and exactly symmetric for X alone, (N, M) for X and Z.

        `precision` is that of the arithmetic up to the last pool; `progress(done, total)` counts pairs. The matrix is
        the kind of array that X is: NumPy's, torch's or CuPy's. What is on a GPU stays there if that computes.
        A `Device` as `backend` says precision and threads itself. Tensors that require gradients take part in
        `torch.autograd`.
        """
        device = Device.of(backend, precision, n_jobs)
        if requires_gradient(X, Z):
            return tracked(
                lambda x, z: self._matrix(device, x, z, progress, stay=False),
                lambda x, z, cotangent, wrt: self.vjp(x, z, cotangent, wrt=wrt, backend=device),
                X,
                Z,
            )
        return self._matrix(device, X, Z, progress, stay=False)

    def on_device(self, device: Device, X: Any, Z: Any = None, *, progress: Progress | None = None) -> Any:
        """As calling it, but what a GPU computes stays there, as a CuPy matrix, wherever the images were."""
        return self._matrix(device, X, Z, progress, stay=True)

    def _matrix(self, device: Device, X: Any, Z: Any, progress: Progress | None, *, stay: bool) -> Any:
        on_gpu = self._stays_on_gpu(device)
        images, restore = take(X, on_gpu=on_gpu)
        check_images(images, "X")
        others = None
        if Z is not None:
            others, _ = take(Z, on_gpu=on_gpu)
            check_images(others, "Z")
            check_pair(images, others)
        if stay and on_gpu:
            images, others = (one if one is None else device.algebra.upload(one) for one in (images, others))
        with device_of(images):
            left = self.prepare(device, images)
            right = left if others is None else self.prepare(device, others)
            pairs = len(left) * (len(left) + 1) // 2 if others is None else len(left) * len(right)
            advance = counter(progress or Forecast(), pairs * sum(1 for _ in self.leaves()))
            matrix = fill(self, device, left, right, symmetric=others is None, advance=advance)
            return matrix if stay else restore(matrix)

    def diag(
        self,
        X: Any,
        *,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
    ) -> Any:
        """k(x, x) for every row of X, (N,)."""
        device = Device.of(backend, precision, n_jobs)
        images, restore = take(X, on_gpu=self._stays_on_gpu(device))
        check_images(images, "X")
        with device_of(images):
            return restore(self.prepare(device, images).diagonal)

    @abstractmethod
    def prepare(self, device: AnyDevice, images: Any) -> Prepared:
        """Everything that is known of each image alone."""

    @abstractmethod
    def block(
        self, device: AnyDevice, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        """Entries between two prepared sets; with `upper`, those left of the diagonal are void."""

    @abstractmethod
    def leaves(self) -> Iterator[Elementary]:
        """The elementary kernels this one is made of, with repetition."""

    def _stays_on_gpu(self, device: Device) -> bool:
        """Whether all of this kernel can be computed where images on a GPU are."""
        return device.name == "cuda" and all(leaf.on_gpu for leaf in self.leaves())

    def symmetrized(self, symmetry: str | Symmetry) -> Symmetrized:
        """The average over copies of both images: one row of its matrix stands for an image and all its copies.

        >>> kernel("myrtle5").symmetrized("mirror shifts1")
        kernel('myrtle5').symmetrized('mirror shifts1')
        """
        return Symmetrized(self, Symmetry.parse(symmetry))

    def mirrored(self) -> Symmetrized:
        """The average over an image and its mirror: training on it equals training with flipped copies.

        >>> kernel("myrtle5").mirrored()
        kernel('myrtle5').mirrored()
        """
        return self.symmetrized(MIRROR)

    @property
    def invariant(self) -> bool:
        """Whether mirroring both images, or turning both by 90°, leaves k as it is, on any grid it can be used on."""
        return False

    def _repr_html_(self) -> str:
        """The expression, and a picture of each architecture in it, which notebooks show."""
        shapes = (leaf.architecture for leaf in self.leaves() if isinstance(leaf, CompositionalKernel))
        return draw_beside(repr(self), dict.fromkeys(shapes))

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else cast(Kernel, NotImplemented)

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(float(other), self) if isinstance(other, Real) else cast(Kernel, NotImplemented)

    def __rmul__(self, factor: float) -> Kernel:
        return Scaled(float(factor), self) if isinstance(factor, Real) else cast(Kernel, NotImplemented)


class Elementary(Kernel):
    """A kernel that is not made of others: it knows its own work and memory."""

    on_gpu: ClassVar[bool] = False  # whether the cuda backend computes it from images on a GPU

    @property
    @abstractmethod
    def definition(self) -> str:
        """All there is to it, in a line: a store is only continued with the same."""

    @abstractmethod
    def elements(self, shape: tuple[int, ...]) -> int:
        """Numbers computed for a pair of images of a shape, the unit of work; raises where the shape does not fit."""

    @abstractmethod
    def image_numbers(self, shape: tuple[int, ...]) -> int:
        """Numbers that a prepared image takes at most."""

    def leaves(self) -> Iterator[Elementary]:
        yield self


@dataclass(frozen=True, repr=False)
class CompositionalKernel(Elementary):
    """The kernel of one architecture."""

    architecture: Architecture
    on_gpu = True

    @property
    def invariant(self) -> bool:
        return all(layer.keeps_mirrors for layer in walk(self.architecture.layers))

    @property
    def definition(self) -> str:
        return str(self.architecture)

    def elements(self, shape: tuple[int, ...]) -> int:
        return self.graph(shape).elements

    def image_numbers(self, shape: tuple[int, ...]) -> int:
        return self.graph(shape).image_numbers

    def graph(self, shape: tuple[int, ...]) -> Graph:
        """This kernel compiled for images of one shape, `(*grid, channels)`."""
        return compile_graph(self.architecture, tuple(shape[:-1]), shape[-1])

    def prepare(self, device: AnyDevice, images: Any) -> Leaf:
        graph = self.graph(images.shape[1:])
        return Leaf(graph, Device.of(device).backend.prepare(graph, images))

    def block(
        self, device: AnyDevice, left: Leaf, right: Leaf, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        return Device.of(device).backend.block(left.graph, left.images, right.images, upper=upper, advance=advance)

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        graph = self.graph(images.shape[1:])
        part = gradient_backend(device).gradient(graph, images, parameters=parameters, wanted=wanted)
        return Branches((part,), lambda prepared, _: Leaf(graph, prepared), part.images.diagonal)

    def pullback(self, tile: Tile) -> None:
        (left,), (right,) = tile.left.parts, tile.right.parts
        backend = gradient_backend(tile.device)
        backend.pullback(left.graph, left, right, tile.cotangent, upper=tile.upper, advance=tile.advance)

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        images.parts[0].pull_diagonal(cotangent)

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        (part,) = images.parts
        pixels, slopes = part.finish(), part.parameters
        return pixels, {name: slopes[key] for name, key in parameters_of(part.graph).items() if key in slopes}

    def __repr__(self) -> str:
        return f"kernel({self.architecture.short_name!r})"


@dataclass(frozen=True, repr=False)
class Symmetrized(Kernel):
    """The average of k(s x, t z) over copies s x and t z of both images, which are mirrored, turned or shifted.

    Where mirroring or turning both images leaves k as it is, left images need no mirrored or turned copies.
    """

    base: Kernel
    symmetry: Symmetry

    def __post_init__(self) -> None:
        object.__setattr__(self, "symmetry", Symmetry.parse(self.symmetry))

    @property
    def invariant(self) -> bool:
        return self.base.invariant

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Which copies of a left image are compared with which of a right one, by their places among transforms."""
        copies = self.symmetry.transforms
        left = self.symmetry.translations if self.base.invariant else copies
        return [(copies.index(one), other) for one in left for other in range(len(copies))]

    def prepare(self, device: AnyDevice, images: Any) -> Several:
        self.symmetry.check(images)
        parts = tuple(self.base.prepare(device, transform(images)) for transform in self.symmetry.transforms)
        return Several(parts, self._diagonal(device, parts))

    def _diagonal(self, device: AnyDevice, parts: Sequence[Any]) -> Any:
        found = [self._between(device, parts, *pair) for pair in self.pairs]
        return sum(found[1:], found[0]) / len(found)

    def _between(self, device: AnyDevice, parts: Sequence[Any], one: int, other: int) -> Any:
        """k of two copies of each image."""
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
        return Branches(parts, Several.join, self._diagonal(device, [part.images for part in parts]))

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
        return sum(pixels[1:], pixels[0]), named("base", slopes)

    def leaves(self) -> Iterator[Elementary]:
        for _ in self.pairs:
            yield from self.base.leaves()

    def __repr__(self) -> str:
        end = "mirrored()" if self.symmetry == MIRROR else f"symmetrized({str(self.symmetry)!r})"
        return f"{_inside(self.base, Sum, Product, Scaled)}.{end}"


@dataclass(frozen=True, repr=False)
class Crossed(Symmetrized):
    """k(x, mirror z), the other half of `mirrored()`: with M its matrix, flipped copies train on K + M.

    It is symmetric where mirroring both images leaves k as it is.

    >>> Crossed(kernel("myrtle5"))
    Crossed(kernel('myrtle5'))
    """

    symmetry: Symmetry = MIRROR

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(0, 1)]

    def __repr__(self) -> str:
        return f"Crossed({self.base!r})"


@dataclass(frozen=True, repr=False)
class _Combined(Kernel):
    """Several kernels, combined entry by entry."""

    first: Kernel
    second: Kernel
    combine: ClassVar[np.ufunc]

    @property
    def invariant(self) -> bool:
        return self.first.invariant and self.second.invariant

    def prepare(self, device: AnyDevice, images: Any) -> Several:
        parts = self.first.prepare(device, images), self.second.prepare(device, images)
        return Several(parts, self.combine(*(part.diagonal for part in parts)))

    def block(
        self, device: AnyDevice, left: Several, right: Several, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        values = self.first.block(device, left.parts[0], right.parts[0], upper=upper, advance=advance)
        others = self.second.block(device, left.parts[1], right.parts[1], upper=upper, advance=advance)
        self.combine(values, others, out=values)
        return values

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        kernels = self.first, self.second
        parts = tuple(one.gradient(device, images, parameters=parameters, wanted=wanted) for one in kernels)
        return Branches(parts, Several.join, self.combine(*(part.diagonal for part in parts)))

    def pullback(self, tile: Tile) -> None:
        sides = zip((self.first, self.second), tile.left.parts, tile.right.parts, strict=True)
        values = (one.block(tile.device, left.images, right.images) for one, left, right in sides)
        for place, factor in enumerate(self._factors(values)):
            (self.first, self.second)[place].pullback(tile.of(place, place, factor))

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        factors = self._factors(part.diagonal for part in images.parts)
        for one, factor, part in zip((self.first, self.second), factors, images.parts, strict=True):
            one.pull_diagonal(device, part, cotangent * factor)

    @abstractmethod
    def _factors(self, values: Iterable[Any]) -> tuple[Any, Any]:
        """The derivatives of the combination by the values of both, which are computed as they are asked for."""

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        (pixels, slopes), (others, more) = (
            one.finish(part) for one, part in zip((self.first, self.second), images.parts, strict=True)
        )
        return pixels + others, named("first", slopes) | named("second", more)

    def leaves(self) -> Iterator[Elementary]:
        yield from self.first.leaves()
        yield from self.second.leaves()


class Sum(_Combined):
    """k1 + k2.

    >>> kernel("myrtle5") + kernel("myrtle7")
    kernel('myrtle5') + kernel('myrtle7')
    """

    combine = np.add

    def _factors(self, values: Iterable[Any]) -> tuple[Any, Any]:
        return 1.0, 1.0

    def __repr__(self) -> str:
        return f"{self.first!r} + {_inside(self.second, Sum)}"


class Product(_Combined):
    """k1 * k2, entry by entry.

    >>> 0.5 * (kernel("myrtle5") + kernel("myrtle7")) * kernel("relu")
    0.5 * (kernel('myrtle5') + kernel('myrtle7')) * kernel('relu')
    """

    combine = np.multiply

    def _factors(self, values: Iterable[Any]) -> tuple[Any, Any]:
        first, second = values
        return second, first

    def __repr__(self) -> str:
        return f"{_inside(self.first, Sum)} * {_inside(self.second, Sum, Product, Scaled)}"


@dataclass(frozen=True, repr=False)
class Scaled(Kernel):
    """factor * k, for a factor of at least zero."""

    factor: float
    base: Kernel

    @property
    def invariant(self) -> bool:
        return self.base.invariant

    def __post_init__(self) -> None:
        if not 0 <= self.factor < float("inf"):
            raise ParameterError(f"a kernel may be scaled by a finite number of at least 0, not {self.factor}")

    def prepare(self, device: AnyDevice, images: Any) -> Several:
        base = self.base.prepare(device, images)
        return Several((base,), self.factor * base.diagonal)

    def block(
        self, device: AnyDevice, left: Several, right: Several, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        return self.factor * self.base.block(device, left.parts[0], right.parts[0], upper=upper, advance=advance)

    def gradient(self, device: AnyDevice, images: Any, *, parameters: bool = False, wanted: bool = True) -> Branches:
        base = self.base.gradient(device, images, parameters=parameters, wanted=wanted)
        own = {"factor": np.zeros(len(images))} if parameters else {}
        return Branches((base,), Several.join, self.factor * base.diagonal, own)

    def pullback(self, tile: Tile) -> None:
        (left,), (right,) = tile.left.parts, tile.right.parts
        for total in tile.left.own.values():
            total += to_host((tile.cotangent * self.base.block(tile.device, left.images, right.images)).sum(axis=1))
        self.base.pullback(tile.of(0, 0, self.factor))

    def pull_diagonal(self, device: AnyDevice, images: Branches, cotangent: Any) -> None:
        (base,) = images.parts
        for total in images.own.values():
            total += to_host(cotangent * base.diagonal)
        self.base.pull_diagonal(device, base, self.factor * cotangent)

    def finish(self, images: Branches) -> tuple[Any, Slopes]:
        pixels, slopes = self.base.finish(images.parts[0])
        return pixels, images.own | named("base", slopes)

    def leaves(self) -> Iterator[Elementary]:
        yield from self.base.leaves()

    def __repr__(self) -> str:
        return f"{repr(self.factor).removesuffix('.0')} * {_inside(self.base, Sum, Product, Scaled)}"


def _inside(kernel: Kernel, *kinds: type[Kernel]) -> str:
    """A part of a larger expression, in parentheses where it would read as something else: stores read kernels back."""
    return f"({kernel!r})" if isinstance(kernel, kinds) else repr(kernel)
