"""Convolutional tangent kernels: the reference against an independent library, the fast path against the reference."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tangentless as tl
from conftest import frozen
from nonlinearities import Sine
from tangentless.backends import get_backend
from tangentless.classical import NTK, ConvolutionalNTK
from tangentless.errors import ArchitectureError, BackendError

GOLDENS = dict(np.load(Path(__file__).parent / "goldens" / "neural_tangents_ntk.npz"))
CASES = json.loads(str(GOLDENS["cases"]))
ARCHITECTURES = [
    ("conv3 relu globalpool", (4, 4, 2)),
    ("conv3 relu conv3 relu pool2 conv3 relu pool2 globalpool", (8, 8, 3)),
    ("myrtle5", (8, 8, 3)),
    ("conv5 leakyrelu(0.2) pool3 conv3 relu globalpool normalize leakyrelu(0.5)", (6, 9, 1)),
    ("conv3 relu pool4 conv3 leakyrelu(0.1) globalpool", (16, 5)),
    ("pool2 conv3 relu conv1 relu globalpool", (8, 4, 2)),
    ("conv3 conv3 relu pool2 normalize conv3 gaussian(2) polynomial2 globalpool normalize relu", (8, 8, 1)),
]


def images(shape, count=9):
    """Random images, with a black one, one with a black patch, and the negative of another."""
    X = np.random.default_rng(3).standard_normal((count, *shape))
    X[1], X[2] = 0.0, -X[0]
    X[3, : shape[0] // 2] = 0.0
    return frozen(X)


def relative_error(values, reference):
    scale = np.sqrt(np.multiply.outer(np.diagonal(reference), np.diagonal(reference)))
    return np.abs(values - reference) / np.where(scale > 0, scale, 1.0)


# These compile code of their own on the CPU; the next test compares the CPU with the reference.
OWN_CODE = ("leaky", "myrtle5-gaussian", "sequence")


def on(backend, *slow):
    """Every case on a backend; those whose names begin with one of `slow` are left to `make test-slow`."""
    return [
        pytest.param(
            case, backend, id=f"{backend}-{case['name']}", marks=[pytest.mark.slow] * case["name"].startswith(slow)
        )
        for case in CASES
    ]


@pytest.mark.parametrize(("case", "backend"), [*on("reference"), *on("cpu", *OWN_CODE)])
def test_tangent_kernels_agree_with_neural_tangents(case, backend):
    X, name = GOLDENS[f"inputs/{case['inputs']}"], case["name"]
    text = case["architecture"].replace("dense ", "")
    # In neural-tangents a convolution is a mean, and the first kernel is divided by the number of channels.
    scale = X.shape[-1] * np.prod([float(size) ** (X.ndim - 2) for size in re.findall(r"conv(\d)", text)])
    kernel = ConvolutionalNTK(text)
    K, process = kernel(X, backend=backend) / scale, kernel.gaussian_process(X, backend="reference") / scale
    apart = ~np.eye(len(X), dtype=bool)
    np.testing.assert_allclose(process, GOLDENS[f"nngp/{name}"], rtol=1e-13)
    np.testing.assert_allclose(K[apart], GOLDENS[f"ntk_readout/{name}"][apart], rtol=1e-12)
    np.testing.assert_allclose((K - process)[apart], GOLDENS[f"ntk/{name}"][apart], rtol=1e-12)
    # Neural-tangents computes the diagonal by acos.
    np.testing.assert_allclose(K, GOLDENS[f"ntk_readout/{name}"], rtol=5e-8)


@pytest.mark.parametrize(("text", "shape"), ARCHITECTURES, ids=lambda value: str(value))
def test_the_fast_path_agrees_with_the_reference(text, shape):
    X, kernel = images(shape), ConvolutionalNTK(text)
    reference = kernel(X, backend="reference")
    # Opposite images have c = -1, where a square root loses half of the digits; all other entries keep theirs.
    assert relative_error(kernel(X), reference).max() < 1e-8
    others = np.r_[0, 1, 3:9]
    part = np.ix_(others, others)
    assert relative_error(kernel(X)[part], reference[part]).max() < 2e-13
    np.testing.assert_allclose(kernel(X[:4], X[4:]), reference[:4, 4:], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(kernel.diag(X), np.diagonal(reference), rtol=2e-13)


@pytest.mark.parametrize("text", ["conv3 relu pool2 conv3 relu globalpool", "conv3 relu globalpool normalize relu"])
def test_tangent_kernels_are_those_of_wide_networks(text):
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    X = np.random.default_rng(4).standard_normal((3, 4, 4, 2))
    kernel, width, seeds = ConvolutionalNTK(text), 256, 8
    exact = kernel(X, backend="reference")
    found = np.mean([network_tangents(torch, kernel.architecture, X, width, seed) for seed in range(seeds)], axis=0)
    # The error of one network, relative to the norms, is about 1 / sqrt(width) for each layer of weights.
    assert relative_error(found, exact).max() < 3 / np.sqrt(width * seeds)


def network_tangents(torch, architecture, X, width, seed):
    """Inner products of the gradients of a random network's output by all of its weights, by automatic derivatives."""
    generator, weights = torch.Generator().manual_seed(seed), []

    def weight(place, rows):  # drawn at the first use
        if len(weights) == place:
            weights.append(torch.randn((rows, width), generator=generator, dtype=torch.float64).requires_grad_())
        return weights[place]

    def output(image):
        features, place = torch.from_numpy(image), 0  # (H, W, features)
        for layer in architecture:
            if isinstance(layer, tl.Conv):
                padded = torch.nn.functional.pad(features, (0, 0, 1, 1, 1, 1))
                tall, wide = features.shape[:2]
                shifts = [padded[i : i + tall, j : j + wide] for i in range(3) for j in range(3)]
                features = torch.cat(shifts, dim=-1)
            elif isinstance(layer, tl.ReLU):
                before = features @ weight(place, features.shape[-1])
                features, place = np.sqrt(2 / width) * torch.relu(before), place + 1
            elif isinstance(layer, tl.Normalize):
                features = features / features.norm(dim=-1, keepdim=True)
            else:
                tall, wide = (layer.windows(length).size for length in features.shape[:2])
                rows, columns = features.shape[0] // tall, features.shape[1] // wide
                features = features.reshape(rows, tall, columns, wide, -1).mean(dim=(1, 3))
        return features[0, 0] @ weight(place, features.shape[-1])[:, 0]

    gradients = []
    for image in X:
        value = output(image)
        gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(value, weights)]).numpy())
    return np.inner(gradients, gradients)


