"""The command line: commands read files, call the package, and print the results.

Commands import what they need when they run, so that help appears at once. An error that the package raises on purpose
is printed as one line, with exit status 2; any other error keeps its traceback.
"""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .answers import Answer, answers_json
from .commands import fit, pace_text, predict, search
from .console import percent, print_table, say, say_aside
from .errors import ParameterError, TangentlessError
from .experiments.cli import app as experiments_app
from .experiments.cli import compare
from .gram.cli import app as gram_app
from .options import (
    ArchitectureArgument,
    BackendOption,
    ForceOption,
    ImagesArgument,
    JobsOption,
    KernelArgument,
    KeyOption,
    OutputOption,
    PrecisionOption,
    ReportOption,
    SymmetryOption,
    check_outputs,
    device_of,
    load_images,
    symmetrized,
)

_OPTIONS = {  # what errors advise in Python, and the option that does it here
    "force_unlock=True": "--force-unlock",
    "force=True": "--force",
    "extend=True": "--extend",
    "mixed=True": "--mixed",
    "mirrors=True": "--flips",
    "n_jobs is": "--jobs is",
    "storage_options=": "--storage",
}


class _Commands(TyperGroup):
    """A group of commands that prints the package's errors, warnings and interrupts as one line each."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest: say_aside(f"Note: {message}")
            try:
                return super().invoke(ctx)
            except TangentlessError as error:
                text = str(error)
                for advice, option in _OPTIONS.items():
                    text = text.replace(advice, option)
                say_aside(f"Error: {text}")
                raise typer.Exit(2) from None
            except PermissionError as error:
                say_aside(f"Error: {error.filename}: {error.strerror}; choose a place that you may read and write")
                raise typer.Exit(2) from None
            except KeyboardInterrupt:
                say_aside("Interrupted.")
                raise typer.Exit(130) from None


app = typer.Typer(
    name="tangentless",
    cls=_Commands,
    help="Exact kernels of infinitely wide networks, from a list of layers: compute them, train with them, predict.",
    epilog="ARCH is a name, such as myrtle5 or myrtle10-gaussian, or layers in quotes: "
    "'conv3 relu pool2 conv3 relu globalpool normalize relu'. Start with: tangentless demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(gram_app, name="gram")
app.add_typer(experiments_app, name="reproduce")
for _command in (fit, predict, compare, search):
    app.command()(_command)

ShapeOption = Annotated[
    str, typer.Option(help="Shape of one image: height,width,channels; of a sequence: length,channels.")
]
_KINDS = {1: "vectors", 2: "sequences", 3: "images"}  # by the number of axes of one


def main() -> None:
    """Run the command line; the entry point of the `tangentless` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters such as × must not stop a run whose log is ASCII
        sys.stdout.reconfigure(errors="replace")
    app()


def _program(called: str) -> str:
    """What to type to call this program again: `tangentless`, or how it was called if the shell would not find that.

    >>> _program("site-packages/tangentless/__main__.py"), _program("a script")
    ('python -m tangentless', 'tangentless')
    """
    import shutil

    path, name = Path(called), "tangentless"
    if path.stem == "__main__" and path.parent.name == name:
        return f"python -m {name}"
    return called if path.name == name and shutil.which(name) is None else name


def _show_version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        print(f"tangentless {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
]


@app.callback()
def options(version: VersionOption = False) -> None:
    """Options of the program itself."""


