"""The modules that networks are made of: convolutions, activations, pools, sums of branches, and the last layer.

Weights are Gaussian with variance 1 / fan-in, so the mean square of a pre-activation u is m², that of the patch it is
computed from. Activations a are applied so that they keep it:

    y = m a(u / m),    which is a(u) for homogeneous a (a(s u) = s a(u), s > 0), such as ReLU.

So `E[y y'] = m m' f(c)`, where f is the dual of a and c the cosine of the two patches.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence

from ..graph import Axes, Pair
from ..layers import Nonlinearity, Windows
from .pytorch import Tensor, functional, nn, torch

_TINY = 1e-30  # below the mean square of any patch that is not zero


class Activation(nn.Module):
    """Optional batch normalisation, then an activation (`layer` None: linear)."""

    def __init__(
        self, layer: Nonlinearity | None, batch_norm: nn.BatchNorm2d | None = None, usual_activation: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.batch_norm, self.usual_activation = layer, batch_norm, usual_activation
        self.keeps_scale = layer is None or is_homogeneous(layer)

    def forward(self, u: Tensor) -> Tensor:
        """Apply to sums or pools of outputs, (N, C, H, W): over many channels, their mean square is that of patches."""
        return self.activate(u, lambda: mean_squares(u))

    def activate(self, u: Tensor, squares_of: Callable[[], Tensor]) -> Tensor:
        """The activation of u; `squares_of()` returns mean squares of patches (N, 1, H, W), called only if needed."""
        if self.batch_norm is not None:
            return self._activated(self.batch_norm(u))
        if self.keeps_scale:
            return self._activated(u)
        squares = squares_of()
        size = squares.clamp(min=_TINY).sqrt()
        y = size * self._activated(u.float() / size)
        return torch.where(squares > 0, y, torch.zeros_like(y)).to(u.dtype)

    def _activated(self, u: Tensor) -> Tensor:
        if self.layer is None:
            return u
        activated: Tensor = (self.layer.usual_activation if self.usual_activation else self.layer.activation)(u)
        return activated

    def extra_repr(self) -> str:
        return str(self.layer)


class Convolution(Activation):
    """A convolution without bias over the windows of a grid, then an `Activation`."""

    def __init__(
        self,
        channels: int,
        width: int,
        axes: Axes,
        grid: Pair,
        layer: Nonlinearity | None = None,
        batch_norm: nn.BatchNorm2d | None = None,
        usual_activation: bool = False,
    ) -> None:
        super().__init__(layer, batch_norm, usual_activation)
        self.axes, self.window = axes, (axes[0].size, axes[1].size)
        self.weight = nn.Parameter(torch.empty(width, channels, *self.window))
        self.stride, self.dilation = (axes[0].stride, axes[1].stride), (axes[0].dilation, axes[1].dilation)
        reaches = [reach(windows, length) for windows, length in zip(axes, grid, strict=True)]
        even = [
            before >= 0 and 0 <= before - after < w.stride for w, (before, after) in zip(axes, reaches, strict=True)
        ]
        # conv2d pads both sides alike; where windows need other zeros, `pad` adds them.
        self.padding = (reaches[0][0], reaches[1][0]) if all(even) else None

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to (N, width, H', W')."""
        if self.weight.dtype == torch.float16:
            x = x.half()  # `UnitLength` returns float32
        padded = x if self.padding is not None else pad(x, self.axes)
        u = functional.conv2d(padded, self.weight, None, self.stride, self.padding or 0, self.dilation)
        return self.activate(u, lambda: window_means(mean_squares(x), self.axes))

    def operations(self) -> int:
        """Multiplications and additions for one image."""
        return 2 * self.weight.numel() * self.axes[0].count * self.axes[1].count

    def extra_repr(self) -> str:
        width, channels, *_ = self.weight.shape
        steps = [f", {name}={step}" for name in ("stride", "dilation") if (step := getattr(self, name)) != (1, 1)]
        return f"{channels}, {width}, window={self.window}{''.join(steps)}, activation={self.layer}"


