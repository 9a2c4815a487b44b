"""LeNet-5 and ResNet-32: networks that the paper compares with, and that this package has no kernels of."""

from __future__ import annotations

from ..errors import ParameterError
from .checks import check_counts, check_seed
from .model import check_fit, check_shape
from .modules import Scores
from .pytorch import Tensor, functional, nn, torch

Shape = tuple[int, int, int]


class Baseline(nn.Module):
    """Base class of networks for images (N, H, W, C) of one shape."""

    def __init__(self, classes: int, shape: Shape, seed: int) -> None:
        super().__init__()
        check_counts(classes=classes)
        check_seed(seed)
        self.shape = check_shape(shape)
        if len(self.shape) != 3:
            raise ParameterError(f"this network is for images, of a shape such as (32, 32, 3), not {shape!r}")

    def channels_first(self, x: Tensor) -> Tensor:
        """Images in the layout of PyTorch's layers, (N, C, H, W)."""
        check_fit(x, self.shape)
        return x.permute(0, 3, 1, 2)


class LeNet5(Baseline):
    """LeCun et al., 1998, with ReLU: two convolutions of 5×5 and three linear layers; images (N, H, W, C).

    >>> network = LeNet5(10)
    >>> network(torch.zeros(2, 28, 28, 1)).shape, sum(p.numel() for p in network.parameters())
    (torch.Size([2, 10]), 61706)
    """

    def __init__(self, classes: int, *, shape: Shape = (28, 28, 1), seed: int = 0) -> None:
        super().__init__(classes, shape, seed)
        height, width, channels = self.shape
        if min(height, width) < 12:
            raise ParameterError(f"LeNet-5 needs images of 12×12 pixels or more, not {height}×{width}")
        padding = 2 if min(height, width) < 32 else 0  # the original network takes images of 32×32
        rows, columns = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
        with torch.random.fork_rng(devices=[]):  # keeps the state of the global generator
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                *(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.AvgPool2d(2)),
                *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
                *(nn.Linear(16 * rows * columns, 120), nn.ReLU()),
                *(nn.Linear(120, 84), nn.ReLU()),
                Scores(84, classes),
            )

    def forward(self, x: Tensor) -> Tensor:
        """One number for each class."""
        scores: Tensor = self.layers(self.channels_first(x))
        return scores


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut; where the shape changes, it skips positions and adds channels of zeros."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, width - channels
        self.first = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W)."""
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return functional.relu(y + functional.pad(shortcut, (0, 0, 0, 0, 0, self.added)))


class ResNet32(Baseline):
    """He et al., 2016, for small images: three groups of five blocks, 16, 32 and 64 wide; images (N, H, W, C).

    >>> network = ResNet32(10)
    >>> network(torch.zeros(2, 32, 32, 3)).shape, sum(p.numel() for p in network.parameters())
    (torch.Size([2, 10]), 464154)
    """

    def __init__(self, classes: int, *, shape: Shape = (32, 32, 3), seed: int = 0) -> None:
        super().__init__(classes, shape, seed)
        with torch.random.fork_rng(devices=[]):  # keeps the state of the global generator
            torch.manual_seed(seed)
            self.entrance = nn.Sequential(
                nn.Conv2d(self.shape[-1], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
            )
            blocks, channels = [], 16
            for width in (16, 32, 64):
                for place in range(5):
                    blocks.append(ResidualBlock(channels, width, stride=2 if place == 0 and width > 16 else 1))
                    channels = width
            self.blocks, self.linear = nn.Sequential(*blocks), Scores(64, classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """One number for each class."""
        features = self.blocks(self.entrance(self.channels_first(x)))
        scores: Tensor = self.linear(features.mean(dim=(2, 3)))
        return scores
