"""`reproduce networks` and `compare`: the same images for kernel and network, records, figures, and resumed runs."""

import dataclasses
import json
import runpy
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from shell import run
from tangentless import datasets
from tangentless.console import percent
from tangentless.errors import ArchitectureError, ParameterError
from tangentless.networks.inputs import balanced, make_transform

pytest.importorskip("torch", reason="networks need PyTorch: pip install 'tangentless[networks]'")
from tangentless.experiments import compare as comparison
from tangentless.experiments import networks as experiment
from tangentless.experiments.records import Piece, Run, read_record
from tangentless.experiments.report import write_report
from tangentless.networks import RECIPES, Machine, Steps, training
from tangentless.statistics import rank_correlation

CPU = Machine("cpu")
SHALLOW, DEEPER = "conv3 relu globalpool normalize relu", "conv3 relu pool2 conv3 relu globalpool normalize relu"
TOY = comparison.Settings(train=60, test=80, inputs="pixels", width=8, epochs=3, trials=2, learning_rate=0.01)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def run_comparison(digits, folder, architectures=(SHALLOW, DEEPER), settings=TOY, **options):
    return comparison.compare(digits, architectures, settings, backend="cpu", machine=CPU, folder=folder, **options)


def test_more_test_images_than_there_are_is_refused(digits, tmp_path):
    with pytest.raises(ParameterError, match="there are 797 test images, and 798 are asked for"):
        run_comparison(digits, tmp_path, settings=dataclasses.replace(TOY, test=798))


