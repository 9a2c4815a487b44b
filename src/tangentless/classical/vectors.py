"""Kernels of vectors: functions of the inner product, the distance or the angle of two points.

Points are (N, C); sequences and images are flattened. Arithmetic is float64 for every `precision`, on the GPU for the
cuda backend and on the CPU for all others. Every kernel is defined at zero vectors and exact at duplicates.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..backends import Advance, AnyDevice
from ..chunks import spans
from ..devices import Device
from ..errors import InputError, ParameterError
from ..forms import TOLERANCE, angle_polynomial, arc_polynomial
from ..layers import is_real, is_whole
from .rows import Vectors, read_rows, to_distances, to_gaps
from .slopes import DifferentiableVectors

if TYPE_CHECKING:
    from ..backends.cuda import CudaBackend
    from .gpu import Call, GpuVectors

Array = NDArray[np.float64]
Pair = tuple[int, int]  # (depth, fixed)
_ROWS_PER_TASK = 16  # rows of a tile for each task of a thread: a few megabytes of results, which malloc reuses
_TOLERANCE = TOLERANCE["float64"]


class VectorKernel(DifferentiableVectors):
    """Base class: one matrix product gives the inner products of all pairs, and subclasses map them to entries."""

    unit: ClassVar[bool] = False  # whether rows are scaled to length one first
    on_gpu = True
    invariant = True  # the same permutation of the numbers of both vectors does not change k

    def prepare(self, device: AnyDevice, images: Any) -> Vectors | GpuVectors:
        if Device.of(device).name == "cuda":
            from . import gpu

            machine = cast("CudaBackend", Device.of(device).backend).machines[0]
            return gpu.prepare(machine, images, self.unit, self._factors, self._diagonal)
        rows, norms = read_rows(images, unit=self.unit)
        return Vectors(rows, norms, self._diagonal(norms))

    def block(
        self, device: AnyDevice, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        if not isinstance(left, Vectors):
            from . import gpu

            return gpu.block(left, right, self._call, upper, advance)
        values: Array = left.rows @ right.rows.T

        def work(part: slice) -> int:
            values[part] = self._entries(values[part], left[part], right)
            return sum(len(right) - i for i in range(part.start, part.stop)) if upper else values[part].size

        by_rows(len(left), work, Device.of(device).n_jobs, advance)
        return values

    @abstractmethod
    def _diagonal(self, norms: Array) -> Array:
        """k(x, x) from the norms of rows."""

    @abstractmethod
    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        """Entries from inner products, which may be overwritten."""

    @property
    @abstractmethod
    def _call(self) -> Call | None:
        """The CUDA kernel of `vectors.cuh` that computes entries, and its parameters; None if they are the products."""

    def _factors(self, norms: Any) -> Any:
        """What the CUDA kernel needs of each row, from its norm: by default the norm."""
        return norms

    @property
    def definition(self) -> str:
        return repr(self)

    def elements(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape)

    def image_numbers(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) + 2


@dataclass(frozen=True)
class Linear(VectorKernel):
    """x·z.

    >>> Linear()(np.array([[1.0, 2.0], [3.0, 0.0]]))
    array([[5., 3.],
           [3., 9.]])
    """

    def _diagonal(self, norms: Array) -> Array:
        return norms**2

    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        return products

    @property
    def _call(self) -> None:
        return None

    def _slopes(self, products: Array, left: Vectors, right: Vectors) -> tuple[Array, Array, dict[str, Array]]:
        return np.ones_like(products), np.zeros_like(products), {}

    def _diagonal_slopes(self, vectors: Vectors) -> tuple[Array, dict[str, Array]]:
        return np.ones_like(vectors.norms), {}


@dataclass(frozen=True)
class Polynomial(VectorKernel):
    """(x·z + offset)^degree.

    >>> Polynomial(degree=2, offset=1.0)(np.array([[1.0, 2.0]]), np.array([[3.0, 0.0]]))
    array([[16.]])
    """

    degree: int = 2
    offset: float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("offset",)

    def __post_init__(self) -> None:
        if not is_whole(self.degree) or self.degree < 1:
            raise ParameterError(f"a polynomial kernel needs a whole degree of at least 1, not {self.degree!r}")
        if not is_real(self.offset) or not 0 <= self.offset < math.inf:
            raise ParameterError(
                f"a polynomial kernel needs a finite offset of at least 0, not {self.offset!r}; with a negative offset "
                "it is not positive semidefinite"
            )
        object.__setattr__(self, "degree", int(self.degree))
        object.__setattr__(self, "offset", float(self.offset))

    def _diagonal(self, norms: Array) -> Array:
        return self._power(norms**2)

    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        return self._power(products)

    @property
    def _call(self) -> Call:
        return "power_of_products", (np.float64(self.offset), np.float64(self.degree))

    def _slopes(self, products: Array, left: Vectors, right: Vectors) -> tuple[Array, Array, dict[str, Array]]:
        slope = self._slope(products)
        return slope, np.zeros_like(products), {"offset": slope}

    def _diagonal_slopes(self, vectors: Vectors) -> tuple[Array, dict[str, Array]]:
        slope = self._slope(vectors.norms**2)
        return slope, {"offset": slope}

    def _slope(self, products: Array) -> Array:
        lower = (
            np.ones_like(products) if self.degree == 1 else Polynomial(self.degree - 1, self.offset)._power(products)
        )
        return self.degree * lower

    def _power(self, products: Array) -> Array:
        products += self.offset
        with np.errstate(over="ignore"):
            values = products**self.degree
        if not np.isfinite(values).all():
            raise InputError(
                f"inner products of size {float(np.abs(products).max()):.0e} to the power of {self.degree} exceed "
                "float64; rescale the rows"
            )
        return values


@dataclass(frozen=True)
class Gaussian(VectorKernel):
    """`exp(-gamma |x - z|²)`.

    >>> Gaussian(gamma=0.5)(np.array([[1.0, 2.0]]), np.array([[1.0, 0.0]])).round(6)  # exp(-2)
    array([[0.135335]])
    """

    gamma: float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("gamma",)

    def __post_init__(self) -> None:
        if not is_real(self.gamma) or not 0 < self.gamma < math.inf:
            raise ParameterError(
                f"a Gaussian kernel needs a finite gamma above 0, not {self.gamma!r}; "
                "Gaussian.median(X) finds one by the median heuristic"
            )
        object.__setattr__(self, "gamma", float(self.gamma))

    @classmethod
    def median(cls, X: Any, factor: float = 1.0) -> Gaussian:
        """The median heuristic: gamma is `factor` over the median squared distance between two rows of X.

        Use the training rows: gamma is then fixed, and the kernel a function of two points.

        >>> Gaussian.median([[0.0], [1.0], [3.0]])  # squared distances 1, 4 and 9
        Gaussian(gamma=0.25)
        """
        from .families import median_squared_distance

        return cls(factor / median_squared_distance(X))

    def _diagonal(self, norms: Array) -> Array:
        return np.ones_like(norms)

    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        return bell(to_distances(products, left, right), self.gamma, out=products)

    @property
    def _call(self) -> Call:
        return "gaussian", (np.float64(self.gamma),)

    def _factors(self, norms: Any) -> Any:
        return norms**2

    def _slopes(self, products: Array, left: Vectors, right: Vectors) -> tuple[Array, Array, dict[str, Array]]:
        distances = to_distances(products, left, right)
        values = bell(distances, self.gamma)
        slope = 2.0 * self.gamma * values
        return slope, -slope, {"gamma": -distances * values}

    def _diagonal_slopes(self, vectors: Vectors) -> tuple[Array, dict[str, Array]]:
        return np.zeros_like(vectors.norms), {"gamma": np.zeros_like(vectors.norms)}


class AngleKernel(VectorKernel):
    """Base class of kernels (|x| |z|)^power f(angle between x and z)."""

    unit: ClassVar[bool] = True

    @property
    def power(self) -> int:
        """The power of the norms."""
        return 1

    def _slopes(self, products: Array, left: Vectors, right: Vectors) -> tuple[Array, Array, dict[str, Array]]:
        gap = to_gaps(products, left, right)
        size = np.abs(gap)
        cosine = np.copysign(1.0 - size, gap)
        value, slope = self._angular(cosine, np.sqrt(size * (2.0 - size)))
        near, far = (np.where(norms > 0, norms**self.power, 0.0) for norms in (left.norms, right.norms))
        scale = near[:, None] * far
        return scale * slope, scale * (self.power * value - cosine * slope), {}

    def _diagonal_slopes(self, vectors: Vectors) -> tuple[Array, dict[str, Array]]:
        return self.power * self._diagonal(vectors.norms), {}

    @abstractmethod
    def _angular(self, cosine: Array, sine: Array) -> tuple[Array, Array]:
        """f, and its derivative by the cosine, from the cosine and the sine of the angle."""


@dataclass(frozen=True)
class ArcCosine(AngleKernel):
    """The arc-cosine kernel of Cho and Saul (2009), of order 0, 1 or 2, with t the angle between x and z::

        order 0    (π - t) / π
        order 1    |x| |z| (sin t + (π - t) cos t) / π
        order 2    |x|² |z|² (3 sin t cos t + (π - t) (1 + 2 cos² t)) / π

    Order 1 is a layer of ReLUs. Values with a zero vector, which has no angle, are 0.

    >>> ArcCosine(order=0)(np.array([[1.0, 0.0], [0.0, 2.0]]))
    array([[1. , 0.5],
           [0.5, 1. ]])
    """

    order: int = 1

    def __post_init__(self) -> None:
        if not is_whole(self.order) or not 0 <= self.order <= 2:
            raise ParameterError(f"arc-cosine kernels have order 0, 1 or 2, not {self.order!r}")
        object.__setattr__(self, "order", int(self.order))

    def _diagonal(self, norms: Array) -> Array:
        return (3.0 if self.order == 2 else 1.0) * self._scale(norms) ** 2

    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        gap = to_gaps(products, left, right)
        near = np.abs(gap)
        cosine = np.copysign(1.0 - near, gap)
        acute = np.sqrt(near) * np.polynomial.polynomial.polyval(near, angle_polynomial(_TOLERANCE))
        values = np.where(gap < 0, acute, 1.0 - acute)  # (π - t) / π
        if self.order == 1:
            far = near * np.sqrt(near) * np.polynomial.polynomial.polyval(near, arc_polynomial(_TOLERANCE))
            values = np.maximum(cosine, 0.0) + far
        elif self.order == 2:
            values = values * (1.0 + 2.0 * cosine**2) + 3.0 / np.pi * np.sqrt(near * (2.0 - near)) * cosine
        values *= np.multiply.outer(self._scale(left.norms), self._scale(right.norms))
        return values

    @property
    def _call(self) -> Call:
        return "arc_cosine", (self.order,)

    def _factors(self, norms: Any) -> Any:
        return self._scale(norms)

    def _scale(self, norms: Array) -> Array:
        return np.where(norms > 0, norms**self.order, 0.0)

    @property
    def power(self) -> int:
        return self.order

    def _angular(self, cosine: Array, sine: Array) -> tuple[Array, Array]:
        share = 1.0 - np.arctan2(sine, cosine) / np.pi
        if self.order == 0:
            return share, _reciprocal(np.pi * sine)
        if self.order == 1:
            return sine / np.pi + share * cosine, share
        values = share * (1.0 + 2.0 * cosine**2) + 3.0 / np.pi * sine * cosine
        return values, 4.0 * share * cosine + 4.0 / np.pi * sine


@dataclass(frozen=True)
class NTK(AngleKernel):
    """The tangent kernel of a fully connected ReLU network of infinite width.

    `depth` counts layers of weights, so depth 1 is linear and depth L has L - 1 layers of ReLUs. The first `fixed`
    layers of weights are not trained; with `fixed = depth - 1` the kernel is the `NNGP`. There are no biases, and ReLUs
    are scaled to keep the norm, so that `k(x, x) = (depth - fixed) |x|²`. Arora et al. (2020), "Harnessing the power of
    infinitely wide deep nets on small-data tasks", do not scale ReLUs: their kernels are smaller by 2^(depth - 1).

    >>> NTK(depth=2)(np.array([[1.0, 0.0], [0.0, 2.0]])).round(6)
    array([[2.     , 0.63662],
           [0.63662, 8.     ]])
    """

    depth: int = 2
    fixed: int = 0

    def __post_init__(self) -> None:
        check_depth(self.depth)
        if not is_whole(self.fixed) or not 0 <= self.fixed < self.depth:
            raise ParameterError(
                f"fixed must be a whole number from 0 to {self.depth - 1}, not {self.fixed!r}: of {self.depth} layers, "
                "at least the last one is trained"
            )
        object.__setattr__(self, "depth", int(self.depth))
        object.__setattr__(self, "fixed", int(self.fixed))

    def _diagonal(self, norms: Array) -> Array:
        return (self.depth - self.fixed) * norms**2

    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        gaps = to_gaps(products, left, right)
        values: Array = relu_networks([(self.depth, self.fixed)], gaps, left.norms, right.norms)[0]
        return values

    @property
    def _call(self) -> Call:
        return "relu_network", (self.depth, self.fixed)

    def _angular(self, cosine: Array, sine: Array) -> tuple[Array, Array]:
        by_cosine = np.ones_like(cosine)
        tangent, by_tangent = (cosine, by_cosine) if self.fixed == 0 else (0.0 * cosine, 0.0 * cosine)
        for layer in range(1, self.depth):
            share = 1.0 - np.arctan2(sine, cosine) / np.pi
            bent = by_cosine * _reciprocal(np.pi * sine)
            by_cosine = by_cosine * share
            cosine = sine / np.pi + share * cosine
            sine = np.sqrt(np.maximum(1.0 - cosine * cosine, 0.0))
            if layer < self.fixed:
                continue
            tangent, by_tangent = tangent * share + cosine, by_tangent * share + tangent * bent + by_cosine
        return tangent, by_tangent


@dataclass(frozen=True)
class NNGP(AngleKernel):
    """The Gaussian process of a fully connected ReLU network of infinite width: `NTK` with only the last layer trained.

    >>> X = np.random.default_rng(0).standard_normal((5, 3))
    >>> bool(np.all(NNGP(depth=4)(X) == NTK(depth=4, fixed=3)(X)))
    True
    """

    depth: int = 2

    def __post_init__(self) -> None:
        check_depth(self.depth)
        object.__setattr__(self, "depth", int(self.depth))

    def _diagonal(self, norms: Array) -> Array:
        return norms**2

    def _entries(self, products: Array, left: Vectors, right: Vectors) -> Array:
        return NTK(self.depth, self.depth - 1)._entries(products, left, right)

    @property
    def _call(self) -> Call:
        return NTK(self.depth, self.depth - 1)._call

    def _angular(self, cosine: Array, sine: Array) -> tuple[Array, Array]:
        return NTK(self.depth, self.depth - 1)._angular(cosine, sine)


def _reciprocal(values: Array) -> Array:
    """1 / x where x > 0, else 0."""
    return np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), 0.0)


def check_depth(depth: Any) -> None:
    """Refuse a depth that is not a whole number from 1."""
    if not is_whole(depth) or depth < 1:
        raise ParameterError(f"depth must be a whole number from 1, not {depth!r}")


def bell(distances: Array, gamma: float, out: Array | None = None) -> Array:
    """exp(-gamma d) for squared distances d."""
    values = np.multiply(distances, -gamma, out=out)
    return np.exp(values, out=values)


def relu_networks(pairs: Sequence[Pair], gap: Array, left_norms: Array, right_norms: Array) -> Array:
    """Tangent kernels for each (depth, fixed) of `pairs`, (pairs, n, m), from gaps (n, m) and norms (n,) and (m,)."""
    from .pairs import relu_layers

    depths, fixed = np.array(pairs).T
    places = np.full((depths.max(), depths.max()), -1)
    places[depths - 1, fixed] = np.arange(len(pairs))
    out = np.empty((len(pairs), *gap.shape))
    polynomials = (np.array(polynomial(_TOLERANCE)) for polynomial in (arc_polynomial, angle_polynomial))
    relu_layers(gap, left_norms, right_norms, *polynomials, places, int(fixed.min()), out)
    return out


def by_rows(count: int, work: Callable[[slice], int], n_jobs: int | None, advance: Advance | None = None) -> None:
    """Call `work` on slices of the rows in threads. It returns the number of pairs it has computed."""
    from ..backends.workers import count_workers, run_parallel

    tasks = spans(count, _ROWS_PER_TASK)
    run_parallel(tasks, lambda part, _: work(part), lambda: None, count_workers(n_jobs), advance)
