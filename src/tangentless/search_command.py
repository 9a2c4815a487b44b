"""`tangentless search`: the best of many kernels, ridges and whitenings, on training data alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .answers import Answer, JsonOption, answers_json
from .errors import ParameterError, TangentlessError


@answers_json
def search(
    x: Annotated[str, typer.Argument(metavar="X", help="Images (N, H, W, C): a .npy file, or FILE.npz:NAME.")],
    y: Annotated[str, typer.Argument(metavar="Y", help="Labels (N,), or numbers; a file like X.")],
    kernels: Annotated[
        list[str],
        typer.Argument(
            metavar="KERNEL...", help="Names, layers in quotes, or kernels such as 'Gaussian(gamma=0.1)' or 'NTK(3)'."
        ),
    ],
    criterion: Annotated[str, typer.Option(help="loo or 'marginal likelihood'.")] = "loo",
    whitening: Annotated[list[str] | None, typer.Option(help="Epsilon of ZCA, or none; several may be given.")] = None,
    mix: Annotated[int, typer.Option(min=0, help="Try sums of so many of the best kernels, two at a time.")] = 0,
    subset: Annotated[int, typer.Option(min=2, help="Images of the first round.")] = 500,
    largest: Annotated[int | None, typer.Option(min=2, help="Images of the last round; all by default.")] = None,
    refine: Annotated[
        int, typer.Option(min=0, help="Improve gamma and the like by so many gradients of the criterion.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Which images come first.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw scores against ridges: a .png or .svg file.")] = None,
    backend: Annotated[str, typer.Option(help="What computes the kernel: auto, cpu, cuda or reference.")] = "auto",
    precision: Annotated[str, typer.Option(help="Arithmetic up to the last pool: float32 or float64.")] = "float32",
    jobs: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML report too: one file, no network needed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite picture and report if they are there.")] = False,
    as_json: JsonOption = False,
) -> Answer:
    """Find the best kernel, ridge and whitening without test data."""
    from .console import say, show_table
    from .files import check_output, load_array
    from .progress import progress_bar
    from .searching import COLUMNS
    from .searching import search as find

    if picture is not None:
        if picture.suffix not in (".png", ".svg"):
            raise ParameterError(f"a picture is a .png or .svg file, not {picture}")
        check_output(picture, force=force)
    if report is not None:
        check_output(report, force=force, option="--force")
    epsilons = [_read_epsilon(text) for text in whitening or ["none"]]
    options: dict[str, Any] = {"whitening": epsilons, "mix": mix, "subset": subset, "largest": largest, "seed": seed}
    options |= {"refine": refine, "backend": backend, "precision": precision, "n_jobs": jobs}
    made = [_read_kernel(text) for text in kernels]
    images, targets = load_array(x), load_array(y)
    with progress_bar("search"):  # no share: how many trials there will be is not known before the first round
        found = find(
            made, images, targets, cast(Any, criterion), **options, progress=lambda line: say(line, style="dim")
        )
    show_table(f"best first, by {criterion}", COLUMNS, (trial.cells() for trial in found.trials))
    if picture is not None:
        found.plot(picture)
        say(str(picture), style="dim")
    if report is not None:
        from .report import write_report
        from .timing import command

        say(str(write_report(report, found, configuration={"command": command(sys.argv)}, force=force)), style="dim")
    return {"criterion": criterion, "trials": [trial.to_json() for trial in found.trials], "picture": picture}


def _read_epsilon(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ParameterError(f"whitening is a number, or none, not {text!r}") from None


def _read_kernel(text: str) -> Any:
    """A kernel as it prints, or else an architecture; a complaint is about the latter."""
    from .expression import read_kernel
    from .kernel import kernel

    try:
        return read_kernel(text)
    except TangentlessError:
        return kernel(text)
