"""The algebra of bags of features: the definition that everything else in the package must agree with.

A bag of features is a finite, structured index set with a vector for every index; an image is a bag of colours
indexed by (row, column). Four operations make new bags: *concatenate* stacks features of ordered subsets of
the index set, *downsample* averages features over subsets, *embed* maps each feature into another space, *sum* puts the
features of several bags side by side. Each operation is defined twice, with the same result: on explicit features, and
on the matrix K of inner products between two bags, which needs no features:

    concatenate   K'[j, k] = sum over l of K[S_j[l], S_k[l]],     S_j the subset for the new index j
    downsample    K'[j, k] = mean over S_j x S_k of K
    embed         K'[j, k] = A_j A'_k f(K[j, k] / (A_j A'_k)),    A the norms of the features
    sum           K'[j, k] = sum over branches of w K[j, k]

In a wide network, an embedding is a layer of random weights followed by an activation. The tangent kernel T holds the
inner products of gradients with respect to all weights so far. It starts at zero. Linear operations act on T as on K.
Two others do not:

    weights       T'[j, k] = T[j, k] + K[j, k]                    adds the gradients by this layer's own weights
    embed         T'[j, k] = T[j, k] f'(c)                        c the cosine

Backwards, `pullback` turns the cotangents of K' and T' (the derivatives of a scalar with respect to their entries) into
the cotangents of K and T. Linear operations are transposed. An embedding also depends on the norms. With a = A A' and g
the cotangent of K',

    embed         cotangent of K: g f'(c),      cotangent of log a: g a (f(c) - c f'(c))

The cotangent of a squared norm N is the sum of the cotangents of log a over the row (or column) of N, divided by 2 N.
Subgradients: f' at c = 1 is its limit, which exists for the ReLU. Where f' or f'' is infinite, as f'' of the ReLU at
|c| = 1, it counts as 0. Zero features have cotangent 0.

Section 3 of Shankar et al., "Neural Kernels Without Tangents" (2020), with its formulas corrected.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

Array = NDArray[np.float64]
Dual = Callable[[Array], Array]
Both = tuple[Any, Any]  # (for the kernel, for the tangent kernel or None): values or cotangents
Pulled = tuple[Both, Array, Array]  # cotangents of the inputs, and of the squared norms on the left and on the right


@dataclass(frozen=True, eq=False)
class Bag:
    """A vector for every index of a finite index set.

    >>> image = Bag.from_grid(np.arange(12.0).reshape(2, 2, 3))
    >>> image[0, 1]
    array([3., 4., 5.])
    """

    index: tuple[Hashable, ...]
    features: Array  # (len(index), dimension)

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.index):
            raise InputError(
                f"a bag over {len(self.index)} indices needs features of shape ({len(self.index)}, dimension), "
                f"not {self.features.shape}"
            )
        if len(set(self.index)) != len(self.index):
            raise InputError("the indices of a bag must be distinct")

    @classmethod
    def from_grid(cls, values: Array) -> Bag:
        """The bag of an array whose last axis holds the features: a vector, a sequence, an image."""
        index = grid_index(values.shape[:-1])
        return cls(index, np.asarray(values, dtype=np.float64).reshape(len(index), -1))

    def __getitem__(self, index: Hashable) -> Array:
        vector: Array = self.features[self.index.index(index)]
        return vector


def grid_index(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The index set of a grid, in row-major order: () has one index, the empty tuple."""
    return tuple(np.ndindex(*shape))


def inner_products(left: Bag, right: Bag) -> Array:
    """The kernel matrix between two bags: `K[a, b] = <left_a, right_b>`."""
    return left.features @ right.features.T


class Operation(Protocol):
    """An operation on one bag, defined on features and, with the same meaning, on kernels."""

    def on_features(self, bag: Bag) -> Bag:
        """The new bag."""
        ...

    def on_kernel(self, kernel: Array, left: Array, right: Array) -> Array:
        """The kernel matrix between two new bags, from that of the old ones and the norms of their features."""
        ...

    def on_tangent(self, tangent: Array, kernel: Array, left: Array, right: Array, *, itself: bool = False) -> Array:
        """The tangent kernel between two new bags, from the old one and the old kernel; `itself`: left is right."""
        ...

    def pullback(self, cotangent: Both, value: Both, left: Array, right: Array, *, itself: bool = False) -> Pulled:
        """Cotangents of the old kernels `value` and of the squared norms, from the `cotangent` of the new kernels."""
        ...


