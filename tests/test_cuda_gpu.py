"""The CUDA backend on a real GPU: values, bits and errors. Run with `pytest -m gpu`."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

import conformance
import test_cuda_vectors
from conformance import CHAINS, GRAPHS, LAYOUTS, MORE_LAYOUTS, hostile_images, relative_error
from nonlinearities import Step
from tangentless.architecture import Architecture
from tangentless.backends import cuda, get_backend
from tangentless.backends.cpu import CpuBackend
from tangentless.backends.cuda import CudaBackend, fused, gpu_present
from tangentless.backends.cuda.machine import CudaMachine
from tangentless.backends.reference import ReferenceBackend
from tangentless.bench.gpu import GpuRecord, bench_gpu
from tangentless.bench.shapes import Shape, bench_shapes
from tangentless.classical import NNGP, ConvolutionalNTK, Gaussian, Linear
from tangentless.errors import BackendError, InputError
from tangentless.graph import Graph, compile_graph
from tangentless.kernel import Kernel, kernel
from tangentless.layers import Conv, GlobalPool, ReLU

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_present(), reason="no NVIDIA GPU, or no CuPy to use it")]

REAL_SIZES = [("myrtle10-gaussian", (32, 32, 3)), ("myrtle10", (32, 32, 3)), ("myrtle5", (28, 28, 1))]


def make_images(graph: Graph, count: int) -> np.ndarray:
    images = np.random.default_rng(0).standard_normal((count, *graph.grid, graph.channels))
    images[0] = np.abs(images[0])
    images[1, : graph.grid[0] // 2] = 0.0
    return images


@pytest.mark.parametrize("case", [*CHAINS, *GRAPHS, *LAYOUTS, *MORE_LAYOUTS, *REAL_SIZES], ids=conformance.name)
def test_every_graph_matches_the_reference(case: tuple) -> None:
    text, shape = case
    k, X, backend = kernel(text), conformance.images(shape, 4), CudaBackend()
    exact = k(X, backend="reference")
    bound = 3e-7 if "float32" in backend.describe(k.graph(shape)) else 1e-12
    assert relative_error(k(X, backend=backend), exact) < bound
    other = k(X[:2], X[2:], backend=backend)
    assert np.abs(other - exact[:2, 2:]).max() < bound * np.abs(exact).max()


@pytest.mark.parametrize("case", [*CHAINS, *GRAPHS], ids=conformance.name)
def test_every_tangent_kernel_matches_the_reference(case: tuple) -> None:
    text, shape = case
    k, X = ConvolutionalNTK(text), conformance.images(shape, 4)
    exact = k(X, backend="reference")
    assert relative_error(k(X, backend="cuda"), exact) < 1e-12
    assert relative_error(k(X[:2], X[2:], backend="cuda"), exact[:2, 2:]) < 1e-12


@pytest.mark.parametrize("text", ["myrtle5", "myrtle10", "myrtle10-gaussian"])
def test_hostile_images_are_computed_exactly(text: str) -> None:
    k, X = kernel(text), hostile_images()
    values = k(X, backend="cuda")
    assert np.abs(values - k(X, backend="reference")).max() < 3e-7
    assert np.array_equal(np.diagonal(values), [0.0 if i == 8 else 1.0 for i in range(len(X))])  # image 8 is black


@pytest.mark.parametrize("text", ["resnet8", "conv3 relu pool2 conv3 step globalpool"])
def test_bits_of_the_general_path_do_not_depend_on_batches_or_tiles(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, backend = kernel(text).graph((8, 8, 3)), CudaBackend()
    prepared = backend.prepare(graph, make_images(graph, 20))
    whole = backend.block(graph, prepared, prepared)
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 37)
    assert np.array_equal(backend.block(graph, prepared[3:11], prepared[5:20]), whole[3:11, 5:20])
    upper = backend.block(graph, prepared, prepared, upper=True)
    assert np.array_equal(np.triu(upper), np.triu(whole))


def test_bits_do_not_depend_on_batches_or_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = compile_graph(Architecture.parse("myrtle5"), (16, 16), 3)
    backend = CudaBackend()
    prepared = backend.prepare(graph, make_images(graph, 40))
    whole = backend.block(graph, prepared, prepared)
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 77)
    assert np.array_equal(backend.block(graph, prepared, prepared), whole)
    assert np.array_equal(backend.block(graph, prepared[3:17], prepared[20:40]), whole[3:17, 20:40])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bits_do_not_depend_on_streams_or_the_current_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = pytest.importorskip("cupy").cuda
    graph = compile_graph(Architecture.parse("myrtle5"), (16, 16), 3)
    backend = CudaBackend(gpus=(0,))
    prepared = backend.prepare(graph, make_images(graph, 40))
    whole = backend.block(graph, prepared, prepared)
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 50)
    monkeypatch.setattr(fused, "STREAMS", count)
    for _ in range(5):
        assert np.array_equal(backend.block(graph, prepared, prepared), whole)
    streams.Device().synchronize()
    with streams.Stream(non_blocking=True):
        assert np.array_equal(backend.block(graph, prepared, prepared), whole)


@pytest.mark.parametrize("k", test_cuda_vectors.KERNELS, ids=repr)
@pytest.mark.parametrize("features", [1, 50, 512])
def test_kernels_of_vectors_match_the_processor(k: Kernel, features: int) -> None:
    X = test_cuda_vectors.hostile_rows(features)
    diagonal, found = k.diag(X, backend="cpu"), k(X, backend="cuda")
    assert np.array_equal(found, found.T)
    test_cuda_vectors.assert_equal_entries(found, k(X, backend="cpu"), diagonal, diagonal)
    other = k(X[:7], X, backend="cuda")
    test_cuda_vectors.assert_equal_entries(other, k(X[:7], X, backend="cpu"), diagonal[:7], diagonal)


@pytest.mark.parametrize("k", test_cuda_vectors.KERNELS, ids=repr)
def test_gradients_of_kernels_of_vectors_match_the_processor(k: Kernel) -> None:
    test_cuda_vectors.test_gradients_match_the_processor(CudaBackend(), k)


def test_symmetric_matrix_through_the_kernel() -> None:
    k = kernel("myrtle5")
    images = make_images(k.graph((16, 16, 1)), 30)
    values = k(images, backend=CudaBackend())
    assert np.array_equal(values, values.T)
    assert np.array_equal(np.diagonal(values), np.ones(30))


KERNELS = [
    kernel("conv3 relu pool2 conv3 gaussian globalpool normalize relu"),
    kernel("conv5 relu globalpool"),
    0.5 * kernel("conv3 gaussian globalpool normalize gaussian").mirrored() + kernel("conv3 relu globalpool"),
    Linear() + Gaussian(0.1) * NNGP(3).mirrored(),
    kernel("conv3 relu globalpool normalize relu").symmetrized("mirror shifts1(reflect)"),
]


def to_cupy(images: np.ndarray) -> object:
    return pytest.importorskip("cupy").asarray(images)


def to_torch(images: np.ndarray) -> object:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    return torch.from_numpy(images).cuda()


@pytest.mark.parametrize("k", KERNELS, ids=str)
@pytest.mark.parametrize("move", [to_cupy, to_torch])
def test_arrays_on_the_gpu_stay_there(k: Kernel, move: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).standard_normal((30, 8, 8, 2)).astype(np.float32)
    expected = k(images, backend="cuda"), k(images[:7], images[7:], backend="cuda"), k.diag(images, backend="cuda")
    moved = move(images)
    monkeypatch.delattr(CudaMachine, "download")
    found = k(moved, backend="cuda"), k(moved[:7], moved[7:], backend="cuda"), k.diag(moved, backend="cuda")
    for values, wanted in zip(found, expected, strict=True):
        assert type(values) is type(moved)
        assert values.device == moved.device
        on_host = values.cpu().numpy() if move is to_torch else values.get()
        assert np.array_equal(on_host, wanted)


@pytest.mark.parametrize("move", [to_cupy, to_torch])
@pytest.mark.parametrize("bad", [np.nan, 1e200])
def test_bad_arrays_on_the_gpu_are_refused(move: Callable, bad: float) -> None:
    images = np.ones((3, 8, 8, 1))
    images[1, 2, 2] = bad
    with pytest.raises(InputError, match="row 1"):
        kernel("conv3 relu globalpool")(move(images), backend="cuda")


def test_arrays_on_the_gpu_go_through_the_cpu_if_that_is_asked_for() -> None:
    k, images = kernel("conv3 relu globalpool"), np.random.default_rng(0).standard_normal((5, 4, 4, 1))
    values = k(to_cupy(images), backend="reference")
    assert np.array_equal(values.get(), k(images, backend="reference"))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_duals_without_a_closed_form_match_the_reference(precision: str) -> None:
    graph = compile_graph(Architecture.of([Conv(3), Step(), Conv(3), ReLU(), GlobalPool()]), (8, 8), 2)
    images = make_images(graph, 5)
    assert "by offsets, float64" in CudaBackend(precision).describe(graph)
    found, wanted, literal = (
        backend.block(graph, backend.prepare(graph, images[:2]), backend.prepare(graph, images[2:]))
        for backend in (CudaBackend(precision), CpuBackend("float64"), ReferenceBackend())
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    # The reference takes norms from kernels, and this dual turns a rounding error of 1e-16 into one of 1e-8.
    np.testing.assert_allclose(found, literal, rtol=1e-8)


def test_the_benchmark_measures_and_compares() -> None:
    text = "conv3 gaussian pool2 conv3 relu globalpool normalize relu"
    reports: list[GpuRecord] = []
    options = {"seconds": 0.1, "matrix": 300, "references": 2, "rival": False}
    record = bench_gpu([(text, (8, 8, 1))], **options, report=reports.append)
    assert [len(one.cases) for one in reports] == [0, 1, 1, 1]
    (case,) = record.cases
    assert case.pairs_per_second > 0
    assert case.turns >= 3
    assert 0 < case.share_of_special_functions < 1
    assert case.error < 3e-7
    assert case.reference_error is not None
    assert case.reference_error < 1e-12
    assert case.not_finite == 0
    assert case.same_bits
    assert case.rival_missing == "left out"
    assert record.matrix is not None
    assert record.matrix.symmetric
    assert record.ceilings.instructions > record.ceilings.special_functions
    json.dumps(record.to_json())


def test_the_benchmark_has_pytorch_beside_it() -> None:
    pytest.importorskip("torch")
    (case,) = bench_gpu([("conv3 relu pool2 conv3 relu globalpool", (8, 8, 1))], seconds=0.1, matrix=0).cases
    assert case.rival_missing is None
    assert case.ratio > 0
    assert case.rival_difference < 1e-4  # float32 throughout


def test_shapes_off_the_tuned_path_are_measured_beside_pytorch() -> None:
    pytest.importorskip("torch")
    rows = (
        Shape("tuned", "conv3 relu globalpool normalize relu", (8, 8, 3)),
        Shape("conv5", "conv5 relu pool3(stride=2) conv3 relu globalpool normalize relu", (9, 8, 3)),
        Shape("tangents", "conv3 relu globalpool", (8, 8, 3), precision="float64", tangent=True),
    )
    record = bench_shapes(rows, processes=0)
    assert not record.left_out
    tuned, conv5, tangents = record.rows
    assert conv5.rival_missing is None
    assert conv5.rival_difference < 1e-4  # float32 throughout
    assert "tangent" in tangents.rival_missing
    assert max(tuned.error, conv5.error) < 3e-7
    assert tangents.error < 1e-12
    assert all(row.same_bits and not row.not_finite for row in record.rows)


def test_automatic_choice_is_the_gpu() -> None:
    assert get_backend("auto").name == "cuda"


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(BackendError, match="99"):
        CudaBackend(gpus=(99,))
