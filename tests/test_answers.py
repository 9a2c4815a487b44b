"""Commands for programs: one JSON object with --json, exit statuses, and completion in shells."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shell import run
from tangentless.experiments import cli as experiments
from tangentless.experiments.records import Outcome, View

TEXT = "conv3 relu globalpool"
SLOW = ("--backend", "reference")


def answer(*arguments: Any, status: int = 0) -> dict[str, Any]:
    """Run a command with --json and return its object; nothing else may be on its standard output."""
    result = run(*arguments, "--json")
    assert result.exit_code == status, (result.output, result.exception)
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(found, dict)
    assert result.stdout.count("\n") == 1
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images and labels, as arrays and as photographs of two classes."""
    images = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 3)).astype(np.uint8)
    labels = np.array(["cat", "dog"] * 4)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", labels)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path


def test_describe_returns_layers_and_their_costs():
    found = answer("describe", TEXT, "--shape", "4,4,1", "--images", 100, *SLOW, "--no-measure")
    assert [row["layer"] for row in found["layers"]] == TEXT.split()
    assert found["elements_per_pair"] == 256
    assert found["predicted"]["pairs"] == 5050
    assert found["predicted"]["seconds"] == {"prepare": None, "matrix": None, "solve": None}


def test_fit_and_predict_return_scores_and_predictions(data: Path):
    found = answer("fit", TEXT, data / "photos", "--size", 4, "-o", data / "model.npz", *SLOW)
    assert (found["model"], found["images"], found["score"]) == (str(data / "model.npz"), 8, "accuracy")
    assert 0 <= found["leave_one_out"] <= 1
    found = answer("predict", data / "model.npz", data / "photos", *SLOW)
    first = found["predictions"][0]
    assert (first["file"], set(first["probabilities"])) == ("cat/0.png", {"cat", "dog"})
    assert first["predicted"] == max(first["probabilities"], key=first["probabilities"].get)
    assert found["value"] == np.mean([one["file"].startswith(one["predicted"]) for one in found["predictions"]])


def test_kernel_returns_the_shape(data: Path):
    found = answer("kernel", TEXT, data / "x.npy", "-o", data / "K.npy", *SLOW)
    assert (found["shape"], found["pairs"]) == ([8, 8], 36)


def test_search_returns_trials_without_nan(data: Path):
    found = answer("search", data / "x.npy", data / "y.npy", TEXT, "globalpool", *SLOW)
    assert {trial["kernel"] for trial in found["trials"]} == {f"kernel('{TEXT}')", "kernel('globalpool')"}
    assert found["trials"][0]["rows"] == 8


def test_bench_returns_rows():
    found = answer("bench", TEXT, "--shape", "4,4,1", "--seconds", 0.02, *SLOW)
    assert found["rows"][0]["pairs_per_second"] > 0


def test_experiments_return_rows_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("torch", reason="PyTorch is an extra")
    from tangentless import datasets
    from tangentless.experiments import compare, tables

    view = View("a table", ("accuracy",), lambda row: [str(row["accuracy"])])
    outcome = Outcome([{"accuracy": float("nan")}], view, [tmp_path / "record.json"])

    def finished(*_: Any, **__: Any) -> Outcome:
        print("a table for people")
        return outcome

    monkeypatch.setattr(datasets, "load", lambda *_, **__: None)
    monkeypatch.setattr(tables, "reproduce", finished)
    monkeypatch.setattr(compare, "compare", finished)
    monkeypatch.setattr("tangentless.networks.training.Machine", lambda *_: None, raising=False)
    expected = {"results": [{"accuracy": None}], "files": [str(tmp_path / "record.json")], "unfinished": None}
    assert answer("reproduce", "mnist") == expected
    assert answer("compare", "myrtle5", "myrtle7") == expected


def test_every_experiment_that_computes_has_json():
    drawing = {"report", "nonlinearities", "architectures"}
    for command in experiments.app.registered_commands:
        name = command.name or command.callback.__name__
        assert ("--json" in run("reproduce", name, "--help").output) == (name not in drawing), name


def test_every_command_that_the_page_lists_has_json():
    page = Path(__file__).parents[1] / "docs" / "command-line.md"
    if not page.exists():
        pytest.skip("the pages do not come with the tests")
    table = page.read_text(encoding="utf-8").partition("| command |")[2].partition("\n\n")[0]
    named = re.findall(r"`([a-z ]+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert set(named) >= {"describe", "fit", "predict", "search", "bench", "gram verify", "doctor"}
    for name in set(named) - {"reproduce"}:  # whose experiments are looked at above
        assert "--json" in run(*name.split(), "--help").output, name


def test_recipes_are_listed_for_programs_too():
    assert answer("reproduce", "networks", "--list")["cifar10-myrtle5"]["epochs"] > 0


# Exit statuses


def test_a_refusal_is_status_2_and_leaves_standard_output_empty(data: Path):
    for arguments in (["describe", "no such layers", "--json"], ["describe"], ["predict", data, data], ["no-command"]):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")


def test_a_store_that_is_damaged_is_status_1_in_text_and_json(data: Path):
    store = data / "k.zarr"
    assert run("gram", "run", TEXT, data / "x.npy", store, *SLOW).exit_code == 0
    assert answer("gram", "status", store)["complete"]
    assert answer("gram", "verify", store)["good"]
    chunk = next(path for path in (store / "kernel").rglob("*") if path.is_file() and path.stat().st_size > 256)
    chunk.write_bytes(b"\0" * chunk.stat().st_size)
    assert not answer("gram", "verify", store, status=1)["good"]
    assert run("gram", "verify", store).exit_code == 1


# Completion


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tangentless des", "describe"),
        ("tangentless describe myrtle10-", "myrtle10-gaussian"),
        ("tangentless fit --backend c", "cuda"),
        ("tangentless gram ver", "verify"),
    ],
)
def test_shells_complete_commands_architectures_and_backends(words: str, expected: str):
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TANGENTLESS_COMPLETE": "complete_bash"}
    assert expected in run(env=variables, prog_name="tangentless").stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_completion_can_be_shown(shell: str):
    shown = run(env={"_TANGENTLESS_COMPLETE": f"source_{shell}"}, prog_name="tangentless").stdout
    assert "_TANGENTLESS_COMPLETE" in shown
