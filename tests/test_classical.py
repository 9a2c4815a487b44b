"""Classical kernels against their formulas, an independent library and wide networks; and inputs that lose digits."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tangentless as tl
from conftest import frozen
from tangentless.classical import (
    NNGP,
    NTK,
    ArcCosine,
    Gaussian,
    Linear,
    Polynomial,
    gaussian_family,
    median_squared_distance,
    ntk_family,
    squared_distances,
)
from tangentless.errors import InputError, ParameterError

GOLDENS = Path(__file__).parent / "goldens" / "neural_tangents_ntk.npz"
PAIRS = [(depth, fixed) for depth in range(1, 6) for fixed in range(depth)]


@pytest.fixture
def X(rng):  # noqa: N802
    return frozen(rng.standard_normal((30, 6)))


def cosines(X):
    norms = np.linalg.norm(X, axis=1)
    return np.clip(X @ X.T / np.multiply.outer(norms, norms), -1, 1), np.multiply.outer(norms, norms)


def literal_ntk(X, depth, fixed):
    """The sum over trained layers of their covariance times the slopes of all layers above, one layer at a time."""
    cosine, scale = cosines(X)
    covariances, slopes = [cosine], []
    for _ in range(depth - 1):
        angle = np.arccos(covariances[-1])
        slopes.append(1 - angle / np.pi)
        covariances.append((np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi)
    terms = [covariances[h] * np.prod(slopes[h:], axis=0) for h in range(fixed, depth)]
    return scale * np.sum(terms, axis=0)


def test_linear_polynomial_and_gaussian_are_their_formulas(X):
    Z = X[::-2] + 0.5
    products = np.einsum("ic,jc->ij", X, Z)
    distances = np.sum((X[:, None] - Z[None]) ** 2, axis=2)
    np.testing.assert_allclose(Linear()(X, Z), products, atol=1e-13)
    np.testing.assert_allclose(Polynomial(3, 0.5)(X, Z), (products + 0.5) ** 3, rtol=1e-11, atol=1e-10)
    np.testing.assert_allclose(Gaussian(0.3)(X, Z), np.exp(-0.3 * distances), rtol=1e-13)
    np.testing.assert_allclose(squared_distances(X, Z), distances, rtol=1e-13)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_kernels_are_covariances_of_powers_of_relus(order, X):
    # 2 E[a(w.x) a(w.z)] with a(u) = u^order for positive u, by a product quadrature in the plane of x and z.
    points = np.linspace(-8, 8, 1000)
    density = np.exp(-(points**2) / 2)
    density /= density.sum()
    for x, z in itertools.combinations(X[:4], 2):
        across = z - (z @ x) / (x @ x) * x
        u, v = points[:, None], points[None, :]
        first = np.linalg.norm(x) * u
        second = (z @ x) / np.linalg.norm(x) * u + np.linalg.norm(across) * v
        a = np.where(first > 0, first**order, 0.0)
        b = np.where(second > 0, second**order, 0.0)
        assert ArcCosine(order)(x[None], z[None])[0, 0] == pytest.approx(2 * density @ (a * b) @ density, rel=5e-3)


def test_relu_networks_agree_with_the_kernels_they_equal(X):
    np.testing.assert_allclose(NNGP(1)(X), Linear()(X), atol=1e-13)
    np.testing.assert_allclose(NNGP(2)(X), ArcCosine(1)(X), atol=1e-13)
    np.testing.assert_allclose(NNGP(4)(X), tl.kernel("relu relu relu")(X, backend="reference"), atol=1e-13)
    for depth in (1, 2, 5):
        np.testing.assert_array_equal(NTK(depth, fixed=depth - 1)(X), NNGP(depth)(X))


@pytest.mark.parametrize(("depth", "fixed"), PAIRS)
def test_fixed_layers_leave_the_sum_over_trained_ones(depth, fixed, X):
    apart = ~np.eye(len(X), dtype=bool)  # on the diagonal, arccos has half the digits
    np.testing.assert_allclose(NTK(depth, fixed)(X)[apart], literal_ntk(X, depth, fixed)[apart], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("depth", "fixed"), [(2, 0), (3, 0), (3, 1), (4, 2)])
def test_tangent_kernels_are_those_of_wide_networks(depth, fixed):
    X = np.random.default_rng(1).standard_normal((3, 5))
    width, exact = 256, NTK(depth, fixed)(X)
    found = np.mean([empirical_ntk(X, depth, fixed, width, np.random.default_rng(seed)) for seed in range(20)], axis=0)
    norms = np.sqrt(np.diag(exact))
    assert np.abs((found - exact) / np.multiply.outer(norms, norms)).max() < 6 / np.sqrt(20 * width)


def empirical_ntk(X, depth, fixed, width, generator):
    """Inner products of the gradients of a network's output, by the chain rule, of the layers that are trained."""
    sizes = [X.shape[1], *[width] * (depth - 1), 1]
    weights = [generator.standard_normal(shape) for shape in itertools.pairwise(sizes)]
    inputs, masks = [X], []
    for layer, w in enumerate(weights[:-1]):
        before = inputs[-1] @ w / (1 if layer == 0 else np.sqrt(width))
        masks.append(np.sqrt(2) * (before > 0))
        inputs.append(before * masks[-1])
    scales = [1.0] + [1 / np.sqrt(width)] * (depth - 1)
    back, total = np.ones((len(X), 1)), 0
    for layer in reversed(range(depth)):
        if layer >= fixed:
            total = total + scales[layer] ** 2 * (inputs[layer] @ inputs[layer].T) * (back @ back.T)
        if layer > 0:
            back = (back @ weights[layer].T) * scales[layer] * masks[layer - 1]
    return total


