"""Distillation: few images whose kernel ridge classifier is best on a whole training set.

Kernel inducing points (Nguyen et al., 2021): with S the few images, their targets Y_S and a batch of training images,
the loss is the mean squared error of K(batch, S) (K(S, S) + ridge)^-1 Y_S. Its gradient by K is a few small matrix
products, and `Kernel.vjp` takes it to the pixels of S. Adam does the rest. Targets are one-hot, less their mean.

Random numbers are those of a step, so a run that goes on from a checkpoint draws what it would have drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline

from .backends import AnyDevice, Precision
from .devices import Device
from .errors import InputError, ParameterError
from .estimators import KernelRidgeClassifier
from .files import checksum_of, load_archive, save_archive
from .fitting import AnyKernel
from .inputs import check_images, to_host, to_numpy
from .kernel import Kernel
from .kernel import kernel as kernel_of
from .layers import is_whole
from .solve import fit_scale

Array = NDArray[np.float64]
Watch = Callable[[int, int, float], None]  # steps done, steps in all, and the loss of the last one
FORMAT, VERSION = "tangentless distillation", 1
_NUMBERS = ("values", "means", "squares")
_KEPT_EVERY = 50  # steps between two checkpoints
_SHARE = 0.25  # of a GPU's free memory that training images may take: batches are then drawn there
_CALIBRATION = 2000  # training images at most that probabilities are fitted to


@dataclass(frozen=True)
class Settings:
    """How images are learned. `ridge` is relative: it is multiplied by the mean of the diagonal of K(S, S)."""

    images: int = 10
    steps: int = 500
    batch: int = 500
    rate: float = 0.02
    ridge: float = 1e-6
    start: str = "images"  # or "noise"
    learn_labels: bool = False
    flips: bool = False  # mirror every other training image of a batch
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("images", 1), ("steps", 1), ("batch", 1), ("seed", 0)):
            value = getattr(self, name)
            if not is_whole(value) or value < least:
                raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}")
        for name in ("rate", "ridge"):
            if not 0 < getattr(self, name) < math.inf:
                raise ParameterError(f"{name} must be a finite number above 0, not {getattr(self, name)!r}")
        if self.start not in ("images", "noise"):
            raise ParameterError(f"distillation starts from 'images' or 'noise', not {self.start!r}")


@dataclass(frozen=True, eq=False)
class Distilled:
    """What was learned: the images before and after, their targets, the losses, and the classifier they make."""

    before: Array
    images: Array
    labels: NDArray[Any]  # the class of each image
    targets: Array  # (images, classes)
    losses: list[float]
    model: Any


@dataclass
class _State:
    """Images and targets, and Adam's averages of their gradients and of the squares."""

    before: Any
    values: list[Any]
    means: list[Any]
    squares: list[Any]
    losses: list[float] = field(default_factory=list)

    @property
    def numbers(self) -> tuple[list[Any], list[Any], list[Any]]:
        """All that a step changes but the losses."""
        return self.values, self.means, self.squares


