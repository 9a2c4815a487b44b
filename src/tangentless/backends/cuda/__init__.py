"""The CUDA backend: kernels on NVIDIA GPUs.

Programs of 3×3 convolutions and 2×2 pools run fused, stage by stage, in float32, and in float64 after the last pool
(`stage.cu`); all others, and `precision="float64"`, run operation by operation in float64 (`general.cu`). Results do
not depend on tiles, batches, order or the number of GPUs: the same images give the same bits. Images may be CuPy arrays
as well; everything then stays on the GPUs, and entries come out beside the images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tangentless.backends import Advance, Precision
from tangentless.errors import BackendError
from tangentless.program import Program

from .fused import FusedImages, FusedPath
from .general import GeneralImages, GeneralPath, apply_head
from .layout import StagePlan
from .machine import CudaMachine, check_gpus, count_gpus, gpu_present
from .plan import plan_program

__all__ = ["CudaBackend", "CudaImages", "check_gpus", "gpu_present"]

Array = NDArray[np.float64]
T = TypeVar("T")
logger = logging.getLogger("tangentless")

TILE = 2048  # images on a side of a block: seconds of work, so that the ends of blocks do not matter
PREPARED_AT_ONCE = 1024
LARGEST_BATCH = 262144  # pairs in one launch, if they are small: planning them takes less time than computing them
LARGEST_SCRATCH = 26 << 30  # bytes of all lanes: 32,768 pairs of 32×32 images, and more of them are no faster
SHARE_OF_MEMORY = 0.5  # of what is free, for the kernels between stages


@dataclass(frozen=True, eq=False)
class CudaImages:
    """Images prepared on every GPU, and their squared norms after the last pool, which are where the images were."""

    program: Program
    copies: tuple[Any, ...]  # FusedImages or GeneralImages, by GPU
    squares: Any

    @property
    def diagonal(self) -> Any:
        return self.program.head_diagonal(self.squares)

    @property
    def tile(self) -> int:
        return TILE

    def __len__(self) -> int:
        return len(self.squares)

    def __getitem__(self, part: slice) -> CudaImages:
        return CudaImages(self.program, tuple(copy[part] for copy in self.copies), self.squares[part])


class CudaBackend:
    """Runs programs on the GPUs of this host; `gpus` picks some of them by number."""

    name = "cuda"

    def __init__(self, precision: Precision = "float32", gpus: tuple[int, ...] | None = None) -> None:
        count = count_gpus()
        chosen = tuple(range(count)) if gpus is None else gpus
        missing = [index for index in chosen if not 0 <= index < count]
        if missing or not chosen:
            raise BackendError(f"there are GPUs 0 to {count - 1} on this host; {list(chosen)} was asked for")
        self.precision = precision
        self.machines = tuple(CudaMachine(index) for index in chosen)
        self._paths: dict[tuple[int, Program], FusedPath | GeneralPath] = {}

    def describe(self, program: Program) -> str:
        plan = self._plan(program)
        gpus = ", ".join(machine.name for machine in self.machines)
        if isinstance(plan, str):
            return f"cuda: general path, float64, because {plan} ({gpus})"
        return f"cuda: fused, {len(plan)} stages, float32 and float64 after the last pool ({gpus})"

    def prepare(self, program: Program, images: Any) -> CudaImages:
        results = self._on_every_gpu(lambda index: self._prepare(index, program, images))
        return CudaImages(program, tuple(copy for copy, _ in results), results[0][1])

    def block(
        self,
        program: Program,
        left: CudaImages,
        right: CudaImages,
        *,
        upper: bool = False,
        advance: Advance | None = None,
    ) -> Any:
        bounds = np.linspace(0, len(right), len(self.machines) + 1).round().astype(int).tolist()
        counted = _locked(advance)

        def compute(index: int) -> Any:
            columns = slice(bounds[index], bounds[index + 1])
            return self._columns(index, program, left, right, columns, upper, counted)

        parts = self._on_every_gpu(compute)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _columns(
        self,
        index: int,
        program: Program,
        left: CudaImages,
        right: CudaImages,
        columns: slice,
        upper: bool,
        advance: Advance | None,
    ) -> Any:
        machine, path = self.machines[index], self._path(index, program)
        x, z = left.copies[index], right.copies[index][columns]
        if not len(z):  # there are more GPUs than columns
            return machine.deliver(machine.xp.empty((len(left), 0)), left.squares)
        diagonal = columns.start if upper else None
        entries = self._with_enough_memory(machine, path, lambda batch: path.values(x, z, batch, diagonal, advance))
        apply_head(program, machine, entries, left.squares, right.squares[columns])
        return machine.deliver(entries, left.squares)

    def _prepare(self, index: int, program: Program, images: Any) -> tuple[Any, Any]:
        machine, path = self.machines[index], self._path(index, program)
        parts, squares = [], []
        start = 0
        while start < len(images):
            chunk = images[start : start + PREPARED_AT_ONCE]

            def some(batch: int, chunk: Any = chunk) -> tuple[Any, Any]:
                return path.prepare(machine.upload(chunk[:batch]).astype(np.float64, copy=False))

            part, norms = self._with_enough_memory(machine, path, some)
            parts.append(part)
            squares.append(norms)
            start += len(norms)
        return _join(machine, parts), machine.deliver(machine.xp.concatenate(squares), images)

    def _with_enough_memory(self, machine: CudaMachine, path: FusedPath | GeneralPath, work: Callable[[int], T]) -> T:
        """Run work in batches as large as memory allows, smaller ones if an allocation fails after all."""
        memory = min(LARGEST_SCRATCH, int(machine.free_bytes() * SHARE_OF_MEMORY))
        batch = max(1, min(LARGEST_BATCH, memory // max(1, path.pair_bytes)))
        while True:
            try:
                return work(batch)
            except Exception as error:
                if not machine.is_out_of_memory(error):
                    raise
                machine.release()
                if batch == 1:
                    raise BackendError(
                        f"{machine.name} has no memory left for even one pair of images ({error}); work on fewer "
                        "images at a time, or free memory that other programs hold"
                    ) from error
            batch = max(1, batch // 2)
            logger.info("out of memory on %s; going on with batches of %d pairs", machine.name, batch)

    def _plan(self, program: Program) -> tuple[StagePlan, ...] | str:
        if self.precision == "float64":
            return "float64 was asked for"
        return plan_program(program, min(machine.shared_limit for machine in self.machines))

    def _path(self, index: int, program: Program) -> FusedPath | GeneralPath:
        key = index, program
        if key not in self._paths:
            plans, machine = self._plan(program), self.machines[index]
            self._paths[key] = (
                GeneralPath(program, machine) if isinstance(plans, str) else FusedPath(program, plans, machine)
            )
        return self._paths[key]

    def _on_every_gpu(self, work: Callable[[int], T]) -> list[T]:
        """One worker for each GPU."""

        def run(index: int) -> T:
            with self.machines[index].active():
                return work(index)

        if len(self.machines) == 1:
            return [run(0)]
        with ThreadPoolExecutor(len(self.machines)) as pool:
            return list(pool.map(run, range(len(self.machines))))


def _join(machine: CudaMachine, parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    concatenate = machine.xp.concatenate
    if isinstance(parts[0], GeneralImages):
        norms = tuple(concatenate(planes) for planes in zip(*(part.norms for part in parts), strict=True))
        return GeneralImages(concatenate([part.pixels for part in parts]), norms)
    left, right = (
        tuple(concatenate(planes) for planes in zip(*(getattr(part, side) for part in parts), strict=True))
        for side in ("left", "right")
    )
    return FusedImages(left, right, concatenate([part.scales for part in parts]))


def _locked(advance: Advance | None) -> Advance | None:
    if advance is None:
        return None
    lock = Lock()

    def counted(pairs: int) -> None:
        with lock:
            advance(pairs)

    return counted
