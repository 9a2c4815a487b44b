"""Wide random networks: the inner products of their features approach the kernel like 1 / sqrt(width)."""

import numpy as np
import pytest

import tangentless as tl
from tangentless.bags import Bag
from tangentless.layers import Conv, GlobalPool, Nonlinearity, Normalize, Pool


def random_features(architecture, image, width, generator):
    """The last feature vector of a random network with standard Gaussian weights, built on the layers' operations."""
    bag, grid = Bag.from_grid(image), image.shape[:-1]
    for layer in architecture:
        if isinstance(layer, Nonlinearity):
            weights = generator.standard_normal((bag.features.shape[1], width))
            norms = np.linalg.norm(bag.features, axis=1, keepdims=True)
            bag = Bag(bag.index, norms * layer.activation(bag.features @ weights / norms) / np.sqrt(width))
        elif isinstance(layer, Normalize):
            bag = Bag(bag.index, bag.features / np.linalg.norm(bag.features, axis=1, keepdims=True))
        else:
            assert isinstance(layer, Conv | Pool | GlobalPool)
            bag = layer.operation(grid).on_features(bag)
        grid = layer.output_grid(grid)
    return bag.features[0]


def empirical_kernel(architecture, images, width, seed):
    features = [random_features(architecture, x, width, np.random.default_rng(seed)) for x in images]
    return np.inner(features, features)


@pytest.mark.parametrize(
    "text",
    [
        "conv3 relu pool2 conv3 relu globalpool normalize relu",
        "conv3 leakyrelu(0.3) conv3 relu globalpool",
        "conv3 gaussian(0.2) pool2 conv3 gaussian(0.2) globalpool normalize",
        "conv3 relu conv3 polynomial2 globalpool normalize relu",
    ],
)
def test_error_of_random_networks_falls_like_one_over_the_root_of_the_width(text):
    kernel = tl.kernel(text)
    X = np.random.default_rng(3).standard_normal((3, 4, 4, 2))
    exact = kernel(X, backend="reference")
    widths = np.array([32, 128, 512])
    errors = [
        np.sqrt(np.mean([(empirical_kernel(kernel.architecture, X, w, s) / exact - 1) ** 2 for s in range(16)]))
        for w in widths
    ]
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert -0.65 < slope < -0.35
    assert errors[-1] < 0.15


def test_networks_do_not_approach_another_kernel():
    X = np.random.default_rng(3).standard_normal((3, 4, 4, 2))
    relu, leaky = tl.kernel("conv3 relu globalpool normalize"), tl.kernel("conv3 leakyrelu(0.3) globalpool normalize")
    difference = np.abs(relu(X, backend="reference") - leaky(X, backend="reference")).max()
    mean = np.mean([empirical_kernel(relu.architecture, X, 1024, s) for s in range(10)], axis=0)
    assert np.abs(mean - relu(X, backend="reference")).max() < difference / 5
