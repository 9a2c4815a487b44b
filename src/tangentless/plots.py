"""Pictures in the style of this package: axes for experiments, kernel and confusion matrices, distilled images.

Matplotlib is imported inside the functions, so that commands that draw nothing do not load it, and draws with its Agg
backend, which needs no display. The same picture is always the same file, byte for byte.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import atomic_file, make_folder
from .solve import Calibration

Array = NDArray[np.float64]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#5c6b78")  # Okabe and Ito, for all colour vision
_MISTAKES_SHOWN = 8
_INK, _FAINT = "#22303c", "#8a97a3"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.edgecolor": _FAINT,
    "svg.hashsalt": "tangentless",
}
_NO_DATES: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}


def new_figure(width: float, height: float) -> Any:
    """An empty figure in inches, in the style of this package."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _styled():
        figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float, height: float, title: str, across: str, up: str) -> tuple[Any, Any]:
    """A figure with one set of axes, labelled."""
    figure = new_figure(width, height)
    with _styled():
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e8ec", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def draw_kernel_matrix(axes: Any, K: Array, labels: NDArray[Any], title: str = "Kernel matrix, sorted by class") -> Any:
    """Draw the matrix with rows and columns sorted by label, and lines between classes; returns Matplotlib's image.

    The colour scale covers the middle 98 % of the entries off the diagonal; diagonal entries are far larger.
    """
    order = np.argsort(labels, kind="stable")
    classes, counts = np.unique(labels, return_counts=True)
    ends = np.cumsum(counts)
    apart = K[~np.eye(len(K), dtype=bool)]
    low, high = np.percentile(apart, [1, 99])
    image = axes.imshow(
        K[np.ix_(order, order)],
        cmap="cividis",
        vmin=low,
        vmax=high,
        interpolation="nearest" if len(K) < 400 else "antialiased",
    )
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color="white", linewidth=0.5, alpha=0.55)
        axes.axvline(end - 0.5, color="white", linewidth=0.5, alpha=0.55)
    middles = ends - counts / 2 - 0.5
    axes.set_xticks(middles, classes)
    axes.set_yticks(middles, classes)
    axes.tick_params(length=0)
    axes.set_title(title)
    return image