def test_comparison_leaves_a_table_a_record_and_pictures(digits, tmp_path):
    outcome = run_comparison(digits, tmp_path)
    record = read_record(tmp_path / "compare-digits.json")
    assert [row["architecture"] for row in record["results"]] == [SHALLOW, DEEPER]
    for row in record["results"]:
        for side in ("kernel", "network"):
            low, high = row[side]["interval"]
            assert low <= row[side]["accuracy"] <= high
        assert len(row["network"]["trials"]) == 2
        assert (row["train"], row["rows"]) == (60, 80)
    assert (tmp_path / "compare-digits.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "compare-digits.svg").read_text()
    files = write_report(tmp_path, tmp_path / "docs" / "page.md")
    page = (tmp_path / "docs" / "page.md").read_text()
    assert comparison.describe_correlation(record["correlation"]) in " ".join(page.split())
    for row in outcome.rows:
        assert f"| {row['architecture']} | {percent(row['kernel']['accuracy'])} |" in page
    assert tmp_path / "docs" / "images" / "compare-digits.png" in files
    assert "(images/compare-digits.png)" in page


def test_comparison_goes_on_with_what_is_there(digits, tmp_path, monkeypatch):
    first = run_comparison(digits, tmp_path)

    def refuse(*arguments, **options):
        raise AssertionError("this was computed before")

    monkeypatch.setattr(training, "train", refuse)
    assert run_comparison(digits, tmp_path).rows == first.rows
    with pytest.raises(AssertionError, match="computed before"):  # other settings are another piece
        run_comparison(digits, tmp_path, architectures=(SHALLOW, DEEPER, "myrtle5"))


def test_kernel_and_network_see_the_same_images(digits, tmp_path, monkeypatch):
    from tangentless.estimators import KernelRidgeClassifier

    seen = {}
    fit, train = KernelRidgeClassifier.fit, training.train

    def watch_fit(self, X, y, *arguments):
        seen["kernel"] = (np.array(X), np.array(y))
        return fit(self, X, y, *arguments)

    def watch_train(network, images, labels, recipe, **options):
        seen["network"] = (np.array(images), np.array(labels))
        return train(network, images, labels, recipe, **options)

    monkeypatch.setattr(KernelRidgeClassifier, "fit", watch_fit)
    monkeypatch.setattr(training, "train", watch_train)
    run_comparison(digits, tmp_path)
    for ours, theirs in zip(seen["kernel"], seen["network"], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_comparison_transforms_its_images_once(digits, tmp_path, monkeypatch):
    from tangentless.preprocessing import ZCA

    transform, transformed = ZCA.transform, []

    def watch(self, images):
        transformed.append(len(images))
        return transform(self, images)

    monkeypatch.setattr(ZCA, "transform", watch)
    run_comparison(digits, tmp_path, settings=dataclasses.replace(TOY, inputs="zca"))
    assert transformed == [60, 80]


def test_comparison_stops_by_the_clock_and_goes_on_to_the_same(digits, tmp_path):
    whole = run_comparison(digits, tmp_path / "whole")
    calls = 1
    while (outcome := run_comparison(digits, tmp_path / "parts", stop_after=0.0)).unfinished:
        assert not outcome.files
        calls += 1
    assert calls == 2 * (1 + TOY.trials * TOY.epochs)  # each call computes a kernel, or an epoch of a network
    assert outcome.rows == whole.rows
    assert not list((tmp_path / "parts/checkpoints").iterdir())


def test_rank_correlation_is_one_minus_one_or_none():
    generator = np.random.default_rng(0)
    shares = np.linspace(0.2, 0.9, 6)
    hits = (generator.random((6, 4000)) < shares[:, None]).astype(float)
    found = rank_correlation(hits, hits)
    assert found["spearman"] == pytest.approx(1.0)
    assert found["p"] == pytest.approx(1 / 720)  # one of the 6! = 720 orders
    assert found["interval"][0] > 0.8
    assert rank_correlation(hits, hits[::-1])["spearman"] == pytest.approx(-1.0)
    assert rank_correlation(hits, np.ones_like(hits))["spearman"] is None


def test_networks_are_recorded_and_go_on(digits, tmp_path):
    changes = {"width": 4, "epochs": 2, "images": 40, "schedule": Steps((1,))}
    settings = experiment.Settings(("mnist-myrtle5",), changes, trials=2, test=50, stop_after=0.0)
    outcome = experiment.reproduce(lambda name: digits, settings, machine=CPU, folder=tmp_path)
    assert outcome.unfinished.startswith("mnist-myrtle5, seed 0: 1 of 2 epochs")
    assert not outcome.rows
    assert not outcome.files
    assert not list(tmp_path.glob("*.json"))  # an incomplete run writes no record
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    for _ in range(3):
        outcome = experiment.reproduce(lambda name: digits, settings, machine=CPU, folder=tmp_path)
    assert not outcome.unfinished
    (row,) = read_record(outcome.files[0])["results"]
    assert (row["trials"], row["train"], row["rows"]) == (2, 40, 50)
    pieces = [json.loads(path.read_text()) for path in (tmp_path / "pieces").iterdir()]
    earlier = [piece["value"]["history"][0][3] for piece in pieces]  # seconds of the epoch that the first call trained
    record = read_record(outcome.files[0])
    assert record["configuration"]["changes"]["schedule"] == {"kind": "Steps", "milestones": [1], "factor": 0.1}
    assert list(record["environments"]) == list(record["seconds_by_machine"])
    (total,) = record["seconds_by_machine"].values()
    assert total == pytest.approx(sum(piece["seconds"] for piece in pieces) + sum(earlier))
    assert "method" not in row  # not the paper's method: narrower and trained for less time
    assert not list((tmp_path / "checkpoints").iterdir())


def test_trials_tested_otherwise_or_in_another_precision_are_other_pieces(digits, tmp_path):
    def reproduce(machine, **more):
        changes = {"width": 4, "epochs": 2, "images": 40}
        settings = experiment.Settings(("mnist-myrtle5",), changes, test=50, **more)
        experiment.reproduce(lambda name: digits, settings, machine=machine, folder=tmp_path)
        return len(list((tmp_path / "pieces").iterdir()))

    assert reproduce(CPU) == 1
    assert reproduce(CPU, test_every=2) == 2
    assert reproduce(Machine("cpu", "bfloat16")) == 3
    assert reproduce(CPU) == 3


def test_recipes_as_they_are_fill_the_page_of_results(tmp_path):
    trial = {"accuracy": 0.891, "best accuracy": 0.9, "rows": 10_000, "train": 50_000, "seconds": 60.0}
    piece = Piece(trial, 61.0, "a GPU", "2026-01-01 00:00 UTC")
    row = experiment._row("cifar10-myrtle5", RECIPES["cifar10-myrtle5"], [piece])
    Run("networks", tmp_path, configuration={}, data={}).finish([row])
    write_report(tmp_path, tmp_path / "page.md")
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert any(line.startswith("| Myrtle5 CNN | 89.8 | **89.1** (88.5 to 89.7) | 50,000 ") for line in lines)
    assert not any("beside the tables" in line for line in lines)


def test_subsets_and_changed_recipes_stand_on_the_page_beside_the_tables(tmp_path):
    piece = Piece(
        {"accuracy": 0.6, "best accuracy": 0.7, "rows": 99, "train": 80, "seconds": 60.0}, 61.0, "a GPU", "now"
    )
    shorter = RECIPES["cifar10-myrtle5"].change(epochs=9)
    rows = [
        experiment._row("subset-bn-80", RECIPES["subset-bn-80"], [piece, piece]),
        experiment._row("cifar10-myrtle5", shorter, [piece]),
    ]
    Run("networks", tmp_path, configuration={}, data={}).finish(rows)
    write_report(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| subset-bn-80 | 80 | 2 | 60.0 ± 0.00 | 49.3 to 69.3 | 70.0 | 33.58 ± 1.22 |" in page
    assert f"| cifar10-myrtle5 | 80 | 1 | 60.0 | 49.3 to 69.3 | 70.0 | - | {shorter.describe()} | 60 s, a GPU |" in page
    assert "| Myrtle5 CNN | 89.8 |\n" in page


def test_command_line_compares(tmp_path):
    options = "--train 40 --test 60 --inputs pixels --width 4 --epochs 1 --trials 1 --ridge 1e-3 --backend cpu"
    ended = run("compare", SHALLOW, DEEPER, *options.split(), "--device", "cpu", "-o", tmp_path)
    assert ended.exit_code == 0, ended.output
    assert "rank correlation" in ended.output
    assert json.loads((tmp_path / "compare-digits.json").read_text())["configuration"]["ridge"] == 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--data", "cifar10.1"],
            "--data is the folder that data sets are in; choose one of them by --dataset cifar10.1",
        ),
        (["--data", "typo"], "there is no folder typo"),
        (["--dataset", "cifar"], "there is no data set 'cifar'; there are mnist, cifar10,"),
    ],
)
def test_command_line_says_which_option_is_which(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run("compare", SHALLOW, DEEPER, *options)
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"inputs": "raw"}, {"learning_rate": -1.0}, {"width": 0}, {"epochs": 0}])
def test_settings_out_of_range_are_refused_before_anything_is_written(wrong, digits, tmp_path):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        run_comparison(digits, tmp_path, settings=dataclasses.replace(TOY, **wrong))
    assert not list(tmp_path.iterdir())


