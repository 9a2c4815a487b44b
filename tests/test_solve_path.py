"""Ridge paths, tilting and weights: closed forms against refitting, and choices by leave-one-out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge

from matrices import image_kernel_matrix, random_kernel_matrix, random_targets
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.solve import path as path_module
from tangentless.solve import ridge_path, solve_ridge

AGREEMENT = 1e-9  # condition numbers below are about 1e5 at most


def one_hot(rows, classes=3):
    return np.eye(classes)[np.random.default_rng(4).permutation(np.arange(rows) % classes)]


def fit(K, Y, added):
    return np.linalg.solve(K + np.diag(added), Y)


def tilted_fit(K, Y, added, tilt):
    """Coefficients for the targets `Y - tilt Y_loo`, with Y_loo by refitting without each row."""
    left_out = np.empty_like(Y)
    for i in range(len(K)):
        rest = np.delete(np.arange(len(K)), i)
        left_out[i] = K[i, rest] @ fit(K[np.ix_(rest, rest)], Y[rest], added[rest])
    return fit(K, Y - tilt * left_out, added)


def refit_tilted_without_each_row(K, Y, added, tilt):
    predictions = np.empty_like(Y)
    for i in range(len(K)):
        rest = np.delete(np.arange(len(K)), i)
        predictions[i] = K[i, rest] @ tilted_fit(K[np.ix_(rest, rest)], Y[rest], added[rest], tilt)
    return predictions


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(3, 16),
    ridge=st.sampled_from([0.0, 1e-3, 1.0, 10.0]),
    tilt=st.sampled_from([-0.5, 0.3, 1.0]),
    weighted=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_tilting_and_its_leave_one_out_equal_refitting(rows, ridge, tilt, weighted, seed):
    K, Y = random_kernel_matrix(rows, seed), random_targets(rows)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, rows) if weighted else None
    added = np.full(rows, ridge) if weights is None else ridge / weights
    solution = solve_ridge(K, Y, ridge, tilt=tilt, weights=weights)
    scale = np.abs(solution.coefficients).max()
    np.testing.assert_allclose(solution.coefficients, tilted_fit(K, Y, added, tilt), rtol=0, atol=AGREEMENT * scale)
    brute_force = refit_tilted_without_each_row(K, Y, added, tilt)
    np.testing.assert_allclose(solution.leave_one_out, brute_force, rtol=0, atol=AGREEMENT * np.abs(brute_force).max())


def test_tilting_the_kernel_of_an_architecture_equals_refitting():
    K, Y = image_kernel_matrix(25), random_targets(25, 2)
    brute_force = refit_tilted_without_each_row(K, Y, np.full(25, 1e-3), 0.3)
    np.testing.assert_allclose(solve_ridge(K, Y, 1e-3, tilt=0.3).leave_one_out, brute_force, rtol=0, atol=AGREEMENT)


@pytest.mark.parametrize("columns", [None, 2])
def test_the_tilt_picked_by_leave_one_out_has_the_smallest_error(columns):
    K, Y = random_kernel_matrix(30), random_targets(30, columns or 1)
    Y = Y if columns else Y[:, 0]
    chosen = solve_ridge(K, Y, 0.1, tilt="loo")

    def error(tilt):
        return np.mean((solve_ridge(K, Y, 0.1, tilt=tilt).leave_one_out - Y) ** 2)

    best = np.mean((chosen.leave_one_out - Y) ** 2)
    assert best == pytest.approx(error(chosen.tilt), abs=1e-12)
    assert best < min(error(chosen.tilt + 0.01), error(chosen.tilt - 0.01), error(0.0))


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("pairs", [1, 4])
def test_no_tilt_is_picked_where_none_makes_a_difference(pairs, ridge):
    twins = random_kernel_matrix(2)  # each row is predicted by one other: without both, nothing is left to predict from
    K, Y = np.kron(np.eye(pairs), twins), random_targets(2 * pairs, 1)[:, 0]
    chosen = solve_ridge(K, Y, ridge, tilt="loo")
    assert chosen.tilt == 0.0
    np.testing.assert_array_equal(chosen.coefficients, solve_ridge(K, Y, ridge).coefficients)


def test_the_tilt_picked_by_accuracy_is_the_most_accurate_of_the_candidates():
    K, Y = image_kernel_matrix(40), one_hot(40)
    chosen = solve_ridge(K, Y, 1e-2, tilt="loo", criterion="accuracy")

    def share(tilt):
        return np.mean(solve_ridge(K, Y, 1e-2, tilt=tilt).leave_one_out.argmax(axis=1) == Y.argmax(axis=1))

    assert share(chosen.tilt) == max(share(t) for t in np.arange(-20, 21) / 20)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_path_scores_every_ridge_as_solving_at_it_does(weighted):
    K, Y = image_kernel_matrix(40), one_hot(40)
    weights = np.random.default_rng(2).uniform(0.2, 3.0, 40) if weighted else None
    ridges = [1e-6, 1e-3, 0.1, 10.0]
    path = ridge_path(K, Y, ridges, weights=weights)
    for ridge, error, share in zip(ridges, path.squared_errors, path.accuracies, strict=True):
        left_out = solve_ridge(K, Y, ridge, weights=weights).leave_one_out
        assert error == pytest.approx(np.average(((left_out - Y) ** 2).mean(axis=1), weights=weights), rel=1e-8)
        assert share == np.average(left_out.argmax(axis=1) == Y.argmax(axis=1), weights=weights)
    if not weighted:
        np.testing.assert_allclose(path.conditions, [np.linalg.cond(K + r * np.eye(40)) for r in ridges], rtol=1e-6)


def test_a_ridge_picked_by_leave_one_out_is_the_best_of_the_path():
    X = np.random.default_rng(0).standard_normal((60, 5))
    Y = X[:, 0] + np.random.default_rng(1).standard_normal(60)
    K = X @ X.T
    path, chosen = ridge_path(K, Y), solve_ridge(K, Y, "loo")
    assert chosen.ridge == path.best() == path.ridges[path.squared_errors.argmin()]
    assert 0.5 < chosen.ridge < 500  # the right one: variance of the noise over that of the weights
    assert np.isinf(path.squared_errors[0])  # 5 features: at ridge 0 the matrix is singular


def test_accuracy_breaks_ties_by_the_squared_error():
    K, Y = np.eye(6), np.eye(2)[[0, 1, 0, 1, 0, 1]]
    path = ridge_path(K, Y, [0.1, 1.0])
    assert path.accuracies[0] == path.accuracies[1]
    assert path.best("accuracy") == path.ridges[path.squared_errors.argmin()]


def test_weights_equal_those_of_scikit_learn():
    K, Y = image_kernel_matrix(40), random_targets(40)
    weights = np.random.default_rng(2).uniform(0.1, 5.0, 40)
    theirs = KernelRidge(alpha=0.3, kernel="precomputed").fit(K, Y, sample_weight=weights).dual_coef_
    np.testing.assert_allclose(solve_ridge(K, Y, 0.3, weights=weights).coefficients, theirs, rtol=0, atol=AGREEMENT)


def test_a_weight_of_two_is_a_row_that_is_there_twice():
    K, Y = random_kernel_matrix(10), random_targets(10)
    weights = np.ones(10)
    weights[3] = 2.0
    twice = np.append(np.arange(10), 3)
    doubled = solve_ridge(K[np.ix_(twice, twice)], Y[twice], 0.5).coefficients
    doubled[3] += doubled[10]
    np.testing.assert_allclose(
        solve_ridge(K, Y, 0.5, weights=weights).coefficients, doubled[:10], rtol=0, atol=AGREEMENT
    )


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"tilt": "much"}, ParameterError, "tilt must be a finite number, or 'loo'"),
        ({"tilt": float("nan")}, ParameterError, "tilt must be"),
        ({"tilt": True}, ParameterError, "tilt must be"),
        ({"ridge": "cv"}, ParameterError, "ridge must be"),
        ({"criterion": "luck"}, ParameterError, "criterion is 'squared error' or 'accuracy', not 'luck'"),
        ({"criterion": "accuracy"}, InputError, r"a column of Y for each class.*\(4,\)"),
        ({"weights": [1.0, 1.0]}, InputError, r"K has 4 rows, but weights are of shape \(2,\)"),
        ({"weights": [1.0, -1.0, 1.0, 1.0]}, InputError, "that of row 1 is -1"),
        ({"weights": [1.0, np.nan, 1.0, 1.0]}, InputError, "weights holds NaN or infinite values, first in row 1"),
    ],
)
def test_a_bad_option_is_refused(options, error, complaint):
    with pytest.raises(error, match=complaint):
        solve_ridge(np.eye(4), np.ones(4), **({"ridge": 1.0} | options))


def test_a_path_without_any_usable_ridge_says_which_would_be():
    with pytest.raises(NotPositiveDefinite, match=r"smallest eigenvalue is -1, .* try larger ones, from 2e[+]00 on"):
        ridge_path(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2), [0.0, 0.5])


def test_too_many_rows_for_a_path_are_refused(monkeypatch):
    monkeypatch.setattr(path_module, "_LARGEST", 3)
    with pytest.raises(ParameterError, match="at most 3 rows, not 4; score a few ridges one at a time"):
        ridge_path(np.eye(4), np.ones(4))
    with pytest.raises(ParameterError, match="at least one ridge"):
        ridge_path(np.eye(2), np.ones(2), [])
