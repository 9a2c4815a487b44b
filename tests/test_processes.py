"""Gaussian processes: against dense formulas and scikit-learn, in numerically hard cases, and with bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessRegressor as TheirRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.utils.estimator_checks import parametrize_with_checks

import tangentless as tl
from tangentless.algebra import CpuAlgebra
from tangentless.classical import Gaussian
from tangentless.errors import InputError, NotPositiveDefinite, ParameterError
from tangentless.processes import GaussianProcessClassifier, GaussianProcessRegressor
from tangentless.solve import DoesNotFit
from tangentless.solve.dirichlet import ClassFactors, expected_softmax, noises

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"
AGREEMENT = 1e-9  # of float64 with formulas that use an explicit inverse


def points(rows, seed=0, width=3):
    return np.random.default_rng(seed).standard_normal((rows, width))


def smooth(X):
    return np.sin(X[:, 0]) + 0.3 * X[:, 1]


def failures_of_checks(estimator):
    failures = {}
    if estimator.kernel == "precomputed":
        failures["check_positive_only_tag_during_fit"] = "subtracts the mean of a kernel matrix"
    return failures


@parametrize_with_checks(
    [
        GaussianProcessRegressor("relu relu"),
        GaussianProcessRegressor("relu", noise="mle"),
        GaussianProcessRegressor("relu", noise="loo", scale=2.0),
        GaussianProcessRegressor("precomputed", noise=10.0),
        GaussianProcessClassifier("relu relu"),
    ],
    expected_failed_checks=failures_of_checks,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.1, 10.0])
@pytest.mark.parametrize("columns", [None, 2])
def test_the_posterior_equals_dense_formulas(noise, columns):
    rng = np.random.default_rng(0)
    features, Y = rng.standard_normal((300, 400)) / 20, rng.standard_normal((250, 2))[:, : columns or 1]
    Y = Y if columns else Y[:, 0]
    K = features @ features.T
    train, new = slice(0, 250), slice(250, 300)
    model = GaussianProcessRegressor("precomputed", noise=noise).fit(K[train, train], Y)
    A = K[train, train] + noise * np.eye(250)
    Q = np.linalg.inv(A)
    C, S = K[new, train], K[new, new]
    scale = np.einsum("i...,ij,j...->...", Y, Q, Y) / 250
    np.testing.assert_allclose(model.scale_, scale, rtol=AGREEMENT)
    mean, std = model.predict(C, return_std=True, prior=S.diagonal())
    _, cov = model.predict(C, return_cov=True, prior=S)
    np.testing.assert_allclose(mean, C @ Q @ Y, rtol=0, atol=AGREEMENT * np.abs(Y).max())
    exact = np.multiply.outer(S - C @ Q @ C.T, scale)
    np.testing.assert_allclose(cov, exact, rtol=0, atol=AGREEMENT * exact.max())
    np.testing.assert_allclose(std, np.sqrt(np.einsum("ii...->i...", exact)), rtol=AGREEMENT)
    likelihood = sum(
        multivariate_normal(np.zeros(250), one * A).logpdf(column)
        for one, column in zip(np.atleast_1d(scale), Y.reshape(250, -1).T, strict=True)
    )
    assert model.log_marginal_likelihood_ == pytest.approx(likelihood, rel=AGREEMENT)
    _, noisy = model.predict(C, return_std=True, include_noise=True, prior=S.diagonal())
    np.testing.assert_allclose(noisy**2, std**2 + noise * scale, rtol=AGREEMENT)
    _, noisy = model.predict(C, return_cov=True, include_noise=True, prior=S)
    np.testing.assert_allclose(noisy - cov, np.multiply.outer(noise * np.eye(50), scale), atol=1e-12)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_gaussian_kernel_gives_the_process_of_scikit_learn(columns):
    X, new = points(60), points(20, seed=1)
    Y = np.stack([smooth(X), X[:, 1] ** 2], axis=1)[:, :columns].squeeze()
    theirs = TheirRegressor(RBF(1.5), alpha=0.01, optimizer=None).fit(X, Y)
    ours = GaussianProcessRegressor(Gaussian(1 / (2 * 1.5**2)), noise=0.01, scale=1.0, precision="float64").fit(X, Y)
    for options in ({"return_std": True}, {"return_cov": True}):
        for one, other in zip(ours.predict(new, **options), theirs.predict(new, **options), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)
    assert ours.log_marginal_likelihood_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-8)
    assert ours.sample_y(new, 4).shape == theirs.sample_y(new, 4).shape


def test_samples_have_the_mean_and_covariance_of_the_posterior():
    X, new = points(20), points(6, seed=1)
    model = GaussianProcessRegressor("relu", noise=0.1, backend="reference").fit(X, np.stack([X[:, 0], X[:, 1]], 1))
    draws = model.sample_y(new, n_samples=40_000, random_state=3)
    mean, cov = model.predict(new, return_cov=True)
    assert draws.shape == (6, 2, 40_000)
    for target in range(2):
        deviations = np.sqrt(cov[..., target].diagonal())
        # In units of the deviations: means of 40,000 draws have a standard error of 1/200, covariances of about 1/140.
        np.testing.assert_allclose(draws[:, target].mean(axis=1), mean[:, target], atol=5 * deviations.max() / 200)
        spread = np.cov(draws[:, target]) - cov[..., target]
        assert np.abs(spread / np.outer(deviations, deviations)).max() < 5 / 140
    np.testing.assert_array_equal(draws, model.sample_y(new, n_samples=40_000, random_state=3))


@settings(max_examples=25)
@given(
    rows=st.integers(2, 12),
    noise=st.sampled_from([1e-10, 1e-4, 1.0]),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    precision=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_deviations_are_numbers_of_at_least_zero_in_the_hard_places(rows, noise, scale, precision, seed):
    X = points(rows, seed)
    X = np.concatenate([X, X[:1] + 1e-9, X[:1]])  # a near duplicate and a duplicate
    model = GaussianProcessRegressor("normalize relu", noise=noise, precision=precision, backend="reference")
    model.fit(X, scale * (smooth(X) + 1))
    _, std = model.predict(np.concatenate([X, X * 1e6, X + 1e-12]), return_std=True)
    assert np.isfinite(std).all()
    assert (std >= 0).all()
    _, cov = model.predict(np.concatenate([X, X]), return_cov=True)
    assert (cov.diagonal() >= 0).all()
    assert np.isfinite(model.sample_y(np.concatenate([X, X]), 2)).all()
    assert np.isfinite(model.novelty(X)).all()
    assert np.isfinite(model.log_marginal_likelihood_)


def test_at_noise_zero_training_images_have_no_deviation():
    images = np.random.default_rng(0).standard_normal((12, 8, 8, 1)).astype(np.float32)
    model = GaussianProcessRegressor(SMALL, noise=0.0, scale=1.0).fit(images, images.mean(axis=(1, 2, 3)))
    mean, std = model.predict(images, return_std=True)
    np.testing.assert_allclose(mean, model.y_fit_, atol=1e-3)
    assert std.max() < 1e-2  # kernels in float32: sqrt(1e-7 times a condition number of 100)
    images[7] = images[2]
    refused = pytest.raises(NotPositiveDefinite, match=r"at noise=0: .*duplicates \(2 and 7\).*; noise=\S+ would work")
    with refused:
        clone(model).fit(images, images.mean(axis=(1, 2, 3)))
    with refused:
        clone(model).fit(images[:7], images[:7].mean(axis=(1, 2, 3))).partial_fit(images[7:], np.arange(5.0))


@pytest.mark.parametrize("criterion", ["mle", "loo"])
@pytest.mark.parametrize("scale", ["mle", 3.0])
def test_the_noise_that_is_picked_is_the_best_nearby(criterion, scale):
    X = points(80)
    Y = smooth(X) + 0.3 * np.random.default_rng(5).standard_normal(80)
    model = GaussianProcessRegressor(Gaussian(0.2), noise=criterion, scale=scale).fit(X, Y)

    def value(noise):
        other = clone(model).set_params(noise=noise).fit(X, Y)
        if criterion == "mle":
            return other.log_marginal_likelihood_
        variances = other.scale_ / other.factor_.inverse_diagonal
        misses = Y - other.factor_.leave_one_out(Y)
        return -0.5 * np.sum(misses**2 / variances + np.log(2 * np.pi * variances))

    assert 1e-3 < model.noise_ < 10
    assert value(model.noise_) >= max(value(0.9 * model.noise_), value(1.1 * model.noise_))


def test_more_rows_at_once_or_in_parts_give_the_same_model():
    X, new = points(80), points(10, seed=1)
    Y = np.stack([smooth(X), X[:, 2]], axis=1)
    whole = GaussianProcessRegressor("relu", noise=0.05, backend="reference").fit(X, Y)
    parts = clone(whole).partial_fit(X[:50], Y[:50])
    novelty = parts.novelty(new)
    for part in (slice(50, 51), slice(51, 80)):
        parts.partial_fit(X[part], Y[part])
    assert not np.array_equal(novelty, parts.novelty(new))
    np.testing.assert_allclose(parts.novelty(new), whole.novelty(new), rtol=1e-10)
    for one, other in zip(parts.predict(new, return_std=True), whole.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    np.testing.assert_allclose(parts.scale_, whole.scale_, rtol=1e-10)
    assert parts.log_marginal_likelihood_ == pytest.approx(whole.log_marginal_likelihood_, rel=1e-10)
    with pytest.raises(InputError, match=r"y has the shape \(1,\), but the model was fitted to \(80, 2\)"):
        parts.partial_fit(X[:1], Y[:1, 0])


def test_novelty_is_one_for_typical_images_and_large_for_strange_ones():
    X = points(200)
    model = GaussianProcessRegressor(Gaussian(0.2), noise=1e-3).fit(X, smooth(X))
    assert 0.1 < np.median(model.novelty(points(200, seed=1))) < 3
    assert model.novelty(10 + points(20)).min() > 10 * model.novelty(X).max()


def test_chosen_images_are_those_of_the_largest_variance_given_the_ones_before():
    X, pool = points(20), points(100, seed=1)
    Y = smooth(X)
    model = GaussianProcessRegressor(Gaussian(0.2), noise=1e-6, scale=1.0, precision="float64").fit(X, Y)
    chosen = model.choose(pool, 10, block=1)
    for place in range(10):
        _, std = model.predict(pool, return_std=True)
        assert std[chosen[place]] == pytest.approx(std.max(), rel=1e-4)  # up to noise
        model.partial_fit(pool[chosen[place : place + 1]], [0.0])
    together = GaussianProcessRegressor(Gaussian(0.2), noise=1e-6, precision="float64").fit(X, Y).choose(pool, 10)
    assert len(set(together)) == 10


def test_images_are_chosen_before_anything_is_known_of_them():
    X = np.repeat(points(5), 4, axis=0)
    chosen = tl.choose(Gaussian(1.0), X, 10, backend="reference")
    assert sorted(chosen // 4) == [0, 1, 2, 3, 4]  # the other rows are copies, without variance
    with pytest.raises(ParameterError, match="from 1 to 20 can be chosen, not 0"):
        tl.choose("relu", X, 0)
    for block in (0, -1, 1.5):
        with pytest.raises(ParameterError, match="block is a whole number of rows from 1"):
            tl.choose("relu", X, 2, block=block)


def test_one_factor_for_all_classes_equals_one_for_each():
    X = points(120)
    codes = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
    K = Gaussian(0.3)(X)
    fitted = ClassFactors.of(K[:100, :100], codes[:100], 3, 0.01, 7.0)
    C, d = K[100:, :100], K.diagonal()[100:]
    means, variances = fitted.latent(C, d)
    small, large = noises(0.01)
    total = 0.0
    for number in range(3):
        A = 7.0 * K[:100, :100] + np.diag(np.where(codes[:100] == number, small, large))
        y = fitted.targets[:, number]
        np.testing.assert_allclose(means[:, number], 7.0 * C @ np.linalg.solve(A, y), rtol=0, atol=1e-10)
        explained = 49.0 * np.einsum("ij,ji->i", C, np.linalg.solve(A, C.T))
        np.testing.assert_allclose(variances[:, number], 7.0 * d - explained, rtol=0, atol=1e-10)
        total += multivariate_normal(np.zeros(100), A).logpdf(y)
    assert fitted.log_likelihood() == pytest.approx(total, rel=1e-10)


def test_leaving_a_row_out_of_all_classes_equals_refitting_without_it():
    X = points(40)
    codes, K = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5), Gaussian(0.3)(X)
    fitted = ClassFactors.of(K, codes, 3, 0.01, 7.0)
    means, variances = fitted.leave_one_out()
    for row in (0, 17, 39):
        kept = np.delete(np.arange(40), row)
        others = ClassFactors.of(K[np.ix_(kept, kept)], codes[kept], 3, 0.01, 7.0)
        vars(others)["targets"] = fitted.targets[kept]  # each set would be centred by a mean of its own
        mean, variance = others.latent(K[row, kept][None], K[row, row][None])
        np.testing.assert_allclose(means[row], mean[0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(variances[row], variance[0], rtol=0, atol=1e-10)


def test_the_expectation_of_a_softmax_is_that_of_many_draws():
    rng = np.random.default_rng(0)
    means, variances = 2 * rng.standard_normal((5, 4)), rng.uniform(0, 9, (5, 4))
    draws = means[:, None] + np.sqrt(variances)[:, None] * rng.standard_normal((5, 200_000, 4))
    exact = np.exp(draws - draws.max(axis=2, keepdims=True))
    exact = (exact / exact.sum(axis=2, keepdims=True)).mean(axis=1)
    np.testing.assert_allclose(expected_softmax(means, variances), exact, atol=5e-3)


def test_a_classifier_is_sure_where_it_has_seen_images_and_even_where_not():
    X = points(150, width=2)
    labels = np.array(["left", "right"])[(X[:, 0] > 0).astype(int)]
    model = GaussianProcessClassifier(Gaussian(0.5)).fit(X, labels)
    shares = model.predict_proba([[-1.0, 0.0], [1.0, 0.0], [50.0, 0.0]])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert shares[0, 0] > 0.9
    assert shares[1, 1] > 0.9
    np.testing.assert_allclose(shares[2], 0.5, atol=0.01)
    assert list(model.predict([[-1.0, 0.0], [1.0, 0.0]])) == ["left", "right"]
    assert model.novelty([[50.0, 0.0]]) > model.novelty(X).max()
    assert len(model.choose(points(30, seed=1, width=2), 5)) == 5


def test_on_digits_the_probabilities_are_calibrated():
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1)
    model = GaussianProcessClassifier(SMALL).fit(images[:500], labels[:500])
    shares = model.predict_proba(images[500:1000])
    right = shares.argmax(axis=1) == labels[500:1000]
    assert right.mean() > 0.9
    assert abs(shares.max(axis=1).mean() - right.mean()) < 0.05  # 500 images: a standard error of 0.02


def test_a_classifier_of_rare_classes_still_picks_its_scale():
    X = points(1100)
    labels = np.zeros(1100, dtype=int)
    labels[-1] = 1  # probably not among the 500 rows that choose the scale
    model = GaussianProcessClassifier(Gaussian(0.5)).fit(X, labels)
    assert model.predict_proba(X[:3]).shape == (3, 2)


@pytest.mark.parametrize(
    ("parameters", "error", "complaint"),
    [
        ({"noise": -1e-3}, ParameterError, "noise must be a finite number of at least 0, 'mle' or 'loo', not -0.001"),
        ({"noise": "cv"}, ParameterError, "noise must be"),
        ({"noise": float("nan")}, ParameterError, "noise must be"),
        ({"scale": 0.0}, ParameterError, "scale must be a finite number above 0, or 'mle', not 0.0"),
        ({"scale": "loo"}, ParameterError, "scale must be"),
    ],
)
def test_bad_parameters_are_refused(parameters, error, complaint):
    with pytest.raises(error, match=complaint):
        GaussianProcessRegressor("relu", **parameters).fit(points(5), np.arange(5.0))


@pytest.mark.parametrize(
    ("X", "y", "parameters", "complaint"),
    [
        (points(4), np.full(4, 3.0), {}, "all rows have the same target"),
        (points(4), np.stack([np.zeros(4), np.arange(4.0)], 1), {}, "a target is zero in all rows"),
        (points(2), [0.0, 1.0], {"noise": "mle"}, "noise='mle' needs at least 3 rows, and there are 2"),
        (points(2), [0.0, 1.0], {"noise": "loo"}, "noise='loo' needs at least 3 rows"),
        (points(4), [0.0, 1.0, np.nan, 1.0], {}, "NaN"),
        (np.full((4, 3), np.nan), np.arange(4.0), {}, "NaN"),
        (points(4), 1e200 * np.arange(4.0), {}, "no scale that float64 can hold"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_data_are_refused(X, y, parameters, complaint):
    with pytest.raises(InputError, match=complaint):
        GaussianProcessRegressor("relu", **parameters).fit(X, y)


def test_bad_arguments_are_refused(monkeypatch):
    X = points(10)
    model = GaussianProcessRegressor("relu").fit(X, smooth(X))
    with pytest.raises(ParameterError, match="return_std or return_cov, not both"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(InputError, match="expecting 3 features"):
        model.predict(points(4, width=10), return_std=True)
    with pytest.raises(InputError, match="NaN"):
        model.predict(np.full((2, 3), np.nan), return_std=True)
    precomputed = GaussianProcessRegressor("precomputed").fit(np.eye(4), [0.0, 1.0, 2.0, 3.0])
    with pytest.raises(ParameterError, match=r"prior=..., the kernel of each new row with itself"):
        precomputed.predict(np.eye(4), return_std=True)
    with pytest.raises(ParameterError, match=r"prior=..., the kernel among the new rows, \(M, M\)"):
        precomputed.predict(np.eye(4), return_cov=True)
    with pytest.raises(InputError, match="d holds NaN"):
        precomputed.predict(np.eye(4), return_std=True, prior=np.full(4, np.nan))
    for ask in (
        lambda: model.predict(X, return_std=True, prior=np.ones(10)),
        lambda: model.predict(X, return_cov=True, prior=np.eye(10)),
        lambda: model.novelty(X, prior=np.ones(10)),
    ):
        with pytest.raises(ParameterError, match="prior is for precomputed matrices"):
            ask()
    with pytest.raises(ParameterError, match="number of samples must be at least 1, not 0"):
        model.sample_y(X, 0)
    assert not hasattr(precomputed, "partial_fit")
    assert not hasattr(precomputed, "choose")
    monkeypatch.setattr(CpuAlgebra, "free_bytes", lambda self: 10**6)
    with pytest.raises(DoesNotFit, match=r"covariance of 1,000 rows and 1 targets, 0\.0 GB.*return_std=True"):
        model.predict(points(1000), return_cov=True)


@pytest.mark.parametrize("concentration", [0.0, -1.0, 2.0, "mle", None])
def test_a_bad_concentration_is_refused(concentration):
    with pytest.raises(ParameterError, match="concentration must be a number from 1e-12 to 1"):
        GaussianProcessClassifier("relu", concentration=concentration).fit(points(4), [0, 1, 0, 1])


def test_what_is_no_kernel_matrix_is_refused():
    K, y = -Gaussian(0.3)(points(10)), np.arange(10.0)
    with pytest.raises(NotPositiveDefinite, match="no noise makes it positive definite"):
        GaussianProcessRegressor("precomputed", noise="mle").fit(K, y)
    with pytest.raises(NotPositiveDefinite, match="the mean of its diagonal is -1"):
        GaussianProcessClassifier("precomputed").fit(K, y > 4)
    fitted = GaussianProcessClassifier("precomputed").fit(-K, y > 4)
    for prior in (np.full(10, np.nan), np.ones(3), np.ones(11)):
        for values in (fitted.predict_proba, fitted.novelty):
            with pytest.raises(InputError, match=r"d holds NaN|prior must hold one number for each of 10 rows"):
                values(-K, prior=prior)


def test_kernels_and_targets_of_any_scale_give_the_same_posterior():
    X = points(30)
    K, y = Gaussian(0.3)(X), smooth(X)
    plain = GaussianProcessRegressor("precomputed", noise=0.01).fit(K, y).predict(K, True, prior=K.diagonal())
    shares = GaussianProcessClassifier("precomputed").fit(K, y > 0).predict_proba(K, prior=K.diagonal())
    for size in (1e-100, 1e100):
        scaled = GaussianProcessRegressor("precomputed", noise=0.01 * size).fit(size * K, y / size)
        for one, other in zip(scaled.predict(size * K, True, prior=size * K.diagonal()), plain, strict=True):
            np.testing.assert_allclose(one * size, other, rtol=1e-6, atol=1e-9)
        found = GaussianProcessClassifier("precomputed").fit(size * K, y > 0)
        np.testing.assert_allclose(found.predict_proba(size * K, prior=size * K.diagonal()), shares, atol=1e-3)


def test_a_store_keeps_the_matrix(tmp_path):
    X = points(20)
    direct = GaussianProcessRegressor("relu", backend="reference").fit(X, smooth(X))
    kept = clone(direct).set_params(store=tmp_path / "k.zarr").fit(X, smooth(X))
    again = clone(kept).fit(X, smooth(X))
    for model in (kept, again):
        np.testing.assert_array_equal(model.predict(X, return_std=True), direct.predict(X, return_std=True))
