"""Distillation: learn a few images such that a kernel ridge classifier of them is good on a whole training set.

Kernel inducing points (Nguyen et al., 2021): with S the few images, their targets Y_S and a batch of training images,
the loss is the mean squared error of K(batch, S) (K(S, S) + ridge)^-1 Y_S. Its gradient by K takes a few small matrix
products, and `Kernel.vjp` pulls it back to the pixels of S, which Adam moves. Targets are one-hot, minus 1 / classes.

If targets are learned too, those of every step are the least squares fit to its batch. The loss is then a function of
the images alone (variable projection; Golub and Pereyra, 1973), which needs a fraction of the steps of learning both by
gradients. The final targets are fitted to many training images.

Random numbers depend on the seed and the step alone, so a run resumed from a checkpoint draws the same batches.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline

from .backends import AnyDevice, Precision
from .chunks import spans
from .devices import Device
from .errors import InputError, ParameterError, closest
from .estimators import KernelRidgeClassifier
from .files import checksum_of, load_archive, save_archive
from .inputs import check_images, check_switch, to_host, to_numpy
from .kernel import AnyKernel, Kernel, kernel_of
from .labels import check_labelled, in_turns, read_classes
from .preprocessing.parameters import check_above, check_whole
from .solve import fit_scale
from .symmetries import MIRROR

Array = NDArray[np.float64]
Watch = Callable[[int, int, float], None]  # (steps done, total steps, loss of the last step)
FORMAT, VERSION = "tangentless distillation", 2
_MOVED = ("images", "targets", "mean", "square")  # what a step changes
_KEPT_EVERY = 10.0  # seconds between two checkpoints
_SHARE = 0.25  # training images that take at most this share of the free memory are kept on the device
_CALIBRATION = 2000  # the most training images to which probabilities are fitted
_FITTED_AT_ONCE = 2000  # rows of the kernel matrix in memory while the final targets are fitted
_TARGET_RIDGE = 1e-12  # relative; singular values of K(S, batch) below 1e-6 are float32 rounding
_ROWS_A_TARGET = 2  # the least number of images in a batch per learned target


@dataclass(frozen=True)
class Settings:
    """How images are learned. `ridge` is relative to the mean of the diagonal of K(S, S)."""

    images: int = 10
    steps: int = 500
    batch: int = 500
    rate: float = 0.02
    ridge: float = 1e-6
    start: str = "images"  # or "noise"
    learn_labels: bool = False
    flips: bool = False  # mirror each training image of a batch with probability 1/2
    seed: int = 0

    def __post_init__(self) -> None:
        # Numbers of NumPy become Python's, which checkpoints can hold.
        for name, least in (("images", 1), ("steps", 1), ("batch", 1), ("seed", 0)):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), least))
        for name in ("rate", "ridge"):
            object.__setattr__(self, name, check_above(name, getattr(self, name)))
        for name in ("learn_labels", "flips"):
            check_switch(name, getattr(self, name))
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.start not in ("images", "noise"):
            raise ParameterError(f"distillation starts from 'images' or 'noise', not {self.start!r}")

    @classmethod
    def of(cls, **settings: Any) -> Settings:
        """These settings; a typed error for one that does not exist."""
        known = [one.name for one in fields(cls)]
        for name in settings.keys() - set(known):
            raise ParameterError(f"distill has no setting {name}; {closest(name, known)}there are {', '.join(known)}")
        return cls(**settings)


@dataclass(frozen=True, eq=False)
class Distilled:
    """The result: images before and after, their targets, the loss of every step, and the fitted classifier."""

    before: Array
    images: Array
    labels: NDArray[Any]  # the class of each image
    targets: Array  # (images, classes)
    losses: list[float]
    model: Any


@dataclass(frozen=True, eq=False)
class _State:
    """The state of the optimiser: images, targets, and Adam's means of the gradients and of their squares."""

    before: Any
    images: Any
    targets: Any
    mean: Any
    square: Any
    losses: list[float] = field(default_factory=list)


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
    """Learn a few images, and on request their labels, whose classifier is accurate on X.

    `settings` are those of `Settings`: steps, batch, rate, ridge, start, learn_labels, flips and seed. `preprocessing`
    is a transformer such as `ZCA()`, which is fitted here unless it is already; the learned images are preprocessed
    ones. With a `checkpoint` file, an interrupted run continues where it stopped, one that was killed at most ten
    seconds before. After `seconds` seconds the run stops early with the images it has, and `losses` is shorter than
    `steps`. `watch(done, steps, loss)` is called after every step.

    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits(n_class=3)
    >>> X = digits.images[:60, ..., None] / 16
    >>> found = distill(X, digits.target[:60], 3, "conv3 relu pool2 conv3 relu globalpool normalize relu",
    ...                 steps=3, batch=20, backend="reference")
    >>> found.images.shape, found.losses[-1] < found.losses[0]
    ((3, 8, 8, 1), True)
    """
    chosen, begun = Settings.of(images=images, **settings), time.monotonic()
    if seconds is not None:
        check_above("seconds", seconds)
    pixels, labels = to_numpy(X)[0], np.asarray(to_numpy(y)[0])
    check_images(pixels, "X")
    if labels.shape != (len(pixels),):
        raise InputError(f"y has shape {labels.shape}, but X has {len(pixels)} images; give one label per image")
    check_labelled(labels)
    classes, codes = read_classes(labels)
    _check_settings(chosen, len(pixels), len(classes))
    if preprocessing is not None:
        if not hasattr(preprocessing, "transform"):
            raise ParameterError(f"preprocessing is a transformer, such as tl.ZCA(), not {preprocessing!r}")
        fitted = preprocessing if hasattr(preprocessing, "n_features_in_") else preprocessing.fit(pixels)
        pixels = fitted.transform(pixels)
    pixels = pixels.astype(np.float64)
    if chosen.flips:
        MIRROR.check(pixels)  # vectors have no mirror images
    k = kernel_of(kernel)
    device = Device.of(backend, precision, n_jobs)
    rows = in_turns(codes, chosen.seed)[: chosen.images]
    header = {"settings": asdict(chosen), "kernel": repr(k), "data": checksum_of(pixels), "labels": checksum_of(codes)}
    path = None if checkpoint is None else Path(checkpoint)
    state = (path and _load(path, header)) or _begin(pixels, codes, rows, len(classes), chosen)
    upload = device.algebra.upload
    state = replace(state, **{name: upload(getattr(state, name)) for name in _MOVED})
    whole = upload(pixels) if pixels.nbytes <= _SHARE * device.algebra.free_bytes() else pixels
    save: Callable[[_State], Any] = (lambda _: None) if path is None else functools.partial(_save, path, header)
    save(state)  # a file that cannot be written is better found now than later
    saved = time.monotonic()
    try:
        while len(state.losses) < chosen.steps:
            state = _step(state, k, device, whole, codes, len(classes), chosen)
            if time.monotonic() - saved > _KEPT_EVERY:
                save(state)
                saved = time.monotonic()
            if watch is not None:
                watch(len(state.losses), chosen.steps, state.losses[-1])
            if seconds is not None and time.monotonic() - begun > seconds:
                break
    finally:
        save(state)
    if chosen.learn_labels:
        state = replace(state, targets=_last_targets(state, k, device, whole, codes, len(classes), chosen))
    learned, targets = to_host(state.images), to_host(state.targets)
    model = _model(k, device, learned, targets, classes[codes[rows]], chosen)
    _calibrate(model, pixels, codes, chosen)
    entire = model if preprocessing is None else make_pipeline(preprocessing, model)
    return Distilled(state.before, learned, classes[codes[rows]], targets, state.losses, entire)


