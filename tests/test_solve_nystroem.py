"""Landmarks: exact if all rows are landmarks, close if some are, on real images and in stores."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import tangentless as tl
from matrices import random_kernel_matrix
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.gram import gram
from tangentless.solve import choose_landmarks, solve_nystroem, solve_ridge

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


@pytest.mark.parametrize("columns", [1, 3])
def test_with_all_rows_as_landmarks_the_solution_is_exact(columns):
    K, Y = random_kernel_matrix(40), np.random.default_rng(1).standard_normal((40, columns))
    exact = solve_ridge(K, Y, 0.1).coefficients
    np.testing.assert_allclose(solve_nystroem(K, K, Y, 0.1).coefficients, exact, rtol=0, atol=1e-9)


def test_the_equations_are_those_of_the_text_for_any_landmarks():
    K, Y = random_kernel_matrix(60), np.random.default_rng(1).standard_normal(60)
    chosen = choose_landmarks(60, 20)
    C, W = K[:, chosen], K[np.ix_(chosen, chosen)]
    expected = np.linalg.solve(C.T @ C + 0.3 * W, C.T @ Y)
    found = solve_nystroem(C, W, Y, 0.3).coefficients
    assert found.shape == (20,)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_on_digits_a_quarter_of_the_rows_as_landmarks_costs_little_accuracy():
    images, labels = load_digits(return_X_y=True)
    images, Y, k = images.reshape(-1, 8, 8, 1), np.eye(10)[labels], tl.kernel(SMALL)
    train, test = images[:800], images[800:1200]
    landmarks = train[choose_landmarks(800, 200)]
    exact = k(test, train) @ solve_ridge(k(train), Y[:800], 1e-4).coefficients
    close = k(test, landmarks) @ solve_nystroem(k(train, landmarks), k(landmarks), Y[:800], 1e-4).coefficients
    accuracy = [np.mean(values.argmax(axis=1) == labels[800:1200]) for values in (exact, close)]
    assert accuracy[0] > 0.9
    assert accuracy[1] > accuracy[0] - 0.05


def test_a_store_is_read_panel_by_panel_to_the_same_end(tmp_path):
    X, Y = np.random.default_rng(0).standard_normal((70, 6)), np.random.default_rng(1).standard_normal((70, 2))
    k = tl.kernel("normalize relu")
    stored = gram(k, X, X[:20], store=tmp_path / "c.zarr", backend="reference", tile=16, progress=False)
    W = k(X[:20], backend="reference")
    one, other = solve_nystroem(stored, W, Y, 0.1), solve_nystroem(np.asarray(stored), W, Y, 0.1)
    np.testing.assert_allclose(one.coefficients, other.coefficients, rtol=0, atol=1e-10)


def test_bad_input_is_refused():
    K = np.eye(4)
    with pytest.raises(ParameterError, match="need a ridge above 0"):
        solve_nystroem(K, K, np.ones(4), 0.0)
    with pytest.raises(InputError, match=r"C must be of shape \(n, 4\)"):
        solve_nystroem(K[:, :3], K, np.ones(4), 1.0)
    with pytest.raises(InputError, match="C holds NaN"):
        solve_nystroem(np.full((4, 4), np.nan), K, np.ones(4), 1.0)
    with pytest.raises(InputError, match="K has 4 rows, but Y has 3"):
        solve_nystroem(K, K, np.ones(3), 1.0)
    with pytest.raises(NotPositiveDefinite, match="kernel W of the landmarks"):
        solve_nystroem(K, -K, np.ones(4), 1.0)
    with pytest.raises(ParameterError, match="from 1 to 4 can be chosen as landmarks, not 5"):
        choose_landmarks(4, 5)
