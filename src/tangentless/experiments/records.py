"""What a run leaves behind: pieces, from which an interrupted run goes on, and in the end one JSON record.

A piece is the result of a part of the work that is worth keeping, such as one kernel in one trial. Its file is named
after what it is the result of, the data included, so that a run picks up exactly the pieces that answer its own
questions, whoever computed them, and never those of another configuration. All files are written at once or not at all.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import OutputError, atomic_file
from ..timing import processor_name, timed, today

FORMAT = 1
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "cupy-cuda13x", "torch")
_CONFIDENCE = 0.95
_PLACES = ("--data", "--output", "-o", "--store", "--work")


@dataclass(frozen=True)
class Score:
    """How many of some rows were right, with the exact (Clopper-Pearson) 95 % interval of the share.

    >>> score = Score.of([1, 2, 2, 0], [1, 2, 2, 2])
    >>> score.accuracy, score.right, score.rows
    (0.75, 3, 4)
    >>> [round(end, 3) for end in score.interval]
    [0.194, 0.994]
    """

    right: int
    rows: int

    @classmethod
    def of(cls, predicted: Any, truth: Any) -> Score:
        """The score of predicted labels."""
        hits = np.asarray(predicted) == np.asarray(truth)
        return cls(int(hits.sum()), hits.size)

    @property
    def accuracy(self) -> float:
        """The share that was right."""
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share lies, with 95 % confidence."""
        from scipy.stats import beta

        tail, wrong = (1 - _CONFIDENCE) / 2, self.rows - self.right
        low = float(beta.ppf(tail, self.right, wrong + 1)) if self.right else 0.0
        high = float(beta.ppf(1 - tail, self.right + 1, wrong)) if wrong else 1.0
        return low, high

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"accuracy": self.accuracy, "interval": list(self.interval), "right": self.right, "rows": self.rows}


@dataclass(frozen=True)
class Piece:
    """The result of a part of a run: JSON values, the seconds they took, and where, when and with what."""

    value: Any
    seconds: float
    machine: str
    date: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Run:
    """One run of an experiment, in a folder.

    `data` are the hashes of the data sets used, by name. `configuration` is what the user asked for; it goes into the
    record, but a piece depends only on what `piece` is told and on the data.

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

    def __init__(
        self,
        experiment: str,
        folder: Path,
        *,
        configuration: Mapping[str, Any],
        data: Mapping[str, Any],
        machine: str | Callable[[], str] | None = None,
    ) -> None:
        self.experiment, self.folder = experiment, folder
        self.configuration, self.data = dict(configuration), dict(data)
        self._describe: Any = machine or describe_machine
        self._machines: dict[str, float] = {}
        self._environments: dict[str, dict[str, str]] = {}
        make_folder(folder / "pieces")

    @functools.cached_property
    def machine(self) -> str:
        """What computes, in words; found out when something is computed."""
        return str(self._describe() if callable(self._describe) else self._describe)

    def piece(self, of: Mapping[str, Any], compute: Callable[[], Any]) -> Piece:
        """The result of a part of this experiment, from its file where it is there, or else computed and kept.

        `of` says in JSON values everything that the result depends on; the name of the experiment and the hashes of the
        data are added to it.
        """
        path, key = self._locate(of)
        piece = _read_piece(path, key)
        if piece is None:
            value, seconds = timed(compute)
            piece = Piece(value, seconds, self.machine, today(), environment())
            write_json(path, {**key, **asdict(piece)})
            piece = _read_piece(path, key) or piece  # as it will read after a restart
        self._machines[piece.machine] = self._machines.get(piece.machine, 0.0) + piece.seconds
        self._environments[piece.machine] = dict(piece.environment)
        return piece

    def has(self, of: Mapping[str, Any]) -> bool:
        """Whether a piece is there already."""
        return self._locate(of)[0].exists()

    def _locate(self, of: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
        """The file of a piece, and what it must say it is."""
        key = {"experiment": self.experiment, "of": dict(of), "data": self.data, "format": FORMAT}
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / "pieces" / f"{self.experiment}-{digest[:20]}.json", key

    def finish(self, results: Sequence[Mapping[str, Any]], *, name: str | None = None, **more: Any) -> Path:
        """Write the record, `NAME.json`, with the rows of results; returns where it is."""
        record = {
            "experiment": self.experiment,
            "format": FORMAT,
            "date": today(),
            "command": command(sys.argv),
            "configuration": self.configuration,
            "data": self.data,
            "seconds_by_machine": self._machines,
            "environments": self._environments,
            "results": list(results),
            **more,
        }
        path = self.folder / f"{name or self.experiment}.json"
        write_json(path, record)
        return path


def read_record(path: Path) -> dict[str, Any]:
    """A record, or an error that says why the file is none."""
    content = _read_json(path)
    if not isinstance(content, dict) or "experiment" not in content or "results" not in content:
        raise InputError(f"{path} is not the record of an experiment; `tangentless reproduce` writes those")
    if content.get("format") != FORMAT:
        raise InputError(f"{path} is a record in format {content.get('format')}, and this version reads {FORMAT}")
    return content


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder, by the names of their files; other JSON files are passed over."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} to read records from")
    contents = [(path, _read_json(path)) for path in sorted(folder.glob("*.json"))]
    return [
        read_record(path)
        for path, content in contents
        if isinstance(content, dict) and {"experiment", "results"} <= content.keys()
    ]


def write_json(path: Path, content: Any) -> None:
    """Write JSON, at once; values that are not finite numbers are refused, since JSON has none."""
    with atomic_file(path) as stream:
        stream.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def make_folder(folder: Path) -> None:
    """Make a folder for results."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}") from error


def describe_machine(backend: str = "cpu") -> str:
    """The processor that does the work, in words; for the backend "cuda", the GPU.

    >>> describe_machine().endswith(("core", "cores"))
    True
    """
    if backend == "cuda":
        from ..backends.cuda.machine import import_cupy

        return str(import_cupy().cuda.runtime.getDeviceProperties(0)["name"].decode())
    from ..backends.workers import count_workers

    cores = count_workers(None)
    return f"{processor_name()}, {cores} core{'s' if cores > 1 else ''}"


def environment() -> dict[str, str]:
    """Versions of what computed."""
    from .. import __version__

    found = {"tangentless": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "system": f"{platform.system()} {platform.machine()}", "processor": processor_name()}


def command(arguments: Sequence[str]) -> str:
    """The command line of a run, without the options that say where its files are; other paths keep their last part.

    >>> command(["/usr/bin/tangentless", "reproduce", "mnist", "--data", "my data", "--train", "100", "-o", "here"])
    'tangentless reproduce mnist --train 100'
    >>> command(["benchmarks/networks_gpu.py", "/root/out", "--seconds=560"])
    'networks_gpu.py out --seconds=560'
    """
    program = Path(arguments[0])
    kept = [program.parent.name if program.stem == "__main__" else program.name]
    rest = iter(arguments[1:])
    for word in rest:
        name, *values = word.split("=")
        if name not in _PLACES:
            kept.append("=".join(Path(part).name if "/" in part else part for part in (name, *values)))
        elif not values:
            next(rest, None)
    return shlex.join(kept)


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