def golden_dense():
    with np.load(GOLDENS) as archive:
        values = dict(archive)
    cases = [case for case in json.loads(str(values["cases"])) if case["name"].startswith("dense")]
    return [(int(case["name"].removeprefix("dense-")), case["name"], values) for case in cases]


@pytest.mark.parametrize(("relus", "name", "values"), golden_dense(), ids=lambda value: str(value)[:8])
def test_relu_networks_agree_with_neural_tangents(relus, name, values):
    X = values["inputs/7"]
    apart, features = ~np.eye(len(X), dtype=bool), X.shape[1]
    nngp, ntk = NNGP(relus + 1)(X) / features, NTK(relus + 1)(X) / features
    np.testing.assert_allclose(nngp, values[f"nngp/{name}"], rtol=1e-13)
    np.testing.assert_allclose(ntk[apart], values[f"ntk_readout/{name}"][apart], rtol=1e-12)
    # The library computes the diagonal by acos, with half the digits.
    np.testing.assert_allclose(ntk, values[f"ntk_readout/{name}"], rtol=5e-8)
    np.testing.assert_allclose((ntk - nngp)[apart], values[f"ntk/{name}"][apart], rtol=1e-12)
    for fixed, expected in enumerate(values[f"ntk_fixed/{name}"]):
        np.testing.assert_allclose(NTK(relus + 1, fixed)(X)[apart] / features, expected[apart], rtol=1e-12)


def test_families_are_their_members(X):
    for Z in (None, frozen(X[5:12] + 0.1)):
        family = ntk_family(X, Z, range(1, 6))
        assert sorted(family) == PAIRS
        for (depth, fixed), K in family.items():
            np.testing.assert_array_equal(K, NTK(depth, fixed)(X, Z))
        gammas = [1e-3, 0.5, 20.0]
        for gamma, K in gaussian_family(X, Z, gammas=gammas):
            np.testing.assert_array_equal(K, Gaussian(gamma)(X, Z))
    K = ntk_family(np.concatenate([X] * 40), depths=[3])[3, 0]  # more rows than a tile
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(K[:30, 1170:], NTK(3)(X, X), rtol=1e-12, atol=1e-12)


