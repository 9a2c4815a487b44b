"""Parameters improved by gradients: gradients of criteria are slopes, and the result is better than the start."""

import numpy as np
import pytest

import tangentless as tl
from conformance import images
from tangentless.classical import ConvolutionalNTK, Gaussian
from tangentless.devices import Device
from tangentless.refining import SCORES, parameters_of, refine, score, with_parameters
from tangentless.solve import ridge_path
from test_gradients import parametrised
from test_searching import IMAGES, LABELS, VECTORS

TEXT = "gaussian({0}) relu gaussian({0})"


@pytest.mark.parametrize("criterion", SCORES)
def test_criteria_are_those_of_the_solver_and_their_gradients_slopes(criterion):
    rng = np.random.default_rng(0)
    root, Y, move = rng.standard_normal((12, 20)), rng.standard_normal((12, 3)), rng.standard_normal((12, 12))
    K, move = root @ root.T / 20, move + move.T
    value, by_K = score(criterion, K, Y, 0.1)
    path = ridge_path(K, Y, [0.1], backend="cpu")
    known = {
        "squared error": np.log(path.squared_errors[0]),
        "marginal likelihood": -path.log_likelihoods[0] / Y.size,
    }
    assert value == pytest.approx(known[criterion], rel=1e-10)
    step = 1e-4
    values = {k: score(criterion, K + k * step * move, Y, 0.1)[0] for k in (-2, -1, 1, 2)}
    expected = (8 * (values[1] - values[-1]) - values[2] + values[-2]) / (12 * step)
    assert (by_K * move).sum() == pytest.approx(expected, rel=1e-8)
    assert score(criterion, K - 100 * np.eye(12), Y, 0.1) is None


def test_parameters_have_the_names_that_gradients_give_them():
    kernel = parametrised(0.8, 0.5, 0.2, 1.3)
    *_, slopes = kernel.vjp(images((4, 4, 2), 2), None, np.ones((2, 2)), parameters=True, backend="reference")
    values = parameters_of(kernel)
    assert values.keys() == slopes.keys()
    assert with_parameters(kernel, {}) == kernel
    doubled = with_parameters(kernel, {name: 2 * value for name, value in values.items()})
    assert parameters_of(doubled) == {name: 2 * value for name, value in values.items()}
    assert parameters_of(ConvolutionalNTK("conv3 gaussian globalpool")) == {}


@pytest.mark.parametrize("criterion", ["loo", "marginal likelihood"])
def test_a_refined_search_finds_better_than_a_grid_of_as_many_matrices(criterion):
    X, y = VECTORS[:100], LABELS[:100]
    grid = tl.search([TEXT.format(gamma) for gamma in (0.25, 0.5, 1, 2, 4, 8)], X, y, criterion, backend="cpu")
    found = tl.search([TEXT.format(4)], X, y, criterion, refine=6, backend="cpu")
    assert len(found.trials) == 2
    assert found.best.kernel != tl.kernel(TEXT.format(4))
    if criterion == "loo":
        assert found.best.squared_error < found.trials[1].squared_error
        assert found.best.accuracy >= found.trials[1].accuracy
    else:
        assert found.best.log_likelihood > grid.best.log_likelihood


def test_convolutional_kernels_are_refined_after_whitening():
    kernel = "conv3 gaussian(8) pool4 conv3 gaussian(8) globalpool normalize"
    options = {"whitening": [1e-2], "subset": 15, "refine": 3, "backend": "reference"}
    found = tl.search([kernel], IMAGES[:20], LABELS[:20], "marginal likelihood", **options)
    assert found.best.log_likelihood > found.trials[1].log_likelihood
    assert [(trial.whitening, trial.rows) for trial in found.trials[:2]] == [(1e-2, 20)] * 2


def test_parameters_stay_where_their_layers_allow_them():
    kernel = tl.kernel("leakyrelu(0.9) gaussian(5)")
    found = refine(kernel, VECTORS[:50], np.eye(10)[LABELS[:50]], 1e-3, "squared error", 10, Device("cpu"))
    values = parameters_of(found)
    assert 0 < values["0.leakyrelu.slope"] <= 1
    assert values != parameters_of(kernel)
    none = tl.kernel("relu relu")
    assert refine(none, VECTORS[:50], np.eye(10)[LABELS[:50]], 1e-3, "squared error", 10, Device("cpu")) is none
    found = tl.search([Gaussian(9.0)], VECTORS[:50], LABELS[:50], "marginal likelihood", refine=5, backend="cpu")
    assert found.best.kernel.gamma < 9


@pytest.mark.parametrize("criterion", SCORES)
@pytest.mark.parametrize("text", ["tanh", "tanh(2) gelu(4)", "erf(0.1)", "erf(100)"])
def test_parameters_stay_where_duals_can_be_computed(text, criterion):
    X, Y = VECTORS[:40], np.eye(10)[LABELS[:40]]
    found = refine(tl.kernel(text), X, Y, 1e-4, criterion, 20, Device("cpu"))
    path = [ridge_path(k(X, backend="cpu"), Y, backend="cpu").best(criterion) for k in (tl.kernel(text), found)]
    assert np.isfinite(path).all()


def test_kernels_without_a_gradient_stay_as_they_are():
    features = tl.RandomPatchFeatures(filters=4).fit(IMAGES[:20])
    for kernel in (tl.kernel("conv3 step conv3 gaussian globalpool"), 0.5 * features.kernel()):
        assert refine(kernel, IMAGES[:20], np.eye(10)[LABELS[:20]], 1e-3, "squared error", 5, Device("cpu")) is kernel


def test_pixels_may_be_integers():
    X, Y = np.arange(48, dtype=np.uint8).reshape(12, 2, 2, 1), np.sign(np.arange(12.0) - 5)[:, None]
    kernel, device = tl.kernel("conv3 gaussian globalpool"), Device("reference")
    found = [refine(kernel, one, Y, 1e-3, "squared error", 5, device) for one in (X, X.astype(float))]
    assert found[0] == found[1] != kernel