def kernel_gradients(K: Any, cross: Any, targets: Any, batch: Any, ridge: float) -> tuple[Any, Any, Any]:
    """The loss (on the device of the arrays), and its gradients by K(S, S) and by `cross`, which is K(S, batch).

    >>> rng = np.random.default_rng(0)
    >>> K, cross, own, batch = np.eye(2), rng.random((2, 3)), rng.random((2, 1)), rng.random((3, 1))
    >>> loss, by_K, by_cross = kernel_gradients(K, cross, own, batch, 0.1)
    >>> moved, *_ = kernel_gradients(K, cross + 1e-6, own, batch, 0.1)
    >>> bool(abs((moved - loss) / 1e-6 - by_cross.sum()) < 1e-5)
    True
    """
    matrix = _with_ridge(K, ridge)
    coefficients = np.linalg.solve(matrix, targets)
    errors = cross.T @ coefficients - batch
    loss = (errors**2).sum() / (2 * len(batch))
    errors = errors / len(batch)
    by_matrix = -np.linalg.solve(matrix.T, cross @ errors) @ coefficients.T
    by_K = by_matrix + ridge / len(K) * np.trace(by_matrix) * _identity(K)
    return loss, by_K, coefficients @ errors.T


def best_targets(K: Any, cross: Any, batch: Any, ridge: float) -> Any:
    """The targets of S with the least loss. The gradient by K(S, S) is then 0.

    >>> rng = np.random.default_rng(0)
    >>> K, cross, batch = np.eye(2), rng.random((2, 9)), rng.random((9, 1))
    >>> best = best_targets(K, cross, batch, 0.1)
    >>> loss, by_K, _ = kernel_gradients(K, cross, best, batch, 0.1)
    >>> bool(abs(by_K).max() < 1e-6), bool(loss < kernel_gradients(K, cross, best + 0.1, batch, 0.1)[0])
    (True, True)
    """
    return _best_targets(K, *_normal_equations(cross, batch), ridge)


