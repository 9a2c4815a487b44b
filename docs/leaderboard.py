"""The leaderboard and the list of records, drawn from benchmarks/results alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tangentless.console import markdown, percent, span, with_deviation
from tangentless.experiments.records import read_records
from tangentless.plots import COLOURS, new_axes, save_figure
from tangentless.timing import format_seconds

HEAD = """# Leaderboard

The best results on record, each with the record it comes from. [Results](../results.md) has every row of the paper's
tables. To add a row, run `tangentless reproduce` or a benchmark, and put its record into `benchmarks/results`.
"""
RECORDS_HEAD = """# Records

Every figure on this site comes from one of these files. They say when, where, with which versions and by which command
it was measured.
"""
FEW = """Means and deviations over random balanced subsets, in per cent. The ridge is picked for all subsets of a size
by their leave-one-out accuracy; no test label is used.
"""
SETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar10.1": "CIFAR-10.1", "cifar100": "CIFAR-100"}


def page(folder: Path) -> str:
    """Accuracies, subsets and speeds, the best first."""
    parts = [HEAD]
    rows = [row | {"record": path.name} for path, record in _experiments(folder) for row in record["results"]]
    tested = [row for row in rows if "test set" in row and "accuracy" in row]
    for name, title in SETS.items():
        mine = sorted((row for row in tested if row["test set"] == name), key=lambda row: -row["accuracy"])
        if mine:
            columns = ("", "method", "test accuracy, % (95 %)", "trained on", "tested on", "took", "record")
            parts += [f"## {title}\n", *markdown(columns, (_accuracy(*pair) for pair in enumerate(mine, start=1)))]
    parts += ["## CIFAR-10 from few images\n", FEW, *_few(rows)]
    parts += ["## Speed\n", "Pairs of 32×32×3 images a second.\n", "![Speeds of Myrtle5](speed.svg)\n", *_speed(folder)]
    return "\n".join(parts)


def records_page(folder: Path) -> str:
    """A table of all records, with links that download them."""
    lines = [RECORDS_HEAD]
    columns = ("record", "date", "machine", "command")
    lines += markdown(columns, (_record(path) for path in sorted(folder.glob("*.json"))))
    return "\n".join(lines)


def _experiments(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    known = {json.dumps(record, sort_keys=True): record for record in read_records(folder)}
    for path in sorted(folder.glob("*.json")):
        text = json.dumps(json.loads(path.read_text()), sort_keys=True)
        if text in known:
            yield path, known[text]


def _link(name: str) -> str:
    return f"[record](../../benchmarks/results/{name})"


def _accuracy(rank: int, row: dict[str, Any]) -> tuple[str, ...]:
    method = row.get("method") or f"network: {row['recipe']}"
    tilt = row.get("tilt asked", 0.0)
    named = method if tilt == 0.0 else f"{method}, tilt {'by leave-one-out' if tilt == 'loo' else tilt}"
    took = f"{format_seconds(row['seconds'])}, {row['machine']}" if "seconds" in row else ""
    return (
        str(rank),
        named,
        f"**{percent(row['accuracy'])}** ({span(row['interval'])})",
        f"{row['train']:,}",
        f"{row['rows']:,}",
        took,
        _link(row["record"]),
    )


def _few(rows: list[dict[str, Any]]) -> list[str]:
    mine = [row for row in rows if row.get("draw") == "balanced" and "by pooled leave-one-out" in row]
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in mine:  # of several records of a kernel and size, the one with most trials
        key = row["kernel"], row["size"]
        if key not in best or _trials(row) > _trials(best[key]):
            best[key] = row
    sizes = sorted({size for _, size in best})
    kernels = dict.fromkeys(kernel for kernel, _ in best)

    def cells(kernel: str) -> Iterator[str]:
        yield f"`{kernel}`" if " " in kernel else kernel
        for size in sizes:
            row = best.get((kernel, size))
            yield "" if row is None else with_deviation(row["by pooled leave-one-out"])

    def with_most_images(kernel: str) -> float:
        row = best.get((kernel, max(sizes)))
        return 0.0 if row is None else float(row["by pooled leave-one-out"]["mean"])

    ranked = sorted(kernels, key=with_most_images, reverse=True)
    return markdown(("kernel", *(f"{size:,}" for size in sizes)), (list(cells(kernel)) for kernel in ranked))


def _trials(row: dict[str, Any]) -> int:
    return len(row["by pooled leave-one-out"]["accuracies"])


def draw_speed(folder: Path, path: Path) -> None:
    """Bars of the pairs a second of Myrtle5, by library and device."""
    ranked = list(reversed(_rates(folder)))
    figure, axes = new_axes(7.4, 3.4, "Myrtle5, 32×32×3", "pairs a second", "")
    ours = [name.startswith("tangentless") for name, _ in ranked]
    colours = [COLOURS[0] if mine else COLOURS[-1] for mine in ours]
    bars = axes.barh([name for name, _ in ranked], [rates["myrtle5"] for _, rates in ranked], color=colours)
    axes.bar_label(bars, [_number(rates["myrtle5"]) for _, rates in ranked], padding=3, fontsize=8.5)
    axes.set_xscale("log")
    axes.set_xlim(1, 5e6)
    save_figure(figure, path, bbox_inches="tight")


def _rates(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Pairs a second of each library and device, by architecture; the fastest first."""
    rows: dict[str, dict[str, float]] = {}
    for case in json.loads((folder / "cuda_h200_rival.json").read_text())["cases"]:
        name = case["architecture"]
        rows.setdefault("tangentless, NVIDIA H200", {})[name] = case["pairs_per_second"]
        rows.setdefault("PyTorch compiled, NVIDIA H200", {})[name] = case["rival_pairs_per_second"]
    for row in json.loads((folder / "cpu_compare.json").read_text())["libraries"]:
        rows.setdefault(f"{row['contender']}, two CPU cores", {})[row["architecture"]] = row["pairs_per_second"]
    return sorted(rows.items(), key=lambda item: -item[1]["myrtle5"])


def _speed(folder: Path) -> list[str]:
    names = ("myrtle5", "myrtle7", "myrtle10", "myrtle10-gaussian")
    cells = ([device, *(_number(rates.get(name)) for name in names)] for device, rates in _rates(folder))
    return markdown(("", *names), cells)


def _number(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _record(path: Path) -> tuple[str, str, str, str]:
    content = json.loads(path.read_text())
    content = content if isinstance(content, dict) else {}
    place = content.get("environment") or content
    machines = ", ".join(content.get("seconds_by_machine", {})) or place.get("gpu") or _machine(content, place)
    command = content.get("command") or place.get("command") or ""
    return (
        f"[{path.stem}](../../benchmarks/results/{path.name})",
        str(content.get("date") or place.get("date") or "")[:10],
        str(machines),
        f"`{command}`" if command else "",
    )


def _machine(content: dict[str, Any], place: dict[str, Any]) -> str:
    found = content.get("hardware") or content.get("device") or content.get("machine") or place.get("processor") or ""
    return found if isinstance(found, str) else ", ".join(map(str, found.values()))
