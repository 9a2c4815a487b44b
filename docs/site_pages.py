"""A small Sphinx extension: pages and pictures that are made from the package and from stored records.

It writes into docs/generated before Sphinx reads any page, so that nothing on the site is a copy that could grow old.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cost_table
import leaderboard
from tangentless.plots import STYLE

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RECORDS = ROOT / "benchmarks" / "results"
GALLERY = (
    "first_kernel",
    "own_photographs",
    "leave_one_out",
    "uncertainty",
    "novelty",
    "own_nonlinearity",
    "residual_networks",
    "distillation",
    "store_and_resume",
    "nystroem",
    "frozen_embeddings",
    "kernel_against_network",
    "sequences",
    "tables",
)


def gallery_order(filename: str) -> int:
    """From the first kernel to the special cases; an example that is not listed is an error."""
    return GALLERY.index(Path(filename).stem)


def reset_figures(_: Any, __: Any) -> None:
    """The same look for all pictures of the gallery."""
    import matplotlib

    matplotlib.rcParams.update(STYLE | {"savefig.bbox": "tight"})


def write_pages(app: Any) -> None:
    """Write everything that is generated."""
    folder = DOCS / "generated"
    folder.mkdir(exist_ok=True)
    _write(folder / "leaderboard.md", leaderboard.page(RECORDS))
    leaderboard.draw_speed(RECORDS, folder / "speed.svg")
    _write(folder / "records.md", leaderboard.records_page(RECORDS))
    _write(folder / "log-of-attempts.md", _moved((RECORDS / "LOG.md").read_text()))
    script = f"window.TANGENTLESS_COSTS = {json.dumps(cost_table.table(RECORDS))};\n"
    _write(DOCS / "_static" / "cost-data.js", script)


def _moved(text: str) -> str:
    """A page of benchmarks/results, with links as they must be in docs/generated."""

    def link(match: re.Match[str]) -> str:
        target = match[1].removeprefix("../../docs/")
        return f"](../{target})" if target != match[1] else f"](../../benchmarks/results/{target})"

    return re.sub(r"\]\((?!https?:)([^)\s]+)\)", link, text)


def _write(path: Path, text: str) -> None:
    """Leave a file alone that would not change, so that Sphinx does not read it again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


# In the repository a folder of records is a link that leads somewhere; on the site it is a page.
_ELSEWHERE = {
    "../examples": "gallery/index.rst",
    "../benchmarks/results": "generated/records.md",
    "../benchmarks/results/cpu_compare.md": "../benchmarks/results/cpu_compare.json",
    "../benchmarks/results/LOG.md": "generated/log-of-attempts.md",
}


def follow_elsewhere(app: Any, docname: str, source: list[str]) -> None:
    """Turn links out of docs/ into links to the pages that stand for their targets."""

    def link(match: re.Match[str]) -> str:
        return f"]({_ELSEWHERE.get(match[1], match[1])})"

    source[0] = re.sub(r"\]\(([^)\s]+)\)", link, source[0])


def skip_inherited(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn and others hand down: their own pages describe it."""
    module = getattr(getattr(member, "fget", member), "__module__", None) or "tangentless"
    return None if module.startswith("tangentless") or not callable(getattr(member, "fget", member)) else True


def lay_out_sections(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Headings of docstrings become bold, and the names below them code; what is indented is a definition already."""
    section, found = "", []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if after and set(after) == {"-"}:
            section = line
            found += [f"**{line}**", ""]
        elif line and set(line) == {"-"}:
            continue
        elif section in ("Parameters", "Attributes", "Returns") and line and not line.startswith(" "):
            found += ["", ", ".join(f"``{word.strip()}``" for word in line.split(","))]
        else:
            found.append(line)
    lines[:] = found


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages, priority=100)  # before the gallery and the summaries
    app.connect("source-read", follow_elsewhere)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", lay_out_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
