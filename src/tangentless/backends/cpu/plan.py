"""Which graphs the fused kernel can take, and the arrays of images and norms that it reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ..segmented import SMALLEST_NORM, Segmented, exceeds
from ..segments import Exit, Segment, cut, with_one_pool
from .duals import Lowered, lower_step

Array = NDArray[np.float64]
_LARGEST_SLOTS = 400 << 20  # bytes of the slots of one thread


@dataclass(frozen=True, eq=False)
class Fused(Segmented):
    """A graph that the fused kernel can run."""

    lanes: int
    lowered: tuple[tuple[Lowered, ...], ...]  # embeddings, by segment and step

    @property
    def width(self) -> int:
        """Elements of a vector: a lane for every right image and, for tangent kernels, as many lanes of tangents."""
        return self.lanes * (1 + self.graph.tangent)

    def parts(self, vectors: NDArray[Any]) -> list[NDArray[Any]]:
        """Kernel values, and tangents where there are some, (n, m, lanes), of vectors (n, m, width) or (n, m width)."""
        return np.split(vectors.reshape(len(vectors), -1, self.width), self.width // self.lanes, axis=-1)

    @property
    def image_bytes(self) -> int:
        """Bytes of one expanded image."""
        pixels = math.prod(self.segments[0].grid) * self.graph.channels
        return (pixels + 2 * self.norm_count) * np.dtype(self.dtype).itemsize


@functools.lru_cache(maxsize=64)
def fuse(graph: Graph, dtype: str, lanes: int) -> Fused | str:
    """The graph for the fused kernel, or the reason why it must take the general path."""
    segments = cut(graph)
    if isinstance(segments, str):
        return segments
    merged = segments if graph.tangent else with_one_pool(segments)
    weights = merged[-1].exits[0].weights
    segments = segments if weights is None else merged  # without weights pools stay apart, as gradients expect them
    lowered = []
    for segment in segments:
        forms = [lower_step(step, dtype, graph.tangent) for step in segment.steps]
        if None in forms:
            return f"no fast form is known for {segment.steps[forms.index(None)].embedding}"
        lowered.append(tuple(one for one in forms if one is not None))
    if any(not one.tiles for segment in segments for one in segment.exits):
        return "the windows of a pool overlap, or leave gaps"
    if weights is not None and not _carries_weights(segments[-1], lowered[-1]):
        return "the windows of its last pools overlap, and only norms before a Gaussian or a polynomial carry weights"
    if exceeds(segments, dtype):
        return f"a segment sums over more windows than {dtype} can hold"
    slots = sum(map(slot_count, (one for segment in segments[:-1] for one in segment.exits)))
    if slots * lanes * (1 + graph.tangent) * np.dtype(dtype).itemsize > _LARGEST_SLOTS:
        height, width = segments[0].grid
        return f"its {height}×{width} images need more room between segments than a thread may take"
    return Fused(graph, segments, dtype, lanes, tuple(lowered))


def _carries_weights(last: Segment, lowered: tuple[Lowered, ...]) -> bool:
    """Whether the last segment ends in an embedding that multiplies by norms, which can carry the pool's weights."""
    embedded = last.sum_of(len(last.steps) - 1) + 1
    return bool(lowered) and last.exits[0].value == embedded and lowered[-1].kind[0] in ("exp", "exp2", "series")


def slot_count(exit_: Exit) -> int:
    """Vectors in the slots of an exit, which hold two u at a time, and all v."""
    tall, wide = exit_.grid
    return 2 * (2 * wide + 1) * tall * wide


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Zeros that start at a cache line: unaligned vectors cost a third of the speed."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(size + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


def addresses(rows: Sequence[NDArray[Any]]) -> tuple[int, ...]:
    """The address of each array, followed by the bytes from one row to the next, as drivers read rows of images."""
    return tuple(number for one in rows for number in (one.ctypes.data, one.strides[0]))


def normalized(images: NDArray[Any], scales: Array) -> Array:
    """Images over their scales, so that squares stay in the range of float32; black images stay black."""
    divisors = np.where(scales > 0, scales, 1.0).reshape(-1, *(1,) * (images.ndim - 1))
    return np.asarray(images / divisors, dtype=np.float64)


def pixel_squares(fused: Fused, pixels: Array) -> Array:
    """Squared norms of the normalised pixels, (N, H, W)."""
    squares: Array = np.sum(pixels.reshape(len(pixels), *fused.segments[0].grid, -1) ** 2, axis=-1)
    return squares


def in_lanes(rows: NDArray[Any], fused: Fused) -> NDArray[Any]:
    """Rows of N images (N, n) as vectors, (blocks, n width): vector k of a block has number k of each of its images.

    Lanes of tangents are zero. Copies of the last image fill up the last block.
    """
    lanes, blocks = fused.lanes, -(-len(rows) // fused.lanes)
    vectors = aligned_zeros((blocks, rows.shape[1], fused.width), str(rows.dtype))
    laid_out, whole = vectors[..., :lanes], len(rows) // lanes
    laid_out[:whole] = rows[: whole * lanes].reshape(whole, lanes, rows.shape[1]).transpose(0, 2, 1)
    if whole < blocks:
        rest = rows[whole * lanes :]
        laid_out[whole, :, : len(rest)] = rest.T
        laid_out[whole, :, len(rest) :] = rest[-1][:, None]
    return vectors.reshape(blocks, -1)


def expand(images: Any) -> tuple[NDArray[Any], ...]:
    """Images as the fused kernel reads them, a row each: normalised pixels; norms before embeddings, and inverses."""
    fused, count = images.fused, len(images)
    pixels = normalized(images.images, images.scales)
    norms = np.empty((count, 2 * fused.norm_count), fused.dtype)
    known: list[NDArray[Any]] = [pixel_squares(fused, pixels), *images.squares]
    for place, segment in enumerate(fused.segments):
        squares = squares_of(segment, known[: segment.entrances])
        known = known[segment.entrances :]
        for part, some in norms_of(fused, place, squares):
            norms[:, part] = some
    return np.ascontiguousarray(pixels.reshape(count, -1), dtype=fused.dtype), norms


def squares_of(segment: Segment, entrances: list[NDArray[Any]]) -> list[Array]:
    """Squared norms of all values of a segment, (N, H, W), with images last in memory: sums of long rows are quick."""
    images_last = (np.ascontiguousarray(one.transpose(1, 2, 0), dtype=np.float64) for one in entrances)
    return segment.squares([one.transpose(2, 0, 1) for one in images_last])


def norms_of(fused: Fused, place: int, squares: list[Array]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """For every embedding of a segment: its part of an image's row of norms, and the norms, each before its inverse."""
    segment = fused.segments[place]
    for number, lowered in enumerate(fused.lowered[place]):
        start = fused.norm_places.get((place, number))
        if start is None:
            continue
        norms = np.sqrt(squares[segment.sum_of(number)])
        norms[norms < SMALLEST_NORM[fused.dtype]] = 0.0
        both = np.zeros((*norms.shape, 2), fused.dtype)
        is_last = (place, number) == (len(fused.segments) - 1, len(segment.steps) - 1)
        both[..., 0] = segment.exits[0].weigh(norms, np) if is_last else norms
        np.divide(math.sqrt(lowered.scale), norms, out=both[..., 1], where=norms > 0, casting="same_kind")
        yield slice(2 * start, 2 * (start + math.prod(segment.grid))), both.reshape(len(norms), -1)
