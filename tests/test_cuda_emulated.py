"""The code of the CUDA backend, kernels included, run on the host and compared with the reference.

The kernels are the `.cu` files of the package, compiled by g++ with a shim that runs every thread as a fiber. Shared
memory starts as NaN, so reads of unwritten values show in the result. Warps are scheduled, and asynchronous copies
complete, in the orders that differ most, so missing waits show as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import conformance
from conformance import CHAINS, GRAPHS, LAYOUTS, MORE_LAYOUTS, hostile_images, relative_error
from cuda_host.machine import COMPILER, ORDERS, EmulationError, HostMachine
from tangentless.architecture import Architecture
from tangentless.backends import cuda
from tangentless.backends.cuda import CudaBackend, close, offset_writer
from tangentless.backends.cuda.following import OffsetPath
from tangentless.backends.cuda.layout import LONG_RING, SHORT_RING, FrontPlan
from tangentless.backends.cuda.offsets import OffsetPlan, plan_offsets
from tangentless.backends.cuda.plan import plan_graph
from tangentless.backends.reference import ReferenceBackend
from tangentless.bench.gpu import STANDARD
from tangentless.classical import ConvolutionalNTK
from tangentless.graph import Graph, compile_graph
from tangentless.kernel import kernel
from tangentless.tiles import fill

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")

# Mistakes put into the schedule on purpose: (right text in the source, wrong text in its place).
MISTAKES = {
    "ring too short": ("turn % (RING / 2)", "turn % (RING / 4)"),
    "pooled rows overwritten too early": ("% EXCHANGES", "% (EXCHANGES / 2)"),
    "z not there for all warps": ("    sync_block();\n", ""),
}
MISTAKES_TOGETHER = MISTAKES | {
    "rows not waited for": ("            wait_for_copies();\n            sync_pair", "            sync_pair"),
    "warps that do not meet": ("wait_for_copies();\n            sync_pair(place.team);", "wait_for_copies();"),
}
MISTAKES_APART = MISTAKES | {
    "rows not waited for": ("            arrive_with_copies(", "            arrive("),
    "first rows not waited for": (" {\n        arrive_with_copies(", " {\n        arrive("),
    "no barrier": ("if (!passed) wait_for(work.barrier, turn % 2);", ""),
    "barrier that has always passed": ("passed = has_passed(work.barrier, (turn + 1) % 2)", "passed = true"),
    "phase of another turn": ("has_passed(work.barrier, (turn + 1) % 2)", "has_passed(work.barrier, turn % 2)"),
    "rows copied too early": ("copy_rows(work, turn + 2)", "copy_rows(work, turn + 3)"),
    "pooled rows read too early": ("write_pooled(work, row_pair - 2)", "write_pooled(work, row_pair - 1)"),
    "sums stored over others": ("is_first && pass > 0", "false"),
    "sums added to nothing": ("wanted, around", "wanted, true"),
}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    monkeypatch.setattr(cuda, "count_gpus", lambda: 2)
    monkeypatch.setattr(cuda, "CudaMachine", HostMachine)
    return CudaBackend(gpus=(0,))


def make_images(graph: Graph, count: int, seed: int = 0) -> np.ndarray:
    """Images of many scales: one has a black patch, one is non-negative, two are equal."""
    images = np.random.default_rng(seed).standard_normal((count, *graph.grid, graph.channels))
    images[0] = np.abs(images[0])
    if graph.grid:
        images[1, : graph.grid[0] // 2 + 1] = 0.0
    images[2] = images[0] + 1e-4 * images[2]
    images.flags.writeable = False
    return images


def reference_matrix(graph: Graph, images: np.ndarray, rows: int) -> np.ndarray:
    reference = ReferenceBackend()
    prepared = reference.prepare(graph, images)
    return reference.block(graph, prepared[0:rows], prepared[rows : len(images)])


def check_in_every_order(
    text: str, shape: tuple, monkeypatch: pytest.MonkeyPatch, count: int = 4, rows: int = 2
) -> None:
    graph = kernel(text).graph(shape)
    assert not isinstance(plan_graph(graph, HostMachine.shared_limit), str)
    images = make_images(graph, count)
    found, *others = in_every_order(graph, images, rows, monkeypatch)
    np.testing.assert_allclose(found, reference_matrix(graph, images, rows), rtol=3e-7)
    assert all(np.array_equal(found, other) for other in others)


def in_every_order(graph: Graph, images: np.ndarray, rows: int, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """A block of entries in all orders of events, preparation included; every order loads the kernels anew."""
    blocks = []
    for order in ORDERS:
        monkeypatch.setattr(HostMachine, "order", order)
        backend = CudaBackend(gpus=(0,))
        sides = backend.prepare(graph, images[:rows]), backend.prepare(graph, images[rows:])
        blocks.append(backend.block(graph, *sides))
    return blocks


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("case", LAYOUTS, ids=conformance.name)
def test_fused_stages_match_the_reference_in_every_order(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_every_order(*case, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("case", MORE_LAYOUTS, ids=conformance.name)
def test_more_fused_stages_match_the_reference(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_every_order(*case, monkeypatch)


@pytest.mark.usefixtures("backend")
def test_many_channels_and_patches_match_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMachine, "shared_limit", 36 << 10)
    case = "patch2 conv3 relu conv3 gaussian globalpool normalize relu", (8, 24, 24)
    (plan,) = plan_graph(kernel(case[0]).graph(case[1]), HostMachine.shared_limit)
    assert plan.given
    assert FrontPlan(plan).passes == 2
    check_in_every_order(*case, monkeypatch)


@pytest.mark.parametrize(
    ("text", "shape", "path"),
    [
        ("conv3 relu pool2 conv3 relu globalpool", (16, 2), "by offsets"),
        ("conv3 relu pool2 conv3 relu globalpool normalize relu", (8, 8, 2), "2 stages"),
        ("patch2 conv3 relu conv3 gaussian globalpool", (8, 8, 6), "1 stages"),
    ],
)
def test_close_pairs_keep_their_distance(backend: CudaBackend, text: str, shape: tuple, path: str) -> None:
    graph = kernel(text).graph(shape)
    assert path in backend.describe(graph)
    images = np.repeat(make_images(graph, 4)[3:], 4, axis=0) + 1.0
    images[1:] += np.array([1e-3, 1e-2, 1e-1]).reshape(3, *(1 for _ in shape)) * make_images(graph, 6)[3:]
    prepared = backend.prepare(graph, images)
    found = backend.block(graph, prepared, prepared)
    wanted = reference_matrix(graph, np.concatenate([images, images]), 4)
    distances = [1 - K / np.sqrt(np.multiply.outer(np.diag(K), np.diag(K))) for K in (found, wanted)]
    apart = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(distances[0][apart], distances[1][apart], rtol=1e-4)
    np.testing.assert_array_equal(backend.block(graph, prepared[1:3], prepared), found[1:3])


@pytest.mark.parametrize("text", ["conv3 relu pool2 conv3 relu globalpool", "conv5 relu pool2 conv3 relu globalpool"])
def test_images_of_close_pairs_are_prepared_in_float64_once(
    backend: CudaBackend, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = kernel(text).graph((8, 8, 2))
    images = make_images(graph, 4)[3:] + 1e-3 * make_images(graph, 8)[2:]
    prepared, counts = backend.prepare(graph, images), list[int]()
    prepare_all = OffsetPath.prepare_all

    def counted(path: OffsetPath, images: Any, batch: int) -> Any:
        counts.append(len(images))
        return prepare_all(path, images, batch)

    monkeypatch.setattr(OffsetPath, "prepare_all", counted)
    backend.block(graph, prepared[3:5], prepared[2:5])
    assert counts == [2, 1]
    found = backend.block(graph, prepared, prepared)
    assert sum(counts) == len(images)
    monkeypatch.setattr(close, "MOST_KEPT", 3 * 8 * 8 * 8 * 4)  # memory for fewer images than there are
    for again in (prepared, backend.prepare(graph, images)):
        np.testing.assert_array_equal(backend.block(graph, again[:3], again), found[:3])
        np.testing.assert_array_equal(backend.block(graph, again[-2:], again[2:5]), found[-2:, 2:5])
    assert sum(counts) > 2 * len(images)


def slow(case: tuple) -> object:
    """Mark a case as slow because it takes long to compile; faster cases cover the same kinds of kernels."""
    return pytest.param(case, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("case", STANDARD, ids=conformance.name)
def test_cases_of_the_benchmark_match_the_reference(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_every_order(*case, monkeypatch, count=3, rows=2)


@pytest.mark.parametrize("case", [*CHAINS[:1], *map(slow, CHAINS[1:4]), *CHAINS[4:], *GRAPHS], ids=conformance.name)
def test_every_graph_matches_the_reference(backend: CudaBackend, case: tuple) -> None:
    text, shape = case
    k, X = kernel(text), conformance.images(shape)
    exact = k(X, backend="reference")
    bound = 3e-7 if "float32" in backend.describe(k.graph(shape)) else 1e-12
    assert relative_error(k(X, backend=backend), exact) < bound
    assert relative_error(k(X[:3], X[2:], backend=backend), exact[:3, 2:]) < bound


@pytest.mark.parametrize("case", [CHAINS[0], CHAINS[4], GRAPHS[0], GRAPHS[4]], ids=conformance.name)
def test_float64_matches_the_reference(backend: CudaBackend, case: tuple) -> None:
    text, shape = case
    k, X, exactly = kernel(text), conformance.images(shape), CudaBackend(precision="float64", gpus=(0,))
    assert "by offsets, float64" in exactly.describe(k.graph(shape))
    assert relative_error(k(X, backend=exactly), k(X, backend="reference")) < 1e-12


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("conv3 relu pool2 conv5 relu globalpool", (8, 6, 2)),
        ("conv5 relu pool2 conv3 relu globalpool", (8, 8, 2)),
        ("conv7 relu pool3(stride=2) conv3 relu globalpool", (11, 9, 2)),
        ("conv7 relu pool2 conv3 relu globalpool", (4, 20, 1)),
        ("conv3 relu conv3 relu pool2 conv3 relu globalpool", (2, 40, 1)),
        ("conv3 relu pool3(stride=2) relu globalpool", (8, 6, 2)),
        ("conv3 relu pool2 conv3 relu globalpool", (22, 2)),
    ],
)
def test_threads_wait_for_each_other(
    backend: CudaBackend, text: str, shape: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostMachine, "all_threads", True)
    k, X = kernel(text), conformance.images(shape, 2)
    assert "by offsets, float32" in backend.describe(k.graph(shape))
    assert relative_error(k(X, backend=backend), k(X, backend="reference")) < 3e-7


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("conv5 relu pool2 conv3 relu globalpool", (6, 32, 2)),
        ("conv7 gaussian pool2 conv3 relu globalpool", (10, 24, 3)),
        ("conv9 relu pool2 conv5 relu globalpool", (12, 20, 5)),
        ("conv3 relu pool2 conv15 relu globalpool", (4, 20, 1)),  # windows so large that a thread has one pair
        ("conv3 gelu pool2 conv5 relu globalpool", (14, 28, 1)),
        ("conv3 relu conv3 gaussian pool2 conv3 relu globalpool", (6, 48, 3)),
        ("conv3 relu conv3 relu conv3 relu pool2 conv3 relu globalpool", (4, 64, 1)),
        ("conv5 relu conv5 gelu pool2 conv3 relu globalpool", (12, 24, 2)),
        ("conv7 gaussian pool2 conv3(stride=2) relu globalpool", (10, 24, 3)),  # some offsets are not needed
    ],
)
def test_windows_that_slide_match_the_reference(backend: CudaBackend, text: str, shape: tuple) -> None:
    k, X = kernel(text), conformance.images(shape, 4)
    plan = plan_offsets(k.graph(shape), "float32", HostMachine.shared_limit)
    assert isinstance(plan, OffsetPlan)
    assert plan.plans[0].slides
    assert "by offsets, float32" in backend.describe(k.graph(shape))
    found = k(X, backend=backend)
    assert relative_error(found, k(X, backend="reference")) < 3e-7
    np.testing.assert_array_equal(k(X[1:3], X[2:], backend=backend), found[1:3, 2:])


@pytest.mark.parametrize("text", ["conv7 relu pool2 conv3(stride=4) relu globalpool", "conv3 relu pool2 patch12"])
def test_windows_do_not_slide_where_few_offsets_are_needed(text: str) -> None:
    plan = plan_offsets(kernel(text).graph((24, 24, 1)), "float32", HostMachine.shared_limit)
    assert isinstance(plan, OffsetPlan)
    assert not plan.plans[0].slides


@pytest.mark.parametrize(
    ("text", "shape", "precision"),
    [
        ("conv3 relu conv3 relu pool2 conv3 relu pool2 conv3 gaussian globalpool", (32, 2), "float32"),
        ("conv3 relu pool2 conv3 relu pool2 conv5 relu globalpool", (24, 3), "float64"),
        ("conv3 relu pool2 conv3(stride=2) relu globalpool", (40, 1), "float32"),  # some offsets are not needed
        ("conv3 relu pool2 conv3 relu pool2 pool9", (36, 1), "float32"),
    ],
)
def test_pools_of_two_positions_of_a_row_match_the_reference(
    backend: CudaBackend, text: str, shape: tuple, precision: str
) -> None:
    k, X = kernel(text), conformance.images(shape, 7)
    plan = plan_offsets(k.graph(shape), precision, HostMachine.shared_limit)
    assert isinstance(plan, OffsetPlan)
    assert "RowExit<" in offset_writer.write_offsets(plan)[0]
    found = k(X[:6], X[2:], backend=CudaBackend(precision, (0,)))
    limit = 3e-7 if precision == "float32" else 1e-13
    assert relative_error(found, k(X[:6], X[2:], backend="reference")) < limit


def general(graph: Graph, precision: str, shared_limit: int) -> str:
    """Replaces the planner of fused stages, so that the node kernels run graphs that fused ones would take."""
    return "a test asks for it"


@pytest.mark.parametrize("case", [*CHAINS[::4], *GRAPHS[::4], *map(slow, GRAPHS[2::4])], ids=conformance.name)
def test_node_kernels_match_the_reference(backend: CudaBackend, case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    text, shape = case
    monkeypatch.setattr(cuda, "plan_offsets", general)
    X = conformance.images(shape, 4)
    for k, precision in ((kernel(text), "float64"), (ConvolutionalNTK(text), "float32")):
        exactly = CudaBackend(precision, gpus=(0,))
        assert "general path" in exactly.describe(k.graph(shape))
        exact = k(X, backend="reference")
        assert relative_error(k(X, backend=exactly), exact) < 1e-12
        assert relative_error(k(X[:2], X[2:], backend=exactly), exact[:2, 2:]) < 1e-12


# Gradient tests run the node kernels on the remaining graphs.
@pytest.mark.parametrize(
    "case",
    [*CHAINS[1::3], *GRAPHS[1::2], *map(slow, [*CHAINS[::3], *CHAINS[2::3], *GRAPHS[::2]])],
    ids=conformance.name,
)
def test_every_tangent_kernel_matches_the_reference(backend: CudaBackend, case: tuple) -> None:
    text, shape = case
    k, X = ConvolutionalNTK(text), conformance.images(shape, 4)
    exact = k(X, backend="reference")
    assert relative_error(k(X, backend=backend), exact) < 1e-12
    assert relative_error(k(X[:2], X[2:], backend=backend), exact[:2, 2:]) < 1e-12


@pytest.mark.parametrize(
    "text",
    [
        "myrtle5",
        LAYOUTS[1][0],
        pytest.param("myrtle7-gaussian", marks=pytest.mark.slow),  # compiles four stages
        "conv5 relu pool2 conv3 gaussian globalpool normalize",
    ],
)
def test_hostile_images_are_computed_exactly(backend: CudaBackend, text: str) -> None:
    k, X = kernel(text), hostile_images()
    values = k(X, backend=backend)
    assert np.abs(values - k(X, backend="reference")).max() < 3e-7
    assert np.array_equal(np.diagonal(values), [0.0 if i == 8 else 1.0 for i in range(len(X))])  # image 8 is black


@pytest.mark.parametrize(
    ("text", "shape", "reason"),
    [
        ("conv5 relu globalpool normalize relu", (6, 6, 2), "a 5×5 window; 3×3 fits"),
        ("pool2 conv3 relu globalpool", (8, 8, 1), "0 layers before a pool"),
        ("conv3 gaussian pool3 conv3 relu globalpool", (9, 6, 1), "a 3×3 pool"),
        ("conv3 relu globalpool", (8, 3), "not two-dimensional"),
        ("relu", (5,), "it has no grid"),
        ("conv3 polynomial3 pool2 conv3 relu globalpool", (8, 8, 2), "small differences"),
        ("conv3 gaussian(9) conv3 relu globalpool normalize", (8, 8, 1), "multiply rounding errors"),
        ("conv3 step conv3 relu globalpool", (8, 8, 1), "step has no closed form"),
        ("conv3 relu residual(conv3 relu) globalpool", (8, 8, 1), "sums"),
    ],
)
def test_what_does_not_run_by_stages_says_why(backend: CudaBackend, text: str, shape: tuple, reason: str) -> None:
    description = backend.describe(kernel(text).graph(shape))
    assert ("general path" if len(shape) == 1 else "fused by offsets") in description
    assert reason in description


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("kilobytes", "tensor_cores", "outer"), [(80, 1, True), (56, 1, False), (48, 0, False)])
def test_stages_get_by_with_less_shared_memory(
    kilobytes: int, tensor_cores: int, outer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, shape = "conv3 relu conv3 relu conv3 relu pool2 conv3 relu globalpool", (8, 32, 1)
    monkeypatch.setattr(HostMachine, "shared_limit", 1024 * kilobytes)
    first = plan_graph(kernel(text).graph(shape), 1024 * kilobytes)[0]
    assert (first.patch_steps, first.outer, first.ring) == (tensor_cores, outer, SHORT_RING)
    check_in_every_order(text, shape, monkeypatch)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    "mistake",
    [
        # Of the mistakes that both schedules share, all but the first are left to `make test-slow`.
        pytest.param(mistake, id=words, marks=[pytest.mark.slow] * (words in [*MISTAKES][1:]))
        for words, mistake in MISTAKES_TOGETHER.items()
    ],
)
def test_mistake_in_the_schedule_is_seen(mistake: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = compile_graph(Architecture.parse("conv3 relu pool2 conv3 relu globalpool"), (16, 8), 1)
    check_that_mistake_is_seen(mistake, graph, (2, SHORT_RING, False), monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("mistake", MISTAKES_APART.values(), ids=MISTAKES_APART)
def test_mistake_is_seen_where_warps_are_apart(mistake: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = compile_graph(
        Architecture.parse("conv3 relu conv3 relu conv3 relu pool2 conv3 relu globalpool"), (12, 16), 2
    )
    check_that_mistake_is_seen(mistake, graph, (6, LONG_RING, True), monkeypatch)


def check_that_mistake_is_seen(
    mistake: tuple[str, str], graph: Graph, expected: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plan_graph(graph, HostMachine.shared_limit)[0]
    assert (first.warps, first.ring, first.ahead) == expected
    images = make_images(graph, 4)
    right = in_every_order(graph, images, 3, monkeypatch)
    assert all(np.array_equal(right[0], other) for other in right)
    monkeypatch.setattr(HostMachine, "mistake", mistake)
    try:
        wrong = in_every_order(graph, images, 3, monkeypatch)
    except EmulationError:  # some mistakes end in a deadlock
        return
    assert not np.array_equal(wrong, right)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_of_the_images_is_restored(backend: CudaBackend, scale: float) -> None:
    graph = compile_graph(Architecture.parse("conv3 relu pool2 conv3 relu globalpool"), (8, 8), 2)
    images = scale * make_images(graph, 5)
    found = backend.block(graph, backend.prepare(graph, images[:3]), backend.prepare(graph, images[3:]))
    np.testing.assert_allclose(found, reference_matrix(graph, images, 3), rtol=3e-7)


def test_zero_image_gives_zero_not_nan(backend: CudaBackend) -> None:
    graph = compile_graph(Architecture.parse("myrtle5"), (8, 8), 3)
    images = make_images(graph, 3).copy()
    images[0] = 0.0
    prepared = backend.prepare(graph, images)
    found = backend.block(graph, prepared, prepared)
    assert np.array_equal(found[0], np.zeros(3))
    assert not np.isnan(found).any()


@pytest.mark.parametrize(
    "text", ["conv3 relu pool2 conv3 gaussian globalpool", "conv5 relu pool2 residual(relu conv3) pool4"]
)
def test_bits_do_not_depend_on_batches_tiles_or_gpus(
    backend: CudaBackend, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = compile_graph(Architecture.parse(text), (8, 8), 2)
    images = make_images(graph, 11)
    prepared = backend.prepare(graph, images)
    whole = backend.block(graph, prepared, prepared)
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 3)
    monkeypatch.setattr(cuda, "PREPARED_AT_ONCE", 4)
    two = CudaBackend()
    again = two.prepare(graph, images)
    assert np.array_equal(two.block(graph, again, again), whole)
    assert np.array_equal(two.block(graph, again[2:5], again[3:11]), whole[2:5, 3:11])
    upper = two.block(graph, again, again, upper=True)
    assert np.array_equal(np.triu(upper), np.triu(whole))


def test_progress_counts_every_pair_once(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 4)
    graph = compile_graph(Architecture.parse("conv3 relu globalpool"), (4, 4), 1)
    prepared = backend.prepare(graph, make_images(graph, 5))
    counted: list[int] = []
    backend.block(graph, prepared, prepared, upper=True, advance=counted.append)
    assert sum(counted) == 15


def test_work_goes_on_after_it_was_stopped(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 4)
    graph = compile_graph(Architecture.parse("conv3 relu pool2 conv3 gaussian globalpool"), (8, 8), 2)
    prepared = backend.prepare(graph, make_images(graph, 5))
    whole = backend.block(graph, prepared, prepared)

    def stop(pairs: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.block(graph, prepared, prepared, advance=stop)
    assert np.array_equal(backend.block(graph, prepared, prepared), whole)


def test_smaller_batches_follow_when_memory_runs_out(backend: CudaBackend) -> None:
    graph = compile_graph(Architecture.parse("conv3 relu globalpool"), (4, 4), 1)
    prepared = backend.prepare(graph, make_images(graph, 5))
    whole = backend.block(graph, prepared, prepared)
    path = backend._path(0, graph)
    block, asked = path.block, []

    def short_of_memory(left, right, batch, first, advance):
        asked.append(batch)
        if batch > 6:
            raise MemoryError
        return block(left, right, batch, first, advance)

    path.block = short_of_memory
    assert np.array_equal(backend.block(graph, prepared, prepared), whole)
    assert asked[-1] <= 6 < asked[0]


def test_symmetric_matrix_through_the_kernel(backend: CudaBackend) -> None:
    k = kernel("conv3 relu pool2 conv3 relu globalpool normalize relu")
    images = make_images(k.graph((8, 8, 2)), 5)
    prepared = k.prepare(backend, images)
    values = fill(k, backend, prepared, prepared, symmetric=True)
    assert np.array_equal(values, values.T)
    assert np.array_equal(np.diagonal(values), np.ones(5))