def test_data_without_training_images_are_refused(digits, tmp_path):
    only_tests = dataclasses.replace(digits, train=digits.train.take(slice(0)))
    with pytest.raises(ParameterError, match="digits has test images only"):
        run_comparison(only_tests, tmp_path)


def test_command_line_lists_recipes():
    ended = run("reproduce", "networks", "--list")
    assert ended.exit_code == 0
    assert "cifar100-myrtle10-bn-flips" in ended.output


def test_an_empty_list_of_recipes_does_not_mean_all(tmp_path):
    ended = run("reproduce", "networks", "--recipes", " ,", "-o", tmp_path)
    assert ended.exit_code == 2
    assert "name a recipe" in ended.output
    assert not list(tmp_path.iterdir())


@pytest.fixture
def run_benchmark(tmp_path, monkeypatch):
    def run(*arguments):
        script = str(Path(__file__).parents[1] / "benchmarks" / "networks_gpu.py")
        output = tmp_path / "output"
        monkeypatch.setattr(sys, "argv", [script, str(output), "--work", str(tmp_path / "work"), "--toy", *arguments])
        runpy.run_path(script, run_name="__main__")
        with tarfile.open(output / "networks_gpu.tgz") as archive:
            return {path.name for path in output.iterdir()}, archive.getnames()

    return run


def test_benchmark_brings_back_records_and_pieces(run_benchmark, tmp_path):
    files, packed = run_benchmark("--parts", "mnist")
    name = "networks-mnist-myrtle5-width-4-epochs-2-images-64.json"  # the name says how the recipe was changed
    assert files == {name, "networks_gpu.tgz"}
    assert [name for name in packed if name.startswith("pieces/networks-")]
    record = read_record(tmp_path / "output" / name)
    assert record["results"][0]["precision"] in ("float32", "bfloat16")  # the precision of a CPU, or of a GPU
    assert record["command"] == "networks_gpu.py output --toy --parts mnist"


def test_benchmark_starts_nothing_without_the_time_for_it(run_benchmark, capsys):
    assert run_benchmark("--parts", "mnist,compare", "--seconds", "70") == ({"networks_gpu.tgz"}, [])
    assert capsys.readouterr().out.count("to be continued") == 2


def test_inputs_are_standardised_or_refused(digits):
    images = digits.train.images
    standard = make_transform("standardize", images)(images)
    assert standard.mean() == pytest.approx(0, abs=1e-4)
    assert standard.std() == pytest.approx(1, abs=1e-4)
    assert make_transform("zca", images)(images[:3]).shape == (3, 8, 8, 1)
    with pytest.raises(ParameterError, match="inputs must be one of"):
        make_transform("raw", images)
    with pytest.raises(ParameterError, match="cannot be drawn"):
        balanced(digits.train.labels, 1001, seed=0)


@pytest.mark.parametrize(
    ("architectures", "error", "message"),
    [
        ((SHALLOW,), ParameterError, "two architectures or more"),
        ((SHALLOW, SHALLOW), ParameterError, "two architectures or more"),
        ((SHALLOW, "conv3 relu pool3 globalpool"), ArchitectureError, "does not divide"),
        ((SHALLOW, "conv3 rel globalpool"), ArchitectureError, "did you mean 'relu'"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(architectures, error, message, digits, tmp_path):
    with pytest.raises(error, match=message):
        run_comparison(digits, tmp_path, architectures)
