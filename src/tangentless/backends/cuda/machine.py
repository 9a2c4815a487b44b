"""One GPU, through CuPy: memory, compiled kernels, launches. Errors say what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BackendError
from .compile import OPTIONS, source, stage_options
from .fused import Launch, Stream
from .layout import FrontPlan, StagePlan

INSTALL = "pip install 'tangentless[cuda13]', or tangentless[cuda12] where the driver is of CUDA 12"
OLDEST = (8, 0)  # compute capability: the fused stages need its shared memory and registers


def import_cupy() -> Any:
    """The cupy module; raises an error that says how to install it."""
    try:
        import cupy
    except ImportError as error:
        raise BackendError(f"the cuda backend needs CuPy, which cannot be imported ({error}); {INSTALL}") from error
    return cupy


def count_gpus() -> int:
    """The number of GPUs; raises if there are none, or if the driver cannot be used."""
    cupy = import_cupy()
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(_reason(str(error))) from error
    if count == 0:
        raise BackendError("there is no NVIDIA GPU on this machine; use backend='cpu'")
    return count


def check_gpus() -> None:
    """Raise an error if the cuda backend cannot use every GPU of this host."""
    cupy = import_cupy()
    for index in range(count_gpus()):
        check_capability(index, cupy.cuda.Device(index).compute_capability)


def gpu_present() -> bool:
    """Whether the cuda backend can use every GPU of this host, and there is one."""
    try:
        check_gpus()
    except BackendError:
        return False
    return True


def check_capability(index: int, capability: str) -> None:
    """Raise an error for a GPU that is too old; `capability` is written as CuPy does, without the point.

    >>> check_capability(0, "75")
    Traceback (most recent call last):
        ...
    tangentless.errors.BackendError: GPU 0 has compute capability 7.5; the cuda backend needs 8.0 or newer (an A100, an
    RTX 30, or later); use backend='cpu'
    """
    if (int(capability[:-1]), int(capability[-1])) < OLDEST:
        raise BackendError(
            f"GPU {index} has compute capability {capability[:-1]}.{capability[-1]}; the cuda backend needs "
            f"{OLDEST[0]}.{OLDEST[1]} or newer (an A100, an RTX 30, or later); use backend='cpu'"
        )


class CudaMachine:
    """A GPU with its compiled kernels; `fused.Machine` documents the methods."""

    def __init__(self, index: int) -> None:
        self.xp = import_cupy()
        self.device = self.xp.cuda.Device(index)
        check_capability(index, self.device.compute_capability)
        attributes = self.device.attributes
        self.shared_limit = int(attributes["MaxSharedMemoryPerBlockOptin"])
        self._streams: list[Any] = []
        self._stages: dict[StagePlan | FrontPlan, Launch] = {}

    @property
    def name(self) -> str:
        with self.device:
            properties = self.xp.cuda.runtime.getDeviceProperties(self.device.id)
        return str(properties["name"].decode())

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context in which work runs on this GPU. After an error, it waits until the GPU is idle."""
        with self.device:
            try:
                yield
            except BaseException:
                self.device.synchronize()
                raise

    def free_bytes(self) -> int:
        """Memory that an allocation could use: free, or cached by CuPy."""
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(free + self.xp.get_default_memory_pool().free_bytes())

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, self.xp.cuda.memory.OutOfMemoryError)

    def release(self) -> None:
        """Return cached memory to the driver."""
        self.xp.get_default_memory_pool().free_all_blocks()

    def load_stage(self, plan: StagePlan | FrontPlan) -> Launch:
        if plan not in self._stages:
            name = "front" if isinstance(plan, FrontPlan) else "stage"
            kernel = self._module(f"{name}.cu", source(f"{name}.cu"), stage_options(plan)).get_function(name)
            shared = plan.shared_bytes
            kernel.max_dynamic_shared_size_bytes = shared

            def launch(
                left: Any, right: Any, source: Any, output: Any, units: Any, left_step: int, right_step: int
            ) -> None:
                if isinstance(plan, FrontPlan):
                    blocks, arguments = len(units) * plan.groups, [left, right, output, units]
                else:
                    steps = np.int32(left_step), np.int32(right_step)
                    blocks, arguments = len(units), [left, right, source, output, units, *steps]
                kernel((blocks,), (plan.threads,), tuple(arguments), shared_mem=shared)

            self._stages[plan] = launch
        return self._stages[plan]

    def load_text(self, text: str) -> Launch:
        module = self._module("the kernels of a graph", text, OPTIONS)
        walking = 16 * int(self.device.attributes["MultiProcessorCount"])
        kernels: dict[str, Any] = {}

        def launch(name: str, blocks: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
            if name not in kernels:
                kernels[name] = module.get_function(name)
                kernels[name].max_dynamic_shared_size_bytes = shared
            values = [np.uintp(0) if a is None else np.int32(a) if isinstance(a, int) else a for a in arguments]
            kernels[name]((blocks if shared else min(blocks, walking),), (threads,), tuple(values), shared_mem=shared)

        return launch

    def _module(self, file: str, text: str, options: tuple[str, ...]) -> Any:
        module = self.xp.RawModule(code=text, options=options)
        try:
            module.compile()
        except self.xp.cuda.compiler.CompileException as error:
            raise BackendError(f"{file} does not compile for {self.name}: {error}") from error
        return module

    def upload(self, values: Any) -> Any:
        """The values on this GPU, contiguous; not copied if they are already."""
        if not isinstance(values, self.xp.ndarray):
            return self.xp.asarray(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")))
        if values.device != self.device:
            values.device.synchronize()
            values = values.copy()  # lands on the active GPU, which is this one
        return self.xp.ascontiguousarray(values)

    def download(self, values: Any) -> NDArray[Any]:
        return np.asarray(self.xp.asnumpy(values))

    def deliver(self, values: Any, beside: Any) -> Any:
        """Values of this GPU as an array of the kind of `beside`, in the same memory: the host or a GPU."""
        if not isinstance(beside, self.xp.ndarray):
            return self.download(values)
        if values.device == beside.device:
            return values
        self.device.synchronize()
        with beside.device:
            return values.copy()

    @contextmanager
    def streams(self, count: int) -> Iterator[Sequence[Stream]]:
        """Streams that start after the work of the current one, which in turn waits for them, also after an error.

        CuPy can therefore reuse memory of the current stream without waiting for these streams.
        """
        cuda = self.xp.cuda
        current = cuda.get_current_stream()
        while len(self._streams) < count:
            self._streams.append(cuda.Stream(non_blocking=True))
        streams = self._streams[:count]
        before = current.record(cuda.Event(disable_timing=True))
        for stream in streams:
            stream.wait_event(before)
        try:
            yield streams
        finally:
            for stream in streams:
                current.wait_event(stream.record(cuda.Event(disable_timing=True)))

    def mark(self) -> Callable[[], None]:
        event = self.xp.cuda.Event(disable_timing=True)
        event.record()
        return lambda: event.synchronize()


def _reason(message: str) -> str:
    if "InsufficientDriver" in message or "insufficient" in message:
        return (
            "there is no NVIDIA driver, or it is too old for the CUDA runtime of the installed CuPy; install or update "
            "the driver, install the CuPy that matches it (tangentless[cuda12] for CUDA 12), or use backend='cpu'"
        )
    if "NoDevice" in message or "no CUDA-capable device" in message:
        return "there is no NVIDIA GPU on this machine; use backend='cpu'"
    return f"CUDA cannot be used here: {message}; use backend='cpu'"
