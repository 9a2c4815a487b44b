"""Where and how everything is computed: one `Device` serves kernels, solvers and whitening.

A public function makes a Device from its arguments `backend`, `precision` and `n_jobs`, and passes it on whole. A
Device is lazy: backends are imported on first use, so a run that finds all its results on disk can hold
`Device("cuda")` on a machine without a GPU.
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
    """The name of a backend, the precision of its arithmetic, and the number of its threads (None: all cores).

    The name "auto" is replaced by that of the fastest backend that can run here.

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
    given: Backend | None = field(default=None, repr=False)  # a backend object of the user, in place of a name

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float64"):
            raise ParameterError(f"precision is 'float32' or 'float64', not {self.precision!r}")
        if self.given is None and self.name not in NAMES:
            raise BackendError(f"unknown backend {self.name!r}; there are {', '.join(NAMES)}")
        if self.name == "auto":
            object.__setattr__(self, "name", choose_backend()[0])

    @classmethod
    def of(cls, backend: Any, precision: Precision = "float32", n_jobs: int | None = None) -> Device:
        """The device for these arguments. A Device or a backend object has its own precision and threads.

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
        """This device with another precision; raises `ParameterError` if a backend object has a fixed one."""
        if getattr(self.given, "precision", precision) != precision:
            raise ParameterError(
                f"{self.given!r} computes in {self.precision}, but {precision} is needed; give a backend by name"
            )
        return self if self.precision == precision else replace(self, precision=precision)

    @functools.cached_property
    def backend(self) -> Backend:
        """The backend that computes kernels, created on first use."""
        if self.given is not None:
            return self.given
        made: Backend = importlib.import_module(".backends", __package__).create(self)
        return made

    @functools.cached_property
    def algebra(self) -> Algebra:
        """The linear algebra of solvers: CuPy for "cuda", LAPACK for all other names."""
        from .algebra import CpuAlgebra, GpuAlgebra

        return GpuAlgebra() if self.name == "cuda" else CpuAlgebra()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields only: a copy, such as one in another process, creates its own backend."""
        return Device, (self.name, self.precision, self.n_jobs, self.given)


@functools.cache
def choose_backend() -> tuple[str, str]:
    """The name of the fastest backend that can run here, and the reason in words; logged on the first call."""
    name, reason = "cpu", "CuPy is not installed"
    if importlib.util.find_spec("cupy") is not None:
        try:
            importlib.import_module(".backends.cuda", __package__).check_gpus()
            name, reason = "cuda", "there is a GPU"
        except BackendError as error:
            reason = str(error)
    logger.info("backend 'auto' chose %r: %s", name, reason)
    return name, reason
