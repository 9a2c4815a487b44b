"""Text for the terminal and for pages: lines, tables and percentages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def say(text: str, style: str | None = None, *, markup: bool = False) -> None:
    """Print a line of text; with `markup`, words in [bold] and the like."""
    from rich.console import Console

    Console(highlight=False, soft_wrap=True, markup=markup).print(text, style=style)


def say_aside(text: str) -> None:
    """Print one line beside the results, on the error stream."""
    print(" ".join(text.split()), file=sys.stderr, flush=True)


def say_files(paths: Iterable[Path]) -> None:
    """Say which files a run has written."""
    say("\n".join(map(str, paths)), style="dim")


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are numbers."""
    print_table(make_table(columns, rows, title))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table of rich whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table) -> None:
    """Print a table of rich; where there is no terminal there is no width to fit, and nothing is cut."""
    from rich.console import Console

    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown, and an empty one; a row that is short ends in empty cells.

    >>> markdown(("a", "b"), [("sum(relu | erf)", "2"), ("3",)])
    ['| a | b |', '| --- | --- |', '| sum(relu \\\\| erf) | 2 |', '| 3 | |', '']
    """
    lines = []
    for cells in (columns, ["---"] * len(columns), *rows):
        text = " | ".join(cell.replace("|", "\\|") for cell in cells)
        lines.append(f"| {text} |{' |' * (len(columns) - len(cells))}")
    return [*lines, ""]


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage, and a dash for what is not known.

    >>> percent(0.78512), percent(None)
    ('78.5', '-')
    """
    return "-" if share is None else f"{100 * share:.{digits}f}"


def span(interval: Sequence[float] | None) -> str:
    """An interval of shares, in per cent.

    >>> span((0.5, 0.625))
    '50.0 to 62.5'
    """
    return "-" if interval is None else " to ".join(map(percent, interval))


def with_deviation(spread: Mapping[str, Any] | None) -> str:
    """A mean with its deviation, in per cent."""
    if spread is None or spread["deviation"] is None:
        return percent(None if spread is None else spread["mean"])
    return f"{percent(spread['mean'])} ± {percent(spread['deviation'])}"
