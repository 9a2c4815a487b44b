"""Charts as SVG inside a page. Lines differ in dashes as well as in colour, and every point has a tooltip.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart. They are classes of
the style sheet (c0 to c5), so a chart switches between light and dark with the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..markup import Markup, join, svg, tag

Array = NDArray[np.float64]
Range = tuple[float, float]

COLOURS = 6
_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 42


@dataclass(frozen=True, eq=False)
class Series:
    """A line of points (x, y), optionally with a band from `low` to `high` around it."""

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    sizes: Array | None = None  # radii of the points in pixels, by default 3
    joined: bool = True  # False: points without a line


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes. Ranges that are not given cover the data."""

    title: str
    across: str  # label of the x axis
    up: str  # label of the y axis
    series: Sequence[Series]
    log: bool = False  # logarithmic x axis
    percent: bool = False  # y holds shares from 0 to 1, shown in per cent
    x_range: Range | None = None
    y_range: Range | None = None
    diagonal: bool = False  # draw the line y = x
    marks: Sequence[tuple[float, str]] = ()  # vertical lines at x, each with a text
    note: str = ""

    def draw(self) -> Markup:
        """The chart as a figure. With several lines it has a legend below.

        >>> chart = Chart("t", "x", "y", [Series("a", np.array([1.0, 2.0]), np.array([3.0, 4.0]))])
        >>> chart.draw().count("<circle")
        2
        """
        axes = _Axes.of(self)
        parts = [*axes.grid(), *(part for at, one in enumerate(self.marks) for part in axes.mark(at, *one))]
        if self.diagonal:
            parts.append(axes.line([axes.x_range[0], axes.x_range[1]], [axes.x_range[0], axes.x_range[1]], "faint"))
        for place, series in enumerate(self.series):
            parts += axes.draw(series, place % COLOURS)
        words = f"{self.title}: {self.up} against {self.across}"
        picture = svg(_WIDTH, _HEIGHT, words, *parts, class_="chart")
        legend = tag("ul", *map(_legend_entry, range(len(self.series)), self.series), class_="legend")
        note = [tag("p", self.note, class_="note")] if self.note else []
        shown = [legend] if len(self.series) > 1 else []
        return tag("figure", tag("h3", self.title), picture, *shown, *note)


def draw_bars(title: str, values: Sequence[tuple[str, float]]) -> Markup:
    """Horizontal bars from zero, each with its name above it and its value beside it.

    >>> draw_bars("speeds", [("a", 1.0), ("b", 2.0)]).count("<rect")
    2
    """
    row, room = 40, 80
    longest = max((value for _, value in values), default=1.0) or 1.0
    parts = []
    for place, (name, value) in enumerate(values):
        width = (_WIDTH - room) * value / longest
        top = row * place
        parts.append(tag("text", name if len(name) <= 56 else f"{name[:55]}…", x=0, y=top + 13, class_="label"))
        parts.append(tag("rect", x=0, y=top + 18, width=f"{width:.1f}", height=14, rx=2, class_="bar c0"))
        parts.append(tag("text", _number(value), x=f"{width + 6:.1f}", y=top + 29))
    return tag("figure", svg(_WIDTH, row * max(len(values), 1), title, *parts, class_="chart"))


def _legend_entry(place: int, series: Series) -> Markup:
    line = tag("line", x1=1, y1=5, x2=27, y2=5, class_=f"line c{place % COLOURS}")
    return tag("li", tag("svg", line, viewBox="0 0 28 10", aria_hidden="true"), series.name)


