"""Diagnosis: figures against dense linear algebra, and the rows that are duplicates or conflicts."""

import numpy as np
import pytest

import tangentless as tl
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.solve import diagnose, solve_ridge


def matrix_with_eigenvalues(values, seed=0):
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    K = (vectors * values) @ vectors.T
    return (K + K.T) / 2


def test_tensors_are_diagnosed_as_arrays_are():
    torch = pytest.importorskip("torch")
    K, labels = matrix_with_eigenvalues(np.geomspace(1e-2, 10, 6)), np.arange(6)
    with pytest.warns(UserWarning, match="requires gradients"):
        found = diagnose(torch.tensor(K, requires_grad=True), torch.tensor(labels), near=1.0)
    assert str(found) == str(diagnose(K, labels, near=1.0))


def test_tensors_that_numpy_cannot_hold_are_refused_for_that_reason():
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"bfloat16.* a dtype that NumPy has"):
        solve_ridge(np.eye(3), torch.ones(3, dtype=torch.bfloat16), 1.0)


@pytest.mark.parametrize("rows", [1, 2, 5, 30])
def test_on_few_rows_eigenvalues_are_exact(rows):
    values = np.geomspace(1e-4, 10, rows)
    found = diagnose(matrix_with_eigenvalues(values), ridge=0.01)
    # With as many steps as rows, Lanczos' method spans the whole space.
    assert found.largest_eigenvalue == pytest.approx(values[-1] + 0.01, rel=1e-9)
    assert found.smallest_eigenvalue == pytest.approx(values[0] + 0.01, rel=1e-9)
    assert found.condition == pytest.approx((values[-1] + 0.01) / (values[0] + 0.01), rel=1e-8)


def test_on_many_rows_the_condition_number_is_estimated():
    values = np.geomspace(1e-6, 100, 500)
    found = diagnose(matrix_with_eigenvalues(values))
    assert found.condition == pytest.approx(1e8, rel=0.05)
    assert found.condition <= 1e8 * (1 + 1e-6)


def test_noise_above_the_stated_level_breaks_the_matrix_and_below_it_does_not():
    K = matrix_with_eigenvalues(np.full(400, 1e-3)) + 1.0  # entries near 1, as in matrices of deep kernels
    found = diagnose(K)
    errors = np.random.default_rng(1).standard_normal(K.shape)
    errors = (np.triu(errors) + np.triu(errors, 1).T) * np.abs(K).max()
    solve_ridge(K + 0.5 * found.noise * errors, np.ones(400))
    with pytest.raises(NotPositiveDefinite):
        solve_ridge(K + 2 * found.noise * errors, np.ones(400))


def test_duplicates_with_different_labels_are_conflicts():
    images = np.random.default_rng(3).standard_normal((10, 8, 8, 1))
    images[6], images[9] = images[1], images[2]
    K = tl.kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")(images)
    labels = np.arange(10)
    labels[9] = labels[2]
    found = diagnose(K, labels, ridge=1e-3)
    assert found.duplicates.tolist() == [[1, 6], [2, 9]]
    assert found.conflicts.tolist() == [[1, 6]]
    text = str(found)
    assert "2 pairs of rows are the same to the kernel (1 and 6, 2 and 9)" in text
    assert "1 pair of them have different targets (1 and 6)" in text
    assert {row for row, _ in found.pivots[:2]} == {6, 9}
    assert diagnose(K, np.eye(10)[labels], ridge=1e-3).conflicts.tolist() == [[1, 6]]


def test_near_duplicates_are_found_at_the_distance_asked_for():
    features = np.random.default_rng(0).standard_normal((8, 20))
    features[5] = features[0] + 0.01 * features[7]
    K = features @ features.T
    assert not len(diagnose(K).duplicates)
    assert not len(diagnose(K, np.arange(8)).conflicts)
    assert diagnose(K, near=1e-3).duplicates.tolist() == [[0, 5]]


def test_a_matrix_that_is_not_positive_definite_is_reported_not_raised():
    found = diagnose(np.ones((4, 4)), Y=[0, 0, 0, 1])
    assert "6 pairs of rows are duplicates" in found.problem
    assert found.condition == np.inf
    assert found.largest_eigenvalue == pytest.approx(4.0)
    assert len(found.conflicts) == 3
    assert str(found).startswith("K + ridge I is not positive definite at ridge=0")


def test_the_matrix_is_left_alone_unless_it_may_be_used_up():
    K = matrix_with_eigenvalues(np.ones(10))
    before = K.copy()
    diagnose(K)
    assert np.array_equal(K, before)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match=r"K has 3 rows, but Y is of shape \(2,\)"):
        diagnose(np.eye(3), Y=[1, 2])
    with pytest.raises(ParameterError, match="near must be"):
        diagnose(np.eye(3), near=-1.0)
    with pytest.raises(ParameterError, match="ridge must be"):
        diagnose(np.eye(3), ridge=-1.0)
