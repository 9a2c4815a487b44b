"""The page of results: every row of the paper's image tables beside ours, written from stored records alone.

Two kinds of records are used. In the first, results name a `table` and a `method` of `paper.csv` and have the fields of
`tables.py`: train, test set, rows, accuracy, interval, seconds, machine, date and, where they apply, tilt, ridge and
leave-one-out accuracy. The second are the records of subsets, of networks, of the recipe and of a comparison. Of
several results for a row of the paper, the one from the most training images is shown. Kernels that are not in the
paper have a table of their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..console import markdown, percent, span, with_deviation
from ..files import atomic_file, make_folder
from ..paper import SUBSETS, TABLES, PaperRow, printed
from ..plots import COLOURS, new_axes, save_pictures
from ..timing import format_seconds
from . import architectures, cifar10_subsets, compare, networks, nonlinearities, recipe, tables
from .cifar10_subsets import DRAWS, WAYS
from .law import describe_laws
from .records import Row, read_records
from .uci_report import write_page

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar10.1": "CIFAR-10.1", "cifar100": "CIFAR-100"}
FULL_SETS = {"mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}
CURVES = {
    "myrtle10-gaussian+flips": "Myrtle10-Gaussian + flips",
    "myrtle10-gaussian": "Myrtle10-Gaussian",
    "myrtle5": "Myrtle5",
}
_FIGURES = (
    (nonlinearities.draw, "Duals of ReLU and Gaussian against the angle between features"),
    (architectures.draw, "Layers of Myrtle5, Myrtle7 and Myrtle10"),
)
_NOT_RUN = "not run yet"
_NO_RECORD = "There is no record of it yet; `tangentless reproduce {name}` makes one if it finds the files."
_SMALLEST, _ENOUGH = 2000, 4  # a power law is fitted to curves of at least 4 sizes, from 2,000 training images on
_COLUMNS = ("method", "paper", "ours", "trained on", "tested on", "leave-one-out", "tilt 0.3", "tilt by loo", "took")
_RUN = ("table", "test set", "train", "rows", "machine", "date")  # results that agree in these are of one run
_CHOICES = """The ridge is chosen from the paper's grid and 0, in three ways. Two use no test labels: *own* is chosen
for each subset by its leave-one-out accuracy, *one* for all subsets of a size by their mean leave-one-out accuracy.
The third is what the paper seems to have done: *best* has the best mean accuracy on the test images. *Apart* is the
distance of *one* (balanced draws) from the paper's mean, in the paper's standard deviations."""
_HEAD = """# Results

