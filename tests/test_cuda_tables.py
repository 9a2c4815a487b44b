"""Duals without a closed form on the general path of the GPU, and too little memory; kernels run on the host."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_host.machine import COMPILER
from nonlinearities import Step
from tangentless.architecture import Architecture
from tangentless.backends.cuda import CudaBackend
from tangentless.errors import BackendError
from tangentless.graph import compile_graph
from tangentless.layers import Conv, GlobalPool, Normalize, ReLU
from test_cuda_emulated import make_images, reference_matrix

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")


class Kink(Step):
    """Positive definite on a circle, but the dual of no activation."""

    name = "kink"

    def dual(self, cosine: np.ndarray) -> np.ndarray:
        return np.maximum(1 - np.arccos(cosine), 0)


@pytest.mark.parametrize(
    "layers", [[Conv(3), Step(), GlobalPool()], [Conv(3), ReLU(), GlobalPool(), Normalize(), Step()]]
)
def test_duals_without_a_closed_form_are_tabulated(backend: CudaBackend, layers: list) -> None:
    graph = compile_graph(Architecture.of(layers), (6, 6), 2)
    assert ("no closed form" in backend.describe(graph)) == isinstance(layers[1], Step)
    images = make_images(graph, 5)
    found = backend.block(graph, backend.prepare(graph, images[:3]), backend.prepare(graph, images[3:]))
    # The step is computed in float64; the bound for float32 is 3e-7.
    tolerance = 1e-11 if isinstance(layers[1], Step) else 3e-7
    np.testing.assert_allclose(found, reference_matrix(graph, images, 3), rtol=tolerance)


def test_float64_does_not_rely_on_short_polynomials(backend: CudaBackend) -> None:
    class Erf(Step):
        name = "erf"

        def dual(self, cosine: np.ndarray) -> np.ndarray:
            return np.arcsin(2 * cosine / 3) * 2 / np.pi

    graph = compile_graph(Architecture.of([Conv(3), ReLU(), Conv(3), Erf(), GlobalPool()]), (5, 5), 1)
    assert "fused" in backend.describe(graph)
    exact, images = CudaBackend(precision="float64"), make_images(graph, 5)
    found = exact.block(graph, exact.prepare(graph, images[:3]), exact.prepare(graph, images[3:]))
    np.testing.assert_allclose(found, reference_matrix(graph, images, 3), rtol=1e-13)


def test_a_function_that_is_no_dual_is_refused(backend: CudaBackend) -> None:
    graph = compile_graph(Architecture.of([Conv(3), Kink(), GlobalPool()]), (4, 4), 1)
    with pytest.raises(BackendError, match="dual of kink is not smooth"):
        backend.prepare(graph, make_images(graph, 3))


def test_too_little_memory_for_one_pair_is_an_error_with_a_remedy(backend: CudaBackend) -> None:
    graph = compile_graph(Architecture.parse("conv3 relu globalpool"), (4, 4), 1)
    prepared = backend.prepare(graph, make_images(graph, 3))
    path = backend._path(0, graph)

    def out_of_memory(*arguments: object) -> None:
        raise MemoryError("8 bytes")

    path.block = out_of_memory
    with pytest.raises(BackendError, match=r"no memory left for even one pair of images \(8 bytes\); work on fewer"):
        backend.block(graph, prepared, prepared)
