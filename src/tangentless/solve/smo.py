"""Sequential minimal optimisation for support vector machines: the same steps as libsvm, but faster.

The dual problem of two classes with labels y = ±1 is

    min a' Q a / 2 - sum(a)    subject to    0 <= a <= C,  y' a = 0,        Q_ij = y_i y_j K_ij.

Each step solves it for two variables, chosen by second-order information (Fan, Chen & Lin, 2005), with shrinking. The
code keeps `F = -y G`, where G = Q a - 1 is the gradient. A row may go up if y_i a_i may grow, and down if it may
shrink. i has the largest F of the rows that may go up, and j is the best partner that may go down. In terms of F the
long loops have no signs and no branches, so they vectorise.

The order of rows, the rule for ties, kernel values rounded to float32, and the steps at which it shrinks are those of
libsvm, so the result is libsvm's to the last bit. Comparisons with published figures need that, because the solution is
not unique where points repeat.

A solution none of whose variables reached C on the way is the solution for every larger C as well; `minimise` says so.

The code has loops where NumPy has array expressions, because numba compiles loops faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from ..backends.cpu.simd import compiled as _compiled
from ..backends.cpu.simd import internal as _internal

_TINY = 1e-12  # replaces a curvature of zero or less
_BLOCK = 256  # rows whose maximum is found before it is compared with the best
_SHRINK_EVERY = 1000  # steps


@intrinsic
def _larger(typing: Any, first: Any, second: Any) -> Any:
    """The larger of two numbers, neither a NaN. The flags that say so let LLVM vectorise a loop's maximum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *arguments, flags=flags), *arguments, flags=flags)

    return types.float64(types.float64, types.float64), generate


@_internal
def _move_and_find(F: Any, up: Any, row_i: Any, row_j: Any, step_i: float, step_j: float, size: int) -> Any:
    """Update F after both variables moved, and return the last place of the largest F that may go up, and that F."""
    best, start = -np.inf, -1
    for first in range(0, size, _BLOCK):
        last = min(first + _BLOCK, size)
        values, may, one, other = F[first:last], up[first:last], row_i[first:last], row_j[first:last]
        top = -np.inf
        for t in range(len(values)):
            value = values[t] - (one[t] * step_i + other[t] * step_j)
            values[t] = value
            top = _larger(value + may[t], top)
        if top >= best:
            best, start = top, first
    if best == -np.inf:
        return -1, best
    place = min(start + _BLOCK, size) - 1
    while F[place] + up[place] != best:
        place -= 1
    return place, best


@_internal
def _gain(value: float, entry: float, other: float, highest: float, own: float) -> Any:
    """Twice the decrease of the objective, bounds aside, if this row is the partner; 0 if it would increase."""
    apart = _larger(highest - value, 0.0)
    curvature = own + other - 2.0 * entry
    return apart * apart / (curvature if curvature > 0 else _TINY)


@_internal
def _find_partner(F: Any, low: Any, row: Any, diagonal: Any, highest: float, own: float, size: int) -> Any:
    """The last row of the largest gain among those that may go down, and the smallest F among these."""
    best, start, negated = -np.inf, -1, -np.inf
    for first in range(0, size, _BLOCK):
        last = min(first + _BLOCK, size)
        values, may, entries, others = F[first:last], low[first:last], row[first:last], diagonal[first:last]
        top = -np.inf
        for t in range(len(values)):
            top = _larger(_gain(values[t], entries[t], others[t], highest, own) + may[t], top)
            negated = _larger(may[t] - values[t], negated)
        if top >= best:
            best, start = top, first
    if best == -np.inf:
        return -1, -negated
    place = min(start + _BLOCK, size) - 1
    while _gain(F[place], row[place], diagonal[place], highest, own) + low[place] != best:
        place -= 1
    return place, -negated


@_internal
def _restore(F: Any, alpha: Any, signs: Any, up: Any, low: Any, order: Any, bound: Any, K: Any, size: int) -> None:
    """Recompute F of the shrunk rows: `bound` holds the sum over variables at C; the free variables are added here."""
    for t in range(size, len(F)):
        F[t] = signs[t] - bound[order[t]]
    for s in range(size):
        if up[s] == 0.0 and low[s] == 0.0:
            row, weight = K[order[s]], alpha[s] * signs[s]
            for t in range(size, len(F)):
                F[t] -= weight * row[order[t]]


@_internal
def _can_shrink(F: Any, up: Any, low: Any, highest: float, lowest: float, t: int) -> Any:
    """Whether a variable is at a bound and its gradient pushes it further out."""
    return (up[t] != 0.0 and F[t] > highest) or (low[t] != 0.0 and F[t] < lowest)


