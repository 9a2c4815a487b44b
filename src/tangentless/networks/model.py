"""The network of an architecture: its layers with random weights, which can be trained.

Inner products of its features approach the architecture's kernel, up to a known constant, `kernel_scale`. The layers
after the last `normalize` are the head of the kernel. The network has no random layers for it: a linear layer without
bias maps the normalised features to the classes.

ReLUs here have a factor of √2, which keeps the mean square. With `usual_activations` they have not, as in other
networks, and outputs are bit for bit those of such networks; `kernel_scale` and the factors of branches account for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architecture import Architecture
from ..errors import InputError, ParameterError
from ..inputs import check_images, to_numpy
from ..layers import Layer, Nonlinearity, Normalize
from .build import Builder, Value, Widths
from .checks import check_counts, check_seed, require
from .modules import Convolution, Scores
from .pytorch import Tensor, nn, torch


class Network(nn.Module):
    """An architecture as a network: images (N, H, W, C) to one number for each class.

    Parameters
    ----------
    architecture
        A name, a text form or an `Architecture`.
    width
        Filters of every convolution, or a list with one number for each, in the order of the text. Branches that a
        sum adds need the same width.
    classes
        Outputs.
    batch_norm
        Normalise over the batch before each nonlinearity, that is after the convolution or the sum before it.
    batch_norm_parameters
        Whether batch normalisation has a scale and a shift that are trained.
    usual_activations
        Use ReLUs as in other networks, without the factor of √2 that keeps norms.
    shortest
        `normalize` divides feature vectors by their length, or by this number if they are shorter.
    shape
        The shape of one image (H, W, C), sequence (L, C) or vector (C,).
    seed
        The seed of the random weights.

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
        self.architecture.grids(self.shape[:-1])  # raises if a layer does not fit
        body, self.head = split_head(self.architecture)
        rank, channels = len(self.shape) - 1, self.shape[-1]
        rows, columns = (1,) * (2 - rank) + self.shape[:-1]  # sequences are images of height one
        self.canvas = rows, columns

        def norm(width: int) -> nn.BatchNorm2d | None:
            return nn.BatchNorm2d(width, affine=batch_norm_parameters) if batch_norm else None

        builder = Builder(rank, Widths(width), norm, usual_activations, shortest)
        self.body, end = builder.build(body, Value(self.canvas, channels))
        self.features_out, self.kernel_scale = end.channels, end.kernel_scale
        self.linear = Scores(self.features_out, classes, bias=False)
        self.draw_weights(seed)

    def draw_weights(self, seed: int) -> None:
        """Draw Gaussian weights of variance 1 / fan-in, the same on every device."""
        generator = torch.Generator().manual_seed(int(seed))
        with torch.no_grad():
            for weight in self.weights():
                drawn = torch.randn(weight.shape, generator=generator)
                weight.copy_(drawn / math.sqrt(weight[0].numel()))

    def weights(self) -> list[Tensor]:
        """The weights of the convolutions, in order, and of the linear layer."""
        return [*(convolution.weight for convolution in self._convolutions()), self.linear.weight]

    def _convolutions(self) -> list[Convolution]:
        return [module for module in self.body.modules() if isinstance(module, Convolution)]

    def features(self, x: Tensor) -> Tensor:
        """The last feature vector of every image, float32: (N, H, W, C) to (N, width)."""
        check_fit(x, self.shape)
        # A view with channels last in memory, which fast convolutions want; nothing is copied.
        x = x.reshape(len(x), *self.canvas, self.shape[-1]).permute(0, 3, 1, 2)
        features: Tensor = self.body(x)
        return features.flatten(start_dim=1).float()

    def forward(self, x: Tensor) -> Tensor:
        """One number for each class."""
        scores: Tensor = self.linear(self.features(x))
        return scores

    def kernel(self, X: Any, Z: Any = None) -> NDArray[np.float64]:
        """The kernel of the network: scaled inner products of features, which approach the architecture's kernel.

        The head has no random weights; it is applied to the inner products in closed form, as in the kernel.
        """
        if any(isinstance(module, nn.BatchNorm2d) for module in self.modules()):
            raise ParameterError("with batch normalisation, inner products depend on the batch and approach no kernel")
        with torch.inference_mode():
            left = self.features(self._tensor(X)).double()
            right = left if Z is None else self.features(self._tensor(Z)).double()
            K: NDArray[np.float64] = (self.kernel_scale * (left @ right.T)).cpu().numpy()
            squares = [self.kernel_scale * f.square().sum(dim=1).cpu().numpy() for f in (left, right)]
        for layer in self.head:
            K = layer.embedding().on_kernel(K, *map(np.sqrt, squares))
            squares = [layer.squares(one) for one in squares]
        return K

    def _tensor(self, images: Any) -> Tensor:
        weight = self.linear.weight
        return torch.as_tensor(check_images(to_numpy(images)[0]), dtype=weight.dtype, device=weight.device)

    def operations(self) -> int:
        """Multiplications and additions of one image in the forward pass; training takes three times as many.

        >>> f"{Network('myrtle5', 1024, 10).operations():.3g}"
        '2.54e+10'
        """
        return sum(module.operations() for module in self._convolutions()) + 2 * self.linear.weight.numel()


def split_head(architecture: Architecture) -> tuple[tuple[Layer, ...], tuple[Nonlinearity, ...]]:
    """Split layers into the body, which the network builds, and the head: nonlinearities after the last `normalize`.

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


def check_shape(shape: Any) -> tuple[int, ...]:
    """Check the shape of one image, sequence or vector, and return it."""
    fits = isinstance(shape, tuple | list) and 1 <= len(shape) <= 3
    require(fits, "shape", "that of one image, such as (32, 32, 3)", shape)
    check_counts(**{f"number {place} of the shape": count for place, count in enumerate(shape, start=1)})
    return tuple(int(count) for count in shape)


def check_fit(x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse images of another shape than a network was built for."""
    if x.shape[1:] != shape:
        raise InputError(f"images are of shape {tuple(x.shape[1:])}, but the network was built for {shape}")
