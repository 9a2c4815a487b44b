"""Our SMO solver repeats libsvm's steps: equal coefficients, offsets and numbers of steps, to the last bit."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.svm import SVC

from tangentless.solve.smo import minimise, predict_pairwise, sort_by_class

MOST = 10_000_000


def two_classes(kind, n, seed):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, 3))
    if kind == "repeated":
        X = random.integers(0, 2, (n, 3)).astype(float)  # eight different points, repeated, with both labels
    labels = np.where(X[:, 0] + X[:, 1] ** 2 + 0.5 * random.standard_normal(n) > 0.6, 1, -1)
    labels[:2] = 1, -1
    return X, np.sort(labels)[::-1].astype(np.int8)  # the first class first, the order of libsvm


def gaussian(X, gamma):
    return np.exp(-gamma * np.square(X[:, None] - X[None]).sum(axis=2))


@pytest.mark.parametrize("kind", ["smooth", "repeated"])
@pytest.mark.parametrize("n", [2, 7, 60, 300])
@pytest.mark.parametrize("gamma", [1e-4, 0.3, 1e3])
def test_solution_is_that_of_libsvm_to_the_last_bit(kind, n, gamma):
    X, labels = two_classes(kind, n, seed=n)
    K = gaussian(X, gamma)
    for C in (1e-6, 0.1, 10.0, 3e3):
        weights, offset, steps, _ = minimise(K.astype(np.float32), np.diag(K).copy(), labels, C, 1e-3, MOST)
        machine = SVC(C=C, kernel="precomputed").fit(K, -labels)  # libsvm's first class is the smaller label
        expected = np.zeros(n)
        expected[machine.support_] = -machine.dual_coef_[0]
        assert np.array_equal(weights, expected)
        assert offset == machine.intercept_[0]
        assert steps == machine.n_iter_[0]


def test_shrinking_is_libsvms_too():
    """After a thousand steps libsvm drops rows from its active set (shrinking), and restores them at the end."""
    X, labels = two_classes("smooth", 400, seed=1)
    K = gaussian(X, 0.2)
    weights, _, steps, _ = minimise(K.astype(np.float32), np.diag(K).copy(), labels, 300.0, 1e-3, MOST)
    machine = SVC(C=300.0, kernel="precomputed").fit(K, -labels)
    expected = np.zeros(len(K))
    expected[machine.support_] = -machine.dual_coef_[0]
    assert steps > 3000
    assert np.array_equal(weights, expected)


def test_untouched_cost_does_not_matter():
    X, labels = two_classes("smooth", 50, seed=3)
    K = gaussian(X, 50.0)
    solutions = [minimise(K.astype(np.float32), np.diag(K).copy(), labels, C, 1e-3, MOST) for C in (0.5, 10.0, 1e4)]
    assert [solution[3] for solution in solutions] == [True, False, False]
    assert np.array_equal(solutions[1][0], solutions[2][0])
    assert not np.array_equal(solutions[0][0], solutions[1][0])


def test_too_many_steps_are_given_up_and_reported():
    X, labels = two_classes("smooth", 200, seed=0)
    K = gaussian(X, 0.05)
    steps = minimise(K.astype(np.float32), np.diag(K).copy(), labels, 1e4, 1e-3, 50)[2]
    assert steps == 51


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_predictions_are_libsvms_at_every_cost(load):
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    random = np.random.default_rng(0).permutation(len(X))
    train, test = random[: len(X) // 2], random[len(X) // 2 :]
    costs = 2.0 ** np.arange(-10, 11, 4)
    for gamma in (1e-3, 0.2, 30.0):
        K = gaussian(X, gamma)
        order = train[np.argsort(y[train], kind="stable")]
        starts = np.concatenate(([0], np.cumsum(np.unique(y[order], return_counts=True)[1])))
        inner, diagonal, outer = sort_by_class(K, order, test)
        winners, solved = predict_pairwise(inner, diagonal, starts, outer, costs, 1e-3, MOST)
        assert solved == len(costs)
        for row, C in zip(winners, costs, strict=True):
            machine = SVC(C=C, kernel="precomputed").fit(K[np.ix_(train, train)], y[train])
            assert np.array_equal(row, machine.predict(K[np.ix_(test, train)]))


def test_costs_above_one_that_failed_are_given_up_too():
    X, labels = two_classes("smooth", 200, seed=0)
    K = gaussian(X, 0.05)
    starts = np.array([0, (labels > 0).sum(), len(labels)])
    costs = np.array([1e-3, 1e4, 1e5])
    _, solved = predict_pairwise(K.astype(np.float32), np.diag(K).copy(), starts, K, costs, 1e-3, 300)
    assert solved == 1
