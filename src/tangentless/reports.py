"""Tables for the terminal: what an architecture does layer by layer, what it will cost, and how fast it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from .architecture import Architecture
from .console import make_table
from .layers import Conv, GlobalPool, Grid, Layer, Nonlinearity, Normalize, Window, format_grid
from .timing import Memory, Speed, format_bytes, format_seconds, symmetric_pairs

if TYPE_CHECKING:
    from .bench.gpu import GpuCase, GpuMatrix


@dataclass(frozen=True)
class LayerRow:
    """One layer on a given input: the grid after it, elements computed for a pair, and pixels one position sees."""

    layer: str
    meaning: str
    grid: Grid
    work: int
    sees: Grid


def layer_rows(architecture: Architecture, grid: Grid) -> list[LayerRow]:
    """What each layer does to images on a grid.

    >>> rows = layer_rows(Architecture.parse("conv3 relu globalpool"), (4, 4))
    >>> [(row.layer, row.grid, row.work, row.sees) for row in rows]
    [('conv3', (4, 4), 0, (3, 3)), ('relu', (4, 4), 256, (3, 3)), ('globalpool', (1, 1), 0, (4, 4))]
    """
    grids = architecture.grids(grid)
    rows: list[LayerRow] = []
    sees, stride = (1,) * len(grid), (1,) * len(grid)
    following = [*architecture.layers[1:], None]
    worked = False  # a pool with nothing before it still has to go over all pairs of positions
    for layer, before, after, follower in zip(architecture, grids[:-1], grids[1:], following, strict=True):
        positions, moves = math.prod(before), isinstance(layer, Window) and before != after
        embeds = isinstance(layer, Nonlinearity | Normalize)
        alone = isinstance(layer, Conv) and not isinstance(follower, Nonlinearity | Normalize)
        counts = positions > 1 and (embeds or alone or (moves and not worked))
        if isinstance(layer, Window):
            windows = layer.window(before)
            sees = tuple(min(g, s + (w - 1) * p) for g, s, w, p in zip(grid, sees, windows, stride, strict=True))
            stride = tuple(p * (b // a) for p, b, a in zip(stride, before, after, strict=True))
        rows.append(LayerRow(str(layer), _meaning(layer, before), after, positions**2 if counts else 0, sees))
        worked = not moves and (worked or counts)
    return rows


def layer_table(rows: Sequence[LayerRow], shape: tuple[int, ...], elements: int) -> Table:
    """Layers, grids and work, with the sum of the work below."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    table.add_column("layer", "per pair of images", no_wrap=True)
    table.add_column("what it does to the features")
    table.add_column("grid after", justify="right")
    table.add_column("sees", justify="right")
    table.add_column("elements", f"{elements:,}", justify="right")
    table.add_row("input", f"{shape[-1]} channels", format_grid(shape[:-1]), format_grid((1,) * len(shape[:-1])), "")
    for row in rows:
        work = f"{row.work:,}" if row.work else ""
        table.add_row(row.layer, row.meaning, format_grid(row.grid), format_grid(row.sees), work)
    return table


def cost_table(count: int, memory: Memory, speed: Speed | None, solving: float | None) -> Table:
    """What the matrix of `count` images takes; times only where they were measured."""
    pairs = symmetric_pairs(count)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{count:,} images, predicted")
    table.add_column("how much", justify="right")
    table.add_column("time", justify="right")
    table.add_column("memory", justify="right")

    def time_of(seconds: float | None) -> str:
        return "not measured" if seconds is None else format_seconds(seconds)

    preparing = None if speed is None else count / speed.images
    computing = None if speed is None else pairs / speed.pairs
    table.add_row("prepare images", f"{count:,} images", time_of(preparing), format_bytes(memory.images))
    table.add_row("kernel matrix", f"{pairs:,} pairs", time_of(computing), format_bytes(memory.result))
    table.add_row("tiles in work", "", "", format_bytes(memory.tiles))
    table.add_row("solve, leave-one-out", f"{count:,} rows", time_of(solving), "in place")
    total = None if preparing is None or computing is None or solving is None else preparing + computing + solving
    table.add_section()
    table.add_row("all", "", time_of(total), format_bytes(memory.total), style="bold")
    return table


