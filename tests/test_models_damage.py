"""Model files that are damaged, forged or made by something else: they are refused, or give a model that predicts."""

from __future__ import annotations

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from tangentless.errors import InputError
from tangentless.estimators import KernelRidgeClassifier
from tangentless.models import load_model, save_model
from tangentless.preprocessing import ZCA, Standardize
from tangentless.processes import GaussianProcessClassifier, GaussianProcessRegressor
from test_models import CLASSES, IMAGES, PHOTOGRAPHS, TEXT, classifier, rewrite

pytestmark = pytest.mark.filterwarnings("ignore:.*few to whiten by")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"header": {"format": "other"}}, "names another format"),
        ({"header": {"version": 4}}, "version 4"),
        ({"header": {"kind": "oracle"}}, "oracle"),
        ({"header": {"kind": None}}, "it is a None"),
        ({"header": {"kernel": "kernel('conv3 rulu globalpool')"}}, "relu"),
        ({"header": {"kernel": "kernel('conv3 relu pool3 globalpool')"}}, "does not divide"),
        ({"header": {"kernel": "print('here')"}}, "there is no kernel print"),
        ({"header": {"kernel": "kernel('relu' * 100000000000)"}}, "no sum or product of kernels"),
        ({"header": {"kernel": "(3).mirrored()"}}, "cannot be read"),
        ({"header": {"kernel": "(" * 3000 + ")" * 3000}}, "cannot be read"),
        ({"header": {"kernel": 3}}, "'kernel'"),
        ({"header": {"tilt": "much"}}, "tilt"),
        ({"header": {"tilt_": None}}, "'tilt_'"),
        ({"header": {"scale_": float("inf")}}, "'scale_'"),
        ({"header": {"class_weight": 7}}, "'class_weight'"),
        ({"header": {"preprocessing": [{"epsilon": 1}]}}, "'preprocessing'"),
        ({"header": {"preprocessing": [{"epsilon": 1, "mirrors": False}]}}, "'whitening0'"),
        ({"header": {"ridge": -1}}, "ridge"),
        ({"header": {"ridge": True}}, "ridge"),
        ({"header": {"flips": 1}}, "'flips'"),
        ({"header": {"precision": "float8"}}, "'precision'"),
        ({"header": {"precision": ["float32"]}}, "'precision'"),
        ({"header": {"shape": [4, 4, 3]}}, "shape"),
        ({"header": None}, "no header"),
        ({"images": None}, "'images'"),
        ({"images": IMAGES[:-1]}, "14 images"),
        ({"images": np.full_like(IMAGES, np.nan)}, "NaN"),
        ({"images": IMAGES.astype(complex)}, "images.npy holds neither"),
        ({"coefficients": None}, "'coefficients'"),
        ({"coefficients": np.zeros((15, 2))}, "classes"),
        ({"coefficients": np.full((15, 3), np.inf)}, "infinite"),
        ({"coefficients": np.zeros(15)}, "classes"),
        ({"leave_one_out": np.zeros((15, 5))}, "leave_one_out"),
        ({"leave_one_out": np.array(1.0)}, "leave_one_out"),
        ({"classes": None}, "'classes'"),
        ({"classes": np.array([0, 1, 1])}, "distinct"),
        ({"classes": np.array([[0, 1, 2]])}, "'classes'"),
    ],
)
def test_a_malformed_model_is_refused_by_name(path: Path, changes: dict[str, Any], complaint: str):
    save_model(path, classifier())
    if "header" in changes and changes["header"] is None:
        with np.load(path) as archive:
            np.savez(path.with_name("bare.npz"), **{name: archive[name] for name in archive.files if name != "header"})
        path.with_name("bare.npz").replace(path)
    else:
        rewrite(path, **changes)
    with pytest.raises(InputError, match=complaint) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04 and so on", b"{}", b"\x93NUMPY\x01\x00"])
