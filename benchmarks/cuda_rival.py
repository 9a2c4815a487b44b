"""The rival on a GPU: the same kernels in PyTorch, each layer through torch.compile, norms prepared beforehand."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tangentless.layers import ReLU
from tangentless.program import Program, Stage

BATCH = 256  # pairs at a time: 1 GB for each tensor of 32×32 images


def _windows(kernels: Tensor) -> Tensor:
    """Sums over 3×3 windows of (pairs, H, W, H, W): three shifts along both rows, then three along both columns."""
    height, width = kernels.shape[1:3]
    rows = pad(kernels, (0, 0, 1, 1, 0, 0, 1, 1))
    rows = sum(rows[:, d : d + height, :, d : d + height] for d in range(3))
    columns = pad(rows, (1, 1, 0, 0, 1, 1))
    return sum(columns[:, :, d : d + width, :, d : d + width] for d in range(3))


def _relu_layer(kernels: Tensor, left: Tensor, right: Tensor) -> Tensor:
    scale = left * right
    cosine = (_windows(kernels) / scale).clamp(-1, 1)
    return scale * (torch.sqrt(1 - cosine * cosine) + cosine * (torch.pi - torch.acos(cosine))) / torch.pi


def _gaussian_layer(kernels: Tensor, left: Tensor, right: Tensor) -> Tensor:
    scale = left * right
    return scale * torch.exp(_windows(kernels) / scale - 1)


def _pool(kernels: Tensor) -> Tensor:
    pairs, height, width = kernels.shape[:3]
    return kernels.view(pairs, height // 2, 2, width // 2, 2, height // 2, 2, width // 2, 2).mean(dim=(2, 4, 6, 8))


class Rival:
    """A program's pairs by PyTorch; the norms are those of the program on one image, which costs the same time."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.layers = {
            True: torch.compile(_relu_layer, dynamic=False),
            False: torch.compile(_gaussian_layer, dynamic=False),
        }
        self.pool = torch.compile(_pool, dynamic=False)

    def pairs_per_second(self, images: np.ndarray, seconds: float = 2.0) -> float:
        x = torch.from_numpy(np.ascontiguousarray(images[:BATCH], dtype=np.float32)).cuda()
        z = x.flip(0)
        self._run(x, z)
        torch.cuda.synchronize()
        started, pairs = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            self._run(x, z)
            torch.cuda.synchronize()
            pairs += len(x)
        return pairs / (time.perf_counter() - started)

    @torch.inference_mode()
    def _run(self, x: Tensor, z: Tensor) -> Tensor:
        kernels = torch.einsum("pjkc,pmnc->pjkmn", x, z)
        for stage in self.program.stages:
            kernels = self._stage(stage, kernels)
        return kernels

    def _stage(self, stage: Stage, kernels: Tensor) -> Tensor:
        norms = torch.ones(len(kernels), *stage.grid, device="cuda")
        left, right = norms[:, :, :, None, None], norms[:, None, None]
        for step in stage.steps:
            kernels = self.layers[isinstance(step.embedding, ReLU)](kernels, left, right)
        return kernels.mean(dim=(1, 2, 3, 4)) if stage.pooled == (1, 1) else self.pool(kernels)