@dataclass(frozen=True)
class Concat:
    """Stack the features of ordered subsets, one subset for each new index.

    An index of `None` stands for the zero vector, as in the zero padding of a convolution. `scale` is a factor on inner
    products: 1 / size turns the sum over a window into the average.

    >>> pairs = Concat(source=(0, 1, 2), subsets={"a": (0, 1), "b": (2, None)})
    >>> pairs.on_features(Bag((0, 1, 2), np.array([[1.0], [2.0], [3.0]]))).features
    array([[1., 2.],
           [3., 0.]])
    """

    source: tuple[Hashable, ...]
    subsets: Mapping[Any, Sequence[Any]]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if len({len(subset) for subset in self.subsets.values()}) > 1:
            raise InputError("concatenation needs subsets of one size; pad them with None")

    @functools.cached_property
    def _positions(self) -> NDArray[np.intp]:
        place: dict[Hashable, int] = {index: i for i, index in enumerate(self.source)}
        outside = len(self.source)
        return np.array(
            [[outside if i is None else place[i] for i in subset] for subset in self.subsets.values()], dtype=np.intp
        )

    def on_features(self, bag: Bag) -> Bag:
        padded = np.pad(bag.features, ((0, 1), (0, 0)))
        stacked = padded[self._positions]
        return Bag(tuple(self.subsets), math.sqrt(self.scale) * stacked.reshape(len(stacked), -1))

    def on_kernel(self, kernel: Array, left: Array, right: Array) -> Array:
        padded = np.pad(kernel, ((0, 1), (0, 1)))
        positions = self._positions
        total = np.zeros((len(positions), len(positions)))
        for column in positions.T:
            total += padded[column][:, column]
        return total * self.scale

    def on_tangent(self, tangent: Array, kernel: Array, left: Array, right: Array, *, itself: bool = False) -> Array:
        return self.on_kernel(tangent, left, right)

    def pullback(self, cotangent: Both, value: Both, left: Array, right: Array, *, itself: bool = False) -> Pulled:
        return _map_both(self._spread, cotangent), np.zeros_like(left), np.zeros_like(right)

    def _spread(self, cotangent: Array) -> Array:
        padded = np.zeros((len(self.source) + 1,) * 2)
        for column in self._positions.T:
            np.add.at(padded, np.ix_(column, column), self.scale * cotangent)
        return padded[:-1, :-1]


@dataclass(frozen=True)
class Downsample:
    """Average the features of subsets of any sizes, one subset for each new index.

    >>> halves = Downsample(source=(0, 1, 2), subsets={"ab": (0, 1), "c": (2,)})
    >>> halves.on_features(Bag((0, 1, 2), np.array([[1.0], [2.0], [3.0]]))).features
    array([[1.5],
           [3. ]])
    """

    source: tuple[Hashable, ...]
    subsets: Mapping[Any, Sequence[Any]]

    def __post_init__(self) -> None:
        if any(len(subset) == 0 for subset in self.subsets.values()):
            raise InputError("downsampling averages, so none of its subsets may be empty")

    @functools.cached_property
    def _averages(self) -> Array:
        place = {index: i for i, index in enumerate(self.source)}
        averages = np.zeros((len(self.subsets), len(self.source)))
        for row, subset in enumerate(self.subsets.values()):
            for index in subset:
                averages[row, place[index]] += 1.0 / len(subset)
        return averages

    def on_features(self, bag: Bag) -> Bag:
        return Bag(tuple(self.subsets), self._averages @ bag.features)

    def on_kernel(self, kernel: Array, left: Array, right: Array) -> Array:
        averages = self._averages
        return averages @ kernel @ averages.T

    def on_tangent(self, tangent: Array, kernel: Array, left: Array, right: Array, *, itself: bool = False) -> Array:
        return self.on_kernel(tangent, left, right)

    def pullback(self, cotangent: Both, value: Both, left: Array, right: Array, *, itself: bool = False) -> Pulled:
        averages = self._averages
        pulled = _map_both(lambda g: averages.T @ g @ averages, cotangent)
        return pulled, np.zeros_like(left), np.zeros_like(right)


