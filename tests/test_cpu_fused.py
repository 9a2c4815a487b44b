"""The fused path of the CPU: which graphs it takes, how it cuts them, and that it agrees with the reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import tangentless as tl
from conformance import GRAPHS, graphs, hostile_images, images, name, relative_error, slow_where
from tangentless.backends import get_backend
from tangentless.backends.cpu import CpuBackend
from tangentless.backends.cpu.plan import Fused, fuse
from tangentless.backends.segments import chain, cut
from tangentless.classical import ConvolutionalNTK

RESNET = (
    "conv3 residual(relu conv3 relu conv3) relu sum(conv3(stride=2) relu conv3 | conv1(stride=2)) "
    "residual(relu conv3) relu globalpool normalize relu"
)


def fused(text, shape, dtype="float32"):
    return fuse(tl.kernel(text).graph(shape), dtype, 16)


def is_plain(plan):
    """Whether the last pool has no weights. Weights are folded into norms, and tangents have none."""
    return plan.segments[-1].exits[0].weights is None


@pytest.mark.parametrize(
    "text",
    [
        "conv3 residual(relu conv3 relu conv3) relu globalpool",
        "conv5 relu conv7 relu pool4 conv1 relu globalpool",
        "conv3(dilation=2) relu conv3(dilation=3) relu globalpool",
        "conv3 relu conv3(stride=2) relu conv1(stride=2) relu globalpool",
        "patch4 relu conv3 relu globalpool",
        "conv3 relu pool3(stride=3) relu globalpool",
        "conv3 relu sum(pool2 | conv3(stride=2) | patch2) relu globalpool",
        "conv3 relu pool2 conv3 gaussian halfpool globalpool",
        "conv3 relu residual(conv3) gaussian pool3(stride=1) halfpool globalpool",
        RESNET,
        "resnet8",
        "resnet14-gaussian",
    ],
)
def test_the_graphs_of_this_field_are_fused(text):
    assert isinstance(fused(text, (16, 16, 3)), Fused)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv3 relu pool3(stride=2) relu globalpool", "overlap"),
        ("conv3 gaussian conv3 relu halfpool globalpool", "carry weights"),
        ("conv3 gaussian residual(conv3) halfpool globalpool", "carry weights"),
        ("conv3 relu pool2(stride=3) relu globalpool", "gaps"),
        ("conv3 relu sum(pool2 pool2 | pool4) relu globalpool", "different numbers of pools and strides"),
        ("conv3 relu sum(globalpool relu | globalpool)", "several values"),
    ],
)
def test_what_cannot_be_cut_says_why(text, reason):
    assert reason in fused(text, (16, 16, 3))
    assert reason in get_backend("cpu").describe(tl.kernel(text).graph((16, 16, 3)))


def test_a_residual_block_is_two_steps_of_which_one_keeps_its_sum():
    (segment,) = cut(tl.kernel("conv3 residual(relu conv3 relu conv3) relu globalpool").graph((8, 8, 3)))
    assert [len(step.terms) for step in segment.steps] == [1, 1, 2]
    assert [str(step.embedding) for step in segment.steps] == ["relu"] * 3


def test_a_stride_needs_only_its_multiples_in_all_segments_before_it():
    plan = fused("conv3 relu conv3(stride=2) relu pool2 conv3(stride=2) relu globalpool", (16, 16, 1))
    first, second, third, _ = (u for u, _ in plan.needed(3))
    assert third == [-2, 0, 2]
    assert second == [u for u in range(-5, 6) if abs(u) != 2]  # from 2 U - 1 to 2 U + 1 for each U of the third segment
    assert first == [2 * u for u in second]


def test_segments_of_chains_are_stages():
    assert [len(stage.steps) for stage in chain(tl.kernel("myrtle10").graph((32, 32, 3)))] == [3, 3, 3]
    assert "strides" in chain(tl.kernel(RESNET).graph((16, 16, 3)))


def check_with_reference(kernel, shape):
    X, Z = images(shape, 3), images(shape, 9, seed=1)
    exact = kernel(X, Z, backend="reference")
    assert relative_error(kernel(X, Z, backend="cpu", precision="float64"), exact) < 1e-12


@settings(max_examples=15, deadline=None)
@given(graphs(layers=("conv1", "conv3", "relu"), depth=1))
def test_any_shallow_graph_agrees_with_the_reference(case):
    check_with_reference(tl.kernel(case[0]), case[1])


@pytest.mark.slow  # each kind of layer compiles code of its own
@settings(max_examples=25, deadline=None)
@given(graphs(layers=("conv1", "conv3", "conv5", "conv3(dilation=2)", "relu")))
def test_any_graph_agrees_with_the_reference(case):
    check_with_reference(tl.kernel(case[0]), case[1])


@pytest.mark.slow  # half a minute of compiling; the next test covers most kinds of graphs
@settings(max_examples=8, deadline=None)
@given(graphs(layers=("conv1", "conv3", "relu")))
def test_tangents_of_any_graph_agree_with_the_reference(case):
    check_with_reference(ConvolutionalNTK(case[0]), case[1])


PLAIN = [case for case in GRAPHS if isinstance(plan := fused(*case, "float64"), Fused) and is_plain(plan)]
# These compile for seconds; the others also have sums, strides and patches.
OWN_CODE = "resnet14-gaussian", "sum(normalize", "patch2 relu residual", "residual(conv3"


@pytest.mark.parametrize("case", slow_where(PLAIN, *OWN_CODE), ids=name)
def test_tangents_are_fused_where_kernels_in_float64_are(case):
    text, shape = case
    kernel, X, Z = ConvolutionalNTK(text), images(shape), images(shape, 9, seed=1)
    assert "fused tangents, float64" in get_backend("cpu").describe(kernel.graph(shape))
    assert relative_error(kernel(X, Z), kernel(X, Z, backend="reference")) < 1e-12
    assert relative_error(kernel.diag(X), kernel.diag(X, backend="reference")) < 1e-12


@pytest.mark.parametrize(
    "case",
    slow_where([case for case in GRAPHS if isinstance(fused(*case), Fused)][:6], "resnet14-gaussian"),
    ids=lambda case: case[0][:30],
)
def test_entries_do_not_depend_on_what_was_computed_before(case):
    # The reader of a slot between segments clears it. A value left there would leak into the next row.
    text, shape = case
    kernel, backend = tl.kernel(text), CpuBackend(n_jobs=1)
    X, Z = kernel.prepare(backend, images(shape, 7)), kernel.prepare(backend, images(shape, 20, seed=1))
    whole = kernel.block(backend, X, Z)
    np.testing.assert_array_equal(kernel.block(CpuBackend(n_jobs=2), X[6:], Z[16:]), whole[6:, 16:])


@pytest.mark.parametrize("text", [RESNET, "sum(normalize conv3 | conv3) relu globalpool normalize"])
@pytest.mark.parametrize(("precision", "bound"), [("float32", 4e-7), ("float64", 1e-12)])
def test_hostile_images_are_computed_exactly(text, precision, bound):
    X = hostile_images()
    kernel = tl.kernel(text)
    values = kernel(X, backend="cpu", precision=precision)
    assert np.abs(values - kernel(X, backend="reference")).max() < bound
    assert np.isfinite(ConvolutionalNTK(text)(X, backend="cpu")).all()


def test_long_windows_add_up_in_several_parts():
    X = images((19, 3), 4)
    kernel = tl.kernel("conv17 relu sum(conv9 | conv15(dilation=2) | conv1 relu) relu globalpool")
    assert isinstance(fused("conv17 relu globalpool", (19, 19, 3)), Fused)
    assert relative_error(kernel(X, precision="float64"), kernel(X, backend="reference")) < 1e-13
    X = images((11, 9, 1), 3)
    assert relative_error(kernel(X, precision="float64"), kernel(X, backend="reference")) < 1e-13


@pytest.mark.parametrize("order", [order for order in itertools.permutations(range(4)) if order != (0, 1, 2, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_of_images_in_memory_changes_nothing_but_rounding(order, channels):
    X = images((4, 6, channels), 5)
    laid_out = np.ascontiguousarray(X.transpose(order)).transpose(np.argsort(order))
    flat = np.asfortranarray(X.reshape(5, -1)).reshape(X.shape)  # as of a data frame
    repeated = np.broadcast_to(X[:1], X.shape)
    kernel = tl.kernel("conv3 relu pool2 conv3 relu globalpool")
    for k in (kernel, kernel.seen("gray") if channels > 1 else kernel.mirrored()):
        for one in (laid_out, flat, repeated):
            expected = k(one.copy(), X, backend="cpu")
            assert relative_error(k(one, X, backend="cpu"), expected) < 1e-6
            assert relative_error(k(X, one, backend="cpu"), expected.T) < 1e-6
