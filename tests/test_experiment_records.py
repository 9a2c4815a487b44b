"""Records and pieces that a run of an experiment writes."""

import json
import subprocess
import sys
import time

import pytest

from tangentless.errors import InputError
from tangentless.experiments.records import Run, Unfinished, View, read_record, read_records
from tangentless.statistics import Score
from tangentless.timing import command


def new_run(folder, **data):
    return Run("squares", folder, configuration={"numbers": [2]}, data=data)


def test_piece_is_computed_once(tmp_path):
    calls = []
    for _ in range(2):
        piece = new_run(tmp_path).piece({"number": 2}, lambda: calls.append(1) or 4)
        assert piece.value == 4
    assert len(calls) == 1


def test_piece_counts_once_in_the_time_of_a_run_that_asks_for_it_often(tmp_path):
    run = new_run(tmp_path)
    for _ in range(3):
        piece = run.piece({"number": 2}, lambda: 4)
    (spent,) = json.loads(run.finish([]).read_text())["seconds_by_machine"].values()
    assert spent == piece.seconds


def test_piece_of_other_data_or_another_question_is_computed_anew(tmp_path):
    new_run(tmp_path, digits="a").piece({"number": 2}, lambda: 4)
    assert new_run(tmp_path, digits="b").piece({"number": 2}, lambda: 5).value == 5
    assert new_run(tmp_path, digits="a").piece({"number": 3}, lambda: 9).value == 9


def test_piece_that_is_damaged_or_another_is_refused_by_name(tmp_path):
    new_run(tmp_path).piece({"number": 2}, lambda: 4)
    (path,) = (tmp_path / "pieces").iterdir()
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "of": {"number": 3}}))
    with pytest.raises(InputError, match=path.name):
        new_run(tmp_path).piece({"number": 2}, lambda: 4)
    path.write_text(path.read_text()[:40])
    with pytest.raises(InputError, match="remove it and run again"):
        new_run(tmp_path).piece({"number": 2}, lambda: 4)


def test_value_that_is_not_finite_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        new_run(tmp_path).piece({"number": 2}, lambda: float("nan"))
    assert not list((tmp_path / "pieces").iterdir())


def test_record_says_what_ran_where_and_on_what(tmp_path):
    run = new_run(tmp_path, digits={"train": "abc"})
    run.piece({"number": 2}, lambda: 4)
    record = read_record(run.finish([{"square": 4}]))
    assert record["configuration"] == {"numbers": [2]}
    assert record["data"] == {"digits": {"train": "abc"}}
    assert list(record["seconds_by_machine"]) == [run.machine()]
    assert {"tangentless", "numpy", "python", "processor"} <= record["environments"][run.machine()].keys()


def test_record_of_pieces_from_elsewhere_speaks_of_that_machine(tmp_path):
    elsewhere = Run("squares", tmp_path, configuration={}, data={}, machine=lambda: "a GPU")
    elsewhere.piece({"number": 2}, lambda: 4)
    here = Run("squares", tmp_path, configuration={}, data={}, machine=lambda: pytest.fail("nothing is computed here"))
    here.piece({"number": 2}, lambda: pytest.fail("it is there"))
    record = read_record(here.finish([]))
    assert list(record["environments"]) == list(record["seconds_by_machine"]) == ["a GPU"]


def test_other_json_files_are_no_records(tmp_path):
    (tmp_path / "speed.json").write_text('{"rates": [1]}')
    new_run(tmp_path).finish([{"square": 4}])
    assert [record["experiment"] for record in read_records(tmp_path)] == ["squares"]
    with pytest.raises(InputError, match="not the record"):
        read_record(tmp_path / "speed.json")


@pytest.mark.parametrize(
    ("right", "rows", "low", "high"), [(0, 10, 0, 0.3085), (10, 10, 0.6915, 1), (50, 100, 0.3983, 0.6017)]
)
def test_interval_is_that_of_clopper_and_pearson(right, rows, low, high):
    assert Score(right, rows).interval == pytest.approx((low, high), abs=1e-4)


SLOW_RUN = """
import sys, time
from pathlib import Path
from tangentless.experiments.records import Run
run = Run("slow", Path(sys.argv[1]), configuration={}, data={})
for number in range(1000):
    run.piece({"number": number}, lambda: time.sleep(0.01) or [number] * 1000)
"""


def test_killed_run_leaves_whole_pieces_only(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SLOW_RUN, str(tmp_path)])
    pieces = tmp_path / "pieces"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and (not pieces.is_dir() or len(list(pieces.glob("*.json"))) < 5):
        time.sleep(0.01)
    process.kill()
    process.wait()
    found = list(pieces.glob("slow-*.json"))
    assert len(found) >= 5
    values = [json.loads(path.read_text())["value"] for path in found]
    assert sorted(value[0] for value in values) == list(range(len(found)))
    run = Run("slow", tmp_path, configuration={}, data={})
    assert run.piece({"number": 3}, lambda: None).value == [3] * 1000


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        (["/home/me/bin/tangentless", "bench", "--json", "a/b.json"], "tangentless bench --json b.json"),
        (["/lib/tangentless/__main__.py", "compare", "--output=a/b"], "tangentless compare"),
        (["./benchmarks/networks_gpu.py", "/root/out", "--work", "w", "--toy"], "networks_gpu.py out --toy"),
        (["tangentless", "reproduce", "mnist", "-o"], "tangentless reproduce mnist"),
        (["tangentless", "kernel", "conv3 relu", "--key=x/y"], "tangentless kernel 'conv3 relu' --key=y"),
    ],
)
def test_commands_are_recorded_by_program_and_without_the_folders_of_a_machine(arguments, recorded):
    assert command(arguments) == recorded


VIEW = View("Squares", ("number", "square"), lambda row: (str(row["number"]), str(row["square"])))


def test_rows_become_a_record_and_a_table(tmp_path, capsys):
    run = new_run(tmp_path)
    rows = ({"number": n, "square": run.piece({"number": n}, lambda n=n: n * n).value} for n in (2, 3))
    outcome = run.conduct(rows, VIEW, summarise=lambda rows: {"sum": sum(row["square"] for row in rows)})
    record = read_record(tmp_path / "squares.json")
    assert record["results"] == outcome.rows == [{"number": 2, "square": 4}, {"number": 3, "square": 9}]
    assert record["sum"] == 13
    assert not outcome.unfinished
    assert "Squares" in capsys.readouterr().out


def test_rows_without_an_end_leave_no_record(tmp_path):
    def rows():
        yield {"number": 2, "square": 4}
        raise Unfinished("time is up")

    outcome = new_run(tmp_path).conduct(rows(), VIEW)
    assert outcome.unfinished == "time is up"
    assert len(outcome.rows) == 1
    assert not list(tmp_path.glob("*.json"))
