"""Sequential minimal optimisation for support vector machines, taking the steps of libsvm one by one, only faster.

The dual problem of two classes with signs y, `min a' Q a / 2 - sum(a)` with `0 <= a <= C` and `y' a = 0`, is solved two
variables at a time, chosen by second-order information (Fan, Chen & Lin, 2005), with shrinking. Here everything is in
terms of `F = -y G`, G the gradient: i is the largest F that may go up, j the best partner that may go down, and signs
disappear from the long loops, which then are branchless and vectorised. The order of rows, the rule for ties, kernel
values rounded to float32 and the moments of shrinking are libsvm's, so the answer is libsvm's to the last bit; a study
that compares with published figures needs that, since where points repeat the solution is not unique.

Loops stand where NumPy has an expression for the whole array, because those take longer to compile.

A solution whose variables never touched C on their way is the solution for every larger C as well, and says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from ..backends.cpu.simd import compiled as _compiled
from ..backends.cpu.simd import internal as _internal

_TINY = 1e-12  # curvature that stands for zero or less
_BLOCK = 256  # rows between two looks at the running maximum
_SHRINK_EVERY = 1000


@intrinsic
def _larger(typing: Any, first: Any, second: Any) -> Any:
    """The larger of two numbers, neither a NaN; told so, LLVM finds the maximum of a loop by vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *arguments, flags=flags), *arguments, flags=flags)

    return types.float64(types.float64, types.float64), generate


@_internal
def _move_and_find(F: Any, up: Any, row_i: Any, row_j: Any, step_i: float, step_j: float, size: int) -> Any:
    """Subtract what two steps change, and find the last largest F among those that may go up."""
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
    """How far the objective falls if this row is the partner; zero where it would rise."""
    apart = _larger(highest - value, 0.0)
    curvature = own + other - 2.0 * entry
    return apart * apart / (curvature if curvature > 0 else _TINY)


@_internal
def _find_partner(F: Any, low: Any, row: Any, diagonal: Any, highest: float, own: float, size: int) -> Any:
    """The last row of the largest gain among those that may go down, and the smallest F among them."""
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
    """F of the rows left out so far, from what variables at C contribute (`bound`) and from the free ones."""
    for t in range(size, len(F)):
        F[t] = signs[t] - bound[order[t]]
    for s in range(size):
        if up[s] == 0.0 and low[s] == 0.0:
            row, weight = K[order[s]], alpha[s] * signs[s]
            for t in range(size, len(F)):
                F[t] -= weight * row[order[t]]


@_internal
def _settled(F: Any, up: Any, low: Any, highest: float, lowest: float, t: int) -> Any:
    """Whether a variable is at a bound and far from wanting to leave it."""
    return (up[t] != 0.0 and F[t] > highest) or (low[t] != 0.0 and F[t] < lowest)


@_internal
def _shrink(columns: Any, order: Any, highest: float, lowest: float, size: int) -> int:
    """Put the settled variables behind the others; returns how many others there are."""
    F, up, low = columns[0], columns[1], columns[2]
    t = 0
    while t < size:
        if _settled(F, up, low, highest, lowest, t):
            size -= 1
            while size > t and _settled(F, up, low, highest, lowest, size):
                size -= 1
            if size > t:
                for k in range(len(columns)):
                    columns[k, t], columns[k, size] = columns[k, size], columns[k, t]
                order[t], order[size] = order[size], order[t]
        t += 1
    return size


@_internal
def _row(K: Any, rows: Any, stamps: Any, order: Any, place: int, size: int, version: int) -> Any:
    """A row of K in the present order, rearranged once for each order (`version`); at first that is K's own."""
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
    """Bring both variables back between 0 and C along the line on which their signed sum stays."""
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
    """The largest F of those that may go up, and the smallest of those that may go down."""
    highest, lowest = -np.inf, np.inf
    for t in range(size):
        highest, lowest = max(highest, F[t] + up[t]), min(lowest, F[t] - low[t])
    return highest, lowest


@_internal
def _offset(F: Any, up: Any, low: Any) -> Any:
    """What to subtract from decisions: the mean of -F over free variables, or the middle of what the others allow."""
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

    Returns the variables times their signs, the offset to subtract from decisions, the number of steps, and whether a
    variable touched C. A number of steps above `most` says that the solution was given up.
    """
    n = len(labels)
    columns = np.empty((6, n))
    F, up, low, alpha, signs, curvatures = columns[0], columns[1], columns[2], columns[3], columns[4], columns[5]
    for t in range(n):
        F[t], signs[t], alpha[t], curvatures[t] = labels[t], labels[t], 0.0, diagonal[t]
        up[t] = 0.0 if labels[t] > 0 else -np.inf  # added to F: who may not go up never is the highest
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
            _restore(F, alpha, signs, up, low, order, bound, K, size)  # optimal among few: look at all
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
    """The entries of some rows and columns, rounded to what `part` holds."""
    for s in range(len(rows)):
        row = K[rows[s]]
        for t in range(len(columns)):
            part[s, t] = row[columns[t]]
    return part


@_compiled
def sort_by_class(K: Any, train: Any, test: Any) -> Any:
    """K between training rows, float32, its diagonal, and K between them (rows) and test rows, float64."""
    inner, diagonal = _pick(K, train, train, np.empty((len(train), len(train)), np.float32)), np.empty(len(train))
    for s in range(len(train)):
        diagonal[s] = K[train[s], train[s]]
    return inner, diagonal, _pick(K, train, test, np.empty((len(train), len(test))))


@_compiled
def predict_pairwise(K: Any, diagonal: Any, starts: Any, K_test: Any, costs: Any, tolerance: float, most: int) -> Any:
    """Classes predicted at each C (ascending), (costs, tests), by votes between all pairs of classes.

    Rows of K and `K_test` (training rows by test rows) are in the order of their classes, which begin at `starts`. Also
    returns for how many of the costs, from the smallest on, no pair took more than `most` steps; others are not solved.
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
                if touched:  # otherwise the solution at the last C is that at this one
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