@dataclass(frozen=True)
class _Axes:
    """Maps values to pixels, and draws axes, lines and points with them."""

    chart: Chart
    x_range: Range
    y_range: Range

    @classmethod
    def of(cls, chart: Chart) -> _Axes:
        x = np.concatenate([series.x for series in chart.series])
        y = np.concatenate([part for s in chart.series for part in (s.y, s.low, s.high) if part is not None])
        across = chart.x_range or _range_of(np.append(x, [place for place, _ in chart.marks]), chart.log)
        up = chart.y_range or _range_of(y, False, room=0.06)
        return cls(chart, across, (max(up[0], 0.0), min(up[1], 1.0)) if chart.percent else up)

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.chart.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> Iterator[Markup]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for value in _decades(self.x_range) if self.chart.log else _ticks(self.x_range):
            place = f"{self.x(value):.1f}"
            yield tag("line", x1=place, x2=place, y1=_TOP, y2=bottom, class_="grid")
            yield tag("text", _number(value), x=place, y=bottom + 15, text_anchor="middle")
        for value in _ticks(self.y_range):
            place = f"{self.y(value):.1f}"
            yield tag("line", x1=_LEFT, x2=right, y1=place, y2=place, class_="grid")
            yield tag(
                "text", self._format_y(value), x=_LEFT - 5, y=place, text_anchor="end", dominant_baseline="central"
            )
        middle = (_LEFT + right) / 2
        yield tag("text", self.chart.across, x=middle, y=_HEIGHT - 8, text_anchor="middle", class_="label")
        turned = f"translate(11 {(_TOP + bottom) / 2:g}) rotate(-90)"
        yield tag("text", self.chart.up, transform=turned, text_anchor="middle", class_="label")

    def mark(self, at: int, value: float, text: str) -> Iterator[Markup]:
        place = self.x(value)
        right = place > _WIDTH * 0.6
        yield tag("line", x1=f"{place:.1f}", x2=f"{place:.1f}", y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="mark")
        words = {"x": f"{place + (-5 if right else 5):.1f}", "text_anchor": "end" if right else "start"}
        yield tag("text", text, **words, y=_HEIGHT - _BOTTOM - 7 - 15 * at, class_="label")

    def draw(self, series: Series, colour: int) -> Iterator[Markup]:
        if series.low is not None and series.high is not None:
            points = [*zip(series.x, series.high, strict=True), *zip(series.x[::-1], series.low[::-1], strict=True)]
            yield tag("polygon", points=self._points(points), class_=f"band c{colour}")
        if series.joined:
            yield self.line(series.x, series.y, f"line c{colour}")
        sizes = np.full(len(series.x), 3.0) if series.sizes is None else series.sizes
        for x, y, size in zip(series.x, series.y, sizes, strict=True):
            words = f"{series.name}: {_number(x)}, {self._format_y(y)}"
            at = {"cx": f"{self.x(x):.1f}", "cy": f"{self.y(y):.1f}", "r": f"{size:.1f}"}
            yield tag("circle", tag("title", words), **at, class_=f"point c{colour}")

    def line(self, x: Sequence[float] | Array, y: Sequence[float] | Array, kind: str) -> Markup:
        return tag("polyline", points=self._points(zip(x, y, strict=True)), class_=kind)

    def _points(self, points: Iterable[tuple[float, float]]) -> Markup:
        return join((f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points), " ")

    def _format_y(self, value: float) -> str:
        return f"{100 * value:.4g} %" if self.chart.percent else _number(value)


def _range_of(values: Array, log: bool, room: float = 0.0) -> Range:
    low, high = float(np.min(values)), float(np.max(values))
    if log:
        return (low, high) if high > low else (low / 2, high * 2)
    if high <= low:
        room, high = 0.5, low + max(abs(low), 1.0)
    return low - room * (high - low), high + room * (high - low)


def _ticks(bounds: Range) -> list[float]:
    """Round numbers, about five of them.

    >>> [round(tick, 9) for tick in _ticks((0.12, 0.93))]
    [0.2, 0.4, 0.6, 0.8]
    """
    low, high = bounds
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _decades(bounds: Range) -> list[float]:
    """At most seven ticks of a logarithmic axis: powers of ten, in a short range also 2 and 5 times those.

    >>> _decades((1e-10, 1e3)), _decades((18, 600))
    ([1e-10, 1e-08, 1e-06, 0.0001, 0.01, 1.0, 100.0], [20.0, 50.0, 100.0, 200.0, 500.0])
    """
    low, high = (math.log10(bound) for bound in bounds)
    powers = range(math.floor(low), math.ceil(high) + 1)
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    inside = [tick for tick in ticks if bounds[0] * (1 - 1e-9) <= tick <= bounds[1] * (1 + 1e-9)]
    return inside[:: math.ceil(len(inside) / 7)] or list(bounds)


def _number(value: float) -> str:
    """A number as axes and tooltips show it.

    >>> [_number(v) for v in (0.0, 1e-10, 0.25, 2000, 1e6)]
    ['0', '1e-10', '0.25', '2,000', '1e+06']
    """
    value = 0.0 if abs(value) < 1e-300 else float(value)
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    return text.replace("e-0", "e-")
