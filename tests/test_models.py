"""Model files come back as they were, run nothing, and complain clearly when they are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tangentless as tl
from tangentless.errors import InputError, ParameterError
from tangentless.estimators import KernelRidgeClassifier, KernelRidgeRegressor
from tangentless.files import OutputError
from tangentless.layers import Conv, GlobalPool, Nonlinearity
from tangentless.models import load_model, save_model

TEXT = "conv3 relu globalpool normalize relu"
GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.standard_normal((24, 4, 4, 2)).astype(np.float32)
CLASSES = np.arange(24) % 3


def classifier(labels: Any = CLASSES, **parameters: Any) -> KernelRidgeClassifier:
    return KernelRidgeClassifier(TEXT, backend="reference", **parameters).fit(IMAGES, labels)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


def rewrite(path: Path, **changes: Any) -> None:
    """Replace arrays of a file, or leave out those that are None; `header` changes are merged into it."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    header = changes.pop("header", None)
    if header is not None:
        arrays["header"] = np.array(json.dumps({**json.loads(str(arrays["header"])), **header}))
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    "labels",
    [
        CLASSES,
        CLASSES % 2,
        CLASSES % 2 == 0,
        np.array(["cat", "dog", "émeu"])[CLASSES],
        np.array(["cat", "dog", "emu"], dtype=object)[CLASSES],
    ],
)
@pytest.mark.parametrize("flips", [False, True])
def test_a_classifier_comes_back_as_it_was(path: Path, labels: np.ndarray, flips: bool):
    model = classifier(labels, flips=flips, ridge=0.01, precision="float64")
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert isinstance(loaded, KernelRidgeClassifier)
    np.testing.assert_array_equal(loaded.predict(IMAGES), model.predict(IMAGES))
    np.testing.assert_array_equal(loaded.decision_function(IMAGES), model.decision_function(IMAGES))
    np.testing.assert_array_equal(loaded.loo_predictions_, model.loo_predictions_)
    assert loaded.loo_score_ == model.loo_score_
    assert loaded.X_fit_.dtype == np.float32
    assert (loaded.ridge, loaded.flips, loaded.precision) == (0.01, flips, "float64")


@pytest.mark.parametrize("targets", [IMAGES.mean(axis=(1, 2, 3)), IMAGES.mean(axis=(1, 2))])
def test_a_regressor_comes_back_as_it_was(path: Path, targets: np.ndarray):
    model = KernelRidgeRegressor(TEXT, backend="reference").fit(IMAGES, targets)
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert isinstance(loaded, KernelRidgeRegressor)
    np.testing.assert_array_equal(loaded.predict(IMAGES), model.predict(IMAGES))
    np.testing.assert_array_equal(loaded.loo_predictions_, model.loo_predictions_)


def test_images_keep_their_own_dtype(path: Path):
    pixels = (IMAGES * 40 + 128).clip(0, 255).astype(np.uint8)
    save_model(path, KernelRidgeClassifier(TEXT, backend="reference").fit(pixels, CLASSES))
    assert load_model(path).X_fit_.dtype == np.uint8


def test_a_model_is_readable_without_pickle_and_says_what_it_is(path: Path):
    save_model(path, classifier())
    with np.load(path, allow_pickle=False) as archive:
        header = json.loads(str(archive["header"]))
        assert {name: archive[name].dtype.kind for name in archive.files} == {
            "header": "U", "images": "f", "coefficients": "f", "leave_one_out": "f", "classes": "i"
        }  # fmt: skip
    assert header["architecture"] == TEXT
    assert header["package"] == tl.__version__
    assert header["shape"] == [4, 4, 2]


def test_a_model_is_not_overwritten_unless_forced(path: Path):
    save_model(path, classifier())
    with pytest.raises(OutputError, match="there already"):
        save_model(path, classifier())
    save_model(path, classifier(ridge=0.5), force=True)
    assert load_model(path).ridge == 0.5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"header": {"format": "other"}}, "something else"),
        ({"header": {"version": 2}}, "version 2"),
        ({"header": {"kind": "oracle"}}, "oracle"),
        ({"header": {"kind": None}}, "'kind'"),
        ({"header": {"architecture": "conv3 rulu globalpool"}}, "relu"),
        ({"header": {"architecture": "conv3 relu pool3 globalpool"}}, "does not divide"),
        ({"header": {"ridge": -1}}, "ridge"),
        ({"header": {"ridge": True}}, "ridge"),
        ({"header": {"flips": 1}}, "'flips'"),
        ({"header": {"precision": "float8"}}, "float8"),
        ({"header": {"shape": [4, 4, 3]}}, "shape"),
        ({"header": None}, "no header"),
        ({"images": None}, "'images'"),
        ({"images": IMAGES[:-1]}, "23 images"),
        ({"images": np.full_like(IMAGES, np.nan)}, "NaN"),
        ({"images": IMAGES.astype(complex)}, "'images'"),
        ({"coefficients": None}, "'coefficients'"),
        ({"coefficients": np.zeros((24, 2))}, "classes"),
        ({"coefficients": np.full((24, 3), np.inf)}, "infinite"),
        ({"coefficients": np.zeros(24)}, "classes"),
        ({"leave_one_out": np.zeros((24, 5))}, "leave_one_out"),
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


def test_damage_anywhere_is_found_or_harmless(path: Path):
    model = classifier()
    save_model(path, model)
    good, expected = path.read_bytes(), model.predict(IMAGES)
    for position in np.random.default_rng(1).integers(0, len(good), 60):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x55]) + good[position + 1 :])
        try:
            loaded = load_model(path, backend="reference")
        except InputError:
            continue
        np.testing.assert_array_equal(loaded.predict(IMAGES), expected)
        path.write_bytes(good[:position])
        with pytest.raises(InputError):
            load_model(path)


class Steep(Nonlinearity):
    """A layer the text form does not know."""

    name = "steep"

    def dual(self, cosine: Any) -> Any:
        return cosine**3

    def activation(self, preactivation: Any) -> Any:
        return preactivation**3


def test_what_cannot_be_saved_says_why(path: Path):
    with pytest.raises(ParameterError, match="not fitted"):
        save_model(path, KernelRidgeClassifier(TEXT))
    with pytest.raises(ParameterError, match="precomputed"):
        save_model(path, KernelRidgeClassifier("precomputed").fit(np.eye(24), CLASSES))
    k = tl.kernel(TEXT)
    with pytest.raises(ParameterError, match="one architecture"):
        save_model(path, KernelRidgeClassifier(k + k, backend="reference").fit(IMAGES, CLASSES))
    own = [Conv(3), Steep(), GlobalPool()]
    with pytest.raises(ParameterError, match="read back"):
        save_model(path, KernelRidgeClassifier(own, backend="reference", ridge=1.0).fit(IMAGES, CLASSES))
    assert not path.exists()


def test_a_kernel_object_of_one_architecture_can_be_saved(path: Path):
    model = KernelRidgeClassifier(tl.kernel(TEXT), backend="reference").fit(IMAGES, CLASSES)
    save_model(path, model)
    np.testing.assert_array_equal(load_model(path, backend="reference").predict(IMAGES), model.predict(IMAGES))
