"""Draws the diagrams of the site. Where they show numbers, these are computed here, by the definition of the kernels.

python docs/diagrams.py [docs/images]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

import tangentless as tl
from tangentless.datasets import load
from tangentless.plots import COLOURS, save_figure

BLUE, RED, GREEN, PURPLE, GOLD, GREY = COLOURS
SMALL = ("conv3", "relu", "pool2", "conv3", "relu", "globalpool")


def draw_all(folder: Path) -> None:
    """Write every diagram as SVG."""
    for name, draw in {"house": house, "layers": layers, "offsets": offsets, "tiles": tiles, "ring": ring}.items():
        save_figure(draw(), folder / f"{name}.svg", bbox_inches="tight")


def house() -> Figure:
    """The way of data through the package: one row, left to right."""
    figure = Figure(figsize=(8.4, 1.9))
    axes = _blank(figure, (0, 10), (0, 2.3))
    rooms = (
        ("text", '"conv3 relu\nglobalpool"', GREY),
        ("architecture", "expression\nof layers", BLUE),
        ("graph", "nodes, shapes,\nwork, memory", BLUE),
        ("backend", "reference, cpu,\ncuda", RED),
        ("matrix", "tiles,\nstores", GOLD),
        ("factor", "solve, variances,\nleave-one-out", GREEN),
        ("estimator", "fit,\npredict", PURPLE),
    )
    step = 10 / len(rooms)
    for place, (name, words, colour) in enumerate(rooms):
        left = place * step
        _box(axes, left + 0.08, 0.75, step - 0.3, 0.95, colour)
        axes.text(left + step / 2 - 0.07, 1.42, name, ha="center", color="white", fontsize=8.8, fontweight="bold")
        axes.text(left + step / 2 - 0.07, 1.07, words, ha="center", va="center", color="white", fontsize=7.5)
        if place:
            _arrow(axes, (left - 0.2, 1.22), (left + 0.06, 1.22))
    axes.text(5.9, 0.42, "images enter here, in pairs", ha="center", fontsize=8.5, color=GREY)
    _arrow(axes, (5.0, 0.55), (5.0, 0.72))
    return figure


def layers() -> Figure:
    """Kernels between all pairs of positions of two digits, after each layer; the last one is a number."""
    digits = load("digits").train.images[[3, 13]].astype(float) / 16
    x, z = (image[..., 0] for image in digits)
    found = list(kernels_after(SMALL, x, z))
    figure = Figure(figsize=(9, 2.6))
    grid = figure.add_gridspec(2, len(found) + 1, width_ratios=(0.55, *(1,) * len(found)), wspace=0.25, hspace=0.3)
    for row, image in enumerate((x, z)):
        axes = figure.add_subplot(grid[row, 0])
        axes.imshow(image, cmap="gray_r")
        axes.set_title("x" if row == 0 else "z", fontsize=10, fontstyle="italic")
        axes.set_xticks([])
        axes.set_yticks([])
    for place, (name, K) in enumerate(found, start=1):
        axes = figure.add_subplot(grid[:, place])
        axes.imshow(K, cmap="magma", vmin=0, vmax=max(K.max(), 1e-9))
        axes.set_title(name, fontsize=10, fontfamily="monospace")
        axes.set_xlabel(f"{K.shape[0]} × {K.shape[1]}" if K.size > 1 else f"k(x, z) = {K.item():.1f}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def kernels_after(names: Sequence[str], x: Any, z: Any) -> list[tuple[str, Any]]:
    """Kernels (positions of x, positions of z) of the pixels and after every layer, by the formulas of the layers."""
    side = x.shape[0]
    pairs = {"xz": np.multiply.outer(x.ravel(), z.ravel())}
    pairs |= {"xx": np.multiply.outer(x.ravel(), x.ravel()), "zz": np.multiply.outer(z.ravel(), z.ravel())}
    found = [("pixels", pairs["xz"])]
    for name in names:
        if name == "relu":
            norms = {own: np.sqrt(pairs[own + own].diagonal()) for own in "xz"}
            pairs = {key: _embed(K, norms[key[0]], norms[key[1]]) for key, K in pairs.items()}
        elif name == "conv3":
            pairs = {key: _both_move(K, side) for key, K in pairs.items()}
        else:
            size = side if name == "globalpool" else int(name[-1])
            pairs = {key: _pool(K, side, size) for key, K in pairs.items()}
            side //= size
        found.append((name, pairs["xz"]))
    return found


def _embed(K: Any, left: Any, right: Any) -> Any:
    scale = np.multiply.outer(left, right)
    cosines = np.divide(K, scale, out=np.zeros_like(K), where=scale > 0)
    return scale * tl.ReLU().dual(np.clip(cosines, -1, 1))


def _both_move(K: Any, side: int) -> Any:
    """The sum over a 3×3 window, both positions moving together: at a fixed offset, a box filter."""
    moved = np.zeros_like(K).reshape((side,) * 4)
    source = K.reshape((side,) * 4)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            shift = np.roll(source, (-down, -right, -down, -right), (0, 1, 2, 3))
            for axis, step in enumerate((down, right, down, right)):
                edge = [slice(None)] * 4
                edge[axis] = slice(side - step, None) if step > 0 else slice(0, -step)
                shift[tuple(edge)] = 0
            moved += shift
    return moved.reshape(K.shape)


def _pool(K: Any, side: int, size: int) -> Any:
    small = side // size
    means = K.reshape(small, size, small, size, small, size, small, size).mean(axis=(1, 3, 5, 7))
    return means.reshape(small**2, small**2)


def offsets() -> Figure:
    """Two grids with pairs of positions at one offset, and the box filter that a convolution is there."""
    figure = Figure(figsize=(10, 3.4))
    axes = _blank(figure, (0, 20), (-0.8, 6.6))
    for left, name, shift in ((0, "left image", (0, 0)), (7, "right image", (1, 2))):
        _grid(axes, left, 0, 6)
        for row, column in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (1, 0), (2, 0), (3, 0)):
            colour = RED if (row, column) == (2, 1) else BLUE
            alpha = 0.95 if colour == RED else 0.35
            place = (left + column + shift[1], 5 - row - shift[0])
            axes.add_patch(Rectangle(place, 1, 1, facecolor=colour, alpha=alpha, edgecolor="none"))
        axes.text(left + 3, 6.2, name, ha="center", fontsize=10)
    _arrow(axes, (1.5, 3.5), (10.4, 2.6), colour=RED, curve=-0.25)
    axes.text(6.5, -0.6, "offset (1, 2): one row down, two columns right", ha="center", fontsize=9.5)
    _grid(axes, 14, 0, 6, rows=5, columns=4)
    for row in range(1, 4):
        for column in range(3):
            colour = RED if (row, column) == (2, 1) else BLUE
            alpha = 0.95 if colour == RED else 0.35
            axes.add_patch(Rectangle((14 + column, 5 - row), 1, 1, facecolor=colour, alpha=alpha, edgecolor="none"))
    axes.text(16, 6.2, "all pairs at this offset", ha="center", fontsize=10)
    axes.text(16, -0.6, "conv3 is a 3×3 box filter here", ha="center", fontsize=9.5)
    return figure


def ring() -> Figure:
    """Rows of one offset stream through the layers of a stage; each layer keeps four rows."""
    figure = Figure(figsize=(10, 2.6))
    axes = _blank(figure, (0, 20), (-0.5, 5))
    stages = (
        ("pixels", 1, GREY, "inner products"),
        ("conv3 relu", 4, BLUE, "ring of four rows"),
        ("conv3 relu", 4, BLUE, "ring of four rows"),
        ("pool2", 1, GOLD, "sums for the next stage"),
    )
    for place, (name, kept, colour, words) in enumerate(stages):
        left = 0.4 + 5 * place
        for row in range(kept):
            alpha = 0.3 if row else 0.95  # the first row has just come
            axes.add_patch(Rectangle((left, 3.4 - row), 3.4, 0.8, facecolor=colour, alpha=alpha, edgecolor="white"))
        axes.text(left + 1.7, 4.55, name, ha="center", fontsize=10, fontfamily="monospace")
        axes.text(left + 1.7, -0.35, words, ha="center", fontsize=8.5, color=GREY)
        if place:
            _arrow(axes, (left - 1.5, 3.8), (left - 0.1, 3.8))
    return figure


def tiles() -> Figure:
    """A matrix in tiles: one triangle is stored, a panel feeds a row of tiles."""
    figure = Figure(figsize=(6, 3.4))
    axes = _blank(figure, (-2.2, 9), (-0.4, 6.8))
    for row in range(6):
        for column in range(6):
            stored = column >= row
            done = stored and (row < 2 or (row == 2 and column < 4))
            colour = BLUE if done else "#dfe6ec" if stored else "#f6f8fa"
            axes.add_patch(Rectangle((column, 5 - row), 0.94, 0.94, facecolor=colour))
    axes.add_patch(Rectangle((4, 3), 0.94, 0.94, facecolor=RED))
    for at, (label, place) in enumerate((("panel of X", (-1.6, 3)), ("panel of X", (4, 6.15)))):
        size = (1.2, 0.94) if at == 0 else (0.94, 0.5)
        axes.add_patch(Rectangle(place, *size, facecolor=GOLD))
        where = (-1.0, 2.6) if at == 0 else (5.1, 6.3)
        axes.text(*where, label, ha="center" if at == 0 else "left", fontsize=8.5, color=GREY)
    for up, (colour, words) in enumerate(
        ((BLUE, "on disk"), (RED, "in work"), ("#dfe6ec", "to do"), ("#f6f8fa", "mirrored"))
    ):
        axes.add_patch(Rectangle((6.5, 4.2 - 0.9 * up), 0.6, 0.6, facecolor=colour, edgecolor="#c5d0d8", linewidth=0.6))
        axes.text(7.3, 4.35 - 0.9 * up, words, fontsize=9)
    return figure


def _blank(figure: Figure, across: tuple[float, float], up: tuple[float, float]) -> Any:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(*across)
    axes.set_ylim(*up)
    axes.set_aspect("equal")
    axes.axis("off")
    return axes


def _box(axes: Any, left: float, bottom: float, width: float, height: float, colour: str) -> None:
    style = "round,pad=0,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((left, bottom), width, height, boxstyle=style, facecolor=colour, edgecolor="none"))


def _arrow(axes: Any, start: Any, end: Any, colour: str = "#22303c", curve: float = 0.0) -> None:
    bend = f"arc3,rad={curve}"
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=colour, connectionstyle=bend, zorder=5)
    )


def _grid(
    axes: Any, left: float, bottom: float, side: int, rows: int | None = None, columns: int | None = None
) -> None:
    rows, columns = rows or side, columns or side
    for row in range(rows):
        for column in range(columns):
            place = (left + column, bottom + side - 1 - row)
            axes.add_patch(Rectangle(place, 1, 1, facecolor="none", edgecolor="#c5d0d8", linewidth=0.8))


if __name__ == "__main__":
    draw_all(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
