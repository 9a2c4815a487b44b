"""The options that commands of experiments share, and the parsers of their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ArchitectureError, ParameterError

SizesOption = Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of training images.")]
KernelsOption = Annotated[str, typer.Option(metavar="NAME,NAME,...", help="Rows to run, by name; all by default.")]
TrialsOption = Annotated[int, typer.Option(min=1, help="Random draws of each size.")]
TrainOption = Annotated[int | None, typer.Option(min=2, help="Training images, drawn by --seed; all by default.")]
TestOption = Annotated[int | None, typer.Option(min=1, help="Test images, the first ones; all by default.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random draws.")]
DataOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="The data sets; $TANGENTLESS_DATA or a download by default.")
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for record, pieces and pictures.")
]
StoreOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Keep kernel matrices here, tile by tile; in memory by default.")
]
CopiesOption = Annotated[
    int,
    typer.Option(
        "--zca-copies", min=0, help="Augmented copies of each image to fit ZCA to as well; the paper uses 20."
    ),
]
MinutesOption = Annotated[
    float | None, typer.Option(min=0, help="Stop after so many minutes; the same command resumes.")
]
StopAfterOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="Stop after so many seconds; the same command resumes."),
]
RidgeOption = Annotated[float | None, typer.Option(min=0, help="A ridge for all rows, in place of the paper's.")]


def check_record(name: str | None) -> str | None:
    """Refuse a name that is not a plain file name, before hours are spent on the record.

    >>> check_record("mnist-10000-gaussian")
    'mnist-10000-gaussian'
    """
    if name is not None and (not name or name.startswith(".") or Path(name).name != name):
        raise ParameterError(f"a record needs a plain file name without folders, such as mnist-10000, not {name!r}")
    return name


RecordOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Name of the record; by default that of the table and the size.", callback=check_record
    ),
]


def check_report(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before hours are spent on the report."""
    from ..files import check_output

    if path is not None:
        check_output(path, force=True)
    return path


ReportOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write an HTML report with tables and pictures; replaces an existing file.",
        callback=check_report,
    ),
]
DeviceOption = Annotated[str, typer.Option(help="What trains networks: auto, cpu, cuda or cuda:1.")]
OUTPUT = Path("out/reproduce")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Distinct whole numbers from 2 on, in rising order.

    >>> parse_sizes("10,1_280,20")
    (10, 20, 1280)
    """
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 2:
        raise ParameterError(f"sizes are whole numbers from 2 on, separated by commas, such as 10,20,40; not {text!r}")
    return tuple(sizes)


def parse_names(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a text lists, in the order of `known`; all known names for an empty text.

    >>> parse_names("linear,myrtle5", ("myrtle5", "myrtle10", "linear"))
    ('myrtle5', 'linear')
    """
    wanted = set(split_names(text))
    if unknown := wanted - set(known):
        raise ParameterError(f"there is no {', '.join(sorted(unknown))} here; there are {', '.join(known)}")
    return tuple(name for name in known if not wanted or name in wanted)


def split_names(text: str) -> list[str]:
    """Split a text at its commas, except those in parentheses."""
    from ..architecture import split_text

    return [part.strip() for part in split_text(text, ",") if part.strip()]


def parse_kernels(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The kernels that a text lists; all known ones for an empty text.

    Each is a known name, a recipe, or an architecture by name or text form.

    >>> parse_kernels("myrtle7,linear", ("myrtle5", "linear"))
    ('myrtle7', 'linear')
    """
    from ..architecture import Architecture
    from ..recipes import RECIPES

    names = []
    for name in split_names(text):
        try:
            names.append(name if name in (*known, *RECIPES) else Architecture.parse(name).short_name)
        except ArchitectureError as error:
            others = f"there are {', '.join(known)}, the recipes {', '.join(RECIPES)} and all architectures"
            raise ParameterError(f"there is no {name} here; {others} ({error})") from None
    return tuple(dict.fromkeys(names)) or known


def parse_ridge(text: str) -> float | str:
    """A number of at least 0, or `loo`.

    >>> parse_ridge("1e-4"), parse_ridge("loo")
    (0.0001, 'loo')
    """
    try:
        return "loo" if text == "loo" else float(text)
    except ValueError:
        raise ParameterError(f"a ridge is a number or loo, which chooses it by leave-one-out; not {text!r}") from None
