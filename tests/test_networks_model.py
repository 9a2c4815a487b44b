"""Networks of an architecture: their kernels approach ours with width, and their layers are those of the text."""

import dataclasses

import numpy as np
import pytest

import tangentless as tl
from nonlinearities import Sine, Step
from tangentless.architecture import NAMED
from tangentless.classical import ConvolutionalNTK
from tangentless.errors import ArchitectureError, InputError, ParameterError
from tangentless.graph import window_sums
from tangentless.layers import Average, Stack, Windows

torch = pytest.importorskip("torch", reason="networks need PyTorch: pip install 'tangentless[networks]'")
from tangentless.networks import RECIPES, LeNet5, ResNet32, network_of  # noqa: E402 (only where PyTorch is)
from tangentless.networks.model import Network  # noqa: E402
from tangentless.networks.modules import AveragePool, Convolution, window_means  # noqa: E402

SHAPE = (4, 4, 2)
WIDTHS = (24, 96, 384)
APART = ~np.eye(4, dtype=bool)  # off the diagonal: a normalised diagonal is exact at every width


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(3).standard_normal((4, *SHAPE))


def error_by_width(architecture, images, widths=WIDTHS, seeds=8):
    """For each width, the RMS error of random networks' kernels over seeds and pairs, relative to that of 1."""
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
def test_kernel_of_random_gaussian_networks_approaches_ours(name, images):
    # The square of exp(u - 1) has a variance of e^4 - 1 = 54 times its squared mean: 1 / sqrt(width) holds late only.
    errors = error_by_width(name, images)
    assert (np.diff(errors) < 0).all()
    assert slope(errors) < -0.18


@pytest.mark.slow  # draws weights of 2,048 filters twelve times
def test_kernel_of_wide_gaussian_myrtle_networks_follows_the_root_law(images):
    widths = (256, 1024, 2048)
    assert -0.68 < slope(error_by_width("myrtle5-gaussian", images, widths, seeds=12), widths) < -0.32


@pytest.mark.parametrize(
    "text",
    [
        "conv3 leakyrelu(0.3) conv3 relu globalpool",  # no normalize, so the scale is tested too
        "conv3 conv1 pool2 relu conv3 globalpool",  # convolutions without a nonlinearity, and the reverse
        "conv3 relu normalize conv3 polynomial2 globalpool normalize relu",
        "globalpool relu relu",
        "globalpool normalize gaussian relu",  # no weights before the head, so the kernel is exact
    ],
)
def test_kernel_of_wide_networks_is_ours_for_other_architectures(text, images):
    exact = tl.kernel(text)(images, backend="reference")
    mean = np.mean([Network(text, 512, 1, shape=SHAPE, seed=s).kernel(images, images) for s in range(8)], axis=0)
    assert np.abs(mean - exact).max() < 0.08 * np.abs(exact).max()


SUMS = [
    "conv3 residual(relu conv3) relu globalpool",
    "conv3 relu sum(0.3 * conv3 | 2 * conv1) relu globalpool",
    "conv3 relu sum(conv3(stride=2) | pool2) relu globalpool",  # a pool has no weights: concatenated
    "patch2 gelu residual(conv3 tanh conv3) relu globalpool",
    NAMED["resnet8"].removesuffix(" normalize relu"),
]


@pytest.mark.parametrize(
    "text",
    [
        *SUMS,
        "conv3(stride=2) relu conv3(stride=2) relu globalpool",
        "conv3 relu conv3(dilation=2) relu globalpool",
        "patch2 relu conv3 relu globalpool",
        "conv3 gelu conv3 tanh globalpool",
        "conv3 residual(gelu conv3) pool3(stride=1) tanh globalpool",  # sums must keep the scale of outputs too
        "conv3 residual(residual(relu conv3)) relu globalpool",  # both identities share their weights
        "conv3 sum(normalize relu conv3 | 0.5 * identity) abs globalpool",
        "residual(conv3) erf globalpool",  # the identity is the image, without weights
        "globalpool residual(relu conv3) relu",
        pytest.param(NAMED["resnet14"].removesuffix(" normalize relu"), marks=pytest.mark.slow),
    ],
)
def test_kernel_of_random_networks_of_graphs_approaches_ours_like_one_over_the_root_of_the_width(text, images):
    exact, widths = tl.kernel(text)(images, backend="reference"), (16, 64, 256)
    errors = [
        np.sqrt(np.mean([(network(text, width, seed).kernel(images) - exact) ** 2 for seed in range(10)]))
        for width in widths
    ]
    assert -0.68 < slope(errors, widths) < -0.32
    assert errors[-1] < 0.3 * np.sqrt(np.mean(exact**2))


