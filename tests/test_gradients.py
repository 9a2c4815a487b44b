"""Gradients: the definition against finite differences, every backend against the definition, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nonlinearities
import tangentless as tl
from conformance import CHAINS, GRAPHS, graphs, hostile_images, images, name, partly_black
from conftest import frozen
from tangentless.backends import general, get_backend
from tangentless.backends.backward import GeneralGradient
from tangentless.backends.cpu.back import FusedGradient
from tangentless.backends.reference import ReferenceBackend
from tangentless.bags import Concat, Downsample, Embed
from tangentless.classical import NNGP, NTK, ArcCosine, ConvolutionalNTK, Gaussian, Linear, Polynomial
from tangentless.errors import ArchitectureError, BackendError, InputError, ParameterError
from tangentless.kernel import Elementary
from tangentless.layers import ReLU

GOLDENS = {
    key: frozen(array)
    for key, array in np.load(Path(__file__).parent / "goldens" / "neural_tangents_gradients.npz").items()
}
GOLDEN_CASES = json.loads(str(GOLDENS["cases"]))
SIXTH_ORDER = {1: 0.75, 2: -0.15, 3: 1 / 60}
SMALL = "conv3 gaussian pool2 conv3 relu globalpool normalize gaussian(0.7)"
COMPOSED = [
    tl.kernel(SMALL) + tl.kernel("conv3 relu globalpool"),
    0.3 * tl.kernel(SMALL) * tl.kernel("conv3 erf globalpool"),
    tl.kernel(SMALL).mirrored(),
    tl.kernel(SMALL).mirrored() * tl.kernel("conv3 tanh globalpool"),
    ConvolutionalNTK("conv3 relu pool2 conv3 relu globalpool normalize relu"),
    ConvolutionalNTK("conv3 residual(gaussian conv3 erf conv3) sin globalpool relu"),
]
CLASSICAL = [
    Linear(),
    Polynomial(3, 0.5),
    Gaussian(0.1),
    *(ArcCosine(order) for order in range(3)),
    NTK(4, 1),
    NNGP(3),
    0.5 * NTK(3) * Gaussian(0.1) + NNGP(2),
]


def slope(function, point, direction, step=1e-3):
    """The derivative of a function along a direction, by differences of sixth order."""
    return sum(
        weight * (function(point + k * step * direction) - function(point - k * step * direction))
        for k, weight in SIXTH_ORDER.items()
    ) / step  # fmt: skip


def check_by_differences(kernel, shape, bound=1e-8, **device):
    rng = np.random.default_rng(1)
    X, Z = images(shape, 3), images(shape, 2, seed=1)
    G, S, D, E = (rng.standard_normal(some) for some in ((3, 2), (3, 3), X.shape, Z.shape))
    dX, dZ = kernel.vjp(X, Z, G, **device)
    expected = slope(lambda s: (G * kernel(X + s * D, Z + s * E, **device)).sum(), 0.0, 1.0)
    assert (dX * D).sum() + (dZ * E).sum() == pytest.approx(expected, rel=bound)
    expected = slope(lambda s: (S * kernel(X + s * D, **device)).sum(), 0.0, 1.0)
    assert (kernel.vjp(X, None, S, **device) * D).sum() == pytest.approx(expected, rel=bound)


@pytest.mark.parametrize("case", [*CHAINS, *GRAPHS], ids=name)
def test_gradients_of_the_reference_are_slopes(case):
    text, shape = case
    # With two channels, pixels are divided by norms that may be small, where differences lose digits.
    bound = 1e-7 if text.startswith("sum(normalize") else 1e-8
    check_by_differences(tl.kernel(text), shape, bound, backend="reference")


@pytest.mark.parametrize("kernel", COMPOSED, ids=repr)
def test_gradients_of_composed_and_tangent_kernels_are_slopes(kernel):
    check_by_differences(kernel, (4, 4, 2), backend="reference")


@pytest.mark.parametrize("kernel", CLASSICAL, ids=repr)
def test_gradients_of_classical_kernels_are_slopes(kernel):
    check_by_differences(kernel, (5,), backend="cpu")


def parametrised(gamma, weight, slope, factor):
    text = (
        f"conv3 gaussian({gamma}) sum({weight} * conv3 | 2 * relu conv3) leakyrelu({slope}) pool2 conv3 tanh({gamma})"
    )
    return factor * tl.kernel(f"{text} globalpool normalize erf({gamma})").mirrored() + Gaussian(gamma)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_by_parameters_are_slopes(symmetric):
    values = np.array([0.8, 0.5, 0.2, 1.3])
    X, Z = images((4, 4, 2), 3), None if symmetric else images((4, 4, 2), 2, seed=1)
    G = np.random.default_rng(0).standard_normal((3, 3 if symmetric else 2))
    *_, found = parametrised(*values).vjp(X, Z, G, parameters=True, backend="reference")
    words = [("gamma", "scale"), ("weights[0]",), ("slope",), ("factor",)]
    for place, endings in enumerate(words):
        total = sum(number for key, number in found.items() if key.endswith(endings))
        direction = np.eye(4)[place]
        expected = slope(lambda p: (G * parametrised(*p)(X, Z, backend="reference")).sum(), values, direction)
        assert total == pytest.approx(expected, rel=1e-8)


def louder(gain, inner, outer):
    branch = tl.Residual((nonlinearities.Louder(inner), tl.Conv(3)))
    layers = [tl.Conv(3), nonlinearities.Louder(gain), branch, tl.ReLU(), tl.Pool(2), tl.Conv(3), tl.ReLU()]
    return tl.kernel([*layers, tl.GlobalPool(), nonlinearities.Louder(outer), tl.Gaussian()])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_by_parameters_that_change_norms_are_slopes(backend, symmetric):
    values = np.array([0.8, 1.3, 2.1])
    X, Z = images((4, 4, 2), 3), None if symmetric else images((4, 4, 2), 2, seed=1)
    G = np.random.default_rng(0).standard_normal((3, 3 if symmetric else 2))
    *_, found = louder(*values).vjp(X, Z, G, parameters=True, backend=backend)
    expected = [
        slope(lambda p: (G * louder(*p)(X, Z, backend="reference")).sum(), values, along) for along in np.eye(3)
    ]
    numbers = {int(key.split(".")[0]): by for key, by in found.items() if "louder" in key}
    assert [by for _, by in sorted(numbers.items())] == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("text", ["erf(100)", "sin(100)", "tanh(2.26)"])
def test_parameters_at_an_end_of_their_range_have_slopes(text):
    layer = tl.kernel(f"conv3 {text} globalpool").architecture.layers[1]
    value, cosine = layer.scale, np.array([-0.9, 0.1, 0.99])
    below = [type(layer)(value * (1 - k * 1e-4)).dual(cosine) for k in range(3)]
    expected = (3 * below[0] - 4 * below[1] + below[2]) / (2e-4 * value)
    np.testing.assert_allclose(layer.parameter_slope("scale", cosine), expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    "operation",
    [
        Concat((0, 1, 2), {"a": (0, 1), "b": (1, 1), "c": (2, None)}, scale=0.5),
        Downsample((0, 1, 2), {"a": (0, 1, 1), "b": (2,)}),
        ReLU().embedding(),
        Embed(np.exp, keep_norms=False, derivative=np.exp, curvature=np.exp),
    ],
    ids=["concatenate", "downsample", "embed", "embed without norms"],
)
def test_pullbacks_of_operations_are_slopes(operation):
    rng = np.random.default_rng(0)
    kernel, tangent = 0.3 * rng.standard_normal((2, 3, 3))
    left, right = rng.uniform(1, 2, (2, 3))
    by_kernel, by_tangent = rng.standard_normal((2, *operation.on_kernel(kernel, left, right).shape))
    (pulled, pulled_tangent), *squares = operation.pullback((by_kernel, by_tangent), (kernel, tangent), left, right)
    moves = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3))

    def value(s):
        k, t = kernel + s * moves[0][0], tangent + s * moves[0][1]
        a, b = (np.sqrt(norms**2 + s * move) for norms, move in zip((left, right), moves[1], strict=True))
        return (by_kernel * operation.on_kernel(k, a, b)).sum() + (by_tangent * operation.on_tangent(t, k, a, b)).sum()

    found = (pulled * moves[0][0]).sum() + (pulled_tangent * moves[0][1]).sum()
    found += sum((by * move).sum() for by, move in zip(squares, moves[1], strict=True))
    assert found == pytest.approx(slope(value, 0.0, 1.0, step=1e-4), rel=1e-8)


def relative(found, expected):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, expected, strict=True))


# On the CPU each nonlinearity compiles code of its own, which tests below compare with the reference.
ON_CPU = [
    pytest.param(case, "cpu", id=f"cpu-{case['name']}", marks=[pytest.mark.slow] * case["name"].startswith("chain-"))
    for case in GOLDEN_CASES
]
ON_REFERENCE = [pytest.param(case, "reference", id=f"reference-{case['name']}") for case in GOLDEN_CASES]


@pytest.mark.parametrize(("case", "backend"), [*ON_REFERENCE, *ON_CPU])
def test_gradients_agree_with_jax_through_neural_tangents(case, backend):
    X = GOLDENS[f"inputs/{case['inputs']}"]
    found = tl.kernel(case["architecture"]).vjp(
        X[:3], X[3:], GOLDENS["cotangent"], backend=backend, precision="float64"
    )
    expected = [GOLDENS[f"{side}/{case['name']}"] for side in ("left", "right")]
    assert relative(found, expected) < 1e-8


@pytest.mark.parametrize("case", [*CHAINS, *GRAPHS], ids=name)
def test_general_gradients_agree_with_the_reference(case):
    text, shape = case
    check_general(tl.kernel(text), partly_black(images(shape, 3)), images(shape, 2, seed=1))


@pytest.mark.parametrize("kernel", COMPOSED, ids=repr)
def test_gradients_of_composed_kernels_agree_with_the_reference(kernel):
    check_general(kernel, images((4, 4, 2), 3), images((4, 4, 2), 2, seed=1))


def check_general(kernel, X, Z):
    rng = np.random.default_rng(0)
    G, S = rng.standard_normal((len(X), len(Z))), rng.standard_normal((len(X), len(X)))
    both = {"parameters": not isinstance(kernel, ConvolutionalNTK)}  # only the general path has these
    found, expected = (
        [
            *kernel.vjp(X, Z, G, backend=backend, **both)[:2],
            *as_tuple(kernel.vjp(X, None, S, backend=backend, **both))[:1],
        ]
        for backend in ("cpu", "reference")
    )
    assert relative(found, expected) < 1e-9


def as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


# Chains that together cover every path of the fused gradients. Those of ReLU share their compiled code; others
# compile for ten seconds or more in each precision.
BOUNDS = {"float64": 1e-9, "float32": 1e-4}
GAUSSIANS = "conv3 gaussian conv3 gaussian globalpool normalize gaussian", (8, 6, 2)
FUSED = [(CHAINS[i], precision) for i in (0, 1, 4, 9) for precision in BOUNDS] + [(CHAINS[5], "float32")]
SLOW = [(CHAINS[5], "float64"), *((CHAINS[i], precision) for i in (2, 7, 10) for precision in BOUNDS)]


@pytest.mark.parametrize(
    ("case", "precision"),
    [*FUSED, (GAUSSIANS, "float32"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_fused_gradients_agree_with_the_reference(case, precision):
    text, shape = case
    X, Z, kernel = partly_black(images(shape, 3)), images(shape, 2, seed=1), tl.kernel(text)
    assert isinstance(get_backend("cpu").gradient(kernel.graph(shape), X), FusedGradient)
    rng = np.random.default_rng(0)
    G, S = rng.standard_normal((3, 2)), rng.standard_normal((3, 3))
    expected = *kernel.vjp(X, Z, G, backend="reference"), kernel.vjp(X, None, S, backend="reference")
    device = {"backend": "cpu", "precision": precision}
    found = *kernel.vjp(X, Z, G, **device), kernel.vjp(X, None, S, **device)
    assert relative(found, expected) < BOUNDS[precision]


@pytest.mark.parametrize("layer", ["gaussian", "leakyrelu(0.2)"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_patches_of_zeros_have_no_gradient(layer, precision):
    X, Z = partly_black(images((3, 3, 1), 1)), images((3, 3, 1), 2, seed=1)
    kernel = tl.kernel(f"conv1 {layer} globalpool")
    gradient, _ = kernel.vjp(X, Z, np.ones((1, 2)), backend="cpu", precision=precision)
    assert np.array_equal(gradient == 0.0, X == 0.0)


@settings(max_examples=20, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_gradients_of_random_graphs_agree_with_the_reference(graph, seed):
    text, shape = graph
    X = images(shape, 2, seed=seed)
    G = np.random.default_rng(seed).standard_normal((2, 2))
    kernel = tl.kernel(text)
    expected = kernel.vjp(X, None, G, backend="reference", parameters=True)
    found = kernel.vjp(X, None, G, backend="cpu", precision="float64", parameters=True)
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-9 * np.abs(expected[0]).max())
    assert found[1] == pytest.approx(expected[1], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    "kernel", [tl.kernel("myrtle5"), tl.kernel("myrtle5").mirrored(), ConvolutionalNTK("myrtle5"), NTK(3)]
)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_hostile_images_have_finite_gradients(kernel, precision):
    X = hostile_images()
    G = np.random.default_rng(0).standard_normal((len(X), len(X)))
    gradient = kernel.vjp(X, None, G, backend="cpu", precision=precision)
    assert np.isfinite(gradient).all()
    assert not gradient[8].any()  # a black image: where a nonlinearity has no derivative, zero is taken


@pytest.mark.parametrize("text", ["conv3 relu globalpool", "conv3 relu pool2 conv3 relu globalpool normalize relu"])
@pytest.mark.parametrize(("size", "weight"), [(2.0**300, 1.0), (2.0**-300, 1.0), (1.0, 2.0**200), (1.0, 2.0**-200)])
def test_sizes_of_images_and_of_cotangents_change_no_bit_of_float32_gradients(text, size, weight):
    kernel, X, G = tl.kernel(text), images((8, 8, 2), 5), np.ones((5, 5))
    factor = weight / size if "normalize" in text else weight * size  # of all gradients
    for Z, other in ((None, None), (X[::-1] + 1.0, (X[::-1] + 1.0) * size)):
        expected = as_tuple(kernel.vjp(X, Z, G, backend="cpu"))
        found = as_tuple(kernel.vjp(X * size, other, G * weight, backend="cpu"))
        for some, one in zip(found, expected, strict=True):
            assert np.array_equal(some / factor, one)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_beyond_float64_are_refused(backend):
    X = images((4, 4, 2), 3)
    with pytest.raises(InputError, match=r"gradient by X is beyond .* first in row 0; rescale G"):
        tl.kernel(SMALL).vjp(X, None, np.full((3, 3), 1.7e308), backend=backend)
    tiny = np.zeros((2, 4, 4, 1))
    tiny[:, 0, 0], tiny[1, 2, 2] = 1.0, 1e-160  # squared norms below the smallest normal number
    with pytest.raises(InputError, match="first in row 1"):
        ConvolutionalNTK("conv1 relu globalpool").vjp(tiny, None, np.ones((2, 2)), backend=backend)


def test_duplicates_have_the_gradient_that_an_image_has_with_itself():
    X = images((6, 6, 2), 1)
    kernel = tl.kernel("conv3 relu pool2 conv3 relu globalpool")
    left, right = kernel.vjp(X, X, np.ones((1, 1)), backend="reference")
    # Near c = 1, f' has a square root of 1 - c, so rounding leaves half of the digits.
    np.testing.assert_allclose(left + right, kernel.vjp(X, None, np.ones((1, 1)), backend="reference"), rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("text", ["myrtle5", "conv3 residual(relu conv3) relu pool3(stride=2) relu globalpool"])
def test_bits_of_gradients_do_not_depend_on_tiles_and_threads(text, precision, monkeypatch):
    X, Z = images((8, 8, 3), 21), images((8, 8, 3), 19, seed=1)
    rng = np.random.default_rng(0)
    G, S = rng.standard_normal((21, 19)), rng.standard_normal((21, 21))
    kernel = tl.kernel(text)

    def gradients(n_jobs):
        device = {"backend": "cpu", "precision": precision, "n_jobs": n_jobs}
        return *kernel.vjp(X, Z, G, **device), kernel.vjp(X, None, S, **device)

    expected = gradients(1)
    monkeypatch.setattr(GeneralGradient, "tile", 5)
    monkeypatch.setattr(FusedGradient, "tile", 16)  # a multiple of the lanes of a vector and the rows of a task
    monkeypatch.setattr(general, "_PLANE_BYTES", 1 << 17)
    for found, one in zip(gradients(3), expected, strict=True):
        assert np.array_equal(found, one)


@pytest.mark.parametrize(
    "text", ["conv3 relu pool2 conv3 relu globalpool", "conv3 residual(relu conv3) relu globalpool"]
)
def test_gradients_by_one_side_alone_are_the_same(text):
    kernel = tl.kernel(text)
    X, Z = images((6, 6, 2), 3), images((6, 6, 2), 2, seed=1)
    both, left, right = (kernel.vjp(X, Z, np.ones((3, 2)), wrt=wrt, backend="cpu") for wrt in ("XZ", "X", "Z"))
    assert np.array_equal(left[0], both[0])
    assert np.array_equal(right[1], both[1])
    assert (left[1], right[0]) == (None, None)


def test_gradients_are_the_kind_of_array_that_came_in():
    torch = pytest.importorskip("torch")
    X, Z = torch.from_numpy(images((4, 4, 2), 3).copy()), images((4, 4, 2), 2, seed=1)
    dX, dZ = tl.kernel(SMALL).vjp(X, Z, np.ones((3, 2)), backend="reference")
    assert isinstance(dX, torch.Tensor)
    assert isinstance(dZ, np.ndarray)


class NoGradient(Elementary):
    """A user's kernel without a gradient."""

    definition = "none"

    def prepare(self, device, images):
        raise NotImplementedError

    def block(self, device, left, right, *, upper=False, advance=None):
        raise NotImplementedError

    def elements(self, shape):
        return 1

    def image_numbers(self, shape):
        return 1


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("kernel", "arguments", "error", "message"),
    [
        (
            "conv3 relu globalpool",
            {"G": np.ones((2, 3))},
            InputError,
            r"shape \(2, 3\), but the kernel matrix has shape \(3, 2\)",
        ),
        ("conv3 relu globalpool", {"G": np.full((3, 2), np.nan)}, InputError, r"nan at \[0, 0\]"),
        ("conv3 relu globalpool", {"G": np.ones((3, 2), complex)}, InputError, "complex128; give real numbers"),
        ("conv3 relu globalpool", {"X": np.ones((3, 4, 4, 2), int)}, InputError, "int64, which has no gradient"),
        ("conv3 relu globalpool", {"wrt": "G"}, ParameterError, "'X', 'Z' or 'XZ'"),
        ("conv3 relu globalpool", {"Z": None, "G": np.ones((3, 3)), "wrt": "Z"}, ParameterError, "needs a Z"),
        ("conv3 step globalpool", {}, ArchitectureError, "step has no tangent kernel and no gradient"),
        (ConvolutionalNTK("conv3 gaussian globalpool"), {"parameters": True}, ParameterError, "tangent kernels"),
        (NoGradient(), {}, ParameterError, "has no gradient"),
    ],
)
def test_kernels_without_a_gradient_say_so(kernel, arguments, error, message, backend):
    X = images((4, 4, 2), 3)
    kernel = tl.kernel(kernel) if isinstance(kernel, str) else kernel
    with pytest.raises(error, match=message):
        kernel.vjp(**{"X": X, "Z": X[:2], "G": np.ones((3, 2)), "backend": backend, **arguments})


def test_a_users_layer_without_a_derivative_is_named():
    kernel = tl.kernel([tl.Conv(3), nonlinearities.Step(), tl.GlobalPool()])
    X = images((4, 4, 2), 3)
    with pytest.raises(ArchitectureError, match="derivative of the dual of step is not known"):
        kernel.vjp(X, None, np.ones((3, 3)))


def test_a_backend_without_gradients_says_so():
    class Plain(ReferenceBackend):
        pullback = property()

    X = images((4, 4, 2), 3)
    with pytest.raises(BackendError, match="has no gradients"):
        tl.kernel(SMALL).vjp(X, None, np.ones((3, 3)), backend=Plain())
