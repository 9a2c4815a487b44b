"""Features of patches in model files: as steps of a pipeline, and within the kernel of an estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..classical import Linear
from ..errors import InputError
from ..expression import Makers
from ..files import Arrays
from ..kernel import Kernel
from ..preprocessing import ZCA, saving
from ..preprocessing.whitening import LowRank
from .base import PatchFeatures
from .kernel_network import ConvolutionalKernelNetwork
from .kernels import FeatureKernel
from .random_patches import RandomPatchFeatures

AnyStep = saving.Step | PatchFeatures
Read = Callable[[str], NDArray[Any]]
ReadWith = Callable[[str, NDArray[Any] | None], NDArray[Any]]
_KINDS: dict[str, type[PatchFeatures]] = {
    kind.__name__: kind for kind in (RandomPatchFeatures, ConvolutionalKernelNetwork)
}


def describe_step(step: AnyStep) -> tuple[dict[str, Any], Arrays]:
    """The parameters of a fitted transformer as JSON values, and its arrays by name."""
    return step.describe() if isinstance(step, PatchFeatures) else saving.describe_step(step)


def restore_steps(
    texts: list[Any], read: ReadWith, shape: tuple[int, ...], inputs: NDArray[Any] | None, backend: Any
) -> tuple[list[AnyStep], NDArray[Any] | None]:
    """The transformers before an estimator that takes rows of `shape`, and the inputs transformed by them.

    `read(name, rows)` returns an array of the file; names end with the place of the step. `rows` are the inputs
    transformed by the steps before, which stand for images that the file does not repeat.
    """
    steps: list[AnyStep] = []
    first = next((text.get("shape") for text in texts if _is_features(text)), shape)
    now = tuple(first) if isinstance(first, list) else shape
    for place, text in enumerate(texts):
        own = _numbered(read, place, inputs)
        step = _restore(text, own) if _is_features(text) else saving.restore_step(text, own, now)
        steps.append(step)
        if isinstance(step, PatchFeatures):
            if step.shape_ != now:
                raise InputError(f"features of images of shape {step.shape_} cannot take rows of shape {now}")
            step.set_params(backend=backend)
            now, inputs = (step._n_features_out,), None
        else:
            inputs = through(step, inputs)
    if now != shape:
        raise InputError(f"the steps return rows of shape {now}, but the estimator takes rows of shape {shape}")
    return steps, inputs


def _numbered(read: ReadWith, place: int, inputs: NDArray[Any] | None) -> Read:
    """Reads the arrays of the step at a place."""
    return lambda name: read(f"{name}{place}", inputs)


def through(step: AnyStep, inputs: NDArray[Any] | None) -> NDArray[Any] | None:
    """The inputs transformed by a step; without inputs, the images that a `LowRank` whitening holds.

    None if there are neither, and for features, which would take long.
    """
    if isinstance(step, ZCA) and inputs is None and isinstance(step.form_, LowRank):
        inputs = step.form_.images
    if inputs is None or isinstance(step, PatchFeatures):
        return None
    return np.asarray(step.transform(inputs))


def features_of(kernel: Kernel | None) -> list[PatchFeatures]:
    """The different features that a kernel is made of, in order."""
    leaves = [] if kernel is None else [leaf.core for leaf in kernel.leaves()]
    return list({repr(leaf): leaf.features for leaf in leaves if isinstance(leaf, FeatureKernel)}.values())


def describe_features(kernel: Kernel | None) -> tuple[list[Any], Arrays]:
    """The features of a kernel as JSON values, and their arrays by name."""
    described = [features.describe() for features in features_of(kernel)]
    arrays = {f"features{place}-{name}": one for place, (_, own) in enumerate(described) for name, one in own.items()}
    return [text for text, _ in described], arrays


def restore_features(texts: Any, read: Read) -> list[PatchFeatures]:
    """The features that `describe_features` described."""
    if not isinstance(texts, list) or not all(map(_is_features, texts)):
        raise InputError("its header has no valid 'features'")
    return [
        _restore(text, lambda name, place=place: read(f"features{place}-{name}"))  # type: ignore[misc]
        for place, text in enumerate(texts)
    ]


def kernel_makers(features: Iterable[PatchFeatures]) -> Makers:
    """The constructors that the parser of kernel texts needs for kernels of these features."""
    known = {(type(one).__name__, one.digest()): one for one in features}

    def make(kind: str, digest: str, of: Any = None) -> Kernel:
        if (kind, digest) not in known:
            raise ValueError(f"there are no features {kind} {digest} here")
        return FeatureKernel(known[kind, digest], Linear() if of is None else of)

    return {"features": make}


def _is_features(text: Any) -> bool:
    return isinstance(text, dict) and text.get("kind") in list(_KINDS)  # `in list`: the value may not be hashable


def _restore(text: dict[str, Any], read: Read) -> PatchFeatures:
    return _KINDS[text["kind"]].restore(text, read)
