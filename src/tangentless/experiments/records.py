"""The runner: it keeps pieces while an experiment works, and in the end one JSON record, tables, pictures and a report.

An experiment yields rows. A piece is the result of a part of its work that is worth keeping, such as one kernel in one
trial. The file of a piece is named after everything that the result depends on, the data included, so that a run picks
up exactly the pieces that answer its own questions, whoever computed them. Files are written at once or not at all.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..answers import Answer
from ..backends import NAMES, get_backend
from ..console import say, say_files, show_table
from ..errors import InputError
from ..files import make_folder, write_json
from ..timing import command, describe_machine, environment, format_seconds, timed, today

FORMAT = 1

Row = Mapping[str, Any]
Machine = str | Callable[[], str]
Table = tuple[str, Sequence[str], Iterable[Sequence[str]]]  # title, columns, rows


@dataclass(frozen=True)
class Piece:
    """The result of a part of a run: JSON values, the seconds they took, and where, when and with what."""

    value: Any
    seconds: float
    machine: str
    date: str
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """How rows are shown: a table with a title, whose cells come from a row each, and pictures drawn into a folder."""

    title: str
    columns: tuple[str, ...]
    cells: Callable[[Row], Sequence[str]]
    draw: Callable[[Sequence[Row], Path], list[Path]] = lambda rows, folder: []

    def show(self, rows: Sequence[Row]) -> None:
        """Print the table."""
        show_table(self.title, self.columns, map(self.cells, rows))


@dataclass(frozen=True)
class Outcome:
    """What came out: rows and how they are shown, the files written, and why the run stopped early, if it did."""

    rows: list[Row]
    view: View
    files: list[Path] = field(default_factory=list)  # the record, then pictures
    unfinished: str = ""

    def to_json(self) -> dict[str, Any]:
        """As values of JSON; the first of the files is the record."""
        return {"results": self.rows, "files": list(map(str, self.files)), "unfinished": self.unfinished or None}


class Unfinished(Exception):  # noqa: N818 (no error: pieces and checkpoints are there to go on from)
    """Raised by an experiment whose time is up."""


class Clock:
    """How long may still be computed. The first to ask is always granted some time, so that every call gets on."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.perf_counter() + seconds
        self._asked = False

    def left(self) -> float | None:
        """Seconds, or None for as many as it takes."""
        if self._ends is None:
            return None
        seconds = max(self._ends - time.perf_counter(), 0.0)
        if self._asked and seconds == 0.0:
            raise Unfinished("there was no time to start it; run it again to go on")
        self._asked = True
        return seconds


