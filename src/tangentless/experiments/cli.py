"""`tangentless reproduce NAME`: one command for every experiment, with options in a shared style.

A command parses its options into plain values and calls its experiment, whose module is imported only then. To add an
experiment, add a command here, and the paper's numbers to `paper.csv`.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..answers import Answer, answers_json
from ..console import say, say_files
from ..errors import ParameterError
from ..options import BackendOption
from .options import (
    OUTPUT,
    CopiesOption,
    DataOption,
    DeviceOption,
    KernelsOption,
    MinutesOption,
    OutputOption,
    RecordOption,
    ReportOption,
    RidgeOption,
    SeedOption,
    SizesOption,
    StopAfterOption,
    StoreOption,
    TestOption,
    TrainOption,
    TrialsOption,
    parse_kernels,
    parse_names,
    parse_ridge,
    parse_sizes,
    split_names,
)

app = typer.Typer(
    help="The paper's experiments, at any scale: numbers beside the paper's, a JSON record, and pictures. "
    "To resume a run that was stopped, start it again.",
    no_args_is_help=True,
)


@app.command("cifar10-subsets")
@answers_json
def cifar10_subsets(
    sizes: SizesOption = "10,20,40,80,160,320,640,1280",
    kernels: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Kernels of the paper, all by default, or any architectures.")
    ] = "",
    trials: TrialsOption = 20,
    draws: Annotated[str, typer.Option(help="balanced, uniform, or both by default.")] = "",
    test: TestOption = None,
    seed: SeedOption = 0,
    backend: BackendOption = "auto",
    data: DataOption = None,
    output: OutputOption = OUTPUT,
    record: RecordOption = None,
    report: ReportOption = None,
) -> Answer:
    """CIFAR-10 from few images: random subsets, the paper's kernels or others, with error bars."""
    from ..datasets import load
    from .cifar10_subsets import DRAWS, KERNELS, Subsets, reproduce
    from .records import report_outcome

    subsets = Subsets(
        sizes=parse_sizes(sizes),
        kernels=parse_kernels(kernels, KERNELS),
        trials=trials,
        seed=seed,
        draws=parse_names(draws, DRAWS),
    )
    outcome = reproduce(load("cifar10", data), subsets, test=test, backend=backend, folder=output, record=record)
    return report_outcome(report, outcome)


def _add_table(name: str, text: str) -> None:
    """Add the command `name`. The module of that name declares the table; all tables have the same options."""

    def run(
        kernels: KernelsOption = "",
        train: TrainOption = None,
        test: TestOption = None,
        ridge: RidgeOption = None,
        zca_copies: CopiesOption = 0,
        seed: SeedOption = 0,
        backend: BackendOption = "auto",
        data: DataOption = None,
        store: StoreOption = None,
        output: OutputOption = OUTPUT,
        record: RecordOption = None,
        sizes: Annotated[
            str, typer.Option(metavar="N,N,...", help="A learning curve: sizes of training sets, from one matrix.")
        ] = "",
        augment: Annotated[
            str,
            typer.Option(
                metavar="TEXT",
                help="Train on random copies, views or both: crop=2,flips,cutout=8,edges; replaces those of best.",
            ),
        ] = "",
        ensemble: Annotated[int, typer.Option(min=1, help="Fits to random copies or views to average.")] = 1,
        average: Annotated[
            str, typer.Option(metavar="TEXT", help="Average predictions over moved copies of images: mirror shifts1.")
        ] = "",
        report: ReportOption = None,
    ) -> Answer:
        from ..datasets import load
        from ..errors import DatasetMissingError
        from ..preprocessing import Augmentation
        from ..symmetries import Symmetry
        from .records import report_outcome
        from .tables import Extras, Settings, reproduce

        if sizes and train is not None:
            raise ParameterError("give --sizes or --train, not both")
        copies = Augmentation.parse(augment) if augment else None
        if copies is None and ensemble > 1:
            raise ParameterError(
                "--ensemble averages fits to random copies or views; choose these too, by --augment flips,crop=2"
            )
        extras = Extras(copies, ensemble, str(Symmetry.parse(average)) if average else None)

        module = importlib.import_module(f".{name}", __package__)
        table, others = module.table(zca_copies) if zca_copies else module.table(), []
        methods = parse_names(kernels, table.names())  # refuses a wrong name before anything is downloaded
        dataset = load(name, data)
        for other in table.also:
            try:
                others.append(load(other, data, download=False))
            except DatasetMissingError as error:
                say(f"Without {other}: {error}")
        settings = Settings(
            methods, train, test, seed, ridge, record, store, parse_sizes(sizes) if sizes else (), extras
        )
        outcome = reproduce(table, dataset, settings, backend=backend, folder=output, others=others)
        return report_outcome(report, outcome)

    if name == "mnist":  # MNIST is not whitened, so --zca-copies would do nothing: hide it
        shown = inspect.signature(run, eval_str=True)
        kept = [parameter for key, parameter in shown.parameters.items() if key != "zca_copies"]
        run.__signature__ = shown.replace(parameters=kept)  # type: ignore[attr-defined]
    app.command(name, help=text)(answers_json(run))


