"""Kernels of this package for scikit-learn's Gaussian processes, on rows that are flattened images.

>>> import numpy as np
>>> from sklearn.gaussian_process import GaussianProcessRegressor
>>> from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel
>>> X = np.random.default_rng(0).standard_normal((20, 16))
>>> k = ConstantKernel() * sklearn_kernel("conv3 relu globalpool", (4, 4, 1), backend="reference")
>>> GaussianProcessRegressor(k + WhiteKernel(0.1, "fixed")).fit(X, X.mean(axis=1)).predict(X[:2]).shape
(2,)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel as TheirKernel

from .backends import AnyDevice, Precision
from .devices import Device
from .errors import InputError, ParameterError
from .inputs import to_host
from .kernel import AnyKernel, Kernel, kernel_of
from .layers import is_whole

Array = NDArray[np.float64]


class SklearnKernel(TheirKernel):  # type: ignore[misc]  # scikit-learn is untyped
    """A kernel of this package with the interface of `sklearn.gaussian_process.kernels.Kernel`.

    It has no hyperparameters. Scale and noise are kernels of scikit-learn, as in `ConstantKernel() * k`.
    """

    def __init__(
        self,
        kernel: AnyKernel = "myrtle5",
        shape: tuple[int, ...] | None = None,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float64",
        n_jobs: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.shape = shape
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """The kernel matrix, (N, N) or (N, M); with `eval_gradient` also an empty array of derivatives, (N, N, 0)."""
        if Y is not None and eval_gradient:
            raise ParameterError("eval_gradient works for k(X, X) only; leave Y out")
        made, device = self._kernel_and_device()
        K = to_host(made.on_device(device, self._images(X), None if Y is None else self._images(Y)))
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X: Any) -> Array:
        """k(x, x) of each row, (N,)."""
        made, device = self._kernel_and_device()
        return np.asarray(to_host(made.diag(self._images(X), backend=device)))

    def is_stationary(self) -> bool:
        """Whether the kernel depends only on differences of rows: always False."""
        return False

    def __repr__(self) -> str:
        return f"sklearn_kernel({self.kernel!r}, {self.shape!r})"

    def _kernel_and_device(self) -> tuple[Kernel, Device]:
        return kernel_of(self.kernel), Device.of(self.backend, self.precision, self.n_jobs)

    def _images(self, X: Any) -> NDArray[Any]:
        rows = np.asarray(X)
        if self.shape is None:
            return rows
        if not isinstance(self.shape, list | tuple) or not all(is_whole(side) and side > 0 for side in self.shape):
            raise ParameterError(f"shape is that of an image, such as (32, 32, 3), not {self.shape!r}")
        if rows.ndim != 2 or rows.shape[1] != math.prod(self.shape):
            raise InputError(f"rows of shape {rows.shape[1:]} are not flattened images of shape {self.shape}")
        return rows.reshape(len(rows), *self.shape)


def sklearn_kernel(
    kernel: AnyKernel = "myrtle5",
    shape: tuple[int, ...] | None = None,
    *,
    backend: str | AnyDevice = "auto",
    precision: Precision = "float64",
    n_jobs: int | None = None,
) -> SklearnKernel:
    """A kernel for `sklearn.gaussian_process.GaussianProcessRegressor` and the like, on flattened images.

    `shape` is that of an image, (H, W, C); without it rows are vectors. The default precision is float64, since
    scikit-learn adds only 1e-10 to the diagonal.
    """
    return SklearnKernel(kernel, shape, backend, precision, n_jobs)
