"""Claim: Myrtle5, Myrtle7 and Myrtle10 are lists of 3×3 convolutions, ReLUs and 2×2 average pools, and nothing else.

The diagrams are drawn from the same objects that the kernels are computed from. Each is a column of boxes, from the
pixels at the top to the single number of a pair at the bottom, with the size of the grid after each pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..architecture import Architecture
from ..layers import Conv, GlobalPool, Grid, HalfPool, Nonlinearity, Pool, format_grid
from ..plots import COLOURS, new_figure, save_pictures

NAMES = ("myrtle5", "myrtle7", "myrtle10")
_GRID = (32, 32)
_HEIGHT, _GAP = 0.72, 0.28


def draw(folder: Path) -> list[Path]:
    """Draw the diagrams; returns their files."""
    columns = [_labels(Architecture.parse(name), _GRID) for name in NAMES]
    tallest = max(map(len, columns))
    figure = new_figure(6.6, 0.27 * tallest + 0.6)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    for place, (name, labels) in enumerate(zip(NAMES, columns, strict=True)):
        axes.text(place + 0.5, -0.5, name.capitalize(), ha="center", va="center", fontsize=11.5, fontweight="bold")
        for row, (text, colour) in enumerate(labels):
            _draw_box(axes, place + 0.12, row, text, colour, last=row == len(labels) - 1)
    axes.set_xlim(0, len(NAMES))
    axes.set_ylim(tallest + 0.1, -1.0)
    return save_pictures(figure, folder, "architectures")


def _labels(architecture: Architecture, grid: Grid) -> list[tuple[str, str]]:
    """The text and the colour of each box: the input, then the layers."""
    labels = [(f"pixels, {format_grid(grid)}", "#eef1f4")]
    for layer, after in zip(architecture, architecture.grids(grid)[1:], strict=True):
        match layer:
            case Conv():
                labels.append((f"{layer.size}×{layer.size} convolution", "#d5e3f0"))
            case Nonlinearity():
                labels.append((str(layer), "#f6dcd9"))
            case Pool() | HalfPool() | GlobalPool():
                labels.append((f"average to {format_grid(after)}", "#d9ecdf"))
            case _:
                labels.append((str(layer), "#eef1f4"))
    return labels


def _draw_box(axes: Any, left: float, row: int, text: str, colour: str, *, last: bool) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle((left, row), 0.76, _HEIGHT, facecolor=colour, edgecolor=COLOURS[-1], linewidth=0.5)
    axes.add_patch(box)
    axes.text(left + 0.38, row + _HEIGHT / 2, text, ha="center", va="center", fontsize=8.5)
    if not last:
        axes.plot([left + 0.38] * 2, [row + _HEIGHT, row + _HEIGHT + _GAP], color=COLOURS[-1], linewidth=0.8)