@dataclass(frozen=True)
class BenchRow:
    """One measurement of `bench`."""

    architecture: str
    threads: int | None
    pairs_per_second: float
    elements_per_second: float
    preparation_in_pairs: float
    error: float
    error_relative_to_distance: float
    not_finite: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def bench_table(rows: Sequence[BenchRow]) -> Table:
    """Speeds and errors, a row for each architecture and number of threads.

    `prepare` is the cost of one image; errors are the largest of K, and relative to 1 - K, against the reference.
    """
    columns = ("architecture", "threads", "pairs/s", "elements/s", "prepare", "error", "of 1-K", "NaN")

    def cells(row: BenchRow) -> tuple[str, ...]:
        return (
            row.architecture,
            "" if row.threads is None else str(row.threads),
            f"{row.pairs_per_second:,.0f}" if row.pairs_per_second >= 10 else f"{row.pairs_per_second:.2g}",
            f"{row.elements_per_second / 1e9:.3g}e9",
            f"{row.preparation_in_pairs:.2g} pairs",
            f"{row.error:.0e}",
            f"{row.error_relative_to_distance:.0e}",
            str(row.not_finite),
        )

    return make_table(columns, map(cells, rows))


def gpu_table(cases: Sequence[GpuCase]) -> Table:
    """What a GPU did, a row for each case.

    `of ceiling` is the share of the special functions that the GPU can evaluate, `slots` the instructions that it could
    issue in the time of an element; errors are the largest, of K and of 1 - K, against float64.
    """
    measured = "pairs/s", "elements/s", "of ceiling", "slots", "PyTorch", "ratio", "prepare", "error", "of 1-K", "NaN"

    def cells(case: GpuCase) -> tuple[str, ...]:
        rival = case.rival_pairs_per_second
        return (
            case.architecture if len(case.architecture) < 24 else f"{case.architecture[:23]}…",
            f"{format_grid(case.shape)}, {case.images}",
            f"{case.pairs_per_second:,.0f}",
            f"{case.elements_per_second:.3g}",
            f"{100 * case.share_of_special_functions:.0f} %",
            f"{case.issue_slots_per_element:.1f}",
            "" if rival is None else f"{rival:,.0f}",
            "" if case.ratio is None else f"{case.ratio:.1f}",
            f"{case.preparation_microseconds:.0f} µs",
            f"{case.error:.0e}",
            f"{case.error_relative_to_distance:.0e}",
            str(case.not_finite),
            "yes" if case.same_bits else "NO",
        )

    return make_table(("architecture", "images", *measured, "same bits"), map(cells, cases))


def matrix_line(matrix: GpuMatrix) -> str:
    """A symmetric matrix in one line."""
    share = f"{100 * matrix.share_of_block_rate:.0f} % of the rate of a block"
    trouble = "" if matrix.symmetric and not matrix.not_finite else ", NOT symmetric or not finite"
    return (
        f"k(X) of {matrix.count:,} images ({matrix.images}), {matrix.architecture}: {format_seconds(matrix.seconds)}, "
        f"{matrix.pairs_per_second:,.0f} pairs/s, {share}{trouble}"
    )


def _meaning(layer: Layer, grid: Grid) -> str:
    if isinstance(layer, Window):
        if all(length == 1 for length in grid):
            return "nothing: one position is left"
        window = format_grid(layer.window(grid))
        verb = "concatenate" if isinstance(layer, Conv) else "average"
        return f"{verb} all of {window}" if isinstance(layer, GlobalPool) else f"{verb} windows of {window}"
    if isinstance(layer, Normalize):
        return "divide by their norms"
    return "embed: norms × f(cosine)"