def test_what_is_no_archive_is_refused(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.npz"):
        load_model(path)


def test_an_archive_with_pickled_objects_is_refused(path: Path):
    np.savez(path, header=np.array({"format": "tangentless model"}, dtype=object))
    with pytest.raises(InputError, match="Python objects"):
        load_model(path)


def mutate(good: bytes, generator: np.random.Generator) -> bytes:
    """Apply one to three random changes: flip bits, change bytes, or cut, repeat, swap or insert a range."""
    data = bytearray(good)
    for _ in range(generator.integers(1, 4)):
        place, other = (int(value) for value in generator.integers(0, max(1, len(data)), 2))
        length = int(generator.choice([1, 2, 8, 64, 1000]))
        match int(generator.integers(0, 7)):
            case 0:
                data[place : place + 1] = bytes([data[place] ^ (1 << int(generator.integers(0, 8)))]) if data else b""
            case 1:
                data[place : place + length] = generator.bytes(length)
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[other : other + length]
            case 4:
                data[place:place] = generator.bytes(length)
            case 5:
                del data[place:]
            case 6:
                data[place : place + 4] = bytes(generator.choice([b"\xff" * 4, b"\0" * 4, b"PK\x03\x04", b"\x93NUM"]))
    return bytes(data)


def load_or_refuse(path: Path) -> Any:
    with contextlib.suppress(InputError):
        return load_model(path, backend="reference")
    return None


def test_a_thousand_mutated_files_are_refused_or_give_the_right_model(path: Path):
    model = make_pipeline(ZCA(1e-2), classifier()).fit(IMAGES, CLASSES)
    save_model(path, model)
    good, generator = path.read_bytes(), np.random.default_rng(1)
    refused = 0
    for _ in range(1200):
        path.write_bytes(mutate(good, generator))
        loaded = load_or_refuse(path)
        refused += loaded is None
        if loaded is not None:
            np.testing.assert_array_equal(loaded[0].whitening_, model[0].whitening_)
            np.testing.assert_array_equal(loaded[1].dual_coef_, model[1].dual_coef_)
            np.testing.assert_array_equal(loaded[1].X_fit_, model[1].X_fit_)
            np.testing.assert_array_equal(loaded[1].classes_, model[1].classes_)
            assert (repr(loaded[1].kernel), loaded[1].scale_) == (f"kernel('{TEXT}')", model[1].scale_)
    assert refused > 1000


STRANGE = (
    None,
    True,
    -1,
    0,
    1e300,
    float("nan"),
    2**70,
    10**400,
    "",
    "loo",
    "x" * 2000,
    [],
    [[]],
    {},
    {"a": 1},
    [1, "b"],
)


def test_forged_headers_are_refused_or_give_a_model_that_predicts(path: Path):
    save_model(path, classifier())
    good, generator = path.read_bytes(), np.random.default_rng(2)
    names = sorted(json.loads(str(np.load(path)["header"])))
    for name in names:
        for value in STRANGE:
            path.write_bytes(good)
            rewrite(path, header={name: value})
            load_or_refuse(path)
    arrays = [np.zeros(0), np.zeros((0, 3)), np.array(3), np.array("text"), IMAGES[:2], np.full((15, 3), np.nan)]
    for name in ("images", "coefficients", "leave_one_out", "classes", "extra"):
        for array in [*arrays, generator.integers(0, 9, (15, 3)), generator.standard_normal((15, 3))]:
            path.write_bytes(good)
            rewrite(path, **{name: array})
            loaded = load_or_refuse(path)
            if loaded is not None:
                assert len(loaded.predict(IMAGES[:2])) == 2


def test_a_small_file_cannot_unpack_to_a_large_one(path: Path):
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header + shape)
    with pytest.raises(InputError, match=r"of shape \(100000000000,\)"):
        load_model(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(10_000_000))
    assert path.stat().st_size < 20_000
    with pytest.raises(InputError, match="compressed"):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"header": {"noise_": -1}}, "ridge"),
        ({"header": {"noise": "much"}}, "'noise'"),
        ({"header": {"scale": 0}}, "scale"),
        ({"factor": np.ones(10)}, "a packed factor of 15 rows has 120"),
        ({"factor": np.full(120, np.nan)}, "NaN"),
        ({"factor": -np.ones(120)}, "positive numbers on its diagonal"),
        ({"factor": None}, "'factor'"),
        ({"targets": np.ones(14)}, "K has 15 rows, but Y has 14"),
        ({"targets": np.zeros(15), "scales": None}, "no scale"),
        ({"scales": np.zeros(1)}, "no scale"),
        ({"scales": np.ones(2)}, r"scales of shape \(2,\) do not go with targets"),
    ],
)
def test_a_forged_gaussian_process_is_refused(path: Path, changes: dict[str, Any], complaint: str):
    save_model(path, GaussianProcessRegressor(TEXT, backend="reference").fit(IMAGES, IMAGES.mean(axis=(1, 2, 3))))
    rewrite(path, **changes)
    with pytest.raises(InputError, match=complaint):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"header": {"concentration_": 3}}, "concentration"),
        ({"header": {"concentration": None}}, "'concentration'"),
        ({"header": {"scale_": -1}}, "scale"),
        ({"codes": np.full(15, 3)}, "codes"),
        ({"codes": np.full(15, -1)}, "codes"),
        ({"codes": np.zeros(3, int)}, "codes"),
        ({"factor": np.full(120, 1e-3)}, "not that of a kernel matrix"),
    ],
)
def test_a_forged_gaussian_process_classifier_is_refused(path: Path, changes: dict[str, Any], complaint: str):
    save_model(path, GaussianProcessClassifier(TEXT, backend="reference").fit(IMAGES, CLASSES))
    rewrite(path, **changes)
    with pytest.raises(InputError, match=complaint):
        load_model(path)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        (PHOTOGRAPHS[:, :8], "rows of shape"),
        (PHOTOGRAPHS[:40], "40 images"),
        (np.full(PHOTOGRAPHS.shape, np.nan), "NaN"),
        (PHOTOGRAPHS.astype(str), "'inputs'"),
        (None, "'images'"),
    ],
)
def test_forged_inputs_are_refused(path: Path, inputs: Any, complaint: str):
    model = make_pipeline(ZCA(patch=4), KernelRidgeClassifier(TEXT, backend="cpu"))
    save_model(path, model.fit(PHOTOGRAPHS, np.arange(42) % 3))
    rewrite(path, inputs=inputs)
    with pytest.raises(InputError, match=complaint):
        load_model(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pickle"},
        {"kind": ["zca"]},
        {"scale": 0},
        {"scale": None},
        {"mean": "middle"},
        {"std": [None]},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "copies": -1},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "augmentation": {"operation": 1}},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "augmentation": {"seed": "x"}},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "augmentation": [1]},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "form": "patches"},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "patch": 2},
        {"kind": "zca", "epsilon": 1, "mirrors": False, "form": "other"},
    ],
)
def test_forged_preprocessing_is_refused(change, path: Path):
    model = make_pipeline(Standardize(), KernelRidgeClassifier(TEXT, backend="reference")).fit(IMAGES, CLASSES)
    save_model(path, model)
    (step,) = json.loads(str(np.load(path)["header"]))["preprocessing"]
    rewrite(path, header={"preprocessing": [step | change]})
    with pytest.raises(InputError, match="has no valid 'preprocessing'"):
        load_model(path)
