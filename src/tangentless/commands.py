"""`tangentless fit`, `predict` and `search`: train, use and choose models, on arrays or folders of photographs."""

from __future__ import annotations

import csv
import io
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .answers import Answer, JsonOption, answers_json
from .console import percent, say, say_aside, show_table
from .errors import ArchitectureError, DatasetDamagedError, InputError, ParameterError
from .experiments.options import parse_ridge
from .options import (
    BackendOption,
    ForceOption,
    ImagesArgument,
    JobsOption,
    KeyOption,
    OutputOption,
    PrecisionOption,
    RecipeArgument,
    ReportOption,
    SkipOption,
    check_outputs,
    device_of,
    load_images,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .datasets import Photographs
    from .progress import Bar, Progress

_COLOURS = {1: "grey", 3: "rgb"}  # by the number of channels
_SCORES = {True: "r2", False: "accuracy"}  # by whether the model is a regression


@answers_json
def fit(
    architecture: RecipeArgument,
    x: Annotated[
        str,
        typer.Argument(
            metavar="X",
            help="Photographs: a folder that holds a folder for each class. Or images (N, H, W, C): a .npy file, or "
            "FILE.npz:NAME.",
        ),
    ],
    output: OutputOption,
    y: Annotated[
        str | None,
        typer.Argument(
            metavar="Y", help="Labels (N,), or numbers with --regression; a file like X. Leave it out for photographs."
        ),
    ] = None,
    ridge: Annotated[
        str | None,
        typer.Option(
            help="Number added to the diagonal of the kernel matrix. 0 interpolates the training images; loo chooses "
            "the ridge by leave-one-out.",
            show_default="1e-4, or the recipe's",
        ),
    ] = None,
    flips: Annotated[
        bool, typer.Option("--flips", help="Train as if the mirror images of all training images were there too.")
    ] = False,
    zca: Annotated[
        bool, typer.Option("--zca", help="Whiten the images first (ZCA); the model file keeps the whitening.")
    ] = False,
    patch: Annotated[
        int | None,
        typer.Option(
            help="Whiten patches of so many pixels a side, not whole images: for few images, or large ones. In place "
            "of --zca."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Height and width that photographs are scaled to: 32, or 32x48.", show_default="32"),
    ] = None,
    colour: Annotated[
        str | None,
        typer.Option("--colour", "--color", help="Channels of photographs: rgb or grey.", show_default="rgb"),
    ] = None,
    skip: SkipOption = False,
    regression: Annotated[bool, typer.Option("--regression", help="Predict numbers instead of classes.")] = False,
    key: KeyOption = None,
    backend: BackendOption = "auto",
    precision: PrecisionOption = "float32",
    jobs: JobsOption = None,
    report: ReportOption = None,
    force: ForceOption = False,
) -> Answer:
    """Train by exact kernel ridge regression, print the leave-one-out score, and write a model file."""
    from sklearn.pipeline import make_pipeline

    from .estimators import KernelRidgeClassifier, KernelRidgeRegressor
    from .expression import kernel_of_text
    from .files import load_array
    from .models import save_model
    from .preprocessing import ZCA
    from .progress import progress_bar
    from .recipes import RECIPES, recipe
    from .timing import command, format_bytes, format_seconds, timed

    check_outputs(output, report, force=force)
    added: dict[str, Any] = {} if ridge is None else {"ridge": parse_ridge(ridge)}
    device = device_of(backend, precision, jobs)
    if zca and patch is not None:
        raise ParameterError("--zca whitens whole images and --patch parts of them; give one of the two")
    from_folder = Path(x).is_dir()
    if y is None and not from_folder:
        raise ParameterError(_missing_labels(architecture, x))
    kernel = None if architecture in RECIPES else kernel_of_text(architecture)  # before anything large is read
    if from_folder:
        if y is not None or regression:
            raise ParameterError(
                f"{x} is a folder, and the folders in it name the classes: leave out Y and --regression"
            )
        colours = "rgb" if colour is None else colour
        images, targets = _read_labelled(x, parse_size("32" if size is None else size), colours, skip)
    else:
        _refuse_for_arrays(x, {"--size": size, "--colour": colour, "--skip": skip})
        images, targets = load_images(x, key), load_array(cast(str, y))
    if kernel is None:
        if flips or zca:
            raise ParameterError(f"{architecture} is a recipe with flips and whitening: leave out --flips and --zca")
        model = recipe(architecture, patch=patch, regression=regression, backend=device, **added)
        estimator = model[-1]
    else:
        estimator = (KernelRidgeRegressor if regression else KernelRidgeClassifier)(
            kernel, flips=flips, backend=device, **added
        )
        whitening = [ZCA(mirrors=flips, patch=patch, verbose=True)] if zca or patch is not None else []
        model = make_pipeline(*whitening, estimator) if whitening else estimator
    keeping: AbstractContextManager[list[Any]] = nullcontext([]) if report is None else estimator.keeping_matrix()
    with keeping as kept, progress_bar("kernel") as progress, estimator.reporting(then_solving(progress)):
        try:
            _, taken = timed(lambda: model.fit(images, targets))
        except ArchitectureError as error:
            hint = f"; or choose another --size than {size or 32}" if from_folder else ""
            raise ArchitectureError(f"{error}{hint}") from error
    save_model(output, model, force=force)
    found = f", ridge {estimator.ridge_:.1g}" if ridge == "loo" else ""
    scored = score_text(estimator.loo_score_, regression)
    print(f"leave-one-out {scored} on {len(images):,} images{found}; trained in {format_seconds(taken)}")
    print(f"{output}: {format_bytes(output.stat().st_size)}")
    if report is not None:
        from .report import write_report

        shown = {"command": command(sys.argv)}
        write_report(report, model, images, targets, matrix=kept[0], configuration=shown, force=force)
        print(f"{report}: {format_bytes(report.stat().st_size)}")
    about = {"model": output, "images": len(images), "ridge": estimator.ridge_, "seconds": taken}
    return {**about, "score": _SCORES[regression], "leave_one_out": estimator.loo_score_}


@answers_json
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file written by `tangentless fit`.")],
    x: Annotated[
        str,
        typer.Argument(
            metavar="X", help="A photograph, a folder of photographs, or images: a .npy file, or FILE.npz:NAME."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the predictions to this .npy file.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", help="Write files, predictions and probabilities to this CSV file.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="True labels, or numbers, a .npy file: print the accuracy, or R².")
    ] = None,
    skip: SkipOption = False,
    key: KeyOption = None,
    backend: BackendOption = "auto",
    jobs: JobsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> Answer:
    """Predict the classes (or numbers) of images with a model file.

    Without --csv, --output, --labels and --json, the table that --csv would write is printed.
    """
    from sklearn.pipeline import Pipeline

    from .estimators import KernelRidgeRegressor
    from .files import atomic_file, load_array, save_array
    from .models import load_model
    from .progress import progress_bar
    from .timing import timed

    printed = output is None and labels is None and table is None and not as_json
    check_outputs(output, table, force=force)
    fitted = load_model(model, backend=backend, n_jobs=jobs)
    estimator = fitted[-1] if isinstance(fitted, Pipeline) else fitted
    if _are_photographs(Path(x)):
        photographs = _photographs_for(Path(x), estimator.X_fit_.shape[1:], skip)
        folder = Path(x) if Path(x).is_dir() else Path(x).parent
        images, names = photographs.images, [file.relative_to(folder).as_posix() for file in photographs.files]
    else:
        _refuse_for_arrays(x, {"--skip": skip})
        images = load_images(x, key)
        names = [str(row) for row in range(len(images))]
    truth = _folder_labels(x, names, estimator) if labels is None else _check_truth(load_array(labels), len(images))
    pairs = len(images) * len(estimator.X_fit_) * (2 if estimator.flips else 1)
    wanted, classes = table is not None or as_json or printed, getattr(estimator, "classes_", ())
    with progress_bar("kernel") as progress, estimator.reporting(progress):
        (predictions, shares), taken = timed(lambda: _predict(fitted, images, probabilities=wanted))
    if output is not None:
        save_array(output, predictions)
        print(f"{output}: {len(predictions):,} predictions, {predictions.dtype}; {pace_text(pairs, taken)}")
    if table is not None:
        with atomic_file(table) as stream:
            stream.write(_csv_text(names, predictions, shares, classes).encode())
        print(f"{table}: {len(predictions):,} rows; {pace_text(pairs, taken)}")
    if printed:
        print(_csv_text(names, predictions, shares, classes), end="")
    regression, found = isinstance(estimator, KernelRidgeRegressor), None
    if truth is not None:
        found = _score(truth, predictions, regression)
        tell = say_aside if printed else print  # the printed table may be redirected into a file
        tell(f"{score_text(found, regression)} on {len(truth):,} images")
    rows = [{"file": name, "predicted": predictions[row]} for row, name in enumerate(names)]
    if shares is not None:
        for row, probabilities in zip(rows, shares, strict=True):
            row["probabilities"] = dict(zip(classes, probabilities, strict=True))
    about = {"images": len(images), "seconds": taken, "output": output, "csv": table}
    return {**about, "score": None if truth is None else _SCORES[regression], "value": found, "predictions": rows}


@answers_json
def search(
    x: ImagesArgument,
    y: Annotated[str, typer.Argument(metavar="Y", help="Labels (N,), or numbers; a file like X.")],
    kernels: Annotated[
        list[str],
        typer.Argument(
            metavar="KERNEL...",
            help="Names of architectures, layers in quotes, or kernels such as 'Gaussian(gamma=0.1)' or 'NTK(3)'.",
        ),
    ],
    criterion: Annotated[str, typer.Option(help="What ranks kernels: loo, or 'marginal likelihood'.")] = "loo",
    whitening: Annotated[
        list[str] | None, typer.Option(help="Epsilon of ZCA whitening, or none; repeatable, to compare several.")
    ] = None,
    mix: Annotated[
        int, typer.Option(min=0, help="After the first round, also try sums of two of so many best kernels.")
    ] = 0,
    subset: Annotated[
        int,
        typer.Option(
            min=2, help="Number of images in the first round; each round has twice as many, and half the kernels."
        ),
    ] = 500,
    largest: Annotated[
        int | None, typer.Option(min=2, help="Number of images in the last round; all by default.")
    ] = None,
    refine: Annotated[
        int,
        typer.Option(min=0, help="Improve parameters of the best kernel, such as gamma, by so many gradient steps."),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random order of the images.")] = 0,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the scores of all ridges into this .png or .svg file.")
    ] = None,
    backend: BackendOption = "auto",
    precision: PrecisionOption = "float32",
    jobs: JobsOption = None,
    report: ReportOption = None,
    force: ForceOption = False,
) -> Answer:
    """Find the best kernel, ridge and whitening, from training data alone."""
    from .expression import kernel_of_text
    from .files import load_array
    from .progress import progress_bar
    from .searching import COLUMNS
    from .searching import search as find

    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise ParameterError(f"--picture must name a .png or .svg file, not {picture}")
    check_outputs(picture, report, force=force)
    epsilons = [_read_epsilon(text) for text in whitening or ["none"]]
    options: dict[str, Any] = {"whitening": epsilons, "mix": mix, "subset": subset, "largest": largest, "seed": seed}
    options |= {"refine": refine, "backend": backend, "precision": precision, "n_jobs": jobs}
    made = [kernel_of_text(text) for text in kernels]
    images, targets = load_array(x), load_array(y)
    with progress_bar("search"):  # reports no progress: the number of trials is not known before the first round
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


def then_solving(progress: Bar) -> Progress:
    """Progress of a kernel matrix that is solved afterwards: when it is complete, the display says `solving`."""

    def report(done: int, total: int) -> None:
        progress(done, total, None if done < total else lambda: "solving")

    return report


def score_text(value: float, regression: bool) -> str:
    """R² or an accuracy as text."""
    return f"R² {value:.4f}" if regression else f"accuracy {percent(value, 2)} %"


def pace_text(pairs: int, seconds: float) -> str:
    """Time and pairs a second as text."""
    from .timing import format_seconds

    return f"{format_seconds(seconds)}, {pairs / seconds:,.0f} pairs/s"


def parse_size(text: str) -> tuple[int, int]:
    """Read a height and a width in pixels; one number stands for both.

    >>> parse_size("32"), parse_size("32x48")
    ((32, 32), (32, 48))
    """
    sides = text.replace("×", "x").replace(",", "x").split("x")
    if not 1 <= len(sides) <= 2 or not all(side.strip().isdecimal() for side in sides):
        raise ParameterError(f"a size is a number of pixels, such as 32, or height and width, 32x48; not {text!r}")
    return int(sides[0]), int(sides[-1])


def _read_labelled(folder: str, size: tuple[int, int], colour: str, skip: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Photographs below a folder, and as their labels the names of the folders that they are in."""
    import numpy as np

    from .datasets.folders import labelled_files

    found = _read(labelled_files(folder), size, colour, skip)
    return found.images, np.array([file.parent.name for file in found.files])


def _missing_labels(architecture: str, x: str) -> str:
    """The error message of `fit` for an X that is no folder of photographs and has no labels Y."""
    if Path(architecture).is_dir():
        return f"the architecture comes first, and then the photographs: fit myrtle5 {architecture}"
    if not Path(x).exists() and ":" not in x:
        return f"there is no {x}; give a folder with a folder of photographs for each class, or images and labels: X Y"
    return f"{x} is no folder of photographs, so give labels too: fit ARCH X Y"


def _refuse_for_arrays(x: str, options: dict[str, Any]) -> None:
    """Raise if an option for photographs is given although X is an array."""
    if given := [name for name, value in options.items() if value not in (None, False)]:
        raise ParameterError(f"{x} is an array, not photographs: leave out {' and '.join(given)}")


def _are_photographs(place: Path) -> bool:
    return place.is_dir() or (place.is_file() and place.suffix.lower() not in (".npy", ".npz"))


def _photographs_for(place: Path, shape: tuple[int, ...], skip: bool) -> Photographs:
    """A photograph, or all below a folder, in the shape (height, width, channels) of a model's training images."""
    from .datasets import find_photographs

    if len(shape) != 3 or shape[2] not in _COLOURS:
        raise InputError(f"the model was trained on rows of shape {shape}, not on photographs; give an array, .npy")
    files = find_photographs(place) if place.is_dir() else [place]
    return _read(files, shape[:2], _COLOURS[shape[2]], skip)


def _read(files: list[Path], size: tuple[int, ...], colour: str, skip: bool) -> Photographs:
    from .datasets import read_photographs
    from .progress import progress_bar

    on_error: Any = "skip" if skip else "raise"
    try:
        with progress_bar("reading", unit="files") as progress:
            found = read_photographs(
                files, cast(Any, size), colour=cast(Any, colour), on_error=on_error, progress=progress
            )
    except DatasetDamagedError as error:
        raise DatasetDamagedError(f"{error}; --skip leaves such files out") from error
    for file, reason in found.skipped:
        say_aside(f"Skipped {file}: {reason}")
    return found


def _folder_labels(source: str, names: list[str], estimator: Any) -> NDArray[Any] | None:
    """The names of the folders that photographs are in, as true labels, if all are classes of the model; else None."""
    import numpy as np

    folders = [Path(source, name).parent.name for name in names]
    known = getattr(estimator, "classes_", np.array([]))
    named = Path(source).is_dir() and known.dtype.kind == "U" and set(folders) <= set(known)
    return np.array(folders) if named else None


def _predict(fitted: Any, images: NDArray[Any], *, probabilities: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Predictions, and probabilities if they are wanted and the model has them. The kernel is computed only once."""
    if not probabilities or not hasattr(fitted, "predict_proba"):
        return fitted.predict(images), None
    shares = fitted.predict_proba(images)
    return fitted.classes_[shares.argmax(axis=1)], shares


def _csv_text(names: list[str], predictions: NDArray[Any], shares: NDArray[Any] | None, classes: Any) -> str:
    """Files, predictions and, unless `shares` is None, probabilities (N, classes) as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = range(1, predictions.shape[1] + 1) if predictions.ndim > 1 else ()  # targets of a regression
    heads = [f"predicted {number}" for number in several] or ["predicted"]
    writer.writerow(["file", *heads, *(f"p({name})" for name in (classes if shares is not None else ()))])
    for row, name in enumerate(names):
        values = predictions[row].tolist()
        writer.writerow(
            [name, *(values if isinstance(values, list) else [values])]
            + ([] if shares is None else [f"{share:.6f}" for share in shares[row]])
        )
    return text.getvalue()


def _check_truth(labels: NDArray[Any], count: int) -> NDArray[Any]:
    if labels.ndim == 0 or len(labels) != count:
        raise InputError(f"there are {count} images, but labels of shape {labels.shape}; they must match")
    return labels


def _score(truth: NDArray[Any], predictions: NDArray[Any], regression: bool) -> float:
    """The score of predictions: R² of a regression, else the share of right labels."""
    from sklearn.metrics import r2_score

    if regression:
        if truth.shape != predictions.shape or truth.dtype.kind not in "fiub":
            raise InputError(
                f"the model predicts numbers of shape {predictions.shape}, and labels are {truth.dtype} {truth.shape}"
            )
        return float(r2_score(truth, predictions))
    if truth.shape != predictions.shape or (truth.dtype.kind == "U") != (predictions.dtype.kind == "U"):
        raise InputError(
            f"labels are {truth.dtype} of shape {truth.shape}, "
            f"but the model predicts {predictions.dtype} of shape {predictions.shape}"
        )
    return float((truth == predictions).mean())


def _read_epsilon(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ParameterError(f"--whitening is an epsilon such as 0.1, or none; not {text!r}") from None
