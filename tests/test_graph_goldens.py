"""Residual, strided, dilated, patched and summed architectures: every backend against neural-tangents.

`goldens/make_graph_goldens.py` made the values, which have the scale of neural-tangents.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import tangentless as tl
from conftest import frozen
from tangentless.classical import ConvolutionalNTK

GOLDENS = {
    key: frozen(array)
    for key, array in np.load(Path(__file__).parent / "goldens" / "neural_tangents_graphs.npz").items()
}
CASES = json.loads(str(GOLDENS["cases"]))
SETTINGS = [("reference", "float64", 1e-12), ("cpu", "float64", 1e-10), ("cpu", "float32", 3e-7)]
# Other tests compare the CPU with the reference on all kinds of graphs; here it runs these cases only.
ON_CPU = [f"{kind}/digits-8x8x1" for kind in ("chain", "strided", "patched", "residual")]


def settings(*precisions):
    """Every case on every backend in these precisions; most of those on the CPU are left to `make test-slow`."""
    return [
        pytest.param(
            case,
            *setting,
            id="-".join([case["name"], *setting[:2]]),
            marks=[pytest.mark.slow] * (setting[0] == "cpu" and case["name"] not in ON_CPU),
        )
        for case in CASES
        for setting in SETTINGS
        if setting[1] in precisions
    ]


def largest_error(values, expected):
    """The largest error relative to the norms of the features, the square roots of the diagonal."""
    norms = np.sqrt(np.diagonal(expected))
    return np.max(np.abs(values - expected) / np.outer(norms, norms))


@pytest.mark.parametrize(("case", "backend", "precision", "bound"), settings("float64", "float32"))
def test_kernels_of_graphs_agree_with_neural_tangents(case, backend, precision, bound):
    values = tl.kernel(case["architecture"])(GOLDENS[f"inputs/{case['inputs']}"], backend=backend, precision=precision)
    assert largest_error(values, GOLDENS[f"kernel/{case['name']}"]) <= bound


@pytest.mark.parametrize(("case", "backend", "precision", "bound"), settings("float64"))
def test_tangent_kernels_of_graphs_agree_with_neural_tangents(case, backend, precision, bound):
    values = ConvolutionalNTK(case["architecture"])(
        GOLDENS[f"inputs/{case['inputs']}"], backend=backend, precision=precision
    )
    assert largest_error(values, GOLDENS[f"tangent/{case['name']}"]) <= bound


def test_tangent_kernels_have_the_same_bits_in_every_precision():
    case = CASES[0]
    kernel, X = ConvolutionalNTK(case["architecture"]), GOLDENS[f"inputs/{case['inputs']}"]
    values = [kernel(X, backend="cpu", precision=precision) for precision in ("float32", "float64")]
    np.testing.assert_array_equal(*values)
