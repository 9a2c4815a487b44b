"""Text for the terminal: lines, tables and percentages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def say(text: str, style: str | None = None) -> None:
    """Print a line of text."""
    from rich.console import Console

    Console(highlight=False, soft_wrap=True, markup=False).print(text, style=style)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)


def percent(share: float | None) -> str:
    """A share as a percentage, and a dash for what is not known.

    >>> percent(0.78512), percent(None)
    ('78.5', '-')
    """
    return "-" if share is None else f"{100 * share:.1f}"


def say_files(paths: Iterable[Path]) -> None:
    """Say which files a run has written."""
    say("\n".join(map(str, paths)), style="dim")