class AveragePool(nn.Module):
    """The mean over windows of a grid."""

    def __init__(self, axes: Axes, grid: Pair) -> None:
        super().__init__()
        self.axes, self.window = axes, (axes[0].size, axes[1].size)
        self.whole = self.window == grid
        self.plain = all(
            w == Windows(w.size, (n - w.size) // w.stride + 1, w.stride) for w, n in zip(axes, grid, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to fewer positions."""
        if self.whole:
            return x.mean(dim=(2, 3), keepdim=True)
        if self.plain:
            return functional.avg_pool2d(x, self.window, (self.axes[0].stride, self.axes[1].stride))
        return window_means(x, self.axes)


class UnitLength(nn.Module):
    """Divide every feature vector by its length, or by `shortest` if it is shorter, in float32."""

    def __init__(self, shortest: float) -> None:
        super().__init__()
        self.shortest = shortest

    def forward(self, x: Tensor) -> Tensor:
        """Features along axis 1."""
        return functional.normalize(x.float(), dim=1, eps=self.shortest)


class Branches(nn.Module):
    """Branches, each times a factor: added, or concatenated along channels."""

    def __init__(self, branches: Sequence[nn.Module], factors: Sequence[float], adds: bool) -> None:
        super().__init__()
        self.branches, self.factors, self.adds = nn.ModuleList(branches), tuple(factors), adds

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W)."""
        parts = [branch(x) for branch in self.branches]
        parts = [y if factor == 1.0 else factor * y for factor, y in zip(self.factors, parts, strict=True)]
        return functools.reduce(operator.add, parts) if self.adds else torch.cat(parts, dim=1)

    def extra_repr(self) -> str:
        factors = ", ".join(f"{factor:.4g}" for factor in self.factors)
        return f"{'added' if self.adds else 'side by side'}, times {factors}"


class Scores(nn.Linear):
    """The last linear layer, in float32 whatever the precision of the layers before: rounding would show in scores."""

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, width) to one number for each class."""
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return functional.linear(x.float(), self.weight.float(), bias)


def reach(windows: Windows, length: int) -> Pair:
    """Zeros that windows need before and after an axis.

    A negative number counts positions at that end that no window reaches.

    >>> reach(Windows(size=3, count=4, stride=2, start=-1), length=8)
    (1, 0)
    """
    last = windows.positions(windows.count - 1)[-1]
    return -windows.start, last - (length - 1)


def pad(x: Tensor, axes: Axes) -> Tensor:
    """Add the zeros around images that windows need, and cut positions that no window reaches."""
    rows, columns = (reach(windows, length) for windows, length in zip(axes, x.shape[-2:], strict=True))
    return functional.pad(x, (*columns, *rows))


def window_means(x: Tensor, axes: Axes) -> Tensor:
    """Means over windows along the last two axes, with zeros outside the grid."""
    x = pad(x, axes)
    taps = [
        [slice(t, t + (w.count - 1) * w.stride + 1, w.stride) for t in range(0, w.size * w.dilation, w.dilation)]
        for w in axes
    ]
    total = functools.reduce(operator.add, (x[..., rows, columns] for rows, columns in itertools.product(*taps)))
    return total / math.prod(map(len, taps))


def mean_squares(x: Tensor) -> Tensor:
    """Mean squares over channels, in float32: (N, C, H, W) to (N, 1, H, W)."""
    return x.float().square().mean(dim=1, keepdim=True)


def is_homogeneous(layer: Nonlinearity) -> bool:
    """Whether a(s u) = s a(u) for s > 0, so that y = m a(u / m) is a(u)."""
    u = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64)
    return torch.allclose(layer.activation(4.0 * u), 4.0 * layer.activation(u), rtol=1e-12)
