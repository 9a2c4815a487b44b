"""ZCA whitening: its definition, mirror images, and bad input."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from tangentless import preprocessing
from tangentless.errors import InputError, ParameterError
from tangentless.estimators import KernelRidgeClassifier
from tangentless.preprocessing import ZCA

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


def random_images(rows, shape=(4, 6, 2), seed=0):
    return np.random.default_rng(seed).standard_normal((rows, *shape)).cumsum(axis=1)


@parametrize_with_checks([ZCA()])
def test_scikit_learn_accepts_the_transformer(estimator, check):
    check(estimator)


def test_whitening_is_the_inverse_root_of_the_second_moments():
    images = random_images(200)
    flat = images.reshape(200, -1)
    unit = flat - flat.mean(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    zca = ZCA(epsilon=1e-3).fit(images)
    root = zca.whitening_
    product = root @ (unit.T @ unit / 200 + 1e-3 * np.eye(48)) @ root
    np.testing.assert_allclose(product, np.eye(48), atol=1e-9)
    np.testing.assert_allclose(zca.transform(images), (unit @ root).reshape(images.shape), atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 6, 2), (5, 3)])
def test_with_mirrors_whitening_commutes_with_mirroring(shape):
    images = random_images(50, shape)
    zca = ZCA(mirrors=True).fit(images)
    mirrored = zca.transform(np.flip(images, axis=-2))
    np.testing.assert_allclose(mirrored, np.flip(zca.transform(images), axis=-2), atol=1e-9)
    plain = ZCA().fit(images)
    assert np.abs(plain.transform(np.flip(images, axis=-2)) - np.flip(plain.transform(images), axis=-2)).max() > 0.1


def test_scale_and_brightness_of_an_image_do_not_matter_and_one_colour_is_zero():
    images = random_images(30)
    zca = ZCA(epsilon=1e-3).fit(images)
    np.testing.assert_allclose(zca.transform(3 * images + 7), zca.transform(images), atol=1e-9)
    assert not zca.transform(np.full((1, 4, 6, 2), 5)).any()


def test_integers_and_any_number_at_once_give_the_same(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 1), dtype=np.uint8)
    white = ZCA(1e-3).fit_transform(images)
    monkeypatch.setattr(preprocessing, "_ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(ZCA(1e-3).fit_transform(images.astype(float)), white, atol=1e-10)


def test_it_begins_a_pipeline_of_images():
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1)
    pipeline = make_pipeline(ZCA(1e-2, mirrors=True), KernelRidgeClassifier(SMALL)).fit(images[:400], labels[:400])
    assert pipeline.score(images[400:800], labels[400:800]) > 0.8


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), "small", None, True])
def test_a_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ParameterError, match="epsilon must be a finite number above 0"):
        ZCA(epsilon).fit(random_images(4))


def test_bad_images_are_refused():
    with pytest.raises(InputError, match="no mirror image"):
        ZCA(mirrors=True).fit(np.eye(4))
    with pytest.raises(InputError, match="NaN"):
        ZCA().fit(np.full((3, 2, 2, 1), np.nan))
    with pytest.raises(InputError, match=r"its shape is \(2, 2, 2, 2, 2\)"):
        ZCA().fit(np.ones((2, 2, 2, 2, 2)))
    with pytest.raises(InputError, match=r"images of shape \(6, 4, 2\), but ZCA was fitted to \(4, 6, 2\)"):
        ZCA().fit(random_images(9)).transform(random_images(9, (6, 4, 2)))
