"""Kernels of this package in other libraries: in scikit-learn's Gaussian processes, and in GPyTorch."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

import tangentless as tl
from tangentless.errors import InputError, ParameterError

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


def flat_images(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 64))


def test_scikit_learn_computes_the_process_of_ours():
    X, new = flat_images(40), flat_images(7, seed=1)
    y = np.random.default_rng(2).standard_normal(40)
    theirs = GaussianProcessRegressor(tl.sklearn_kernel(SMALL, (8, 8, 1)), alpha=0.1, optimizer=None).fit(X, y)
    ours = tl.GaussianProcessRegressor(SMALL, 0.1, scale=1.0, precision="float64")
    ours.fit(X.reshape(-1, 8, 8, 1), y)
    for one, other in zip(theirs.predict(new, True), ours.predict(new.reshape(-1, 8, 8, 1), True), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)


def test_scikit_learn_finds_the_scale_and_noise_that_ours_finds():
    X = flat_images(60)
    y = X[:, :8].sum(axis=1) + 3 * np.random.default_rng(2).standard_normal(60)
    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * tl.sklearn_kernel("relu") + WhiteKernel(1.0, (1e-5, 1e5))
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=2, random_state=0).fit(X, y)
    ours = tl.GaussianProcessRegressor("relu", noise="mle", precision="float64").fit(X, y)
    assert ours.log_marginal_likelihood_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-4)


def test_the_kernel_is_one_of_scikit_learn():
    X, k = flat_images(12), tl.sklearn_kernel(SMALL, (8, 8, 1))
    np.testing.assert_array_equal(k(X).diagonal(), k.diag(X))
    K, gradient = (2.0 * k)(X, eval_gradient=True)
    assert K.shape == (12, 12)
    assert gradient.shape == (12, 12, 1)
    assert not k.is_stationary()
    assert len(k.theta) == 0
    assert clone(k) == k == pickle.loads(pickle.dumps(k))
    assert "conv3" in repr(k)
    GaussianProcessClassifier(k).fit(X, X.mean(axis=1) > 0).predict_proba(X)
    with pytest.raises(InputError, match=r"rows of shape \(64,\) are not flattened images of shape \(8, 8, 2\)"):
        tl.sklearn_kernel(SMALL, (8, 8, 2))(X)
    for shape in (64, "8x8", (8, 8, 1.0), (-8, -8, 1)):
        with pytest.raises(ParameterError, match="shape is that of an image"):
            tl.sklearn_kernel(SMALL, shape)(X)
    with pytest.raises(ParameterError, match="leave Y out"):
        k(X, X, eval_gradient=True)


def test_a_kernel_of_gpytorch_in_a_dozen_lines_gives_the_same_process():
    torch, gpytorch = pytest.importorskip("torch"), pytest.importorskip("gpytorch")

    class Compositional(gpytorch.kernels.Kernel):
        """A kernel of this package on flattened images. Scale and noise are learned; the kernel has no gradients."""

        def __init__(self, kernel, shape):
            super().__init__()
            self.kernel, self.shape = tl.kernel(kernel), shape

        def forward(self, x1, x2, diag=False, **options):
            first, second = x1.reshape(-1, *self.shape), x2.reshape(-1, *self.shape)
            if diag:
                return self.kernel.diag(first, precision="float64")
            same = first.shape == second.shape and torch.equal(first, second)
            return self.kernel(first, None if same else second, precision="float64")

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(Compositional(SMALL, (8, 8, 1)))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    X, new = torch.from_numpy(flat_images(30)), torch.from_numpy(flat_images(5, seed=1))
    y = torch.from_numpy(np.random.default_rng(2).standard_normal(30))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(X, y, likelihood).double()
    model.covar_module.outputscale, likelihood.noise = 2.0, 0.2
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        found = model(new)
        mean, variance = found.mean.numpy(), found.variance.numpy()
    ours = tl.GaussianProcessRegressor(SMALL, 0.1, scale=2.0, precision="float64")
    ours.fit(X.numpy().reshape(-1, 8, 8, 1), y.numpy())
    expected, std = ours.predict(new.numpy().reshape(-1, 8, 8, 1), return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(variance, std**2, rtol=0, atol=1e-6)
