"""The factor: every method against dense formulas, updates against new factors, on a CPU and an emulated GPU."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrices import random_kernel_matrix, random_targets, solve_in_small_blocks
from tangentless.algebra import CpuAlgebra
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.solve import DoesNotFit, Factor, calibration, factorise, solve_ridge
from tangentless.solve.dirichlet import ClassFactors
from tangentless.solve.pivoted import choose_rows

# Condition numbers below are under 1e4, and float64 carries 16 digits.
AGREEMENT = 1e-10


@pytest.fixture(params=[False, True], ids=["one block", "blocks"])
def small_blocks(monkeypatch, request):
    if request.param:
        solve_in_small_blocks(monkeypatch)


def split(rows, more, seed=0):
    K = random_kernel_matrix(rows + more, seed)
    return K[:rows, :rows], K[rows:, :rows], K[rows:, rows:], K


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 20, 21, 60])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_every_method_equals_dense_formulas(small_blocks, rows, ridge):
    K, C, S, _ = split(rows, 5)
    Y = random_targets(rows)
    factor, Q = factorise(K, ridge), np.linalg.inv(K + ridge * np.eye(rows))
    posterior = S - C @ Q @ C.T
    for found, exact in [
        (factor.solve(Y), Q @ Y),
        (factor.solve(Y[:, 0]), Q @ Y[:, 0]),
        (factor.inverse_diagonal, Q.diagonal()),
        (factor.leave_one_out(Y), Y - Q @ Y / Q.diagonal()[:, None]),
        (factor.variance(C, S.diagonal()), posterior.diagonal()),
        (factor.covariance(C, S), posterior),
        (factor.whiten(C).T @ factor.whiten(C), C @ Q @ C.T),
        (factor.misfits(Y), np.einsum("ij,ik,kj->j", Y, Q, Y)),
        (factor.log_determinant, -np.linalg.slogdet(Q)[1]),
    ]:
        np.testing.assert_allclose(found, exact, rtol=0, atol=AGREEMENT * max(1.0, np.abs(exact).max()))
    assert len(factor) == rows
    assert f"{rows} rows" in repr(factor)


def test_results_do_not_depend_on_the_order_of_calls():
    K, C, S, _ = split(30, 5)
    Y = random_targets(30)
    one, other = factorise(K, 0.1), factorise(K, 0.1)
    first = one.solve(Y), one.variance(C, S.diagonal()), one.tilted(Y, "loo").coefficients
    second = other.tilted(Y, "loo").coefficients, other.variance(C, S.diagonal()), other.solve(Y)
    for ours, theirs in zip(first, reversed(second), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_one_factor_serves_all_tilts():
    K, Y = random_kernel_matrix(40), random_targets(40)
    tilting = factorise(K, 0.1).tilting(Y)
    for tilt in (0.0, 0.3, "loo"):
        alone = solve_ridge(K, Y, 0.1, tilt=tilt)
        np.testing.assert_array_equal(tilting.at(tilt).coefficients, alone.coefficients)
        np.testing.assert_array_equal(tilting.at(tilt).leave_one_out, alone.leave_one_out)


@settings(max_examples=30)
@given(
    rows=st.integers(1, 40),
    more=st.integers(1, 20),
    ridge=st.sampled_from([0.0, 1e-3, 1.0]),
    weighted=st.booleans(),
    known=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_update_equals_starting_over(rows, more, ridge, weighted, known, seed):
    K, C, S, whole = split(rows, more, seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, rows + more) if weighted else None
    before = factorise(K, ridge, weights=None if weights is None else weights[:rows])
    if known:
        assert before.inverse_diagonal.shape == (rows,)
    updated = before.update(C, S, weights=None if weights is None else weights[rows:])
    fresh, Y = factorise(whole, ridge, weights=weights), random_targets(rows + more)
    assert ("_inverse_diagonal" in vars(updated)) == known
    np.testing.assert_allclose(updated.inverse_diagonal, fresh.inverse_diagonal, rtol=AGREEMENT)
    exact = fresh.tilted(Y, 0.3)
    found = updated.tilted(Y, 0.3)
    np.testing.assert_allclose(found.coefficients, exact.coefficients, rtol=0, atol=1e-8)
    assert found.residual < 1e-12
    np.testing.assert_array_equal(np.triu(updated.work, 1), np.triu(fresh.work, 1))


@settings(max_examples=30)
@given(
    rows=st.integers(2, 150),
    share=st.floats(0, 1),
    ridge=st.sampled_from([0.0, 1e-3, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_downdate_equals_starting_over(rows, share, ridge, seed):
    rng = np.random.default_rng(seed)
    gone = rng.permutation(rows)[: max(1, min(rows - 1, int(share * rows)))]
    kept = np.setdiff1d(np.arange(rows), gone)
    K = random_kernel_matrix(rows, seed)
    found, fresh = factorise(K, ridge).downdate(gone), factorise(K[np.ix_(kept, kept)], ridge)
    assert np.array_equal(factorise(K, ridge).downdate(np.isin(np.arange(rows), gone)).pack(), found.pack())
    np.testing.assert_allclose(found.work, fresh.work, rtol=0, atol=AGREEMENT)
    np.testing.assert_allclose(found.own, fresh.own)


def test_a_factor_is_packed_and_pickled_without_loss():
    K, Y = random_kernel_matrix(30), random_targets(30)
    factor = factorise(K, 0.2)
    for other in (
        pickle.loads(pickle.dumps(factor)),
        Factor.unpack(factor.pack(), np.full(30, 0.2), 0.2),
    ):
        np.testing.assert_array_equal(other.solve(Y), factor.solve(Y))
        np.testing.assert_allclose(other.work, factor.work, rtol=0, atol=1e-15)
        np.testing.assert_allclose(other.own, factor.own, rtol=1e-14)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("rows", [15, 40])
def test_a_gpu_gives_the_results_of_the_cpu(small_blocks, fake_cupy, kind, rows):
    K, C, S, _ = split(rows, 9)
    Y, codes = random_targets(rows), np.arange(rows) % 3

    def ask(matrix, backend):
        factor = factorise(matrix, 0.1, backend=backend)
        updated, smaller = factor.update(C, S), factor.downdate([0, 3, rows - 1])
        classes = ClassFactors.of(matrix, codes, 3, 0.01, 5.0, backend=backend)
        return [
            factor.solve(Y),
            factor.variance(C, S.diagonal()),
            factor.covariance(C, S),
            factor.sample(Y, C, S, 3),
            updated.inverse_diagonal,
            smaller.solve(Y[: rows - 3]),
            *classes.latent(C, S.diagonal()),
            *classes.leave_one_out(),
            classes.log_likelihood(),
            Factor.unpack(factor.pack(), np.full(rows, 0.1), 0.1, backend="cuda" if backend != "cpu" else "cpu").solve(
                Y
            ),
        ]

    given = fake_cupy.asarray(K) if kind == "device" else K
    for found, exact in zip(ask(given, "cuda" if kind == "host" else "auto"), ask(K, "cpu"), strict=True):
        np.testing.assert_allclose(np.array(found), exact, rtol=0, atol=1e-8)


def test_weights_may_be_torch_tensors():
    torch = pytest.importorskip("torch")
    K, weights = np.eye(2), [1.0, 2.0]
    with pytest.warns(UserWarning, match="requires gradients"):
        found = factorise(K, 0.1, weights=torch.tensor(weights, requires_grad=True)).solve([1.0, 1.0])
    assert np.array_equal(found, factorise(K, 0.1, weights=weights).solve([1.0, 1.0]))


def test_torch_tensors_give_torch_tensors():
    torch = pytest.importorskip("torch")
    K, C, S, _ = split(20, 4)
    ours, theirs = factorise(torch.from_numpy(K), 0.1), factorise(K, 0.1)
    Y = random_targets(20)
    for found, exact in [
        (ours.solve(torch.from_numpy(Y)), theirs.solve(Y)),
        (ours.variance(torch.from_numpy(C), torch.from_numpy(S).diagonal()), theirs.variance(C, S.diagonal())),
        (ours.leave_one_out(torch.from_numpy(Y)), theirs.leave_one_out(Y)),
    ]:
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.numpy(), exact)


def test_rows_that_are_there_already_are_named_when_they_are_added():
    K = random_kernel_matrix(30)
    factor = factorise(K)
    with pytest.raises(NotPositiveDefinite, match=r"1 pair of rows are duplicates \(4 and 30\).*would work"):
        factor.update(K[4:5], K[4:5, 4:5])
    assert len(factorise(K, 0.1).update(K[4:5], K[4:5, 4:5])) == 31


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (
            lambda f: f.variance(np.ones((2, 4)), np.ones(2)),
            r"with the 5 of this factor, \(m, 5\), but its shape is \(2, 4\)",
        ),
        (lambda f: f.variance(np.ones(5), np.ones(2)), r"\(m, 5\)"),
        (lambda f: f.variance(np.full((2, 5), np.nan), np.ones(2)), "C holds NaN"),
        (lambda f: f.variance(np.ones((2, 5)), np.ones(3)), r"each of 2 rows with itself, not \(3,\)"),
        (lambda f: f.covariance(np.ones((2, 5)), np.ones((3, 3))), r"among 2 new rows, but its shape is \(3, 3\)"),
        (lambda f: f.covariance(np.ones((2, 5)), np.array([[1.0, 2.0], [0.0, 1.0]])), "not symmetric"),
        (lambda f: f.solve(np.ones(4)), "K has 5 rows, but Y has 4"),
        (lambda f: f.solve(np.full(5, np.nan)), "Y holds NaN"),
        (lambda f: f.downdate([5]), "some, but not all, of 0 to 4"),
        (lambda f: f.downdate([1.0]), "whole numbers or a mask of 5, not of dtype float64"),
        (lambda f: f.downdate([True, False]), "whole numbers or a mask of 5, not of dtype bool"),
        (lambda f: f.downdate([]), "some, but not all"),
        (lambda f: f.downdate(range(5)), "some, but not all"),
        (lambda f: f.update(np.ones((1, 5)), np.eye(1), weights=[1.0]), "weights must be given to all rows or to none"),
        (lambda f: Factor.unpack(np.ones(3), np.ones(5), 1.0), "15 finite numbers"),
    ],
)
def test_bad_arguments_are_refused(ask, complaint):
    with pytest.raises(InputError, match=complaint):
        ask(factorise(np.eye(5), 1.0))


def test_a_covariance_that_cannot_fit_says_how_large_it_is(monkeypatch):
    factor = factorise(np.eye(5), 1.0)
    monkeypatch.setattr(CpuAlgebra, "free_bytes", lambda self: 100)
    with pytest.raises(DoesNotFit, match=r"covariance of 2 rows, 0\.0 GB, need .* standard deviations"):
        factor.covariance(np.ones((2, 5)), np.eye(2))


@pytest.mark.parametrize("block", [1, 4])
def test_rows_are_chosen_greedily_and_copies_are_left(block):
    K = random_kernel_matrix(30, features=12)
    twice = np.concatenate([np.arange(30), np.arange(30)])
    doubled = K[np.ix_(twice, twice)]
    chosen = choose_rows(lambda rows, columns: doubled[rows][:, columns], doubled.diagonal(), 40, block=block)
    assert len(chosen) == len(set(chosen % 30)) == 12  # the rank
    if block == 1:
        for place in range(12):
            before = chosen[:place]
            explained = K[:, before % 30] @ np.linalg.pinv(K[np.ix_(before % 30, before % 30)]) @ K[before % 30]
            left = (K - explained).diagonal()
            assert left[chosen[place] % 30] == pytest.approx(left.max(), abs=1e-8)


def test_too_many_rows_to_choose_are_refused():
    with pytest.raises(ParameterError, match="of 3 rows, from 1 to 3 can be chosen, not 4"):
        choose_rows(lambda rows, columns: np.eye(3)[rows][:, columns], np.ones(3), 4)
    with pytest.raises(InputError, match="variances must be finite"):
        choose_rows(lambda rows, columns: np.eye(3)[rows][:, columns], [1.0, np.nan, 1.0], 2)


def test_calibration_of_perfect_and_of_overconfident_probabilities():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(4), 100_000)
    labels = (rng.random((100_000, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    found = calibration(shares, labels)
    assert found.ece < 0.01  # 100,000 draws in 15 bins
    assert found.nll == pytest.approx(-(shares * np.log(shares)).sum(axis=1).mean(), abs=0.01)
    sharp = shares**4 / (shares**4).sum(axis=1, keepdims=True)
    assert calibration(sharp, labels).ece > 0.1
    names = np.array(["a", "b", "c", "d"])
    assert calibration(shares, names[labels], classes=names).brier == found.brier


@pytest.mark.parametrize(
    ("shares", "labels", "complaint"),
    [
        ([[0.5, 0.6]], [0], "sum to 1"),
        ([[1.5, -0.5]], [0], "at least 0"),
        ([[np.nan, 1.0]], [0], "at least 0"),
        ([[0.5, 0.5]], [0, 1], r"shape \(1, 2\) do not go with labels of shape \(2,\)"),
        ([[0.5, 0.5]], [2], "no column of the probabilities"),
    ],
)
def test_bad_probabilities_are_refused(shares, labels, complaint):
    with pytest.raises(InputError, match=complaint):
        calibration(shares, labels)


@pytest.mark.parametrize("scale", [-1.0, 0.0, np.nan, "2", [1.0, 2.0, 3.0], [[1.0, 2.0]]])
def test_scales_that_are_none_are_refused(scale):
    C, S, K = np.zeros((1, 5)), np.ones((1, 1)), random_kernel_matrix(5)
    factor, Y = factorise(K, 0.1), random_targets(5, 2)
    for ask in (lambda: factor.log_likelihood(Y, scale), lambda: factor.sample(Y, C, S, 2, scale=scale)):
        with pytest.raises(InputError, match="scale"):
            ask()


def test_columns_of_one_name_and_no_bins_are_refused():
    for classes in (2, [[0, 1]], [0]):
        with pytest.raises(InputError, match="classes names each of 2 columns"):
            calibration([[0.5, 0.5]], [0], classes=classes)
    with pytest.raises(InputError, match="names a column twice"):
        calibration([[0.2, 0.3, 0.5]], [0], classes=[0, 0, 1])
    with pytest.raises(ParameterError, match="bins is a whole number from 1, not 0"):
        calibration([[0.5, 0.5]], [0], bins=0)
