"""Layers: properties of every declaration, and duals against the activations that they belong to."""

import numpy as np
import pytest

from tangentless.architecture import Architecture
from tangentless.errors import ArchitectureError, ParameterError
from tangentless.forms import (
    MAX_DEGREE,
    Arc,
    Exponential,
    Series,
    angle_polynomial,
    arc_polynomial,
    exp2_polynomial,
    series_of,
)
from tangentless.layers import (
    GELU,
    LAYERS,
    Abs,
    Conv,
    Cos,
    Erf,
    Gaussian,
    GlobalPool,
    HalfPool,
    LeakyReLU,
    Nonlinearity,
    Normalize,
    Patch,
    Polynomial,
    Pool,
    ReLU,
    Residual,
    Sin,
    Step,
    Sum,
    Tanh,
    check_dual,
    register,
)

NONLINEARITIES = [
    ReLU(),
    LeakyReLU(0.0),
    LeakyReLU(0.2),
    LeakyReLU(1.0),
    Gaussian(),
    Gaussian(0.3),
    Gaussian(7.5),
    Polynomial(1),
    Polynomial(2),
    Polynomial(5),
    Erf(),
    Erf(3.0),
    GELU(),
    Tanh(),
    Tanh(2.0),
    Sin(),
    Sin(2.5),
    Cos(),
    Cos(0.5),
    Abs(),
    Step(),
]
SMOOTH = [layer for layer in NONLINEARITIES if not isinstance(layer, Step)]
EXAMPLES = [
    *NONLINEARITIES,
    Conv(1),
    Conv(3, stride=2),
    Conv(7, dilation=3),
    Patch(2),
    Pool(1),
    Pool(4),
    Pool(3, stride=2),
    HalfPool(),
    GlobalPool(),
    Normalize(),
]
COSINES = np.linspace(-1.0, 1.0, 201)


def test_every_layer_is_among_the_examples():
    assert {type(layer) for layer in EXAMPLES} == set(LAYERS.values())


@pytest.mark.parametrize("layer", EXAMPLES, ids=str)
def test_text_form_round_trips(layer):
    assert Architecture.parse(str(layer)).layers == (layer,)
    assert hash(Architecture.parse(str(layer))) == hash(Architecture((layer,)))


def test_numpy_integers_are_integers():
    assert str(Conv(np.int64(3))) == "conv3"


@pytest.mark.parametrize("layer", NONLINEARITIES, ids=str)
def test_dual_keeps_the_diagonal(layer):
    assert layer.gain() == pytest.approx(1.0, abs=1e-13)  # series by quadrature; closed forms are exact


@pytest.mark.parametrize("layer", NONLINEARITIES, ids=str)
def test_dual_gives_positive_semidefinite_matrices(layer, rng):
    points = rng.standard_normal((40, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    matrix = layer.dual(np.clip(points @ points.T, -1, 1))
    assert np.linalg.eigvalsh(matrix).min() > -1e-12


@pytest.mark.parametrize("layer", NONLINEARITIES, ids=str)
@pytest.mark.parametrize("cosine", [-0.9, -0.3, 0.0, 0.5, 0.95])
def test_dual_is_the_covariance_of_the_activation(layer, cosine):
    # By quadrature on a grid of (u, w), with v = c u + sqrt(1 - c^2) w: exact for smooth activations. Kinks leave
    # four digits and jumps two, on four times as many points a side.
    kinked = isinstance(layer, ReLU | LeakyReLU | Abs | Step)
    points = np.linspace(-14, 14, 4001 if kinked else 1001)
    density = np.exp(-(points**2) / 2)
    density /= density.sum()
    v = cosine * points[:, None] + np.sqrt(1 - cosine**2) * points
    covariance = (density * layer.activation(points)) @ (layer.activation(v) @ density)
    bound = 3e-3 if isinstance(layer, Step) else 2e-5 if kinked else 1e-11
    assert covariance == pytest.approx(float(layer.dual(np.array(cosine))), abs=bound, rel=0)


@pytest.mark.parametrize("layer", [Erf(), Erf(2.0), Sin(), Sin(2.0), Cos(), Gaussian(0.5), Polynomial(4)], ids=str)
def test_duals_computed_from_activations_are_the_closed_forms(layer):
    np.testing.assert_allclose(Nonlinearity.dual(layer, COSINES), layer.dual(COSINES), atol=1e-12)


def test_an_activation_with_a_kink_needs_its_dual():
    class Clipped(Nonlinearity):
        name = "clipped"

        def activation(self, preactivation):
            return preactivation.clip(-1.0, 1.0)

    with pytest.raises(ArchitectureError, match="define its method dual"):
        Clipped().dual(np.zeros(1))


def with_dual(function):
    class Custom(Nonlinearity):
        name = "custom"

        def activation(self, preactivation):
            return preactivation

        def dual(self, cosine):
            return function(cosine)

    return Custom()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda c: 1.0 - c, "reaches 2 elsewhere"),
        (lambda c: 1.3 * c - 0.4 * c**3, "not positive definite"),
        (lambda c: np.cos(9 * c), "not positive definite|elsewhere"),
        (lambda c: np.sqrt(c - 0.5), "finite number"),
        (lambda c: 0.0 * c, "is 0 at 1"),
        (lambda c: 1.0, "finite number for every cosine"),
    ],
)
def test_what_is_no_dual_is_refused(function, message):
    with pytest.raises(ArchitectureError, match=message):
        check_dual(with_dual(function))


@pytest.mark.parametrize("layer", NONLINEARITIES, ids=str)
def test_duals_of_the_package_are_duals(layer):
    check_dual(layer)