@_internal
def _shrink(columns: Any, order: Any, highest: float, lowest: float, size: int) -> int:
    """Swap the variables that can shrink behind the others; returns the number of others."""
    F, up, low = columns[0], columns[1], columns[2]
    t = 0
    while t < size:
        if _can_shrink(F, up, low, highest, lowest, t):
            size -= 1
            while size > t and _can_shrink(F, up, low, highest, lowest, size):
                size -= 1
            if size > t:
                for k in range(len(columns)):
                    columns[k, t], columns[k, size] = columns[k, size], columns[k, t]
                order[t], order[size] = order[size], order[t]
        t += 1
    return size


@_internal
def _row(K: Any, rows: Any, stamps: Any, order: Any, place: int, size: int, version: int) -> Any:
    """A row of K in the present order of variables. Rows are reordered on demand, once for each order (`version`).

    Version 0 is the order of K itself.
    """
    own = order[place]
    if version == 0:
        return K[own]
    row = rows[own]
    if stamps[own] != version:
        stamps[own], source = version, K[own]
        for t in range(size):
            row[t] = source[order[t]]
    return row


@_internal
def _clip(old_i: float, old_j: float, new_i: float, new_j: float, same: bool, C: float) -> Any:
    """Clip both variables to [0, C] along the line on which y_i a_i + y_j a_j is constant."""
    if same:
        total = old_i + old_j
        if total > C:
            if new_i > C:
                new_i, new_j = C, total - C
            if new_j > C:
                new_i, new_j = total - C, C
        else:
            if new_j < 0:
                new_i, new_j = total, 0.0
            if new_i < 0:
                new_i, new_j = 0.0, total
        return new_i, new_j
    apart = old_i - old_j
    if apart > 0:
        if new_j < 0:
            new_i, new_j = apart, 0.0
        if new_i > C:
            new_i, new_j = C, C - apart
    else:
        if new_i < 0:
            new_i, new_j = 0.0, -apart
        if new_j > C:
            new_i, new_j = C + apart, C
    return new_i, new_j


@_internal
def _extremes(F: Any, up: Any, low: Any, size: int) -> Any:
    """The largest F that may go up, and the smallest F that may go down."""
    highest, lowest = -np.inf, np.inf
    for t in range(size):
        highest, lowest = max(highest, F[t] + up[t]), min(lowest, F[t] - low[t])
    return highest, lowest


@_internal
def _offset(F: Any, up: Any, low: Any) -> Any:
    """The number to subtract from decisions: the mean of -F over free variables.

    Without free variables, the middle of the interval that the others allow.
    """
    total, free = 0.0, 0
    for t in range(len(F)):
        if up[t] == 0.0 and low[t] == 0.0:
            total += F[t]
            free += 1
    highest, lowest = _extremes(F, up, low, len(F))
    return -total / free if free > 0 else -(highest + lowest) / 2


@_compiled
def minimise(K: Any, diagonal: Any, labels: Any, C: float, tolerance: float, most: int) -> Any:
    """Solve for two classes; labels are 1 and -1, K is float32 (n, n), its diagonal float64.

    Returns the variables times their labels, the offset to subtract from decisions, the number of steps, and whether a
    variable reached C. If the number of steps is above `most`, the solution was given up.
    """
    n = len(labels)
    columns = np.empty((6, n))
    F, up, low, alpha, signs, curvatures = columns[0], columns[1], columns[2], columns[3], columns[4], columns[5]
    for t in range(n):
        F[t], signs[t], alpha[t], curvatures[t] = labels[t], labels[t], 0.0, diagonal[t]
        up[t] = 0.0 if labels[t] > 0 else -np.inf  # added to F: rows that may not go up are never the largest
        low[t] = -np.inf if labels[t] > 0 else 0.0
    order, bound = np.arange(n), np.zeros(n)
    rows, stamps = np.empty((0, 0), np.float32), np.zeros(n, np.int64)
    size, version, steps, countdown, unshrunk, touched = n, 0, 0, min(n, _SHRINK_EVERY) + 1, False, False
    i, highest = _move_and_find(F, up, K[0], K[0], 0.0, 0.0, size)
    while steps <= most:
        countdown -= 1
        if countdown == 0:
            countdown = min(n, _SHRINK_EVERY)
            highest, lowest = _extremes(F, up, low, size)
            if not unshrunk and highest - lowest <= 10 * tolerance:
                unshrunk = True
                if size < n:
                    _restore(F, alpha, signs, up, low, order, bound, K, size)
                    size, version = n, version + 1
            fewer = _shrink(columns, order, highest, lowest, size)
            if fewer < size:
                size, version = fewer, version + 1
                if len(rows) == 0:
                    rows = np.empty((n, n), np.float32)
            i, highest = _move_and_find(F, up, K[0], K[0], 0.0, 0.0, size)
        j, lowest, row_i = -1, np.inf, K[0]
        if i >= 0:
            row_i = _row(K, rows, stamps, order, i, size, version)
            j, lowest = _find_partner(F, low, row_i, curvatures, highest, curvatures[i], size)
        if i < 0 or highest - lowest < tolerance:
            if size == n:
                break
            _restore(F, alpha, signs, up, low, order, bound, K, size)  # optimal without the shrunk rows: check all
            size, version, countdown = n, version + 1, 2
            i, highest = _move_and_find(F, up, K[0], K[0], 0.0, 0.0, size)
            continue
        steps += 1
        row_j = _row(K, rows, stamps, order, j, size, version)
        curvature = curvatures[i] + curvatures[j] - 2.0 * row_i[j]
        step = (F[i] - F[j]) / (curvature if curvature > 0 else _TINY)
        old_i, old_j, same = alpha[i], alpha[j], signs[i] == signs[j]
        new_i, new_j = _clip(old_i, old_j, old_i + signs[i] * step, old_j - signs[j] * step, same, C)
        for place, old, new in ((i, old_i, new_i), (j, old_j, new_j)):
            alpha[place] = new
            may_grow, may_fall = new < C, new > 0
            touched = touched or not may_grow
            up[place] = 0.0 if (may_grow if signs[place] > 0 else may_fall) else -np.inf
            low[place] = 0.0 if (may_fall if signs[place] > 0 else may_grow) else -np.inf
            if may_grow != (old < C):
                weight, source = (-C if may_grow else C) * signs[place], K[order[place]]
                for t in range(n):
                    bound[t] += weight * source[t]
        i, highest = _move_and_find(F, up, row_i, row_j, (new_i - old_i) * signs[i], (new_j - old_j) * signs[j], size)
    if size < n:
        _restore(F, alpha, signs, up, low, order, bound, K, size)
    weights = np.empty(n)
    for t in range(n):
        weights[order[t]] = alpha[t] * signs[t]
    return weights, _offset(F, up, low), steps, touched


