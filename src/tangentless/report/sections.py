"""The page of a fit, from its numbers: every section as HTML, and the data for its script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, r2_score
from sklearn.pipeline import Pipeline

from ..console import percent
from ..markup import Markup, html_table, join, tag
from ..solve import Calibration, RidgePath
from ..timing import format_bytes
from .charts import Chart, Series
from .encoding import PackedMatrix, Sprite, make_sprite, pack_matrix, picture_values
from .fits import NEIGHBOURS, SURE, UNLIKELY, Fit, Items
from .pages import Page, Section, read_asset

_CLASSES_SHOWN = 20  # most rows of a confusion table: more cannot be read
_POINTS = 2000  # most points of a scatter plot
_SMALL, _LARGE = 56, 112  # pixels on the screen of the longer side of a picture
_KEYS = (
    "Point at an entry, or use the keys: arrows move (with shift by ten), + and − zoom, 0 shows all, enter picks the "
    "image of the row. After a click the wheel zooms; drag to move."
)


def fit_page(fit: Fit, title: str | None = None, configuration: Mapping[str, Any] | None = None) -> Page:
    """The page of a fit. In its table of parameters, `configuration` comes before those of the model."""
    pictures = picture_values(fit.images)
    sprite = None if pictures is None else make_sprite(pictures)
    packed, draw = pack_matrix(fit.K), _Thumbs(fit, sprite)
    sections = [_matrix(fit), _neighbours(), _predictions(fit), _examples(fit, draw), _curves(fit)]
    name = type(fit.estimator).__name__
    count = len(fit.everything)
    shape = " × ".join(map(str, fit.images.shape[1:]))
    return Page(
        title=title or f"{name}: {_kernel_name(fit)}",
        lead=f"Trained on {count:,} rows of {shape}. Predictions for training images are leave-one-out."
        + _ensemble_note(fit),
        sections=sections,
        configuration={**(configuration or {}), **_parameters(fit)},
        tiles=_tiles(fit),
        notes=_notes(fit, sprite, packed),
        scripts=["matrix.js", "fit.js"],
        styles=[*draw.styles(), read_asset("fit.css")],
        data=_data(fit, sprite, packed),
        blobs={"matrix-values": packed.text},
    )


def _ensemble_note(fit: Fit) -> str:
    """A sentence on which member of an ensemble is shown; empty for a single fit."""
    about = fit.estimator.augmentation_
    if about is None:
        return ""
    return (
        f" This is the mean of {len(fit.estimator.shares_)} fits ({about}); the matrix, neighbours, ridge path and "
        "learning curve are those of the first."
    )


def _kernel_name(fit: Fit) -> str:
    kernel = fit.estimator.kernel
    return f"{kernel if isinstance(kernel, str) else repr(kernel)}{' with flips' if fit.estimator.flips else ''}"


def _parameters(fit: Fit) -> dict[str, Any]:
    steps = [repr(step) for _, step in fit.model.steps[:-1]] if isinstance(fit.model, Pipeline) else []
    given = {
        key: value for key, value in fit.estimator.get_params(deep=False).items() if key not in ("store", "verbose")
    }
    used = {"ridge used": f"{fit.estimator.ridge_:.6g}", "tilt used": f"{fit.estimator.tilt_:.6g}"}
    before = {"preprocessing": ", ".join(steps)} if steps else {}
    return {"model": type(fit.estimator).__name__, **before, **given, **used}


def _tiles(fit: Fit) -> list[tuple[str, str]]:
    score = f"{percent(fit.estimator.loo_score_, 1)} %" if fit.classes else f"{fit.estimator.loo_score_:.4f}"
    tiles = [(f"Leave-one-out {'accuracy' if fit.classes else 'R²'}", score)]
    if fit.tested is not None:
        truth, guess = fit.tested.truth, fit.tested.guess
        value = f"{percent(float(np.mean(truth == guess)), 1)} %" if fit.classes else f"{r2_score(truth, guess):.4f}"
        tiles.append((f"Test {'accuracy' if fit.classes else 'R²'}, {len(truth):,} rows", value))
    tiles += [("Training rows", f"{len(fit.everything):,}"), ("Ridge", f"{fit.estimator.ridge_:.2g}")]
    if fit.calibration is not None:
        tiles += [("Classes", str(len(fit.classes))), ("Calibration error", f"{fit.calibration.ece:.3f}")]
        tiles.append(("Doubtful labels", f"{fit.examples.suspected:,}"))
    return tiles


def _notes(fit: Fit, sprite: Sprite | None, packed: PackedMatrix) -> list[str]:
    count, shown = len(fit.everything), len(fit.K)
    notes = [
        f"Matrix, neighbours, ridge path and learning curve: {shown:,} of {count:,} training rows"
        + (", drawn at random." if shown < count else "."),
        f"Entries of the matrix have {packed.bits} bits here, and are within {packed.error:.1g} of the kernel's.",
    ]
    if sprite is not None:
        height, width = fit.images.shape[1:3]
        kind = sprite.url.partition(";")[0].removeprefix("data:image/").upper()
        size = format_bytes(len(sprite.url))
        notes.append(
            f"Pictures: {len(fit.items):,}, of {height} × {width} pixels shown as {sprite.height} × {sprite.width}, "
            f"{kind}, {size}."
        )
    if fit.tested is not None:
        notes.append(f"Test rows: {int(fit.items.test.sum()):,} of {len(fit.tested):,} have a picture here.")
    return notes


class _Thumbs:
    """Thumbnails of items: cells of the sprite sheet, or, for rows that are not images, the row number."""

    def __init__(self, fit: Fit, sprite: Sprite | None) -> None:
        self.fit, self.sprite = fit, sprite

    def styles(self) -> Iterator[str]:
        """CSS with the sheet as a data URL, and its sizes as the variables that `fit.css` uses."""
        if self.sprite is None:
            return
        s = self.sprite
        longest = max(s.width, s.height)
        sizes = f"--pw:{s.width}px;--ph:{s.height}px;--cw:{s.cell_width}px;--ch:{s.cell_height}px"
        yield (
            f":root{{{sizes};--columns:{s.columns};--rows:{s.rows};--small:{_SMALL / longest:.4f};"
            f"--large:{_LARGE / longest:.4f}}}.thumb{{background-image:url({s.url})}}"
        )

    def __call__(self, item: int) -> Markup:
        if self.sprite is None:
            return tag("span", f"row {self.fit.items.row[item]}", class_="thumb blank")
        place = f"--x:{item % self.sprite.columns};--y:{item // self.sprite.columns}"
        return tag("span", class_="thumb", style=place)

    def buttons(self, items: NDArray[np.intp], words: Any) -> Markup:
        """Buttons with a picture and `words(item)` below it."""
        buttons = (
            tag("button", self(item), tag("span", words(item)), class_="example", type="button", data_item=item)
            for item in items.tolist()
        )
        return tag("div", *buttons, class_="examples")


def _matrix(fit: Fit) -> Section:
    classes = [("class", "by class"), ("hard", "by class, hardest first"), ("guess", "by prediction")]
    orders = [*(classes if fit.classes else [("class", "by target"), ("hard", "worst first")]), ("given", "as given")]
    orders.append(("near", "nearest to the chosen image first"))
    select = tag("select", *(tag("option", words, value=key) for key, words in orders), id="order")
    buttons = [("closer", "+", "Zoom in"), ("farther", "−", "Zoom out"), ("whole", "All", "Show the whole matrix")]
    controls = (tag("button", text, id=key, type="button", aria_label=words) for key, text, words in buttons)
    label = f"Kernel matrix of {len(fit.K):,} training rows"
    canvas = tag("canvas", id="canvas", tabindex=0, role="application", aria_label=label, aria_describedby="keys")
    bar = tag("div", tag("span", id="low"), tag("i", id="scale"), tag("span", id="high"), class_="bar")
    pair = tag(
        "div", tag("p", "Point at an entry to see its two images.", class_="note"), id="pair", aria_live="polite"
    )
    body = [
        tag("div", tag("label", "Order ", select), *controls, class_="controls"),
        tag("div", tag("div", canvas, bar), pair, class_="matrix"),
        tag("p", _KEYS, id="keys", class_="note"),
    ]
    return Section("matrix", "Kernel matrix", join(body))


def _neighbours() -> Section:
    number = tag("input", id="chosen", type="number", min=0, value=0, inputmode="numeric")
    controls = [
        tag("button", "‹", id="before", type="button", aria_label="The image before"),
        tag("label", "Training row ", number),
        tag("button", "›", id="after", type="button", aria_label="The next image"),
        tag("button", "Random", id="random", type="button"),
    ]
    words = (
        f"The {NEIGHBOURS} nearest by the kernel's distance. Pick any picture on this page to see its neighbours here."
    )
    body = [tag("p", words, class_="note"), tag("div", *controls, class_="controls")]
    return Section("neighbours", "Nearest neighbours", join([*body, tag("div", id="nearest", aria_live="polite")]))


def _predictions(fit: Fit) -> Section:
    """Predictions against labels: confusion tables, or scatter plots of values."""
    sets = [("leave-one-out", fit.everything, 0)]
    if fit.tested is not None:
        sets.append(("test", fit.tested, 1))
    if not fit.classes:
        charts = (_scatter(name, items).draw() for name, items, _ in sets)
        return Section("predictions", "Predictions", tag("div", *charts, class_="columns"))
    tables = (_confusion(fit, name, items, test) for name, items, test in sets)
    words = "Rows are labels, columns predictions. Press a cell to see its images."
    panel = tag("div", id="cell", aria_live="polite")
    body = [tag("p", words, class_="note"), tag("div", *tables, class_="columns"), panel]
    return Section("confusion", "Confusion matrix", join(body))


def _scatter(name: str, items: Items) -> Chart:
    some = np.linspace(0, len(items) - 1, min(len(items), _POINTS)).astype(np.intp)
    both = np.concatenate([items.truth[some], items.guess[some]])
    span = float(both.min()), float(both.max())
    series = Series(name, items.truth[some], items.guess[some], joined=False, sizes=np.full(len(some), 2.5))
    options: dict[str, Any] = {"x_range": span, "y_range": span, "diagonal": True}
    return Chart(f"{name.capitalize()}, first target", "target", "prediction", [series], **options)


def _confusion(fit: Fit, name: str, items: Items, test: int) -> Markup:
    """Counts of labels and predictions. Of more than 20 classes, those with the most mistakes are shown."""
    codes = np.arange(len(fit.classes))
    counts = confusion_matrix(items.truth, items.guess, labels=codes)
    wrong = counts - np.diag(counts.diagonal())
    mistakes = wrong.sum(axis=0) + wrong.sum(axis=1)
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:_CLASSES_SHOWN])
    words = f" (the {len(shown)} classes with the most mistakes, of {len(codes)})" if len(shown) < len(codes) else ""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    worst = max(float(np.max(shares[wrong > 0], initial=0)), 1e-9)

    def cell(i: int, j: int) -> Markup:
        kind = "right" if i == j else "wrong"
        label = f"{fit.classes[i]} predicted as {fit.classes[j]}: {counts[i, j]}"
        places = {"data_truth": i, "data_guess": j, "data_test": test, "title": label, "aria_label": label}
        weight = 20 + 80 * shares[i, j] / (1 if i == j else worst)
        style = f"--share:{weight:.0f}%" if counts[i, j] else None
        strong = " strong" if counts[i, j] and weight > 70 else ""
        return tag("button", counts[i, j] or "", type="button", class_=f"{kind}{strong}", style=style, **places)

    heads = [tag("span", fit.classes[code]) for code in shown]
    rows = ([tag("span", fit.classes[i]), *(cell(i, j) for j in shown)] for i in shown)
    table = html_table(("", *heads), rows, class_="confusion", style=f"--classes:{len(shown)}")
    right = f"{int(counts.trace()):,} of {len(items):,} right"
    return tag("div", tag("h3", f"{name.capitalize()}: {right}{words}"), table)


def _examples(fit: Fit, draw: _Thumbs) -> Section:
    items, classes = fit.items, fit.classes

    def hard(item: int) -> Markup:
        if not classes:
            return Markup(f"{items.truth[item]:.3g}, predicted {items.guess[item]:.3g}")
        truth, guess = items.truth[item], items.guess[item]
        own = join([tag("b", classes[truth]), f" {items.own[item]:.0%}"])
        other = f"✗ {classes[guess]} {items.sure[item]:.0%}"
        return own if truth == guess else join([own, tag("br"), tag("span", other, class_="other")])

    parts = [
        tag("h3", "Hardest"),
        tag("p", "The least probable labels." if classes else "The largest errors.", class_="note"),
        draw.buttons(fit.examples.hardest, hard),
        tag("h3", "Most typical"),
        tag("p", "The most probable labels of each class." if classes else "The smallest errors.", class_="note"),
        draw.buttons(fit.examples.typical, hard if not classes else lambda item: classes[items.truth[item]]),
    ]
    if classes:
        count, listed = fit.examples.suspected, len(fit.examples.suspects)
        words = (
            f"Leave-one-out gives another class at least {SURE:.0%} and the label at most {UNLIKELY:.0%}. "
            f"There are {count:,}" + (f"; the first {listed} are shown." if listed < count else ".")
        )
        parts += [
            tag("h3", "Labels to check"),
            tag("p", words, class_="note"),
            draw.buttons(fit.examples.suspects, hard),
        ]
    return Section("examples", "Hard, typical and doubtful images", join(parts))


def _curves(fit: Fit) -> Section:
    score = "leave-one-out accuracy" if fit.classes else "leave-one-out R²"
    charts = []
    if fit.curve is not None:
        note = "Subsets of the training rows at the ridge of the fit; the band is the 95 % interval."
        options: dict[str, Any] = {"log": True, "percent": bool(fit.classes), "note": note if fit.classes else ""}
        charts.append(Chart("Learning curve", "training rows", score, [fit.curve], **options))
    if fit.path is not None:
        charts.append(_ridge_chart(fit.path, fit.estimator.ridge_))
    if fit.calibration is not None:
        charts.append(_reliability(fit.calibration))
    trouble = [tag("p", f"No ridge path and no learning curve: {fit.trouble}.", class_="note")] if fit.trouble else []
    body = join([*trouble, tag("div", *(chart.draw() for chart in charts), class_="columns")])
    return Section("curves", "Curves", body)


def _ridge_chart(path: RidgePath, used: float) -> Chart:
    usable = np.isfinite(path.squared_errors) & (path.ridges > 0)
    values = path.squared_errors if path.accuracies is None else path.accuracies
    best = path.best("squared error" if path.accuracies is None else "accuracy")
    marks = [(best, f"best {best:.1e}")] if best > 0 else []
    if used > 0 and abs(np.log(used / max(best, 1e-300))) > 0.1:
        marks.append((used, f"used {used:.1e}"))
    up = "leave-one-out error" if path.accuracies is None else "leave-one-out accuracy"
    note = "" if path.accuracies is None else f"Best: {percent(float(path.accuracies.max()), 2)} %."
    zero = " It is at ridge 0, which this axis does not have." if best == 0 else ""
    series = Series("score", path.ridges[usable], values[usable])
    options: dict[str, Any] = {"log": True, "percent": path.accuracies is not None, "marks": marks}
    return Chart("Ridge path", "ridge", up, [series], note=note + zero, **options)


def _reliability(found: Calibration) -> Chart:
    seen = found.counts > 0
    sizes = 2.5 + 9 * np.sqrt(found.counts[seen] / found.counts.max())
    series = Series("bin", found.confidences[seen], found.accuracies[seen], sizes=sizes)
    note = f"Expected calibration error {found.ece:.3f}, log loss {found.nll:.3f}. Larger points have more images."
    span = (0.0, 1.0)
    options: dict[str, Any] = {"percent": True, "x_range": span, "y_range": span, "diagonal": True, "note": note}
    return Chart("Reliability", "confidence", "accuracy", [series], **options)


def _data(fit: Fit, sprite: Sprite | None, packed: PackedMatrix) -> dict[str, Any]:
    """The data for `fit.js` and `matrix.js`, as JSON values."""
    from matplotlib import colormaps

    items = fit.items
    apart = fit.K[np.triu_indices(len(fit.K), 1)]
    low, high = np.percentile(apart, [1, 99]) if apart.size else (0.0, 1.0)
    colours = np.round(255 * colormaps["cividis"](np.linspace(0, 1, 256))[:, :3]).astype(int)
    values = items.truth.dtype.kind == "f"
    return {
        "classes": list(fit.classes),
        "columns": None if sprite is None else sprite.columns,
        "items": {
            "row": items.row.tolist(),
            "test": items.test.astype(int).tolist(),
            "truth": _rounded(items.truth) if values else items.truth.tolist(),
            "guess": _rounded(items.guess) if values else items.guess.tolist(),
            "sure": _rounded(items.sure),
            "own": _rounded(items.own),
        },
        "neighbours": fit.neighbours.tolist(),
        "matrix": {
            "count": len(fit.K),
            "low": packed.low,
            "step": packed.step,
            "bits": packed.bits,
            "darkest": float(low),
            "lightest": float(high),
            "diagonal": _rounded(fit.K.diagonal(), 6),
            "colours": colours.tolist(),
        },
    }


def _rounded(values: NDArray[Any], digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]
