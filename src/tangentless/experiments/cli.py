"""`tangentless reproduce NAME`: every experiment is one command, with options in a shared style.

A command turns texts into plain values and calls its experiment, which is imported when it is run. To add an
experiment, add a command here, and the paper's numbers to `paper.csv`.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..answers import Answer, JsonOption, answers_json
from ..console import say, say_files
from ..errors import ArchitectureError, ParameterError

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
CopiesOption = Annotated[
    int, typer.Option("--zca-copies", min=0, help="Augmented copies that ZCA is fitted to as well; the paper's are 20.")
]
RidgeOption = Annotated[float | None, typer.Option(min=0, help="A ridge for all rows, in place of the paper's.")]


def check_record(name: str | None) -> str | None:
    """Refuse what is not the name of a file, before hours are spent on what goes into it.

    >>> check_record("mnist-10000-gaussian")
    'mnist-10000-gaussian'
    """
    if name is not None and (not name or name.startswith(".") or Path(name).name != name):
        raise ParameterError(f"a record has the name of a file, without folders, such as mnist-10000; not {name!r}")
    return name


RecordOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Name of the record; by default that of the table and the size.", callback=check_record
    ),
]
DeviceOption = Annotated[str, typer.Option(help="What trains networks: auto, cpu, cuda or cuda:1.")]
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
    """The known names that a text lists, in the order of `known`; all of them for an empty text.

    >>> parse_names("linear,myrtle5", ("myrtle5", "myrtle10", "linear"))
    ('myrtle5', 'linear')
    """
    wanted = set(split_names(text))
    if unknown := wanted - set(known):
        raise ParameterError(f"there is no {', '.join(sorted(unknown))} here; there are {', '.join(known)}")
    return tuple(name for name in known if not wanted or name in wanted)


def split_names(text: str) -> list[str]:
    """The parts of a text between its commas; commas in parentheses do not count."""
    from ..architecture import split_text

    return [part.strip() for part in split_text(text, ",") if part.strip()]


def parse_kernels(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Kernels by name: known ones, or architectures by name or text form; all known ones for an empty text.

    >>> parse_kernels("myrtle7,linear", ("myrtle5", "linear"))
    ('myrtle7', 'linear')
    """
    from ..architecture import Architecture

    names = []
    for name in split_names(text):
        try:
            names.append(name if name in known else Architecture.parse(name).short_name)
        except ArchitectureError as error:
            others = f"there are {', '.join(known)} and all architectures"
            raise ParameterError(f"there is no {name} here; {others} ({error})") from None
    return tuple(dict.fromkeys(names)) or known


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
    as_json: JsonOption = False,
) -> Answer:
    """CIFAR-10 from few images: random subsets, the paper's kernels or others, with error bars."""
    from ..datasets import load
    from .cifar10_subsets import DRAWS, KERNELS, Subsets, reproduce

    subsets = Subsets(
        sizes=parse_sizes(sizes),
        kernels=parse_kernels(kernels, KERNELS),
        trials=trials,
        seed=seed,
        draws=parse_names(draws, DRAWS),
    )
    found = reproduce(load("cifar10", data), subsets, test=test, backend=backend, folder=output, record=record)
    return found.to_json()


def _add_table(name: str, text: str) -> None:
    """Add the command of a table, which the module of the same name declares, with the options of all tables."""

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
        as_json: JsonOption = False,
    ) -> Answer:
        from ..datasets import load
        from ..errors import DatasetMissingError
        from .tables import Settings, reproduce

        module = importlib.import_module(f".{name}", __package__)
        table, others = module.table(zca_copies) if zca_copies else module.table(), []
        methods = parse_names(kernels, table.names())  # a wrong name is refused before anything is downloaded
        dataset = load(name, data)
        for other in table.also:
            try:
                others.append(load(other, data, download=False))
            except DatasetMissingError as error:
                say(f"Without {other}: {error}")
        settings = Settings(methods, train, test, seed, ridge, record, store)
        return reproduce(table, dataset, settings, backend=backend, folder=output, others=others).to_json()

    if name == "mnist":  # it is not whitened, so the option would do nothing
        shown = inspect.signature(run, eval_str=True)
        kept = [parameter for key, parameter in shown.parameters.items() if key != "zca_copies"]
        run.__signature__ = shown.replace(parameters=kept)  # type: ignore[attr-defined]
    app.command(name, help=text)(answers_json(run))


