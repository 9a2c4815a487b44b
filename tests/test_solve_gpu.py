"""The blocked solver on a real GPU, against the CPU."""

import tracemalloc

import numpy as np
import pytest

import tangentless as tl
from tangentless.errors import NotPositiveDefinite
from tangentless.estimators import KernelRidgeClassifier
from tangentless.solve import diagnose, solve_ridge

pytestmark = pytest.mark.gpu
ROWS = 9000  # three blocks of 4,096 rows, the last one cut


@pytest.fixture(scope="module")
def system():
    features = np.random.default_rng(0).standard_normal((ROWS, 50))
    return features @ features.T, np.random.default_rng(1).standard_normal((ROWS, 10))


@pytest.mark.parametrize("place", ["host", "device"])
def test_a_gpu_gives_the_answers_of_the_cpu(system, place):
    cupy = pytest.importorskip("cupy")
    K, Y = system
    expected = solve_ridge(K, Y, 10.0, tilt=0.3)
    found = solve_ridge(cupy.asarray(K) if place == "device" else K, Y, 10.0, tilt=0.3, backend="cuda")
    assert isinstance(found.coefficients, cupy.ndarray if place == "device" else np.ndarray)
    # The condition number is 2e3.
    np.testing.assert_allclose(cupy.asnumpy(found.coefficients), expected.coefficients, rtol=0, atol=1e-11)
    np.testing.assert_allclose(cupy.asnumpy(found.leave_one_out), expected.leave_one_out, rtol=0, atol=1e-9)
    assert found.residual < 1e-12


def test_a_gpu_explains_what_is_not_positive_definite(system):
    K, Y = system
    with pytest.raises(NotPositiveDefinite, match=r"the rows before row 50 explain all of it.*would work"):
        solve_ridge(K, Y, backend="cuda")


@pytest.mark.parametrize("options", [{"ridge": 0.1, "tilt": 0.3}, {"ridge": "loo"}], ids=str)
def test_a_fit_keeps_the_matrix_on_the_gpu(options, monkeypatch):
    cupy = pytest.importorskip("cupy")
    rows, generator = 3000, np.random.default_rng(0)
    images, labels = generator.standard_normal((rows, 8, 8, 1)).astype(np.float32), generator.integers(0, 10, rows)
    text, sizes, asnumpy = "conv3 relu pool2 conv3 relu globalpool normalize relu", [], cupy.asnumpy
    monkeypatch.setattr(cupy, "asnumpy", lambda values, *rest: sizes.append(values.size) or asnumpy(values, *rest))
    warm = KernelRidgeClassifier(text, backend="cuda", **options).fit(images[:50], labels[:50])  # compiles
    tracemalloc.start()
    model = KernelRidgeClassifier(text, backend="cuda", **options).fit(images, labels)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(sizes) < rows**2
    assert most < 4 * rows**2  # peak bytes of host arrays: half of the matrix
    K = tl.kernel(text)(images, backend="cuda")
    targets, ridge = np.eye(10)[labels], model.ridge_
    expected = solve_ridge(K, targets, ridge, tilt=options.get("tilt", 0.0), backend="cpu")
    scale = np.abs(expected.coefficients).max()
    np.testing.assert_allclose(model.dual_coef_, expected.coefficients, rtol=0, atol=1e-6 * scale)
    values = K[:5] @ expected.coefficients
    np.testing.assert_allclose(model.decision_function(images[:5]), values, rtol=0, atol=1e-5 * np.abs(values).max())
    assert warm.precision_ == "float32"


def test_a_gpu_leaves_out_rows_without_weight():
    generator = np.random.default_rng(0)
    images, labels = generator.standard_normal((60, 8, 8, 1)), np.arange(60) % 3
    weights = np.arange(60) % 4 + 0.0
    found, expected = (
        KernelRidgeClassifier("conv3 relu globalpool", ridge=1.0, backend=backend, precision="float64")
        .fit(images, labels, sample_weight=weights)
        .loo_decision_
        for backend in ("cuda", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_a_gpu_diagnoses(system):
    K, _ = system
    found = diagnose(K, ridge=10.0, backend="cuda")
    assert found.smallest_eigenvalue == pytest.approx(10.0, rel=1e-6)
    features = np.random.default_rng(0).standard_normal((ROWS, 50))
    largest = np.linalg.eigvalsh(features.T @ features)[-1] + 10.0
    assert found.largest_eigenvalue == pytest.approx(largest, rel=1e-6)
