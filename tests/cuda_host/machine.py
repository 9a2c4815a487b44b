"""A machine for the CUDA backend without a GPU: its kernels are compiled for the host and run on NumPy arrays."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cuda_host.arrays import DeviceArray, DeviceModule
from tangentless.backends import cuda
from tangentless.backends.cuda.compile import source
from tangentless.backends.cuda.layout import FrontPlan, StagePlan

HERE = Path(__file__).parent
SOURCES = Path(cuda.__file__).parent
ONE_AT_A_TIME = threading.Lock()  # the emulation has one block of threads
COMPILER = shutil.which("g++") or shutil.which("clang++")


class EmulationError(Exception):
    """A kernel did what none may do, such as a read beyond shared memory or a wait that never ends."""


class Order(NamedTuple):
    """The order of events in a block, where the kernel allows several; `emulation.hpp` says what the choices mean."""

    copies_late: bool
    last_first: bool


ORDERS = tuple(Order(*choices) for choices in itertools.product((True, False), repeat=2))


class HostMachine:
    """The counterpart of `CudaMachine`."""

    order: ClassVar[Order] = ORDERS[0]
    all_threads: ClassVar[bool] = False  # kernels made from text: a thread of the host for each, not one for all
    mistake: ClassVar[tuple[str, str] | None] = None  # to be made in the source of the first stage: (right, wrong)

    xp = DeviceModule()
    name = "the host"
    shared_limit = 227 * 1024

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.queues: list[deque[Callable[[], None]]] = []  # launches that wait, by stream
        self.queue: deque[Callable[[], None]] | None = None  # that of the current stream

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return 1 << 28

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def release(self) -> None:
        pass

    def load_stage(self, plan: StagePlan | FrontPlan) -> Callable[..., None]:
        front = isinstance(plan, FrontPlan)
        mistake = None if front or plan.source is not None else self.mistake
        library = compiled("run_front.cpp" if front else "run_stage.cpp", plan.defines(), mistake)

        def launch(
            left: Any, right: Any, source: Any, output: Any, units: Any, left_step: int, right_step: int
        ) -> None:
            arrays = left, right, source, output, units
            assert all(isinstance(array, DeviceArray) and array.flags.c_contiguous for array in arrays)
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]

            def work(keep: Any = arrays) -> None:
                if not plan.last:
                    output.fill(np.nan)  # a kernel that adds to what it has not stored before gives NaN
                steps = (len(units) * plan.groups,) if front else (len(units), left_step, right_step)
                _run(library.run, *pointers, *steps, *self.order)

            if self.queue is None:
                work()
            else:
                self.queue.append(work)

        return launch

    def load_text(self, text: str) -> Callable[..., None]:
        library = compiled_text(text, self.all_threads)

        def launch(name: str, blocks: int, threads: int, shared: int, arguments: list[Any]) -> None:
            values = [_argument(one) for one in arguments]
            with ONE_AT_A_TIME:
                getattr(library, name)(*values)

        return launch

    def upload(self, values: Any) -> Any:
        return np.array(values, order="C").view(DeviceArray)

    def download(self, values: Any) -> Any:
        return np.array(values.view(np.ndarray))

    def deliver(self, values: Any, beside: Any) -> Any:
        assert isinstance(values, DeviceArray)
        return values if isinstance(beside, DeviceArray) else self.download(values)

    @contextmanager
    def streams(self, count: int) -> Iterator[list[_Stream]]:
        """Launches are queued until the caller waits; then streams run one launch each in turn, the last one first."""
        self.queues = [deque() for _ in range(count)]
        try:
            yield [_Stream(self, queue) for queue in self.queues]
        finally:
            while any(self.queues):
                self._step()

    def mark(self) -> Callable[[], None]:
        if self.queue is None:
            return lambda: None
        queue, done = self.queue, threading.Event()
        queue.append(done.set)

        def wait() -> None:
            while not done.is_set():
                self._step()

        return wait

    def _step(self) -> None:
        for queue in reversed(self.queues):
            if queue:
                queue.popleft()()


class _Stream:
    """A stream: launches within its context go to its queue."""

    def __init__(self, machine: HostMachine, queue: deque[Callable[[], None]]) -> None:
        self.machine, self.queue = machine, queue

    def __enter__(self) -> None:
        self.machine.queue = self.queue

    def __exit__(self, *error: object) -> None:
        self.machine.queue = None


def emulate(monkeypatch: Any, machine: type[HostMachine] = HostMachine) -> None:
    """Make the backend find one GPU, which is the host."""
    monkeypatch.setattr(cuda, "count_gpus", lambda: 1)
    monkeypatch.setattr(cuda, "CudaMachine", machine)


def _run(kernel: Any, *arguments: Any) -> None:
    kernel.restype = ctypes.c_char_p
    with ONE_AT_A_TIME:
        failure = kernel(*arguments)
    if failure is not None:
        raise EmulationError(failure.decode())


def _argument(value: Any) -> Any:
    """A kernel's argument for ctypes: a pointer, or a number of the type that the backend gave it."""
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, np.ndarray) and value.ndim:
        assert isinstance(value, DeviceArray)
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    kinds = {np.int64: ctypes.c_longlong, np.float64: ctypes.c_double}
    return kinds.get(type(value), ctypes.c_int)(value)


