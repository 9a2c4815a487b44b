"""Choosing the most informative images without labels, by the posterior variance of a Gaussian process.

These are the images to label first, and good landmarks for `KernelRidgeClassifier(landmarks=...)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import AnyDevice, Precision
from .devices import Device
from .inputs import to_host
from .kernel import AnyKernel, Kernel, kernel_of
from .solve.factor import Factor
from .solve.pivoted import check_count, choose_rows

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

BLOCK = 64  # most images chosen at once, so that their kernel entries are computed together


def choose(
    kernel: AnyKernel,
    X: Any,
    n: int,
    *,
    block: int = BLOCK,
    backend: str | AnyDevice = "auto",
    precision: Precision = "float32",
    n_jobs: int | None = None,
) -> Indices:
    """The indices of the n most informative images of X, the best first.

    `kernel` is a name, an architecture or a kernel object. Images are chosen greedily, each by the largest variance
    given those before it, but `block` candidates at a time; `block=1` is slower and greedy in every step. The result is
    shorter than n if the other images have no variance left.

    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> choose("relu", X, 2, backend="reference")
    array([0, 2])
    """
    return choose_images(kernel_of(kernel), Device.of(backend, precision, n_jobs), X, n, block=block)


def choose_images(
    kernel: Kernel, device: Device, X: Any, n: int, *, block: int, known: tuple[Factor, Any] | None = None
) -> Indices:
    """As `choose`, given some images already: `known` is the factor of their kernel matrix, and these images."""
    check_count(n, len(X))

    def matrix(images: Any, others: Any) -> Array:
        return np.asarray(to_host(kernel.on_device(device, images, others)), dtype=np.float64)

    variances, explained = np.asarray(to_host(kernel.diag(X, backend=device)), dtype=np.float64), None
    if known is not None:
        factor, images = known
        explained = to_host(factor.whiten(kernel.on_device(device, X, images)))
        variances = np.maximum(variances - (explained**2).sum(axis=0), 0.0)

    def covariances(rows: Any, columns: Indices) -> Array:
        found = matrix(X[rows], X[columns])
        return found if explained is None else found - explained[:, rows].T @ explained[:, columns]

    return choose_rows(covariances, variances, n, block=block)
