"""The UCI study as a record, a table in the terminal and a page of Markdown, beside the paper's numbers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..console import markdown, say, say_files, show_table
from ..datasets.tables import Results, find_results, find_tables, known_tables, missing_table, read_results
from ..errors import DatasetError, ParameterError
from ..files import atomic_file, make_folder, read_csv
from ..plots import COLOURS, new_axes, save_pictures
from ..progress import progress_bar
from ..solve.board import MARGIN, MOST_STEPS, PATIENCE, mean_accuracies
from ..statistics import compare, critical_difference, performance_profile, standings
from ..timing import format_seconds
from .records import Piece, Row, Run, Table, read_record, report_record
from .uci import PAPER, PROTOCOLS, THOROUGH, accuracy, study
from .uci_methods import FOREST, MACHINES, METHODS

DUELS = ("tuned on", "methods", "better", "equal", "worse", "Wilcoxon p")
COLUMNS = ("method", "tuned on", "rank", "average", "P90", "P95", "PMA")
TITLES = {**{name: machine.title for name, machine in MACHINES.items()}, "forest": FOREST.title}
_STANDING = ("rank", "average", "deviation", "p90", "p95", "pma", "pma_deviation")
PAPER_STANDINGS = {
    ("ntk", "four folds"): (14.3, 83.2, 13.5, 96.7, 83.3, 97.3, 3.8),
    ("gaussian", "four folds"): (11.6, 83.4, 13.4, 95.6, 83.3, 97.5, 3.7),
    ("ntk", "one fold"): (29.0, 82.0, 14.0, 88.9, 72.2, 95.6, 5.2),
    ("forest", "one fold"): (32.4, 81.6, 13.8, 85.6, 65.6, 95.1, 5.3),
    ("gaussian", "one fold"): (35.1, 81.0, 15.0, 85.6, 72.2, 94.4, 8.2),
    ("polynomial", "one fold"): (36.6, 78.2, 20.2, 81.6, 63.2, 94.3, 6.0),
}
_HEAD = """# Tables of the UCI repository

Written by `tangentless reproduce uci`; numbers in brackets are the paper's. Accuracies are means over four
fixed splits, in per cent. There are three protocols of tuning. *Four folds*, the paper's, tunes on the test rows
that it reports. *One fold* tunes on another split of the same rows. *Nested* tunes on training rows only, and
gives the accuracy to expect on new rows.

The Gaussian kernel has 40 values of gamma, 2^-19 to 2^20 times the median squared distance of two rows, and 40
costs C, 2^-19 to 2^20; nested tuning uses every other value of both. The NTK has depths 1 to 5, any number of
first layers fixed, and the costs of Arora et al. (2020), 10^-2 to 10^4. With these costs, not with the 40, the
paper's column is reproduced.
"""
_SEARCH = f"""For tables of up to {THOROUGH} rows, every cell of the grid (a kernel and a C) is tried. For larger
ones, the grid is searched from coarse to fine, around all cells within {MARGIN:g} standard errors of the best. A
machine that needs more than {MOST_STEPS:,} steps is given up, and with it all larger C for that kernel. In the
paper's protocol, machines in or next to cells within that margin are then granted {PATIENCE:,} steps."""
_MARKED = "An asterisk marks accuracies outside the paper's interval (Clopper and Pearson, each test row counted half)."


@functools.cache
def paper_rows() -> dict[str, dict[str, float]]:
    """The paper's accuracies in percent and their intervals, by table.

    >>> paper_rows()["iris"]["gaussian"], len(paper_rows())
    (98.65, 90)
    """
    rows = read_csv(__package__, "uci_paper.csv")
    return {row.pop("table"): {key: float(value) for key, value in row.items()} for row in rows}


