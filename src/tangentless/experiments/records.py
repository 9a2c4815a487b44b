"""The runner of experiments: it saves partial results on the way, and a JSON record, tables and pictures at the end.

An experiment yields rows. A piece is a partial result that is worth saving, such as one kernel in one trial. The name
of its file is a hash of everything that the result depends on, the data included, so a run reuses exactly the pieces
that match its settings, whichever run computed them. Files appear whole or not at all.
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
Machine = Callable[[], str]  # returns the name of the machine in words
Table = tuple[str, Sequence[str], Iterable[Sequence[str]]]  # title, columns, rows


@dataclass(frozen=True)
class Piece:
    """A partial result of a run: JSON values, the seconds they took, and the machine, date and versions."""

    value: Any
    seconds: float
    machine: str
    date: str
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """How rows are shown: as a table with a title, and as pictures.

    `cells(row)` returns the texts of a row, one for each column. `draw(rows, folder)` writes the pictures and returns
    their files.
    """

    title: str
    columns: tuple[str, ...]
    cells: Callable[[Row], Sequence[str]]
    draw: Callable[[Sequence[Row], Path], list[Path]] = lambda rows, folder: []

    def show(self, rows: Sequence[Row]) -> None:
        """Print the table."""
        show_table(self.title, self.columns, map(self.cells, rows))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: its rows and how to show them, the files written, and why it stopped early, if it did."""

    rows: list[Row]
    view: View
    files: list[Path] = field(default_factory=list)  # the record, then pictures
    unfinished: str = ""  # why the run stopped early; empty if it is complete

    def to_json(self) -> dict[str, Any]:
        """As JSON values; the first file is the record."""
        return {"results": self.rows, "files": list(map(str, self.files)), "unfinished": self.unfinished or None}


class Unfinished(Exception):  # noqa: N818 (not an error: the next run resumes from pieces and checkpoints)
    """Raised by an experiment that has used up its time."""


class Clock:
    """A time limit. The first caller of `left` is always let through, so that every run makes some progress."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.perf_counter() + seconds
        self._started = False

    def left(self) -> float | None:
        """The seconds left, None without a limit; raises `Unfinished` from the second call on if none are left."""
        if self._ends is None:
            return None
        seconds = max(self._ends - time.perf_counter(), 0.0)
        if self._started and seconds == 0.0:
            raise Unfinished("the time is over; run the same command again to resume")
        self._started = True
        return seconds


@dataclass(eq=False)
class Run:
    """One run of an experiment, in a folder.

    `data` are the hashes of the data sets used, by name. `configuration` holds the user's settings. It goes into the
    record only: the key of a piece is made of the arguments of `piece` and of `data`. `machine` returns the name of the
    machine in words, and is called when something is computed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> run = Run("sums", folder, configuration={"terms": 3}, data={})
    >>> run.piece({"terms": 3}, lambda: sum(range(3))).value
    3
    >>> run.piece({"terms": 3}, lambda: 1 / 0).value  # saved already, so nothing is computed
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
        """A partial result: read from its file if there is one, otherwise computed and saved.

        `of` is the key of the piece: JSON values that name everything the result depends on. The experiment's name and
        the hashes of the data are added to it. `data` and `machine` default to those of the run.
        """
        about = self.data if data is None else data
        key = {"experiment": self.experiment, "of": dict(of), "data": dict(about), "format": FORMAT}
        path = self.folder / "pieces" / f"{self.experiment}-{digest(key)}.json"
        piece = _read_piece(path, key)
        if piece is None:
            value, seconds = timed(compute)
            piece = Piece(value, seconds, (machine or self.machine)(), today(), environment())
            write_json(path, {**key, **asdict(piece)})
            piece = _read_piece(path, key) or piece  # exactly what a later run will read
        if path not in self._counted:  # rows may share a piece, such as the base they are compared with: count it once
            self._counted.add(path)
            self.count(piece)
        return piece

    def count(self, piece: Piece) -> None:
        """Add the time of a piece to this run, including what earlier, interrupted calls spent on it."""
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
        """Compute all rows, write the record and the pictures, and print the table.

        If `rows` raises `Unfinished`, only the table is printed. `summarise(rows)` returns more fields of the record.
        With `keep`, the record is also written after every row, so that a run that is killed leaves what it had.
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
        """Write the record `NAME.json` with the rows of results, and `more` as further fields; returns its path."""
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
    """Write the HTML report of an outcome, if `path` is given and the run is complete; returns it as JSON values."""
    if path is not None and not outcome.unfinished:
        view, record = outcome.view, read_record(outcome.files[0])
        table = view.title, view.columns, map(view.cells, outcome.rows)
        report_record(path, view.title, record, [table], outcome.files)
    return outcome.to_json()


def report_record(
    path: Path | None, title: str, record: Mapping[str, Any], tables: Iterable[Table], files: Iterable[Path]
) -> None:
    """Write an HTML report, if `path` is given: the tables, then the pictures among the files.

    Of a picture that exists as both SVG and PNG, the SVG is taken.
    """
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
    """The system and versions of each machine that computed, as text.

    >>> _machines({"environments": {"a laptop": {"python": "3.13", "numpy": "2.4"}}})
    {'computed on a laptop': 'python 3.13, numpy 2.4'}
    """
    found = record.get("environments") or {"this machine": record.get("environment", {})}
    return {
        f"computed on {machine}": ", ".join(f"{name} {value}" for name, value in values.items())
        for machine, values in found.items()
    }


def digest(key: Any) -> str:
    """A hash of JSON values, short enough for the name of a file."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]


def backend_name(backend: str) -> str:
    """The name of a backend, with "auto" resolved. Only "auto" creates one: reading saved pieces needs no GPU.

    >>> backend_name("cuda")
    'cuda'
    """
    return backend if backend in NAMES and backend != "auto" else get_backend(backend).name


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; refuses files that are not records of this format."""
    content: dict[str, Any] = _read_json(path)
    if not _is_record(content):
        raise InputError(f"{path} is not the record of an experiment; `tangentless reproduce` writes those")
    if content.get("format") != FORMAT:
        raise InputError(f"{path} is a record in format {content.get('format')}, but this version reads only {FORMAT}")
    return content


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder, sorted by file name; other JSON files are skipped."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} to read records from")
    return [read_record(path) for path in sorted(folder.glob("*.json")) if _is_record(_read_json(path))]


def _is_record(content: Any) -> bool:
    return isinstance(content, dict) and {"experiment", "results"} <= content.keys()


def _read_piece(path: Path, key: Mapping[str, Any]) -> Piece | None:
    if not path.exists():
        return None
    content = _read_json(path)
    expected = json.loads(json.dumps(key))  # tuples become lists, as in the file
    if not isinstance(content, dict) or any(content.get(name) != expected[name] for name in key):
        raise InputError(f"{path} does not hold the piece that its name stands for; remove it to compute it again")
    return Piece(**{entry.name: content[entry.name] for entry in fields(Piece) if entry.name in content})


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}; if it is damaged, remove it and run again") from None