@dataclass(frozen=True)
class Embed:
    """Map every feature x to a vector phi(x) with `<phi(x), phi(z)> = |x| |z| f(c)`, c the cosine of the two.

    With `keep_norms=False` the factor |x| |z| is dropped: every feature other than zero gets the norm sqrt(f(1)).
    Where f is a power series, f(c) = sum of a_k c^k with a_k >= 0, giving its coefficients as `series` makes phi
    explicit: the tensor powers of x / |x|, weighted by sqrt(a_k). Zero features stay zero.

    >>> square = Embed(dual=lambda c: c**2, series=(0.0, 0.0, 1.0))
    >>> square.on_kernel(np.array([[3.0]]), np.array([3.0]), np.array([2.0]))  # 6 (3 / 6)^2
    array([[1.5]])
    """

    dual: Dual
    keep_norms: bool = True
    series: tuple[float, ...] | None = None
    derivative: Dual | None = None  # f', for tangent kernels and gradients
    curvature: Dual | None = None  # f'', for gradients of tangent kernels

    def on_features(self, bag: Bag) -> Bag:
        if self.series is None:
            raise InputError("this embedding has no finite explicit features; it acts on kernels only")
        norms = np.linalg.norm(bag.features, axis=1, keepdims=True)
        unit = np.divide(bag.features, norms, out=np.zeros_like(bag.features), where=norms > 0)
        lifted = np.concatenate(
            [math.sqrt(weight) * tensor_power(unit, k) for k, weight in enumerate(self.series) if weight], axis=1
        )
        return Bag(bag.index, lifted * (norms if self.keep_norms else norms > 0))

    def on_kernel(self, kernel: Array, left: Array, right: Array) -> Array:
        return self.on_values(kernel, np.multiply.outer(left, right))

    def on_values(self, values: Array, scale: Array) -> Array:
        """As `on_kernel`, for inner products `values` and products of norms `scale` of any one shape."""
        embedded = self.dual(_cosines(values, scale))
        return np.where(scale > 0, embedded * scale if self.keep_norms else embedded, 0.0)

    def on_tangent(self, tangent: Array, kernel: Array, left: Array, right: Array, *, itself: bool = False) -> Array:
        scale = np.multiply.outer(left, right)
        same = np.eye(len(left), dtype=bool) if itself else None
        return self.on_tangents(tangent, kernel, scale, same)

    def on_tangents(self, tangent: Array, values: Array, scale: Array, same: Any = None) -> Array:
        """As `on_tangent`, for arrays of any one shape.

        `same` marks the entries between a feature and itself (True: all). There c is set to exactly 1, because f' can
        turn a rounding error e of c into an error of sqrt(e).
        """
        if self.derivative is None:
            raise InputError("this embedding has no derivative, so it has no tangent")
        cosines = _cosines(values, scale, same)
        gradients = tangent * self.derivative(cosines)
        if not self.keep_norms:  # a norm averages over all features of a wide network: no single weight changes it
            gradients = gradients / np.where(scale > 0, scale, 1.0)
        return np.where(scale > 0, gradients, 0.0)

    def pullback(self, cotangent: Both, value: Both, left: Array, right: Array, *, itself: bool = False) -> Pulled:
        scale = np.multiply.outer(left, right)
        pulled, scales = self.pull_values(cotangent, value, scale, np.eye(len(left), dtype=bool) if itself else None)
        rows, columns = (to_squares(scales.sum(axis), norms**2) for axis, norms in ((1, left), (0, right)))
        return pulled, rows, columns

    def pull_values(
        self, cotangent: Both, value: Both, scale: Array, same: Any = None, after: Any = None
    ) -> tuple[Both, Array]:
        """As `pullback`, for arrays of any one shape: cotangents of `value`, and of the logarithm of `scale`.

        `after` holds the embedded inner products if the caller has them already. `same` is that of `on_tangents`.
        """
        if self.derivative is None:
            raise InputError("this embedding has no derivative, so it has no gradient")
        (kernel, tangent), (by_kernel, by_tangent) = value, cotangent
        inside = scale > 0
        cosines, inverse = _cosines(kernel, scale, same), 1.0 / np.where(inside, scale, 1.0)
        slope = self.derivative(cosines)
        share = 1.0 if self.keep_norms else inverse
        pulled = by_kernel * slope * share
        if self.keep_norms:
            scales = by_kernel * ((self.on_values(kernel, scale) if after is None else after) - kernel * slope)
        else:
            scales = -by_kernel * cosines * slope
        tangents = None
        if by_tangent is not None:
            if self.curvature is None:
                raise InputError("this embedding has no second derivative, so its tangent has no gradient")
            tangents = np.where(inside, by_tangent * slope * share, 0.0)
            bent = by_tangent * tangent * self.curvature(cosines) * share
            pulled = pulled + bent * inverse
            scales = scales - bent * cosines - (0.0 if self.keep_norms else tangents * tangent)
        return (np.where(inside, pulled, 0.0), tangents), np.where(inside, scales, 0.0)


