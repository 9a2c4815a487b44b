"""How the CUDA backend distributes pairs over launches: every pair once, in runs that a block can take."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tangentless.backends.cuda.fused import batch_units, column_heights

SMALL = st.integers(1, 20)


@settings(deadline=None)  # a busy machine may take any time
@given(SMALL, SMALL, SMALL, SMALL, st.none() | st.integers(0, 20))
def test_batches_take_every_pair_once(rows: int, columns: int, batch: int, span: int, first: int | None) -> None:
    heights = column_heights(rows, columns, first)
    taken = np.zeros((rows, columns), dtype=int)
    for start in range(0, heights.sum(), batch):
        stop = min(start + batch, heights.sum())
        units = batch_units(heights, start, stop, span)
        assert units[:, 2].min() >= 1
        assert units[:, 2].max() <= span
        assert np.array_equal(units[:, 3], np.cumsum(units[:, 2]) - units[:, 2])  # slots from 0, without gaps
        assert units[:, 2].sum() == stop - start
        for right, left, count, _ in units:
            taken[left : left + count, right] += 1
    row, column = np.indices(taken.shape)
    wanted = np.ones_like(taken) if first is None else row <= column + first
    assert np.array_equal(taken, wanted)
