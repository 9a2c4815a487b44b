"""Training by a recipe: by default on a CPU in float32, on a GPU compiled and in mixed precision, with channels last.

Mixed precision means bfloat16 for inputs and outputs of convolutions, and float32 for weights and everything else.
Precision float16 is an option: weights and values up to the features then have 16 bits, and numbers below 6e-8 vanish.

Images stay on the device and are shuffled, cropped, flipped and cut there. Random numbers of an epoch depend on the
seed and the number of the epoch only. So a run that resumes from a checkpoint equals one that was never stopped: bit
for bit on a CPU, up to the order of sums on a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, ParameterError, TangentlessError
from ..files import check_output
from ..inputs import to_numpy
from ..layers import is_real
from ..preprocessing import augmentation
from ..progress import Bar, progress_bar
from ..timing import describe_machine
from .checkpoint import CheckpointError, load_checkpoint, restore, save_checkpoint
from .checks import check_choice, check_counts, require
from .model import Network
from .pytorch import Tensor, functional, nn, torch
from .recipes import Recipe

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
COMPILE_MODES = ("auto", "off", "default", "reduce-overhead", "max-autotune")
_TEST_BATCH = 512

Data = tuple[NDArray[Any], NDArray[Any]]  # images (N, H, W, C) and labels (N,)
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class DivergedError(TangentlessError, ArithmeticError):
    """The training loss is no longer finite."""


@dataclass(frozen=True)
class Epoch:
    """The results of one epoch. `accuracy` is on training images, measured on each batch just before its step."""

    loss: float
    accuracy: float
    seconds: float
    test_accuracy: float | None = None


@dataclass(frozen=True)
class Training:
    """A trained network and its history; `complete` unless it was stopped before the last epoch."""

    network: nn.Module
    recipe: Recipe
    history: tuple[Epoch, ...]
    device: str
    precision: str
    compiled: str
    resumed: int = 0  # epochs that were read from the checkpoint

    @property
    def complete(self) -> bool:
        """Whether all epochs are done."""
        return len(self.history) == self.recipe.epochs

    @property
    def test_accuracy(self) -> float | None:
        """The test accuracy after the last epoch."""
        return self.history[-1].test_accuracy

    @property
    def best_test_accuracy(self) -> float | None:
        """The best test accuracy of any epoch: optimistic, but what the paper's code reports."""
        return max((e.test_accuracy for e in self.history if e.test_accuracy is not None), default=None)

    @property
    def seconds(self) -> float:
        """Seconds of all epochs, without tests and checkpoints."""
        return sum(epoch.seconds for epoch in self.history)

    @property
    def earlier_seconds(self) -> float:
        """Seconds of the epochs that were read from the checkpoint."""
        return sum(epoch.seconds for epoch in self.history[: self.resumed])


@dataclass(frozen=True)
class Machine:
    """Device, precision and compilation. "auto": a GPU if there is one, with bfloat16 and compilation; else a CPU."""

    device: str = "auto"
    precision: str = "auto"
    compile: str = "auto"

    def __post_init__(self) -> None:
        require(isinstance(self.device, str), "device", "a name, such as 'auto', 'cpu' or 'cuda'", self.device)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("compile", self.compile, COMPILE_MODES)

    def resolve(self) -> Machine:
        """The machine with every "auto" resolved."""
        device = self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise ParameterError(f"there is no device {device!r} here ({reason}); try device='cpu'") from None
        fast = device.startswith("cuda")
        precision = self.precision if self.precision != "auto" else "bfloat16" if fast else "float32"
        mode = self.compile if self.compile != "auto" else "default" if fast else "off"
        return Machine(device, precision, mode)

    def describe(self) -> str:
        """The GPU or processor that trains, in words."""
        device = self.resolve().device
        return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else describe_machine()


def network_of(recipe: Recipe, shape: tuple[int, ...], classes: int, seed: int = 0) -> Network:
    """The network of a recipe, with its initial weights.

    >>> network_of(Recipe("digits", "conv3 relu globalpool", 8, 1), (8, 8, 1), 10).features_out
    8
    """
    network = Network(
        recipe.architecture,
        recipe.width,
        classes,
        recipe.batch_norm,
        batch_norm_parameters=recipe.batch_norm_parameters,
        usual_activations=recipe.usual_activations,
        shortest=recipe.shortest,
        shape=shape,
        seed=seed,
    )
    with torch.no_grad():
        for weight in network.weights():
            weight.mul_(recipe.gain)
    return network