@dataclass(frozen=True)
class Sum:
    """Features of several bags over the same index set, side by side.

    >>> Sum((1.0, 2.0)).on_kernels([np.eye(2), np.ones((2, 2))])
    array([[3., 2.],
           [2., 3.]])
    """

    weights: tuple[float, ...]

    def on_features(self, bags: Sequence[Bag]) -> Bag:
        """The new bag."""
        parts = [math.sqrt(weight) * bag.features for weight, bag in zip(self.weights, bags, strict=True)]
        return Bag(bags[0].index, np.concatenate(parts, axis=1))

    def on_kernels(self, kernels: Sequence[Array]) -> Array:
        """Kernels or tangent kernels of the branches, added up."""
        terms = [k if weight == 1.0 else weight * k for weight, k in zip(self.weights, kernels, strict=True)]
        return functools.reduce(operator.add, terms)

    def pullback(self, cotangent: Both) -> list[Both]:
        """The cotangents of the branches."""
        return [_map_both(functools.partial(np.multiply, weight), cotangent) for weight in self.weights]


def tensor_power(vectors: Array, degree: int) -> Array:
    """The distinct coordinates of each vector's tensor power, weighted so that `<x^k, z^k> = <x, z>^k`.

    >>> x, z = np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    >>> round(float(tensor_power(x, 3)[0] @ tensor_power(z, 3)[0]), 9)  # (3 - 2)^3
    1.0
    """
    columns = []
    for chosen in itertools.combinations_with_replacement(range(vectors.shape[1]), degree):
        repeats = [chosen.count(i) for i in set(chosen)]
        multiplicity = math.factorial(degree) / math.prod(math.factorial(r) for r in repeats)
        columns.append(math.sqrt(multiplicity) * np.prod(vectors[:, list(chosen)], axis=1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(vectors), 0))


def diagonal_norms(kernel: Array) -> Array:
    """The norms of a bag's features, from its kernel with itself."""
    return np.sqrt(np.maximum(np.diagonal(kernel), 0.0))


def to_squares(scales: Array, squares: Array) -> Array:
    """Cotangents of squared norms N, from those of log sqrt(N); zero where N is zero."""
    return np.where(squares > 0, scales / np.where(squares > 0, 2.0 * squares, 1.0), 0.0)


def _map_both(function: Callable[[Any], Any], cotangent: Both) -> Both:
    kernel, tangent = cotangent
    return function(kernel), None if tangent is None else function(tangent)


def _cosines(values: Array, scale: Array, same: Any = None) -> Array:
    """Cosines: 0 where a feature is zero, 1 where both features are the same; on arrays of NumPy or CuPy."""
    if same is True:
        return np.ones_like(values)
    cosines = np.clip(np.where(scale > 0, values / np.where(scale > 0, scale, 1.0), 0.0), -1.0, 1.0)
    return cosines if same is None else np.where(same, 1.0, cosines)
