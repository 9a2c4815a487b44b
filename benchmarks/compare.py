"""Compares the speed of tangentless on a CPU with its reference backend, PyTorch and neural-tangents.

    python benchmarks/compare.py                                  # compare what is installed in this environment
    python benchmarks/compare.py --neural-tangents PYTHON         # with neural-tangents in another environment
    python benchmarks/compare.py --quick                          # seconds instead of minutes, to see that it works

Every contender computes a leading block of one matrix k(X, Z), as large as it can within the time of a turn, after
compilation and preparation. Contenders take turns, so that other work on the machine slows all alike. Rates are those
of the best turn; medians are in the JSON file too. Errors are against the float64 reference, on 16 pairs. Results go to
benchmarks/results/cpu_compare.json and .md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import tangentless as tl
from tangentless.backends import get_backend
from tangentless.graph import Graph
from tangentless.timing import environment, random_images, timed

ARCHITECTURES = ("myrtle5", "myrtle10", "myrtle10-gaussian")
SHAPES = ((32, 32, 3), (28, 28, 1), (8, 8, 1))
OURS, OURS_ALONE = "tangentless", "tangentless, 1 thread"
BATCHES = (1, 2, 4, 8)
MOST_IMAGES = 1024
FEWEST_OF_OURS = 32  # images of either side: they fill all SIMD lanes, and make tasks for all threads
PREPARED = 512  # images to time preparation on: enough to balance the load of threads
CHECKED = 4  # images of either side whose pairs are compared with the reference
HERE = Path(__file__).parent
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Pairs:
    """Two sets of images, in memory and in files; contenders use the first `count` of both."""

    architecture: str
    graph: Graph
    left: np.ndarray
    right: np.ndarray
    folder: Path

    @property
    def files(self) -> tuple[str, str]:
        return str(self.folder / "left.npy"), str(self.folder / "right.npy")

    def exact(self, count: int) -> np.ndarray:
        """The entries of the first images of both sides, by the reference."""
        return tl.kernel(self.architecture)(self.left[:count], self.right[:count], backend="reference")


@dataclass
class Contender:
    """A program that computes a block of the first `count` images of both sides, and the times of its turns."""

    name: str
    run: Callable[[int], tuple[np.ndarray, float]]  # count -> values, seconds of the block alone
    count: int = 1
    values: np.ndarray | None = None
    seconds: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return self.count**2 / min(self.seconds)

    @property
    def median(self) -> float:
        return self.count**2 / statistics.median(self.seconds)

    def size(self, seconds: float) -> None:
        """Double `count` until a block takes about `seconds`, timed at the second call, since the first may compile."""
        while True:
            self.run(self.count)
            self.values, taken = self.run(self.count)
            if taken > seconds / 3 or self.count >= MOST_IMAGES:
                return
            self.count *= 2

    def turn(self) -> None:
        self.values, taken = self.run(self.count)
        self.seconds.append(taken)


def ours(pairs: Pairs, name: str, n_jobs: int | None) -> Contender:
    backend, graph = get_backend("cpu", n_jobs=n_jobs), pairs.graph
    prepared: dict[int, tuple[Any, Any]] = {}

    def run(count: int) -> tuple[np.ndarray, float]:
        if count not in prepared:
            prepared[count] = tuple(backend.prepare(graph, side[:count]) for side in (pairs.left, pairs.right))
        return timed(lambda: backend.block(graph, *prepared[count]))

    contender = Contender(name, run, count=FEWEST_OF_OURS)
    many = np.resize(pairs.left, (PREPARED, *pairs.left.shape[1:]))
    contender.notes["prepare"] = lambda: timed(lambda: backend.prepare(graph, many))[1]
    return contender


def reference(pairs: Pairs) -> Contender:
    backend, graph = get_backend("reference"), pairs.graph

    def run(count: int) -> tuple[np.ndarray, float]:
        left, right = (backend.prepare(graph, side[:count]) for side in (pairs.left, pairs.right))
        return timed(lambda: backend.block(graph, left, right))

    return Contender("reference", run)


def pytorch(pairs: Pairs, way: str) -> Contender:
    """PyTorch in one of its ways (see `torch_rival`), at its best batch size."""
    from torch_rival import TorchKernel

    kernel = TorchKernel(pairs.graph, way)
    prepared: dict[int, tuple[Any, Any]] = {}

    def run(count: int, batch: int | None = None) -> tuple[np.ndarray, float]:
        if count not in prepared:
            prepared[count] = kernel.prepare(pairs.left[:count]), kernel.prepare(pairs.right[:count])
        return timed(lambda: kernel.block(*prepared[count], batch or contender.notes["batch"]))

    contender = Contender(f"PyTorch, {way}", run, notes={"batch": 1})
    for batch in BATCHES:
        run(4, batch)
    contender.notes["batch"] = min(BATCHES, key=lambda batch: min(run(4, batch)[1] for _ in range(2)))
    return contender


class NeuralTangents:
    """neural-tangents in another process, which may run another Python."""

    def __init__(self, python: str) -> None:
        command = [python, str(HERE / "neural_tangents_rate.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._read()

    def contender(self, pairs: Pairs) -> Contender:
        left, right = pairs.files
        request = {"architecture": str(pairs.graph.architecture), "left": left, "right": right}

        def run(count: int) -> tuple[np.ndarray, float]:
            print(json.dumps({**request, "rows": count, "columns": count}), file=self.process.stdin, flush=True)
            answer = self._read()
            values, norms = np.array(answer["values"]), (np.array(answer["left"]), np.array(answer["right"]))
            return pairs.graph.apply_head([values], *([one] for one in norms)), answer["seconds"]

        return Contender("neural-tangents", run)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"neural-tangents ended with status {self.process.wait()}; its message is above")
        return json.loads(line)


@contextmanager
def drawn_pairs(architecture: str, shape: tuple[int, ...]) -> Iterator[Pairs]:
    """Random images of both sides, also written to temporary files."""
    graph = tl.kernel(architecture).graph(shape)
    with tempfile.TemporaryDirectory() as folder:
        left, right = (random_images(graph, MOST_IMAGES, seed) for seed in (0, 1))
        pairs = Pairs(architecture, graph, left, right, Path(folder))
        for path, images in zip(pairs.files, (left, right), strict=True):
            np.save(path, images)
        yield pairs


def race(contenders: list[Contender], seconds: float, rounds: int) -> None:
    """Choose block sizes, then let contenders take turns for so many rounds."""
    for contender in contenders:
        contender.size(seconds)
    for _ in range(rounds):
        for contender in contenders:
            contender.turn()


def compare_libraries(architecture: str, options: argparse.Namespace, library: NeuralTangents | None) -> list[dict]:
    """Compare all contenders on 32×32×3 images: rates, ratios and errors."""
    with drawn_pairs(architecture, (32, 32, 3)) as pairs:
        contenders = [ours(pairs, OURS, None), reference(pairs)]
        contenders += [pytorch(pairs, way) for way in options.ways]
        contenders += [library.contender(pairs)] if library else []
        race(contenders, options.seconds, options.rounds)
        exact = pairs.exact(CHECKED)
        return [
            {
                "architecture": architecture,
                "contender": one.name,
                "pairs_per_second": one.best,
                "median": one.median,
                "ratio": contenders[0].best / one.best,
                "error": float(np.abs(one.values[:CHECKED, :CHECKED] - exact[: one.count, : one.count]).max()),
                "pairs_per_turn": one.count**2,
                **({"batch": one.notes["batch"]} if "batch" in one.notes else {}),
            }
            for one in contenders
        ]


def compare_shapes(architecture: str, options: argparse.Namespace) -> list[dict]:
    """Measure tangentless on images of several shapes, with one thread and with all."""
    with ExitStack() as stack:
        every = [stack.enter_context(drawn_pairs(architecture, shape)) for shape in SHAPES]
        duos = [(ours(pairs, OURS, None), ours(pairs, OURS_ALONE, 1)) for pairs in every]
        race([contender for duo in duos for contender in duo], options.seconds, options.rounds)
        full = duos[0][0].best * every[0].graph.elements
        return [
            {
                "architecture": architecture,
                "shape": "×".join(map(str, shape)),
                "pairs_per_second": both.best,
                "one_thread": alone.best,
                "threads_ratio": both.best / alone.best,
                "elements_per_second": both.best * pairs.graph.elements,
                "share_of_largest": both.best * pairs.graph.elements / full,
                "preparation_in_pairs": min(both.notes["prepare"]() for _ in range(10)) / PREPARED * both.best,
            }
            for shape, pairs, (both, alone) in zip(SHAPES, every, duos, strict=True)
        ]


def torch_ways(wanted: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """The ways to run PyTorch here, and notes for the record: its version, or why it is left out."""
    if not wanted or importlib.util.find_spec("torch") is None:
        return (), {"torch": "not installed" if wanted else "left out"}
    import torch

    from torch_rival import WAYS, Way

    torch.set_num_threads(environment()["cores"])
    ways: tuple[Way, ...] = WAYS
    notes = {"torch": torch.__version__}
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(4))
    except Exception as error:  # any failure to compile a sum means that nothing else will compile
        ways = tuple(way for way in WAYS if not way.endswith("compiled"))
        notes["torch.compile"] = f"left out: {str(error).splitlines()[0]}"
    return ways, notes


def open_library(python: str | None) -> NeuralTangents | None:
    """neural-tangents in the given Python, or in this one if it is installed; otherwise None."""
    if python is None and importlib.util.find_spec("neural_tangents") is None:
        return None
    return NeuralTangents(python or sys.executable)


def library_rows(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    header = ["32×32×3", "contender", "pairs/s", "tangentless is faster by", "error of K"]
    return header, [
        [
            row["architecture"],
            row["contender"],
            f"{row['pairs_per_second']:,.3g}" if row["pairs_per_second"] < 100 else f"{row['pairs_per_second']:,.0f}",
            f"{row['ratio']:,.3g} ×" if row["ratio"] != 1 else "",
            f"{row['error']:.0e}",
        ]
        for row in rows
    ]


def shape_rows(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    header = ["tangentless", "shape", "pairs/s", "1 thread", "all / 1", "10⁹ elements/s", "of 32×32×3", "preparation"]
    return header, [
        [
            row["architecture"],
            row["shape"],
            f"{row['pairs_per_second']:,.0f}",
            f"{row['one_thread']:,.0f}",
            f"{row['threads_ratio']:.2f} ×",
            f"{row['elements_per_second'] / 1e9:.3g}",
            f"{100 * row['share_of_largest']:.0f} %",
            f"{row['preparation_in_pairs']:.2g} pairs",
        ]
        for row in rows
    ]


def show(header: list[str], rows: list[list[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def to_markdown(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---", "---", *["---:"] * (len(header) - 2)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def write(folder: Path, here: dict[str, Any], libraries: list[dict], shapes: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"environment": here, "libraries": libraries, "shapes": shapes}
    (folder / "cpu_compare.json").write_text(json.dumps(content, indent=1) + "\n")
    where = ", ".join(f"{name} {value}" for name, value in here.items() if name not in ("command", "date"))
    parts = [
        "# Speed on a CPU",
        f"{here['date']}; {where}.",
        f"Made with `{here['command']}`: the same pairs for all, in turns, float32, warm; the best turn of each.",
        to_markdown(*library_rows(libraries)),
        to_markdown(*shape_rows(shapes)),
    ]
    (folder / "cpu_compare.md").write_text("\n\n".join(parts) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", nargs="+", default=list(ARCHITECTURES), metavar="ARCH")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of one turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--quick", action="store_true", help="one short turn each")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parser.add_argument("--neural-tangents", metavar="PYTHON", help="a Python that has neural-tangents")
    parser.add_argument("--output", type=Path, default=HERE / "results", metavar="FOLDER")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 0.05, 1
    return options


def main() -> None:
    options = read_options()
    options.ways, notes = torch_ways(not options.no_torch)
    library = open_library(options.neural_tangents)
    notes |= library.versions if library else {"neural-tangents": "not installed"}
    # Folders of this machine mean nothing to readers, so paths in the command are cut to their last part.
    command = ["python", "benchmarks/compare.py", *(Path(word).name if "/" in word else word for word in sys.argv[1:])]
    here = {**environment(), **notes, "command": shlex.join(command)}
    console.print(f"[bold]{here['processor']}, {here['cores']} cores[/bold], {here['date']}")
    console.print(", ".join(f"{name} {value}" for name, value in notes.items()))
    libraries, shapes = [], []
    for architecture in options.architectures:
        libraries += (rows := compare_libraries(architecture, options, library))
        show(*library_rows(rows))
    for architecture in options.architectures:
        shapes += (rows := compare_shapes(architecture, options))
        show(*shape_rows(rows))
    if library:
        library.close()
    write(options.output, here, libraries, shapes)
    console.print(f"written to {options.output}/cpu_compare.json and .md")


if __name__ == "__main__":
    main()