def train(
    network: nn.Module,
    images: NDArray[Any],
    labels: NDArray[Any],
    recipe: Recipe,
    *,
    test: Data | None = None,
    test_every: int = 1,
    seed: int = 0,
    machine: Machine | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    stop_after: float | None = None,
    label: str = "training",
) -> Training:
    """Train a network, in place, on preprocessed images (N, H, W, C) and their classes 0, 1, 2, ...

    The accuracy on `test` is measured every `test_every` epochs and after the last one. With a path `checkpoint`, the
    state is written there after an epoch, if `checkpoint_seconds` have passed since the last time, and at the end; a
    run that finds the file resumes from it. After `stop_after` seconds, training stops between epochs and saves the
    state.

    >>> recipe = Recipe("digits", "conv3 relu globalpool normalize", 8, epochs=2, batch=16)
    >>> images, labels = np.random.default_rng(0).random((32, 8, 8, 1), np.float32), np.arange(32) % 10
    >>> training = train(network_of(recipe, (8, 8, 1), 10), images, labels, recipe)
    >>> training.complete, len(training.history)
    (True, 2)
    """
    require(isinstance(recipe, Recipe), "recipe", "a Recipe, such as RECIPES['cifar10-myrtle5']", recipe)
    check_counts(test_every=test_every)
    check_counts(0, seed=seed)
    require(is_real(checkpoint_seconds), "checkpoint_seconds", "a number of seconds", checkpoint_seconds)
    require(stop_after is None or is_real(stop_after), "stop_after", "a number of seconds", stop_after)
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise InputError(f"test must be a pair, images and their labels, not {type(test).__name__}")
    if checkpoint is not None:
        require(isinstance(checkpoint, str | Path), "checkpoint", "the name of a file", checkpoint)
        checkpoint = Path(checkpoint)
        check_output(checkpoint, force=True)  # before an epoch is spent
    machine = Machine() if machine is None else machine
    require(isinstance(machine, Machine), "machine", "a Machine, such as Machine('cpu')", machine)
    run = machine.resolve()
    if run.precision == "float16" and recipe.optimizer == "adam":
        raise ParameterError("squares of gradients vanish in float16, and adam divides by them; use bfloat16, or sgd")
    started = time.perf_counter()
    held = _DeviceData.of(images, labels, run.device)
    held_test = None if test is None else _DeviceData.of(*test, run.device)
    trains = isinstance(network, nn.Module) and any(True for _ in network.parameters())
    require(trains, "network", "a PyTorch module with weights, such as network_of(...)", network)
    network.to(run.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch leaves this one out
    if run.precision == "float16":
        _to_float16(network)
    elif _dtype(network) == torch.float16:
        network.float()  # an earlier training may have left it in float16
    optimizer = _optimizer(network, recipe, run)
    shapes = {name: list(value.shape) for name, value in network.state_dict().items()}
    belongs_to = {"recipe": recipe.to_json(), "seed": seed, "data": held.digest, "network": shapes}
    belongs_to |= {"test": held_test and held_test.digest, "layers": repr(network), "precision": run.precision}
    history: list[Epoch] = []
    if checkpoint is not None and (state := load_checkpoint(checkpoint, belongs_to)) is not None:
        try:
            restore(state, network, optimizer)
            history = [Epoch(**epoch) for epoch in state.history]
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{checkpoint} is not whole: {error}; remove it to start over") from None
    resumed = len(history)
    objective, scores = _compiled(network, recipe, run, batch=min(recipe.batch, len(labels)))
    _check_classes(network, scores, held, *([] if held_test is None else [held_test]))
    saved = time.perf_counter()
    with progress_bar(label, unit="images", after=0.0) as report, _fast_settings(run):
        while len(history) < recipe.epochs:
            number = len(history)
            epoch = _train_epoch(network, held, recipe, optimizer, objective, number, seed, report)
            last = number + 1 == recipe.epochs
            if held_test is not None and (last or (number + 1) % test_every == 0):
                hits = _classes(network, scores, held_test) == held_test.labels
                epoch = replace(epoch, test_accuracy=int(hits.sum()) / len(hits))
            history.append(epoch)
            if not math.isfinite(epoch.loss):
                raise DivergedError(
                    f"the loss of epoch {number + 1} is not a number; "
                    f"try a learning rate below {recipe.learning_rate:g}, or batch normalisation"
                )
            now = time.perf_counter()
            stop = stop_after is not None and now - started + 1.1 * epoch.seconds > stop_after
            if checkpoint is not None and (last or stop or now - saved >= checkpoint_seconds):
                save_checkpoint(checkpoint, belongs_to, [asdict(e) for e in history], network, optimizer)
                saved = time.perf_counter()
            if stop:
                break
    return Training(network, recipe, tuple(history), run.device, run.precision, run.compile, resumed)


def predict(network: nn.Module, images: NDArray[Any], precision: str = "float32") -> NDArray[np.int64]:
    """The predicted classes of preprocessed images, (N,); use the `precision` of the training."""
    check_choice("precision", precision, PRECISIONS)
    held = _DeviceData.of(images, np.zeros(len(images), np.int64), str(next(network.parameters()).device))
    classes = _classes(network, functools.partial(_scores, network, precision), held)
    predicted: NDArray[np.int64] = classes.cpu().numpy()
    return predicted


@dataclass(frozen=True)
class _DeviceData:
    """Images and labels on a device, with a hash of both."""

    images: Tensor
    labels: Tensor
    digest: str

    @classmethod
    def of(cls, images: NDArray[Any], labels: NDArray[Any], device: str) -> _DeviceData:
        try:
            images = np.ascontiguousarray(to_numpy(images)[0], np.float32)
        except (ValueError, TypeError) as error:
            raise InputError(f"images must be numbers (N, H, W, C): {error}") from None
        labels = np.ascontiguousarray(to_numpy(labels)[0])
        if not len(images):
            raise InputError("there are no images; give at least one")
        if len(images) != len(labels) or labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise InputError(
                f"labels must be whole numbers, one for each of the {len(images)} images, "
                f"but they are {labels.dtype} of shape {labels.shape}"
            )
        if not np.isfinite(images).all():
            raise InputError("images hold NaN or infinite values")
        labels = labels.astype(np.int64)
        digest = hashlib.blake2b(images.data, digest_size=16)
        digest.update(labels.data)
        return cls(torch.tensor(images, device=device), torch.tensor(labels, device=device), digest.hexdigest())

    def parts(self) -> Iterator[tuple[Tensor, int]]:
        """Batches of one size, the last one padded with zeros, and the number of images in each without padding."""
        for start in range(0, len(self.images), _TEST_BATCH):
            part = self.images[start : start + _TEST_BATCH]
            count = len(part)
            if start and count < _TEST_BATCH:
                part = functional.pad(part, (0, 0) * (part.ndim - 1) + (0, _TEST_BATCH - count))
            yield part, count


@dataclass(frozen=True)
class TorchDraws:
    """The random numbers that `augmentation` needs, from a PyTorch generator, on its device."""

    generator: torch.Generator
    xp: Any = torch

    def below(self, end: int, count: int) -> Tensor:
        """Random whole numbers from 0 to `end` - 1, (count, 1)."""
        return torch.randint(end, (count, 1), generator=self.generator, device=self.generator.device)

    def positions(self, length: int) -> Tensor:
        """0, 1, ..., `length` - 1."""
        return torch.arange(length, device=self.generator.device)


def augment(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Augment the images (N, H, W, C) of one step by the recipe; without augmentation, returns the same tensor.

    >>> images = torch.arange(1.0, 9.0).reshape(1, 2, 4, 1)
    >>> augment(images, Recipe("", "myrtle5", 1, 1), torch.Generator()) is images
    True
    """
    changed: Tensor = augmentation.augment(images, recipe, TorchDraws(generator))
    return changed


def _train_epoch(
    network: nn.Module,
    held: _DeviceData,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    epoch: int,
    seed: int,
    report: Bar,
) -> Epoch:
    device, count = held.images.device, len(held.labels)
    drawn = np.random.SeedSequence((seed, epoch)).generate_state(2, np.uint64) >> np.uint64(1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(int(drawn[0]))).to(device)
    generator = torch.Generator(device).manual_seed(int(drawn[1]))
    steps = math.ceil(count / recipe.batch)
    loss_sum, right = torch.zeros((), device=device), torch.zeros((), device=device)
    network.train()
    started = time.perf_counter()
    for step, index in enumerate(torch.split(order, recipe.batch)):
        rate = recipe.learning_rate * recipe.schedule.rate(epoch + step / steps, recipe.epochs)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = augment(held.images[index], recipe, generator)
        optimizer.zero_grad(set_to_none=True)  # before the forward pass, which can then reuse the memory
        loss, hits = objective(batch, held.labels[index])
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        optimizer.step()
        loss_sum += loss.detach() * len(index)
        right += hits
        done = min((step + 1) * recipe.batch, count)
        state = functools.partial(_describe_state, loss_sum, right, done)
        report(epoch * count + done, recipe.epochs * count, state)
    totals = float(loss_sum) / count, float(right) / count  # float() waits for the device
    return Epoch(*totals, seconds=time.perf_counter() - started)


def _describe_state(loss_sum: Tensor, right: Tensor, done: int) -> str:
    return f"loss {float(loss_sum) / done:.4g}  accuracy {100 * float(right) / done:.1f} %"


def _scores(network: nn.Module, precision: str, x: Tensor) -> Tensor:
    """The outputs of the network, in float32 whatever the precision of its layers."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        scores: Tensor = network(x.to(_dtype(network)))
    return scores.float()


def _classes(network: nn.Module, scores: Callable[[Tensor], Tensor], held: _DeviceData) -> Tensor:
    """The class with the largest score, for every image."""
    with _evaluating(network):
        return torch.cat([scores(part)[:count].argmax(dim=1) for part, count in held.parts()])


def _check_classes(network: nn.Module, scores: Callable[[Tensor], Tensor], *parts: _DeviceData) -> None:
    """Refuse labels that the network has no output for: a GPU would fail without a useful message."""
    with _evaluating(network):
        outputs = scores(parts[0].images[:1]).shape[1]
    for part in parts:
        low, high = int(part.labels.min()), int(part.labels.max())
        if low < 0 or high >= outputs:
            raise InputError(
                f"labels run from {low} to {high}, but the network has {outputs} outputs, for classes 0 to "
                f"{outputs - 1}; number the classes from 0 on, or build the network with more of them"
            )


def _compiled(
    network: nn.Module, recipe: Recipe, run: Machine, batch: int
) -> tuple[Objective, Callable[[Tensor], Tensor]]:
    """Two functions: from a batch to its loss and number of hits, and from images to scores.

    The first is compiled, if the machine asks for it, for batches of the size `batch`.
    """

    def scores(x: Tensor) -> Tensor:
        return _scores(network, run.precision, x) * recipe.output_scale

    def objective(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        output = scores(x)
        return loss_of(output, labels, recipe), (output.detach().argmax(dim=1) == labels).sum()

    if run.compile == "off":
        return objective, scores
    mode = None if run.compile == "default" else run.compile
    compiled = torch.compile(objective, mode=mode, dynamic=False)
    # Tests and the last batch of an epoch have other sizes; they are too rare to compile for.
    return lambda x, labels: (compiled if len(x) == batch else objective)(x, labels), scores


def loss_of(scores: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """The loss of a batch.

    >>> loss_of(torch.tensor([[1.0, 0.5]]), torch.tensor([0]), Recipe("", "relu", 1, 1, loss="mse"))
    tensor(0.1250)
    """
    if recipe.loss == "cross-entropy":
        return functional.cross_entropy(scores, labels)
    targets = functional.one_hot(labels, scores.shape[1]).to(scores.dtype)
    if recipe.loss == "mse":
        return functional.mse_loss(scores, targets)
    return functional.mse_loss(scores, targets, reduction="sum") / recipe.batch


def _optimizer(network: nn.Module, recipe: Recipe, run: Machine) -> torch.optim.Optimizer:
    # Fused steps would compute in float32; in float16, everything is to be computed in 16 bits.
    fused = run.device.startswith("cuda") and run.precision != "float16"
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "fused": fused}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **options)
    return torch.optim.SGD(network.parameters(), momentum=recipe.momentum, nesterov=recipe.momentum > 0, **options)


def _to_float16(network: nn.Module) -> None:
    """Convert weights to float16, except batch normalisation, whose variances need the range of float32."""
    network.half()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()


def _dtype(network: nn.Module) -> torch.dtype:
    """The data type of the weights, and so of the input of the first layer."""
    return next(network.parameters()).dtype


@contextlib.contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    was = network.training
    network.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        network.train(was)


@contextlib.contextmanager
def _fast_settings(run: Machine) -> Iterator[None]:
    """Set cuDNN and the compiler up for speed."""
    with contextlib.ExitStack() as settings:
        if run.device.startswith("cuda"):  # benchmark: cuDNN tries its algorithms once for each shape
            flags = {"enabled": True, "benchmark": True, "deterministic": False, "allow_tf32": True}
            settings.enter_context(torch.backends.cudnn.flags(**flags))
        if run.compile != "off":  # PyTorch counts all networks of a process as one function: it would stop after eight
            limits = {"recompile_limit": 1024, "accumulated_recompile_limit": 1024, "fail_on_recompile_limit_hit": True}
            settings.enter_context(importlib.import_module("torch._dynamo").config.patch(limits))
        yield