_add_table("mnist", "Table of MNIST: Myrtle5 against Gaussian, arc-cosine and tangent kernels, and Gabor filters.")
_add_table("cifar10", "Table of CIFAR-10: Myrtle5, 7 and 10, with and without ZCA, Gaussians, flips and tilting.")
_add_table("cifar100", "Table of CIFAR-100: Myrtle10-Gaussian with and without flips.")


@app.command()
@answers_json
def recipe(
    train: Annotated[int, typer.Option(min=2, help="Training images.")] = 5000,
    validation: Annotated[int, typer.Option(min=1, help="Further training images, held out for validation.")] = 2000,
    minutes: MinutesOption = None,
    ingredients: Annotated[
        str, typer.Option(metavar="NAME;NAME;...", help="Ingredients to try, in this order; all by default.")
    ] = "",
    combine: Annotated[bool, typer.Option(help="Combine the ingredients that helped, at the end.")] = True,
    list_ingredients: Annotated[bool, typer.Option("--list", help="Show the ingredients and do nothing else.")] = False,
    seed: SeedOption = 0,
    backend: BackendOption = "auto",
    data: DataOption = None,
    store: StoreOption = None,
    output: OutputOption = OUTPUT,
    record: RecordOption = None,
    report: ReportOption = None,
) -> Answer:
    """What makes kernels more accurate on CIFAR-10, found on training images alone."""
    from .recipe import INGREDIENTS, Settings, reproduce
    from .records import report_outcome

    if list_ingredients:
        for one in INGREDIENTS:
            say(one.name)
        return {"ingredients": [one.name for one in INGREDIENTS]}
    from ..datasets import load

    names = tuple(name.strip() for name in ingredients.split(";") if name.strip())
    settings = Settings(train, validation, minutes, names, combine, seed, store)
    outcome = reproduce(load("cifar10", data), settings, backend=backend, folder=output, record=record)
    return report_outcome(report, outcome)


@app.command()
def report(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="The folder of records.")] = Path(
        "benchmarks/results"
    ),
    page: Annotated[Path, typer.Option(help="The page to write; its pictures go into images/ beside it.")] = Path(
        "docs/results.md"
    ),
) -> None:
    """Write the page of results from stored records."""
    from .report import write_report

    say_files(write_report(records, page))


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


@app.command()
@answers_json
def distillation(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="mnist or cifar10.")] = "mnist",
    images: Annotated[int, typer.Option(min=1, help="How many images to learn.")] = 10,
    kernel: Annotated[
        str | None,
        typer.Option(help="A name, such as myrtle5, or layers in quotes; by default one without a global pool."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam.")] = 500,
    batch: Annotated[int, typer.Option(min=2, help="Training images of a step.")] = 500,
    rate: Annotated[float, typer.Option(help="The largest change of a pixel in a step, at the start.")] = 0.02,
    ridge: Annotated[float, typer.Option(help="Relative to the mean of the diagonal.")] = 1e-6,
    start: Annotated[str, typer.Option(help="images or noise.")] = "images",
    labels: Annotated[bool, typer.Option("--labels", help="Learn the targets of the images too.")] = False,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the ZCA that whitens CIFAR-10.")] = 1e-4,
    test: TestOption = None,
    seed: SeedOption = 0,
    minutes: MinutesOption = None,
    backend: BackendOption = "auto",
    data: DataOption = None,
    output: OutputOption = OUTPUT,
    report: ReportOption = None,
) -> Answer:
    """Whole data sets distilled to few images, whose kernel classifier is nearly as good."""
    from ..datasets import load
    from ..distillation import Settings
    from .distillation import check_dataset, reproduce

    check_dataset(dataset)  # before anything is downloaded
    flips = dataset == "cifar10"
    settings = Settings(images, steps, batch, rate, ridge, start, labels, flips, seed)
    return reproduce(
        load(dataset, data),
        settings,
        kernel=kernel,
        epsilon=epsilon,
        test=test,
        folder=output,
        minutes=minutes,
        backend=backend,
        report=report,
    )


@app.command()
@answers_json
def networks(
    recipes: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Recipes by name; --list shows them.")
    ] = "cifar10-myrtle5",
    list_recipes: Annotated[bool, typer.Option("--list", help="Show the recipes and do nothing else.")] = False,
    width: Annotated[int | None, typer.Option(min=1, help="Filters, in place of the recipe's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, in place of the recipe's.")] = None,
    train: Annotated[
        int | None, typer.Option(min=2, help="Training images, balanced; the recipe's by default.")
    ] = None,
    test: TestOption = None,
    trials: Annotated[int, typer.Option(min=1, help="Networks of each recipe, with consecutive seeds.")] = 1,
    test_every: Annotated[int, typer.Option(min=1, help="Epochs between tests.")] = 1,
    seed: SeedOption = 0,
    stop_after: StopAfterOption = None,
    device: DeviceOption = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    compiled: Annotated[
        str, typer.Option("--compile", help="auto, off, default, reduce-overhead or max-autotune.")
    ] = "auto",
    data: DataOption = None,
    output: OutputOption = OUTPUT,
    report: ReportOption = None,
) -> Answer:
    """Networks of the kernels' shapes, trained by the paper's recipes (needs PyTorch)."""
    from ..networks.recipes import RECIPES

    if list_recipes:
        for name, recipe in RECIPES.items():
            say(f"{name:<28} {recipe.describe()}")
        return {name: recipe.to_json() for name, recipe in RECIPES.items()}
    from ..datasets import load
    from ..networks.training import Machine
    from .networks import Settings, reproduce
    from .records import report_outcome

    if not recipes.strip(", "):
        raise ParameterError("name a recipe, or several; --list shows them")
    names = parse_names(recipes, tuple(RECIPES))
    given = {"width": width, "epochs": epochs, "images": train}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = Settings(names, changes, trials, test, test_every, seed, stop_after)
    machine = Machine(device, precision, compiled)
    outcome = reproduce(lambda name: load(name, data), settings, machine=machine, folder=output)
    return report_outcome(report, outcome)


