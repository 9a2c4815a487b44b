"""Claim: on 90 small tables of the UCI repository, a well tuned Gaussian kernel does as well as the tangent kernel.

Support vector machines are trained for a grid of kernels and costs C, on the four splits that Fernández-Delgado et al.
(2014) fixed. A cell of the grid is chosen by three protocols:

- *four folds*, the paper's: the cell with the best mean accuracy over the four test parts; that accuracy is reported.
- *one fold*: the best cell on a fifth split of the same rows, in halves. The mean accuracy over the four test parts is
  reported; some of their rows were used for tuning.
- *nested*: for each of the four splits, the best cell in cross-validation of its training rows alone; the accuracy on
  its test rows is reported. No test row is used for tuning: this is the accuracy to expect on new data.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ..datasets.tables import Rowsets, Table, read_table
from ..errors import DatasetError, InputError, TangentlessError
from ..solve.board import MARGIN, MOST_STEPS, PATIENCE, TOLERANCE, UNSEEN, UNSOLVED, Board
from .records import Piece, Row, Run
from .uci_methods import FOREST, MACHINES, METHODS

PROTOCOLS = ("four folds", "one fold", "nested")
PAPER = ("gaussian", "ntk")  # methods with a column in the paper
THOROUGH = 850  # rows: tables up to this size, 60 of the 90, have every cell tried
Question = tuple[str, str]  # a table and a method; the study has a piece for each
Cell = tuple[int, ...]  # indices of a kernel and a cost; for forests, the index of a number of features
_FOLDS, _INNER = 4, 4  # splits whose test parts are reported; folds of the cross-validation within each
# The splits of a board, in order: four to report, one to tune on, then 4 × 4 of the inner cross-validations.
_REPORT = slice(0, _FOLDS)
_TUNING = slice(_FOLDS, _FOLDS + 1)


def inner_folds(labels: Any, train: Any, seed: int) -> list[Rowsets]:
    """Four stratified folds of some training rows, for cross-validation: each fold is tested on, the others train.

    >>> parts = inner_folds(np.array([0, 1] * 8), np.arange(12), seed=0)
    >>> [len(part.test) for part in parts], sorted(int(row) for part in parts for row in part.test) == list(range(12))
    ([3, 3, 3, 3], True)
    """
    shuffled = np.random.default_rng(seed).permutation(train)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    part = np.arange(len(train)) % _INNER  # dealt in turn: sizes of parts differ by at most one, also within each class
    return [Rowsets(np.sort(by_class[part != p]), np.sort(by_class[part == p])) for p in range(_INNER)]


def answer(table: Table, method: str, threads: int = 1) -> dict[str, Any]:
    """Tune one method on one table by all protocols."""
    started = time.process_time()
    found = _forest(table, threads) if method == "forest" else _machine(table, method, threads)
    return {
        "table": table.name,
        "method": method,
        "rows": len(table),
        "features": table.features.shape[1],
        "classes": table.classes,
        "tests": [len(fold.test) for fold in table.folds],
        "notes": list(table.notes),
        **found,
        "processor_seconds": time.process_time() - started,
    }


def make_board(table: Table, method: str, splits: Sequence[Rowsets], threads: int = 1) -> Board:
    """A board of the method's grid on some splits of a table, with nothing trained yet."""
    return Board(MACHINES[method], MACHINES[method].kernels(table), table.labels, splits, threads)


def _machine(table: Table, method: str, threads: int) -> dict[str, Any]:
    inner = [part for seed, fold in enumerate(table.folds) for part in inner_folds(table.labels, fold.train, seed)]
    board = make_board(table, method, [*table.folds, table.tuning, *inner], threads)
    thorough, coarse = len(table) <= THOROUGH, board.cells.coarse()
    wanted = np.broadcast_to(coarse, board.right.shape).copy()
    wanted[: _TUNING.stop] |= thorough
    board.fill(wanted)
    if not thorough:
        board.search(_REPORT)
        board.search(_TUNING)
    one = _best_tuned(board)
    best = _best_cell(board.accuracies(_REPORT))
    nested = [_best_nested(board, fold) for fold in range(_FOLDS)]
    report = board.right[_REPORT]
    found = {**_chosen(report, best, one, nested), **_counts(report), "cells": coarse.size}
    return {**found, "thorough": thorough, "board": report.tolist()}


