"""The blocked solver on a real GPU, against the CPU."""

import numpy as np
import pytest

from tangentless.errors import NotPositiveDefinite
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


def test_a_gpu_diagnoses(system):
    K, _ = system
    found = diagnose(K, ridge=10.0, backend="cuda")
    assert found.smallest_eigenvalue == pytest.approx(10.0, rel=1e-6)
    features = np.random.default_rng(0).standard_normal((ROWS, 50))
    largest = np.linalg.eigvalsh(features.T @ features)[-1] + 10.0
    assert found.largest_eigenvalue == pytest.approx(largest, rel=1e-6)