Accuracies in per cent, on test images. `tangentless reproduce report` writes this page from the records in
[benchmarks/results](../benchmarks/results), which also hold configurations, hashes of the data, versions and times.
`tangentless reproduce NAME` makes such records at any size. The paper trains on whole data sets; the rows below state
on how many images ours are trained. Intervals are of 95 %. The paper takes the rows marked *cited* from other work.
"""
_NOTES = {
    "mnist": "Pixels only. Bandwidth, order, depth and ridge of the kernels without convolutions, and width, contrast "
    "and ridge of the convolutional kernel network, are chosen by leave-one-out on 4,000 training images. In newer "
    "records, the ridge is then chosen again on all training images.",
    "cifar10": "Ridge 0 and ZCA, as in the paper. ZCA is fitted to all training images and their mirror images, "
    "however many of them are trained on. The paper's figures include tilting with t = 0.3, picked on the test set, "
    "and ZCA fitted to augmented images. Ours do without augmented images, and are tilted only in the columns that say "
    "so; *tilt by loo* picks t without test labels. The features of CKN and Coates-NG are learnt from the training "
    "images; with flips they are averaged over an image and its mirror image. Networks that would take hours are "
    "trained with fewer filters and epochs, and say so.",
    "cifar100": "Ridge 1e-4 and ZCA, as in the paper.",
}


def write_report(records: Path, page: Path, *, pictures: str = "images") -> list[Path]:
    """Write the page, and its pictures to a folder beside it; returns the files."""
    found = read_records(records)
    rows = [row for record in found for row in record["results"] if {"table", "method", "test set"} <= row.keys()]
    mine = _records(found, cifar10_subsets.EXPERIMENT)
    others = [record for record in mine if any(row["kernel"] not in SUBSETS for row in record["results"])]
    # Of the records with the paper's kernels only, show the one with the most trials; of several, the newest.
    ranked = sorted((r for r in mine if r not in others), key=lambda r: (r["configuration"]["trials"], r["date"]))
    subsets = ranked[-1]["results"] if ranked else []
    folder, files = page.parent / pictures, [page]
    make_folder(folder)

    def picture(drawn: list[Path], words: str) -> str:
        files.extend(drawn)
        return f"![{words}]({pictures}/{drawn[0].name})\n"

    parts = [_HEAD]
    if curve := learning_curve(rows, subsets, folder):
        parts.append(picture(curve, "Accuracy against the number of training images"))
    parts += [describe_laws(curve) for curve in _curves(rows)]
    shortened = _shortened_networks(found)
    parts += [_table(name, rows, shortened) for name in TABLES]
    parts.append("## CIFAR-10 from few images\n")
    if subsets:
        drawn = picture(cifar10_subsets.plot(subsets, folder), "Accuracy against the size of the subset")
        parts.append(_subsets(ranked[-1], f"{_CHOICES}\n\n{drawn}"))
    else:
        parts.append(f"{_NOT_RUN.capitalize()}.\n")
    if others:
        parts.append("## Other kernels, not in the paper\n")
        parts += [_subsets(record, "The columns are those of the table above.\n") for record in others]
    parts += _beyond(found, rows)
    parts += _networks(found)
    for record in _records(found, compare.EXPERIMENT):
        figure = compare.draw(record["results"], record, folder)
        parts.append(_comparison(record, picture(figure, "Accuracy of kernels against that of networks")))
    parts.append("## Figures\n")
    parts += [picture(draw(folder), words) for draw, words in _FIGURES]
    with atomic_file(page) as stream:
        stream.write("\n".join(parts).encode())
    for record in _records(found, "uci"):  # on a page of its own, since it has a row for each of 90 tables
        files += write_page(record, page.with_name("uci.md"), pictures=pictures)
    return files


def learning_curve(rows: Iterable[Row], subsets: Iterable[Row], folder: Path) -> list[Path]:
    """Draw accuracy on CIFAR-10 against the number of training images, with the paper's points; returns the files.

    Without results, nothing is drawn.
    """
    points: dict[str, dict[int, float]] = {method: {} for method in CURVES}
    for row in subsets:
        if row["kernel"] in points and row["draw"] == "balanced":
            points[row["kernel"]][row["size"]] = row["by pooled leave-one-out"]["mean"]
    # In this order, a result on more test images replaces one on fewer.
    for row in sorted(_plain(rows, "cifar10", "cifar10"), key=lambda row: row["rows"]):
        if row["method"] in points:
            points[row["method"]][row["train"]] = row["accuracy"]
    if not any(points.values()):
        return []
    figure, axes = new_axes(6.4, 4.2, "CIFAR-10, towards the full set", "training images", "test accuracy, %")
    for (method, label), colour in zip(CURVES.items(), COLOURS, strict=False):
        ours = sorted(points[method].items())
        across, up = [n for n, _ in ours], [100 * share for _, share in ours]
        axes.plot(across, up, "o-", color=colour, label=label, markersize=4)
        theirs: dict[int, float | None] = {size: mean for size, (mean, _) in SUBSETS.get(method, {}).items()}
        theirs[FULL_SETS["cifar10"]] = printed("cifar10", method, "cifar10")
        hollow = {"color": colour, "markerfacecolor": "white", "markersize": 6, "zorder": 1}
        axes.plot(list(theirs), list(theirs.values()), "o", **hollow)
    axes.plot([], [], "o", color="#5c6b78", markerfacecolor="white", label="the paper's")
    axes.set_xscale("log")
    axes.set_xticks([10, 100, 1000, 10_000], ["10", "100", "1,000", "10,000"])
    axes.legend(frameon=False, fontsize=8.5)
    return save_pictures(figure, folder, "learning-curve")


def _curves(rows: Sequence[Row]) -> list[list[Row]]:
    """Learning curves of CIFAR-10: of one method, machine and test set, 4 sizes or more, from 2,000 images on."""
    found: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in _plain(rows, "cifar10", "cifar10"):
        if row["method"] in CURVES and row["train"] >= _SMALLEST and "pairs" in row:
            found.setdefault((row["method"], row["machine"], row["rows"]), {})[row["train"]] = row
    return [[own for _, own in sorted(sizes.items())] for sizes in found.values() if len(sizes) >= _ENOUGH]


def _plain(rows: Iterable[Row], table: str, test_set: str) -> list[Row]:
    """The results of a table on a test set, without tilting."""
    mine = [row for row in rows if row["table"] == table and row["test set"] == test_set]
    return [row for row in mine if row.get("tilt asked", 0.0) == 0.0]


def _shortened_networks(records: Iterable[Row]) -> dict[str, Row]:
    """By recipe, the network trained with fewer filters or epochs but else by the recipe; of several, the largest."""
    methods = {row.method for rows in TABLES.values() for row in rows}
    found = [
        row
        for record in _records(records, networks.EXPERIMENT)
        if (changes := record["configuration"].get("changes")) is not None and changes.keys() <= {"width", "epochs"}
        for row in record["results"]
        if row["recipe"] in methods and "table" not in row and row["accuracy"] is not None
    ]
    return {
        row["recipe"]: row
        for row in sorted(found, key=lambda row: (row["settings"]["epochs"], row["settings"]["width"]))
    }


def _table(name: str, rows: Sequence[Row], shortened: Mapping[str, Row]) -> str:
    sets, lines = list(dict.fromkeys(place for row in TABLES[name] for place in row.accuracies)), []
    for test_set in sets:
        if len(sets) > 1:
            lines.append(f"Tested on {TITLES[test_set]}:\n")
        shown = [row for row in TABLES[name] if test_set in row.accuracies]
        if any(row["test set"] == test_set for row in rows):
            lines += markdown(_COLUMNS, (_cells(row, name, test_set, rows, shortened) for row in shown))
        else:
            lines.append(f"{_NO_RECORD.format(name=name)}\n")
            lines += markdown(_COLUMNS[:2], ((row.label, f"{row.accuracies[test_set]:.1f}") for row in shown))
    return _section(TITLES[name], _NOTES[name], *lines)


def _cells(paper: PaperRow, table: str, test_set: str, rows: Sequence[Row], shortened: Mapping[str, Row]) -> list[str]:
    """A row of the paper, with the best of our results for it."""
    theirs = [paper.label, f"{paper.accuracies[test_set]:.1f}"]
    mine = [row for row in rows if paper.method in (row["method"], row.get("recipe"))]
    # The best is the one from the most training images; of several, from the most test images; then the newest.
    plain = _plain(mine, table, test_set)
    best = max(plain, key=lambda row: (row["train"], row["rows"], row["date"]), default=None)
    if paper.method is None:
        return [*theirs, "*cited*"]
    if best is None and test_set == table and (cut := shortened.get(paper.method)):
        size = f"cut to {cut['settings']['width']:,} filters and {cut['settings']['epochs']} epochs"
        ours = f"{percent(cut['accuracy'])} ({span(cut['interval'])}), {size}"
        return [*theirs, ours, f"{cut['train']:,}", f"{cut['rows']:,}", "", "", "", _took(cut)]
    if best is None:
        return [*theirs, _NOT_RUN]
    run = [best[name] for name in _RUN]
    tilted = {row["tilt asked"]: row for row in mine if "tilt asked" in row and [row[name] for name in _RUN] == run}
    by_loo = tilted.get("loo")
    return [
        *theirs,
        f"**{percent(best['accuracy'])}** ({span(best['interval'])})",
        f"{best['train']:,}",
        f"{best['rows']:,}",
        percent(best["leave-one-out accuracy"]) if "leave-one-out accuracy" in best else "",
        percent(tilted[0.3]["accuracy"]) if 0.3 in tilted else "",
        "" if by_loo is None else f"{percent(by_loo['accuracy'])} (t = {by_loo['tilt']:g})",
        _took(best),
    ]


def _subsets(record: Row, words: str) -> str:
    """A table with a line for every kernel and size, after a sentence on what was run and `words` on the columns."""
    trials, images = record["configuration"]["trials"], record["configuration"]["test images"]
    spent = (f"{format_seconds(taken)} on {machine}" for machine, taken in record["seconds_by_machine"].items())
    start = f"Means and standard deviations over {trials} random subsets of each size, {images:,} test images"
    by_key = {(row["kernel"], row["size"], row["draw"]): row for row in record["results"]}

    def cells(kernel: str, size: int) -> Iterator[str]:
        yield from (kernel, f"{size:,}")
        for draw in DRAWS:
            row = by_key.get((kernel, size, draw))
            yield from ("" if row is None else with_deviation(row[way]) for way in WAYS)
        yield from _against_paper(by_key.get((kernel, size, DRAWS[0])))

    shown = dict.fromkeys((row["kernel"], row["size"]) for row in record["results"])
    columns = ("kernel", "images", "balanced: own", "one", "best", "uniform: own", "one", "best", "paper", "apart")
    lines = markdown(columns, (list(cells(*key)) for key in shown))
    return "\n".join([f"{start} ({', '.join(spent)}).", words, *lines])


def _against_paper(row: Row | None) -> tuple[str, str]:
    if row is None or row["paper"] is None:
        return "", ""
    paper, ours = row["paper"], row[WAYS[1]]
    return with_deviation(paper), f"{(ours['mean'] - paper['mean']) / paper['deviation']:+.1f}"


def _beyond(records: Iterable[Row], rows: Iterable[Row]) -> Iterator[str]:
    """Sections on what is not in the paper: the recipe `best`, augmentation, averaging, and gains by ingredient."""
    known = {row.method for name in TABLES for row in TABLES[name]}
    own = [row for row in rows if row["method"] not in known and "recipe" not in row]
    if own:
        words = (
            "The recipe `best`, which was chosen on training images alone, methods for which the paper has no figure "
            "on these data, and methods with augmentation or averaging (*extras*)."
        )
        lines = ((*tables.cells(row)[:-1], _took(row)) for row in own)
        yield _section("Beyond the paper", words, *markdown((*tables.COLUMNS[:-1], "took"), lines))
    gains = _gains(_records(records, recipe.EXPERIMENT))
    if gains:
        words = (
            "The gain from each ingredient, added to Myrtle10-Gaussian with flips and ZCA of epsilon 1e-4, on training "
            "images of CIFAR-10 alone. It is the gain in leave-one-out accuracy or, for ingredients that act on new "
            "images, in validation accuracy, over the base with as many images. Its error is that of the paired "
            "difference. An ingredient that was scored on several numbers of images has the row of the largest."
        )
        lines = ((*recipe.cells(row), machine) for row, machine in gains)
        yield _section("The recipe", words, *markdown((*recipe.COLUMNS, "on"), lines))


def _gains(records: Iterable[Row]) -> list[tuple[Row, str]]:
    """Rows of the search for the recipe, most images first, each with its machine: of an ingredient, that of the most.

    The base is there for every number of images.
    """
    found: dict[Any, tuple[Row, str]] = {}
    for record in records:
        for row in record["results"]:
            name, images = row["ingredient"], row["train"]
            key = (name, images) if name == "base" else name
            if key not in found or found[key][0]["train"] <= images:
                found[key] = row, ", ".join(record["seconds_by_machine"])
    return sorted(found.values(), key=lambda one: (-one[0]["train"], one[0]["ingredient"] != "base"))


def _networks(records: Iterable[Row]) -> Iterator[str]:
    """The section on networks that are no rows of the paper's tables: subsets, and recipes with changed settings."""
    found = _records(records, networks.EXPERIMENT)
    rows = [row for record in found for row in record["results"]]
    noted = [record for record in found if "note" in record]
    notes = [f"{row['recipe']}: {record['note']}\n" for record in noted for row in record["results"]]
    others = [(*networks.cells(row), row["describe"], _took(row)) for row in rows if "table" not in row]
    if others:
        words = (
            "Networks trained on subsets or by changed recipes, which are no rows of the tables above. The accuracy is "
            "that after the last epoch; *best epoch* is chosen on the test images, as in the paper. Numbers with *±* "
            "are means and standard deviations over trials, some of which may have stayed at chance. Intervals cover "
            "the choice of test images only."
        )
        table = markdown((*networks.COLUMNS, "how", "took"), others)
        yield _section("Networks beside the tables", words, *table, *notes)


def _comparison(record: Row, picture: str) -> str:
    rows, correlation, settings = record["results"], record["correlation"], record["configuration"]
    words = (
        f"Kernels and networks of {len(rows)} architectures, trained on the same {rows[0]['train']:,} images of "
        f"{record['dataset']} and tested on the same {rows[0]['rows']:,}: {compare.describe_correlation(correlation)}. "
        f"Networks have {settings['width']} filters and are trained for {settings['epochs']} epochs; their accuracies "
        f"are means over {settings['trials']} seeds."
    )
    lines = markdown(compare.COLUMNS, map(compare.cells, rows))
    return _section(f"Kernel against network, {record['dataset']}", words, picture, *lines)


def _section(title: str, words: str, *lines: str) -> str:
    return "\n".join([f"## {title}\n", f"{textwrap.fill(words, 120)}\n", *lines])


def _records(records: Iterable[Row], experiment: str) -> list[Row]:
    return [record for record in records if record["experiment"] == experiment]


def _took(row: Row) -> str:
    return f"{format_seconds(row['seconds'])}, {row['machine']}"
