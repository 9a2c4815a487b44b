"""The contract of all kernels, compositional and classical: every test runs on one list of kernels."""

import numpy as np
import pytest

import tangentless as tl
from conftest import frozen
from tangentless.classical import NNGP, NTK, ArcCosine, ConvolutionalNTK, Gaussian, Linear, Polynomial
from tangentless.errors import InputError, StoreMismatchError
from tangentless.expression import read_kernel
from tangentless.kernel import Elementary
from tangentless.models import load_model, save_model

SMALL = "conv3 relu pool2 conv3 relu globalpool"
VECTOR_KERNELS = [
    Linear(),
    Polynomial(),
    Polynomial(degree=3, offset=0.0),
    Gaussian(gamma=0.05),
    ArcCosine(order=0),
    ArcCosine(order=1),
    ArcCosine(order=2),
    NNGP(depth=1),
    NNGP(depth=4),
    NTK(depth=1),
    NTK(depth=3),
    NTK(depth=5, fixed=2),
    ConvolutionalNTK("relu relu"),
    tl.kernel("relu gaussian"),
]
IMAGE_KERNELS = [
    tl.kernel(SMALL),
    ConvolutionalNTK(SMALL),
    tl.kernel(f"{SMALL} normalize relu").mirrored(),
    tl.kernel("conv3 relu globalpool").symmetrized("rotations"),
    0.5 * Gaussian(gamma=0.01) * NTK(depth=3) + tl.kernel(SMALL),
]
KERNELS = [*VECTOR_KERNELS, *IMAGE_KERNELS]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


def rows_for(kernel, count=40):
    """Vectors, or images if the kernel needs them, with a duplicate, a multiple, an opposite and a zero row."""
    shape = (5,) if kernel in VECTOR_KERNELS else (4, 4, 2)
    X = np.random.default_rng(7).standard_normal((count, *shape))
    X[1], X[2], X[3], X[4] = X[0], 3.0 * X[0], -X[0], 0.0
    return frozen(X)


def test_every_classical_kernel_is_in_the_list():
    listed = {type(leaf) for kernel in KERNELS for leaf in kernel.leaves()}
    assert listed >= {getattr(tl.classical, name) for name in tl.classical.__all__ if name[0].isupper()}


@every_kernel
def test_symmetric_matrices_are_exactly_symmetric_finite_and_positive_semidefinite(kernel):
    X = rows_for(kernel)
    K = kernel(X)
    assert K.dtype == np.float64
    assert np.isfinite(K).all()
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diagonal(K), kernel.diag(X))
    assert np.linalg.eigvalsh(K).min() > -1e-7 * np.abs(K).max()  # compositional kernels run in float32


@every_kernel
def test_a_rectangle_is_part_of_the_square(kernel):
    X = rows_for(kernel)
    np.testing.assert_allclose(kernel(X[:7], X), kernel(X)[:7], atol=1e-6 * kernel.diag(X).max())


@every_kernel
def test_a_pair_does_not_depend_on_its_order(kernel):
    X = rows_for(kernel)
    np.testing.assert_allclose(kernel(X[:9], X[9:]), kernel(X[9:], X[:9]).T, atol=1e-6 * kernel.diag(X).max())


@every_kernel
def test_many_rows_are_computed_as_few_are(kernel):
    X = rows_for(kernel, count=1100 if kernel in VECTOR_KERNELS else 70)  # more rows than a tile
    K = kernel(X)
    np.testing.assert_array_equal(K, K.T)
    part = slice(len(X) - 12, None)
    np.testing.assert_allclose(K[part, part], kernel(X[part]), atol=1e-6 * kernel.diag(X).max())


@every_kernel
def test_kernels_add_multiply_and_scale(kernel):
    X = rows_for(kernel)
    K, tolerance = kernel(X), 1e-12 * kernel.diag(X).max() ** 2
    np.testing.assert_allclose((kernel + kernel)(X), 2 * K, atol=tolerance)
    np.testing.assert_allclose((kernel * kernel)(X), K**2, atol=tolerance)
    np.testing.assert_allclose((0.5 * kernel)(X), K / 2, atol=tolerance)


@every_kernel
def test_kernels_compare_by_value_and_print_as_what_they_are(kernel):
    text = repr(kernel)
    again = read_kernel(text)
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert repr(again) == text
    assert kernel not in [other for other in KERNELS if other is not kernel]


@every_kernel
def test_progress_counts_every_pair_of_every_leaf(kernel):
    X, seen = rows_for(kernel), []
    kernel(X, progress=lambda done, total: seen.append((done, total)))
    pairs = len(X) * (len(X) + 1) // 2
    assert seen[-1] == (pairs * sum(1 for _ in kernel.leaves()),) * 2


@every_kernel
def test_bad_rows_are_refused_with_a_reason(kernel):
    X = np.array(rows_for(kernel))
    with pytest.raises(InputError, match="differ in shape"):
        kernel(X, np.concatenate([X, X], axis=-1))
    X[3] = np.nan
    with pytest.raises(InputError, match="NaN or infinite values, first in row 3"):
        kernel(X)
    with pytest.raises(InputError, match="1 axes"):
        kernel(np.ones(3))


@every_kernel
def test_estimators_models_and_stores_take_them(kernel, tmp_path):
    X = rows_for(kernel)
    y = (X.reshape(len(X), -1)[:, 0] > 0).astype(int)
    for model in (tl.KernelRidgeClassifier(kernel, ridge=1e-2), tl.KernelSVC(kernel)):
        model.fit(X, y)
        path = tmp_path / f"{type(model).__name__}.npz"
        save_model(path, model)
        np.testing.assert_array_equal(load_model(path).predict(X), model.predict(X))
    stored = tl.gram(kernel, X, store=tmp_path / "k.zarr", tile=16, progress=False)
    np.testing.assert_allclose(np.asarray(stored), kernel(X), atol=1e-6 * kernel.diag(X).max())
    with pytest.raises(StoreMismatchError, match="kernel is"):
        tl.gram(2 * kernel, X, store=tmp_path / "k.zarr", progress=False)


@every_kernel
def test_leaves_know_their_work_and_memory(kernel):
    shape = rows_for(kernel).shape[1:]
    for leaf in kernel.leaves():
        assert isinstance(leaf, Elementary)
        assert leaf.elements(shape) > 0
        assert leaf.image_numbers(shape) >= np.prod(shape)
