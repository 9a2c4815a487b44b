"""Features of patches in the files of models: as steps of a pipeline, and within the kernel of an estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from ..classical import Linear
from ..errors import InputError
from ..expression import Makers
from ..files import Arrays
from ..kernel import Kernel
from ..preprocessing import saving
from .base import PatchFeatures
from .kernel_network import ConvolutionalKernelNetwork
from .kernels import FeatureKernel
from .random_patches import RandomPatchFeatures

AnyStep = saving.Step | PatchFeatures
Read = Callable[[str], NDArray[Any]]
_KINDS: dict[str, type[PatchFeatures]] = {
    kind.__name__: kind for kind in (RandomPatchFeatures, ConvolutionalKernelNetwork)
}


def describe_step(step: AnyStep) -> tuple[dict[str, Any], Arrays]:
    """The parameters of a fitted transformer as JSON has them, and its arrays."""
    return step.describe() if isinstance(step, PatchFeatures) else saving.describe_step(step)


def restore_steps(texts: Any, read: Read, shape: tuple[int, ...]) -> list[AnyStep]:
    """The transformers before an estimator that takes rows of a shape; `read` gives arrays by name and place."""
    steps: list[AnyStep] = []
    for place, text in reversed(list(enumerate(texts))):
        own: Read = lambda name, place=place: read(f"{name}{place}")  # type: ignore[misc]  # noqa: E731
        if _is_ours(text):
            made = _restore(text, own)
            if (made._n_features_out,) != shape:
                raise InputError(f"{made._n_features_out} features do not go with rows of shape {shape}")
            steps.append(made)
            shape = made.shape_  # of what comes before
        else:
            steps.append(saving.restore_step(text, own, shape))
    return steps[::-1]


def features_of(kernel: Kernel | None) -> list[PatchFeatures]:
    """The different features that a kernel is made of, in order."""
    leaves = [] if kernel is None else kernel.leaves()
    return list({repr(leaf): leaf.features for leaf in leaves if isinstance(leaf, FeatureKernel)}.values())


def describe_features(kernel: Kernel | None) -> tuple[list[Any], Arrays]:
    """The features of a kernel as JSON has them, and their arrays."""
    described = [features.describe() for features in features_of(kernel)]
    arrays = {f"features{place}-{name}": one for place, (_, own) in enumerate(described) for name, one in own.items()}
    return [text for text, _ in described], arrays


def restore_features(texts: Any, read: Read) -> list[PatchFeatures]:
    """What `describe_features` described."""
    if not isinstance(texts, list) or not all(map(_is_ours, texts)):
        raise InputError("its header has no valid 'features'")
    return [
        _restore(text, lambda name, place=place: read(f"features{place}-{name}"))  # type: ignore[misc]
        for place, text in enumerate(texts)
    ]


def kernel_makers(features: Iterable[PatchFeatures]) -> Makers:
    """What reads the text of kernels of these features."""
    known = {(type(one).__name__, one.digest()): one for one in features}

    def make(kind: str, digest: str, of: Any = None) -> Kernel:
        if (kind, digest) not in known:
            raise ValueError(f"there are no features {kind} {digest} here")
        return FeatureKernel(known[kind, digest], Linear() if of is None else of)

    return {"features": make}


def _is_ours(text: Any) -> bool:
    return isinstance(text, dict) and text.get("kind") in list(_KINDS)  # it may be of any type, hashable or not


def _restore(text: dict[str, Any], read: Read) -> PatchFeatures:
    return _KINDS[text["kind"]].restore(text, read)