@app.command()
@answers_json
def uci(
    datasets: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Tables, by the names of their folders; all 90 by default.")
    ] = "",
    methods: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="gaussian, ntk, ntk-fine, polynomial and forest.")
    ] = "gaussian,ntk",
    data: DataOption = None,
    output: OutputOption = OUTPUT,
    jobs: Annotated[int | None, typer.Option(help="Processes; all cores by default.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Report the saved answers; compute nothing.")] = False,
    report: ReportOption = None,
) -> Answer:
    """Classifiers on 90 tables of the UCI repository, tuned in three ways, beside the paper's."""
    from ..backends.workers import count_workers
    from .uci_report import run_study

    names, ways = split_names(datasets), split_names(methods)
    return run_study(names, ways, data, output, count_workers(jobs), finished=finished, report=report)


@answers_json
def compare(
    architectures: Annotated[
        list[str] | None, typer.Argument(metavar="ARCH", help="Two or more; eleven of different depth by default.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="digits, mnist, cifar10 or cifar100.")] = "digits",
    data: DataOption = None,
    train: Annotated[int | None, typer.Option(min=2, help="Training images, balanced; all by default.")] = None,
    test: TestOption = None,
    inputs: Annotated[str, typer.Option(help="pixels, standardize or zca.")] = "zca",
    ridge: Annotated[
        str, typer.Option(help="Ridge of the kernels: a number, or loo to choose by leave-one-out.")
    ] = "loo",
    width: Annotated[int, typer.Option(min=1, help="Filters of the networks.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 30,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the networks, for Adam.")] = 3e-3,
    batch_norm: Annotated[bool, typer.Option("--batch-norm", help="Normalise batches in the networks.")] = False,
    trials: Annotated[int, typer.Option(min=1, help="Networks of each architecture.")] = 3,
    seed: SeedOption = 0,
    stop_after: StopAfterOption = None,
    backend: BackendOption = "auto",
    device: DeviceOption = "auto",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the record and the picture.")] = Path(
        "out/compare"
    ),
    report: ReportOption = None,
) -> Answer:
    """Kernel against network of each architecture, on the same images (needs PyTorch)."""
    from ..datasets import NAMES, load
    from ..networks.training import Machine
    from .compare import ARCHITECTURES, Settings
    from .compare import compare as run
    from .records import report_outcome

    settings = Settings(
        train=train,
        test=test,
        inputs=cast("Any", inputs),
        ridge=parse_ridge(ridge),
        width=width,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_norm=batch_norm,
        trials=trials,
        seed=seed,
    )
    if data is not None and not data.exists() and str(data) in NAMES:
        raise ParameterError(f"--data is the folder that data sets are in; choose one of them by --dataset {data}")
    outcome = run(
        load(dataset, data),
        architectures or ARCHITECTURES,
        settings,
        backend=backend,
        machine=Machine(device),
        folder=output,
        stop_after=stop_after,
    )
    return report_outcome(report, outcome)
