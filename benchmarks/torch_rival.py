"""The same kernels in PyTorch, in float32, written in four ways, for comparison on a CPU.

The kernel of a batch of pairs is one tensor with five axes: pairs, and the rows and columns of x and z.

    plain            straight from the formulas: a 3×3 window is a sum of nine slices; eager
    plain compiled   the same, each layer compiled by torch.compile
    in place         a window is three shifts along the rows of both images, then three along the columns; axes are in
                     the order (pair, row of x, row of z, column of x, column of z), so that a shift along rows moves
                     whole planes; eager, in buffers that are allocated once, with as few passes as possible
    compiled         windows as in "in place", inverse norms prepared, each layer compiled: the fastest of the four

Norms are prepared for each image, as in the fused backend, so that the time of a pair is that of its own tensor only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch._dynamo
from torch import Tensor
from torch.nn.functional import pad

from tangentless.backends.segments import Segment, chain
from tangentless.graph import Graph
from tangentless.layers import Gaussian, Nonlinearity, ReLU

Way = Literal["plain", "plain compiled", "in place", "compiled"]
WAYS: tuple[Way, ...] = ("plain", "plain compiled", "in place", "compiled")
torch._dynamo.config.recompile_limit = 1024  # one per shape; beyond the limit it silently runs eagerly


class Axes(NamedTuple):
    """The axes of the tensor that are the rows of x and z, and the columns of x and z."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    def on_left(self, norms: Tensor) -> Tensor:
        """Norms of x, (pairs, H, W), with axes added to multiply kernels."""
        return norms.unsqueeze(self.rows[1]).unsqueeze(self.columns[1])

    def on_right(self, norms: Tensor) -> Tensor:
        """Norms of z, (pairs, H, W), likewise."""
        return norms.unsqueeze(self.rows[0]).unsqueeze(self.columns[0])


BY_IMAGE, BY_ROWS = Axes(rows=(1, 3), columns=(2, 4)), Axes(rows=(1, 2), columns=(3, 4))


@dataclass(frozen=True)
class TorchImages:
    """Prepared images: by stage, norms before every embedding and inverses; squared norms after the last pool."""

    images: Tensor
    norms: list[Tensor]
    inverses: list[Tensor]
    totals: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, part: slice) -> TorchImages:
        norms, inverses = ([one[part] for one in stages] for stages in (self.norms, self.inverses))
        return TorchImages(self.images[part], norms, inverses, self.totals[part])