def network(text, width, seed):
    return Network(text, width, 1, shape=SHAPE, seed=seed)


@pytest.mark.parametrize("text", SUMS)
def test_tangent_kernel_of_wide_networks_is_ours(text, images):
    """Gradients count with the variance 1 / fan-in of their weights, as in the tangent kernel."""

    def tangents(network):
        gradients = []
        for x in torch.tensor(images[:2], dtype=torch.float32):
            found = torch.autograd.grad(network(x[None]).sum(), network.weights())
            gradients.append(torch.cat([g.flatten() / g[0].numel() ** 0.5 for g in found]).double())
        return network.kernel_scale * network.features_out * np.inner(gradients, gradients)

    mean = np.mean([tangents(network(text, 256, seed)) for seed in range(6)], axis=0)
    exact = ConvolutionalNTK(text)(images[:2], backend="reference")
    assert np.abs(mean - exact).max() < 0.12 * np.abs(exact).max()


@dataclasses.dataclass(frozen=True)
class Ahead(Stack):
    """Windows that begin at every second position, and reach beyond the end."""

    name = "ahead"

    def windows(self, length):
        return Windows(size=2, count=(length + 1) // 2, stride=2, dilation=3, start=1)


@dataclasses.dataclass(frozen=True)
class Sparse(Average):
    """A pool: the mean of every second position, without the first."""

    name = "sparse"

    def windows(self, length):
        return Windows(size=2, count=length - 3, dilation=2, start=1)


def test_window_layers_of_users_have_networks(images):
    text = [Ahead(), tl.layers.ReLU(), tl.layers.Residual((tl.layers.Conv(3),)), tl.layers.ReLU(), tl.GlobalPool()]
    mean = np.mean([network(text, 512, seed).kernel(images) for seed in range(10)], axis=0)
    exact = tl.kernel(text)(images, backend="reference")
    assert np.abs(mean - exact).max() < 0.08 * np.abs(exact).max()
    averages = [Sparse(), tl.GlobalPool()]
    np.testing.assert_allclose(
        network(averages, 8, 0).kernel(images), tl.kernel(averages)(images, backend="reference"), rtol=1e-5
    )


@pytest.mark.parametrize(
    "layer", [tl.Conv(5), tl.Conv(3, stride=2), tl.Conv(3, dilation=3), tl.layers.Patch(2), Ahead(), Sparse()], ids=str
)
def test_windows_are_those_of_the_graph(layer):
    x = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axes = layer.windows(8), layer.windows(10)
    sums, size = window_sums(x.numpy(), axes), axes[0].size * axes[1].size
    np.testing.assert_allclose(window_means(x, axes), sums / size, atol=1e-14)
    if isinstance(layer, Average):
        np.testing.assert_allclose(AveragePool(axes, (8, 10))(x), sums / size, atol=1e-14)
    convolution = Convolution(3, 1, axes, (8, 10)).double()
    torch.nn.init.ones_(convolution.weight)
    np.testing.assert_allclose(convolution(x).detach(), sums.sum(axis=1, keepdims=True), atol=1e-13)


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


def test_residual_networks_are_those_of_pytorch():
    """Pre-activation blocks: normalisation and ReLU stand before each convolution, and outputs are added."""
    text = (
        "conv3 residual(relu conv3 relu conv3) relu sum(conv3(stride=2) relu conv3 | conv1(stride=2)) relu globalpool"
    )
    network = Network(text, 4, 3, True, usual_activations=True, shape=(8, 8, 2))
    norms = [torch.nn.BatchNorm2d(4) for _ in range(5)]
    relu, conv, images = torch.relu, torch.nn.functional.conv2d, torch.randn(5, 8, 8, 2)
    first, a, b, c, d, shortcut, linear = network.weights()
    # Two ReLUs in a branch quarter squared norms; a factor of 2 replaces the usual larger initial weights.
    factors = [module.factors for module in network.body if hasattr(module, "factors")]
    np.testing.assert_allclose(factors, [(2, 1), (2**0.5, 1)])
    u = conv(images.permute(0, 3, 1, 2), first, padding=1)
    u = u + 2 * conv(relu(norms[1](conv(relu(norms[0](u)), a, padding=1))), b, padding=1)
    y = relu(norms[2](u))
    u = 2**0.5 * conv(relu(norms[3](conv(y, c, stride=2, padding=1))), d, padding=1) + conv(y, shortcut, stride=2)
    theirs = relu(norms[4](u)).mean(dim=(2, 3)) @ linear.T
    torch.testing.assert_close(network(images), theirs)
    assert sum(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules()) == len(norms)


def test_networks_without_branches_have_the_weights_they_always_had():
    """Checkpoints of earlier versions are loaded by these names of weights, and refused if the names differ."""
    text = "conv3 relu pool2 conv3 gaussian globalpool normalize relu"
    network = Network(text, 2, 3, True, shape=(8, 8, 1))
    assert [*dict(network.named_parameters())] == [
        *(f"body.{place}.{name}" for place in (0, 2) for name in ("weight", "batch_norm.weight", "batch_norm.bias")),
        "linear.weight",
    ]
    drawn = torch.Generator().manual_seed(0)
    for weight, fan_in in zip(network.weights(), (9, 18, 2), strict=True):
        torch.testing.assert_close(weight.detach(), torch.randn(weight.shape, generator=drawn) / fan_in**0.5)
    assert repr(Network(text, 2, 3, shape=(8, 8, 1))).split("\n")[2:7] == [
        "    (0): Convolution(1, 2, window=(3, 3), activation=relu)",
        "    (1): AveragePool()",
        "    (2): Convolution(2, 2, window=(3, 3), activation=gaussian)",
        "    (3): AveragePool()",
        "    (4): UnitLength()",
    ]


def test_state_of_a_residual_network_goes_round(images):
    text, x = "conv3 relu sum(conv3(stride=2) gelu conv1 | pool2) relu globalpool", torch.tensor(images).float()
    first, second = (Network(text, (4, 6, 3, 5), 2, True, shape=SHAPE, seed=seed) for seed in (0, 1))
    first(x)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(first.eval()(x), second.eval()(x), rtol=0, atol=0)


def test_operations_count_every_branch():
    network = Network("conv3 residual(relu conv3) relu sum(conv1(stride=2) | pool2) relu globalpool", 4, 3, shape=SHAPE)
    positions = [16, 16, 4, 4]
    expected = [2 * w.numel() * n for w, n in zip(network.weights(), [*positions, 1], strict=True)]
    assert network.operations() == sum(expected)


def test_weights_come_from_the_seed_alone():
    first, again, other = (Network("myrtle5", 8, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.linear.weight, again.linear.weight)
    assert not torch.equal(first.linear.weight, other.linear.weight)


def test_widths_can_differ_by_convolution():
    network = Network("myrtle5", (4, 8, 16, 32), 10)
    assert [w.shape[0] for w in network.weights()] == [4, 8, 16, 32, 10]


@pytest.mark.parametrize("layer", [Sine(), Step()])
def test_activations_that_networks_cannot_train_are_refused(layer):
    with pytest.raises(ArchitectureError, match="no activation that a network can train with"):
        tl.Architecture((tl.Conv(3), layer, tl.GlobalPool())).to_torch(4, 2)


def test_factors_of_usual_activations_are_known_where_one_of_them_is_zero(images):
    text = "conv3 relu conv3 polynomial2 globalpool"  # (x² - 1) / √2
    usual, ours = (Network(text, 8, 2, usual_activations=usual, shape=SHAPE).kernel(images) for usual in (True, False))
    np.testing.assert_allclose(usual, ours, rtol=1e-5)


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
        "conv3 residual(relu conv3) gelu sum(pool2 | conv3(stride=2)) abs globalpool",
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
        (lambda: Network("resnet8", (4, 8), 10), ParameterError, "has 9 convolutions"),
        (lambda: Network("conv3 residual(conv3) relu globalpool", (4, 8), 10), ParameterError, "of 8 and 4 channels"),
        (lambda: Network("residual(conv3(stride=2)) globalpool", 4, 10), ArchitectureError, "must end on one grid"),
        (lambda: Network("conv3 relu pool3(stride=2)", 4, 10), ArchitectureError, "add globalpool"),
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
