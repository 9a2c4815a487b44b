"""Networks of an architecture: their kernel approaches ours, and they have the layers the architecture says."""

import numpy as np
import pytest

import tangentless as tl
from tangentless.architecture import NAMED
from tangentless.errors import ArchitectureError, InputError, ParameterError
from tangentless.layers import Nonlinearity

torch = pytest.importorskip("torch", reason="networks need PyTorch: pip install 'tangentless[networks]'")
from tangentless.networks import RECIPES, LeNet5, ResNet32, network_of  # noqa: E402 (only where PyTorch is)
from tangentless.networks.model import Network  # noqa: E402

SHAPE = (4, 4, 2)
WIDTHS = (24, 96, 384)
APART = ~np.eye(4, dtype=bool)  # a normalised diagonal is exact at every width


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(3).standard_normal((4, *SHAPE))


def error_by_width(architecture, images, widths=WIDTHS, seeds=8):
    """Root mean square error of random networks' kernels over that of the constant 1, over seeds and pairs."""
    exact = tl.kernel(architecture)(images, backend="reference")[APART]
    errors = []
    for width in widths:
        kernels = [Network(architecture, width, 1, shape=SHAPE, seed=seed).kernel(images) for seed in range(seeds)]
        errors.append(np.sqrt(np.mean((np.array(kernels)[:, APART] - exact) ** 2) / np.mean((1 - exact) ** 2)))
    return np.array(errors)


def slope(errors, widths=WIDTHS):
    return np.polyfit(np.log(widths), np.log(errors), 1)[0]


@pytest.mark.parametrize(
    ("name", "nonlinearity"),
    [*((name, "relu") for name in ("myrtle5", "myrtle7", "myrtle10")), ("myrtle5", "gaussian(0.2)")],
)
def test_kernel_of_random_myrtle_networks_approaches_ours_like_one_over_the_root_of_the_width(
    name, nonlinearity, images
):
    errors = error_by_width(NAMED[name].replace("relu", nonlinearity), images)
    assert -0.68 < slope(errors) < -0.32
    assert errors[-1] < 0.3


@pytest.mark.parametrize("name", [name for name in NAMED if name.endswith("gaussian")])
def test_kernel_of_random_gaussian_myrtle_networks_approaches_ours(name, images):
    # exp(u - 1) has a squared value with variance e^4 - 1 = 54 times its mean squared: the root law starts late.
    errors = error_by_width(name, images)
    assert (np.diff(errors) < 0).all()
    assert slope(errors) < -0.18


@pytest.mark.slow  # weights of 2,048 filters are drawn twelve times
def test_kernel_of_wide_gaussian_myrtle_networks_follows_the_root_law(images):
    widths = (256, 1024, 2048)
    assert -0.68 < slope(error_by_width("myrtle5-gaussian", images, widths, seeds=12), widths) < -0.32


@pytest.mark.parametrize(
    "text",
    [
        "conv3 leakyrelu(0.3) conv3 relu globalpool",  # no normalize: the scale has to be right too
        "conv3 conv1 pool2 relu conv3 globalpool",  # linear convolutions, and a nonlinearity without one
        "conv3 relu normalize conv3 polynomial2 globalpool normalize relu",
        "globalpool relu relu",
        "globalpool normalize gaussian relu",  # no weights before the head: exact
    ],
)
def test_kernel_of_wide_networks_is_ours_for_other_architectures(text, images):
    exact = tl.kernel(text)(images, backend="reference")
    mean = np.mean([Network(text, 512, 1, shape=SHAPE, seed=s).kernel(images, images) for s in range(8)], axis=0)
    assert np.abs(mean - exact).max() < 0.08 * np.abs(exact).max()


def test_networks_do_not_approach_another_kernel(images):
    relu, leaky = "conv3 relu globalpool normalize", "conv3 leakyrelu(0.3) globalpool normalize"
    exact, other = (tl.kernel(text)(images, backend="reference") for text in (relu, leaky))
    mean = np.mean([Network(relu, 512, 1, shape=SHAPE, seed=s).kernel(images) for s in range(10)], axis=0)
    assert np.abs(mean - exact).max() < np.abs(exact - other).max() / 3


@pytest.mark.parametrize("shape", [(6, 3), (5,)])
def test_sequences_and_vectors_have_networks_too(shape):
    text = "conv3 relu globalpool" if len(shape) == 2 else "relu relu"
    x = np.random.default_rng(0).standard_normal((3, *shape))
    mean = np.mean([Network(text, 1024, 2, shape=shape, seed=s).kernel(x) for s in range(10)], axis=0)
    np.testing.assert_allclose(mean, tl.kernel(text)(x, backend="reference"), rtol=0.15, atol=0.05)
    assert Network(text, 4, 2, shape=shape)(torch.zeros(3, *shape)).shape == (3, 2)


def test_black_patches_stay_zero_and_have_a_gradient(images):
    network = tl.Architecture.parse("conv3 gaussian conv3 gaussian globalpool normalize").to_torch(8, 3, shape=SHAPE)
    x = torch.zeros(2, *SHAPE)
    x[0, 0, 0] = 1.0
    assert network.features(x)[1].abs().max() == 0
    network(x).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def test_layers_are_those_of_the_paper():
    network = tl.Architecture.parse("myrtle10").to_torch(width=16, classes=7, batch_norm=True)
    kinds = [type(module).__name__ for module in network.body]
    assert kinds == [*["Convolution"] * 3, "AveragePool"] * 2 + [*["Convolution"] * 3, "AveragePool", "UnitLength"]
    assert not any("bias" in name for name, _ in network.named_parameters() if "batch_norm" not in name)
    assert sum("batch_norm.running_mean" in name for name in network.state_dict()) == 9
    features = network.features(torch.randn(4, 32, 32, 3))
    torch.testing.assert_close(features.norm(dim=1), torch.ones(4))