@_internal
def _pick(K: Any, rows: Any, columns: Any, part: Any) -> Any:
    """Copy the entries at some rows and columns to `part`, in its dtype."""
    for s in range(len(rows)):
        row = K[rows[s]]
        for t in range(len(columns)):
            part[s, t] = row[columns[t]]
    return part


@_compiled
def sort_by_class(K: Any, train: Any, test: Any) -> Any:
    """(K of training rows, float32; its diagonal, float64; K of training by test rows, float64)."""
    inner, diagonal = _pick(K, train, train, np.empty((len(train), len(train)), np.float32)), np.empty(len(train))
    for s in range(len(train)):
        diagonal[s] = K[train[s], train[s]]
    return inner, diagonal, _pick(K, train, test, np.empty((len(train), len(test))))


@_compiled
def predict_pairwise(K: Any, diagonal: Any, starts: Any, K_test: Any, costs: Any, tolerance: float, most: int) -> Any:
    """Classes predicted at each C, (costs, tests), by votes of all pairs of classes; `costs` ascend.

    Rows of K and `K_test` (training rows by test rows) are ordered by class; class a has the rows from `starts[a]` to
    `starts[a + 1]`. Also returns how many costs, from the smallest on, were solved: for these no pair took more than
    `most` steps.
    """
    classes, tests, solved = len(starts) - 1, K_test.shape[1], len(costs)
    votes, decisions = np.zeros((len(costs), tests, classes), np.int32), np.empty(tests)
    for a in range(classes):
        for b in range(a + 1, classes):
            first = starts[a + 1] - starts[a]
            n = first + starts[b + 1] - starts[b]
            both, labels, own = np.empty(n, np.int64), np.empty(n, np.int8), np.empty(n)
            for s in range(n):
                both[s] = starts[a] + s if s < first else starts[b] + s - first
                labels[s], own[s] = 1 if s < first else -1, diagonal[both[s]]
            part = K if classes == 2 else _pick(K, both, both, np.empty((n, n), np.float32))
            touched, offset = True, 0.0
            for c in range(solved):
                if touched:  # otherwise the solution of the last C is also that of this one
                    weights, offset, steps, touched = minimise(part, own, labels, costs[c], tolerance, most)
                    if steps > most:
                        solved = c
                        break
                    for t in range(tests):
                        decisions[t] = 0.0
                    for s in range(n):
                        if weights[s] != 0.0:
                            row, weight = K_test[both[s]], weights[s]
                            for t in range(tests):
                                decisions[t] += weight * row[t]
                for t in range(tests):
                    votes[c, t, a if decisions[t] - offset > 0 else b] += 1
    winners = np.zeros((len(costs), tests), np.int64)
    for c in range(len(costs)):
        for t in range(tests):
            for k in range(1, classes):
                if votes[c, t, k] > votes[c, t, winners[c, t]]:
                    winners[c, t] = k
    return winners, solved