@app.command()
def demo(
    what: Annotated[
        str, typer.Argument(help="digits: classify them. distill: learn ten images that replace the training set.")
    ] = "digits",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the picture and the data.")] = Path(
        "tangentless-demo"
    ),
    kernel: Annotated[str, typer.Option(help="Name or layers of an architecture for 8×8 images.")] = "myrtle5",
    ridge: Annotated[
        float, typer.Option(help="Number added to the diagonal of the kernel matrix; not used by distill.")
    ] = 1e-4,
    seed: Annotated[int, typer.Option(help="Seed of the random split into training and test images.")] = 0,
    jobs: JobsOption = None,
    report: ReportOption = None,
) -> None:
    """Classify handwritten digits, from pixels to a test accuracy, in a minute."""
    from . import demo as demonstration
    from .kernel import kernel as kernel_of

    device, k = device_of("auto", "float32", jobs), kernel_of(kernel)
    if what not in ("digits", "distill"):
        raise ParameterError(f"the demonstrations are digits and distill; there is no {what!r}")
    if what == "distill" and report is not None:
        raise ParameterError("distill writes no report; leave out --report, or run the demonstration digits")
    check_outputs(report)
    if what == "distill":
        found = demonstration.run_distillation(kernel, seed, output, device, _say_step)
    else:
        path = device.backend.describe(k.graph((8, 8, 1)))
        _print(f"[bold]Handwritten digits with {k.architecture.short_name}[/bold], ridge {ridge:g}, seed {seed}")
        _print(f"[dim]{k.architecture}\n{path}[/dim]\n")
        found = demonstration.run_demo(kernel, ridge, seed, output, device, _say_step, report)
    _say_step("picture", f"{found.picture}\n")
    width = max(len(name) for name, *_ in found.scores)
    for name, share, note in found.scores:
        _print(f"{name:<{width}}  [bold]{percent(share, 2)} %[/bold]  {note}")
    _print("\n[bold]Try next[/bold]")
    for arguments in found.further:
        print(f"  {_program(sys.argv[0])} {arguments}")


@app.command()
@answers_json
def kernel(
    architecture: KernelArgument,
    x: ImagesArgument,
    z: Annotated[
        str | None, typer.Argument(metavar="Z", help="A second set of images, for k(X, Z); without it k(X, X).")
    ] = None,
    output: OutputOption = Path("K.npy"),
    key: KeyOption = None,
    mirrored: Annotated[bool, typer.Option("--mirrored", help="The same as --symmetry mirror.")] = False,
    symmetry: SymmetryOption = "",
    backend: BackendOption = "auto",
    precision: PrecisionOption = "float32",
    jobs: JobsOption = None,
    force: ForceOption = False,
) -> Answer:
    """Compute a kernel matrix and write it to a .npy file, in float64."""
    from .expression import kernel_of_text
    from .files import save_array
    from .progress import progress_bar
    from .timing import format_bytes, symmetric_pairs, timed

    base = kernel_of_text(architecture)
    check_outputs(output, force=force)
    run, images = device_of(backend, precision, jobs), load_images(x, key)
    others = None if z is None else load_images(z, key)
    k = symmetrized(base, symmetry, mirrored)
    with progress_bar("kernel") as progress:
        matrix, taken = timed(lambda: k(images, others, backend=run, progress=progress))
    save_array(output, matrix)
    pairs = symmetric_pairs(len(images)) if others is None else matrix.size
    shape = " × ".join(f"{side:,}" for side in matrix.shape)
    print(f"{output}: {shape} float64, {format_bytes(matrix.nbytes)}; {pace_text(pairs, taken)}")
    return {"output": output, "shape": matrix.shape, "pairs": pairs, "seconds": taken}


@app.command()
@answers_json
def describe(
    architecture: ArchitectureArgument,
    shape: ShapeOption = "32,32,3",
    images: Annotated[int, typer.Option(min=1, help="Number of images to predict time and memory for.")] = 10_000,
    measure: Annotated[
        bool, typer.Option(help="Time a few pairs on this machine, to predict how long a matrix takes.")
    ] = True,
    backend: BackendOption = "auto",
    precision: PrecisionOption = "float32",
    jobs: JobsOption = None,
) -> Answer:
    """Show the layers of an architecture, its work per pair of images, and the time and memory it needs here."""
    from . import timing
    from .expression import kernel_of_text
    from .kernel import CompositionalKernel
    from .progress import progress_bar
    from .terminal_tables import cost_table, description, format_rate, layer_rows, layer_table

    k, size = kernel_of_text(architecture), _parse_shape(shape)
    if not isinstance(k, CompositionalKernel):
        raise ParameterError(f"describe shows the layers of one architecture, and {k} has none; name it, or its layers")
    graph, run = k.graph(size), device_of(backend, precision, jobs).backend
    rows = layer_rows(graph)
    _print(f"[bold]{k.architecture.short_name}[/bold] on {_KINDS[len(size)]} of {'×'.join(map(str, size))}")
    print_table(layer_table(rows, size, graph.elements))
    _print(f"{run.describe(graph)}\n")
    speed = solving = None
    if measure:
        with progress_bar("compiling and measuring"):
            timing.warm_up(run, graph)
            speed, solving = timing.measure(run, graph), timing.solver_seconds(images)
    memory = timing.predict_memory(graph, run.prepare(graph, timing.random_images(graph, 1)), images)
    found = description(graph, rows, images, memory, speed, solving)
    print_table(cost_table(found["predicted"]))
    if speed is not None:
        _print(f"from {format_rate(speed.pairs)} pairs/s ({speed.elements:.2e} elements/s), measured just now")
    about = {"architecture": k.architecture.short_name, "shape": size, "path": run.describe(graph)}
    return {**about, **found}