def test_weights_come_from_the_seed_alone():
    first, again, other = (Network("myrtle5", 8, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.linear.weight, again.linear.weight)
    assert not torch.equal(first.linear.weight, other.linear.weight)


def test_widths_can_differ_by_convolution():
    network = Network("myrtle5", (4, 8, 16, 32), 10)
    assert [w.shape[0] for w in network.weights()] == [4, 8, 16, 32, 10]


class Wave(Nonlinearity):
    name = "wave"

    def dual(self, cosine):
        return np.exp(-1.0) * np.sinh(cosine)

    def activation(self, preactivation):
        return np.sin(preactivation)


class Step(Wave):
    name = "step"

    def activation(self, preactivation):
        return 1.0 * (preactivation > 0)


@pytest.mark.parametrize("layer", [Wave(), Step()])
def test_activations_that_networks_cannot_train_are_refused(layer):
    with pytest.raises(ArchitectureError, match="no activation that a network can train with"):
        tl.Architecture((tl.Conv(3), layer, tl.GlobalPool())).to_torch(4, 2)


def test_without_the_factor_of_relus_networks_are_those_of_pytorch_and_kernels_stay():
    subset = RECIPES["subset-1280"].change(width=(4, 8, 16, 32))
    network, images = network_of(subset, (32, 32, 3), 10), torch.randn(2, 32, 32, 3)
    layers = []
    for weight, pool in zip(network.weights()[:-1], (None, 2, 2, 8), strict=True):
        convolution = torch.nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
        convolution.weight = weight
        layers += [convolution, torch.nn.ReLU(), *([] if pool is None else [torch.nn.AvgPool2d(pool)])]
    theirs = torch.nn.Sequential(*layers, torch.nn.Flatten(), network.linear)
    torch.testing.assert_close(network(images), theirs(images.permute(0, 3, 1, 2)))
    for text in (
        "conv3 relu pool2 conv3 relu globalpool",
        "conv3 leakyrelu(0.5) conv3 gaussian globalpool normalize relu",
    ):
        kernels = [Network(text, 8, 2, usual_activations=usual).kernel(images) for usual in (False, True)]
        np.testing.assert_allclose(*kernels, rtol=1e-5)


def test_features_below_the_shortest_length_stay_short():
    text, images = "conv3 relu globalpool normalize", 1e-3 * torch.randn(2, 8, 8, 1)
    lengths = [Network(text, 8, 2, shortest=s, shape=(8, 8, 1)).features(images).norm(dim=1) for s in (1e-12, 1.0)]
    torch.testing.assert_close(lengths[0], torch.ones(2))
    assert (lengths[1] < 0.01).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Network("myrtle5", 0, 10), ParameterError, "width 1 must be a whole number"),
        (lambda: Network("myrtle5", 1.5, 10), ParameterError, "width 1 must be a whole number"),
        (lambda: Network("myrtle5", (), 10), ParameterError, "number of widths must be"),
        (lambda: Network("myrtle5", (4, 4), 10), ParameterError, "has 4 convolutions"),
        (lambda: Network("myrtle5", 4, 2.0), ParameterError, "classes must be a whole number"),
        (lambda: Network("myrtle5", 4, 10, shape=(30, 30, 3)), ArchitectureError, "does not divide"),
        (lambda: Network("myrtle5", 4, 10).kernel(np.full((1, 32, 32, 3), np.nan)), InputError, "NaN"),
        (lambda: Network("myrtle5", 4, 10).kernel("images"), InputError, "dtype"),
        (lambda: LeNet5(0), ParameterError, "classes must be a whole number"),
        (lambda: LeNet5(10, shape=(28, 28)), ParameterError, "this network is for images"),
        (lambda: LeNet5(10, shape=(8, 8, 1)), ParameterError, "12×12 pixels or more, not 8×8"),
        (lambda: ResNet32(10, seed="a"), ParameterError, "seed must be a whole number"),
        (lambda: ResNet32(10)(torch.zeros(1, 32, 32, 1)), InputError, "was built for"),
        (lambda: Network("myrtle5", 4, 10, shape=32), ParameterError, "such as .32, 32, 3., not 32"),
        (lambda: Network("myrtle5", 4, 10, shape=()), ParameterError, "such as .32, 32, 3., not ()"),
        (lambda: Network("myrtle5", 4, 10, shape=(32, 32, 0)), ParameterError, "number 3 of the shape must be"),
        (lambda: Network("myrtle5", 4, 10, shape=(32, 32.0, 3)), ParameterError, "number 2 of the shape must be"),
        (lambda: Network("myrtle5", 4, 10)(torch.zeros(1, 28, 28, 1)), InputError, "was built for"),
        (
            lambda: Network("myrtle5", 4, 10, True).kernel(np.zeros((1, 32, 32, 3))),
            ParameterError,
            "approach no kernel",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_counts_of_numpy_are_numbers_too():
    ours, theirs = (Network("myrtle5", width, 10) for width in (4, np.int64(4)))
    several = Network("myrtle5", np.array([4, 4, 4, 4]), np.int64(10))
    for network in (theirs, several):
        assert all(torch.equal(a, b) for a, b in zip(ours.weights(), network.weights(), strict=True))
