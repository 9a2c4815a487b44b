"""Options of `fit` and `predict` that contradict each other, or that would do nothing, are refused."""

import numpy as np
import pytest
from PIL import Image

from shell import run, succeed
from tangentless import commands

TEXT = "conv3 relu pool2 conv3 relu globalpool normalize relu"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Images and labels as arrays, a folder of photographs, and a model; every computation is an error."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((6, 4, 4, 3)))
    np.save(tmp_path / "y.npy", np.arange(6) % 3)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "red").save(tmp_path / "photos" / name / "one.png")
    monkeypatch.chdir(tmp_path)
    assert run("fit", TEXT, "x.npy", "y.npy", "-o", "model", "--backend", "reference").exit_code == 0
    monkeypatch.delattr(commands, "then_solving")
    monkeypatch.delattr(commands, "_predict")


FIT = ("fit", TEXT, "x.npy", "y.npy", "-o", "new")
PREDICT = ("predict", "model", "x.npy")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fit", TEXT, "photos", "--patch", "3", "--zca", "-o", "new"), "give one of the two"),
        ((*FIT, "--size", "32"), "x.npy is an array, not photographs: leave out --size"),
        ((*FIT, "--color", "grey", "--skip"), "x.npy is an array, not photographs: leave out --colour and --skip"),
        ((*FIT, "--report", "photos/../new"), "two outputs have the name"),
        ((*PREDICT, "--csv", "a.csv", "--output", "a.csv"), "two outputs have the name a.csv; choose another"),
        ((*PREDICT, "--skip"), "x.npy is an array, not photographs: leave out --skip"),
    ],
)
def test_what_would_do_nothing_is_refused(folder, arguments, complaint):
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert complaint in refused.output


def test_photographs_in_no_class_are_counted_in_a_note(folder, monkeypatch):
    Image.new("RGB", (8, 8)).save("photos/stray.jpg")
    monkeypatch.setattr(commands, "then_solving", lambda progress: progress, raising=False)
    fitted = run("fit", TEXT, "photos", "--size", "8", "--ridge", "1", "-o", "new", "--backend", "reference")
    assert (fitted.exit_code, "Note: images in photos that are in no class are left out: 1, such" in fitted.stderr) == (
        0,
        True,
    )


def test_errors_name_options_and_not_parameters(folder):
    np.save("more.npy", np.concatenate([np.load("x.npy"), np.ones((2, 4, 4, 3))]))
    succeed("gram", "run", TEXT, "x.npy", "store", "--backend", "reference")
    refused = run("gram", "run", TEXT, "more.npy", "store", "--backend", "reference")
    assert refused.exit_code == 2
    assert "to add the new ones, pass --extend." in refused.output


def test_help_says_which_names_are_recipes():
    assert "best or paper" in " ".join(succeed("fit", "--help").replace("│", " ").split())