def _best_targets(K: Any, squares: Any, products: Any, ridge: float) -> Any:
    return _with_ridge(K, ridge) @ np.linalg.solve(_with_ridge(squares, _TARGET_RIDGE), products)


def _normal_equations(cross: Any, batch: Any) -> tuple[Any, Any]:
    """The normal equations of the least squares fit: sums over the images of a batch."""
    return cross @ cross.T, cross @ batch


def _with_ridge(matrix: Any, ridge: float) -> Any:
    """matrix + ridge * mean of the diagonal * identity."""
    return matrix + ridge / len(matrix) * np.trace(matrix) * _identity(matrix)


def _identity(matrix: Any) -> Any:
    """The identity of the size of the matrix, on the same device."""
    return np.diag(np.ones_like(matrix[0]))


def _step(state: _State, k: Kernel, device: Device, X: Array, codes: Any, classes: int, chosen: Settings) -> _State:
    """The state after one more step of Adam, on a random batch."""
    step, targets = len(state.losses), state.targets
    batch, labels = _draw(X, codes, step, device, chosen)
    wanted = device.algebra.upload(_centred(labels, classes))
    values, pull = k.values_and_pull(device, np.concatenate([state.images, batch]), chosen.images)
    K, cross = np.split(values, [chosen.images], axis=1)
    if chosen.learn_labels:
        targets = best_targets(K, cross, wanted, chosen.ridge)
    loss, by_K, by_cross = kernel_gradients(K, cross, targets, wanted, chosen.ridge)
    if chosen.learn_labels:
        by_K = np.zeros_like(by_K)  # it is rounding error: with the best targets, predictions do not depend on K(S, S)
    read_loss = device.algebra.read_later(loss)  # read at the end, so that the GPU gets its work without a wait
    gradient = pull(np.concatenate([by_K + by_K.T, by_cross], axis=1))  # S is on both sides of K(S, S)
    rate = chosen.rate * 0.5 * (1.0 + math.cos(math.pi * step / chosen.steps))
    mean, square = 0.9 * state.mean + 0.1 * gradient, 0.99 * state.square + 0.01 * gradient**2
    slope, size = mean / (1 - 0.9 ** (step + 1)), np.sqrt(square / (1 - 0.99 ** (step + 1)))
    images = state.images - rate * slope / (size + 1e-12)
    return _State(state.before, images, targets, mean, square, [*state.losses, read_loss()])