def distill(
    X: Any,
    y: Any,
    images: int = 10,
    kernel: AnyKernel = "myrtle5",
    *,
    preprocessing: Any = None,
    checkpoint: str | Path | None = None,
    seconds: float | None = None,
    watch: Watch | None = None,
    backend: str | AnyDevice = "auto",
    precision: Precision = "float32",
    n_jobs: int | None = None,
    **settings: Any,
) -> Distilled:
    """Learn few images, and on request their labels, that classify X as well as they can.

    `settings` are those of `Settings`: steps, batch, rate, ridge, start, learn_labels, flips and seed. `preprocessing`
    is a transformer such as `ZCA()`, fitted here unless it is: images are learned as they look after it. With a
    `checkpoint`, a file, an interrupted run goes on where it was. After so many `seconds` it stops, with the images as
    they are then, and `losses` has fewer than all steps. `watch` is told the steps done, those in all, and the loss.

    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits(n_class=3)
    >>> X = digits.images[:60, ..., None] / 16
    >>> found = distill(X, digits.target[:60], 3, "conv3 relu pool2 conv3 relu globalpool normalize relu",
    ...                 steps=3, batch=20, backend="reference")
    >>> found.images.shape, found.losses[-1] < found.losses[0]
    ((3, 8, 8, 1), True)
    """
    chosen, begun = Settings(images=images, **settings), time.monotonic()
    if seconds is not None and not seconds > 0:
        raise ParameterError(f"seconds must be above 0, not {seconds!r}; leave them out to take all steps")
    pixels, labels = to_numpy(X)[0], np.asarray(to_numpy(y)[0])
    check_images(pixels, "X")
    classes, codes = _read_labels(labels, pixels)
    _check_settings(chosen, len(pixels), len(classes))
    if preprocessing is not None:
        fitted = preprocessing if hasattr(preprocessing, "n_features_in_") else preprocessing.fit(pixels)
        pixels = fitted.transform(pixels)
    pixels = pixels.astype(np.float64)
    k = kernel if isinstance(kernel, Kernel) else kernel_of(kernel)
    device = Device.of(backend, precision, n_jobs)
    rows = _balanced(codes, chosen)
    header = {"settings": asdict(chosen), "kernel": repr(k), "data": checksum_of(pixels)}
    path = None if checkpoint is None else Path(checkpoint)
    state = (path and _load(path, header)) or _begin(pixels, codes, rows, len(classes), chosen)
    upload = device.algebra.upload
    values, means, squares = ([*map(upload, some)] for some in state.numbers)
    state = _State(state.before, values, means, squares, state.losses)
    whole = upload(pixels) if pixels.nbytes <= _SHARE * device.algebra.free_bytes() else pixels
    for step in range(len(state.losses), chosen.steps):
        _step(state, step, k, device, whole, codes, len(classes), chosen)
        last = step + 1 == chosen.steps or (seconds is not None and time.monotonic() - begun > seconds)
        if path is not None and (last or (step + 1) % _KEPT_EVERY == 0):
            _save(path, header, state)
        if watch is not None:
            watch(step + 1, chosen.steps, state.losses[-1])
        if last:
            break
    learned, targets = (to_host(one) for one in state.values)
    model = _model(k, device, learned, targets, classes[codes[rows]], chosen)
    _calibrate(model, pixels, codes, chosen)
    entire = model if preprocessing is None else make_pipeline(preprocessing, model)
    return Distilled(to_host(state.before), learned, classes[codes[rows]], targets, state.losses, entire)


def kernel_gradients(K: Any, cross: Any, targets: Any, batch: Any, ridge: float) -> tuple[Any, Any, Any, Any]:
    """The loss, where the arrays are, and its gradients by K(S, S), by K(S, batch) and by the targets of S.

    >>> rng = np.random.default_rng(0)
    >>> K, cross, own, batch = np.eye(2), rng.random((2, 3)), rng.random((2, 1)), rng.random((3, 1))
    >>> loss, by_K, by_cross, by_own = kernel_gradients(K, cross, own, batch, 0.1)
    >>> moved, *_ = kernel_gradients(K, cross + 1e-6, own, batch, 0.1)
    >>> bool(abs((moved - loss) / 1e-6 - by_cross.sum()) < 1e-5)
    True
    """
    count = len(K)
    share = ridge / count
    matrix = K + share * np.trace(K) * np.diag(np.ones_like(K[0]))
    coefficients = np.linalg.solve(matrix, targets)
    errors = cross.T @ coefficients - batch
    loss = (errors**2).sum() / (2 * len(batch))
    errors = errors / len(batch)
    by_targets = np.linalg.solve(matrix.T, cross @ errors)
    by_matrix = -by_targets @ coefficients.T
    by_K = by_matrix + share * np.trace(by_matrix) * np.diag(np.ones_like(K[0]))
    return loss, by_K, coefficients @ errors.T, by_targets


def _step(
    state: _State, step: int, k: Kernel, device: Device, X: Array, codes: Any, classes: int, chosen: Settings
) -> None:
    """One step of Adam on a random batch."""
    batch, labels = _draw(X, codes, step, device, chosen)
    images, targets = state.values
    wanted = device.algebra.upload(_centred(labels, classes))
    values, pull = k.values_and_pull(device, np.concatenate([images, batch]), chosen.images)
    K, cross = np.split(values, [chosen.images], axis=1)
    loss, by_K, by_cross, by_targets = kernel_gradients(K, cross, targets, wanted, chosen.ridge)
    read_loss = device.algebra.later(loss)  # when all else of this step is on its way to the GPU
    gradient = pull(np.concatenate([by_K + by_K.T, by_cross], axis=1))  # K(S, S) has S on both sides
    rate = chosen.rate * 0.5 * (1.0 + math.cos(math.pi * step / chosen.steps))
    gradients = [gradient, by_targets] if chosen.learn_labels else [gradient]
    for place, one in enumerate(gradients):
        state.means[place] = 0.9 * state.means[place] + 0.1 * one
        state.squares[place] = 0.99 * state.squares[place] + 0.01 * one**2
        mean = state.means[place] / (1 - 0.9 ** (step + 1))
        square = state.squares[place] / (1 - 0.99 ** (step + 1))
        state.values[place] = state.values[place] - rate * mean / (np.sqrt(square) + 1e-12)
    state.losses.append(read_loss())


