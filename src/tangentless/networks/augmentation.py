"""Random changes to a whole batch of images, on its device, as a recipe says: those of `preprocessing.augmentation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..preprocessing import augmentation
from .pytorch import Tensor, torch
from .recipes import Recipe


@dataclass(frozen=True)
class TorchDraws:
    """Draws of PyTorch, on the generator's device."""

    generator: torch.Generator
    xp: Any = torch

    def below(self, end: int, count: int) -> Tensor:
        """Numbers from 0 to below the end, (count, 1)."""
        return torch.randint(end, (count, 1), generator=self.generator, device=self.generator.device)

    def positions(self, length: int) -> Tensor:
        """0, 1, ... below the length."""
        return torch.arange(length, device=self.generator.device)


def augment(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """The images (N, H, W, C) of one step, changed as the recipe says; without augmentation, the same tensor.

    >>> images = torch.arange(1.0, 9.0).reshape(1, 2, 4, 1)
    >>> augment(images, Recipe("", "myrtle5", 1, 1), torch.Generator()) is images
    True
    """
    changed: Tensor = augmentation.augment(images, recipe, TorchDraws(generator))
    return changed
