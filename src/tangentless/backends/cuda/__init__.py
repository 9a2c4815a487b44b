"""The CUDA backend: kernels on NVIDIA GPUs.

A graph takes the first of three paths that can run it:

- stage by stage (`fused.py`, `stage.cu`): chains of 3×3 convolutions and 2×2 pools, also behind patches. Fastest;
  float32 up to the last pool, then float64.
- offset by offset (`following.py`, `offsets.cuh`): nearly all other graphs, tangent kernels, and `precision="float64"`.
- node by node (`general.py`, `nodes.cuh`): what is left, such as branches of different resolution.

Gradients are computed by the first GPU: fused for chains (`pulled.py`, `pulling.cuh`), and node by node for all other
graphs (`gradient.py`, `node_back.cuh`).

Results do not depend on tiles, batches, order or the number of GPUs: the same images give the same bits. Images may be
CuPy arrays. Everything then stays on the GPUs, and results are CuPy arrays on the GPU of the images.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from ...errors import BackendError
from ...graph import Graph
from ...pullback import check_gradient
from .. import Advance, Precision
from ..backward import pull_general
from .following import OffsetPath, find_exact
from .fused import FusedPath, report_finished
from .general import GeneralPath
from .gradient import CudaGradient, GradientPath
from .layout import StagePlan
from .machine import CudaMachine, check_gpus, count_gpus, gpu_present
from .offsets import OffsetPlan, plan_offsets
from .plan import plan_graph
from .pulled import PulledGradient, PullPath, pull_offsets, pulled_images
from .pulling import PullPlan, plan_pulling

__all__ = ["CudaBackend", "CudaImages", "check_gpus", "gpu_present"]

Path = FusedPath | OffsetPath | GeneralPath
T = TypeVar("T")
logger = logging.getLogger("tangentless")

TILE = 2048  # images on a side of a block: seconds of work, so that idle time at the end of a block is negligible
PREPARED_AT_ONCE = 1024  # images
LARGEST_BATCH = 262144  # pairs in one launch: computing so many small ones still takes longer than planning them
LARGEST_SCRATCH = 26 << 30  # bytes in all streams: 32,768 pairs of 32×32 images; larger batches are no faster
SHARE_OF_MEMORY = 0.5  # of the free memory, for scratch: what one stage hands to the next


@dataclass(frozen=True, eq=False)
class CudaImages:
    """Images prepared on every GPU, and k(x, x) in the memory that the images came from."""

    copies: tuple[Any, ...]  # one per GPU: FusedImages, OffsetImages or GeneralImages
    diagonal: Any
    paths: tuple[Path, ...]  # one per GPU: what prepared the copies

    @property
    def tile(self) -> int:
        return TILE

    def __len__(self) -> int:
        return len(self.diagonal)

    def __getitem__(self, part: slice) -> CudaImages:
        return CudaImages(tuple(copy[part] for copy in self.copies), self.diagonal[part], self.paths)


class CudaBackend:
    """Runs graphs on the GPUs of this host; `gpus` chooses some of them by number (None: all)."""

    name = "cuda"

    def __init__(self, precision: Precision = "float32", gpus: tuple[int, ...] | None = None) -> None:
        count = count_gpus()
        chosen = tuple(range(count)) if gpus is None else gpus
        missing = [index for index in chosen if not 0 <= index < count]
        if missing or not chosen:
            raise BackendError(f"gpus={list(chosen)} must name one or more of the GPUs of this host, 0 to {count - 1}")
        self.precision = precision
        self.machines = tuple(CudaMachine(index) for index in chosen)
        self._paths: dict[tuple[int, Graph], Path] = {}
        self._pulls: dict[tuple[Graph, bool], PullPath | None] = {}
        self._gradients: dict[Graph, GradientPath] = {}

    def describe(self, graph: Graph) -> str:
        plan, stages = self._plan(graph), self._stages(graph)
        gpus = ", ".join(machine.name for machine in self.machines)
        if isinstance(plan, str):
            return f"cuda: general path, float64, because {plan} ({gpus})"
        if isinstance(plan, OffsetPlan):
            kind = "tangents by offsets" if graph.tangent else "by offsets"
            return f"cuda: fused {kind}, {plan.dtype}, not by stages, because {stages} ({gpus})"
        return f"cuda: fused, {len(plan)} stages, float32 and float64 after the last pool ({gpus})"

    def prepare(self, graph: Graph, images: Any) -> CudaImages:
        paths = self._on_gpus(len(self.machines), lambda index: self._path(index, graph))
        return self._prepared(tuple(paths), images)

    def block(
        self, graph: Graph, left: CudaImages, right: CudaImages, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        bounds = np.linspace(0, len(right), len(left.copies) + 1).round().astype(int).tolist()
        counted = _thread_safe(advance)

        def compute(index: int) -> Any:
            columns = slice(bounds[index], bounds[index + 1])
            return self._columns(index, left, right, columns, upper, counted)

        parts = self._on_gpus(len(left.copies), compute)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def gradient(
        self, graph: Graph, images: Any, *, parameters: bool = False, wanted: bool = True
    ) -> CudaGradient | PulledGradient:
        """Images prepared for gradients on the first GPU, with no cotangents yet."""
        check_gradient(graph, parameters)
        fused = None if parameters else self._pull_path(graph, both=False)
        if fused is not None:
            return self._pulled_gradient(fused, graph, images, wanted)
        if graph not in self._gradients:
            with self.machines[0].active():
                self._gradients[graph] = GradientPath(graph, self.machines[0])
        path = self._gradients[graph]
        prepared = self._prepared((path,), images)
        with self.machines[0].active():
            batch = self._largest_batch(self.machines[0], path)
            part = path.gradient(prepared.copies[0], batch, parameters=parameters, wanted=wanted)
        return CudaGradient(path, part, prepared)

    def _pulled_gradient(self, path: PullPath, graph: Graph, images: Any, wanted: bool) -> PulledGradient:
        machine, paths = self.machines[0], functools.partial(self._pull_path, graph)
        prepared = self._prepared((path.forward,), images)
        with machine.active():
            pulled = pulled_images(path, prepared.copies[0], wanted)
        in_batches = functools.partial(self._with_enough_memory, machine)
        return PulledGradient(graph, prepared, pulled, paths, images.shape[1:], in_batches)

    def _pull_path(self, graph: Graph, both: bool) -> PullPath | None:
        """The fused backward path, for both images of a pair or for the right one; None if it cannot run the graph."""
        if (graph, both) not in self._pulls:
            plan = plan_pulling(graph, self.precision, self._shared_limit, both)
            with self.machines[0].active():
                self._pulls[graph, both] = None if isinstance(plan, str) else self._new_pull_path(plan)
        return self._pulls[graph, both]

    def _new_pull_path(self, plan: PullPlan) -> PullPath:
        """The path of a plan; in float32 `stage.cu` runs its first stage, unless it is the only one or has a front."""
        stages = self._stages(plan.forward.graph)
        if isinstance(stages, str) or len(stages) == 1 or stages[0].given or plan.forward.dtype != "float32":
            return PullPath(plan, self.machines[0])
        return PullPath(plan, self.machines[0], stages[0])

    def pullback(
        self,
        graph: Graph,
        left: Any,
        right: Any,
        cotangent: Any,
        *,
        upper: bool = False,
        advance: Advance | None = None,
    ) -> None:
        if isinstance(left, PulledGradient):
            with self.machines[0].active():
                pull_offsets(left, right, cotangent, upper=upper, advance=advance)
            return
        machine, done = self.machines[0], 0

        def count(pairs: int) -> None:
            nonlocal done
            done += pairs
            report_finished(machine, advance, pairs)

        with machine.active():
            by = machine.upload(cotangent)
            self._with_enough_memory(
                machine,
                left.path,
                lambda batch: pull_general(
                    left.part, right.part, by, upper=upper, advance=count, batch=batch, done=done
                ),
            )

    def _columns(
        self, index: int, left: CudaImages, right: CudaImages, columns: slice, upper: bool, advance: Advance | None
    ) -> Any:
        machine, path = self.machines[index], left.paths[index]
        x, z = left.copies[index], right.copies[index][columns]
        if not len(z):  # there are more GPUs than columns
            return machine.deliver(machine.xp.empty((len(left), 0)), left.diagonal)
        first = columns.start if upper else None
        entries = self._with_enough_memory(machine, path, lambda batch: path.block(x, z, batch, first, advance))
        return machine.deliver(entries, left.diagonal)

    def _prepared(self, paths: tuple[Path, ...], images: Any) -> CudaImages:
        """Images prepared on the first GPUs, by one path each."""
        copies = self._on_gpus(len(paths), lambda index: self._prepare(self.machines[index], paths[index], images))
        with self.machines[0].active():
            return CudaImages(tuple(copies), self.machines[0].deliver(copies[0].diagonal, images), paths)

    def _prepare(self, machine: CudaMachine, path: Path, images: Any) -> Any:
        parts: list[Any] = []
        start = 0
        while start < len(images):
            chunk = images[start : start + PREPARED_AT_ONCE]

            def some(batch: int, chunk: Any = chunk) -> Any:
                return path.prepare(machine.upload(chunk[:batch]).astype(np.float64, copy=False), batch)

            parts.append(self._with_enough_memory(machine, path, some))
            start += len(parts[-1])
        return parts[0] if len(parts) == 1 else path.join(parts)

    def _with_enough_memory(self, machine: CudaMachine, path: Path | PullPath, work: Callable[[int], T]) -> T:
        """Call `work` with the number of pairs that fit into memory; with half as many whenever an allocation fails."""
        batch = self._largest_batch(machine, path)
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

    def _largest_batch(self, machine: CudaMachine, path: Path | PullPath) -> int:
        memory = min(LARGEST_SCRATCH, int(machine.free_bytes() * SHARE_OF_MEMORY))
        return max(1, min(LARGEST_BATCH, memory // max(1, path.pair_bytes)))

    @property
    def _shared_limit(self) -> int:
        return min(machine.shared_limit for machine in self.machines)

    def _stages(self, graph: Graph) -> tuple[StagePlan, ...] | str:
        if self.precision == "float64" and not graph.tangent:
            return "precision is float64"
        return plan_graph(graph, self._shared_limit)

    def _plan(self, graph: Graph) -> tuple[StagePlan, ...] | OffsetPlan | str:
        """The plan of the fastest path that can run a graph, or the reason why only the general path can."""
        stages = self._stages(graph)
        return plan_offsets(graph, self.precision, self._shared_limit) if isinstance(stages, str) else stages

    def _path(self, index: int, graph: Graph) -> Path:
        key = index, graph
        if key not in self._paths:
            plan, machine = self._plan(graph), self.machines[index]
            if isinstance(plan, str):
                self._paths[key] = GeneralPath(graph, machine)
            elif isinstance(plan, OffsetPlan):
                self._paths[key] = OffsetPath(plan, machine)
            else:
                self._paths[key] = FusedPath(graph, plan, machine, find_exact(graph, machine))
        return self._paths[key]

    def _on_gpus(self, count: int, work: Callable[[int], T]) -> list[T]:
        """Run `work` on each of the first GPUs, in a thread each; results in order."""

        def run(index: int) -> T:
            with self.machines[index].active():
                return work(index)

        if count == 1:
            return [run(0)]
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))


def _thread_safe(advance: Advance | None) -> Advance | None:
    """`advance` with a lock: every GPU has a thread that calls it."""
    if advance is None:
        return None
    lock = Lock()

    def counted(pairs: int) -> None:
        with lock:
            advance(pairs)

    return counted
