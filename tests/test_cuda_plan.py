"""How programs are laid out on a GPU, and embeddings look there, without one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tangentless.architecture import Architecture
from tangentless.backends.cuda.layout import SERIES, LayerForm
from tangentless.backends.cuda.plan import BEND, LONG_BEND, layer_form, plan_graph
from tangentless.graph import compile_graph
from tangentless.layers import LeakyReLU, ReLU

COSINES = np.linspace(-1, 1, 2001)


def evaluate(layer: LayerForm, cosine: np.ndarray) -> np.ndarray:
    """What `bend` in stage.cu does, for norms of one, in float64."""
    distance = 1 - np.abs(cosine)
    w = layer.scale * distance
    q = w if len(layer.coefficients) > 2 else np.sqrt(w)
    for coefficient in layer.coefficients:
        q = q * w + coefficient
    return layer.linear * cosine + layer.arc * np.maximum(cosine, 0) + distance * np.sqrt(w) * q


def first_stage(text: str, grid: tuple[int, int]) -> tuple[LayerForm, ...]:
    plans = plan_graph(compile_graph(Architecture.parse(text), grid, 3), 227 * 1024)
    assert not isinstance(plans, str)
    return plans[0].layers


@pytest.mark.parametrize("embedding", [ReLU(), LeakyReLU(0.2), LeakyReLU(0.99)], ids=str)
@pytest.mark.parametrize(("bend", "tolerance"), [(LONG_BEND, 3e-8), (BEND, 1e-7)])
def test_bend_of_an_arc_is_exact_enough(embedding, bend, tolerance):
    layer = layer_form(embedding, bend)
    assert layer is not None
    assert len(layer.coefficients) == len(bend) - 1
    assert np.abs(evaluate(layer, COSINES) - embedding.dual(COSINES)).max() <= tolerance


def test_an_arc_without_a_bend_is_linear():
    assert layer_form(LeakyReLU(1.0)) == LayerForm(SERIES, (0.0, 1.0))


def test_three_layers_of_relu_may_have_short_bends():
    layers = first_stage("myrtle10", (32, 32))
    assert [len(layer.coefficients) for layer in layers] == [2, 3, 2]
    dual = ReLU().dual(COSINES)
    assert np.abs(evaluate(layers[0], COSINES) - dual).max() < 3e-6
    near = np.abs(1 - COSINES - 0.54) < 0.09
    assert np.abs(evaluate(layers[2], COSINES) - dual)[near].max() < 1e-6


@pytest.mark.parametrize(
    ("text", "grid", "coefficients"),
    [
        ("myrtle10", (16, 16), [4, 4, 4]),  # few positions
        ("myrtle7", (32, 32), [3, 3]),
        ("conv3 relu conv3 relu conv3 relu pool2 conv3 relu globalpool normalize", (32, 32), [3, 3, 3]),  # two stages
        ("conv3 relu conv3 relu conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool", (32, 32), [3, 3, 3]),
        (
            "conv3 relu conv3 leakyrelu(0.1) conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize",
            (32, 32),
            [3, 3, 3],
        ),
    ],
)
def test_others_have_none(text, grid, coefficients):
    assert [len(layer.coefficients) for layer in first_stage(text, grid)] == coefficients


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