def run_study(
    names: Sequence[str],
    methods: Sequence[str],
    data: Path | None,
    output: Path,
    jobs: int,
    *,
    finished: bool = False,
    report: Path | None = None,
) -> dict[str, Any]:
    """Run the study and write record, page and picture; with `finished`, only from the answers saved so far."""
    if unknown := [method for method in methods if method not in METHODS]:
        raise ParameterError(f"there is no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    tables = find_tables(data)
    for name in names:
        if not (tables / name).is_dir():
            raise missing_table(name, tables)
    names = list(dict.fromkeys(names)) or list(known_tables())
    limits = {"most_steps": MOST_STEPS, "patience": PATIENCE, "margin": MARGIN}
    run = Run("uci", output, configuration={"tables": names, "methods": list(methods), **limits}, data={})
    answers, left_out = [], []
    with progress_bar("uci", unit="answers") as progress:
        for (table, method), piece in study(names, methods, tables, output, jobs, finished=finished):
            if isinstance(piece, Piece):
                answers.append(piece)
                run.count(piece)
            else:
                left_out.append({"table": table, "method": method, "reason": str(piece)})
            progress(len(answers) + len(left_out), len(names) * len(methods))
            if not finished:
                say(f"{table}, {method}: {_line(piece) if isinstance(piece, Piece) else piece}")
    rows: list[Row] = sorted((_row(piece) for piece in answers), key=lambda row: (row["table"].lower(), row["method"]))
    summary = summarise([piece.value for piece in answers], methods, _published(tables, names))
    path = run.finish(rows, summary=summary, left_out=left_out)
    record = read_record(path)
    files = write_page(record, output / "uci.md", pictures=".")
    _show(record)
    say_files([path, *files])
    report_record(report, "Tables of the UCI repository", record, _tables(record), files)
    return {"results": rows, "files": [str(path), *map(str, files)]}


def write_page(record: Mapping[str, Any], page: Path, *, pictures: str = "images") -> list[Path]:
    """Write a record as a page of Markdown, and its picture to a folder beside it; returns the files."""
    folder = page.parent / pictures
    make_folder(folder)
    drawn = _draw_profiles(record, folder) if record["summary"]["tables"] else []
    picture = f"{pictures}/{drawn[0].name}" if drawn else None
    with atomic_file(page) as stream:
        stream.write(_page(record, picture).encode())
    return [page, *drawn]


def summarise(
    answers: Sequence[Mapping[str, Any]], methods: Sequence[str], published: Results | None
) -> dict[str, Any]:
    """Standings and pairwise comparisons by protocol, over the tables for which all methods have an answer.

    `published` are accuracies of other classifiers, which the methods are ranked among. The paper's columns are ranked
    too, if it has all these tables.
    """
    found = {(value["table"], value["method"]): value for value in answers}
    tables = sorted({table for table, _ in found if all((table, method) in found for method in methods)})
    summary: dict[str, Any] = {"tables": len(tables), "standings": [], "duels": [], "critical_difference": None}
    summary["search"] = search_check(answers)
    if not tables:
        return summary
    others = None if published is None or set(tables) - set(published.tables) else published.take(tables).accuracies
    summary["others"] = 0 if others is None else others.shape[1]

    def add(kind: str, protocol: str, columns: Mapping[str, Any]) -> None:
        for method, standing in standings(columns, others).items():
            summary["standings"].append({"of": kind, "protocol": protocol, "method": method, **asdict(standing)})

    # Rounded to two digits, as the paper prints them: published figures have one, and more digits would change ranks.
    for protocol in PROTOCOLS:
        columns = {
            method: [round(100 * accuracy(found[table, method], protocol), 2) for table in tables] for method in methods
        }
        add("here", protocol, columns)
        for first, second in itertools.combinations(columns, 2):
            duel = asdict(compare(columns[first], columns[second]))
            summary["duels"].append({"protocol": protocol, "first": first, "second": second, **duel})
    in_paper = paper_rows()
    if set(tables) <= set(in_paper):
        add("paper", "four folds", {name: [in_paper[table][name] for table in tables] for name in PAPER})
    if len(methods) > 1:
        summary["critical_difference"] = critical_difference(len(methods), len(tables))
    return summary


def search_check(answers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How much accuracy the search from coarse to fine would lose, and the share of cells it would try.

    It is replayed on the answers for which every cell was tried.
    """
    checks: dict[str, list[tuple[str, float, float]]] = {}
    for value in answers:
        machine = MACHINES.get(value["method"])
        if machine is None or machine.stride == 1 or not value["thorough"]:
            continue
        means = mean_accuracies(value["board"], value["tests"])
        seen = machine.replay(means, sum(value["tests"]))
        loss = 100 * float(np.nanmax(means) - np.nanmax(means[seen]))
        checks.setdefault(value["method"], []).append((value["table"], loss, float(seen.mean())))
    return [
        {
            "method": method,
            "tables": len(rows),
            "worst_loss": max(loss for _, loss, _ in rows),
            "losses": {table: loss for table, loss, _ in rows if loss > 0},
            "share_of_cells": float(np.mean([share for *_, share in rows])),
        }
        for method, rows in checks.items()
    ]


def _page(record: Row, picture: str | None) -> str:
    summary, rows, settings = record["summary"], record["results"], record["configuration"]
    titles = "; ".join(TITLES[method] for method in settings["methods"])  # titles contain commas
    processor = sum(row["processor_seconds"] for row in rows)
    waited = "; ".join(f"{format_seconds(taken)} on {name}" for name, taken in record["seconds_by_machine"].items())
    lines = [
        _HEAD,
        f"{summary['tables']} of {len(settings['tables'])} tables are finished ({titles}). That took "
        f"{format_seconds(processor)} of processor time; wall-clock times of all answers add up to {waited or '0 s'}.",
        "",
    ]
    if summary["tables"]:
        ranked = f"Methods are ranked among {summary['others']} published classifiers."
        alone = "Methods are ranked among themselves, because the published results of others were not found."
        lines += [ranked if summary["others"] else alone, "", *markdown(COLUMNS, _standing_cells(summary))]
    if summary["duels"]:
        apart = f"{summary['critical_difference']:.2f}"
        words = (
            f"Ranked among themselves, methods differ significantly if their mean ranks are {apart} apart (Nemenyi)."
        )
        lines += [*markdown(DUELS, _duel_cells(summary)), words, ""]
    lines += _agreement_lines(rows)
    if picture is not None:
        lines += [f"![Performance profiles of {titles}]({picture})", ""]
    lines += [*_search_lines(summary, rows), *_left_out_lines(record["left_out"])]
    return "\n".join([*lines, _MARKED, "", *_table_lines(rows, settings["methods"])])


def _standing_cells(summary: Row) -> Iterator[list[str]]:
    """Rows under COLUMNS, with the paper's numbers in brackets."""
    for row in summary["standings"]:
        cells = _numbers([row[name] for name in _STANDING])
        printed = PAPER_STANDINGS.get((row["method"], row["protocol"])) if row["of"] == "here" else None
        if printed is not None:
            cells = [f"{cell} ({value})" for cell, value in zip(cells, _numbers(printed), strict=True)]
        name = TITLES[row["method"]] + (", the paper's columns" if row["of"] == "paper" else "")
        yield [name, row["protocol"], *cells]


def _numbers(standing: Sequence[float]) -> list[str]:
    rank, average, deviation, p90, p95, pma, pma_deviation = (f"{number:.1f}" for number in standing)
    return [rank, f"{average} ± {deviation}", p90, p95, f"{pma} ± {pma_deviation}"]


def _duel_cells(summary: Row) -> Iterator[tuple[str, ...]]:
    for duel in summary["duels"]:
        who = f"{TITLES[duel['first']]} against {TITLES[duel['second']]}"
        counts = (f"{duel[name]}" for name in DUELS[2:5])
        yield duel["protocol"], who, *counts, f"{duel['p_value']:.2g}"


def _agreement_lines(rows: Sequence[Row]) -> list[str]:
    """How many accuracies agree with the paper's, by method."""
    lines = []
    for method in PAPER:
        printed = [row for row in rows if row["method"] == method and row["paper"] is not None]
        gaps = [round(abs(round(row["accuracy"]["four folds"], 2) - row["paper"]), 2) for row in printed]
        same, close = sum(gap == 0 for gap in gaps), sum(gap <= 0.05 for gap in gaps)
        outside = sum(not row["inside"] for row in printed)
        if printed:
            lines.append(
                f"{TITLES[method]}, four folds, on {len(printed)} tables of the paper: {same} as printed there, "
                f"{close} within 0.05 points, {outside} outside its interval."
            )
    return ["\n".join(lines), ""] if lines else []


def _search_lines(summary: Row, rows: Sequence[Row]) -> list[str]:
    lines = [_SEARCH]
    if waiting := [row for row in rows if row.get("again", 0) is None]:
        names = ", ".join(dict.fromkeys(row["table"] for row in waiting))
        lines.append(f"This last step is not done yet for {len(waiting)} answers, on {names}.")
    for check in summary["search"]:
        lines.append(
            f"{TITLES[check['method']]}: on the {check['tables']} tables for which every cell was tried, the search "
            f"would lose at most {check['worst_loss']:.2f} points and would try "
            f"{100 * check['share_of_cells']:.0f} % of the cells."
        )
    return [*lines, ""]


def _left_out_lines(left_out: Sequence[Row]) -> list[str]:
    if not left_out:
        return []
    tables: dict[tuple[str, str], list[str]] = {}
    for row in left_out:
        tables.setdefault((TITLES[row["method"]], row["reason"]), []).append(row["table"])
    lines = [f"- {title}: {', '.join(names)}: {reason}" for (title, reason), names in tables.items()]
    return ["Not in any average:", "", *lines, ""]


def _table_lines(rows: Sequence[Row], methods: Sequence[str]) -> list[str]:
    by_table: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_table.setdefault(row["table"], {})[row["method"]] = row
    pairs = [(method, protocol) for method in methods for protocol in PROTOCOLS]

    def cells(name: str, found: Mapping[str, Row]) -> list[str]:
        any_row = next(iter(found.values()))
        shape = f"{any_row['rows']:,} × {any_row['features']}, {any_row['classes']}"
        seconds = sum(row["processor_seconds"] for row in found.values())
        return [name, shape, *(_cell(found.get(method), protocol) for method, protocol in pairs), f"{seconds:.1f}"]

    titles = [f"{TITLES[method]}, {protocol}" for method, protocol in pairs]
    columns = ["table", "rows × features, classes", *titles, "processor seconds"]
    return markdown(columns, (cells(*item) for item in sorted(by_table.items(), key=lambda item: item[0].lower())))


def _cell(row: Mapping[str, Any] | None, protocol: str) -> str:
    if row is None:
        return "-"
    text = f"{row['accuracy'][protocol]:.2f}"
    if protocol != "four folds" or row["paper"] is None:
        return text
    return f"{text}{'' if row['inside'] else '*'} ({row['paper']:.2f})"


def _row(piece: Piece) -> dict[str, Any]:
    """A row of the record: an answer without its board, with the paper's accuracy."""
    value = {key: item for key, item in piece.value.items() if key not in ("board", "tests")}
    accuracies = {protocol: 100 * accuracy(piece.value, protocol) for protocol in PROTOCOLS}
    in_paper = paper_rows().get(value["table"], {}) if value["method"] in PAPER else {}
    printed, inside = in_paper.get(value["method"]), None
    if printed is not None:
        low, high = in_paper[f"{value['method']}_low"], in_paper[f"{value['method']}_high"]
        inside = low <= round(accuracies["four folds"], 2) <= high
    if (machine := MACHINES.get(value["method"])) is not None:
        value["chosen"] = {
            protocol: [machine.describe(one) for one in cell] if protocol == "nested" else machine.describe(cell)
            for protocol, cell in value["chosen"].items()
        }
    return {**value, "accuracy": accuracies, "paper": printed, "inside": inside, "seconds": piece.seconds}


def _published(tables: Path, names: Sequence[str]) -> Results | None:
    """The published results of other classifiers; None for other tables, or if the results cannot be found."""
    if not set(names) <= set(known_tables()):
        return None
    try:
        return read_results(find_results(tables))
    except DatasetError:
        return None


def _line(piece: Piece) -> str:
    row = _row(piece)
    values = ", ".join(f"{protocol} {row['accuracy'][protocol]:.2f}" for protocol in PROTOCOLS)
    paper = "" if row["paper"] is None else f" (paper {row['paper']:.2f})"
    return f"{values}{paper}; {format_seconds(row['processor_seconds'])}"


def _tables(record: Row) -> list[Table]:
    """The summary as two tables: standings over all UCI tables, and pairwise comparisons."""
    summary = record["summary"]
    count = summary["tables"]
    standings = f"{count} table{'s' if count != 1 else ''}", COLUMNS, _standing_cells(summary)
    return [standings, ("Table by table", DUELS, _duel_cells(summary))]


def _show(record: Row) -> None:
    """Print the summary."""
    for table in _tables(record):
        show_table(*table)
    for line in _left_out_lines(record["left_out"]):
        say(line, style="yellow")
    outside = [f"{row['table']}, {row['method']}" for row in record["results"] if row["inside"] is False]
    if outside:
        say(f"outside the paper's interval: {'; '.join(outside)}")


def _draw_profiles(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw performance profiles of the methods, by the protocols *four folds* and *nested*."""
    methods = record["configuration"]["methods"]
    found = {(row["table"], row["method"]): row["accuracy"] for row in record["results"]}
    tables = sorted({table for table, _ in found if all((table, method) in found for method in methods)})
    within = np.linspace(0, 10, 401)
    figure, axes = new_axes(5.4, 3.6, "Performance profiles", "points below the best accuracy", "share of tables")
    for protocol, dash in (("four folds", "-"), ("nested", ":")):
        columns = {method: [found[table, method][protocol] for table in tables] for method in methods}
        for (method, shares), colour in zip(performance_profile(columns, within).items(), COLOURS, strict=False):
            axes.step(within, shares, dash, where="post", color=colour, label=f"{TITLES[method]}, {protocol}")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, 10)
    axes.legend(frameon=False, fontsize=8)
    return save_pictures(figure, folder, "uci-profiles")
