"""The study of tables on toy tables: protocols, resuming, reports; and on real tables if they are there."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.svm import SVC

from shell import run
from tangentless.datasets.tables import Rowsets, read_table
from tangentless.experiments import uci, uci_methods
from tangentless.experiments.uci import PROTOCOLS, accuracy, answer, inner_folds, make_board, persist, settings
from tangentless.experiments.uci_methods import MACHINES, METHODS
from tangentless.experiments.uci_report import paper_rows, search_check, summarise
from tangentless.solve import board as boards
from tangentless.solve.board import UNSEEN, UNSOLVED
from test_tables import write_table

REAL = Path(os.environ.get("TANGENTLESS_DATA", "no-data")) / "uci"


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write_table(folder, "apart", rows=32, classes=2, seed=0)
    write_table(folder, "three", rows=36, classes=3, seed=1)
    noise = np.random.default_rng(2)
    write_table(folder, "noise", labels=noise.integers(0, 2, 40), features=noise.standard_normal((40, 2)), seed=3)
    return folder


def reproduce(toys, output, *more):
    return run("reproduce", "uci", "--data", toys, "--output", output, "--jobs", 1, *more)


def test_board_counts_what_libsvm_gets_right(toys):
    table = read_table("three", toys)
    board = make_board(table, "gaussian", table.folds)
    wanted = np.zeros(board.right.shape, bool)
    wanted[:, 15:17, ::8] = True
    board.fill(wanted)
    assert ((board.right != UNSEEN) == wanted).all()
    distances = np.square(table.features[:, None] - table.features[None]).sum(axis=2)
    median = np.median(distances[np.triu_indices(len(table), 1)])
    for s, k, c in np.argwhere(wanted):
        K = np.exp(-distances * median * 2.0 ** (k - 19))
        train, test = table.folds[s].train, table.folds[s].test
        machine = SVC(C=2.0 ** (c - 19), kernel="precomputed").fit(K[np.ix_(train, train)], table.labels[train])
        right = (machine.predict(K[np.ix_(test, train)]) == table.labels[test]).sum()
        assert board.right[s, k, c] == right


@pytest.mark.parametrize(
    "changes", [{"costs": (1.0, 2.0)}, {"names": ("one",)}, {"stride": 3}], ids=lambda changes: next(iter(changes))
)
def test_another_grid_has_other_settings(changes, monkeypatch):
    before = settings("gaussian", rows=100)
    monkeypatch.setitem(MACHINES, "gaussian", dataclasses.replace(MACHINES["gaussian"], **changes))
    assert settings("gaussian", rows=100) != before


def test_threads_change_nothing(toys):
    table = read_table("noise", toys)
    boards = [make_board(table, "ntk", table.folds, threads) for threads in (1, 3)]
    for board in boards:
        board.fill(np.ones(board.right.shape, bool))
    assert np.array_equal(boards[0].right, boards[1].right)


def test_unsolved_cells_are_marked_and_never_best(toys, monkeypatch):
    monkeypatch.setattr(boards, "MOST_STEPS", 60)
    found = answer(read_table("noise", toys), "gaussian")
    board = np.array(found["board"])
    assert found["unsolved"] == (board == UNSOLVED).any(axis=0).sum() > 0
    for protocol in PROTOCOLS:
        assert min(found["right"][protocol]) >= 0


def test_more_steps_are_granted_next_to_the_best_only(toys, monkeypatch):
    table = read_table("noise", toys)
    full = answer(table, "gaussian")
    monkeypatch.setattr(boards, "MOST_STEPS", 30)
    first = answer(table, "gaussian")
    second = persist(table, "gaussian", first)
    assert 0 < second["again"] < (np.array(first["board"]) == UNSOLVED).any(axis=0).sum()
    assert second["unsolved"] < first["unsolved"]
    assert accuracy(first, "four folds") <= np.mean(np.array(second["right"]) / first["tests"])
    assert np.mean(np.array(second["right"]) / first["tests"]) <= accuracy(full, "four folds")


def test_four_folds_is_the_best_mean_and_the_others_are_no_better(toys):
    for name in ("apart", "three", "noise"):
        found = answer(read_table(name, toys), "ntk")
        means = (np.array(found["board"]) / np.array(found["tests"])[:, None, None]).mean(axis=0)
        assert accuracy(found, "four folds") == pytest.approx(means.max())
        assert accuracy(found, "one fold") <= means.max() + 1e-12


def test_nested_never_sees_the_rows_it_is_tested_with(toys):
    """Changing the labels of test rows does not change what nested tuning chooses."""
    table = read_table("noise", toys)
    flipped = table.labels.copy()
    fold = table.folds[0]
    flipped[fold.test] = 1 - flipped[fold.test]
    other = uci.Table(table.name, table.features, flipped, table.tuning, table.folds, table.digest)
    first, second = answer(table, "ntk"), answer(other, "ntk")
    assert first["chosen"]["nested"][0] == second["chosen"]["nested"][0]
    assert first["right"]["nested"][0] + second["right"]["nested"][0] == len(fold.test)


def test_inner_folds_part_training_rows_and_spread_classes():
    labels = np.repeat([0, 1, 2], [30, 9, 1])
    train = np.sort(np.random.default_rng(0).permutation(40)[:30])
    parts = inner_folds(labels, train, seed=1)
    assert sorted(np.concatenate([part.test for part in parts]).tolist()) == train.tolist()
    for part in parts:
        assert isinstance(part, Rowsets)
        assert not set(part.train) & set(part.test)
        ones = (labels[part.test] == 1).sum()
        assert abs(ones - (labels[train] == 1).sum() / 4) < 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_separate_classes(toys, method, monkeypatch):
    monkeypatch.setattr(uci, "FOREST", uci_methods.Forest(trees=25))
    found = answer(read_table("apart", toys), method)
    assert all(accuracy(found, protocol) > 0.9 for protocol in PROTOCOLS)


def test_search_finds_the_best_of_a_smooth_board_with_few_cells():
    machine = MACHINES["gaussian"]
    across, up = np.meshgrid(np.arange(40), np.arange(40))
    means = 0.9 - 0.0005 * ((across - 23) ** 2 + (up - 11) ** 2)
    seen = machine.replay(means, tests=1000)
    assert seen[11, 23]
    assert seen.mean() < 0.3


def test_large_tables_are_searched_and_say_how_much_was_tried(toys, monkeypatch):
    monkeypatch.setattr(uci, "THOROUGH", 10)
    found = answer(read_table("apart", toys), "gaussian")
    assert not found["thorough"]
    assert 400 <= found["tried"] < found["cells"]
    monkeypatch.setattr(uci, "THOROUGH", 100)
    full = answer(read_table("apart", toys), "gaussian")
    assert full["tried"] == full["cells"] == 1600
    assert accuracy(full, "four folds") - accuracy(found, "four folds") < 0.001
    (check,) = search_check([full])
    assert check["worst_loss"] < 0.1


def test_a_misspelt_table_is_refused_before_anything_is_written(toys, tmp_path):
    result = reproduce(toys, tmp_path, "--datasets", "apart,thre")
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr
    assert "did you mean 'three'?" in result.stderr
    assert not list(tmp_path.iterdir())


def test_command_reports_resumes_and_refuses_by_name(toys, tmp_path):
    broken = write_table(toys, "broken", seed=9)
    (broken / "conxuntos_kfold.dat").write_text("0 1 2\n")
    names = "apart,three,broken"
    result = reproduce(toys, tmp_path, "--datasets", names, "--methods", "ntk")
    assert result.exit_code == 0, result.output
    assert "SVM, NTK: broken: " in result.output
    record = json.loads((tmp_path / "uci.json").read_text())
    assert [row["table"] for row in record["results"]] == ["apart", "three"]
    assert record["summary"]["tables"] == 2
    assert record["left_out"][0]["table"] == "broken"
    assert "folds are missing" in record["left_out"][0]["reason"]
    page = (tmp_path / "uci.md").read_text()
    assert "2 of 3 tables are finished" in page
    assert "(./uci-profiles.png)" in page
    assert "folds are missing" in page
    pieces = {path: path.stat().st_mtime_ns for path in (tmp_path / "pieces").iterdir()}
    assert len(pieces) == 4  # two for each table: a quick one, and one with more steps
    again = reproduce(toys, tmp_path, "--datasets", names, "--methods", "ntk", "--finished")
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "pieces").iterdir()} == pieces
    (second,) = (path for path in pieces if '"patience"' in path.read_text() and '"table": "three"' in path.read_text())
    second.unlink()
    reproduce(toys, tmp_path, "--datasets", names, "--methods", "ntk", "--finished")
    assert "not done yet for 1 answers, on three" in (tmp_path / "uci.md").read_text()
    unfinished = reproduce(toys, tmp_path, "--datasets", names, "--methods", "ntk,polynomial", "--finished")
    assert "SVM, polynomial kernel: apart, three: not run yet" in unfinished.output.replace("\n", " ")


def test_unknown_method_is_refused(toys, tmp_path):
    result = reproduce(toys, tmp_path, "--methods", "guess")
    assert result.exit_code == 2
    assert "there is no method guess" in result.output


def test_summary_is_over_the_tables_that_all_methods_have(toys):
    answers = [answer(read_table(name, toys), "ntk") for name in ("apart", "three")]
    answers.append(answer(read_table("apart", toys), "polynomial"))
    summary = summarise(answers, ["ntk", "polynomial"], None)
    assert summary["tables"] == 1
    assert {row["protocol"] for row in summary["standings"]} == set(PROTOCOLS)
    assert len(summary["duels"]) == 3


@pytest.mark.skipif(not REAL.is_dir(), reason="TANGENTLESS_DATA has no uci folder")
@pytest.mark.parametrize("name", ["trains", "lenses", "zoo", "iris", "wine"])
def test_real_tables_have_the_papers_accuracy_to_the_last_digit(name):
    table = read_table(name, REAL)
    for method in ("gaussian", "ntk"):
        assert round(100 * accuracy(answer(table, method), "four folds"), 2) == paper_rows()[name][method]
