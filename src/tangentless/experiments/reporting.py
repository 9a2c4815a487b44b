"""The HTML report of an experiment: sortable tables, pictures, and the configuration that its record tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..answers import Answer
from ..console import say_files
from ..report import Page, Section, drawing, sortable_table, write_page
from ..timing import format_seconds
from .records import Outcome, read_record

Table = tuple[str, Sequence[str], Iterable[Sequence[str]]]  # title, columns, rows


def report_outcome(path: Path | None, outcome: Outcome) -> Answer:
    """The report of a run through `Run.conduct`, where one is asked for and the run came to its end; returns JSON."""
    if path is not None and not outcome.unfinished:
        view, record = outcome.view, read_record(outcome.files[0])
        table = view.title, view.columns, map(view.cells, outcome.rows)
        report_record(path, view.title, record, [table], outcome.files)
    return outcome.to_json()


def report_record(
    path: Path | None, title: str, record: Mapping[str, Any], tables: Iterable[Table], files: Iterable[Path]
) -> None:
    """A report of tables and of the pictures among the files: SVG, or PNG where there is no SVG of the same name."""
    if path is None:
        return
    sections = [
        Section(f"table{place}", name, sortable_table(name, columns, rows))
        for place, (name, columns, rows) in enumerate(tables)
    ]
    pictures = {file.stem: file for suffix in (".png", ".svg") for file in files if file.suffix == suffix}
    sections += [Section(f"figure-{name}", name.replace("-", " "), drawing(file)) for name, file in pictures.items()]
    spent = {where: format_seconds(seconds) for where, seconds in record.get("seconds_by_machine", {}).items()}
    about = {key: record[key] for key in ("command", "date") if key in record}
    about |= {**record.get("configuration", record.get("settings", {})), "time": spent}
    about |= _machines(record)
    lead = f"Experiment {record['experiment']}, {record['date']}."
    write_page(path, Page(title, lead, sections, about), force=True)
    say_files([path])


def _machines(record: Mapping[str, Any]) -> dict[str, str]:
    """A line for each machine that computed: its system and versions.

    >>> _machines({"environments": {"a laptop": {"python": "3.13", "numpy": "2.4"}}})
    {'computed on a laptop': 'python 3.13, numpy 2.4'}
    """
    found = record.get("environments") or {"this machine": record.get("environment", {})}
    return {
        f"computed on {machine}": ", ".join(f"{name} {value}" for name, value in values.items())
        for machine, values in found.items()
    }