def test_black_images_have_no_tangent():
    X = images((8, 8, 3))
    for backend in ("reference", "cpu"):
        assert not ConvolutionalNTK("myrtle5")(X, backend=backend)[1].any()


def test_duplicates_have_half_the_digits_and_the_diagonal_has_all():
    X, kernel = images((8, 8, 3)), ConvolutionalNTK("myrtle5")
    np.testing.assert_allclose(np.diagonal(kernel(X, np.array(X))), kernel.diag(X), rtol=1e-7)
    # For equal vectors the kernel is known: every layer of weights adds |x|^2.
    points = images((5,))
    exact = 4 * np.sum(points**2, axis=1)
    for backend in ("reference", "cpu"):
        np.testing.assert_allclose(ConvolutionalNTK("relu relu relu").diag(points, backend=backend), exact, rtol=1e-14)


def test_on_vectors_it_is_the_fully_connected_kernel():
    points = frozen(np.random.default_rng(0).standard_normal((20, 6)))
    for depth in (2, 3, 5):
        text = " ".join(["relu"] * (depth - 1))
        np.testing.assert_allclose(ConvolutionalNTK(text)(points), NTK(depth)(points), rtol=1e-12, atol=1e-12)


def test_it_is_homogeneous_without_a_head_and_scale_free_with_one():
    X = np.random.default_rng(1).standard_normal((6, 8, 8, 2))
    scales = np.array([1e-30, 1e-3, 1.0, 7.0, 1e3, 1e30])
    scaled = X * scales[:, None, None, None]
    body, head = ConvolutionalNTK("conv3 relu pool2 conv3 relu globalpool"), ConvolutionalNTK("myrtle5")
    np.testing.assert_allclose(body(scaled), np.multiply.outer(scales, scales) * body(X), rtol=1e-12)
    np.testing.assert_allclose(head(scaled), head(X), rtol=1e-12)


def test_the_tangent_kernel_exceeds_the_process_by_a_positive_semidefinite_part():
    X = np.random.default_rng(2).standard_normal((12, 4, 4, 1))
    kernel = ConvolutionalNTK("conv3 relu pool2 conv3 relu globalpool normalize relu")
    rest = kernel(X) - kernel.gaussian_process(X, backend="reference")
    assert np.linalg.eigvalsh(rest).min() > 0


def test_entries_do_not_depend_on_tiles_threads_or_neighbours():
    X, kernel = np.random.default_rng(5).standard_normal((29, 8, 8, 1)), ConvolutionalNTK("myrtle5")
    two, one = get_backend("cpu", n_jobs=2), get_backend("cpu", n_jobs=1)
    prepared = kernel.prepare(two, X)
    whole = kernel.block(two, prepared, prepared)
    np.testing.assert_array_equal(kernel.block(one, prepared[7:20], prepared[11:]), whole[7:20, 11:])
    alone = kernel.prepare(one, X[7:8])
    np.testing.assert_array_equal(kernel.block(one, alone, prepared[11:]), whole[7:8, 11:])
    np.testing.assert_array_equal(np.triu(kernel.block(two, prepared, prepared, upper=True)), np.triu(whole))


class Sign(Sine):
    name = "sign"

    def dual(self, cosine):
        return 2 * np.arcsin(cosine) / np.pi


def test_a_users_nonlinearity_has_a_tangent_if_its_derivative_is_known():
    X = images((4, 4, 2))
    kernel = ConvolutionalNTK([tl.Conv(3), Sine(), tl.GlobalPool()])
    # The error of the series that approximates the derivative.
    assert relative_error(kernel(X), kernel(X, backend="reference")).max() < 1e-7
    with pytest.raises(ArchitectureError, match="the derivative of the dual of sign is not known"):
        ConvolutionalNTK([tl.Conv(3), Sign(), tl.GlobalPool()])(X, backend="reference")


def test_graphs_that_cannot_be_fused_are_right():
    kernel, X = ConvolutionalNTK("conv3 gaussian(500) globalpool"), images((4, 4, 1))
    assert "general" in get_backend("cpu").describe(kernel.graph((4, 4, 1)))
    assert relative_error(kernel(X), kernel(X, backend="reference")).max() < 1e-10


def test_what_does_not_fit_is_refused_with_what_to_do():
    with pytest.raises(BackendError, match="pool earlier"):
        ConvolutionalNTK("conv3 relu pool2 globalpool")(np.ones((2, 512, 512, 1)))
    with pytest.raises(ArchitectureError, match="globalpool at the end"):
        ConvolutionalNTK("conv3 relu")(images((4, 4, 1)))
    with pytest.raises(ArchitectureError, match="unknown layer"):
        ConvolutionalNTK("myrtle6")
