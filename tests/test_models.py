"""Model files: models come back as they were, and only what was saved is read."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import tangentless as tl
from tangentless.errors import InputError, ParameterError
from tangentless.estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
from tangentless.files import OutputError, checksum_of
from tangentless.layers import Conv, GlobalPool, Nonlinearity
from tangentless.models import load_model, save_model
from tangentless.preprocessing import ZCA, RandAugment, Standardize
from tangentless.processes import GaussianProcessClassifier, GaussianProcessRegressor

pytestmark = pytest.mark.filterwarnings("ignore:.*few to whiten by")

TEXT = "conv3 relu globalpool normalize relu"
GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.standard_normal((15, 4, 4, 2)).astype(np.float32)
CLASSES = np.arange(15) % 3


def classifier(labels: Any = CLASSES, **parameters: Any) -> KernelRidgeClassifier:
    return KernelRidgeClassifier(TEXT, backend="reference", **parameters).fit(IMAGES, labels)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


def rewrite(path: Path, **changes: Any) -> None:
    """Replace arrays of a file, or remove those that are None, and recompute the checksums, as a forger would.

    `header` changes are merged into the header.
    """
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    header = {**json.loads(str(arrays.pop("header"))), **changes.pop("header", {})}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None and name != "checksum"}
    header["checksums"] = {name: checksum_of(array) for name, array in arrays.items()}
    text = json.dumps(header)
    np.savez(path, header=np.array(text), checksum=np.array(hashlib.sha256(text.encode()).hexdigest()), **arrays)


@pytest.mark.parametrize(
    ("labels", "flips"),
    [
        (CLASSES, False),
        (CLASSES, True),
        (CLASSES % 2, False),
        (CLASSES % 2 == 0, False),
        (np.array(["cat", "dog", "émeu"])[CLASSES], False),
        (np.array(["cat", "dog", "emu"], dtype=object)[CLASSES], False),
    ],
)
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
            "header": "U", "checksum": "U", "images": "f", "coefficients": "f", "leave_one_out": "f", "classes": "i"
        }  # fmt: skip
    assert header["kernel"] == f"kernel('{TEXT}')"
    assert header["versions"]["tangentless"] == tl.__version__
    assert header["versions"].keys() == {"tangentless", "numpy", "scikit-learn"}
    assert header["shape"] == [4, 4, 2]


def test_a_model_is_not_overwritten_unless_forced(path: Path):
    save_model(path, classifier())
    with pytest.raises(OutputError, match="there already"):
        save_model(path, classifier())
    save_model(path, classifier(ridge=0.5), force=True)
    assert load_model(path).ridge == 0.5


@pytest.mark.parametrize("change", [{"kernel": "relu"}, {"kernel": "precomputed"}, {"flips": True}, {"landmarks": 5}])
@pytest.mark.parametrize("kind", [KernelRidgeClassifier, KernelSVC])
def test_a_model_whose_kernel_was_changed_after_the_fit_is_not_saved(path: Path, kind: Any, change: dict[str, Any]):
    model = kind(TEXT, backend="reference").fit(IMAGES, CLASSES)
    if not change.keys() <= model.get_params().keys():
        pytest.skip("a support vector machine has no landmarks")
    before = {name: model.get_params()[name] for name in change}
    with pytest.raises(ParameterError, match="changed after the fit; fit again, or set them back"):
        save_model(path, model.set_params(**change))
    assert not path.exists()
    save_model(path, model.set_params(**before))
    assert np.array_equal(load_model(path, backend="reference").predict(IMAGES), model.predict(IMAGES))


class Steep(Nonlinearity):
    """A layer that is not registered, so the text form does not know it."""

    name = "steep"

    def dual(self, cosine: Any) -> Any:
        return cosine**3

    def activation(self, preactivation: Any) -> Any:
        return preactivation**3


def test_what_cannot_be_saved_says_why(path: Path):
    with pytest.raises(ParameterError, match="not fitted"):
        save_model(path, KernelRidgeClassifier(TEXT))
    with pytest.raises(ParameterError, match="precomputed"):
        save_model(path, KernelRidgeClassifier("precomputed").fit(np.eye(15), CLASSES))
    with pytest.raises(ParameterError, match=r"cannot hold StandardScaler \| KernelRidgeClassifier"):
        save_model(path, make_pipeline(StandardScaler(), KernelRidgeClassifier(TEXT)))
    own = [Conv(3), Steep(), GlobalPool()]
    with pytest.raises(ParameterError, match="read back"):
        save_model(path, KernelRidgeClassifier(own, backend="reference", ridge=1.0).fit(IMAGES, CLASSES))
    assert not path.exists()


@pytest.mark.parametrize(
    "kernel", [tl.kernel(TEXT), 0.5 * (tl.kernel(TEXT) + tl.kernel(TEXT).mirrored()) * tl.kernel("conv3 globalpool")]
)
def test_kernels_whose_text_reads_back_can_be_saved(path: Path, kernel: Any):
    model = KernelRidgeClassifier(kernel, backend="reference").fit(IMAGES, CLASSES)
    save_model(path, model)
    assert load_model(path).kernel == kernel
    np.testing.assert_array_equal(load_model(path, backend="reference").predict(IMAGES), model.predict(IMAGES))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_support_vector_machine_comes_back_as_it_was(path: Path, classes: int):
    model = KernelSVC(TEXT, C=5.0, backend="reference", class_weight={0: 2.0}).fit(IMAGES, CLASSES % classes)
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert isinstance(loaded, KernelSVC)
    np.testing.assert_array_equal(loaded.decision_function(IMAGES), model.decision_function(IMAGES))
    assert (loaded.C, loaded.class_weight) == (5.0, {0: 2.0})
    refitted = clone(loaded).fit(IMAGES, CLASSES % classes)
    np.testing.assert_array_equal(refitted.decision_function(IMAGES), model.decision_function(IMAGES))
    rewrite(path, header={"C": -1.0})
    with pytest.raises(InputError, match="C must be a finite number above 0"):
        load_model(path)
    save_model(path, model, force=True)
    for name, array in (("counts", np.array([-1, 25, 0])[:classes]), ("support", np.zeros(3, int))):
        rewrite(path, **{name: array})
        with pytest.raises(InputError, match=r"do not (go with|belong)"):
            load_model(path)


@pytest.mark.parametrize("noise", [0.1, "mle"])
@pytest.mark.parametrize("targets", [IMAGES.mean(axis=(1, 2, 3)), IMAGES.mean(axis=(1, 2))])
def test_a_gaussian_process_comes_back_as_it_was(path: Path, targets: np.ndarray, noise: Any):
    model = GaussianProcessRegressor(TEXT, noise, backend="reference").fit(IMAGES, targets)
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert isinstance(loaded, GaussianProcessRegressor)
    assert (loaded.noise, loaded.noise_, loaded.scale) == (noise, model.noise_, "mle")
    for one, other in zip(loaded.predict(IMAGES, True), model.predict(IMAGES, True), strict=True):
        np.testing.assert_array_equal(one, other)
    more = slice(0, 3)
    for one in (loaded, model):
        one.partial_fit(IMAGES[more] + 0.1, targets[more])
    np.testing.assert_allclose(loaded.predict(IMAGES), model.predict(IMAGES), rtol=0, atol=1e-9)
    np.testing.assert_allclose(loaded.novelty(IMAGES), model.novelty(IMAGES), rtol=1e-9)
    save_model(path, model.set_params(scale=7.0), force=True)
    assert np.array_equal(load_model(path, backend="reference").scale_, model.scale_)  # that of the fit


@pytest.mark.parametrize("labels", [CLASSES, np.array(["cat", "dog", "emu"])[CLASSES]])
def test_a_gaussian_process_classifier_comes_back_as_it_was(path: Path, labels: np.ndarray):
    model = GaussianProcessClassifier(TEXT, backend="reference").fit(IMAGES, labels)
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert (loaded.concentration_, loaded.scale_) == (model.concentration_, model.scale_)
    np.testing.assert_array_equal(loaded.predict_proba(IMAGES), model.predict_proba(IMAGES))
    np.testing.assert_array_equal(loaded.predict(IMAGES), model.predict(IMAGES))
    assert loaded.log_marginal_likelihood_ == model.log_marginal_likelihood_


@pytest.mark.parametrize("by", ["variance", "random"])
def test_a_model_on_landmarks_is_as_small_as_they_are(path: Path, by: str):
    model = classifier(ridge=0.1, landmarks=6, landmarks_by=by)
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert len(loaded.X_fit_) == loaded.landmarks == 6
    assert loaded.landmarks_by == by
    np.testing.assert_array_equal(loaded.landmarks_, model.landmarks_)
    np.testing.assert_array_equal(loaded.decision_function(IMAGES), model.decision_function(IMAGES))
    np.testing.assert_array_equal(loaded.loo_decision_, model.loo_decision_)
    for changes in (
        {"landmarks": np.arange(5)},
        {"landmarks": np.array([0, 1, 2, 3, 4, 15])},
        {"landmarks": np.zeros(6, int)},
        {"header": {"landmarks_by": "luck"}},
    ):
        save_model(path, model, force=True)
        rewrite(path, **changes)
        with pytest.raises(InputError, match="landmark"):
            load_model(path)


def test_values_chosen_by_leave_one_out_come_back(path: Path):
    model = classifier(ridge="loo", tilt="loo")
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert (loaded.ridge, loaded.tilt) == ("loo", "loo")
    assert (loaded.ridge_, loaded.tilt_, loaded.scale_) == (model.ridge_, model.tilt_, model.scale_)
    np.testing.assert_array_equal(loaded.predict_proba(IMAGES), model.predict_proba(IMAGES))


def test_preprocessing_travels_with_the_model(path: Path):
    model = make_pipeline(ZCA(1e-2, mirrors=True), KernelRidgeClassifier(TEXT, backend="reference", flips=True))
    model.fit(IMAGES, CLASSES)
    save_model(path, model)
    loaded = load_model(path, backend="reference")
    assert isinstance(loaded, Pipeline)
    assert loaded[0].get_params() == model[0].get_params()
    np.testing.assert_array_equal(loaded.decision_function(IMAGES), model.decision_function(IMAGES))


def test_every_kind_of_preprocessing_travels_with_the_model(path: Path):
    images = np.random.default_rng(0).integers(0, 256, (len(IMAGES), 4, 4, 3), dtype=np.uint8)
    augmentation = RandAugment(1, 3, ["FlipLR", "Equalize"], seed=5)
    for steps in (
        [Standardize(mean=[100.0] * 3), ZCA(1e-2)],
        [ZCA(1e-2, copies=2, augmentation=augmentation), Standardize(scale=2.0)],
        [Standardize(), ZCA(1e-2, mirrors=True)],
        [ZCA(1e-2, patch=2)],
    ):
        model = make_pipeline(*steps, KernelRidgeClassifier(TEXT, backend="reference")).fit(images, CLASSES)
        save_model(path, model, force=True)
        loaded = load_model(path, backend="reference")
        for ours, theirs in zip(loaded[:-1], model[:-1], strict=True):
            assert repr(ours) == repr(theirs)
        np.testing.assert_array_equal(loaded.decision_function(images), model.decision_function(images))


PHOTOGRAPHS = np.random.default_rng(0).integers(0, 256, (42, 16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "steps",
    [[ZCA(mirrors=True)], [ZCA(patch=4, mirrors=True)], [Standardize()], [Standardize(), ZCA()]],
    ids=["whole", "patches", "standardize", "two"],
)
@pytest.mark.parametrize(
    "kind", [KernelRidgeClassifier, KernelSVC, functools.partial(KernelRidgeClassifier, landmarks=30)]
)
def test_a_model_of_a_few_photographs_holds_their_bytes_and_recomputes_the_rest(path: Path, steps: Any, kind: Any):
    model = make_pipeline(*map(clone, steps), kind(TEXT, backend="cpu")).fit(PHOTOGRAPHS, np.arange(42) % 3)
    save_model(path, model)
    assert path.stat().st_size < PHOTOGRAPHS.nbytes + 70_000  # the rest: a number for each pair
    loaded = load_model(path, backend="cpu")
    np.testing.assert_array_equal(loaded[-1].X_fit_, model[-1].X_fit_)
    np.testing.assert_array_equal(loaded.decision_function(PHOTOGRAPHS), model.decision_function(PHOTOGRAPHS))


@pytest.mark.parametrize("kind", [KernelRidgeClassifier, KernelSVC])
def test_files_of_version_2_have_the_images_of_a_whitening_in_place_of_inputs(path: Path, kind: Any):
    model = make_pipeline(ZCA(), kind(TEXT, backend="cpu")).fit(PHOTOGRAPHS, np.arange(42) % 3)
    save_model(path, model)
    with np.load(path) as archive:
        rewrite(path, header={"version": 2}, inputs=None, images0=archive["inputs"])
    np.testing.assert_array_equal(load_model(path)[1].X_fit_, model[1].X_fit_)


def test_photographs_that_were_changed_after_the_fit_are_not_what_is_saved(path: Path):
    images = PHOTOGRAPHS.copy()
    model = make_pipeline(ZCA(patch=4), KernelRidgeClassifier(TEXT, backend="cpu")).fit(images, np.arange(42) % 3)
    images[:] = 0
    save_model(path, model)
    np.testing.assert_array_equal(load_model(path)[1].X_fit_, model[1].X_fit_)


def test_a_model_of_other_images_than_its_whitening_keeps_its_own(path: Path):
    zca = ZCA(1e-2).fit(IMAGES[:10])
    model = Pipeline([("zca", zca), ("model", classifier())])
    save_model(path, model)
    np.testing.assert_array_equal(load_model(path)[1].X_fit_, IMAGES)


def test_parameters_of_numpy_from_a_search_are_saved(path: Path):
    images = np.random.default_rng(0).integers(0, 256, (len(IMAGES), 4, 4, 3), dtype=np.uint8)
    augmentation = RandAugment(np.int64(1), np.float32(3.5), seed=np.int64(5))
    zca = ZCA(1e-2, copies=1, augmentation=augmentation)
    save_model(path, make_pipeline(zca, KernelRidgeClassifier(TEXT, backend="reference")).fit(images, CLASSES))
    assert load_model(path)[0].augmentation.get_params() == augmentation.get_params()
