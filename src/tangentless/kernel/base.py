"""The base classes of kernels: calls, the diagonal, gradients, and the algebra of sums, products and averages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..architecture import Architecture
from ..autograd import requires_gradient, with_backward
from ..backends import Advance, AnyDevice, Precision, Prepared
from ..devices import Device
from ..diagram import draw_beside
from ..errors import ParameterError
from ..gradients import Differentiable, take_pair
from ..inputs import check_images, device_of, take
from ..progress import Forecast
from ..symmetries import MIRROR, Symmetry
from ..tiles import Progress, counter, fill
from ..views import View

if TYPE_CHECKING:
    from .symmetrized import Symmetrized


class Kernel(Differentiable):
    """Base class of all kernels. A subclass defines `prepare`, `block` and `leaves`, and its gradient if it has one."""

    def __call__(
        self,
        X: Any,
        Z: Any = None,
        *,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """The kernel matrix, float64: (N, N) and exactly symmetric for X alone, (N, M) for X and Z.

        `precision` is that of the arithmetic up to the last pool. `progress(done, total)` counts pairs. The result is
        the kind of array that X is: NumPy, torch or CuPy. If X is on a GPU and the GPU computes, the result stays
        there. A `Device` as `backend` replaces `precision` and `n_jobs`. For tensors that require gradients, the result
        is differentiable by `torch.autograd`.
        """
        device = Device.of(backend, precision, n_jobs)
        if requires_gradient(X, Z):
            return with_backward(
                lambda x, z: self._matrix(device, x, z, progress, stay=False),
                lambda x, z, cotangent, wrt: self.vjp(x, z, cotangent, wrt=wrt, backend=device),
                X,
                Z,
            )
        return self._matrix(device, X, Z, progress, stay=False)

    def on_device(self, device: Device, X: Any, Z: Any = None, *, progress: Progress | None = None) -> Any:
        """As `k(X, Z)`, but a matrix that a GPU computes stays there, in CuPy, even if the images were not."""
        return self._matrix(device, X, Z, progress, stay=True)

    def _matrix(self, device: Device, X: Any, Z: Any, progress: Progress | None, *, stay: bool) -> Any:
        on_gpu = self._stays_on_gpu(device)
        images, others, restore, _ = take_pair(X, Z, on_gpu=on_gpu)
        if stay and on_gpu:
            images, others = (one if one is None else device.algebra.upload(one) for one in (images, others))
        with device_of(images):
            left = self.prepare(device, images)
            right = left if others is None else self.prepare(device, others)
            pairs = len(left) * (len(left) + 1) // 2 if others is None else len(left) * len(right)
            advance = counter(progress or Forecast(), pairs * sum(1 for _ in self.leaves()))
            matrix = fill(self, device, left, right, symmetric=others is None, advance=advance)
            return matrix if stay else restore(matrix)

    def diag(
        self,
        X: Any,
        *,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
    ) -> Any:
        """k(x, x) for every row of X, (N,)."""
        device = Device.of(backend, precision, n_jobs)
        images, restore = take(X, on_gpu=self._stays_on_gpu(device))
        check_images(images, "X")
        with device_of(images):
            return restore(self.prepare(device, images).diagonal)

    @abstractmethod
    def prepare(self, device: AnyDevice, images: Any) -> Prepared:
        """Do all the work that concerns each image alone."""

    @abstractmethod
    def block(
        self, device: AnyDevice, left: Any, right: Any, *, upper: bool = False, advance: Advance | None = None
    ) -> Any:
        """Entries between two prepared sets; with `upper`, those left of the diagonal are undefined."""

    @abstractmethod
    def leaves(self) -> Iterator[Elementary]:
        """The elementary kernels in this one, with repetition."""

    def _stays_on_gpu(self, device: Device) -> bool:
        """Whether images that are on a GPU can stay there for all of this kernel."""
        return device.name == "cuda" and all(leaf.on_gpu for leaf in self.leaves())

    def symmetrized(self, symmetry: str | Symmetry) -> Symmetrized:
        """The average of k over mirrored, turned or shifted copies of both images.

        >>> from tangentless import kernel
        >>> kernel("myrtle5").symmetrized("mirror shifts1")
        kernel('myrtle5').symmetrized('mirror shifts1')
        """
        from .symmetrized import Symmetrized

        return Symmetrized(self, Symmetry.parse(symmetry))

    def mirrored(self) -> Symmetrized:
        """The average over an image and its mirror: training on it equals training with flipped copies.

        >>> from tangentless import kernel
        >>> kernel("myrtle5").mirrored()
        kernel('myrtle5').mirrored()
        """
        return self.symmetrized(MIRROR)

    def seen(self, view: str | View) -> Kernel:
        """The kernel of a view of images: "gray", "edges" or "edges(full)" (see `tangentless.views`).

        >>> from tangentless import kernel
        >>> kernel("myrtle5").seen("edges").mirrored()
        kernel('myrtle5').seen('edges').mirrored()
        """
        from .viewed import seen

        return seen(self, View.parse(view))

    @property
    def invariant(self) -> bool:
        """Whether k does not change when both images are mirrored or both are turned by 90°, on any grid it accepts."""
        return False

    def _repr_html_(self) -> str:
        """The expression and a picture of each architecture in it, for notebooks."""
        shapes = (leaf.drawn for leaf in self.leaves() if leaf.drawn is not None)
        return draw_beside(repr(self), dict.fromkeys(shapes))

    def __add__(self, other: Kernel) -> Kernel:
        from .combined import Sum

        return Sum(self, other) if isinstance(other, Kernel) else cast(Kernel, NotImplemented)

    def __radd__(self, other: float) -> Kernel:
        """0 + k is k, so that `sum` adds kernels."""
        return self if isinstance(other, Real) and other == 0 else cast(Kernel, NotImplemented)

    def __mul__(self, other: Kernel | float) -> Kernel:
        from .combined import Product

        return Product(self, other) if isinstance(other, Kernel) else self.__rmul__(other)

    def __rmul__(self, factor: float) -> Kernel:
        from .combined import Scaled

        return Scaled(float(factor), self) if isinstance(factor, Real) else cast(Kernel, NotImplemented)

    def __truediv__(self, divisor: float) -> Kernel:
        """k divided by a positive number, as in a mean of kernels.

        >>> from tangentless import kernel
        >>> sum([kernel("myrtle5"), kernel("myrtle7")]) / 2
        0.5 * (kernel('myrtle5') + kernel('myrtle7'))
        """
        if not isinstance(divisor, Real):
            return cast(Kernel, NotImplemented)
        if not 0 < divisor < float("inf"):
            raise ParameterError(f"a kernel may be divided by a finite number above 0, not {divisor}")
        return self * (1 / float(divisor))


class Elementary(Kernel):
    """A kernel that is not built from others. It knows its own work and memory."""

    on_gpu: ClassVar[bool] = False  # whether the cuda backend computes it from images on a GPU

    @property
    def drawn(self) -> Architecture | None:
        """The architecture of which notebooks show a picture, if there is one."""
        return None

    @property
    def core(self) -> Elementary:
        """The kernel itself, without the view before it if it has one."""
        return self

    @property
    @abstractmethod
    def definition(self) -> str:
        """The complete definition in one line; a store is only continued by a kernel of the same definition."""

    @abstractmethod
    def elements(self, shape: tuple[int, ...]) -> int:
        """Numbers computed for a pair of images of a shape, the unit of work; raises if the shape does not fit."""

    @abstractmethod
    def image_numbers(self, shape: tuple[int, ...]) -> int:
        """The most numbers stored for a prepared image."""

    def leaves(self) -> Iterator[Elementary]:
        yield self
