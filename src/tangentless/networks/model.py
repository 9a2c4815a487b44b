"""The network of an architecture: what its layers say, with random weights that can be trained.

A convolution and the nonlinearity after it are one `Convolution` of `width` filters without bias; a nonlinearity with
no convolution before it is one of 1×1. Pools average. What follows the last `normalize` is the kernel's head: networks
have a linear layer to the classes there, without bias, on the normalised features.

Weights are Gaussian with variance 1 / fan-in, and a convolution keeps the mean square m² of its patch:

    y = m a(W x / m),    which is a(W x) where a(s u) = s a(u), as for ReLU.

So `E[y y'] = m m' f(c)`: up to a constant that is known, inner products of features approach the kernel. ReLUs keep the
mean square by a factor of √2. Networks elsewhere leave it out, and so may ours, which then are theirs to the last bit;
the constant takes it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architecture import Architecture
from ..errors import ArchitectureError, InputError, ParameterError
from ..forms import Arc
from ..inputs import check_images, to_numpy
from ..layers import Conv, GlobalPool, Layer, Nonlinearity, Normalize, Pool, is_whole
from .pytorch import Tensor, functional, nn, torch

_TINY = 1e-30  # below the mean square of any patch that is not zero


class Convolution(nn.Module):
    """Filters without bias, then batch normalisation if wanted, then an activation (None: linear)."""

    def __init__(
        self,
        channels: int,
        width: int,
        window: tuple[int, int],
        activation: Nonlinearity | None,
        batch_norm: nn.BatchNorm2d | None,
        usual_activation: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels, *window))
        self.window, self.layer, self.usual_activation = window, activation, usual_activation
        self.padding = (window[0] // 2, window[1] // 2)
        self.batch_norm = batch_norm
        self.keeps_scale = activation is None or isinstance(activation.form(), Arc)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to (N, width, H, W)."""
        u = functional.conv2d(x, self.weight, padding=self.padding)
        if self.batch_norm is not None:
            return self._activate(self.batch_norm(u))
        if self.keeps_scale:
            return self._activate(u)
        squares = x.float().square().mean(dim=1, keepdim=True)
        squares = functional.avg_pool2d(squares, self.window, stride=1, padding=self.padding)
        size = squares.clamp(min=_TINY).sqrt()
        y = size * self._activate(u.float() / size)
        return torch.where(squares > 0, y, torch.zeros_like(y)).to(u.dtype)

    def _activate(self, u: Tensor) -> Tensor:
        if self.layer is None:
            return u
        activated: Tensor = (self.layer.usual_activation if self.usual_activation else self.layer.activation)(u)
        return activated

    def extra_repr(self) -> str:
        """For `print`."""
        width, channels, *_ = self.weight.shape
        return f"{channels}, {width}, window={self.window}, activation={self.layer}"


class AveragePool(nn.Module):
    """The mean over disjoint windows; None: over everything."""

    def __init__(self, window: tuple[int, int] | None) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to fewer positions."""
        if self.window is None:
            return x.mean(dim=(2, 3), keepdim=True)
        return functional.avg_pool2d(x, self.window)


class UnitLength(nn.Module):
    """Every feature vector divided by its length, or by a shortest one if it is shorter, in float32."""

    def __init__(self, shortest: float) -> None:
        super().__init__()
        self.shortest = shortest

    def forward(self, x: Tensor) -> Tensor:
        """Features along axis 1."""
        return functional.normalize(x.float(), dim=1, eps=self.shortest)


class Scores(nn.Linear):
    """The last linear layer, in float32 even where the layers before it have fewer bits, which scores would show."""

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, width) to one number for each class."""
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return functional.linear(x.float(), self.weight.float(), bias)


