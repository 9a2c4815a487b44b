"""The first hour of a user with a folder of photographs, from the first command to predictions, mistakes included."""

import csv
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import get_data_path
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline

import tangentless as tl
from tangentless import KernelRidgeClassifier, KernelSVC
from tangentless.datasets import from_folder
from tangentless.errors import NotPositiveDefinite, ParameterError
from tangentless.files import OutputError
from tangentless.inputs import check_images
from tangentless.kernel import Kernel
from tangentless.models import load_model, save_model
from tangentless.preprocessing import ZCA

ROOT = Path(__file__).parents[1]
ARCHITECTURE = "conv3 relu pool4 conv3 relu globalpool normalize relu"
CLASSES = ("hopper", "china", "flower")
pytestmark = pytest.mark.filterwarnings("ignore:.*few to whiten by")


def tangentless(*arguments, **options):
    """Run the program in a process of its own; returns its outcome."""
    command = [sys.executable, "-m", "tangentless", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def succeed(*arguments, **options):
    done = tangentless(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Crops of three photographs: 20 labelled and four unlabelled ones of each, and files that are no images."""
    folder = tmp_path_factory.mktemp("home")
    hopper = Image.open(Path(get_data_path(), "sample_data", "grace_hopper.jpg")).convert("RGB")
    pictures = [hopper, *map(Image.fromarray, load_sample_images().images)]
    generator = np.random.default_rng(0)
    for name, picture in zip(CLASSES, pictures, strict=True):
        for place in (folder / "photos" / name, folder / "photos-new"):
            place.mkdir(parents=True, exist_ok=True)
        for number in range(24):
            left, top = (int(generator.integers(0, side - 128)) for side in picture.size)
            place = folder / "photos" / name if number < 20 else folder / "photos-new"
            picture.crop((left, top, left + 128, top + 128)).save(place / f"{name}-{number:02}.jpg", quality=90)
    (folder / "photos" / "china" / "Thumbs.db").write_bytes(b"\0" * 99)
    (folder / "photos-new" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return folder


@pytest.fixture(scope="module")
def photographs(home):
    images, labels, classes = from_folder(home / "photos", size=32)
    assert (images.shape, np.bincount(labels).tolist(), classes) == ((60, 32, 32, 3), [20] * 3, tuple(sorted(CLASSES)))
    return images, np.array(classes)[labels]


def test_a_first_call_says_on_the_terminal_that_it_compiles_and_keeps_what_it_compiled(tmp_path):
    call = "tl.kernel('conv1 polynomial2 globalpool')(np.ones((2, 3, 3, 1)))"
    command = [sys.executable, "-c", f"import numpy as np, tangentless as tl\n{call}\nprint('done')"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = []
    for _ in range(2):
        ours, theirs = pty.openpty()
        subprocess.run(command, env=environment, stdout=theirs, stderr=theirs, check=True)
        told.append(os.read(ours, 10_000).decode())
        os.close(ours)
        os.close(theirs)
    assert "compiling for this processor (once per kind of kernel, about" in told[0]
    assert "compiling" not in told[1]  # compiled code came from the disk
    assert all(text.rstrip().endswith("done") for text in told)
    indices, codes = (sorted(path.name for path in tmp_path.rglob(f"leaves.*.{end}")) for end in ("nbi", "nbc"))
    assert len(indices) == len(codes) > 3  # one file a leaf: processes may compile at once


def test_the_command_line_goes_from_folders_to_predictions(home):
    model, table = home / "model", home / "out.csv"
    options = ("--size", 16, "--zca", "--flips", "--ridge", "loo", "-o", model)
    told = succeed("fit", ARCHITECTURE, home / "photos", *options)
    assert re.search(r"leave-one-out accuracy \d+\.\d+ % on 60 images, ridge", told)
    assert model.stat().st_size < 1e6
    failed = tangentless("predict", model, home / "photos-new", "--csv", table)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert "broken.jpg cannot be read as an image" in failed.stderr
    done = tangentless("predict", model, home / "photos-new", "--csv", table, "--skip")
    assert "Skipped" in done.stderr
    rows = list(csv.DictReader(table.open()))
    assert [row["file"] for row in rows] == sorted(file.name for file in (home / "photos-new").glob("*-*.jpg"))
    for row in rows:
        assert row["predicted"] in CLASSES
        assert abs(sum(float(row[f"p({name})"]) for name in CLASSES) - 1) < 1e-4


def test_patches_whiten_few_photographs_well(home):
    model, table = home / "patches", home / "patches.csv"
    succeed("fit", ARCHITECTURE, home / "photos", "--patch", 4, "--ridge", "loo", "-o", model)
    tangentless("predict", model, home / "photos-new", "--csv", table, "--skip", check=True)
    right = [row["file"].startswith(row["predicted"]) for row in csv.DictReader(table.open())]
    assert np.mean(right) >= 0.75  # of 12; a third would be chance


def test_a_search_with_whitening_computes_no_more_than_it_must(photographs, monkeypatch):
    computed, on_device = [], Kernel.on_device

    def counting(self, device, X, Z=None, **options):
        computed.append(len(X) * (len(X) + 1) // 2 if Z is None else len(X) * len(Z))
        return on_device(self, device, X, Z, **options)

    monkeypatch.setattr(Kernel, "on_device", counting)
    pipeline = make_pipeline(ZCA(), KernelRidgeClassifier(ARCHITECTURE))
    grid = {"zca__epsilon": [1e-3, 1e-2, 1e-1], "kernelridgeclassifier__ridge": [1e-4, 1e-2]}
    images, labels = photographs
    search = GridSearchCV(pipeline, grid, cv=3).fit(images[:, ::2, ::2], labels)
    assert search.best_score_ > 0.5
    assert sum(computed) == 18 * (40 * 41 // 2 + 40 * 20) + 60 * 61 // 2  # 18 fits and predictions, and the final fit


@pytest.mark.parametrize("patch", [None, 4])
def test_a_model_of_42_photographs_is_small_and_comes_back(photographs, home, patch):
    images, labels = photographs[0][9:51], photographs[1][9:51]
    whitening = ZCA(mirrors=True, patch=patch)
    model = make_pipeline(whitening, KernelRidgeClassifier(ARCHITECTURE, flips=True)).fit(images, labels)
    path = home / f"small-{patch}.npz"
    save_model(path, model)
    assert path.stat().st_size < 200_000
    few = images[::6]
    np.testing.assert_array_equal(load_model(path).predict_proba(few), model.predict_proba(few))
    with pytest.raises(OutputError, match="overwrite it with force=True"):
        save_model(path, model)


def test_defaults_read_digits():
    digits, names = load_digits(return_X_y=True)
    split = train_test_split(digits.reshape(-1, 8, 8, 1), names, train_size=500, test_size=300, random_state=0)
    train, test, labels, truth = split
    for model in (KernelSVC(), KernelRidgeClassifier()):
        assert model.fit(train, labels).score(test, truth) >= 0.97


def test_describe_counts_lanes_and_threads():
    told = succeed("describe", "conv3 relu pool4 conv3 relu globalpool", "--shape", "16,16,3", "--images", 48)
    assert "measured just now" in told
    assert "1,176 pairs" in told


def test_wrong_axes_are_named(photographs):
    k, images = tl.kernel(ARCHITECTURE), photographs[0][:2]
    for given, remedy in (
        (images.transpose(0, 3, 1, 2), "channels come first"),
        (images[0], "a single image is"),
        (images[..., 0], "add a channel axis"),
    ):
        with pytest.warns(UserWarning, match=remedy):
            check_images(given)
    assert k(images).shape == (2, 2)


def test_advice_is_right(photographs):
    images, labels = photographs[0][::4], photographs[1][::4]
    near = images.astype(np.float64)
    near = np.concatenate([near, near + 1e-3 * np.random.default_rng(0).standard_normal(near.shape)])
    model = KernelRidgeClassifier(ARCHITECTURE, ridge=0)
    with pytest.raises(NotPositiveDefinite, match="precision='float64'"):
        model.fit(near, np.concatenate([labels, labels]))
    with pytest.raises(ParameterError, match="flips must be True or False"):
        KernelRidgeClassifier(ARCHITECTURE, flips="no").fit(images, labels)


def test_the_readme_says_how_to_begin():
    text = (ROOT / "README.md").read_text()
    for words in ("pip install", "tangentless fit", "photos/", "--csv", "AVX2", "AVX-512", "H200"):
        assert words in text