def test_layers_that_cannot_be_registered_say_why():
    class NoName(Nonlinearity):
        def activation(self, preactivation):
            return preactivation

    class Taken(NoName):
        name = "relu"

    class Upper(NoName):
        name = "Swish"

    class Bare(NoName):
        name = "bare"
        slope: float = 1.0

    class Lacking(Nonlinearity):
        name = "lacking"

    cases = [
        (NoName, "small letters"),
        (Taken, "already"),
        (Upper, "small letters"),
        (Bare, "dataclass"),
        (int, "subclass"),
    ]
    for layer, message in [*cases, (Lacking, "must define activation")]:
        with pytest.raises(ParameterError, match=message):
            register(layer)


@pytest.mark.parametrize("layer", NONLINEARITIES, ids=str)
def test_form_says_the_same_as_the_dual(layer):
    form = layer.form()
    if form is None:
        assert series_of(layer.dual) is None  # too steep for a short polynomial, so the general path runs it
        return
    if isinstance(form, Arc):
        remainder = 1 - np.abs(COSINES)
        kappa = np.maximum(COSINES, 0) + remainder**1.5 * np.polynomial.Polynomial(arc_polynomial(1e-12))(remainder)
        value = form.linear * COSINES + form.arc * kappa
    elif isinstance(form, Exponential):
        value = np.exp(form.gamma * (COSINES - 1))
    else:
        value = np.polynomial.Polynomial(form.coefficients)(COSINES)
    np.testing.assert_allclose(value, layer.dual(COSINES), atol=2e-12 if isinstance(layer, ReLU | Gaussian) else 1e-9)


@pytest.mark.parametrize("layer", SMOOTH, ids=str)
def test_derivative_is_that_of_the_dual(layer):
    inside, step = COSINES[1:-1], 1e-6
    numeric = (layer.dual(inside + step) - layer.dual(inside - step)) / (2 * step)
    np.testing.assert_allclose(layer.derivative(inside), numeric, atol=1e-7)
    assert np.isfinite(layer.derivative(COSINES)).all()


@pytest.mark.parametrize("tolerance", [1e-6, 1e-8, 2e-15])
def test_polynomials_reach_the_tolerance_asked_for(tolerance):
    t = np.linspace(0, 1, 4001)
    kappa = np.sqrt(t * (2 - t)) - (1 - t) * np.arccos(1 - t)
    polynomial = np.polynomial.Polynomial(arc_polynomial(tolerance))
    assert np.abs(t**1.5 * polynomial(t) - kappa / np.pi).max() <= tolerance + 1e-15
    angle = np.sqrt(t) * np.polynomial.Polynomial(angle_polynomial(tolerance))(t)
    assert np.abs(angle - 2 * np.arcsin(np.sqrt(t / 2)) / np.pi).max() <= tolerance + 1e-15
    x = np.linspace(-0.5, 0.5, 4001)
    assert np.abs(np.polynomial.Polynomial(exp2_polynomial(tolerance))(x) - np.exp2(x)).max() <= tolerance + 1e-15


def test_a_dual_with_a_kink_has_no_short_series():
    assert series_of(np.abs) is None
    short = series_of(lambda c: np.sin(c) / np.sin(1.0))
    assert isinstance(short, Series)
    assert len(short.coefficients) <= MAX_DEGREE


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda: Residual("conv3"), r"Residual\(\(Conv\(3\), ReLU\(\)\)\) or Architecture.parse\('residual\("),
        (lambda: Residual(Conv(3)), r"Residual\(\(Conv"),
        (lambda: Residual(["conv3"]), r"Residual\(\(Conv.* not of 'conv3'"),
        (lambda: Sum("conv3", "relu"), r"Sum\(\(\(Conv.* or Architecture.parse\('sum\("),
        (lambda: Sum(Conv(3)), r"Sum\(\(\(Conv"),
        (lambda: Sum((Conv(3), ())), r"Sum\(\(\(Conv"),
        (lambda: Sum(("conv3", ())), r"Sum\(\(\(Conv.* not 'conv3'"),
    ],
)
def test_branches_that_are_no_sequences_of_layers_are_refused_with_an_example(make, example):
    with pytest.raises(ArchitectureError, match=example):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv(2), "odd size"),
        (lambda: Conv(0), "odd size"),
        (lambda: Conv(3.0), "odd size"),
        (lambda: Pool(0), "at least 1"),
        (lambda: LeakyReLU(-0.1), "from 0 to 1"),
        (lambda: LeakyReLU("x"), "from 0 to 1"),
        (lambda: Gaussian(0), "above 0"),
        (lambda: Gaussian(float("nan")), "above 0"),
        (lambda: Gaussian(1e300), "at most 1e9"),
        (lambda: Polynomial(0), "at least 1"),
        (lambda: Conv(3, stride=0), "stride of at least 1"),
        (lambda: Conv(3, dilation=1.5), "dilation of at least 1"),
        (lambda: Pool(2, stride=-1), "stride of at least 1"),
        (lambda: Patch(0), "size of at least 1"),
        (lambda: Erf(0.0), "above 0"),
        (lambda: Conv(10**20 + 1), "conv needs a size of at most 999"),
        (lambda: Conv(1001), "size of at most 999"),
        (lambda: Conv(3, stride=10_001), "stride of at most 10,000"),
        (lambda: Conv(3, dilation=10**9), "dilation of at most 10,000"),
        (lambda: Pool(2, stride=10**20), "stride of at most 10,000"),
        (lambda: Conv(999, dilation=21), "at most 10,000 positions"),
        (lambda: Polynomial(True), "at least 1"),
        (lambda: Sum(((Conv(3),), ()), "ab"), "weights of a sum are numbers"),
    ],
)
def test_parameters_out_of_range_are_refused(make, message):
    with pytest.raises(ParameterError, match=message):
        make()
