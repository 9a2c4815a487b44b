"""The command line: files it writes are right and complete, and errors are one line."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tangentless as tl
from conftest import hear_interrupts
from shell import run, succeed
from tangentless import files
from tangentless.architecture import NAMED, Architecture
from tangentless.classical import Gaussian
from tangentless.graph import compile_graph
from tangentless.models import load_model
from tangentless.terminal_tables import layer_rows

TEXT = "conv3 relu pool2 conv3 relu globalpool normalize relu"
SLOW = ("--backend", "reference")
IMAGES = np.random.default_rng(0).standard_normal((12, 4, 4, 2))
LABELS = np.arange(12) % 3


def refuse(*arguments: Any) -> str:
    """Run a command that must fail with status 2, and return its one line of error."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.output.splitlines()
    assert len(lines) == 1, result.output
    assert lines[0].startswith("Error: ")
    return lines[0]


def command(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """Start the program in a process of its own."""
    code = "import sys; from tangentless.cli import main; sys.argv[0] = 'tangentless'; main()"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if os.name != "nt":
        options["preexec_fn"] = hear_interrupts
    return subprocess.Popen(words, **pipes, text=True, **options)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with images and labels in every form."""
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "y.npy", LABELS)
    np.savez(tmp_path / "both.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "one.npz", images=IMAGES)
    return tmp_path


# Help


@pytest.mark.parametrize(
    "name", ["demo", "kernel", "fit", "predict", "describe", "bench", "gram", "compare", "reproduce"]
)
def test_every_command_has_help(name: str):
    assert name in succeed("--help")
    usage = next(line for line in succeed(name, "--help").splitlines() if "Usage" in line)
    assert "[[" not in usage  # optional arguments have one pair of brackets


def test_help_imports_nothing_heavy():
    heavy = {"numba", "sklearn", "scipy", "matplotlib"}
    code = f"import sys, tangentless.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_next_steps_name_a_program_that_the_shell_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from tangentless.cli import _program

    program = tmp_path / "tangentless"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", "")
    assert _program(".venv/bin/tangentless") == ".venv/bin/tangentless"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _program(str(program)) == "tangentless"


def test_version():
    assert succeed("--version").split() == ["tangentless", tl.__version__]


# kernel


@pytest.mark.parametrize("source", ["x.npy", "one.npz", "both.npz:images"])
def test_kernel_writes_the_matrix(data: Path, source: str):
    output = data / "K.npy"
    text = succeed("kernel", TEXT, data / source, "--output", output, *SLOW)
    assert "12 × 12" in text
    K = np.load(output)
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K, tl.kernel(TEXT)(IMAGES, backend="reference"))


def test_kernel_of_two_sets_by_key_mirrored_in_float64(data: Path):
    output = data / "K.npy"
    arguments = ("--key", "images", "--symmetry", "mirror", "--precision", "float64", "--jobs", 1, "--backend", "cpu")
    succeed("kernel", TEXT, data / "both.npz", data / "both.npz", "-o", output, *arguments)
    exact = tl.kernel(TEXT).mirrored()(IMAGES, IMAGES, backend="reference")
    np.testing.assert_allclose(np.load(output), exact, atol=1e-12)


def test_kernel_takes_mirrored_beside_a_symmetry(data: Path):
    output = data / "K.npy"
    succeed("kernel", TEXT, data / "x.npy", "-o", output, "--mirrored", "--symmetry", "rotations", *SLOW)
    exact = tl.kernel(TEXT).symmetrized("mirror rotations")(IMAGES, backend="reference")
    np.testing.assert_array_equal(np.load(output), exact)


def test_kernel_refuses_to_overwrite_unless_forced(data: Path):
    output = data / "K.npy"
    output.write_text("precious")
    assert "--force" in refuse("kernel", TEXT, data / "x.npy", "-o", output, *SLOW)
    assert output.read_text() == "precious"
    succeed("kernel", TEXT, data / "x.npy", "-o", output, "--force", *SLOW)
    assert np.load(output).shape == (12, 12)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(data: Path, monkeypatch: pytest.MonkeyPatch):
    output = data / "K.npy"
    output.write_text("precious")
    before = sorted(data.iterdir())

    def full_disk(stream: Any, array: Any, **options: Any) -> None:
        stream.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.np, "save", full_disk)
    assert "No space left" in refuse("kernel", TEXT, data / "x.npy", "-o", output, "--force", *SLOW)
    assert output.read_text() == "precious"
    assert sorted(data.iterdir()) == before


def test_a_new_file_has_ordinary_permissions(data: Path):
    succeed("kernel", TEXT, data / "x.npy", "-o", data / "K.npy", *SLOW)
    assert (data / "K.npy").stat().st_mode == (data / "x.npy").stat().st_mode


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("conv3 rulu", "x.npy"), "did you mean 'relu'"),
        (("conv3 relu", "x.npy"), "add globalpool"),
        (("conv3 relu pool3 globalpool", "x.npy"), "does not divide"),
        ((TEXT, "nowhere.npy"), "No such file"),
        ((TEXT, "."), ". is a folder; give a .npy file"),
        (("kernel('nothing')", "x.npy"), "unknown layer"),
        ((TEXT, "text.npy"), "not a .npy or .npz file"),
        ((TEXT, "empty.npy"), "not a .npy or .npz file"),
        ((TEXT, "cut.npy"), "cut.npy"),
        ((TEXT, "cut.npz"), "cut.npz"),
        ((TEXT, "objects.npy"), "Python objects"),
        ((TEXT, "number.npy"), "one number"),
        ((TEXT, "words.npy"), "dtype"),
        ((TEXT, "nan.npy"), "NaN"),
        ((TEXT, "none.npy"), "empty"),
        ((TEXT, "both.npz"), "say which"),
        ((TEXT, "both.npz:pictures"), "'pictures' is not among them"),
        ((TEXT, "both.npz", "--key", "pictures"), "'pictures' is not among them"),
        ((TEXT, "x.npy", "other.npy"), "differ in shape"),
        ((TEXT, "x.npy", "--backend", "abacus"), "unknown backend"),
        ((TEXT, "x.npy", "--precision", "float16"), "precision"),
        ((TEXT, "x.npy", "--jobs", "0", "--backend", "cpu"), "--jobs is a number"),
        ((TEXT, "x.npy", "--output", "no/folder/K.npy"), "no folder"),
        ((TEXT, "x.npy", "--output", "."), "is a folder"),
    ],
)
def test_kernel_refuses_bad_input(
    data: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], complaint: str
):
    monkeypatch.chdir(data)
    Path("text.npy").write_text("0.5 0.25")
    Path("empty.npy").write_bytes(b"")
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-100])
    Path("cut.npz").write_bytes(Path("one.npz").read_bytes()[:-100])
    np.save("objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.save("number.npy", np.array(3.0))
    np.save("words.npy", np.array(["a", "b"]))
    np.save("nan.npy", np.where(np.arange(12)[:, None, None, None] == 3, np.nan, IMAGES))
    np.save("none.npy", IMAGES[:0])
    np.save("other.npy", IMAGES[..., :1])
    before = sorted(data.iterdir())
    assert complaint in refuse("kernel", *arguments)
    assert sorted(data.iterdir()) == before


def test_a_warning_is_one_line_too(tmp_path: Path):
    np.save(tmp_path / "x.npy", IMAGES[..., 0])
    lines = succeed("kernel", "conv3 relu globalpool", tmp_path / "x.npy", "-o", tmp_path / "K.npy", *SLOW).splitlines()
    assert sum(line.startswith("Note: ") for line in lines) == 1
    assert "channel axis" in lines[0]


# fit and predict


@pytest.mark.parametrize("flips", [(), ("--flips",)])
def test_fit_then_predict(data: Path, flips: tuple[str, ...]):
    model, output = data / "model.npz", data / "predicted.npy"
    text = succeed("fit", TEXT, data / "both.npz:images", data / "both.npz:labels", "-o", model, *flips, *SLOW)
    estimator = tl.KernelRidgeClassifier(TEXT, flips=bool(flips), backend="reference").fit(IMAGES, LABELS)
    assert f"leave-one-out accuracy {100 * estimator.loo_score_:.2f} %" in text
    text = succeed("predict", model, data / "x.npy", "-o", output, "--labels", data / "y.npy", *SLOW)
    np.testing.assert_array_equal(np.load(output), estimator.predict(IMAGES))
    assert "accuracy 100.00 % on 12 images" in text


def test_labels_may_be_words(data: Path):
    words = np.array(["cat", "dog", "emu"])[LABELS]
    np.save(data / "words.npy", words)
    succeed("fit", TEXT, data / "x.npy", data / "words.npy", "-o", data / "model.npz", *SLOW)
    succeed("predict", data / "model.npz", data / "x.npy", "-o", data / "predicted.npy", *SLOW)
    np.testing.assert_array_equal(np.load(data / "predicted.npy"), words)
    assert "labels are int64" in refuse(
        "predict", data / "model.npz", data / "x.npy", "--labels", data / "y.npy", *SLOW
    )


def test_regression(data: Path):
    np.save(data / "y.npy", IMAGES.mean(axis=(1, 2, 3)))
    model = data / "model.npz"
    text = succeed("fit", TEXT, data / "x.npy", data / "y.npy", "-o", model, "--regression", "--ridge", 1e-8, *SLOW)
    assert "leave-one-out R²" in text
    assert "R² 1.0000" in succeed("predict", model, data / "x.npy", "--labels", data / "y.npy", *SLOW)
    np.save(data / "short.npy", LABELS[:-1])
    assert "must match" in refuse("predict", model, data / "x.npy", "--labels", data / "short.npy", *SLOW)


def test_a_regression_of_several_numbers_names_a_column_for_each(data: Path):
    np.save(data / "y.npy", IMAGES.mean(axis=(1, 2)))
    model = data / "model.npz"
    succeed("fit", TEXT, data / "x.npy", data / "y.npy", "-o", model, "--regression", *SLOW)
    heads, first, *_ = succeed("predict", model, data / "x.npy", *SLOW).splitlines()
    assert heads.split(",") == ["file", *(f"predicted {n}" for n in range(1, first.count(",") + 1))]


def test_every_command_reads_the_text_of_a_kernel_as_search_prints_it(data: Path):
    rows = IMAGES.reshape(len(IMAGES), -1)
    np.save(data / "rows.npy", rows)
    succeed("kernel", "Gaussian(gamma=0.1)", data / "rows.npy", "-o", data / "K.npy")
    np.testing.assert_array_equal(np.load(data / "K.npy"), Gaussian(0.1)(rows))
    assert "kernel('relu')" in succeed("search", data / "rows.npy", data / "y.npy", "relu")
    for text in ("Gaussian(gamma=0.1)", "0.5 * kernel('relu') + NTK(depth=2, fixed=0)"):
        succeed("fit", text, data / "rows.npy", data / "y.npy", "-o", data / "model", "--force")
        assert repr(load_model(data / "model").kernel) == text
    succeed("gram", "run", "Gaussian(gamma=0.1)", data / "rows.npy", data / "store")
    assert "Gaussian(gamma=0.1)" in succeed("gram", "status", data / "store")
    assert "NTK(depth=2, fixed=0) has none" in refuse("describe", "NTK(2)")


def test_a_wrong_architecture_is_refused_before_photographs_are_read(tmp_path: Path):
    refused = refuse("fit", "myrtel5", tmp_path, "-o", tmp_path / "model")
    assert "did you mean 'myrtle5'?" in refused
    assert "--size" not in refused


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fit", TEXT, "x.npy", "y.npy", "--ridge", "-1"), "ridge"),
        (("fit", TEXT, "x.npy", "short.npy"), "inconsistent numbers of samples"),
        (("fit", TEXT, "x.npy", "floats.npy"), "continuous"),
        (("fit", TEXT, "x.npy", "floats.npy"), "with --regression"),
        (("fit", TEXT, "x.npy", "words.npy", "--regression"), "real numbers"),
        (("fit", TEXT, "twins.npy", "y.npy", "--ridge", "0"), "duplicates"),
    ],
)
def test_fit_refuses_bad_input(data: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], complaint: str):
    monkeypatch.chdir(data)
    np.save("short.npy", LABELS[:-1])
    np.save("floats.npy", LABELS + 0.5)
    np.save("words.npy", np.array(["cat", "dog", "emu"])[LABELS])
    np.save("twins.npy", np.concatenate([IMAGES[:6], IMAGES[:6]]))
    assert complaint in refuse(*arguments, "-o", "model.npz", *SLOW)
    assert not Path("model.npz").exists()


def test_predict_refuses_bad_input(data: Path):
    model = data / "model.npz"
    succeed("fit", TEXT, data / "x.npy", data / "y.npy", "-o", model, *SLOW)
    np.save(data / "grey.npy", IMAGES[..., :1])
    assert "was fitted to rows of shape (4, 4, 2)" in refuse("predict", model, data / "grey.npy", "-o", data / "p.npy")
    assert "no header" in refuse("predict", data / "one.npz", data / "x.npy", "-o", data / "p.npy")
    assert "not a .npz file, as every tangentless model is" in refuse(
        "predict", data / "x.npy", data / "x.npy", "-o", data / "p.npy"
    )
    assert not (data / "p.npy").exists()


# Photographs


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """`photos`: a folder of red and one of blue pictures, and a stray file. `new`: unlabelled pictures."""
    generator = np.random.default_rng(0)
    for name, channel in (("blue sky", 2), ("roses", 0)):
        for folder, count in ((tmp_path / "photos" / name, 5), (tmp_path / "new", 2)):
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = generator.integers(0, 100, (20, 30, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / f"{name[0]}{number}.png")
    (tmp_path / "photos" / "roses" / "Thumbs.db").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("options", [("--zca",), ("--patch", 3), ("--zca", "--color", "grey"), ()])
def test_folders_of_photographs_become_a_model_and_a_table(photographs: Path, options: tuple[Any, ...]):
    model, table = photographs / "model", photographs / "out.csv"
    fitted = ("fit", TEXT, photographs / "photos", "--size", 8, "--flips", "--ridge", "loo", "-o", model)
    text = succeed(*fitted, *options, *SLOW)
    assert "on 10 images, ridge" in text
    # The photographs have no labels.
    assert "accuracy" not in succeed("predict", model, photographs / "new", "--csv", table, *SLOW)
    rows = list(csv.reader(table.open()))
    assert rows[0] == ["file", "predicted", "p(blue sky)", "p(roses)"]
    assert [row[0] for row in rows[1:]] == ["b0.png", "b1.png", "r0.png", "r1.png"]
    if "grey" not in options:
        assert [row[1] for row in rows[1:]] == ["blue sky", "blue sky", "roses", "roses"]
    for row in rows[1:]:
        assert abs(float(row[2]) + float(row[3]) - 1) < 1e-5
    assert "accuracy" in succeed("predict", model, photographs / "photos", "--csv", table, "--force", *SLOW)


def test_without_a_place_for_predictions_the_table_is_printed(photographs: Path):
    model, table, rose = photographs / "model", photographs / "out.csv", photographs / "new" / "r0.png"
    succeed("fit", TEXT, photographs / "photos", "--size", 8, "-o", model, *SLOW)
    succeed("predict", model, rose, "--csv", table, *SLOW)
    assert "\nr0.png,roses," in table.read_text() == succeed("predict", model, rose, *SLOW)
    shown = run("predict", model, photographs / "photos", *SLOW)
    assert (shown.stdout.count("\n"), "accuracy" in shown.stderr) == (11, True)  # the table alone on standard output


def test_files_that_cannot_be_read_are_named_or_skipped_and_listed(photographs: Path):
    (photographs / "photos" / "roses" / "bad.jpg").write_text("not an image")
    arguments = ("fit", TEXT, photographs / "photos", "--size", "8x12", "-o", photographs / "model", *SLOW)
    assert "bad.jpg cannot be read as an image" in refuse(*arguments)
    assert "Skipped" in (text := succeed(*arguments, "--skip"))
    assert "bad.jpg: cannot identify" in text
    assert "on 10 images" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fit", TEXT, "photos", "y.npy"), "leave out Y"),
        (("fit", TEXT, "photos", "--regression"), "leave out Y"),
        (("fit", TEXT, "x.npy"), "there is no x.npy"),
        (("fit", TEXT, "new/b0.png"), "give labels too"),
        (("fit", "photos", TEXT), "the architecture comes first"),
        (("fit", TEXT, "photos", "--size", "large"), "a size is a number of pixels"),
        (("fit", TEXT, "photos", "--size", "0"), "from 1 to 4096"),
        (("fit", TEXT, "photos", "--size", "9"), "or choose another --size than 9"),
        (("fit", TEXT, "photos", "--ridge", "small"), "a number or loo"),
        (("fit", TEXT, "photos", "--patch", "99"), "at least 99×99"),
        (("fit", TEXT, "new"), "has no folders"),
    ],
)
def test_bad_arguments_for_photographs_are_refused(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], complaint: str
):
    monkeypatch.chdir(photographs)
    assert complaint in refuse(*arguments, "-o", "model", *SLOW)


def test_photographs_for_a_model_of_something_else_are_refused(photographs: Path, data: Path):
    succeed("fit", TEXT, data / "x.npy", data / "y.npy", "-o", data / "model", *SLOW)
    assert "rows of shape (4, 4, 2)" in refuse("predict", data / "model", photographs / "new", "--csv", data / "t.csv")


def test_a_place_that_may_not_be_written_is_one_line(data: Path, monkeypatch: pytest.MonkeyPatch):
    def denied(self: Path, *given: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", denied)  # as in a folder that may not be entered
    line = refuse("kernel", TEXT, data / "x.npy", "-o", "/secret/K.npy", *SLOW)
    assert "Permission denied" in line
    assert "secret" in line


# describe and bench


@pytest.mark.parametrize("text", [*NAMED, "conv3 relu sum(conv5 relu | residual(gaussian)) pool2 relu globalpool"])
def test_work_by_layer_adds_up_to_the_work_of_the_graph(text: str):
    graph = compile_graph(Architecture.parse(text), (16, 8), 1)
    rows = layer_rows(graph)
    assert sum(row.work for row in rows) == graph.elements
    assert rows[-1].sees == (16, 8)


def test_describe_shows_layers_path_and_memory():
    text = succeed("describe", "myrtle10", "--images", 1000, "--no-measure")
    assert text.count("relu") == 10
    assert "3,354,624" in text
    assert "cpu: fused" in text
    assert "500,500 pairs" in text
    assert "8.0 MB" in text
    assert "not measured" in text


@pytest.mark.parametrize(("shape", "kind"), [("32,32,3", "images"), ("32,32", "sequences"), ("32", "vectors")])
def test_describe_says_what_a_shape_is_read_as(shape: str, kind: str):
    architecture = "relu" if kind == "vectors" else TEXT
    text = succeed("describe", architecture, "--shape", shape, "--no-measure")
    assert f"on {kind} of {shape.replace(',', '×')}" in text


def test_describe_predicts_time_here():
    text = succeed("describe", TEXT, "--shape", "8x8x1", "--images", 100)
    assert "measured just now" in text
    assert "not measured" not in text


@pytest.mark.parametrize("shape", ["", "a,b", "32,0,3", "1,2,3,4", "-1,2,3"])
def test_describe_refuses_bad_shapes(shape: str):
    assert "shape" in refuse("describe", "myrtle5", f"--shape={shape}")


def test_bench_refuses_a_place_it_cannot_write_before_it_measures(tmp_path: Path):
    # The architecture is wrong too, so the error shows that the output is checked first.
    assert "there is no folder" in refuse("bench", "no such layers", "--output", tmp_path / "nowhere" / "bench.json")


def test_bench_measures_every_architecture(tmp_path: Path):
    output = tmp_path / "bench.json"
    text = succeed("bench", TEXT, "myrtle5", "--shape", "8,8,1", "--seconds", 0.02, "--output", output)
    assert "myrtle5" in text
    content = json.loads(output.read_text())
    assert content["shape"] == [8, 8, 1]
    assert {row["architecture"] for row in content["rows"]} == {TEXT, "myrtle5"}
    for row in content["rows"]:
        assert row["pairs_per_second"] > 0
        assert row["error"] < 1e-7
        assert row["not_finite"] == 0
    assert content["environment"]["cores"] >= 1


def test_bench_takes_other_backends():
    assert "0e+00" in succeed("bench", TEXT, "--shape", "4,4,1", "--seconds", 0.02, "--backend", "reference")


def test_bench_on_cuda_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # what Python does with a module that cannot be imported
    assert "pip install 'tangentless[cuda13]'" in refuse("bench", "--backend", "cuda")


def test_bench_on_cuda_is_of_one_precision():
    assert "float32" in refuse("bench", "--backend", "cuda", "--precision", "float64")


def test_bench_takes_images_for_cuda_only(data: Path):
    assert "--backend cuda" in refuse("bench", TEXT, "--images", data / "x.npy")


# demo


def test_demo_reads_digits(tmp_path: Path):
    folder = tmp_path / "new" / "demo"
    text = succeed("demo", "--output", folder)
    accuracy = float(text.split("test accuracy")[1].split("%")[0])
    assert accuracy >= 98
    assert "  tangentless fit" in text
    picture = (folder / "digits.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert np.load(folder / "train_images.npy").shape == (1000, 8, 8, 1)
    assert len(np.load(folder / "test_labels.npy")) == 797


def test_demo_refuses_what_does_not_fit_digits(tmp_path: Path):
    assert "does not divide" in refuse("demo", "-o", tmp_path, "--kernel", "conv3 relu pool3 globalpool")


# Errors


def test_other_errors_keep_their_traceback(data: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(files, "save_array", broken)
    result = run("kernel", TEXT, data / "x.npy", "-o", data / "K.npy", *SLOW)
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_real_process_fails_with_one_line_and_status_2(tmp_path: Path):
    process = command("kernel", "myrtle5", tmp_path / "nowhere.npy", "-o", tmp_path / "K.npy")
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 2
    assert output == ""
    assert errors == f"Error: cannot read {tmp_path / 'nowhere.npy'}: No such file or directory\n"


def test_a_real_process_is_quiet_and_writes_the_matrix(data: Path):
    process = command("kernel", TEXT, data / "x.npy", "-o", data / "K.npy", *SLOW)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0
    assert errors == ""
    assert output.startswith(str(data / "K.npy"))
    assert np.load(data / "K.npy").shape == (12, 12)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_an_interrupt_is_one_line_and_status_130(tmp_path: Path):
    pipe = tmp_path / "x.npy"
    os.mkfifo(pipe)
    process = command("kernel", TEXT, pipe, "-o", tmp_path / "K.npy")
    writer, deadline = None, time.monotonic() + 600
    while writer is None and process.poll() is None and time.monotonic() < deadline:
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # succeeds once the command has opened the pipe
        except OSError:
            time.sleep(0.05)
    assert writer is not None
    process.send_signal(signal.SIGINT)
    os.close(writer)  # ends the read, so that an interrupt that came before it is seen
    output, errors = process.communicate(timeout=600)
    assert (process.returncode, output, errors) == (130, "", "Interrupted.\n")
