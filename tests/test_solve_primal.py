"""Ridge regression on features equals kernel ridge regression with their inner products, for any device and panels."""

import numpy as np
import pytest

from fake_cupy import install
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.solve import solve_primal, solve_ridge

F = np.random.default_rng(0).standard_normal((60, 7))
LABELS = np.eye(3)[np.arange(60) % 3]
NUMBERS = F[:, 0] + 0.1 * np.random.default_rng(1).standard_normal(60)
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2, 60)


@pytest.mark.parametrize("targets", [NUMBERS, LABELS])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_it_is_ridge_regression_with_the_kernel_of_the_features(targets, weights):
    dual = solve_ridge(F @ F.T, targets, 0.3, weights=weights)
    primal = solve_primal(F, targets, 0.3, weights=weights)
    np.testing.assert_allclose(F @ primal.coefficients, F @ F.T @ dual.coefficients, atol=1e-10)
    np.testing.assert_allclose(primal.leave_one_out, dual.leave_one_out, atol=1e-10)


@pytest.mark.parametrize(("targets", "criterion"), [(NUMBERS, "squared error"), (LABELS, "accuracy")])
def test_the_ridge_by_leave_one_out_is_the_best_of_a_path(targets, criterion):
    chosen = solve_primal(F, targets, "loo", criterion=criterion)
    errors = [np.square(solve_primal(F, targets, one).leave_one_out - targets).mean() for one in (1e-3, 1.0, 1e3)]
    if criterion == "squared error":
        assert np.square(chosen.leave_one_out - targets).mean() <= min(errors)
    again = solve_primal(F, targets, chosen.ridge)
    np.testing.assert_allclose(again.coefficients, chosen.coefficients, atol=1e-12)


def test_panels_and_devices_do_not_matter(monkeypatch):
    whole = solve_primal(F, LABELS, "loo", criterion="accuracy")
    panels = solve_primal(lambda: iter((F[:1], F[1:40], F[40:])), LABELS, whole.ridge)
    np.testing.assert_allclose(panels.coefficients, whole.coefficients, atol=1e-12)
    install(monkeypatch)
    there = solve_primal(F.astype(np.float32), LABELS, whole.ridge, backend="cuda")
    np.testing.assert_allclose(there.coefficients, whole.coefficients, atol=1e-6)
    np.testing.assert_allclose(there.leave_one_out, whole.leave_one_out, atol=1e-6)


def test_equal_and_zero_features_are_allowed():
    doubled = np.hstack([F, F, np.zeros((60, 2))])
    wanted = solve_primal(F, NUMBERS, 0.1)
    found = solve_primal(doubled, NUMBERS, 0.2)  # the kernel doubles, and so must the ridge
    np.testing.assert_allclose(doubled @ found.coefficients, F @ wanted.coefficients, atol=1e-10)


@pytest.mark.parametrize(
    ("features", "targets", "ridge", "error", "complaint"),
    [
        (F, NUMBERS, 0.0, ParameterError, "need a ridge above 0"),
        (F, NUMBERS, -1.0, ParameterError, "ridge"),
        (F[0], NUMBERS, 1.0, InputError, "F must be of shape"),
        (F[:, :0], NUMBERS, 1.0, InputError, "F must be of shape"),
        (F, NUMBERS[:50], 1.0, InputError, "more rows of features than the 50 targets"),
        (F[:50], NUMBERS, 1.0, InputError, "50 rows of features, but 60 targets"),
        (np.full_like(F, np.nan), NUMBERS, 1.0, InputError, "NaN"),
        (1e20 * F, NUMBERS, 1e-10, NotPositiveDefinite, "lost in rounding"),
    ],
)
def test_bad_input_is_refused(features, targets, ridge, error, complaint):
    with pytest.raises(error, match=complaint):
        solve_primal(features, targets, ridge)
