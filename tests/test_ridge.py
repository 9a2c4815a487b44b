"""Exact ridge regression on kernel matrices: right answers, and errors that say what to do."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge

import tangentless as tl
from matrices import image_kernel_matrix, random_kernel_matrix, random_targets, refit_without_each_row
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.solve import solve_ridge

RIDGES = (0.0, 1e-4, 1e-2, 1.0, 10.0)
# Condition numbers below are about 1e4 at most, and float64 has 16 digits, so 1e-9 leaves a margin.
AGREEMENT = 1e-9


def message_of(K, ridge=0.0, **options):
    with pytest.raises(NotPositiveDefinite) as caught:
        solve_ridge(K, np.ones(len(K)), ridge, **options)
    return str(caught.value)


def suggested_ridge(message):
    return float(re.search(r"ridge=(\S+) would work", message).group(1))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 60), ridge=st.sampled_from(RIDGES), seed=st.integers(0, 2**32 - 1))
def test_leave_one_out_equals_refitting_without_each_row(rows, ridge, seed):
    K, Y = random_kernel_matrix(rows, seed), random_targets(rows)
    brute_force = refit_without_each_row(K, Y, ridge)
    np.testing.assert_allclose(solve_ridge(K, Y, ridge).leave_one_out, brute_force, rtol=0, atol=AGREEMENT)


@pytest.mark.parametrize("ridge", RIDGES)
def test_leave_one_out_equals_refitting_on_the_kernel_of_an_architecture(ridge):
    K, Y = image_kernel_matrix(60), random_targets(60)
    brute_force = refit_without_each_row(K, Y, ridge)
    np.testing.assert_allclose(solve_ridge(K, Y, ridge).leave_one_out, brute_force, rtol=0, atol=AGREEMENT)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("columns", [1, 10])
def test_coefficients_equal_those_of_scikit_learn(ridge, columns):
    K, Y = image_kernel_matrix(60), random_targets(60, columns)
    theirs = KernelRidge(alpha=ridge, kernel="precomputed").fit(K, Y).dual_coef_
    ours = solve_ridge(K, Y, ridge).coefficients
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=AGREEMENT * np.abs(theirs).max())


def test_one_target_is_one_column_of_many():
    K, Y = random_kernel_matrix(20), random_targets(20)
    many, one = solve_ridge(K, Y, 0.1), solve_ridge(K, Y[:, 1], 0.1)
    assert one.coefficients.shape == one.leave_one_out.shape == (20,)
    np.testing.assert_allclose(one.coefficients, many.coefficients[:, 1], rtol=1e-12)
    np.testing.assert_allclose(one.leave_one_out, many.leave_one_out[:, 1], rtol=1e-12)


def test_ridge_zero_interpolates():
    K, Y = random_kernel_matrix(30), random_targets(30)
    np.testing.assert_allclose(K @ solve_ridge(K, Y).coefficients, Y, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layout",
    [
        lambda K: K,
        np.asfortranarray,
        lambda K: np.kron(K, np.ones((2, 2)))[::2, ::2],
        lambda K: K.astype(np.float32).astype(np.float64),
    ],
    ids=["rows", "columns", "strided", "rounded"],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_any_memory_layout_gives_one_answer_and_only_overwrite_may_change_it(layout, overwrite):
    K, Y = layout(random_kernel_matrix(20)), random_targets(20)
    before, targets = K.copy(), Y.copy()
    solution = solve_ridge(K, Y, 0.5, overwrite=overwrite)
    residual = (before + 0.5 * np.eye(20)) @ solution.coefficients - Y
    assert np.abs(residual).max() < 1e-12
    assert np.array_equal(Y, targets)
    assert overwrite or np.array_equal(K, before)


def test_overwriting_a_read_only_matrix_copies_it():
    K = random_kernel_matrix(5)
    K.flags.writeable = False
    assert solve_ridge(K, np.ones(5), 1.0, overwrite=True).coefficients.shape == (5,)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8, np.bool_])
def test_matrices_of_other_numbers_are_solved_in_float64(kind):
    K = np.array([[1, 1], [1, 1]], dtype=kind)
    exact = solve_ridge(K.astype(np.float64), [1.0, 2.0], 0.5).coefficients
    assert np.array_equal(solve_ridge(K, np.array([1, 2], dtype=np.int8), 0.5).coefficients, exact)


def test_rows_of_very_different_scale_are_no_reason_to_refuse():
    scales = 10.0 ** np.arange(-8, 9, 4)
    K = random_kernel_matrix(5) * np.outer(scales, scales)
    np.testing.assert_allclose(K @ solve_ridge(K, scales).coefficients, scales, rtol=1e-12)


@pytest.mark.parametrize("overwrite", [False, True])
def test_duplicate_rows_are_named(overwrite):
    features = np.random.default_rng(0).standard_normal((12, 40))
    features[7], features[9] = features[2], features[5]
    message = message_of(features @ features.T, overwrite=overwrite)
    assert "ridge=0:" in message
    assert "2 pairs of rows are duplicates (2 and 7, 5 and 9): drop one of each" in message


def test_of_many_duplicates_the_first_are_named_and_all_counted():
    message = message_of(np.ones((20, 20)))
    assert "190 pairs of rows are duplicates (0 and 1, 0 and 2, 1 and 2, 0 and 3, 1 and 3, ...)" in message


def test_duplicate_images_are_named_by_their_kernel():
    images = np.random.default_rng(3).standard_normal((8, 8, 8, 1))
    images[6] = images[1]
    K = tl.kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")(images)
    assert "1 pair of rows are duplicates (1 and 6)" in message_of(K)


def test_noise_does_not_hide_duplicates():
    K = random_kernel_matrix(10)
    K[:, 4], K[4, :] = K[:, 3], K[3, :]
    K[4, 4] = K[3, 3]
    K[3, 4] = K[4, 3] = K[3, 3] + 1e-8  # as after rounding to float32
    assert "1 pair of rows are duplicates (3 and 4)" in message_of(K)


def test_without_duplicates_the_vanished_pivot_is_named():
    message = message_of(random_kernel_matrix(30, features=10))
    assert "duplicates" not in message
    named = re.search(r"the rows before row 10 explain all of it, and leave a pivot of (\S+) of", message)
    assert abs(float(named.group(1))) < 1e-14


def test_a_factor_of_rounding_errors_is_refused_though_cholesky_passes():
    nearly = np.array([[1.0, 1.0 - 1e-15], [1.0 - 1e-15, 1.0]])
    np.linalg.cholesky(nearly)
    assert "0 and 1" in message_of(nearly)


def test_rows_without_features_are_named():
    K = random_kernel_matrix(9)
    K[[3, 8], :] = K[:, [3, 8]] = 0
    assert "K[i, i] = 0, as of a black image, for 2 of 9 rows (3, 8): drop them" in message_of(K)
    assert "for 9 of 9 rows (0, 1, 2, 3, 4, ...)" in message_of(np.zeros((9, 9)))


def test_a_matrix_that_is_no_kernel_matrix_is_called_so():
    assert "K is not a kernel matrix" in message_of(np.array([[1.0, 2.0], [2.0, 1.0]]))
    assert "K is not a kernel matrix" not in message_of(np.ones((3, 3)))


def test_rows_that_the_ridge_keeps_apart_are_not_blamed():
    K = random_kernel_matrix(10) - 2 * np.eye(10)
    K[:, 4], K[4, :], K[4, 4] = K[:, 3], K[3, :], K[3, 3]
    K[3, 4] = K[4, 3] = K[3, 3]
    K[8, :] = K[:, 8] = 0
    message = message_of(K, ridge=0.25)
    assert "duplicates" not in message
    assert "black" not in message


def test_a_failing_ridge_above_zero_gets_a_larger_suggestion():
    message = message_of(random_kernel_matrix(10) - 2 * np.eye(10), ridge=0.25)
    assert "at ridge=0.25" in message
    assert suggested_ridge(message) > 0.25


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(2, 40),
    rank=st.integers(0, 5),
    noise=st.sampled_from([0.0, 1e-16, 1e-8, 1e-3, 10.0]),
    scale=st.sampled_from([1e-9, 1.0, 1e9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_suggested_ridge_works(rows, rank, noise, scale, seed):
    errors = noise * np.random.default_rng(seed).standard_normal((rows, rows))
    K = scale * (random_kernel_matrix(rows, seed, features=rank + 1) + errors + errors.T)
    try:
        solve_ridge(K, np.ones(rows))
    except NotPositiveDefinite as error:
        solution = solve_ridge(K, np.ones(rows), suggested_ridge(str(error)))
        assert np.isfinite(solution.leave_one_out).all()


@pytest.mark.parametrize("ridge", [-1e-9, float("nan"), float("inf"), "0.1", None, True, [0.1]])
def test_a_ridge_that_is_no_number_of_at_least_zero_is_refused(ridge):
    with pytest.raises(ParameterError, match="ridge must be a finite number of at least 0, or 'loo', not"):
        solve_ridge(np.eye(2), np.ones(2), ridge)


@pytest.mark.parametrize(
    ("K", "Y", "complaint"),
    [
        (np.ones((2, 3)), np.ones(2), r"square matrix, \(n, n\), but its shape is \(2, 3\)"),
        (np.ones(4), np.ones(4), "square matrix"),
        (np.empty((0, 0)), np.empty(0), "square matrix"),
        ([[1.0], [1.0, 2.0]], np.ones(2), "K has rows of different lengths"),
        ([[1.0, 0.5], [0.4, 1.0]], np.ones(2), r"not symmetric: K\[0, 1\] = 0.5, but K\[1, 0\] = 0.4"),
        ([[1.0, np.nan], [np.nan, 1.0]], np.ones(2), "K holds NaN or infinite values, first in row 0"),
        ([[1.0, 0.0], [0.0, np.inf]], np.ones(2), "K holds NaN or infinite values, first in row 1"),
        ([[1.0, 1j], [-1j, 1.0]], np.ones(2), "K must hold real numbers, but its dtype is complex"),
        ([["a", "b"], ["b", "a"]], np.ones(2), "K must hold real numbers"),
        (np.eye(2), np.ones(3), "K has 2 rows, but Y has 3"),
        (np.eye(2), [1.0, np.nan], "Y holds NaN or infinite values, first in row 1"),
        (np.eye(2), ["a", "b"], "Y must hold real numbers"),
        (np.eye(2), np.ones((2, 2, 2)), r"\(n,\) or \(n, targets\)"),
        (np.eye(2), np.ones((2, 0)), r"\(n,\) or \(n, targets\)"),
        (np.eye(2), 1.0, r"\(n,\) or \(n, targets\)"),
    ],
)
def test_a_bad_matrix_or_target_is_refused(K, Y, complaint):
    with pytest.raises(InputError, match=complaint):
        solve_ridge(K, Y, 1.0)


def test_asymmetry_far_from_the_first_rows_is_found_and_located():
    K = np.eye(700)
    K[650, 3] = 1e-3
    with pytest.raises(InputError, match=r"K\[650, 3\] = 0.001, but K\[3, 650\] = 0"):
        solve_ridge(K, np.ones(700))


def test_asymmetry_of_rounding_size_is_accepted():
    K = random_kernel_matrix(20)
    K[0, 1] += 1e-12
    assert np.isfinite(solve_ridge(K, np.ones(20)).coefficients).all()