class TorchKernel:
    """Computes blocks of a kernel with PyTorch, for chains of 3×3 windows, ReLU or Gaussian, and 2×2 pools."""

    def __init__(self, graph: Graph, way: Way) -> None:
        self.stages = _stages(graph)
        self.graph, self.axes = graph, BY_ROWS if way == "in place" else BY_IMAGE
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}
        self._layer, self._pool = _plain_layer if way.startswith("plain") else _layer, _pool
        if way == "in place":
            self._layer = self._layer_in_place
        elif way.endswith("compiled"):
            self._layer = torch.compile(self._layer, dynamic=False)
            self._pool = torch.compile(_pool, dynamic=False)

    @torch.inference_mode()
    def prepare(self, images: np.ndarray) -> TorchImages:
        """Compute what depends on each image alone."""
        x = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
        kernels = [_inner_products(one, one, self.axes) for one in x.split(1)]
        norms, inverses = [], []
        for stage in self.stages:
            squares = torch.cat([_diagonal(kernel, self.axes) for kernel in kernels])
            values = stage.norms(squares.double().numpy())
            norms.append(torch.from_numpy(values.astype(np.float32)))
            inverses.append(torch.where(norms[-1] > 0, 1 / norms[-1], 0.0))
            sides = zip(kernels, norms[-1].split(1), inverses[-1].split(1), strict=True)
            kernels = [self._stage(stage, kernel, n, n, i, i).clone() for kernel, n, i in sides]
        return TorchImages(x, norms, inverses, torch.cat(kernels).reshape(len(x)).double().numpy())

    @torch.inference_mode()
    def block(self, left: TorchImages, right: TorchImages, batch: int) -> np.ndarray:
        """Kernel entries between two prepared sets, (n, m) float64, computed `batch` pairs at a time."""
        pairs = torch.cartesian_prod(torch.arange(len(left)), torch.arange(len(right)))
        totals = torch.empty(len(pairs), dtype=torch.float64)
        for start in range(0, len(pairs), batch):
            i, j = pairs[start : start + batch].T
            totals[start : start + len(i)] = self._pairs(left, right, i, j)
        values = totals.numpy().reshape(len(left), len(right))
        return self.graph.apply_head([values], [left.totals], [right.totals])

    def _pairs(self, left: TorchImages, right: TorchImages, i: Tensor, j: Tensor) -> Tensor:
        kernels = _inner_products(left.images[i], right.images[j], self.axes)
        for place, stage in enumerate(self.stages):
            norms = left.norms[place][i], right.norms[place][j]
            kernels = self._stage(stage, kernels, *norms, left.inverses[place][i], right.inverses[place][j])
        return kernels.reshape(len(i)).double()

    def _stage(self, stage: Segment, kernels: Tensor, *sides: Tensor) -> Tensor:
        """`sides` are the norms left and right, then their inverses, each (pairs, steps, H, W)."""
        on_left, on_right = self.axes.on_left, self.axes.on_right
        for place, step in enumerate(stage.steps):
            left, right, left_inverse, right_inverse = (side[:, place] for side in sides)
            scales = on_left(left), on_right(right), on_left(left_inverse), on_right(right_inverse)
            kernels = self._layer(kernels, *scales, isinstance(step.embedding, ReLU), self.axes)
        if stage.exits[0].grid == (1, 1):
            return kernels.mean(dim=(1, 2, 3, 4), keepdim=True)
        return self._pool(kernels)

    def _layer_in_place(
        self,
        kernels: Tensor,
        left: Tensor,
        right: Tensor,
        left_inverse: Tensor,
        right_inverse: Tensor,
        relu: bool,
        axes: Axes,
    ) -> Tensor:
        """As `_layer`, in place. It computes with -c, since pi - acos(c) = acos(-c) saves two passes."""
        rows, sums = self._room(kernels)
        _sum_into(rows, kernels, axes.rows)
        _sum_into(sums, rows, axes.columns)
        if not relu:
            sums.mul_(left_inverse).mul_(right_inverse).sub_(1.0).exp_()
            return sums.mul_(left).mul_(right)
        cosine = sums.mul_(-left_inverse).mul_(right_inverse).clamp_(-1.0, 1.0)
        product = torch.acos(cosine, out=rows).mul_(cosine)
        cosine.square_().neg_().add_(1.0).sqrt_().sub_(product)
        return cosine.mul_(left * (1 / math.pi)).mul_(right)

    def _room(self, kernels: Tensor) -> list[Tensor]:
        """Two buffers of the shape of the kernels that do not overlap them."""
        buffers = self._buffers.setdefault(kernels.shape, [])
        while len(buffers) < 3:
            buffers.append(torch.empty_like(kernels))
        return [buffer for buffer in buffers if buffer.data_ptr() != kernels.data_ptr()][:2]


def _stages(graph: Graph) -> tuple[Segment, ...]:
    stages = chain(graph)
    if isinstance(stages, str):
        raise ValueError(f"only chains, and {stages}")
    for stage in stages:
        if stage.exits[0].grid != (1, 1) and stage.pool != (2, 2):
            raise ValueError(f"only 2×2 and global pools, not {stage.pool}")
        for step in stage.steps:
            if step.window != (3, 3) or not _is_known(step.embedding):
                raise ValueError(f"only 3×3 windows with relu or gaussian, not {step}")
    return stages


def _is_known(embedding: object) -> bool:
    return isinstance(embedding, Nonlinearity) and (isinstance(embedding, ReLU) or embedding == Gaussian())


