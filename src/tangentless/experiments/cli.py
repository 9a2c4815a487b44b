"""`tangentless reproduce NAME`: every experiment is one command, with options in a shared style.

A command turns texts into plain values and calls its experiment, which is imported when it is run. To add an
experiment, add a function here, and its rows to `paper.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ParameterError
from .console import say_files

app = typer.Typer(
    help="The paper's experiments, at any scale: numbers beside the paper's, a JSON record, and pictures. "
    "A run that was stopped goes on where it was when it is started again.",
    no_args_is_help=True,
)

SizesOption = Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of training images.")]
KernelsOption = Annotated[str, typer.Option(metavar="NAME,NAME,...", help="Rows to run, by name; all by default.")]
TrialsOption = Annotated[int, typer.Option(min=1, help="Random draws of each size.")]
TrainOption = Annotated[int | None, typer.Option(min=2, help="Training images, drawn by --seed; all by default.")]
TestOption = Annotated[int | None, typer.Option(min=1, help="Test images, the first ones; all by default.")]
SeedOption = Annotated[int, typer.Option(min=0, help="What random draws start from.")]
BackendOption = Annotated[str, typer.Option(help="What computes kernels: auto, cpu, cuda or reference.")]
DataOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="The data sets; $TANGENTLESS_DATA or a download by default.")
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where record, pieces and pictures go.")
]
StoreOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Keep kernel matrices here, tile by tile; in memory by default.")
]
OUTPUT = Path("out/reproduce")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Numbers, in rising order.

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
    """Names out of those known, in the order of these; all of them for an empty text.

    >>> parse_names("linear,myrtle5", ("myrtle5", "myrtle10", "linear"))
    ('myrtle5', 'linear')
    """
    wanted = {part.strip() for part in text.split(",") if part.strip()}
    if unknown := wanted - set(known):
        raise ParameterError(f"there is no {', '.join(sorted(unknown))} here; there are {', '.join(known)}")
    return tuple(name for name in known if not wanted or name in wanted)


@app.command()
def nonlinearities(output: OutputOption = OUTPUT) -> None:
    """Draw the duals of ReLU and Gaussian against the angle."""
    from .nonlinearities import draw

    say_files(draw(output))


@app.command()
def architectures(output: OutputOption = OUTPUT) -> None:
    """Draw Myrtle5, Myrtle7 and Myrtle10, layer by layer."""
    from .architectures import draw

    say_files(draw(output))
