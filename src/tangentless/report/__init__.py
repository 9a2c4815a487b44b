"""HTML reports of a fit or a search: images, kernel matrix and curves in a single file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ParameterError
from ..files import check_output
from ..searching import COLUMNS, Search
from .charts import Chart, Series, draw_bars
from .fits import LIMIT, Data, gather
from .pages import Page, Section, drawing, sortable_table, write_page
from .sections import fit_page

__all__ = ["Page", "Section", "draw_bars", "drawing", "sortable_table", "write_page", "write_report"]


def write_report(
    path: str | os.PathLike[str],
    what: Any,
    X: Any = None,
    y: Any = None,
    *,
    test: tuple[Any, Any] | None = None,
    images: Any = None,
    test_images: Any = None,
    matrix: Any = None,
    limit: int = LIMIT,
    title: str | None = None,
    configuration: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Path:
    """Write an HTML report of a fitted model or of a search and return its path. The file needs no network.

    Parameters
    ----------
    what
        A fitted `KernelRidgeClassifier` or `KernelRidgeRegressor`, a pipeline that ends with one, or the result of
        `search`, which needs no X and y.
    X, y
        The rows and labels that the model was fitted to.
    test
        A test set (rows, labels): the report then shows its predictions too.
    images, test_images
        The images to show where the rows of X and of the test set are not images, such as rows that were whitened
        before or those of a precomputed matrix.
    matrix
        The kernel matrix of the training rows, an array or a `GramMatrix`. By default it is read from the `store` of
        the model; without a store, the entries that the report shows are computed again.
    limit
        The largest number of training rows to show. From larger sets a random sample is shown.
    title
        The title of the page, by default the names of the model and its kernel.
    configuration
        More lines for the table of parameters.
    force
        Replace an existing file.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from tangentless import KernelRidgeClassifier
    >>> images = np.random.default_rng(0).random((30, 4, 4, 1))
    >>> labels = np.where(images.mean(axis=(1, 2, 3)) > 0.5, "light", "dark")
    >>> model = KernelRidgeClassifier("conv3 relu globalpool", backend="reference").fit(images, labels)
    >>> write_report(Path(tempfile.mkdtemp()) / "report.html", model, images, labels).name
    'report.html'
    """
    place = Path(path)
    check_output(place, force=force)
    if isinstance(what, Search):
        page = search_page(what, title, configuration or {})
    else:
        if X is None or y is None:
            raise ParameterError("the report of a model needs its training data: write_report(path, model, X, y)")
        if not isinstance(limit, int) or limit < 2:
            raise ParameterError(f"limit must be a whole number of at least 2 rows, not {limit!r}")
        train = Data.of(X, y, images, "training")
        held_out = None if test is None else Data.of(*test, test_images, "test")
        page = fit_page(gather(what, train, held_out, matrix, limit), title, configuration)
    write_page(place, page, force=force)
    return place


def search_page(found: Search, title: str | None, configuration: Mapping[str, Any]) -> Page:
    """The page of a search: every trial, and the scores of the best candidates at every ridge."""
    table = sortable_table("Trials", COLUMNS, (trial.cells() for trial in found.trials))
    lines = [Series(name, ridges, values) for name, ridges, values in found.curves() if len(ridges)]
    curves = [Chart("Candidates", "ridge", found.score_name, lines, log=True).draw()] if lines else []
    best = dict(zip(COLUMNS, found.best.cells(), strict=True))
    shown = [("Ridge", best["ridge"]), ("Whitening", best["whitening"]), ("Images", best["images"])]
    shown += [(name.capitalize(), best[name]) for name in ("accuracy", "squared error") if best[name]]
    return Page(
        title=title or "Search for a kernel",
        lead=f"Best by {found.criterion}: {best['kernel']}. {len(found.trials)} trials, on training data alone.",
        sections=[Section("trials", "Trials", table), *(Section("curves", "Ridges", one) for one in curves)],
        configuration={"criterion": found.criterion, **configuration},
        tiles=shown,
    )