def _chosen(right: Any, best: Cell, one: Cell, nested: Sequence[Cell]) -> dict[str, Any]:
    """The cell that each protocol chooses, and how many test rows of each fold it predicts right.

    `right` is (splits, kernels, costs), or (splits, numbers of features) for forests.
    """
    return {
        "right": {
            "four folds": right[:, *best].tolist(),
            "one fold": right[:, *one].tolist(),
            "nested": [int(right[fold, *cell]) for fold, cell in enumerate(nested)],
        },
        "chosen": {"four folds": best, "one fold": one, "nested": nested},
    }


def _counts(right: Any) -> dict[str, int]:
    return {
        "tried": int((right != UNSEEN).all(axis=0).sum()),
        "unsolved": int((right == UNSOLVED).any(axis=0).sum()),
    }


def persist(table: Table, method: str, found: Mapping[str, Any], threads: int = 1) -> dict[str, Any]:
    """The paper's protocol with more steps for the machines near the best cell; the paper has no limit of steps.

    `found` is what `answer` returned; its board is the starting point.
    """
    started = time.process_time()
    board = make_board(table, method, table.folds, threads)
    board.right[:] = found["board"]
    again = board.persist()
    best = _best_cell(board.accuracies(_REPORT))
    return {
        "right": board.right[:, *best].tolist(),
        "chosen": best,
        "again": int(again.sum()),
        **_counts(board.right),
        "processor_seconds": time.process_time() - started,
    }


def _best_tuned(board: Board) -> Cell:
    """The best cell on the tuning split that is also solved on all four splits to report.

    The candidates are trained on those splits here, best first, where that was not done yet.
    """
    accuracies = board.accuracies(_TUNING)
    while True:
        cell = _best_cell(accuracies)
        wanted: Any = np.zeros(board.right.shape, bool)
        wanted[_REPORT, *cell] = True
        board.fill(wanted)
        if (board.right[_REPORT, *cell] >= 0).all():
            return cell
        accuracies[cell] = np.nan


def _best_nested(board: Board, fold: int) -> Cell:
    """The coarse cell that is best in cross-validation of a fold's training rows.

    Only cells count that are solved on all inner parts and on the fold itself.
    """
    start = _TUNING.stop + fold * _INNER
    right = board.right[start : start + _INNER]
    usable = board.cells.coarse() & (right >= 0).all(axis=0) & (board.right[fold] >= 0)
    return _best_cell(np.where(usable, right.sum(axis=0), np.nan))


def _forest(table: Table, threads: int) -> dict[str, Any]:
    choices = FOREST.features(table)
    tried = [[FOREST.try_split(table, fold, count, threads) for count in choices] for fold in table.folds]
    right = np.array([[one for one, _ in row] for row in tried])
    tuned = [FOREST.try_split(table, table.tuning, count, threads)[0] for count in choices]
    tests = np.array([len(fold.test) for fold in table.folds])
    best = int((right / tests[:, None]).mean(axis=0).argmax())
    nested = [(int(np.argmax([bag for _, bag in row])),) for row in tried]
    found = _chosen(right, (best,), (int(np.argmax(tuned)),), nested)
    return {**found, "cells": len(choices), "tried": len(choices), "unsolved": 0, "thorough": True}


def _best_cell(values: Any) -> Cell:
    """The cell with the best accuracy; of several, the first: the widest kernel, then the smallest C."""
    if not np.isfinite(values).any():
        raise InputError(f"no machine was solved within {MOST_STEPS:,} steps, even at the smallest C")
    kernel, cost = np.unravel_index(np.nanargmax(values), values.shape)
    return int(kernel), int(cost)


