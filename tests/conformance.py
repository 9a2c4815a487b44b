"""The conformance cases: graphs and hostile images on which every backend must agree with the reference."""

import numpy as np
import pytest
from hypothesis import strategies as st

from conftest import frozen

# Chains that together cover every path of the fused kernels: (architecture, shape of one image).
CHAINS = [
    ("myrtle5", (8, 8, 3)),
    ("myrtle10", (12, 8, 1)),
    ("myrtle7-gaussian", (8, 8, 3)),
    ("myrtle10-gaussian", (8, 12, 2)),
    ("conv3 relu pool2 conv3 relu globalpool normalize relu", (16, 5)),  # a sequence
    ("conv1 conv5 relu pool3 conv3 relu conv3 relu globalpool", (9, 6, 2)),  # no head, windows of several sizes
    ("pool2 conv7 relu conv3 pool2 relu globalpool normalize", (8, 8, 17)),  # no layers before a pool, many channels
    ("conv3 leakyrelu(0.2) conv3 gaussian(5) polynomial3 normalize conv3 relu pool2 relu globalpool", (6, 6, 1)),
    ("normalize conv3 gaussian(0.2) pool4 globalpool relu", (8, 4, 3)),
    ("conv3 relu conv3 relu conv3 relu conv3 relu conv3 relu pool5 globalpool normalize relu", (5, 10, 1)),
    ("globalpool", (3, 7, 2)),
    ("relu gaussian", (9,)),  # vectors
    ("normalize relu", (1, 1, 4)),
]
# Strides, dilations, patches, overlapping pools, and sums of all kinds.
GRAPHS = [
    ("resnet8", (8, 12, 2)),
    ("resnet14-gaussian", (8, 8, 3)),
    ("conv3(stride=2) relu conv3(dilation=2) relu globalpool normalize relu", (9, 7, 3)),
    ("conv3 relu conv3(stride=2) relu conv3 relu pool2 conv3 relu globalpool normalize relu", (8, 8, 3)),
    ("conv3 relu pool3(stride=2) conv3(stride=3) relu globalpool normalize relu", (11, 9, 2)),
    # Even: offsets go in pairs.
    ("conv3 relu pool3(stride=2) conv3 relu globalpool normalize relu", (8, 10, 2)),
    ("conv5(dilation=2) relu pool2(stride=3) relu globalpool", (10, 8, 1)),
    ("patch2 relu residual(sum(conv3 | conv5 relu)) relu globalpool normalize relu", (8, 6, 3)),
    ("conv3 sum(0.5 * conv3(stride=2, dilation=2) relu | 2 * pool2 | patch2) relu globalpool", (8, 6, 2)),
    # Branches that need different offsets.
    ("conv3 relu sum(relu conv3(stride=2) | pool2) relu globalpool normalize relu", (8, 6, 2)),
    ("conv3 relu sum(globalpool relu | conv3 relu globalpool) relu", (6, 5, 2)),  # two outputs
    ("conv3 relu globalpool sum(conv3 | identity) residual(conv1 relu) relu", (4, 4, 1)),  # sums in the head
    ("residual(conv3 relu conv3) relu conv3(stride=2) relu globalpool", (7, 2)),  # a sequence
    ("relu residual(relu relu) gaussian", (5,)),  # vectors
    ("conv3 relu residual(relu conv3 residual(relu conv3)) relu pool2 residual(relu conv5) relu globalpool", (6, 6, 2)),
    ("sum(normalize conv3 | conv3) relu globalpool", (5, 4, 2)),  # its values are no power of the scale of the images
    ("conv3 sum(relu conv3 | conv5) relu globalpool", (3, 12, 1)),  # a sum read by windows of 5, at many offsets
    ("conv3 erf conv3 gelu globalpool normalize tanh", (6, 5, 2)),
    ("conv3 abs conv3 sin globalpool normalize cos", (6, 5, 2)),
    # The last pools become one pool with weights.
    ("conv3 relu conv3 gaussian pool3(stride=1) pool2(stride=2) globalpool", (9, 7, 2)),
    ("pool3(stride=1) globalpool", (6, 5, 2)),
    ("conv3 relu halfpool conv3 relu halfpool globalpool", (7, 6, 2)),
    ("conv3 relu conv7 relu conv3(dilation=4) relu globalpool", (9, 8, 2)),  # windows wider than a ring's margins
]
# Chains that the fused kernels of the GPU take. With MORE_LAYOUTS, their grids cover all ways to assign threads.
LAYOUTS = [
    ("conv3 gaussian globalpool", (8, 8, 1)),
    ("conv3 relu conv3 gaussian pool2 conv3 relu globalpool normalize relu", (8, 8, 3)),
    ("conv3 leakyrelu(0.2) conv3 pool2 conv3 polynomial3 pool2 conv3 gaussian(0.5) globalpool", (16, 12, 2)),
    ("conv3 normalize conv3 relu pool2 conv3 relu globalpool normalize", (14, 10, 5)),
    ("conv3 polynomial3 conv3 gaussian(1.5) globalpool", (9, 13, 2)),
    ("conv3 gaussian globalpool normalize", (17, 13, 1)),  # rows with more lanes than columns
    ("conv3 abs conv3 erf pool2 conv3 tanh globalpool", (8, 8, 2)),  # a long polynomial, and fitted series
    # A pool with weights.
    ("conv3 gaussian pool2 conv3 gaussian pool3(stride=1) globalpool normalize gaussian", (12, 16, 2)),
    # Some positions are in no pool.
    ("conv3 relu conv3 polynomial3 pool2(stride=3) pool2(stride=1) globalpool", (11, 8, 1)),
]
MORE_LAYOUTS = [
    ("conv3 gaussian conv3 gaussian conv3 gaussian pool2 conv3 gaussian globalpool normalize gaussian", (12, 16, 3)),
    ("conv3 relu conv3 gaussian conv3 relu pool2 conv3 relu pool2 conv3 gaussian globalpool normalize", (8, 32, 3)),
    ("conv3 relu conv3 relu globalpool normalize relu", (7, 7, 2)),
    ("conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu", (10, 20, 1)),
    ("conv3 relu conv3 relu conv3 relu pool2 conv3 relu globalpool", (4, 32, 3)),
    ("conv3 relu conv3 relu conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu", (8, 4, 4)),
    ("conv3 relu conv3 relu pool4 globalpool normalize relu", (8, 12, 2)),  # one pool of the whole grid
    ("conv3 relu conv3 relu conv3 relu pool2 conv3 gaussian globalpool", (8, 32, 3)),
    ("conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu", (6, 32, 3)),
    ("conv3 relu conv3 relu globalpool", (9, 32, 3)),
    ("conv3 gaussian conv3 gaussian pool2 conv3 relu conv3 relu globalpool", (18, 32, 1)),
    ("conv3 relu conv3 relu pool2 conv3 relu globalpool", (16, 16, 16)),
    ("conv3 leakyrelu(0.2) conv3 leakyrelu(0.1) conv3 relu pool2 conv3 leakyrelu(0.3) globalpool", (8, 32, 2)),
    ("conv3 relu conv3 polynomial3 pool2 conv3 gaussian globalpool normalize", (6, 24, 2)),
    ("conv3 gaussian(0.5) conv3 gaussian(2) conv3 gaussian(0.7) pool2 conv3 gaussian(2) globalpool", (8, 20, 3)),
    ("conv3 relu conv3 normalize conv3 pool2 conv3 relu globalpool", (6, 18, 1)),
    ("conv3 relu pool2 conv3 relu globalpool", (28, 12, 2)),
    ("conv3 relu globalpool", (19, 22, 3)),
]


