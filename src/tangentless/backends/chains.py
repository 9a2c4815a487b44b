"""Gradients of chains, as far as all fused paths share them: from entries to the last pool, and through norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..bags import to_squares
from ..graph import Axes, Graph, window_sums
from ..layers import Nonlinearity, Normalize
from ..pullback import pull_head
from .segments import Segment

STEEPEST = 2.0  # product of the duals' slopes at c = 1 up to which float32 keeps four digits of gradients


def pull_totals(graph: Graph, totals: Any, factor: Any, near: Any, far: Any, cotangent: Any) -> tuple[Any, Any, Any]:
    """Cotangents of the sums of the last pool, and of squared norms at the output, left and right; (n, m) each.

    `totals` are these sums, and `totals * factor` the inner products at the output. `near` (n,) and `far` (m,) are
    squared norms there, and `cotangent` (n, m) is that of the entries.
    """
    values, ends = totals * factor, (np.repeat(near, len(far)), np.tile(far, len(near)))
    (output,) = graph.outputs
    given = cotangent.reshape(-1)
    found = pull_head(graph, [(values.reshape(-1), None)], [ends[0]], [ends[1]], given, parameters=False)
    seeds, zeros = found.values[output][0].reshape(values.shape) * factor, np.zeros_like(given)
    rows, columns = (side.get(output, zeros).reshape(values.shape) for side in (found.left, found.right))
    return seeds, rows, columns


def pull_norms(
    stage: Segment, entrance: Any, scales: Mapping[int, Any], sums: Callable[[Any, Axes], Any] = window_sums
) -> Any:
    """Cotangents of the squared norms at the entrance of a stage, (N, H, W).

    `scales` holds, for each step with an embedding, the cotangents of the logarithms of the norms before it.
    """
    squares = stage.squares([entrance], sums)
    by = np.zeros_like(entrance)
    for number in reversed(range(len(stage.steps))):
        step = stage.steps[number]
        if isinstance(step.embedding, Nonlinearity):
            by = by * step.embedding.gain()
        elif isinstance(step.embedding, Normalize):
            by = np.zeros_like(by)
        if step.embedding is not None:
            by = by + to_squares(scales[number], squares[stage.sum_of(number)])
        by = sums(by, _transposed(step.terms[0].axes))
    return by


def _transposed(axes: Axes) -> Axes:
    """The transpose of dense windows: for each position, the windows that contain it."""
    rows, columns = (replace(one, start=-one.start - (one.size - 1) * one.dilation) for one in axes)
    return rows, columns


def powers_of_two(xp: Any, *values: Any) -> Any:
    """For each row of values, (N, ...) each, the power of two at or below its largest absolute value, (N,).

    It is 1 if all are zero. Scaling by it rounds nothing. `xp` is NumPy or CuPy.
    """
    largest = abs(xp.concatenate([one.reshape(len(one), -1) for one in values], axis=1)).max(axis=1)
    return xp.ldexp(xp.ones(len(largest)), xp.where(largest > 0, xp.frexp(largest)[1] - 1, 0))
