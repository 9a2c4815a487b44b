"""HTML and SVG whose text is always escaped, for reports and for pictures in notebooks.

`tag` escapes every text that is not `Markup`, so names of classes and files are shown and never interpreted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

# XML does not allow control characters, not even escaped ones. U+FFFD, the replacement character, stands for them.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset({"meta", "link", "img", "input", "br", "hr"})  # HTML elements without an end tag


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def escape(text: Any) -> Markup:
    """Any value as escaped text; `Markup` is returned unchanged.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return text if isinstance(text, Markup) else Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(text))))


def join(parts: Iterable[Any], between: str = "") -> Markup:
    """Concatenated parts; those that are not `Markup` are escaped."""
    return Markup(between.join(map(escape, parts)))


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element. In names of attributes, underscores become hyphens, and a final one is dropped (`class_`).

    Attributes that are None are left out.

    >>> tag("td", "a < b", class_="name", aria_label="x", hidden=None)
    '<td class="name" aria-label="x">a &lt; b</td>'
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    start = "".join([name, *(f' {key}="{escape(value)}"' for key, value in pairs)])
    if name in _EMPTY:
        return Markup(f"<{start} />")
    return Markup(f"<{start}>{join(children)}</{name}>")


def html_table(columns: Sequence[Any], rows: Iterable[Sequence[Any]], **attributes: Any) -> Markup:
    """A table with a row of column heads.

    >>> html_table(("a",), [("<1>",)])
    '<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td>&lt;1&gt;</td></tr></tbody></table>'
    """
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    body = (tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    return tag("table", tag("thead", head), tag("tbody", *body), **attributes)


def svg(width: float, height: float, title: str, *children: Any, **attributes: Any) -> Markup:
    """An SVG picture with a view box of a size in pixels. Screen readers say the title."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria_label": title}
    return tag("svg", tag("title", title), *children, xmlns="http://www.w3.org/2000/svg", **size, **attributes)