@functools.cache
def compiled_text(text: str, all_threads: bool) -> ctypes.CDLL:
    """Kernels that a backend has written, as functions of the host; optimising takes longer than running them."""
    runs: list[str] = []

    def in_threads(match: re.Match[str]) -> str:
        threads, name, parameters = match.groups()
        arguments = ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        body = f"emulation::run({threads}, [=] {{ {name}_body({arguments}); }});"
        runs.append(f'extern "C" void {name}({parameters}) {{ {body} }}')
        return f"void {name}_body({parameters})"

    kernel = r'extern "C" __global__ void __launch_bounds__\((\d+), \d+\) (\w+)\(\s*([^)]*)\)'
    text = re.sub(kernel, in_threads, text)
    spaces = re.findall(r"^namespace (segment\d+)", text, re.MULTILINE)
    using = [f"using namespace {space};" for space in spaces]
    return _library("\n".join([text, *using, *runs]), "nodes.hpp", ["-O0", *["-DALL_THREADS"] * all_threads])


@functools.cache
def compiled(file: str, defines: tuple[str, ...], mistake: tuple[str, str] | None = None) -> ctypes.CDLL:
    """A shared library of one of the `.cpp` files here."""
    chosen = [f"#define {name} {value}" for name, value in (one[2:].split("=", 1) for one in defines)]
    text = "\n".join([*chosen, f'#include "{file}"'])
    return _library(text, "emulation.hpp", ["-O1", "-DHOST_EMULATION"], mistake)


def _library(text: str, header: str, options: list[str], mistake: tuple[str, str] | None = None) -> ctypes.CDLL:
    """A library of a header and a text, kept on disk until any source or option changes."""
    files = [*HERE.glob("*.?pp"), *SOURCES.glob("*.cu*")]
    everything = "".join([*(path.read_text() for path in sorted(files)), text, *options, str(mistake)])
    folder = _folder()
    library = folder / f"{hashlib.sha256(everything.encode()).hexdigest()[:24]}.so"
    if not library.exists():
        # Renamed at the end, since another process may make the same library.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if mistake is not None:
                _write_stage(mistake, Path(scratch))
            file, beside = Path(scratch) / "library.cpp", Path(scratch) / library.name
            file.write_text(text)
            ready = _precompiled(header, options)
            folders = [f"-I{place}" for place in (scratch, ready.parent, SOURCES, HERE)]
            _compile([*options, "-include", str(ready), *folders, str(file), "-shared", "-o", str(beside)])
            beside.rename(library)
    return ctypes.CDLL(str(library))


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / "tangentless-cuda-host"
    folder.mkdir(exist_ok=True)
    return folder


def _precompiled(header: str, options: list[str]) -> Path:
    """A header of this folder, precompiled: to parse it again would take half the time of most libraries."""
    texts = [one.read_text() for one in sorted(HERE.glob("*.hpp"))]  # a header may include others
    folder = _folder() / hashlib.sha256("".join([*texts, header, *options]).encode()).hexdigest()[:24]
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
            made = Path(scratch) / "made"
            shutil.copytree(HERE, made, ignore=lambda _, names: [one for one in names if not one.endswith(".hpp")])
            copy = made / header
            _compile([*options, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"])
            with contextlib.suppress(OSError):  # another process has made it meanwhile
                made.rename(folder)
    return folder / header


def _compile(arguments: list[str]) -> None:
    assert COMPILER is not None
    options = ["-std=c++20", "-fPIC", "-w", "-pthread", "-U_FORTIFY_SOURCE"]
    subprocess.run([COMPILER, *options, *arguments], check=True)


def _write_stage(mistake: tuple[str, str], folder: Path) -> None:
    """Write stage.cu, headers included, with a mistake; includes find it before the original."""
    right, wrong = mistake
    text = source("stage.cu")
    assert text.count(right) == 1, f"the mistake must have exactly one place in stage.cu and its headers: {right}"
    (folder / "stage.cu").write_text(text.replace(right, wrong))
