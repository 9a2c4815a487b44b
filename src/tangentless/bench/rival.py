"""The rival on a GPU: the same kernels in PyTorch, each layer through torch.compile, with norms prepared.

The kernel of a batch of pairs is one tensor (pairs, H, W, H, W), which every layer reads and writes once: this is as
fast as code gets that treats layers one by one. It takes programs of the Myrtle family: 3×3 windows with ReLU or
Gaussian, 2×2 pools and a global one at the end.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.segments import Segment, Step, chain
from ..graph import Graph
from ..layers import Gaussian, ReLU

INSTALL = "pip install torch, 2.6 or newer, built for CUDA"
LARGEST_BATCH = 256  # pairs at a time: 1 GB for each tensor of 32×32 images, beyond which nothing gets faster
TENSORS_AT_ONCE = 6  # in memory, of a batch


torch: Any = None
with contextlib.suppress(ImportError):
    torch = importlib.import_module("torch")


def why_no_rival(graph: Graph) -> str | None:
    """What keeps PyTorch from running a graph here, and what to do about it; None if nothing does."""
    if torch is None:
        return f"PyTorch is not installed; {INSTALL}"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees no GPU; {INSTALL}"
    if not _suits(graph):
        return "only 3×3 windows with relu or gaussian and 2×2 pools were written in PyTorch"
    return None


def _suits(graph: Graph) -> bool:
    stages = chain(graph)
    if isinstance(stages, str):
        return False
    pools = all(stage.pool == (2, 2) or stage.exits[0].grid == (1, 1) for stage in stages)
    return pools and all(_is_written(step) for stage in stages for step in stage.steps)


def _is_written(step: Step) -> bool:
    return step.window == (3, 3) and (isinstance(step.embedding, ReLU) or step.embedding == Gaussian())


@dataclass(frozen=True)
class RivalImages:
    """Images, norms before every embedding with their inverses, by stage, and squared norms after the last pool."""

    images: Any  # (N, H, W, C)
    norms: tuple[Any, ...]  # (2, N, steps, H, W)
    totals: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, part: slice) -> RivalImages:
        return RivalImages(self.images[part], tuple(norms[:, part] for norms in self.norms), self.totals[part])


class Rival:
    """Blocks of a kernel by PyTorch."""

    def __init__(self, graph: Graph, device: str = "cuda") -> None:
        # Every shape is one more compilation; past the limit layers would silently run without it.
        importlib.import_module("torch._dynamo").config.recompile_limit = 1024
        stages = chain(graph)
        assert not isinstance(stages, str), stages
        self.graph, self.stages, self.device = graph, stages, device
        self.batch = _largest_batch(stages[0], device)
        self.relu, self.gaussian, self.pool = (
            torch.compile(function, dynamic=False) for function in (_relu_layer, _gaussian_layer, _pool)
        )

    def prepare(self, images: NDArray[Any]) -> RivalImages:
        """All that is known of each image alone."""
        x = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)).to(self.device)
        with torch.inference_mode():
            parts = [self._norms(some) for some in x.split(self.batch)]
        norms = tuple(torch.cat(stage, 1) for stage in zip(*(part[0] for part in parts), strict=True))
        return RivalImages(x, norms, torch.cat([part[1] for part in parts]).cpu().numpy())

    def block(self, left: RivalImages, right: RivalImages) -> NDArray[np.float64]:
        """Kernel entries between two prepared sets."""
        pairs = torch.cartesian_prod(torch.arange(len(left)), torch.arange(len(right))).to(self.device)
        with torch.inference_mode():
            totals = torch.cat([self._pairs(left, right, *some.unbind(1)) for some in pairs.split(self.batch)])
        values = totals.cpu().numpy().reshape(len(left), len(right))
        return self.graph.apply_head([values], [left.totals], [right.totals])

    def _pairs(self, left: RivalImages, right: RivalImages, i: Any, j: Any) -> Any:
        kernels = _products(left.images[i], right.images[j])
        for place, stage in enumerate(self.stages):
            kernels = self._stage(stage, kernels, left.norms[place][:, i], right.norms[place][:, j])
        return kernels

    def _norms(self, x: Any) -> tuple[list[Any], Any]:
        """Norms and their inverses by stage, and totals, from the kernels of images with themselves."""
        every: list[Any] = []
        kernels = _products(x, x)
        for stage in self.stages:
            norms = stage.norms(kernels.diagonal(0, 1, 3).diagonal(0, 1, 2).double().cpu().numpy())
            inverses = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
            every.append(torch.from_numpy(np.stack([norms, inverses]).astype(np.float32)).to(self.device))
            kernels = self._stage(stage, kernels, every[-1], every[-1])
        return every, kernels

    def _stage(self, stage: Segment, kernels: Any, left: Any, right: Any) -> Any:
        for place, step in enumerate(stage.steps):
            layer = self.relu if isinstance(step.embedding, ReLU) else self.gaussian
            kernels = layer(kernels, left[:, :, place, :, :, None, None], right[:, :, place, None, None])
        if stage.exits[0].grid == (1, 1):
            return kernels.mean(dim=(1, 2, 3, 4), dtype=torch.float64)
        return self.pool(kernels)


def _largest_batch(first: Segment, device: str) -> int:
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 1 << 30
    tensor = 4 * math.prod(first.grid) ** 2
    return int(max(1, min(LARGEST_BATCH, free // (TENSORS_AT_ONCE * tensor))))


def _products(x: Any, z: Any) -> Any:
    return torch.einsum("pjkc,pmnc->pjkmn", x, z)


def _window_sums(kernels: Any) -> Any:
    """Over 3×3 windows: three shifts along both rows, then three along both columns."""
    height, width = kernels.shape[1:3]
    rows = torch.nn.functional.pad(kernels, (0, 0, 1, 1, 0, 0, 1, 1))
    rows = sum(rows[:, d : d + height, :, d : d + height] for d in range(3))
    columns = torch.nn.functional.pad(rows, (1, 1, 0, 0, 1, 1))
    return sum(columns[:, :, d : d + width, :, d : d + width] for d in range(3))


def _relu_layer(kernels: Any, left: Any, right: Any) -> Any:
    """Norms of either side come with their inverses."""
    cosine = (_window_sums(kernels) * (left[1] * right[1])).clamp(-1, 1)
    dual = (torch.sqrt(1 - cosine * cosine) + cosine * (torch.pi - torch.acos(cosine))) / torch.pi
    return dual * (left[0] * right[0])


def _gaussian_layer(kernels: Any, left: Any, right: Any) -> Any:
    return torch.exp(_window_sums(kernels) * (left[1] * right[1]) - 1) * (left[0] * right[0])


def _pool(kernels: Any) -> Any:
    pairs, height, width = kernels.shape[:3]
    return kernels.view(pairs, height // 2, 2, width // 2, 2, height // 2, 2, width // 2, 2).mean(dim=(2, 4, 6, 8))