def test_images_are_read_as_vectors(rng):
    images = rng.standard_normal((9, 4, 3, 2))
    for kernel in (Gaussian(0.1), NTK(3)):
        np.testing.assert_array_equal(kernel(images), kernel(images.reshape(9, -1)))
    np.testing.assert_array_equal(ntk_family(images)[2, 0], NTK(2)(images.reshape(9, -1)))


def test_near_duplicates_keep_their_digits():
    # Two unit vectors at a known angle: all values have closed forms. At the smallest angles the cosine rounds to 1.
    for angle in [1e-3, 1e-5, 1e-8, 1e-12]:
        x, z = np.array([[1.0, 0.0]]), np.array([[np.cos(angle), np.sin(angle)]])
        below = -4 * np.sin(angle / 2) ** 2 * (1 - angle / np.pi) + (np.sin(angle) - 2 * angle) / np.pi
        assert NTK(2)(x, z)[0, 0] == pytest.approx(2 + below, abs=1e-15)
        assert ArcCosine(0)(x, z)[0, 0] == pytest.approx(1 - angle / np.pi, abs=1e-15)
        assert ArcCosine(0)(x, -z)[0, 0] == pytest.approx(angle / np.pi, abs=1e-15)
        far, farther = np.array([[1e6, 1.0]]), np.array([[1e6, 1.0 + 2.0**-10]])
        assert squared_distances(far, farther)[0, 0] == 2.0**-20


def test_duplicates_are_as_good_as_the_diagonal(X):
    for kernel in (Gaussian(1e6), NNGP(5), NTK(5, 2), ArcCosine(0), ArcCosine(2)):
        np.testing.assert_allclose(np.diagonal(kernel(X, np.array(X))), kernel.diag(X), rtol=1e-14)
    np.testing.assert_allclose(np.diagonal(ArcCosine(0)(X, -X)), 0, atol=1e-15)
    np.testing.assert_allclose(np.diagonal(NTK(4)(X, 1e6 * X)), 1e6 * NTK(4).diag(X), rtol=1e-14)


def test_zero_vectors_have_no_tangent_and_no_angle(X):
    rows = np.vstack([X[:3], np.zeros((2, 6))])
    for kernel in (Linear(), NNGP(3), NTK(4, 1), ArcCosine(0), ArcCosine(1), ArcCosine(2)):
        assert not kernel(rows)[3:].any()
        assert not kernel(rows, rows)[:, 3:].any()
    np.testing.assert_array_equal(Gaussian(1.0)(rows)[3:, 3:], np.ones((2, 2)))


points = arrays(np.float64, (8, 3), elements=st.floats(-100, 100).map(lambda value: round(value, 6)))


@settings(max_examples=60, deadline=None)
@given(points, st.integers(1, 6), st.integers(0, 5), st.floats(1e-3, 1e3))
def test_tangent_kernels_are_psd_homogeneous_and_recursive(X, depth, fixed, scale):
    fixed = fixed % depth
    K = NTK(depth, fixed)(X)
    np.testing.assert_array_equal(K, K.T)
    size = max(np.abs(K).max(), 1e-30)
    assert np.linalg.eigvalsh(K).min() >= -1e-12 * size
    np.testing.assert_allclose(NTK(depth, fixed)(scale * X), scale**2 * K, atol=1e-12 * scale**2 * size)
    np.testing.assert_allclose(np.diagonal(K), (depth - fixed) * np.sum(X**2, axis=1), rtol=1e-14)
    cosine, _ = cosines(np.where(np.any(X, axis=1, keepdims=True), X, 1.0))
    for _ in range(depth - 1):
        cosine = tl.ReLU().dual(cosine)
    slope, last = 1 - np.arccos(np.clip(cosine, -1, 1)) / np.pi, NNGP(depth + 1)(X)
    np.testing.assert_allclose(NTK(depth + 1, fixed)(X), K * slope + last, atol=1e-6 * size * depth)