@app.command()
@answers_json
def bench(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARCH",
            help="Default: myrtle5, myrtle10 and myrtle10-gaussian; on cuda also myrtle7 and smaller images.",
        ),
    ] = None,
    shape: ShapeOption = "32,32,3",
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds for each measurement.")] = 2.0,
    check: Annotated[int, typer.Option(min=2, help="Number of images whose pairs the reference computes too.")] = 3,
    backend: BackendOption = "cpu",
    precision: PrecisionOption = "float32",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the results to this JSON file.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(help="On cuda: a file of images, .npy or FILE.npz:NAME; repeatable. Default: synthetic images."),
    ] = None,
    matrix: Annotated[
        int, typer.Option(min=0, help="On cuda: number of images for timing a whole matrix k(X); 0 leaves it out.")
    ] = 10_000,
    rival: Annotated[
        bool,
        typer.Option(help="On cuda: time the same kernel in PyTorch, compiled layer by layer, in turns with ours."),
    ] = True,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="On cuda: measure architectures and shapes that the tuned path is not for.")
    ] = False,
    report: ReportOption = None,
) -> Answer:
    """Measure on this machine how fast kernels are computed, and their error against the reference.

    With --backend cuda also: the share of the GPU's peak rates, the speed of PyTorch, and the time of a whole matrix.
    """
    from .files import write_json
    from .progress import progress_bar
    from .terminal_tables import bench_table
    from .timing import environment

    size, rows = _parse_shape(shape), []
    check_outputs(output, report)
    if shapes and report is not None:
        raise ParameterError("--shapes writes no report; leave out --report, and write a JSON file with --output")
    if backend == "cuda":
        if precision != "float32":
            raise ParameterError("on cuda the benchmark measures float32 only; leave out --precision")
        if shapes:
            return _bench_shapes(architectures or [], images or [], rival, output)
        cases = [(name, size) for name in architectures] if architectures else None
        options = {"seconds": seconds, "matrix": matrix, "references": check, "rival": rival}
        return _bench_gpu(cases, images or [], output, report, **options)
    if images or shapes:
        raise ParameterError("--images and --shapes need --backend cuda; other backends are timed on synthetic images")
    for name in architectures or ["myrtle5", "myrtle10", "myrtle10-gaussian"]:
        with progress_bar(f"{name}: compiling and measuring"):
            rows += _bench_one(name, size, seconds, check, backend, precision)
    here = environment()
    _print(f"[bold]{'×'.join(map(str, size))}, {precision}[/bold]  {here['processor']}, {here['cores']} cores")
    table = bench_table(rows)
    print_table(table)
    if report is not None:

        def threads(count: int | None) -> str:
            return "all threads" if count is None else f"{count} thread{'s' if count > 1 else ''}"

        speeds = [(f"{row['architecture']}, {threads(row['threads'])}", row["pairs_per_second"]) for row in rows]
        _report_bench(report, table, speeds, {"shape": shape, "precision": precision, "backend": backend})
    content = {"environment": here, "shape": size, "precision": precision, "rows": rows}
    if output is not None:
        write_json(output, content)
    return content


@app.command()
@answers_json
def doctor(
    test: Annotated[bool, typer.Option(help="Test: compute kernels, and compare them with stored values.")] = True,
) -> Answer:
    """Show what this machine has and which backend is used, and test the results in ten seconds.

    The exit status is 1 if the test fails. The first run compiles, which takes up to a minute more.
    """
    from . import doctor as practice
    from .progress import progress_bar

    found, checks = practice.survey(), []
    for name, text in practice.survey_lines(found):
        print(f"{name:<16} {text}")
    with progress_bar("testing; the first run compiles, up to a minute"):
        for check in practice.self_test() if test else ():
            print(check, flush=True)
            checks.append(check)
    good = all(check.good for check in checks)
    if test:
        print("all is well" if good else "something is wrong: please report the lines above")
    return {"good": good, **found, "checks": [check.to_json() for check in checks]}


