"""Tables for the terminal: the layers of an architecture, its predicted cost, and measured speeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from .console import make_table
from .graph import EmbedNode, Graph, Node, PoolNode, WindowNode
from .layers import Grid, Layer, Nonlinearity, Normalize, Windowed, branches_of, format_grid
from .timing import Memory, Speed, format_bytes, format_seconds, symmetric_pairs

if TYPE_CHECKING:
    from .bench.gpu import GpuCase, GpuMatrix


@dataclass(frozen=True)
class LayerRow:
    """One layer of an architecture on a given input shape."""

    layer: str  # indented by the depth of its branch
    meaning: str
    grid: Grid  # after the layer
    work: int  # elements computed per pair of images
    sees: Grid  # receptive field of one position, in pixels


def layer_rows(graph: Graph) -> list[LayerRow]:
    """One row for each layer of the graph, in order; layers of branches are indented.

    >>> from .kernel import kernel
    >>> rows = layer_rows(kernel("conv3 relu globalpool").graph((4, 4, 1)))
    >>> [(row.layer, row.grid, row.work, row.sees) for row in rows]
    [('conv3', (4, 4), 0, (3, 3)), ('relu', (4, 4), 256, (3, 3)), ('globalpool', (1, 1), 0, (4, 4))]
    """
    rank, sees = len(graph.grid), _sees(graph)
    rows, seen_nodes = [], {0}
    for depth, layer, node in graph.ends:
        new = graph.nodes[node] if node not in seen_nodes else None
        embeds = isinstance(new, EmbedNode) and node in graph.body
        grid, seen = (pair[2 - rank :] for pair in (graph.nodes[node].grid, sees[node]))
        text = str(layer) if not branches_of(layer) else f"{layer.name}, {len(branches_of(layer))} branches"
        rows.append(
            LayerRow("  " * depth + text, _meaning(layer, new, rank), grid, graph.pairs(node) if embeds else 0, seen)
        )
        seen_nodes.add(node)
    return rows


def _sees(graph: Graph) -> list[tuple[int, int]]:
    """The receptive field of each node: how many pixels (rows, columns) one position sees."""
    sees, steps = [(1, 1)], [(1, 1)]
    for node in graph.nodes[1:]:
        before = [sees[source] for source in node.sources]
        step = steps[node.sources[0]]
        seen = [max(axis) for axis in zip(*before, strict=True)]
        if isinstance(node, WindowNode | PoolNode):
            seen = [s + (w.size - 1) * w.dilation * p for s, w, p in zip(seen, node.axes, step, strict=True)]
            step = (step[0] * node.axes[0].stride, step[1] * node.axes[1].stride)
        height, width = (min(length, s) for length, s in zip(graph.nodes[0].grid, seen, strict=True))
        sees.append((height, width))
        steps.append(step)
    return sees


def layer_table(rows: Sequence[LayerRow], shape: tuple[int, ...], elements: int) -> Table:
    """The table of layers, grids and work; its footer is the sum of the work."""
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


def description(
    graph: Graph, rows: Sequence[LayerRow], count: int, memory: Memory, speed: Speed | None, solving: float | None
) -> dict[str, Any]:
    """Layers, and the predicted cost of the matrix of `count` images, for JSON; times not measured are None."""
    measured = None if speed is None else {"pairs_per_second": speed.pairs, "elements_per_second": speed.elements}
    seconds = {
        "prepare": None if speed is None else count / speed.images,
        "matrix": None if speed is None else speed.matrix_seconds(count),
        "solve": solving,
    }
    sizes = {"matrix": memory.result, "images": memory.images, "tiles": memory.tiles, "all": memory.total}
    return {
        "layers": [asdict(row) for row in rows],
        "elements_per_pair": graph.elements,
        "measured": measured,
        "predicted": {"images": count, "pairs": symmetric_pairs(count), "seconds": seconds, "bytes": sizes},
    }


def cost_table(predicted: Mapping[str, Any]) -> Table:
    """The table of the costs that `description` predicts."""
    images, seconds = f"{predicted['images']:,}", predicted["seconds"]
    measured = [taken for taken in seconds.values() if taken is not None]
    total = sum(measured) if len(measured) == len(seconds) else None
    prepare, matrix, solve, everything = (
        "not measured" if taken is None else format_seconds(taken) for taken in (*seconds.values(), total)
    )
    sizes = {name: format_bytes(size) for name, size in predicted["bytes"].items()}
    table = make_table((f"{images} images, predicted", "how much", "time", "memory"), ())
    table.add_row("prepare images", f"{images} images", prepare, sizes["images"])
    table.add_row("kernel matrix", f"{predicted['pairs']:,} pairs", matrix, sizes["matrix"])
    table.add_row("tiles in work", "", "", sizes["tiles"])
    table.add_row("solve, leave-one-out", f"{images} rows", solve, "in place", end_section=True)
    table.add_row("all", "", everything, sizes["all"], style="bold")
    return table


def bench_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Speeds and errors, a row for each architecture and number of threads.

    `prepare` is the cost of preparing one image, in pairs. Errors are the largest against the reference: `error` is
    absolute, `of 1-K` relative to 1 - K.
    """
    columns = ("architecture", "threads", "pairs/s", "elements/s", "prepare", "error", "of 1-K", "NaN")

    def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
        return (
            row["architecture"],
            "" if row["threads"] is None else str(row["threads"]),
            format_rate(row["pairs_per_second"]),
            f"{row['elements_per_second'] / 1e9:.3g}e9",
            f"{row['preparation_in_pairs']:.2g} pairs",
            f"{row['error']:.0e}",
            f"{row['error_relative_to_distance']:.0e}",
            str(row["not_finite"]),
        )

    return make_table(columns, map(cells, rows))