_add_table("mnist", "Table of MNIST: Myrtle5 against Gaussian, arc-cosine and tangent kernels, and Gabor filters.")
_add_table("cifar10", "Table of CIFAR-10: Myrtle5, 7 and 10, with and without ZCA, Gaussians, flips and tilting.")
_add_table("cifar100", "Table of CIFAR-100: Myrtle10-Gaussian with and without flips.")


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
    kernel: Annotated[str, typer.Option(help="A name, such as myrtle5, or layers in quotes.")] = "myrtle5",
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam.")] = 500,
    batch: Annotated[int, typer.Option(min=2, help="Training images of a step.")] = 500,
    rate: Annotated[float, typer.Option(help="The largest change of a pixel in a step, at the start.")] = 0.02,
    ridge: Annotated[float, typer.Option(help="Relative to the mean of the diagonal.")] = 1e-6,
    start: Annotated[str, typer.Option(help="images or noise.")] = "images",
    labels: Annotated[bool, typer.Option("--labels", help="Learn the targets of the images too.")] = False,
    epsilon: Annotated[float, typer.Option(help="The epsilon of ZCA, which CIFAR-10 is whitened with.")] = 1e-4,
    test: TestOption = None,
    seed: SeedOption = 0,
    backend: BackendOption = "auto",
    data: DataOption = None,
    output: OutputOption = OUTPUT,
    as_json: JsonOption = False,
) -> Answer:
    """Whole data sets distilled to few images, whose kernel classifier is nearly as good."""
    from ..datasets import load
    from ..distillation import Settings
    from .distillation import DATASETS, reproduce

    (name,) = parse_names(dataset, DATASETS)
    flips = name == "cifar10"
    settings = Settings(images, steps, batch, rate, ridge, start, labels, flips, seed)
    options: dict[str, Any] = {"epsilon": epsilon, "test": test, "folder": output, "backend": backend}
    return reproduce(load(name, data), settings, kernel=kernel, **options)


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
    trials: Annotated[int, typer.Option(min=1, help="Networks of each recipe, from seeds one apart.")] = 1,
    test_every: Annotated[int, typer.Option(min=1, help="Epochs between tests.")] = 1,
    seed: SeedOption = 0,
    stop_after: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop between epochs; the same command goes on.")
    ] = None,
    device: DeviceOption = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    compiled: Annotated[
        str, typer.Option("--compile", help="auto, off, default, reduce-overhead or max-autotune.")
    ] = "auto",
    data: DataOption = None,
    output: OutputOption = OUTPUT,
    as_json: JsonOption = False,
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

    if not recipes.strip(", "):
        raise ParameterError("name a recipe, or several; --list shows them")
    names = parse_names(recipes, tuple(RECIPES))
    given = {"width": width, "epochs": epochs, "images": train}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = Settings(names, changes, trials, test, test_every, seed, stop_after)
    machine = Machine(device, precision, compiled)
    return reproduce(lambda name: load(name, data), settings, machine=machine, folder=output).to_json()


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
    finished: Annotated[
        bool, typer.Option("--finished", help="Report what is there already; compute nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> Answer:
    """Tune machines on 90 tables, three ways, beside the paper's."""
    from ..backends.workers import count_workers
    from .uci_report import run_study

    names, ways = split_names(datasets), split_names(methods)
    return run_study(names, ways, data, output, count_workers(jobs), finished=finished).to_json()


@answers_json
def compare(
    architectures: Annotated[
        list[str] | None, typer.Argument(metavar="ARCH", help="Two or more; eleven of different depth by default.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="digits, mnist, cifar10 or cifar100.")] = "digits",
    data: DataOption = None,
    train: Annotated[int | None, typer.Option(min=2, help="Training images, balanced; all by default.")] = None,
    test: Annotated[int | None, typer.Option(min=1, help="Test images, the first ones; all by default.")] = None,
    inputs: Annotated[str, typer.Option(help="pixels, standardize or zca.")] = "zca",
    ridge: Annotated[str, typer.Option(help="Of the kernels: a number, or loo to choose by leave-one-out.")] = "loo",
    width: Annotated[int, typer.Option(min=1, help="Filters of the networks.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 30,
    learning_rate: Annotated[float, typer.Option(help="Of the networks, by Adam.")] = 3e-3,
    batch_norm: Annotated[bool, typer.Option("--batch-norm", help="Normalise batches in the networks.")] = False,
    trials: Annotated[int, typer.Option(min=1, help="Networks of each architecture.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="What random draws start from.")] = 0,
    stop_after: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Start nothing new then; the same command goes on.")
    ] = None,
    backend: BackendOption = "auto",
    device: Annotated[str, typer.Option(help="What trains networks: auto, cpu, cuda or cuda:1.")] = "auto",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the record and the picture.")] = Path(
        "out/compare"
    ),
    as_json: JsonOption = False,
) -> Answer:
    """Kernel against network of each architecture, on the same images (needs PyTorch)."""
    from ..datasets import NAMES, load
    from ..networks.training import Machine
    from .compare import ARCHITECTURES, Settings
    from .compare import compare as run

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
    return run(
        load(dataset, data),
        architectures or ARCHITECTURES,
        settings,
        backend=backend,
        machine=Machine(device),
        folder=output,
        stop_after=stop_after,
    ).to_json()


def parse_ridge(text: str) -> float | str:
    """A number of at least 0, or `loo`.

    >>> parse_ridge("1e-4"), parse_ridge("loo")
    (0.0001, 'loo')
    """
    try:
        return "loo" if text == "loo" else float(text)
    except ValueError:
        raise ParameterError(f"a ridge is a number, or loo to choose it by leave-one-out; not {text!r}") from None