def _last_targets(state: _State, k: Kernel, device: Device, X: Any, codes: Any, classes: int, chosen: Settings) -> Any:
    """The best targets for all training images, or for as many images as the steps have drawn."""
    rows = np.random.default_rng(chosen.seed).permutation(len(X))[: len(state.losses) * chosen.batch]
    upload, squares, products = device.algebra.upload, 0.0, 0.0
    for part in spans(len(rows), _FITTED_AT_ONCE):
        cross = upload(k.on_device(device, state.images, upload(X[rows[part]])))
        more = _normal_equations(cross, upload(_centred(codes[rows[part]], classes)))
        squares, products = squares + more[0], products + more[1]
    return _best_targets(upload(k.on_device(device, state.images)), squares, products, chosen.ridge)


def _draw(X: Any, codes: Any, step: int, device: Device, chosen: Settings) -> tuple[Any, Any]:
    """The batch of a step: training images, some mirrored, on the device, and codes of labels in main memory."""
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
    return _State(start, start, _centred(codes[rows], classes), np.zeros_like(start), np.zeros_like(start))


def _centred(codes: Any, classes: int) -> Array:
    return np.asarray(np.eye(classes)[codes] - 1.0 / classes, dtype=np.float64)


def _model(k: Kernel, device: Device, images: Array, targets: Array, labels: Any, chosen: Settings) -> Any:
    """A classifier fitted to the learned images, with coefficients that follow from the learned targets."""
    K = np.asarray(to_host(k.on_device(device, images)))
    ridge = chosen.ridge * float(np.trace(K)) / len(K)
    model = KernelRidgeClassifier(k, ridge, False, device.given or device.name, device.precision, device.n_jobs)
    model.fit(images, labels)
    model.dual_coef_ = np.asarray(np.linalg.solve(K + ridge * np.eye(len(K)), targets), dtype=np.float64)
    return model


def _calibrate(model: Any, X: Array, codes: Any, chosen: Settings) -> None:
    """Fit the scale of probabilities to training images: the model was fitted to the learned images only."""
    rows = np.random.default_rng(chosen.seed).permutation(len(X))[:_CALIBRATION]
    model.scale_ = fit_scale(model._values(X[rows]), codes[rows])


def _check_settings(chosen: Settings, count: int, classes: int) -> None:
    if chosen.images > count:
        raise ParameterError(f"{chosen.images} images cannot be distilled from {count}; ask for at most {count}")
    if chosen.images < classes:
        raise ParameterError(f"{classes} classes need at least as many images, not {chosen.images}")
    if min(chosen.batch, count) < classes:
        raise ParameterError(f"a batch of {chosen.batch} cannot hold {classes} classes; give a larger batch")
    least = _ROWS_A_TARGET * chosen.images if chosen.learn_labels else 0
    if count < least:
        raise ParameterError(
            f"to learn the labels of {chosen.images} images takes {least} training images, not {count}"
        )
    if chosen.batch < least:
        raise ParameterError(f"to learn the labels of {chosen.images} images takes a batch of at least {least} images")


def _save(path: Path, header: dict[str, Any], state: _State) -> None:
    arrays = {name: to_host(getattr(state, name)) for name in _MOVED}
    arrays |= {"before": state.before, "losses": np.array(state.losses)}
    save_archive(path, FORMAT, VERSION, header, arrays)


def _load(path: Path, header: dict[str, Any]) -> _State | None:
    if not path.exists():
        return None
    found, arrays = load_archive(path, FORMAT, VERSION)
    if found["version"] < VERSION:
        raise InputError(f"{path} is of an earlier release with another method; remove it or give another checkpoint")
    for name, wanted in header.items():
        if found.get(name, wanted) != wanted:  # earlier files have no labels
            other = [key for key in wanted if found[name].get(key) != wanted[key]] if name == "settings" else [name]
            which = "other labels" if name == "labels" else f"another {', '.join(other)}"
            raise InputError(f"{path} belongs to a distillation of {which}; name another file")
    moved = {name: arrays[name] for name in _MOVED}
    return _State(arrays["before"], **moved, losses=[float(loss) for loss in arrays["losses"]])