def draw_confusion(axes: Any, confusion: NDArray[np.intp], classes: NDArray[Any], title: str) -> None:
    """Draw the counts of true (rows) against predicted classes: right ones in blue, wrong ones in red."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    right = np.eye(len(classes), dtype=bool)
    colours = np.ones((*confusion.shape, 3))
    colours[right] = _shade(np.array([0.17, 0.35, 0.55]), 0.25 + 0.75 * shares[right])
    wrong = ~right & (confusion > 0)
    colours[wrong] = _shade(
        np.array([0.80, 0.20, 0.18]), 0.35 + 0.65 * shares[wrong] / max(shares[wrong].max(initial=0), 1e-9)
    )
    axes.imshow(colours)
    for i, j in np.argwhere(confusion > 0):
        dark = colours[i, j].mean() < 0.62
        axes.text(j, i, str(confusion[i, j]), ha="center", va="center", fontsize=8.5, color="white" if dark else _INK)
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xticks(np.arange(len(classes) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(classes) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#e3e8ec", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.set(title=title, xlabel="predicted", ylabel="true")


def draw_report(
    path: Path,
    title: str,
    K: Array,
    labels: NDArray[Any],
    images: NDArray[Any],
    truth: NDArray[Any],
    predicted: NDArray[Any],
) -> None:
    """Write a page: the kernel matrix of training images, the confusion matrix, and some mistakes on test images."""
    from sklearn.metrics import confusion_matrix

    classes = np.unique(labels)
    confusion = confusion_matrix(truth, predicted, labels=classes)
    figure = new_figure(11.2, 7.1)
    with _styled():
        grid = figure.add_gridspec(
            2, 1, height_ratios=(1, 0.2), left=0.035, right=0.985, top=0.87, bottom=0.055, hspace=0.3
        )
        top = grid[0].subgridspec(1, 2, wspace=0.1)
        left, right = figure.add_subplot(top[0]), figure.add_subplot(top[1])
        bar = figure.colorbar(draw_kernel_matrix(left, K, labels), ax=left, fraction=0.046, pad=0.03)
        bar.outline.set_visible(False)
        accuracy = f"{100 * np.mean(truth == predicted):.1f} % of {len(truth)} test images right"
        draw_confusion(right, confusion, classes, accuracy)
        _draw_mistakes(figure, grid[1], images, truth, predicted)
        figure.suptitle(title, fontsize=14, fontweight="bold", x=0.5, y=0.965, color=_INK)
    save_figure(figure, path)


def draw_distilled(path: Path, title: str, before: Array, after: Array, labels: NDArray[Any]) -> None:
    """Write a picture of at most ten images before and after distillation, each scaled to its own range."""
    count = min(10, len(after))
    figure = new_figure(0.9 * count + 0.8, 2.6)
    cells = figure.add_gridspec(2, count, left=0.09, right=0.99, top=0.78, bottom=0.03, wspace=0.08, hspace=0.08)
    for row, (word, images) in enumerate((("before", before), ("after", after))):
        for column in range(count):
            axes = figure.add_subplot(cells[row, column])
            image = images[column]
            image = (image - image.min()) / max(float(np.ptp(image)), 1e-12)
            axes.imshow(image[..., 0] if image.shape[-1] == 1 else image[..., :3], cmap="gray_r")
            axes.set(xticks=[], yticks=[])
            if row == 0:
                axes.set_title(str(labels[column]), fontsize=9, fontweight="normal", pad=3)
            if column == 0:
                axes.set_ylabel(word, fontsize=9)
    figure.suptitle(title, x=0.02, y=0.97, ha="left", fontsize=11.5, fontweight="bold")
    save_figure(figure, path)


def draw_reliability(calibrations: Mapping[str, Calibration]) -> Any:
    """Draw a reliability diagram: accuracy against confidence, one line for each way of making probabilities."""
    figure, axes = new_axes(5.2, 4.6, "Reliability", "confidence", "accuracy")
    axes.plot([0, 1], [0, 1], color=_FAINT, linewidth=0.9, linestyle="--")
    for (name, found), colour in zip(calibrations.items(), itertools.cycle(COLOURS), strict=False):
        seen = found.counts > 0
        label = f"{name}: error {found.ece:.3f}, log loss {found.nll:.3f}"
        axes.plot(found.confidences[seen], found.accuracies[seen], color=colour, linewidth=1.4, label=label)
        sizes = 4 + 120 * found.counts[seen] / found.counts.sum()
        axes.scatter(found.confidences[seen], found.accuracies[seen], sizes, color=colour)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    # The legend is outside the axes, where no line can run through it.
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return figure


def save_pictures(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as `NAME.png` and `NAME.svg`; returns the two files."""
    make_folder(folder)
    paths = [folder / f"{name}{suffix}" for suffix in _NO_DATES]
    for path in paths:
        save_figure(figure, path, bbox_inches="tight")
    return paths


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure in the format of the file's suffix; the file appears whole or not at all."""
    content = io.BytesIO()
    with _styled():
        figure.savefig(content, format=path.suffix[1:], metadata=_NO_DATES[path.suffix], **options)
    with atomic_file(path) as stream:
        stream.write(content.getvalue())


def _styled() -> contextlib.AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def _draw_mistakes(figure: Any, place: Any, images: NDArray[Any], truth: NDArray[Any], predicted: NDArray[Any]) -> None:
    wrong = np.flatnonzero(truth != predicted)
    shown = wrong[:_MISTAKES_SHOWN]
    cells = place.subgridspec(1, _MISTAKES_SHOWN + 1, wspace=0.25, width_ratios=(1.3, *(1,) * _MISTAKES_SHOWN))
    text = figure.add_subplot(cells[0])
    text.axis("off")
    count = "No mistakes" if not len(wrong) else f"{len(wrong)} mistake{'s' if len(wrong) > 1 else ''}"
    some = f",\n{len(shown)} of them" if len(shown) < len(wrong) else ""
    text.text(0, 0.5, count + some, fontsize=11.5, fontweight="bold", va="center", transform=text.transAxes)
    for cell, i in enumerate(shown, start=1):
        axes = figure.add_subplot(cells[cell])
        axes.imshow(images[i, ..., 0], cmap="gray_r", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"{truth[i]}, read as {predicted[i]}", fontsize=8.5, fontweight="normal", pad=4)


def _shade(colour: NDArray[Any], strength: NDArray[Any]) -> NDArray[Any]:
    """Mix a colour with white; strength 1 is the colour alone."""
    mixed: NDArray[Any] = 1 - strength[:, None] * (1 - colour)
    return mixed