@settings(max_examples=60, deadline=None)
@given(points, st.floats(1e-6, 1e3))
def test_gaussian_kernels_are_psd_and_shift_free(X, gamma):
    K = Gaussian(gamma)(X)
    assert np.linalg.eigvalsh(K).min() >= -1e-13
    assert K.max() == 1
    np.testing.assert_allclose(Gaussian(gamma)(X + 64.0), K, atol=1e-7)


def test_the_median_is_that_of_distances_between_different_rows(X):
    distances = [np.sum((a - b) ** 2) for a, b in itertools.combinations(X, 2)]
    assert median_squared_distance(X) == pytest.approx(np.median(distances), rel=1e-14)
    assert Gaussian.median(X, factor=2.0).gamma == pytest.approx(2 / np.median(distances), rel=1e-14)
    assert median_squared_distance(X, rows=7) == median_squared_distance(X[np.linspace(0, 29, 7).astype(int)])


def test_no_median_where_there_is_no_distance():
    with pytest.raises(InputError, match=r"median distance between rows is 0.*constant features"):
        Gaussian.median(np.ones((5, 3)))
    with pytest.raises(InputError, match="needs at least two"):
        median_squared_distance(np.ones((1, 3)))
    with pytest.raises(ParameterError, match="rows must be a whole number from 2, not 1"):
        median_squared_distance(np.eye(3), rows=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0), "gamma above 0"),
        (lambda: Gaussian(-1.0), "gamma above 0"),
        (lambda: Gaussian(float("nan")), "gamma above 0"),
        (lambda: Gaussian(float("inf")), "finite gamma"),
        (lambda: Gaussian("median"), "median heuristic"),
        (lambda: list(gaussian_family(np.ones((2, 2)), gammas=[1.0, -1.0])), "gamma above 0"),
        (lambda: Polynomial(0), "degree of at least 1"),
        (lambda: Polynomial(2.5), "degree of at least 1"),
        (lambda: Polynomial(2, -1), "positive semidefinite"),
        (lambda: ArcCosine(3), "order 0, 1 or 2"),
        (lambda: ArcCosine(True), "order 0, 1 or 2"),
        (lambda: NNGP(0), "depth must be a whole number from 1"),
        (lambda: NTK(0), "depth must be a whole number from 1"),
        (lambda: NTK(1.5), "depth must be a whole number from 1"),
        (lambda: NTK(3, 3), "fixed must be a whole number from 0 to 2, not 3"),
        (lambda: NTK(3, -1), "fixed must be a whole number from 0 to 2"),
        (lambda: ntk_family(np.ones((2, 2)), depths=[2, 0]), "depth must be a whole number from 1"),
        (lambda: ntk_family(np.ones((2, 2)), depths=[]), "at least one depth"),
        (lambda: ntk_family(np.ones((2, 2)), depths=3), r"depths must be a list, such as \[3\]"),
        (lambda: gaussian_family(np.ones((2, 2)), gammas=0.1), r"gammas must be a list, such as \[0.1\]"),
    ],
)
def test_parameters_out_of_range_are_refused(make, message):
    with pytest.raises(ParameterError, match=message):
        make()


def test_what_float64_cannot_hold_is_refused():
    with pytest.raises(InputError, match="exceed float64; rescale"):
        Polynomial(5)(np.full((2, 3), 1e80))
    with pytest.raises(InputError, match="NaN"):
        ntk_family(np.array([[1.0, np.nan]]))
    with pytest.raises(InputError, match="differ in shape"):
        squared_distances(np.ones((2, 3)), np.ones((2, 4)))


def test_parameters_are_plain_numbers():
    kernel = NTK(np.int64(3), np.int32(1))
    assert repr(kernel) == "NTK(depth=3, fixed=1)"
    assert repr(Gaussian(np.float32(0.5))) == "Gaussian(gamma=0.5)"
    assert Gaussian(1) == Gaussian(1.0)
