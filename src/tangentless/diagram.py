"""An architecture as a picture: a box for each layer from top to bottom, branches side by side.

Boxes of convolutions, nonlinearities and pools differ in colour and in their corners. Lines take the colour of the
page's text, so the picture is readable in light and dark notebooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .layers import Average, Layer, Nonlinearity, Stack, branches_of
from .layers import Sum as SumLayer
from .markup import Markup, svg, tag

# Pixels: height of a box; space between layers, between branches, around the picture.
_BOX, _GAP, _BESIDE, _MARGIN = 22, 10, 14, 8
_LETTER, _NARROWEST = 7.2, 84  # pixels: width of a letter, least width of a box
_INK = "#1b2733"


@dataclass(frozen=True)
class _Style:
    """The look of a box: lightened colours of Okabe and Ito, and corner radii that differ too."""

    fill: str
    edge: str
    corner: int


_STACK, _EMBED = _Style("#cfe5f5", "#0072b2", 2), _Style("#fbe0cf", "#d55e00", 11)
_AVERAGE, _OTHER = _Style("#cdeee2", "#009e73", 2), _Style("#eceff2", "#5c6b78", 6)


def draw_layers(layers: Sequence[Layer], title: str) -> Markup:
    """The picture of layers as SVG.

    >>> from .layers import Conv, ReLU
    >>> draw_layers([Conv(3), ReLU()], "two layers").count("<rect")
    2
    """
    width, height = _size(layers)
    middle = width / 2 + _MARGIN
    parts = _draw(layers, middle, _MARGIN + _GAP)
    start = _line(middle, _MARGIN, middle, _MARGIN + _GAP)
    end = _line(middle, height + _MARGIN + _GAP, middle, height + _MARGIN + 2 * _GAP)
    whole = width + 2 * _MARGIN, height + 2 * _MARGIN + 2 * _GAP
    style = f"width:{whole[0]:g}px;max-width:100%;font:12px system-ui,sans-serif"
    return svg(*whole, title, start, *parts, end, style=style, color="currentColor")


def draw_beside(expression: str, pictures: Iterable[Any]) -> Markup:
    """The text of an expression, and below it pictures of its parts side by side."""
    shown = (tag("div", Markup(one._repr_svg_())) for one in pictures)
    row = tag("div", *shown, style="display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start")
    return tag("div", tag("code", expression), row)


def _size(layers: Sequence[Layer]) -> tuple[float, float]:
    sizes = [_layer_size(layer) for layer in layers]
    if not sizes:  # the identity: a line beside other branches
        return _NARROWEST / 2, 0.0
    return max(width for width, _ in sizes), sum(height for _, height in sizes) + _GAP * (len(sizes) - 1)


def _layer_size(layer: Layer) -> tuple[float, float]:
    branches = branches_of(layer)
    if not branches:
        return max(_NARROWEST, _LETTER * len(str(layer)) + 16), _BOX
    sizes = [_size(branch) for branch in branches]
    width = sum(width for width, _ in sizes) + _BESIDE * (len(sizes) - 1)
    weights = _BOX + _GAP if _weighted(layer) else 0
    return width, max(height for _, height in sizes) + 2 * _GAP + _BOX + weights


def _weighted(layer: Layer) -> bool:
    return isinstance(layer, SumLayer) and set(layer.weights) != {1.0}


def _draw(layers: Sequence[Layer], middle: float, top: float) -> Iterator[Markup]:
    for place, layer in enumerate(layers):
        if place:
            yield _line(middle, top - _GAP, middle, top)
        yield from _branches(layer, middle, top) if branches_of(layer) else _layer(layer, middle, top)
        top += _layer_size(layer)[1] + _GAP


def _layer(layer: Layer, middle: float, top: float) -> Iterator[Markup]:
    styles = ((Stack, _STACK), (Nonlinearity, _EMBED), (Average, _AVERAGE), (Layer, _OTHER))
    style = next(style for kind, style in styles if isinstance(layer, kind))
    yield from _box(str(layer), style, _layer_size(layer)[0], middle, top)


def _box(text: str, style: _Style, width: float, middle: float, top: float) -> Iterator[Markup]:
    place = {"x": f"{middle - width / 2:g}", "y": f"{top:g}", "width": f"{width:g}", "height": _BOX}
    yield tag("rect", **place, rx=style.corner, fill=style.fill, stroke=style.edge)
    yield _text(text, middle, top + _BOX / 2)


def _branches(layer: Layer, middle: float, top: float) -> Iterator[Markup]:
    """Lines from one point to every branch, and from their ends to a plus sign."""
    branches, (width, height) = branches_of(layer), _layer_size(layer)
    weights = layer.weights if isinstance(layer, SumLayer) else (1.0,) * len(branches)
    left, start, end = middle - width / 2, top + _GAP, top + height - _BOX - _GAP
    for branch, weight in zip(branches, weights, strict=True):
        own, length = _size(branch)
        centre = left + own / 2
        yield _line(middle, top, centre, start)
        yield from _draw(branch, centre, start)
        yield _line(centre, start + length, centre, end)
        yield _line(centre, end, middle, end + _GAP)
        if _weighted(layer):
            yield from _box(f"× {weight:g}", _OTHER, _NARROWEST / 2, centre, end - _BOX)
        left += own + _BESIDE
    centre = top + height - _BOX / 2
    yield tag("circle", cx=f"{middle:g}", cy=f"{centre:g}", r=_BOX / 2, fill=_OTHER.fill, stroke=_OTHER.edge)
    yield _text("+", middle, centre)


def _line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    ends = {name: f"{value:g}" for name, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2))}
    return tag("line", **ends, stroke="currentColor", opacity=0.6)


def _text(text: str, x: float, y: float) -> Markup:
    place = {"x": f"{x:g}", "y": f"{y:g}", "text_anchor": "middle", "dominant_baseline": "central"}
    return tag("text", text, **place, fill=_INK)
