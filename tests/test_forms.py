"""One lowering of dual functions: every backend's numbers are within one tolerance, for all cosines."""

import numpy as np
import pytest
from numpy.polynomial.polynomial import polyval

from tangentless.backends import segments
from tangentless.backends.cpu import duals
from tangentless.backends.cuda import layout
from tangentless.backends.cuda.plan import layer_form
from tangentless.forms import (
    TOLERANCE,
    Arc,
    Exponential,
    Series,
    arc_polynomial,
    from_table,
    lower,
    lower_slope,
    series_of,
    tabulate,
)
from tangentless.layers import GELU, Abs, Cos, Erf, Gaussian, LeakyReLU, Polynomial, ReLU, Sin, Step, Tanh

COSINES = np.concatenate([np.linspace(-1, 1, 20001), 1 - np.logspace(-15, -3, 100), np.logspace(-15, -3, 100) - 1])
CLOSED = [ReLU(), LeakyReLU(0.2), LeakyReLU(1.0), Abs(), Gaussian(), Gaussian(0.3), Gaussian(5.0), Polynomial(3)]
FITTED = [Erf(), GELU(), Tanh(), Sin(), Cos()]
ROUNDING = 1e-15  # error of evaluating a dual in float64


def value(lowered, cosine):
    """The values of a lowered form."""
    t = 1 - np.abs(cosine)
    total = sum(a * t**p for a, p in zip(lowered.coefficients, lowered.powers, strict=True))
    if lowered.kind == "arc":
        return lowered.linear * cosine + lowered.arc * (np.maximum(cosine, 0) + t**1.5 * total)
    if lowered.kind == "angle":
        angle = np.where(cosine > 0, np.sqrt(t) * total, 1 - np.sqrt(t) * total)
        return lowered.linear + lowered.arc * (1 - angle)
    if lowered.kind == "exp2":
        exponent = lowered.rate * (cosine - 1)
        return np.ldexp(polyval(exponent - np.rint(exponent), lowered.coefficients), np.rint(exponent).astype(int))
    return polyval(cosine, lowered.coefficients)


def exact_dual(layer, cosine):
    """The dual; for arcs by formulas that lose no digits near c = 1, as arccos and 1 - c^2 would."""
    form = layer.form()
    if not isinstance(form, Arc):
        return layer.dual(cosine)
    t = 1 - np.abs(cosine)
    bend = (np.sqrt(t * (2 - t)) - (1 - t) * 2 * np.arcsin(np.sqrt(t / 2))) / np.pi
    return form.linear * cosine + form.arc * (np.maximum(cosine, 0) + bend)


@pytest.mark.parametrize("layer", [*CLOSED, *FITTED], ids=str)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("choices", [{}, {"longest": 0, "arcs": [(0, 1, 2, 4), (0, 1, 2, 3, 5)]}])
def test_a_lowered_form_is_within_the_tolerance_for_all_cosines(layer, precision, choices):
    lowered = lower(layer.form(), TOLERANCE[precision], **choices)
    if layer in FITTED and precision == "float64":
        assert lowered is None  # no fit is so exact, so the general path runs the layer
    else:
        assert np.abs(value(lowered, COSINES) - exact_dual(layer, COSINES)).max() <= TOLERANCE[precision] + ROUNDING


@pytest.mark.parametrize("layer", [ReLU(), LeakyReLU(0.2), Abs(), Gaussian(), Polynomial(3)], ids=str)
def test_a_lowered_slope_is_that_of_the_form(layer):
    lowered = lower_slope(layer.form(), TOLERANCE["float64"])
    inside = COSINES[np.abs(COSINES) < 0.999]  # arccos loses digits near c = 1
    # Differentiating a polynomial fit multiplies its error by up to the square of the degree.
    np.testing.assert_allclose(value(lowered, inside), layer.derivative(inside), rtol=0, atol=3e-13)


def test_exponentials_without_a_series_have_no_slope():
    assert lower(Exponential(500.0), TOLERANCE["float64"]).kind == "exp2"
    assert lower_slope(Exponential(500.0), TOLERANCE["float64"]) is None


def test_a_fitted_series_knows_its_error():
    assert lower(Series((0.0, 1.0), error=1e-9), 1e-10) is None
    assert series_of(np.sin).error > 0


@pytest.mark.parametrize("layer", [*CLOSED, *FITTED, Step()], ids=str)
def test_a_table_is_exact(layer):
    assert np.abs(from_table(tabulate(layer.dual), COSINES) - layer.dual(COSINES)).max() < 1e-13


def test_the_processor_computes_with_a_tenth_of_the_tolerance():
    # Earlier versions had this tolerance, so that bits have not changed.
    scale, polynomial = duals._adapt(arc_polynomial(1e-8), power=0.5)
    lowered = duals.lower(ReLU(), "float32")
    assert (lowered.kind, lowered.parameters, lowered.scale) == (("relu", len(polynomial)), polynomial, scale)
    assert duals.lower(ReLU(), "float64").kind == ("relu", len(arc_polynomial(2e-15)) - 1)


def test_backends_without_a_closed_form_say_so():
    assert layer_form(Step()) is None
    assert duals.lower(Step(), "float32") is None
    assert duals.lower_step(segments.Step((), Erf()), "float64", tangent=True) is None


@pytest.mark.parametrize("layer", [ReLU(), LeakyReLU(0.2)], ids=str)
def test_the_gpu_takes_the_shortest_bend_that_is_exact_enough(layer):
    form = layer_form(layer)
    assert form.form == layout.ARC
    assert len(form.coefficients) == 3
    assert lower(Arc(), TOLERANCE["float32"], arcs=[(0, 1, 2, 3)]).powers == (0, 1, 2, 3, 4)
