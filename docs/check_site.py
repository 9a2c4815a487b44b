"""Checks the built site: every internal link, anchor, picture and script leads somewhere, those of README.md too.

Notebooks of the gallery must be there for every example, in format 4, with code that compiles.

    python docs/check_site.py out/site README.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#[^)\s]*)?\)")


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for every tag."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


@cache
def read(path: Path) -> Page:
    """A page, parsed once."""
    return Page(path.read_text())


def pages_of(site: Path) -> list[Path]:
    """The pages that Sphinx wrote; files of the theme are not pages."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def broken(site: Path) -> Iterator[str]:
    """Links of the site that lead nowhere."""
    for path in pages_of(site):
        for link in dict.fromkeys(read(path).links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{path.relative_to(site)}: {link} is not there"
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
                yield f"{path.relative_to(site)}: {link} has no such anchor"


def broken_in(page: Path) -> Iterator[str]:
    """Links of a Markdown page to files that are not there."""
    for target in LINK.findall(page.read_text()):
        if target and not (page.parent / target).exists():
            yield f"{page}: {target} is not there"


def spoilt(site: Path) -> Iterator[str]:
    """Notebooks that are missing or cannot be opened and run."""
    notebooks = {path.stem: path for path in site.rglob("*.ipynb")}
    for example in sorted((Path(__file__).parents[1] / "examples").glob("*.py")):
        if example.stem not in notebooks:
            yield f"{example.stem}.ipynb is not there"
            continue
        content = json.loads(notebooks[example.stem].read_text())
        if content["nbformat"] != 4:
            yield f"{example.stem}.ipynb is of format {content['nbformat']}"
        for cell in content["cells"]:
            try:
                compile("".join(cell["source"]) if cell["cell_type"] == "code" else "", example.name, "exec")
            except SyntaxError as error:
                yield f"{example.stem}.ipynb: {error}"


def main() -> int:
    """Print what is broken; the number of it, at most 1, is the exit code."""
    site, *pages = map(Path, sys.argv[1:])
    found = [*broken(site), *spoilt(site), *(line for page in pages for line in broken_in(page))]
    print("\n".join(found) or f"all internal links of {len(pages_of(site))} pages lead somewhere")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
