"""Adversarial examples: images changed by at most eps, so that a kernel classifier errs.

The loss is the margin: the largest value of a wrong class minus the value of the right class. Its gradient by pixels is
one `Kernel.vjp` against the training images. FGSM takes one step of length eps. PGD takes many small steps from a
random start, and projects back after each. Distances are in the units of the images: for pixels in [0, 1],
eps = 8 / 255 is eight grey levels.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, ParameterError
from .estimators import KernelRidgeClassifier
from .inputs import check_images, to_numpy
from .layers import is_real, is_whole

Array = NDArray[np.float64]
NORMS = ("linf", "l2")
Range = tuple[float, float] | None


def fgsm(model: Any, X: Any, y: Any, eps: float, *, norm: str = "linf", clip: Range = (0.0, 1.0)) -> Array:
    """Images moved by eps along the signs ("linf") or the direction ("l2") of the gradient of the margin.

    Images that the model already misclassifies are not changed.
    """
    attack = _Attack.of(model, X, y, eps, norm, clip)
    return attack.run(attack.images, eps, steps=1)


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

    An image is no longer moved once the model misclassifies it, so most steps concern few images.
    """
    attack = _Attack.of(model, X, y, eps, norm, clip)
    if not is_whole(steps) or steps < 1:
        raise ParameterError(f"an attack takes at least one step, not {steps!r}")
    size = 2.5 * eps / steps if step_size is None else step_size
    if not is_real(size) or not 0 < size < math.inf:
        raise ParameterError(f"a step has a finite size above 0, not {step_size!r}")
    if not is_whole(seed) or seed < 0:
        raise ParameterError(f"seed is a whole number of at least 0, not {seed!r}")
    noise = np.random.default_rng(seed).uniform(-1.0, 1.0, attack.images.shape)
    return attack.run(attack.perturb(slice(None), eps * noise), size, steps)


def robust_accuracies(
    model: Any,
    X: Any,
    y: Any,
    eps: float | Iterable[float] = (2 / 255, 8 / 255),
    *,
    norm: str = "linf",
    clip: Range = (0.0, 1.0),
    **options: Any,
) -> dict[str, float]:
    """The accuracy on X, and on adversarial images of both attacks for every eps; `options` are more of `pgd`."""
    sizes: list[Any] = list(eps) if isinstance(eps, Iterable) and not _is_number(eps) else [eps]
    for size in sizes:
        _Attack.of(model, X, y, size, norm, clip)  # all are checked before any is computed
    found = {"clean": float(model.score(X, y))}
    for size in sizes:
        found[f"fgsm {size:.4g}"] = float(model.score(fgsm(model, X, y, size, norm=norm, clip=clip), y))
        found[f"pgd {size:.4g}"] = float(model.score(pgd(model, X, y, size, norm=norm, clip=clip, **options), y))
    return found


@dataclass(frozen=True, eq=False)
class _Attack:
    """A model, images, their class codes, and how far images may move: by eps in a norm, within the range `clip`."""

    model: KernelRidgeClassifier
    images: Array
    codes: NDArray[np.intp]
    eps: float
    norm: str
    clip: Range

    @classmethod
    def of(cls, model: Any, X: Any, y: Any, eps: float, norm: str, clip: Range) -> _Attack:
        if not isinstance(model, KernelRidgeClassifier) or getattr(model, "kernel_", None) is None:
            raise ParameterError(
                "an attack needs a fitted KernelRidgeClassifier of images; for a pipeline, give its last step and "
                "preprocessed images"
            )
        if norm not in NORMS:
            raise ParameterError(f"norm is 'linf' or 'l2', not {norm!r}")
        if not is_real(eps) or not 0 < eps < math.inf:
            raise ParameterError(f"eps is a finite number above 0, not {eps!r}")
        if clip is not None and not _is_range(clip):
            raise ParameterError(f"clip is None or the range of pixels, two numbers such as (0.0, 1.0), not {clip!r}")
        images = check_images(to_numpy(X)[0], "X").astype(np.float64)
        labels = np.asarray(to_numpy(y)[0])
        if labels.shape != (len(images),):
            raise InputError(f"y has shape {labels.shape}, but X has {len(images)} images; give one label per image")
        unknown = labels[~np.isin(labels, model.classes_)]
        if len(unknown):
            raise InputError(f"y holds {unknown[0]!r}, a label that the model was not fitted to; leave such images out")
        if clip is not None and (images.min() < clip[0] or images.max() > clip[1]):
            raise InputError(f"X has values outside clip={clip}; rescale X, or give the range of its values as clip")
        return cls(model, images, np.searchsorted(model.classes_, labels), eps, norm, clip)

    def run(self, start: Array, size: float, steps: int) -> Array:
        """Ascend the margin from a start; each step moves the images that are still classified correctly."""
        moved, right = start.copy(), np.arange(len(start))
        for _ in range(steps):
            values = self.model._values(moved[right])
            still = values.argmax(axis=1) == self.codes[right]
            right = right[still]
            if not len(right):
                break
            gradient = self._gradient(moved[right], right, values[still])
            direction = np.sign(gradient) if self.norm == "linf" else gradient / _lengths(gradient)
            moved[right] = self.perturb(right, moved[right] + size * direction - self.images[right])
        return moved

    def perturb(self, rows: Any, change: Array) -> Array:
        """The images of some rows plus a change, which is projected to the allowed range."""
        if self.norm == "linf":
            change = np.clip(change, -self.eps, self.eps)
        else:
            change = change * np.minimum(1.0, self.eps / _lengths(change))
        images: Array = self.images[rows] + change
        return images if self.clip is None else np.clip(images, *self.clip)

    def _gradient(self, images: Array, rows: NDArray[np.intp], values: Array) -> Array:
        """The gradient of the margin by pixels, for images at which the model has these values."""
        places, codes = np.arange(len(rows)), self.codes[rows]
        others = values.copy()
        others[places, codes] = -np.inf
        weights = np.zeros_like(values)
        weights[places, others.argmax(axis=1)] = 1.0
        weights[places, codes] = -1.0
        return self.model.value_gradient(images, weights)


def _lengths(values: Array) -> Array:
    """The Euclidean norm of every image, of shape (N, 1, ..., 1), with 1 in place of 0."""
    flat = np.linalg.norm(values.reshape(len(values), -1), axis=1)
    return np.where(flat > 0, flat, 1.0).reshape(-1, *(1,) * (values.ndim - 1))


def _is_number(eps: Any) -> bool:
    return isinstance(eps, np.ndarray) and eps.ndim == 0  # it counts as iterable


def _is_range(clip: Any) -> bool:
    ends = list(clip) if isinstance(clip, tuple | list | np.ndarray) else []
    return len(ends) == 2 and all(map(is_real, ends)) and bool(ends[0] < ends[1])
