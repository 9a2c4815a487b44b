"""Random changes to a whole batch of images, on its device: crops, then flips, then holes."""

from __future__ import annotations

from .pytorch import Tensor, torch
from .recipes import Recipe


def augment(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """The images (N, H, W, C) of one step, changed as the recipe says; without augmentation, the same tensor.

    >>> images = torch.arange(1.0, 9.0).reshape(1, 2, 4, 1)
    >>> augment(images, Recipe("", "myrtle5", 1, 1), torch.Generator()) is images
    True
    """
    if recipe.crop:
        images = random_crops(images, recipe.crop, generator)
    if recipe.flips:
        images = random_flips(images, generator)
    if recipe.cutout:
        images = random_holes(images, recipe.cutout, generator)
    return images


def random_crops(images: Tensor, border: int, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to `border` pixels in both directions, filled with zeros."""
    count, height, width, _ = images.shape
    padded = torch.nn.functional.pad(images, (0, 0, border, border, border, border))
    rows = _draw(2 * border + 1, count, generator) + torch.arange(height, device=images.device)
    columns = _draw(2 * border + 1, count, generator) + torch.arange(width, device=images.device)
    which = torch.arange(count, device=images.device)[:, None, None]
    return padded[which, rows[:, :, None], columns[:, None, :]]


def random_flips(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image, or its mirror image, with equal chances."""
    mirrored = _draw(2, len(images), generator).bool()[:, :, None, None]
    return torch.where(mirrored, images.flip(2), images)


def random_holes(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """A square of zeros in each image, centred on any pixel; part of it may lie outside."""
    count, height, width, _ = images.shape
    rows, columns = (_inside(length, count, side, generator) for length in (height, width))
    hole = (rows[:, :, None] & columns[:, None, :])[..., None]
    return images.masked_fill(hole, 0.0)


def _inside(length: int, count: int, side: int, generator: torch.Generator) -> Tensor:
    """Which positions along an axis lie within the square of each image, (count, length)."""
    start = _draw(length, count, generator) - side // 2
    distance = torch.arange(length, device=generator.device) - start
    return (distance >= 0) & (distance < side)


def _draw(below: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(below, (count, 1), generator=generator, device=generator.device)
