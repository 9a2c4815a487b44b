"""Where and how everything is computed: one `Device` serves kernels, solvers and whitening.

It is made once, where arguments come in, and passed whole from there on. It is lazy: what computes is imported on first
use, so a run that finds all its results on disk can hold `Device("cuda")` on a machine without a GPU.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from .errors import BackendError, ParameterError

if TYPE_CHECKING:
    from .algebra import Algebra
    from .backends import Backend

Precision = Literal["float32", "float64"]
NAMES = ("auto", "reference", "cpu", "cuda")
logger = logging.getLogger("tangentless")


@dataclass(frozen=True)
class Device:
    """A processor by the name of its backend, the precision of its arithmetic, and its threads (None for all cores).

    "auto" becomes the name of the fastest backend that can run here.

    >>> Device("cuda", precision="float64")
    Device(name='cuda', precision='float64', n_jobs=None)
    >>> Device("gpu")
    Traceback (most recent call last):
        ...
    tangentless.errors.BackendError: unknown backend 'gpu'; there are auto, reference, cpu, cuda
    """

    name: str
    precision: Precision = "float32"
    n_jobs: int | None = None
    given: Backend | None = field(default=None, repr=False)  # a backend object that came in place of a name

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float64"):
            raise ParameterError(f"precision is 'float32' or 'float64', not {self.precision!r}")
        if self.given is None and self.name not in NAMES:
            raise BackendError(f"unknown backend {self.name!r}; there are {', '.join(NAMES)}")
        if self.name == "auto":
            object.__setattr__(self, "name", choose_backend()[0])

    @classmethod
    def of(cls, backend: Any, precision: Precision = "float32", n_jobs: int | None = None) -> Device:
        """The device that arguments ask for. A Device or a backend object says precision and threads itself.

        >>> Device.of("reference") == Device.of(Device("reference"))
        True
        """
        if isinstance(backend, Device):
            return backend
        if isinstance(backend, str):
            return cls(backend, precision, n_jobs)
        if not hasattr(backend, "prepare"):
            raise BackendError(
                f"a backend is a name, {', '.join(NAMES)}, a Device or a backend object, not {backend!r}"
            )
        own = getattr(backend, "precision", precision), getattr(backend, "n_jobs", n_jobs)
        return cls(backend.name, *own, backend)

    def at(self, precision: Precision) -> Device:
        """This device, computing in some precision."""
        if getattr(self.given, "precision", precision) != precision:
            raise ParameterError(
                f"{self.given!r} computes in {self.precision}, and {precision} is needed; give a backend by name"
            )
        return self if self.precision == precision else replace(self, precision=precision)

    @functools.cached_property
    def backend(self) -> Backend:
        """What computes kernels here."""
        if self.given is not None:
            return self.given
        made: Backend = importlib.import_module(".backends", __package__).create(self)
        return made

    @functools.cached_property
    def algebra(self) -> Algebra:
        """What solves here: the GPU for "cuda", and LAPACK for all others."""
        from .algebra import CpuAlgebra, GpuAlgebra

        return GpuAlgebra() if self.name == "cuda" else CpuAlgebra()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also those in other processes, make their own backend."""
        return Device, (self.name, self.precision, self.n_jobs, self.given)


@functools.cache
def choose_backend() -> tuple[str, str]:
    """The name of the fastest backend that can run here, and why; logged the first time it is asked for."""
    name, reason = "cpu", "CuPy is not installed"
    if importlib.util.find_spec("cupy") is not None:
        try:
            importlib.import_module(".backends.cuda", __package__).check_gpus()
            name, reason = "cuda", "there is a GPU"
        except BackendError as error:
            reason = str(error)
    logger.info("backend 'auto' chose %r: %s", name, reason)
    return name, reason
