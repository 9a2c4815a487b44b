"""Adversarial examples: images moved a little, within eps of what they were, so that a kernel classifier errs.

The loss is the margin, the largest value of a wrong class less that of the right one; its gradient by pixels is one
`Kernel.vjp` against the training images. FGSM takes one step as far as allowed, PGD many small ones from a random
start, projected back each time. Distances are in the units of the images: of pixels in [0, 1], eps = 8 / 255 is eight
levels.

>>> import tangentless as tl
>>> rng = np.random.default_rng(0)
>>> X = rng.random((30, 4, 4, 1))
>>> y = X.mean(axis=(1, 2, 3)) > 0.5
>>> model = tl.KernelRidgeClassifier("conv3 relu globalpool", backend="reference").fit(X, y)
>>> moved = fgsm(model, X, y, eps=0.1)
>>> bool(np.abs(moved - X).max() <= 0.1 + 1e-12), bool(model.score(moved, y) < model.score(X, y))
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, ParameterError
from .estimators import KernelRidgeClassifier
from .inputs import check_images
from .layers import is_whole

Array = NDArray[np.float64]
NORMS = ("linf", "l2")
Range = tuple[float, float] | None


def fgsm(model: Any, X: Any, y: Any, eps: float, *, norm: str = "linf", clip: Range = (0.0, 1.0)) -> Array:
    """Images moved by eps along the gradient of the margin: by its signs ("linf"), or its direction ("l2").

    An image that the model gets wrong stays as it is.
    """
    images, codes = _read(model, X, y, eps, norm, clip)
    return _attacked(model, images, codes, images, eps=eps, size=eps, steps=1, norm=norm, clip=clip)


def pgd(
    model: Any,
    X: Any,
    y: Any,
    eps: float,
    *,
    norm: str = "linf",
    steps: int = 10,
    step_size: float | None = None,
    clip: Range = (0.0, 1.0),
    seed: int = 0,
) -> Array:
    """Images moved by many steps of `step_size`, 2.5 eps / steps by default, from a random point within eps.

    An image that the model gets wrong moves no further, so that most steps are of few images.
    """
    images, codes = _read(model, X, y, eps, norm, clip)
    if not is_whole(steps) or steps < 1:
        raise ParameterError(f"an attack takes at least one step, not {steps!r}")
    size = 2.5 * eps / steps if step_size is None else step_size
    if not 0 < size < math.inf:
        raise ParameterError(f"a step has a finite size above 0, not {step_size!r}")
    noise = np.random.default_rng(seed).uniform(-1.0, 1.0, images.shape)
    start = _clipped(images + _projected(eps * noise, eps, norm), clip)
    return _attacked(model, images, codes, start, eps=eps, size=size, steps=steps, norm=norm, clip=clip)


def robust_accuracies(
    model: Any, X: Any, y: Any, eps: Iterable[float] = (2 / 255, 8 / 255), **options: Any
) -> dict[str, float]:
    """The accuracy on images as they are, and on those of both attacks in the maximum norm for every eps."""
    found = {"clean": float(model.score(X, y))}
    for size in eps:
        found[f"fgsm {size:.4g}"] = float(model.score(fgsm(model, X, y, size), y))
        found[f"pgd {size:.4g}"] = float(model.score(pgd(model, X, y, size, **options), y))
    return found


def _read(model: Any, X: Any, y: Any, eps: float, norm: str, clip: Range) -> tuple[Array, NDArray[np.intp]]:
    if not isinstance(model, KernelRidgeClassifier) or getattr(model, "kernel_", None) is None:
        raise ParameterError(
            "attacks are on a fitted KernelRidgeClassifier of images; of a pipeline, attack its last step with "
            "images as they are after preprocessing"
        )
    if norm not in NORMS:
        raise ParameterError(f"distances are 'linf' or 'l2', not {norm!r}")
    if not 0 < eps < math.inf:
        raise ParameterError(f"eps is a finite number above 0, not {eps!r}")
    images = check_images(np.asarray(X), "X").astype(np.float64)
    labels = np.asarray(y)
    if labels.shape != (len(images),):
        raise InputError(f"y has shape {labels.shape}, but X {len(images)} images: y holds a label for each")
    if not np.isin(labels, model.classes_).all():
        raise InputError("y holds a label that the model does not know")
    if clip is not None and (images.min() < clip[0] or images.max() > clip[1]):
        raise InputError(f"X reaches beyond {clip}, where attacks are to stay; rescale it, or give clip")
    return images, np.searchsorted(model.classes_, labels)


def _attacked(
    model: Any,
    images: Array,
    codes: NDArray[np.intp],
    start: Array,
    *,
    eps: float,
    size: float,
    steps: int,
    norm: str,
    clip: Range,
) -> Array:
    """Steps up the margin from a start, each of the images that are still told right."""
    moved, right = start.copy(), np.arange(len(images))
    for _ in range(steps):
        values = model._values(moved[right])
        still = values.argmax(axis=1) == codes[right]
        right = right[still]
        if not len(right):
            break
        gradient = _gradient(model, moved[right], codes[right], values[still])
        change = moved[right] + size * _direction(gradient, norm) - images[right]
        moved[right] = _clipped(images[right] + _projected(change, eps, norm), clip)
    return moved


def _gradient(model: Any, images: Array, codes: NDArray[np.intp], values: Array) -> Array:
    """That of the margin by pixels, where the model has these values."""
    rows = np.arange(len(images))
    others = values.copy()
    others[rows, codes] = -np.inf
    weights = np.zeros_like(values)
    weights[rows, others.argmax(axis=1)] = 1.0
    weights[rows, codes] = -1.0
    return np.asarray(model.value_gradient(images, weights))


def _direction(gradient: Array, norm: str) -> Array:
    if norm == "linf":
        return np.sign(gradient)
    lengths = _lengths(gradient)
    return gradient / np.where(lengths > 0, lengths, 1.0)


def _projected(change: Array, eps: float, norm: str) -> Array:
    if norm == "linf":
        return np.clip(change, -eps, eps)
    lengths = _lengths(change)
    return change * np.minimum(1.0, eps / np.where(lengths > 0, lengths, 1.0))


def _lengths(values: Array) -> Array:
    """Of every image, in the shape of one pixel."""
    flat = np.linalg.norm(values.reshape(len(values), -1), axis=1)
    return np.asarray(flat).reshape(-1, *(1,) * (values.ndim - 1))


def _clipped(images: Array, clip: Range) -> Array:
    return images if clip is None else np.clip(images, *clip)
