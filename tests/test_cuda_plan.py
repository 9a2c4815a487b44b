"""How graphs are laid out on a GPU, and which forms embeddings have there. Needs no GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tangentless.architecture import Architecture
from tangentless.backends.cuda.layout import SERIES, LayerForm
from tangentless.backends.cuda.plan import BENDS, layer_form, plan_graph
from tangentless.forms import TOLERANCE, Arc
from tangentless.graph import compile_graph
from tangentless.layers import Abs, LeakyReLU, ReLU

COSINES = np.linspace(-1, 1, 2001)


def evaluate(layer: LayerForm, cosine: np.ndarray) -> np.ndarray:
    """The function `bend` of embedding.cuh in float64, for norms of 1."""
    distance = 1 - np.abs(cosine)
    w = q = layer.scale * distance
    for coefficient in layer.coefficients:
        q = q * w + coefficient
    return layer.linear * cosine + layer.arc * np.maximum(cosine, 0) + distance * np.sqrt(w) * q


@pytest.mark.parametrize(
    ("embedding", "bend"),
    [(ReLU(), BENDS[0]), (LeakyReLU(0.2), BENDS[0]), (LeakyReLU(0.99), BENDS[0]), (Abs(), BENDS[1])],
    ids=str,
)
def test_bend_of_an_arc_is_within_the_tolerance_for_all_cosines(embedding, bend):
    layer = layer_form(embedding)
    assert layer is not None
    assert len(layer.coefficients) == len(bend) - 1
    assert np.abs(evaluate(layer, COSINES) - embedding.dual(COSINES)).max() <= TOLERANCE["float32"]


def test_an_arc_without_a_bend_is_linear():
    assert layer_form(LeakyReLU(1.0)) == LayerForm(SERIES, (0.0, 1.0))


def test_an_arc_without_an_exact_enough_bend_has_no_form():
    class Steep(ReLU):
        def form(self):
            return Arc(arc=1000.0)

    assert layer_form(Steep()) is None


@pytest.mark.parametrize("kilobytes", [227, 48])
@pytest.mark.parametrize(
    "text",
    [
        "conv3 relu globalpool",
        "conv3 relu conv3 relu globalpool",
        "conv3 relu pool2 conv3 relu globalpool",
        "conv3 relu conv3 gaussian pool2 conv3 relu pool2 conv3 relu globalpool",
    ],
)
def test_every_grid_has_a_plan_or_a_reason(text, kilobytes):
    unit = 2 ** text.count("pool2")
    for grid in itertools.product(range(max(2, unit), 33, unit), repeat=2):
        plans = plan_graph(compile_graph(Architecture.parse(text), grid, 3), 1024 * kilobytes)
        if isinstance(plans, str):
            assert "shared memory" in plans or "is not two-dimensional" in plans or "window; 3×3 fits" in plans
        else:
            assert all(plan.height % plan.offsets == 0 and (plan.last or plan.offsets % 2 == 0) for plan in plans)


@pytest.mark.parametrize(("last", "fits"), [("gaussian", True), ("polynomial3", True), ("relu", False), ("", False)])
def test_weights_of_a_last_pool_are_carried_by_norms_or_refused(last, fits):
    architecture = Architecture.parse(f"conv3 relu conv3 {last} pool3(stride=1) globalpool")
    plans = plan_graph(compile_graph(architecture, (8, 8), 3), 227 * 1024)
    assert isinstance(plans, tuple) == fits
    assert fits or "weights" in plans
