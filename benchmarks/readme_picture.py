"""Draws the picture of the README: an architecture, its kernel matrix of digits, and learning curves.

    python benchmarks/readme_picture.py [docs/images/overview.png]

Everything is computed, in under a minute. The matrix is of 200 digits, sorted by class. The curves are test errors on
797 images after training on up to 1,000, means and standard deviations of twenty draws, for the architecture and for
the kernel of a dense network on the same pixels. Both have the default ridge, and neither was tuned.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tangentless as tl
from tangentless import plots
from tangentless.files import atomic_file
from tangentless.solve import solve_ridge

ARCHITECTURE, DENSE = "myrtle5", "relu relu normalize relu"
SHOWN = 200
SIZES = (10, 20, 50, 100, 200, 500, 1000)
DRAWS = 20
RIDGE = 1e-4
BLUE, RED, GREEN, _, YELLOW, _ = plots.COLOURS
INK, GREY = "#22303c", "#6b7885"
COLOURS = {"conv": BLUE, "relu": RED, "pool": YELLOW, "globalpool": YELLOW, "normalize": GREEN}


def draw_architecture(axes, pair: np.ndarray) -> None:
    """Draw two images, the layers as boxes with the sizes of their grids, and k(x, z)."""
    architecture = tl.Architecture.parse(ARCHITECTURE)
    grids = architecture.grids(pair.shape[1:3])
    last = len(architecture) - 1
    for image, left, name in zip(pair, (2.6, 5.6), ("x", "z"), strict=True):
        axes.imshow(image[..., 0], cmap="gray_r", extent=(left, left + 1.9, -0.9, -3.5), aspect="auto")
        axes.add_patch(Rectangle((left, -3.5), 1.9, 2.6, fc="none", ec=GREY, lw=0.8))
        axes.text(left - 0.3, -2.1, f"${name}$", ha="right", va="center", fontsize=11)
    for place, (layer, grid) in enumerate(zip(map(str, architecture), grids[:-1], strict=True)):
        place_box = {"boxstyle": "round,pad=0,rounding_size=0.25", "mutation_aspect": 0.8}
        colour = COLOURS[layer.rstrip("0123456789")]
        axes.add_patch(FancyBboxPatch((2.6, place - 0.38), 4.9, 0.76, fc=colour, ec="none", **place_box))
        style = {"color": "white", "fontsize": 8.5, "fontfamily": "monospace", "fontweight": "bold"}
        axes.text(5.05, place, layer, ha="center", va="center_baseline", **style)
        if place == 0 or grids[place - 1] != grid:
            size = "one vector" if grid == (1, 1) else f"{grid[0]}×{grid[1]}"
            axes.text(7.9, place, size, ha="left", va="center", fontsize=8, color=GREY)
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.2}
    axes.annotate("", xy=(5.05, last + 1.45), xytext=(5.05, last + 0.45), arrowprops=arrow)
    axes.text(5.05, last + 2.05, "$k(x, z)$", ha="center", va="center", fontsize=11)
    axes.set_xlim(0, 10)
    axes.set_ylim(last + 2.6, -4.1)
    axes.axis("off")
    axes.set_title("A list of layers …")


def learning_curve(K: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Test errors in per cent, (sizes, draws). Training sets are nested, and balanced over the classes."""
    errors = np.empty((len(SIZES), DRAWS))
    for draw in range(DRAWS):
        train, test = train_test_split(np.arange(len(K)), train_size=SIZES[-1], stratify=labels, random_state=draw)
        train = train[np.argsort(occurrence(labels[train]), kind="stable")]
        for row, size in enumerate(SIZES):
            chosen = train[:size]
            solution = solve_ridge(K[np.ix_(chosen, chosen)], np.eye(10)[labels[chosen]], RIDGE)
            predicted = (K[np.ix_(test, chosen)] @ solution.coefficients).argmax(axis=1)
            errors[row, draw] = 100 * np.mean(predicted != labels[test])
    return errors


def occurrence(labels: np.ndarray) -> np.ndarray:
    """For each row, the number of rows before it with the same label."""
    return np.array([np.sum(labels[:i] == label) for i, label in enumerate(labels)])


def draw_curves(axes, curves: dict[str, np.ndarray]) -> None:
    for (name, errors), colour, offset in zip(curves.items(), (BLUE, RED), ((-6, -14), (6, 8)), strict=True):
        mean, spread = errors.mean(axis=1), errors.std(axis=1)
        axes.fill_between(SIZES, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axes.plot(SIZES, mean, color=colour, marker="o", markersize=4, linewidth=2)
        side = {"textcoords": "offset points", "ha": "right" if offset[0] < 0 else "left", "fontweight": "bold"}
        axes.annotate(name, (SIZES[3], mean[3]), offset, color=colour, fontsize=9, **side)
        above = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        axes.annotate(f"{mean[-1]:.2f} %", (SIZES[-1], mean[-1]), (7, 0), color=colour, fontsize=9, **above)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_yticks((0.5, 1, 2, 5, 10, 20, 50), ("0.5", "1", "2", "5", "10", "20", "50"))
    axes.set_ylim(0.3, 55)
    axes.set_xlabel("training images")
    axes.set_ylabel("test error, %")
    axes.grid(color="#e3e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("… which learns from few images")


def save_small(figure, path: Path) -> None:
    """Save as PNG with a palette of 192 colours: a third of the bytes, without a visible difference."""
    content, small = io.BytesIO(), io.BytesIO()
    figure.savefig(content, format="png")
    Image.open(content).convert("RGB").quantize(192, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    with atomic_file(path) as stream:
        stream.write(small.getvalue())


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "images" / "overview.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    images, labels = digits.images[..., None] / 16, digits.target
    K = tl.kernel(ARCHITECTURE)(images)
    dense = tl.kernel(DENSE)(images.reshape(len(images), -1))
    curves = {ARCHITECTURE: learning_curve(K, labels), "dense ReLU network": learning_curve(dense, labels)}

    figure = plots.new_figure(11.5, 4.3)
    with matplotlib.rc_context(plots.STYLE):
        margins = {"left": 0.0, "right": 0.935, "top": 0.905, "bottom": 0.13}
        grid = figure.add_gridspec(1, 3, width_ratios=(0.6, 1, 1), wspace=0.22, **margins)
        draw_architecture(figure.add_subplot(grid[0]), images[[3, 5]])
        middle = figure.add_subplot(grid[1])
        plots.draw_kernel_matrix(middle, K[:SHOWN, :SHOWN], labels[:SHOWN], "… has an exact kernel …")
        middle.set_xlabel("digits, sorted by class")
        draw_curves(figure.add_subplot(grid[2]), curves)
    save_small(figure, path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