@dataclass(eq=False)
class Run:
    """One run of an experiment, in a folder.

    `data` are the hashes of the data sets used, by name. `configuration` is what the user asked for; it goes into the
    record, but a piece depends only on what `piece` is told and on the data. `machine` says in words what computes, or
    is a function that does, called when something is computed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> run = Run("sums", folder, configuration={"terms": 3}, data={})
    >>> run.piece({"terms": 3}, lambda: sum(range(3))).value
    3
    >>> run.piece({"terms": 3}, lambda: 1 / 0).value  # it is there already
    3
    >>> run.finish([{"sum": 3}]).name
    'sums.json'
    >>> read_record(folder / "sums.json")["results"]
    [{'sum': 3}]
    """

    experiment: str
    folder: Path
    _: KW_ONLY
    configuration: Mapping[str, Any]
    data: Mapping[str, Any]
    machine: Machine = describe_machine
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _counted: set[Path] = field(default_factory=set, init=False)
    _environments: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.data = dict(self.data)
        make_folder(self.folder / "pieces")

    def piece(
        self, of: Row, compute: Callable[[], Any], *, data: Row | None = None, machine: Machine | None = None
    ) -> Piece:
        """The result of a part of this experiment, from its file where it is there, or else computed and kept.

        `of` says in JSON values everything that the result depends on; the name of the experiment and the hashes of the
        data are added to it. `data` and `machine` are those of the run unless given.
        """
        about = self.data if data is None else data
        key = {"experiment": self.experiment, "of": dict(of), "data": dict(about), "format": FORMAT}
        path = self.folder / "pieces" / f"{self.experiment}-{digest(key)}.json"
        piece = _read_piece(path, key)
        if piece is None:
            value, seconds = timed(compute)
            where = self.machine if machine is None else machine
            piece = Piece(value, seconds, where() if callable(where) else where, today(), environment())
            write_json(path, {**key, **asdict(piece)})
            piece = _read_piece(path, key) or piece  # as it will read after a restart
        if path not in self._counted:  # a base that many rows are compared with is computed once
            self._counted.add(path)
            self.count(piece)
        return piece

    def count(self, piece: Piece) -> None:
        """Add a piece to the times of this run, with what earlier calls spent on it."""
        earlier = piece.value.get("earlier seconds", 0.0) if isinstance(piece.value, dict) else 0.0
        self._seconds[piece.machine] = self._seconds.get(piece.machine, 0.0) + piece.seconds + earlier
        self._environments[piece.machine] = dict(piece.environment)

    def conduct(
        self,
        rows: Iterable[Row],
        view: View,
        *,
        name: str | None = None,
        summarise: Callable[[Sequence[Row]], Row] = lambda rows: {},
        keep: bool = False,
    ) -> Outcome:
        """Take all rows, write the record and the pictures, and print the table; no record if the time was up.

        `summarise` tells from all rows what else the record says. With `keep` the record is written after every row,
        so that a run that is cut off leaves one of what it had.
        """
        found: list[Row] = []
        try:
            for row in rows:
                found.append(row)
                say(", ".join(view.cells(row)))
                if keep:
                    self.finish(found, name=name, **summarise(found))
        except Unfinished as stop:
            say(str(stop))
            view.show(found)
            return Outcome(found, view, unfinished=str(stop))
        files = [self.finish(found, name=name, **summarise(found)), *view.draw(found, self.folder)]
        view.show(found)
        say_files(files)
        return Outcome(found, view, files)

    def finish(self, results: Sequence[Row], *, name: str | None = None, **more: Any) -> Path:
        """Write the record, `NAME.json`, with the rows of results; returns where it is."""
        record = {
            "experiment": self.experiment,
            "format": FORMAT,
            "date": today(),
            "command": command(sys.argv),
            "configuration": self.configuration,
            "data": self.data,
            "seconds_by_machine": self._seconds,
            "environments": self._environments,
            "results": list(results),
            **more,
        }
        path = self.folder / f"{name or self.experiment}.json"
        write_json(path, record)
        return path


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
    from ..report import Page, Section, drawing, sortable_table, write_page

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


def digest(key: Any) -> str:
    """A short name for JSON values."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]


def backend_name(backend: str) -> str:
    """The name of a backend. Only "auto" makes one: a run whose pieces are all there needs no GPU.

    >>> backend_name("cuda")
    'cuda'
    """
    return backend if backend in NAMES and backend != "auto" else get_backend(backend).name


def read_record(path: Path) -> dict[str, Any]:
    """A record, or an error that says why the file is none."""
    content: dict[str, Any] = _read_json(path)
    if not _is_record(content):
        raise InputError(f"{path} is not the record of an experiment; `tangentless reproduce` writes those")
    if content.get("format") != FORMAT:
        raise InputError(f"{path} is a record in format {content.get('format')}, and this version reads {FORMAT}")
    return content


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder, by the names of their files; other JSON files are passed over."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} to read records from")
    return [read_record(path) for path in sorted(folder.glob("*.json")) if _is_record(_read_json(path))]


def _is_record(content: Any) -> bool:
    return isinstance(content, dict) and {"experiment", "results"} <= content.keys()


def _read_piece(path: Path, key: Mapping[str, Any]) -> Piece | None:
    if not path.exists():
        return None
    content = _read_json(path)
    expected = json.loads(json.dumps(key))  # as a file says it
    if not isinstance(content, dict) or any(content.get(name) != expected[name] for name in key):
        raise InputError(f"{path} is not the piece its name says; remove it, and it is computed again")
    return Piece(**{entry.name: content[entry.name] for entry in fields(Piece) if entry.name in content})


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}; if it is damaged, remove it and run again") from None