def _inner_products(x: Tensor, z: Tensor, axes: Axes) -> Tensor:
    """Inner products of all positions of both images, each (pairs, H, W, C)."""
    if axes == BY_IMAGE:
        pairs, height, width, channels = x.shape
        flat = torch.bmm(x.reshape(pairs, -1, channels), z.reshape(pairs, -1, channels).transpose(1, 2))
        return flat.reshape(pairs, height, width, height, width)
    return torch.matmul(x[:, :, None], z.transpose(-1, -2)[:, None])


def _diagonal(kernels: Tensor, axes: Axes) -> Tensor:
    """Squared norms, (pairs, H, W), of kernels of images with themselves."""
    return kernels.diagonal(0, *axes.rows).diagonal(0, 1, 2)


def _layer(
    kernels: Tensor,
    left: Tensor,
    right: Tensor,
    left_inverse: Tensor,
    right_inverse: Tensor,
    relu: bool,
    axes: Axes,
) -> Tensor:
    """A 3×3 window, then an embedding."""
    rows = kernels + _shifted(kernels, axes.rows, forward=True) + _shifted(kernels, axes.rows, forward=False)
    sums = rows + _shifted(rows, axes.columns, forward=True) + _shifted(rows, axes.columns, forward=False)
    cosine = sums * left_inverse * right_inverse
    if not relu:
        return torch.exp(cosine - 1.0) * left * right
    cosine = cosine.clamp(-1.0, 1.0)
    dual = (torch.sqrt(1.0 - cosine * cosine) + cosine * (math.pi - torch.acos(cosine))) / math.pi
    return dual * left * right


def _plain_layer(
    kernels: Tensor,
    left: Tensor,
    right: Tensor,
    left_inverse: Tensor,
    right_inverse: Tensor,
    relu: bool,
    axes: Axes,
) -> Tensor:
    """As `_layer`, straight from the formulas, without inverse norms."""
    height, width = kernels.shape[1:3]
    padded = pad(kernels, (1, 1) * 4)
    moved = [
        padded[:, a : a + height, b : b + width, a : a + height, b : b + width] for a in range(3) for b in range(3)
    ]
    scale = left * right
    cosine = torch.where(scale > 0, sum(moved) / scale, 0.0).clamp(-1.0, 1.0)
    if not relu:
        return scale * torch.exp(cosine - 1.0)
    return scale * (torch.sqrt(1.0 - cosine * cosine) + cosine * (math.pi - torch.acos(cosine))) / math.pi


def _shifted(kernels: Tensor, axes: tuple[int, int], *, forward: bool) -> Tensor:
    """Shift by one along two axes, filled with zeros."""
    first, last = _cuts(axes)
    padding = [0] * 8  # before and after each axis, the last axis first
    for axis in axes:
        padding[2 * (4 - axis) + (0 if forward else 1)] = 1
    return pad(kernels[first if forward else last], padding)


def _sum_into(target: Tensor, source: Tensor, axes: tuple[int, int]) -> None:
    """The sum of a tensor and its two shifts along two axes, in two passes."""
    first, last = _cuts(axes)
    torch.add(source[last], source[first], out=target[last])
    for axis in axes:
        target.select(axis, 0).copy_(source.select(axis, 0))
    target[first] += source[last]


def _cuts(axes: tuple[int, int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Two indices: all but the last, and all but the first position along two axes."""
    first = tuple(slice(None, -1) if axis in axes else slice(None) for axis in range(5))
    last = tuple(slice(1, None) if axis in axes else slice(None) for axis in range(5))
    return first, last


def _pool(kernels: Tensor) -> Tensor:
    """Means over 2×2 positions of both images, axis after axis: many times faster than one mean over four axes."""
    for axis in range(1, 5):
        even, odd = (kernels[(slice(None),) * axis + (slice(start, None, 2),)] for start in (0, 1))
        kernels = even + odd
    return kernels * (1 / 16)
