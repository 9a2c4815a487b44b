"""Text for the terminal and for reports: lines, tables and percentages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def say(text: str, style: str | None = None, *, markup: bool = False) -> None:
    """Print a line of text; with `markup`, tags of rich such as [bold] are applied."""
    from rich.console import Console

    Console(highlight=False, soft_wrap=True, markup=markup).print(text, style=style)


def say_aside(text: str) -> None:
    """Print one line on the error stream; line breaks in the text become spaces."""
    print(" ".join(text.split()), file=sys.stderr, flush=True)


def say_files(paths: Iterable[Path]) -> None:
    """Print the paths of the files that a run has written, one a line."""
    say("\n".join(map(str, paths)), style="dim")


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are numbers."""
    print_table(make_table(columns, rows, title))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A rich table whose first column is text (left-aligned) and whose others are numbers (right-aligned)."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table) -> None:
    """Print a rich table. If the output is not a terminal, the table may be 160 characters wide."""
    from rich.console import Console

    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, followed by an empty line. Short rows are filled with empty cells.

    >>> markdown(("a", "b"), [("sum(relu | erf)", "2"), ("3",)])
    ['| a | b |', '| --- | --- |', '| sum(relu \\\\| erf) | 2 |', '| 3 | |', '']
    """
    lines = []
    for cells in (columns, ["---"] * len(columns), *rows):
        text = " | ".join(cell.replace("|", "\\|") for cell in cells)
        lines.append(f"| {text} |{' |' * (len(columns) - len(cells))}")
    return [*lines, ""]


def percent(share: float | None, digits: int = 1) -> str:
    """A share (0 to 1) as a percentage, or a dash for None.

    >>> percent(0.78512), percent(None)
    ('78.5', '-')
    """
    return "-" if share is None else f"{100 * share:.{digits}f}"


def span(interval: Sequence[float] | None) -> str:
    """An interval of shares (0 to 1) as percentages, or a dash for None.

    >>> span((0.5, 0.625))
    '50.0 to 62.5'
    """
    return "-" if interval is None else " to ".join(map(percent, interval))


def with_deviation(spread: Mapping[str, Any] | None) -> str:
    """A mean and its standard deviation as percentages; only the mean if there is no deviation."""
    if spread is None or spread["deviation"] is None:
        return percent(None if spread is None else spread["mean"])
    return f"{percent(spread['mean'])} ± {percent(spread['deviation'])}"
