"""A page: sections, configuration and versions in one HTML file that needs no network and no other file.

The template, the style sheet and the scripts are files beside this one. The content security policy of the page forbids
every request, so a report looks the same without a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import atomic_file, check_output
from ..markup import Markup, escape, html_table, join, tag
from ..timing import environment, format_bytes
from .encoding import data_url

_PLACE = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    name: str  # the id that links point to
    title: str
    body: Markup


@dataclass(frozen=True, eq=False)
class Page:
    """The content of a report."""

    title: str
    lead: str  # the paragraph below the title
    sections: Sequence[Section]
    configuration: Mapping[str, Any]
    tiles: Sequence[tuple[str, str]] = ()  # names and values of the key figures at the top
    notes: Sequence[str] = ()
    scripts: Sequence[str] = ()  # files beside this one
    styles: Sequence[str] = ()  # CSS
    data: Any = None  # JSON values for the scripts
    blobs: Mapping[str, str] = field(default_factory=dict)  # longer texts for the scripts, by the id of their element

    def html(self) -> str:
        """The whole file.

        >>> page = Page("A <title>", "Words.", [], {"ridge": 0.1})
        >>> "<h1>A &lt;title&gt;</h1>" in page.html()
        True
        """
        about = Section("about", "Configuration and versions", self._about())
        shown = [*self.sections, about]
        links = (tag("a", section.title, href=f"#{section.name}") for section in shown)
        tiles = (tag("div", tag("dt", name), tag("dd", value)) for name, value in self.tiles)
        scripts = [read_asset("report.js"), *map(read_asset, self.scripts)]
        blobs = (tag("script", Markup(text), id=name, type="text/plain") for name, text in self.blobs.items())
        parts = {
            "title": escape(self.title),
            "styles": "\n".join([read_asset("report.css"), *self.styles]),
            "lead": tag("p", self.lead, class_="lead"),
            "links": join(links),
            "tiles": tag("dl", *tiles, class_="tiles") if self.tiles else "",
            "sections": join(map(_section, shown)),
            "data": tag("script", Markup(_json(self.data)), id="data", type="application/json"),
            "blobs": join(blobs),
            "scripts": "\n".join(scripts),
        }
        text = _PLACE.sub(lambda match: parts.get(match.group(1), match.group(0)), read_asset("template.html"))
        return text.replace("@SIZE@", format_bytes(len(text.encode())), 1)

    def _about(self) -> Markup:
        notes = [*self.notes, "Colours are those of Okabe and Ito, of matrices those of cividis."]
        words = (tag("li", note) for note in notes)
        size = tag("p", "This file has @SIZE@ and needs no network. Made by tangentless.")
        tables = _facts("Configuration", self.configuration), _facts("Where this was written", environment())
        return join([tag("div", *tables, class_="columns"), tag("ul", *words, class_="note"), size])


def write_page(path: Path, page: Page, *, force: bool = False) -> None:
    """Write the file whole or not at all. An existing file is replaced only with `force`."""
    check_output(path, force=force)
    with atomic_file(path) as stream:
        stream.write(page.html().encode())


def sortable_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table that sorts by a column when its head is clicked, and scrolls sideways on a narrow screen."""
    heads = [tag("button", column, type="button") for column in columns]
    table = html_table(heads, rows, class_="sortable")
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _facts(title: str, values: Mapping[str, Any]) -> Markup:
    """A table of names and values. An entry of a mapping within `values` is named "outer, inner"."""
    return tag("div", tag("h3", title), html_table(("name", "value"), _flat(values), class_="facts"))


def drawing(path: Path) -> Markup:
    """An SVG or PNG file embedded in the page; scripts in it do not run."""
    kind = {".svg": "image/svg+xml", ".png": "image/png"}[path.suffix]
    words = path.stem.replace("-", " ")
    return tag(
        "figure", tag("img", src=data_url(kind, path.read_bytes()), alt=words, class_=f"drawing {path.suffix[1:]}")
    )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}, ")
        else:
            plain = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{before}{name}", plain


def _section(section: Section) -> Markup:
    return tag("section", tag("h2", section.title), section.body, id=section.name)


def _json(values: Any) -> str:
    """JSON for a script element. "<" is escaped, so that no text in it can close the element."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode().replace("<", "\\u003c")


def read_asset(name: str) -> str:
    """The text of a file beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