class Network(nn.Module):
    """An architecture as a network: images (N, H, W, C) to one number for each class.

    Parameters
    ----------
    architecture
        A name, a text form or an `Architecture`.
    width
        Filters of every convolution, or a list with one number for each.
    classes
        Outputs.
    batch_norm
        Normalise over the batch after each convolution.
    batch_norm_parameters
        Whether batch normalisation has a scale and a shift of its own to learn.
    usual_activations
        ReLUs as networks elsewhere have them, without the factor of √2 that keeps norms.
    shortest
        Feature vectors below this length are divided by it, and stay shorter than one.
    shape
        Of one image: (H, W, C); sequences (L, C) and vectors (C,) too.
    seed
        Of the random weights.

    Examples
    --------
    >>> network = Network("myrtle5", 16, 10)
    >>> network(torch.zeros(2, 32, 32, 3)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in network.parameters()) == 9 * 3 * 16 + 3 * 9 * 16 * 16 + 16 * 10
    True
    """

    def __init__(
        self,
        architecture: Architecture | str,
        width: int | Sequence[int],
        classes: int,
        batch_norm: bool = False,
        *,
        batch_norm_parameters: bool = True,
        usual_activations: bool = False,
        shortest: float = 1e-12,
        shape: tuple[int, ...] = (32, 32, 3),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.architecture, self.shape = Architecture.of(architecture), check_shape(shape)
        check_counts(classes=classes)
        check_seed(seed)
        self.usual_activations, self.shortest = usual_activations, shortest
        self.grids = self.architecture.grids(self.shape[:-1])
        self.canvas = (1, 1, *self.shape[:-1])[-2:]  # sequences are images of height one
        body, self.head = split_head(self.architecture)
        self.body = nn.Sequential(
            *self._build(body, width, lambda w: nn.BatchNorm2d(w, affine=batch_norm_parameters) if batch_norm else None)
        )
        self.linear = Scores(self.features_out, classes, bias=False)
        self.draw_weights(seed)

    def _build(
        self, body: Sequence[Layer], width: int | Sequence[int], batch_norm: Callable[[int], nn.BatchNorm2d | None]
    ) -> Iterator[nn.Module]:
        """The modules; on the way, the constant between inner products of features and the kernel."""
        self.features_out, self.kernel_scale = self.shape[-1], 1.0
        layers, widths = list(body), _Widths(width)
        while layers:
            layer = layers.pop(0)
            if isinstance(layer, Pool | GlobalPool):
                yield AveragePool(None if isinstance(layer, GlobalPool) else self._window(layer.size))
            elif isinstance(layer, Normalize):
                self.kernel_scale = 1.0
                yield UnitLength(self.shortest)
            elif isinstance(layer, Conv | Nonlinearity):
                window = self._window(layer.size) if isinstance(layer, Conv) else (1, 1)
                follows = bool(layers) and isinstance(layers[0], Nonlinearity)
                activation = _trainable(
                    layer if isinstance(layer, Nonlinearity) else layers.pop(0) if follows else None
                )
                filters, channels, usual = widths.take(), self.features_out, self.usual_activations
                yield Convolution(channels, filters, window, activation, batch_norm(filters), usual)
                self.kernel_scale *= math.prod(window) * channels / filters
                if activation is not None and usual:
                    one = np.ones(1)
                    self.kernel_scale *= float((activation.activation(one) / activation.usual_activation(one))[0] ** 2)
                self.features_out = filters
            else:
                raise ArchitectureError(f"{layer} has no network: networks have convolutions, pools and nonlinearities")
        widths.check_all_taken()

    def _window(self, size: int) -> tuple[int, int]:
        return (1 if self.canvas[0] == 1 and len(self.shape) < 3 else size, 1 if len(self.shape) < 2 else size)

    def draw_weights(self, seed: int) -> None:
        """Random weights, the same on every device: the kernel of the network then approaches the architecture's."""
        generator = torch.Generator().manual_seed(int(seed))
        with torch.no_grad():
            for weight in self.weights():
                drawn = torch.randn(weight.shape, generator=generator)
                weight.copy_(drawn / math.sqrt(weight[0].numel()))

    def weights(self) -> list[Tensor]:
        """Of the convolutions and the linear layer, in order."""
        convolutions = [module.weight for module in self.body if isinstance(module, Convolution)]
        return [*convolutions, self.linear.weight]

    def features(self, x: Tensor) -> Tensor:
        """The last feature vector of every image, float32: (N, H, W, C) to (N, width)."""
        check_fit(x, self.shape)
        # Channels that are last in memory are where fast convolutions want them: this moves nothing.
        x = x.reshape(len(x), *self.canvas, self.shape[-1]).permute(0, 3, 1, 2)
        features: Tensor = self.body(x)
        return features.flatten(start_dim=1).float()

    def forward(self, x: Tensor) -> Tensor:
        """One number for each class."""
        scores: Tensor = self.linear(self.features(x))
        return scores

    def kernel(self, X: Any, Z: Any = None) -> NDArray[np.float64]:
        """Inner products of features, at the scale of the architecture's kernel, which they approach with the width.

        The head has no layer of random weights here; it acts on the inner products as it does on the kernel.
        """
        if any(isinstance(module, nn.BatchNorm2d) for module in self.modules()):
            raise ParameterError("with batch normalisation, inner products depend on the batch and approach no kernel")
        with torch.inference_mode():
            left = self.features(self._tensor(X)).double()
            right = left if Z is None else self.features(self._tensor(Z)).double()
            K: NDArray[np.float64] = (self.kernel_scale * (left @ right.T)).cpu().numpy()
            squares = [self.kernel_scale * f.square().sum(dim=1).cpu().numpy() for f in (left, right)]
        for layer in self.head:
            K = layer.operation(()).on_kernel(K, *map(np.sqrt, squares))
            squares = [layer.gain() * s for s in squares]
        return K

    def _tensor(self, images: Any) -> Tensor:
        weight = self.linear.weight
        return torch.as_tensor(check_images(to_numpy(images)[0]), dtype=weight.dtype, device=weight.device)

    def operations(self) -> int:
        """Multiplications and additions of one image, forwards; training takes three times as many.

        >>> f"{Network('myrtle5', 1024, 10).operations():.3g}"
        '2.54e+10'
        """
        positions, total = math.prod(self.canvas), 2 * self.linear.weight.numel()
        for module in self.body:
            if isinstance(module, Convolution):
                total += 2 * module.weight.numel() * positions
            elif isinstance(module, AveragePool):
                positions = 1 if module.window is None else positions // math.prod(module.window)
        return total


class _Widths:
    """Filters of one convolution after the other."""

    def __init__(self, width: int | Sequence[int]) -> None:
        self.several = isinstance(width, Sequence | np.ndarray)
        self.widths: list[Any] = [*width] if isinstance(width, Sequence | np.ndarray) else [width]
        self.taken = 0
        counts = {f"width {place}": w for place, w in enumerate(self.widths, start=1)}
        check_counts(**{"the number of widths": len(self.widths)}, **counts)

    def take(self) -> int:
        self.taken += 1
        return int(self.widths[min(self.taken, len(self.widths)) - 1])

    def check_all_taken(self) -> None:
        if self.several and self.taken != len(self.widths):
            raise ParameterError(
                f"{len(self.widths)} widths were given, but the architecture has {self.taken} convolutions; "
                "give one for each, or one number for all"
            )


def split_head(architecture: Architecture) -> tuple[tuple[Layer, ...], tuple[Nonlinearity, ...]]:
    """The layers that a network has, and the nonlinearities after the last `normalize`, which stand for its head.

    >>> body, head = split_head(Architecture.parse("conv3 relu globalpool normalize relu"))
    >>> len(body), head
    (4, (ReLU(),))
    """
    layers = architecture.layers
    end = len(layers)
    while end and isinstance(layers[end - 1], Nonlinearity):
        end -= 1
    if end == 0 or not isinstance(layers[end - 1], Normalize):
        return layers, ()
    return layers[:end], tuple(layer for layer in layers[end:] if isinstance(layer, Nonlinearity))


def _trainable(layer: Layer | None) -> Nonlinearity | None:
    """The layer, if its activation takes tensors and has a gradient."""
    if layer is None:
        return None
    assert isinstance(layer, Nonlinearity)
    probe = torch.linspace(-1.0, 1.0, 5, requires_grad=True)
    try:
        activated = layer.activation(probe)
    except (TypeError, RuntimeError, AttributeError) as error:
        reason = f"it does not take tensors ({error})"
    else:
        if isinstance(activated, Tensor) and activated.shape == probe.shape and activated.requires_grad:
            return layer
        reason = "it has no gradient"
    raise ArchitectureError(
        f"{layer} has no activation that a network can train with: {reason}; write `activation` with arithmetic and "
        "methods that arrays and tensors share, such as u.clip(min=0)"
    )


def check_shape(shape: Any) -> tuple[int, ...]:
    """The shape of one image, sequence or vector."""
    if not isinstance(shape, tuple | list) or not 1 <= len(shape) <= 3:
        raise ParameterError(f"shape must be that of one image, such as (32, 32, 3), not {shape!r}")
    check_counts(**{f"number {place} of the shape": count for place, count in enumerate(shape, start=1)})
    return tuple(int(count) for count in shape)


def check_fit(x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse images of another shape than a network was built for."""
    if x.shape[1:] != shape:
        raise InputError(f"images are of shape {tuple(x.shape[1:])}, but the network was built for {shape}")


def check_seed(seed: Any) -> None:
    """Refuse what PyTorch's generators do not take."""
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise ParameterError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")


def check_counts(**counts: Any) -> None:
    """Refuse what is no whole number of at least 1, by name."""
    for name, count in counts.items():
        if not is_whole(count) or count < 1:
            raise ParameterError(f"{name} must be a whole number of at least 1, not {count!r}")