def _bench_shapes(names: list[str], sources: list[str], rival: bool, output: Path | None) -> Answer:
    _ = device_of("cuda", "float32", None).backend  # raises if there is no GPU, before any file is read
    from .bench.shapes import run_shapes

    return run_shapes(sources, None, output, float("inf"), rival, names).to_json()


def _bench_gpu(
    cases: list[tuple[str, tuple[int, ...]]] | None,
    sources: list[str],
    output: Path | None,
    page: Path | None,
    **options: Any,
) -> Answer:
    from .files import write_json
    from .terminal_tables import gpu_table, matrix_line
    from .timing import command

    _ = device_of("cuda", "float32", None).backend  # raises if there is no GPU, before any file is read
    from .bench.gpu import STANDARD, GpuRecord, bench_gpu, summary

    def report(record: GpuRecord) -> None:
        if output is not None:  # written after every case, so that a run that is stopped keeps its results
            write_json(output, {"command": command(sys.argv), **record.to_json()})
        if record.cases and record.matrix is None and record.cases[-1].reference_error is None:
            _print(summary(record.cases[-1]))

    images = [load_images(source, None) for source in sources]
    record = bench_gpu(cases or STANDARD, images, report=report, **options)
    here = record.environment
    _print(f"\n[bold]{here['gpu']}[/bold]  CuPy {here['cupy']}, torch {here['torch']}, {here['date']}")
    special, issued = record.ceilings.special_functions, record.ceilings.instructions
    _print(f"ceilings: {special:.3g} special functions and {issued:.3g} instructions a second")
    table = gpu_table(record.cases)
    print_table(table)
    if record.matrix is not None:
        _print(matrix_line(record.matrix))
    if page is not None:
        speeds = [(case.architecture, case.pairs_per_second) for case in record.cases]
        _report_bench(page, table, speeds, dict(here))
    if any("synthetic" in case.images for case in record.cases):
        _print("some images were synthetic: give real ones with --images FILE.npy")
    return record.to_json()


def _report_bench(path: Path, table: Any, speeds: list[tuple[str, float]], about: dict[str, Any]) -> None:
    """Write the table of a benchmark and a chart of its speeds as an HTML report."""
    from .report import Page, Section, draw_bars, sortable_table, write_page
    from .timing import command

    columns = [str(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    sections = [
        Section("speeds", "Speeds and errors", sortable_table("Speeds and errors", columns, rows)),
        Section("pairs", "Pairs a second", draw_bars("Pairs a second", speeds)),
    ]
    lead = "Kernel entries a second on this machine, and errors against the reference."
    write_page(path, Page("Benchmark", lead, sections, {"command": command(sys.argv), **about}), force=True)
    print(path)


def _bench_one(
    architecture: str, shape: tuple[int, ...], seconds: float, check: int, backend: str, precision: str
) -> list[dict[str, Any]]:
    """Rows of the benchmark of one architecture: on the CPU one for a single thread and one for all, else one."""
    from . import timing
    from .backends.workers import count_workers
    from .kernel import kernel as kernel_of

    k = kernel_of(architecture)
    graph, device = k.graph(shape), device_of(backend, precision, None)
    accuracy = timing.compare_with_reference(k, device.backend, shape, check)
    rows = []
    for count in sorted({1, count_workers(None)}) if device.name == "cpu" else (None,):
        run = device_of(backend, precision, count).backend
        timing.warm_up(run, graph)
        speed = timing.measure(run, graph, seconds)
        rows.append(
            {
                "architecture": k.architecture.short_name,
                "threads": count,
                "pairs_per_second": speed.pairs,
                "elements_per_second": speed.elements,
                "preparation_in_pairs": speed.preparation,
                "error": accuracy.absolute,
                "error_relative_to_distance": accuracy.relative,
                "not_finite": speed.not_finite,
            }
        )
    return rows


def _parse_shape(text: str) -> tuple[int, ...]:
    """Read the shape of an image, `32,32,3` or `32x32x3`.

    >>> _parse_shape("32x32x3")
    (32, 32, 3)
    """
    parts = text.replace("×", ",").replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ParameterError(f"a shape is height,width,channels, such as 32,32,3, or length,channels; not {text!r}")
    return tuple(map(int, parts))


def _print(text: str) -> None:
    say(text, markup=True)


def _say_step(name: str, outcome: str) -> None:
    _print(f"{name:<16} {outcome}")
