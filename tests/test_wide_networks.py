"""Wide random networks: the inner products of their features approach the kernel like 1 / sqrt(width)."""

import numpy as np
import pytest

import tangentless as tl
from tangentless.backends.reference import operations_of
from tangentless.bags import Bag, Sum
from tangentless.graph import EmbedNode, InputNode, SumNode
from tangentless.layers import Nonlinearity


def random_features(graph, image, width, generator):
    """The last feature vector of a random network with standard Gaussian weights, computed node by node."""
    bags = []
    for node, operation in zip(graph.nodes, operations_of(graph), strict=True):
        before = [bags[source] for source in node.sources]
        if isinstance(node, InputNode):
            bags.append(Bag.from_grid(image))
        elif isinstance(node, SumNode):
            bags.append(Sum(node.weights).on_features(before))
        elif isinstance(node, EmbedNode) and isinstance(node.layer, Nonlinearity):
            bags.append(random_embedding(node.layer, before[0], width, generator))
        else:
            bags.append(operation.on_features(before[0]))
    return bags[-1].features[0]


def random_embedding(layer, bag, width, generator):
    weights = generator.standard_normal((bag.features.shape[1], width))
    norms = np.linalg.norm(bag.features, axis=1, keepdims=True)
    return Bag(bag.index, norms * layer.activation(bag.features @ weights / norms) / np.sqrt(width))


def empirical_kernel(kernel, images, width, seed):
    graph = kernel.graph(images.shape[1:])
    features = [random_features(graph, x, width, np.random.default_rng(seed)) for x in images]
    return np.inner(features, features)


@pytest.mark.parametrize(
    "text",
    [
        "conv3 relu pool2 conv3 relu globalpool normalize relu",
        "conv3 leakyrelu(0.3) conv3 relu globalpool",
        "conv3 gaussian(0.2) pool2 conv3 gaussian(0.2) globalpool normalize",
        "conv3 relu conv3 polynomial2 globalpool normalize relu",
        "conv3 residual(gelu conv3) pool3(stride=1) tanh globalpool",
        "patch2 relu sum(conv3(dilation=2) | 0.5 * identity) erf globalpool",
    ],
)
def test_error_of_random_networks_falls_like_one_over_the_root_of_the_width(text):
    kernel = tl.kernel(text)
    X = np.random.default_rng(3).standard_normal((3, 4, 4, 2))
    exact = kernel(X, backend="reference")
    widths = np.array([32, 128, 512])
    errors = [
        np.sqrt(np.mean([(empirical_kernel(kernel, X, w, s) / exact - 1) ** 2 for s in range(16)])) for w in widths
    ]
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert -0.65 < slope < -0.35
    assert errors[-1] < 0.15


def test_networks_do_not_approach_another_kernel():
    X = np.random.default_rng(3).standard_normal((3, 4, 4, 2))
    relu, leaky = tl.kernel("conv3 relu globalpool normalize"), tl.kernel("conv3 leakyrelu(0.3) globalpool normalize")
    difference = np.abs(relu(X, backend="reference") - leaky(X, backend="reference")).max()
    mean = np.mean([empirical_kernel(relu, X, 1024, s) for s in range(10)], axis=0)
    assert np.abs(mean - relu(X, backend="reference")).max() < difference / 5