def _draw(X: Any, codes: Any, step: int, device: Device, chosen: Settings) -> tuple[Any, Any]:
    """Training images and labels of a step, some mirrored: images where kernels are computed, labels here."""
    rng = np.random.default_rng((chosen.seed, step))
    rows = rng.choice(len(X), min(chosen.batch, len(X)), replace=False)
    upload = device.algebra.upload
    batch = upload(X[rows])
    if chosen.flips:
        mirrored = upload(rng.random(len(rows)) < 0.5).reshape(-1, *[1] * (X.ndim - 1))
        batch = np.where(mirrored, np.flip(batch, axis=-2), batch)
    return batch, codes[rows]


def _begin(X: Array, codes: Any, rows: Any, classes: int, chosen: Settings) -> _State:
    start: Array = X[rows]
    if chosen.start == "noise":
        rng = np.random.default_rng((chosen.seed, chosen.steps, 1))
        start = np.asarray(X.mean(axis=0) + X.std() * rng.standard_normal(start.shape))
    values = [start, _centred(codes[rows], classes)]
    return _State(start, values, [np.zeros_like(one) for one in values], [np.zeros_like(one) for one in values])


def _balanced(codes: Any, chosen: Settings) -> Any:
    """Rows to start from: class by class in turn, drawn at random."""
    order = np.random.default_rng(chosen.seed).permutation(len(codes))
    places = np.empty(len(codes), dtype=np.intp)
    for code in np.unique(codes):
        own = np.flatnonzero(codes[order] == code)
        places[own] = np.arange(len(own))
    turns = np.lexsort((codes[order], places))
    return order[turns[: chosen.images]]


def _centred(codes: Any, classes: int) -> Array:
    return np.asarray(np.eye(classes)[codes] - 1.0 / classes, dtype=np.float64)


def _model(k: Kernel, device: Device, images: Array, targets: Array, labels: Any, chosen: Settings) -> Any:
    """The classifier of learned images: that of their labels, with the coefficients of their targets."""
    K = np.asarray(to_host(k.on_device(device, images)))
    ridge = chosen.ridge * float(np.trace(K)) / len(K)
    model = KernelRidgeClassifier(k, ridge, False, device.given or device.name, device.precision, device.n_jobs)
    model.fit(images, labels)
    model.dual_coef_ = np.asarray(np.linalg.solve(K + ridge * np.eye(len(K)), targets), dtype=np.float64)
    return model


def _calibrate(model: Any, X: Array, codes: Any, chosen: Settings) -> None:
    """Fit probabilities to training images, which are not those it was fitted to."""
    rows = np.random.default_rng(chosen.seed).permutation(len(X))[:_CALIBRATION]
    model.scale_ = fit_scale(model._values(X[rows]), codes[rows])


def _read_labels(labels: Any, X: Any) -> tuple[Any, Any]:
    if labels.shape != (len(X),):
        raise InputError(f"y has shape {labels.shape}, but X {len(X)} images: y holds a label for each")
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError("all images have the same label; there is nothing to learn from them")
    return classes, codes


def _check_settings(chosen: Settings, count: int, classes: int) -> None:
    if chosen.images > count:
        raise ParameterError(f"{chosen.images} images cannot be distilled from {count}; ask for at most {count}")
    if chosen.images < classes:
        raise ParameterError(f"{classes} classes need at least as many images, not {chosen.images}")
    if min(chosen.batch, count) < classes:
        raise ParameterError(f"a batch of {chosen.batch} cannot hold {classes} classes; give a larger batch")


def _save(path: Path, header: dict[str, Any], state: _State) -> None:
    arrays = {"before": to_host(state.before), "losses": np.array(state.losses)}
    for name, some in zip(_NUMBERS, state.numbers, strict=True):
        arrays |= {f"{name}{place}": to_host(one) for place, one in enumerate(some)}
    save_archive(path, FORMAT, VERSION, header, arrays)


def _load(path: Path, header: dict[str, Any]) -> _State | None:
    if not path.exists():
        return None
    found, arrays = load_archive(path, FORMAT, VERSION)
    for name, wanted in header.items():
        if found.get(name) != wanted:
            raise InputError(f"{path} belongs to another distillation: its {name} differ; give another checkpoint")
    values, means, squares = ([arrays[f"{name}{place}"] for place in range(2)] for name in _NUMBERS)
    return _State(arrays["before"], values, means, squares, [float(loss) for loss in arrays["losses"]])
