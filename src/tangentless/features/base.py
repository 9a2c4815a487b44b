"""The base class of features of patches: transformers that take images to rows, in chunks and on any device."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..algebra import Algebra
from ..chunks import spans
from ..devices import Device
from ..errors import InputError, ParameterError
from ..files import Arrays
from ..inputs import check_switch
from ..layers import is_whole
from ..preprocessing.parameters import NOT_SAVED, to_json
from ..preprocessing.rows import read_rows, set_shape, whole_or_not
from ..progress import shown

if TYPE_CHECKING:
    from ..classical.vectors import VectorKernel
    from .kernels import FeatureKernel

NUMBERS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}  # intermediate numbers in a chunk: fit a CPU's cache, or fill a GPU
Map = Callable[[Any], Any]
_OF_THE_CALL = NOT_SAVED | {"precision"}  # parameters that may be changed after the fit: how features are computed


class PatchFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class. Subclasses fit arrays to images on the host in `_learn`, and compute features in `_map`."""

    _fitted: dict[str, Any]  # the parameters of the fit

    def __init__(self, mirrors: bool, random_state: Any, backend: str | Device, precision: Any, verbose: bool) -> None:
        self.mirrors = mirrors
        self.random_state = random_state
        self.backend = backend
        self.precision = precision
        self.verbose = verbose

    @whole_or_not
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the filters from images X; y is ignored."""
        self.check_parameters()
        rows = read_rows(self, X)
        set_shape(self, rows.shape[1:])
        self._check_shape(rows.shape)
        device = self._device()
        with device.algebra.working(), shown(self.verbose, "learning filters"):
            self._learn(rows, np.random.default_rng(_seed(self.random_state)), device.algebra)
        self._keep_parameters()
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Features, (N, numbers), in the dtype named by `precision`."""
        check_is_fitted(self)
        rows, device = read_rows(self, X, self.shape_), self._device()
        found = np.empty((len(rows), self._n_features_out), device.precision)
        with shown(self.verbose, "features", "images") as progress:
            for part, some in self.compute(device, rows):
                found[part] = device.algebra.download(some)
                progress(part.stop, len(rows))
        return found

    def compute(self, device: Device, images: Any) -> Any:
        """Yield (slice of the images, their features as an array of the device), chunk by chunk."""
        on, fitted = device.algebra, self._as_fitted()
        features = fitted._map(on, np.dtype(device.precision))
        with on.working():
            for part in spans(len(images), max(1, NUMBERS_AT_ONCE[on.name] // fitted._widest())):
                chunk = on.upload(np.asarray(images[part]) if on.name == "cpu" else images[part])
                chunk = chunk.astype(device.precision)
                found = features(chunk)
                if fitted.mirrors:
                    found = (found + features(on.xp.flip(chunk, axis=-2))) / 2
                yield part, found

    def kernel(self, of: VectorKernel | None = None) -> FeatureKernel:
        """The kernel of images that is the inner product of their features, or another kernel `of` these vectors."""
        from ..classical.vectors import Linear, VectorKernel
        from .kernels import FeatureKernel

        check_is_fitted(self)
        if of is not None and not isinstance(of, VectorKernel):
            raise ParameterError(f"a kernel of features is one of vectors, such as Gaussian(0.1), not {of!r}")
        return FeatureKernel(copy.copy(self), of or Linear())  # a copy, which later fits of the features do not change

    def describe(self) -> tuple[dict[str, Any], Arrays]:
        """Parameters and the shape of an image as JSON values, and the learnt arrays by name."""
        check_is_fitted(self)
        fitted = self._as_fitted()
        seed = int(fitted.random_state) if is_whole(fitted.random_state) else None
        text = {"kind": type(self).__name__, "shape": list(self.shape_), **to_json(fitted), "random_state": seed}
        return text, {name: getattr(self, name + "_") for name in fitted._array_shapes()}

    def digest(self) -> str:
        """A hash of the parameters and the learnt arrays: equal for equal features."""
        text, arrays = self.describe()
        text.pop("precision")  # kernels compute in the precision of the device instead
        found = hashlib.sha256(json.dumps(text, sort_keys=True).encode())
        for name in sorted(arrays):
            found.update(np.ascontiguousarray(arrays[name]).tobytes())
        return found.hexdigest()[:16]

    @classmethod
    def restore(cls, text: dict[str, Any], array: Callable[[str], NDArray[Any]]) -> Self:
        """The fitted features that `describe` described; `array` returns arrays by name."""
        try:
            entries = dict(text)
            shape = tuple(entries.pop("shape"))
            if entries.pop("kind") != cls.__name__ or not all(is_whole(side) and side > 0 for side in shape):
                raise KeyError("kind")
            made = cls(**{name: _restored(own) for name, own in entries.items()})
            if made.get_params().keys() - entries.keys() - NOT_SAVED:
                raise KeyError("parameters")
            made.check_parameters()
        except (TypeError, KeyError, AttributeError, ParameterError):
            raise InputError(f"its header has no valid {cls.__name__}") from None
        set_shape(made, shape)
        made._check_shape((1 << 40, *shape))  # enough images for any number of filters
        for name, expected in made._array_shapes().items():
            found = array(name)
            if found.shape != expected or found.dtype.kind != "f" or not np.isfinite(found).all():
                raise InputError(f"the array {name!r} of the features must be finite floats of shape {expected}")
            setattr(made, name + "_", found)
        made._keep_parameters()
        return made

    def check_parameters(self) -> None:
        """Refuse parameters outside their ranges; `fit` does so too."""
        check_switch("mirrors", self.mirrors)
        self._device()

    @abstractmethod
    def _learn(self, images: NDArray[Any], random: np.random.Generator, on: Algebra) -> None:
        """Set the arrays of `_array_shapes`, each as an attribute `name_`."""

    @abstractmethod
    def _map(self, on: Algebra, dtype: np.dtype[Any]) -> Map:
        """A function from images on a device, in `dtype`, to their features (N, numbers)."""

    @abstractmethod
    def _array_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the learnt arrays, by name without the final underscore."""

    @abstractmethod
    def _widest(self) -> int:
        """The size of the largest intermediate array, in numbers per image: it limits the chunks."""

    @abstractmethod
    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse images (N, *grid, channels) that do not fit the parameters, and set `_n_features_out`."""

    def _keep_parameters(self) -> None:
        given = self.get_params(deep=False)
        self._fitted = {name: given[name] for name in given.keys() - _OF_THE_CALL}

    def _as_fitted(self) -> Self:
        """The transformer with the parameters of the fit, which may have been changed since."""
        fitted = copy.copy(self)
        fitted.__dict__.update(self._fitted)
        return fitted

    def _device(self) -> Device:
        return Device.of(self.backend, self.precision)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # features have the precision of the arithmetic
        return tags


def check_patch(shape: tuple[int, ...], patch: int, layer: str = "") -> None:
    """Refuse a patch that is larger than the images (N, *grid, channels), or than the maps of `layer`."""
    grid = shape[1:-1]
    if grid and patch > min(grid):
        size = "×".join(map(str, grid))
        raise InputError(f"patch={patch} is larger than {layer or 'the images'}, which are {size}; use a smaller patch")


def check_filters(filters: int, images: int, positions: tuple[int, ...]) -> None:
    """Refuse more filters than there are patches: one at each of `positions` (a grid) in each image."""
    there = images * math.prod(positions)
    if there < filters:
        raise InputError(
            f"{filters:,} filters are more than the {there:,} patches of {images:,} images; "
            "ask for fewer filters, or fit to more images"
        )


def _seed(random_state: Any) -> Any:
    """A seed for NumPy from a scikit-learn `random_state`: a number, None or a generator."""
    try:
        return random_state if random_state is None else int(check_random_state(random_state).randint(2**31))
    except ValueError:
        raise ParameterError(
            f"random_state is a whole number from 0, None or a generator, not {random_state!r}"
        ) from None


def _restored(value: Any) -> Any:
    return tuple(_restored(one) for one in value) if isinstance(value, list) else value