def name(case):
    """The test id of a graph."""
    text, shape = case
    return f"{text[:48]}-{'x'.join(map(str, shape))}"


def slow_where(cases, *texts):
    """Mark the graphs whose text begins with one of `texts` as slow, so that only `make test-slow` runs them."""
    return [pytest.param(case, marks=pytest.mark.slow) if case[0].startswith(texts) else case for case in cases]


def images(shape, count=5, seed=0):
    """Random images, (count, *shape), read-only."""
    return frozen(np.random.default_rng(seed).standard_normal((count, *shape)))


def partly_black(images):
    """The same images, every second one with a black corner, where patches are zero."""
    X = images.copy()
    X[(slice(None, None, 2), *(slice(2 * n // 3) for n in images.shape[1:-1]))] = 0.0
    return frozen(X)


def relative_error(values, reference):
    """The largest difference, relative to the largest entry."""
    return np.abs(values - reference).max() / np.abs(reference).max()


def hostile_images(shape=(8, 8, 3)):
    """Images that break kernels: black patches and images, constants, duplicates, opposite signs, extreme scales."""
    X = np.random.default_rng(5).standard_normal((12, *shape))
    X[1, :5, :6] = 0.0
    X[2] = 1.0
    X[3] = X[0]
    X[4] = -X[0]
    X[5] *= 1e6
    X[6] *= 1e-6
    X[7] = 1e6 * X[0]
    X[8] = 0.0
    X[9] = 0.0
    X[9, 3, 3] = 1.0
    X[10, 4:] *= 1e-25
    X[11] = np.abs(X[11])
    return frozen(X)


@st.composite
def graphs(draw, layers=("conv1", "conv3", "conv5", "conv3(dilation=2)", "relu", "gaussian"), depth=2):
    """The text of a random architecture, and a shape it fits."""
    height, width = draw(st.tuples(st.integers(2, 9), st.integers(2, 9)))
    text, _ = _layers(draw, (height, width), list(layers), depth, draw(st.integers(1, 4)), moves=True)
    end = draw(st.sampled_from(["globalpool normalize relu", "relu globalpool", "globalpool"]))
    return f"conv3 relu {text} {end}", (height, width, draw(st.integers(1, 3)))


def _layers(draw, grid, layers, depth, count, moves):
    """The text of `count` random layers, and the grid after them; without `moves` (in branches) the grid stays."""
    words = []
    for _ in range(count):
        kind = draw(st.sampled_from(["layer", "layer", "move", "residual", "sum"] if depth else ["layer", "move"]))
        if kind == "residual":
            words.append(f"residual({_layers(draw, grid, layers, depth - 1, draw(st.integers(1, 3)), False)[0]})")
        elif kind == "sum":
            branches = [_layers(draw, grid, layers, depth - 1, draw(st.integers(1, 2)), False)[0] for _ in range(2)]
            words.append(f"sum({draw(st.sampled_from(['0.5 *', '']))} {branches[0]} | {branches[1]})")
        elif kind == "move" and moves and min(grid) > 2:
            tiles = ["pool2", "patch2"] if all(n % 2 == 0 for n in grid) else []
            word = draw(
                st.sampled_from(["conv3(stride=2)", "conv1(stride=3)", "pool3(stride=2)", "pool2(stride=3)", *tiles])
            )
            size, stride = int(word.split("(")[0][-1]), int(word.rstrip(")")[-1])
            grid = tuple(-(-n // stride) if word.startswith("conv") else (n - size) // stride + 1 for n in grid)
            words.append(word)
        else:
            words.append(draw(st.sampled_from(layers)))
    return " ".join(words), grid
