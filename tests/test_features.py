"""Features of patches: their definitions, mirrors, devices, kernels, files, and bad input."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.linalg import sqrtm
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import tangentless as tl
from conformance import hostile_images
from conftest import frozen
from cuda_host.arrays import DeviceArray
from cuda_host.machine import emulate
from fake_cupy import install
from tangentless.algebra import CpuAlgebra
from tangentless.classical import Gaussian, Linear
from tangentless.errors import InputError, ParameterError, StoreMismatchError
from tangentless.expression import read_kernel
from tangentless.features import ConvolutionalKernelNetwork, FeatureKernel, RandomPatchFeatures
from tangentless.features.kernel_network import spherical_means
from tangentless.features.maps import box_cells, gaussian_cells
from tangentless.features.saving import kernel_makers
from tangentless.models import load_model, save_model

SHAPES = [(9, 8, 3), (7, 2), (5,)]
SMALL = {"backend": "cpu", "precision": "float64"}


def random_patches(**options: Any) -> RandomPatchFeatures:
    return RandomPatchFeatures(**{"filters": 6, "patch": 3, "contrast": 0.1} | SMALL | options)


def kernel_network(**options: Any) -> ConvolutionalKernelNetwork:
    return ConvolutionalKernelNetwork(**{"filters": (5, 7), "patches": (3, 2), "pools": (2, 2)} | SMALL | options)


def images(count: int = 12, shape: tuple[int, ...] = (9, 8, 3), seed: int = 0) -> np.ndarray:
    return frozen(np.random.default_rng(seed).standard_normal((count, *shape)))


both = pytest.mark.parametrize("make", [random_patches, kernel_network])


@parametrize_with_checks([random_patches(filters=1), kernel_network(filters=(1, 1))])
def test_scikit_learn_accepts_the_transformer(estimator, check):
    check(estimator)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_patch_features_are_what_loops_over_patches_give(shape):
    X, features = images(shape=shape), random_patches(bias=0.3, overlap=0.5)
    found = features.fit(X).transform(X)
    positions = [range(side - 2) for side in shape[:-1]]
    cells = [box_cells(len(one), 3, 0.5) for one in positions]
    wanted = np.zeros((len(X), *(len(one) for one in cells), 2, 6))
    for image, corner in itertools.product(range(len(X)), itertools.product(*positions)):
        patch = X[(image, *(slice(start, start + 3) for start in corner))].ravel()
        patch = (patch - patch.mean()) / np.hypot(patch.std(), 0.1)
        response = patch @ features.filters_ + features.offsets_
        both_signs = np.maximum([response - 0.3, -response - 0.3], 0)
        for cell in np.ndindex(wanted.shape[1:-2]):
            weight = np.prod([matrix[at, start] for matrix, at, start in zip(cells, cell, corner, strict=True)])
            wanted[(image, *cell)] += weight * both_signs
    np.testing.assert_allclose(found, wanted.reshape(len(X), -1), atol=1e-12)


def test_filters_are_whitened_patches_of_length_one():
    X, features = images(400, (6, 6, 1)), random_patches(filters=40, epsilon=1e-9, pool=1, bias=0.0)
    features.fit(X)
    windows = np.lib.stride_tricks.sliding_window_view(X[..., 0], (3, 3), axis=(1, 2)).reshape(-1, 9)
    rows = windows - windows.mean(axis=1, keepdims=True)
    rows /= np.hypot(rows.std(axis=1, keepdims=True), 0.1)
    responses = rows @ features.filters_ + features.offsets_
    # Whitened patches have the unit covariance, so their products with a row of length one have variance one.
    np.testing.assert_allclose(responses.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(responses.var(axis=0), 1, atol=1e-6)


def test_a_kernel_network_is_the_exact_kernel_at_its_anchors():
    X = images(6, (4,))
    features = ConvolutionalKernelNetwork((6,), (1,), (1,), width=0.8, **SMALL).fit(X)  # every patch is an anchor
    cosines = X @ X.T / np.multiply.outer(*[np.linalg.norm(X, axis=1)] * 2)
    wanted = np.multiply.outer(*[np.linalg.norm(X, axis=1)] * 2) * np.exp((cosines - 1) / 0.8**2)
    # The eigenvalues of the anchors' matrix have a ridge of 1e-6, hence rtol.
    np.testing.assert_allclose(features.kernel()(X, **SMALL), wanted, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kernel_network_is_what_loops_over_patches_give(shape):
    X, features = images(8, shape), kernel_network(patches=(2, 1), epsilon=0.1)
    found, maps = features.fit(X).transform(X), X
    for place, size in enumerate((2, 1)):
        anchors = getattr(features, f"anchors{place}_")
        gram = np.exp((anchors.T @ anchors - 1) / 0.25)
        root = np.linalg.inv(sqrtm(gram + 1e-6 * np.eye(len(gram))).real)
        np.testing.assert_allclose(np.linalg.norm(anchors, axis=0), 1)
        grid = tuple(side - size + 1 for side in maps.shape[1:-1])
        answers = np.empty((len(X), *grid, anchors.shape[1]))
        for at in np.ndindex(answers.shape[:-1]):
            patch = maps[(at[0], *(slice(start, start + size) for start in at[1:]))].ravel()
            patch = (patch - features.mean_) @ features.white_ if place == 0 else patch
            length = np.linalg.norm(patch)
            answers[at] = length * np.exp((patch / length @ anchors - 1) / 0.25) @ root
        for axis, side in enumerate(grid, 1):
            answers = np.moveaxis(np.tensordot(gaussian_cells(side, 2), answers, (1, axis)), 0, axis)
        maps = answers
    np.testing.assert_allclose(found, maps.reshape(len(X), -1), atol=1e-6 * np.abs(maps).max())


def test_spherical_means_find_directions():
    random = np.random.default_rng(0)
    directions = np.eye(4)
    rows = random.uniform(1, 5, (400, 1)) * (directions[np.arange(400) % 4] + 0.05 * random.standard_normal((400, 4)))
    centres = spherical_means(CpuAlgebra(), np.vstack([rows, np.zeros((9, 4))]), 8, random)
    assert (directions @ centres.T).max(axis=1).min() > 0.99
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1)


@both
def test_equal_seeds_give_equal_features_and_others_do_not(make):
    X = images()
    first, again, other = (make(random_state=seed).fit(X).transform(X) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@both
def test_features_do_not_depend_on_chunks(make, monkeypatch):
    X, features = images(), make()
    whole = features.fit(X).transform(X)
    monkeypatch.setattr("tangentless.features.base.NUMBERS_AT_ONCE", {"cpu": 1})
    monkeypatch.setattr("tangentless.features.random_patches._FILTERS_AT_ONCE", {"cpu": 2})
    np.testing.assert_allclose(features.transform(X), whole, atol=1e-12)


@both
def test_with_mirrors_an_image_and_its_mirror_image_have_the_same_features(make):
    X, features = images(), make(mirrors=True)
    features.fit(X)
    np.testing.assert_allclose(features.transform(X[:, :, ::-1]), features.transform(X), atol=1e-12)


def test_mirrors_are_training_on_flipped_copies_with_the_mirrors_of_all_filters():
    X, Z, labels = images(30), images(10, seed=1), np.arange(30) % 3
    features = random_patches(mirrors=True).fit(X)
    closed = clone(features).set_params(mirrors=False, filters=12).fit(X)
    mirrored = features.filters_.reshape(3, 3, 3, 6)[:, ::-1].reshape(27, 6)
    closed.filters_ = np.hstack([features.filters_, mirrored])
    closed.offsets_ = np.tile(features.offsets_, 2)
    ridge, Y = 0.01, np.eye(3)[labels]
    doubled = np.concatenate([X, X[:, :, ::-1]])
    A, B = closed.transform(doubled), closed.transform(Z)
    wanted = B @ A.T @ np.linalg.solve(A @ A.T + ridge * np.eye(60), np.vstack([Y, Y]))
    A, B = features.transform(X), features.transform(Z)
    # Filters count twice in the closed set, and each image has two copies, so a ridge of 1 here is one of 4 there.
    found = B @ A.T @ np.linalg.solve(A @ A.T + ridge / 4 * np.eye(30), Y)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@both
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_hostile_images_give_finite_features(make, precision):
    X = hostile_images((9, 8, 3))
    for options in ({}, {"contrast": 0.0}, {"epsilon": 1e-6}):
        features = make(precision=precision, **options).fit(X)
        assert np.isfinite(features.transform(X)).all()
        assert np.isfinite(features.kernel()(X, backend="cpu", precision=precision)).all()


@both
@pytest.mark.parametrize("colour", [0, 200, 0.1])
def test_images_of_one_colour_give_finite_features(make, colour):
    X = np.full((6, 9, 8, 3), colour)
    for precision in ("float32", "float64"):
        found = make(precision=precision, contrast=0.0, epsilon=0.1).fit(X).transform(X)
        np.testing.assert_array_equal(found, 0)


@both
def test_pixels_of_all_kinds_are_read(make):
    bytes_ = (images() * 40 + 128).clip(0, 255).astype(np.uint8)
    found = make(contrast=3.0).fit(bytes_).transform(bytes_)
    np.testing.assert_allclose(make(contrast=3.0).fit(bytes_ / 1.0).transform(bytes_ / 1.0), found, atol=1e-12)
    assert make(precision="float32").fit(bytes_).transform(bytes_).dtype == np.float32


@both
@pytest.mark.parametrize("of", [Linear(), Gaussian(0.1)])
def test_the_kernel_is_that_of_the_features_and_joins_the_algebra(make, of):
    X, Z, other = images(), images(5, seed=1), tl.kernel("conv3 relu globalpool")
    features = make(mirrors=True).fit(X)
    k = features.kernel(of)
    A, B = features.transform(X), features.transform(Z)
    np.testing.assert_allclose(k(X, Z, **SMALL), of(A, B), rtol=1e-12)
    np.testing.assert_allclose(k.diag(X, **SMALL), of.diag(A), rtol=1e-12)
    total = (0.5 * k + other * k).mirrored()
    mirrored = [of(A, one) for one in (A, features.transform(X[:, :, ::-1]))]
    others = [other(X, one, **SMALL) for one in (X, X[:, :, ::-1])]
    wanted = sum(K * (0.5 + M) for K, M in zip(mirrored, others, strict=True)) / 2
    np.testing.assert_allclose(np.triu(total(X, **SMALL)), np.triu(wanted), atol=1e-9)
    with pytest.raises(ParameterError, match="has no gradient"):
        k.vjp(X, Z, np.ones((12, 5)), backend="cpu")


@both
def test_a_later_fit_of_the_features_does_not_change_a_kernel(make):
    features, X, Z = make().fit(images()), images(), images(2, seed=1)
    model = tl.KernelRidgeRegressor(features.kernel(), ridge=0.1, **SMALL).fit(X, np.arange(12.0))
    before = model.predict(Z)
    features.set_params(random_state=1).fit(images(seed=2))
    assert np.array_equal(model.predict(Z), before)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (random_patches, {"filters": 4, "patch": 2, "pool": 1, "bias": 0.0, "contrast": 0.5, "mirrors": True}),
        (kernel_network, {"filters": (4,), "patches": (3,), "pools": (3,), "width": 1.0, "mirrors": True}),
    ],
)
def test_parameters_that_are_set_after_the_fit_change_no_features(make, changes, tmp_path):
    features, X = make().fit(images()), images(3, seed=1)
    before, k = features.transform(X), features.kernel()
    model = make_pipeline(features, tl.KernelRidgeRegressor(Linear(), ridge=0.1, **SMALL))
    model.fit(images(), np.arange(12.0))
    features.set_params(**changes)
    assert np.array_equal(features.transform(X), before)
    assert features.kernel() == k
    save_model(tmp_path / "model.npz", model)
    assert np.array_equal(load_model(tmp_path / "model.npz", backend="cpu")[0].transform(X), before)
    assert not np.array_equal(features.fit(images()).transform(X)[:, :4], before[:, :4])


@both
def test_a_fit_that_fails_leaves_the_features_as_they_were(make):
    features, X = make().fit(images()), images(3, seed=1)
    before = features.transform(X)
    with pytest.raises(InputError, match=r"filters are more than|is larger than"):
        features.fit(images(1, shape=(3, 3, 3)))
    assert np.array_equal(features.transform(X), before)


@both
def test_the_text_of_a_kernel_names_its_features(make):
    X = images()
    features, other = make().fit(X), make(random_state=1).fit(X)
    k = 2.0 * features.kernel(Gaussian(0.5)) + other.kernel()
    again = read_kernel(repr(k), kernel_makers([make().fit(X), other]))
    assert (again, hash(again), repr(again)) == (k, hash(k), repr(k))
    assert features.kernel() != other.kernel()
    with pytest.raises(StoreMismatchError, match="there is no kernel features"):
        read_kernel(repr(k))
    with pytest.raises(StoreMismatchError, match="no features"):
        read_kernel(repr(k), kernel_makers([other]))


@both
def test_a_gpu_computes_the_same_and_keeps_what_is_there(make, monkeypatch):
    X = images(shape=(9, 8, 3))
    features = make(mirrors=True).fit(X)
    k = features.kernel() + features.kernel(Gaussian(0.1))
    rows, K = features.transform(X), k(X, **SMALL)
    emulate(monkeypatch)
    cupy = install(monkeypatch)
    there = clone(features).set_params(backend="cuda").fit(X)
    np.testing.assert_allclose(there.transform(X), rows, atol=1e-9)
    found = k(X, backend="cuda", precision="float64")
    assert not isinstance(found, DeviceArray)
    np.testing.assert_allclose(found, K, atol=1e-9)
    on_gpu = k(cupy.asarray(X), backend="cuda", precision="float64")
    assert isinstance(on_gpu, DeviceArray)
    np.testing.assert_allclose(np.array(on_gpu.view(np.ndarray)), K, atol=1e-9)


@both
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_models_with_features_come_back_as_they_were(make, precision, tmp_path):
    X, labels = images(24), np.arange(24) % 3
    options = {"backend": "cpu", "precision": precision, "ridge": 0.1}
    features = make(precision=precision, epsilon=0.2, mirrors=True)
    kernels = features.fit(X).kernel() + 0.5 * tl.kernel("conv3 relu globalpool")
    models = [
        tl.KernelRidgeClassifier(kernels, flips=True, **options).fit(X, labels),
        make_pipeline(tl.ZCA(1e-2), features, tl.KernelRidgeClassifier(Linear(), **options)).fit(X, labels),
    ]
    for place, model in enumerate(models):
        path = tmp_path / f"{place}.npz"
        save_model(path, model)
        loaded = load_model(path, backend="cpu")
        np.testing.assert_allclose(loaded.decision_function(X), model.decision_function(X), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "options", "error", "complaint"),
    [
        (random_patches, {"patch": 9}, InputError, "patch=9 is larger than the images, which are 9×8"),
        (
            random_patches,
            {"filters": 10**6},
            InputError,
            "1,000,000 filters are more than the 504 patches of 12 images",
        ),
        (random_patches, {"filters": 0}, ParameterError, "filters must be a whole number from 1"),
        (random_patches, {"pool": 1.5}, ParameterError, "pool must be a whole number from 1"),
        (random_patches, {"overlap": 1.0}, ParameterError, "overlap must be below 1"),
        (random_patches, {"bias": -1.0}, ParameterError, "bias must be a finite number from 0"),
        (random_patches, {"epsilon": 0}, ParameterError, "epsilon must be a finite number above 0"),
        (random_patches, {"contrast": np.nan}, ParameterError, "contrast"),
        (random_patches, {"mirrors": 1}, ParameterError, "mirrors"),
        (random_patches, {"random_state": -1}, ParameterError, "random_state is a whole number from 0"),
        (kernel_network, {"patches": (3, 4)}, InputError, "patch=4 is larger than the maps of layer 1, which are 4×3"),
        (kernel_network, {"filters": (5, 10**6)}, InputError, "more than the 72 patches"),
        (kernel_network, {"filters": (5,)}, ParameterError, "of one length"),
        (kernel_network, {"filters": 5}, ParameterError, "one number for each layer"),
        (kernel_network, {"pools": (2, 0)}, ParameterError, "pools must be a whole number from 1"),
        (kernel_network, {"width": 0.0}, ParameterError, "width must be a finite number above 0"),
    ],
)
def test_bad_parameters_are_refused_with_a_reason(make, options, error, complaint):
    with pytest.raises(error, match=complaint):
        make(**options).fit(images())


@both
def test_bad_images_are_refused_with_a_reason(make):
    features = make().fit(images())
    with pytest.raises(ParameterError, match=r"one of vectors, such as Gaussian\(0.1\), not 'linear'"):
        features.kernel("linear")
    with pytest.raises(InputError, match="rows of shape"):
        features.transform(images(shape=(8, 9, 3)))
    with pytest.raises(InputError, match="was fitted to images of"):
        features.kernel()(images(shape=(8, 9, 3)), backend="cpu")
    with pytest.raises(InputError, match="NaN"):
        features.transform(np.full((2, 9, 8, 3), np.nan))
    with pytest.raises(InputError, match="no mirror image"):
        make(mirrors=True).fit(images(shape=(5,)))


@both
def test_damaged_descriptions_are_refused(make):
    text, arrays = make().fit(images()).describe()
    kind = type(make())
    assert kind.restore(text, arrays.__getitem__).digest() == make().fit(images()).digest()
    for change in ({"shape": [9, 8, 0]}, {"kind": "other"}, {"unknown": 1}, {"mirrors": 3}, {"shape": 3}):
        with pytest.raises(InputError, match="header"):
            kind.restore(text | change, arrays.__getitem__)
    with pytest.raises(InputError, match="must be finite floats of shape"):
        kind.restore(text, lambda name: arrays[name][..., :-1])
    assert isinstance(kind.restore(text, arrays.__getitem__).kernel(), FeatureKernel)