def settings(method: str, rows: int) -> dict[str, Any]:
    """What the answer of a method depends on, besides the table: the key of its piece."""
    if method == "forest":
        return {"method": method, "trees": FOREST.trees, "factors": FOREST.factors}
    machine = MACHINES[method]
    board = {"kernels": machine.names, "costs": machine.costs, "stride": machine.stride}
    search = {} if rows <= THOROUGH else {"margin": MARGIN}
    return {"method": method, "most_steps": MOST_STEPS, "tolerance": TOLERANCE, "inner": _INNER, **board, **search}


def solve(question: Question, tables: Path, folder: Path, threads: int = 1, *, finished: bool = False) -> Piece:
    """The answer for a table and a method, read from its piece if there is one. Runs in a worker process.

    With `finished`, nothing is computed: `UnansweredError` is raised where there is no piece.
    """
    table, method = read_table(question[0], tables), question[1]
    run = Run("uci", folder, configuration={}, data={table.name: table.digest})

    def piece(of: Row, compute: Callable[..., Any], *arguments: Any) -> Piece:
        def unless_finished() -> Any:
            if finished:
                raise UnansweredError("not run yet")
            return compute(table, method, *arguments, threads=threads)

        return run.piece(of, unless_finished)

    of = {"table": table.name, **settings(method, len(table))}
    first = piece(of, answer)
    if method == "forest":
        return first
    try:
        second = piece({**of, "patience": PATIENCE}, persist, first.value)
    except UnansweredError:
        return replace(first, value={**first.value, "again": None})
    return replace(first, value=_join(first.value, second.value), seconds=first.seconds + second.seconds)


def _join(first: Row, second: Row) -> Row:
    """An answer, updated by the result of `persist`."""
    four = {name: {**first[name], "four folds": second[name]} for name in ("right", "chosen")}
    counts = {name: second[name] for name in ("again", "tried", "unsolved")}
    return {**first, **four, **counts, "processor_seconds": first["processor_seconds"] + second["processor_seconds"]}


class UnansweredError(TangentlessError):
    """There is no saved answer, and none was to be computed."""


Outcome = tuple[Question, Piece | TangentlessError]


def study(
    names: Sequence[str], methods: Sequence[str], tables: Path, folder: Path, jobs: int, *, finished: bool = False
) -> Iterator[Outcome]:
    """Answer for all tables and methods, small tables first; yields each answer when it is done, or the error.

    With `finished`, only saved answers are read.
    """
    files = {name: tables / name / f"{name}_R.dat" for name in names}
    order = sorted(names, key=lambda name: files[name].stat().st_size if files[name].is_file() else 0)
    questions = [(name, method) for name in order for method in METHODS if method in methods]
    if finished:
        for question in questions:
            yield question, _outcome(functools.partial(solve, question, tables, folder, finished=True))
        return
    processes = max(1, min(jobs, len(questions)))
    # Spawned, not forked: a fork would inherit the locks of threads, such as that of the progress bar.
    # Matrix products have one thread each: the processes share out the cores.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=threadpool_limits, initargs=(1,))
    try:
        waiting: dict[Future[Piece], Question] = {
            pool.submit(solve, question, tables, folder, max(1, jobs // processes)): question for question in questions
        }
        for future in as_completed(waiting):
            yield waiting[future], _outcome(future.result)
    finally:  # answers that are being computed are still finished and saved
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome(result: Callable[[], Piece]) -> Piece | TangentlessError:
    try:
        return result()
    except (DatasetError, InputError, UnansweredError) as error:
        return error


def accuracy(value: Mapping[str, Any], protocol: str) -> float:
    """The mean accuracy of an answer over the four splits."""
    return float(np.mean(np.array(value["right"][protocol]) / np.array(value["tests"])))
