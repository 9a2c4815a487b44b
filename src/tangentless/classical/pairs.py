"""Functions of pairs of vectors: distances, and the recursion of wide ReLU networks on the angle between two.

An angle is represented by its *gap*, 1 - |c| with the cosine c, negated where c is negative. Near duplicates need it:
the derivative of the ReLU's dual falls as the square root of the gap, so a rounding error of 1e-16 in c would become
1e-8 in a tangent kernel. A matrix product gives the cosines of all pairs; the few pairs that are close, or opposite,
are computed again from differences of the vectors, without cancellation. A layer of ReLUs maps gaps to gaps.

The functions are compiled by numba and release the interpreter lock, so that threads can share the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.cpu.simd import compiled
from .rows import CLOSE, TINY

SEGMENT = 512  # pairs at a time: the buffers of a segment fit the L1 cache


@compiled
def squared_distances(products: Any, left: Any, right: Any, left_squares: Any, right_squares: Any) -> None:
    """Turn inner products into squared distances, in place."""
    for i in range(len(left)):
        for j in range(len(right)):
            total = left_squares[i] + right_squares[j]
            value = total - 2.0 * products[i, j]
            products[i, j] = value if value > CLOSE * total else spread(left[i], right[j], 1.0)


@compiled
def gaps(products: Any, left: Any, right: Any) -> None:
    """Turn cosines of unit vectors into gaps, in place."""
    for i in range(len(left)):
        for j in range(len(right)):
            cosine = products[i, j]
            gap = 1.0 - abs(cosine)
            if gap < CLOSE:
                gap = min(spread(left[i], right[j], 1.0 if cosine > 0 else -1.0) / 2.0, 1.0)
            products[i, j] = gap if cosine >= 0 else -max(gap, TINY)


@compiled
def spread(x: Any, z: Any, sign: float) -> float:
    """|x - sign z|^2, in four independent sums, so that the additions overlap."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = len(x) // 4 * 4
    for k in range(0, whole, 4):
        a += (x[k] - sign * z[k]) ** 2
        b += (x[k + 1] - sign * z[k + 1]) ** 2
        c += (x[k + 2] - sign * z[k + 2]) ** 2
        d += (x[k + 3] - sign * z[k + 3]) ** 2
    for k in range(whole, len(x)):
        a += (x[k] - sign * z[k]) ** 2
    return (a + b) + (c + d)


@compiled
def relu_layers(
    gap: Any, left_norms: Any, right_norms: Any, arc: Any, angle: Any, places: Any, lowest: int, out: Any
) -> None:
    """Tangent kernels of fully connected ReLU networks with `depth` layers of weights, the first `fixed` not trained.

    With the cosine c after `depth` layers, the ReLU's dual kappa and its derivative slope,

        tangent(depth + 1, fixed) = tangent(depth, fixed) slope(c) + kappa(c),    tangent(depth, depth) = 0,

    so one pass over the depths gives all of them. `gap` is (rows, columns), `out` (matrices, rows, columns).
    `places[depth - 1, fixed]` is the index of a tangent kernel in `out`, or -1 if it is not wanted; `lowest` is the
    smallest `fixed` among the wanted ones. `arc` and `angle` are the polynomials of `forms`.
    """
    rows, columns = gap.shape
    depths = len(places)
    near, cosine, slope, polynomial = np.empty((4, SEGMENT))
    tangents = np.empty((depths, SEGMENT))
    for i in range(rows):
        for start in range(0, columns, SEGMENT):
            count = min(SEGMENT, columns - start)
            for j in range(count):
                value = gap[i, start + j]
                near[j] = abs(value)
                cosine[j] = 1.0 - value if value >= 0 else -1.0 - value
                tangents[0, j] = cosine[j]
            for layer in range(depths):
                if layer > 0:
                    evaluate(angle, near, polynomial, count)
                    for j in range(count):
                        part = np.sqrt(near[j]) * polynomial[j]  # the acute angle over pi
                        slope[j] = part if cosine[j] < 0 else 1.0 - part
                    evaluate(arc, near, polynomial, count)
                    for j in range(count):
                        part = near[j] * np.sqrt(near[j]) * polynomial[j]
                        near[j] = (1.0 if cosine[j] < 0 else near[j]) - part
                    for j in range(count):
                        cosine[j] = 1.0 - near[j]
                    for fixed in range(lowest, layer):
                        for j in range(count):
                            tangents[fixed, j] = tangents[fixed, j] * slope[j] + cosine[j]
                    for j in range(count):
                        tangents[layer, j] = cosine[j]
                for fixed in range(lowest, layer + 1):
                    place = places[layer, fixed]
                    if place >= 0:
                        for j in range(count):
                            out[place, i, start + j] = left_norms[i] * right_norms[start + j] * tangents[fixed, j]


@compiled
def evaluate(coefficients: Any, points: Any, values: Any, count: int) -> None:
    """Horner's rule at all points, one coefficient at a time: compilers vectorise such loops."""
    for j in range(count):
        values[j] = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        for j in range(count):
            values[j] = values[j] * points[j] + coefficients[k]