def format_rate(rate: float) -> str:
    """Pairs a second: whole numbers from 10 on, and two digits below.

    >>> format_rate(12345.6), format_rate(0.1234)
    ('12,346', '0.12')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def gpu_table(cases: Sequence[GpuCase]) -> Table:
    """Speeds and errors on a GPU, a row for each case.

    `of ceiling` is the rate of special functions as a share of the GPU's peak. `slots` is the number of instructions
    that the GPU can issue in the time of one element. Errors are the largest against float64: `error` is relative to K,
    `of 1-K` relative to 1 - K.
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
    """Size, time and speed of a whole symmetric matrix k(X), in one line."""
    share = f"{100 * matrix.share_of_block_rate:.0f} % of the rate of a block"
    trouble = "" if matrix.symmetric and not matrix.not_finite else ", NOT symmetric or not finite"
    return (
        f"k(X) of {matrix.count:,} images ({matrix.images}), {matrix.architecture}: {format_seconds(matrix.seconds)}, "
        f"{matrix.pairs_per_second:,.0f} pairs/s, {share}{trouble}"
    )


def _meaning(layer: Layer, node: Node | None, rank: int) -> str:
    if isinstance(layer, Windowed):
        if not isinstance(node, WindowNode | PoolNode):
            return "nothing: every position stays as it is"
        axes = node.axes[2 - rank :]
        verb = "concatenate" if isinstance(node, WindowNode) else "average"
        text = f"{verb} windows of {format_grid(tuple(windows.size for windows in axes))}"
        details = [f"{name} {getattr(axes[0], name)}" for name in ("stride", "dilation") if getattr(axes[0], name) > 1]
        disjoint = all(windows.size == windows.stride for windows in axes)
        return text if disjoint else ", ".join([text, *details])
    if isinstance(layer, Normalize):
        return "divide by their norms"
    return (
        "embed: norms × f(cosine)" if isinstance(layer, Nonlinearity) else "add branches, their features side by side"
    )
