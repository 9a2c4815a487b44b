"""Pictures of experiments, each as PNG to look at and as SVG to print."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..files import atomic_file
from ..plots import STYLE, new_figure

COLOURS = ("#2b5a8c", "#c8372e", "#3f8f5b", "#8a5a9e", "#c98a1b", "#5c6b78")
_REPRODUCIBLE: dict[Any, Any] = {"svg.hashsalt": "tangentless"}  # the same picture is always the same file


def new_axes(width: float, height: float, title: str, across: str, up: str) -> tuple[Any, Any]:
    """A figure with one set of axes, labelled."""
    import matplotlib

    figure = new_figure(width, height)
    with matplotlib.rc_context(STYLE):
        axes = figure.add_subplot()
        axes.set_title(title)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e8ec", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as `NAME.png` and `NAME.svg`; returns the two files."""
    import matplotlib

    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        content = io.BytesIO()
        with matplotlib.rc_context({**STYLE, **_REPRODUCIBLE}):
            figure.savefig(content, format=kind, bbox_inches="tight", metadata=metadata)
        path = folder / f"{name}.{kind}"
        with atomic_file(path) as stream:
            stream.write(content.getvalue())
        paths.append(path)
    return paths
