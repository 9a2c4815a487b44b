"""Graphs: shapes, work and memory from their nodes; and the general path against the reference, tangents included."""

import numpy as np
import pytest
from hypothesis import given, settings

import tangentless as tl
from conformance import CHAINS, GRAPHS, graphs, hostile_images, images, name, relative_error
from tangentless.backends.general import general_block, prepare_general
from tangentless.classical import ConvolutionalNTK
from tangentless.graph import EmbedNode, WeightsNode, compile_graph


def general(kernel, X, Z=None, n_jobs=1):
    """The matrix by the general path, even if a faster path takes the graph."""
    graph = kernel.graph(X.shape[1:])
    left = prepare_general(graph, X, n_jobs)
    right = left if Z is None else prepare_general(graph, Z, n_jobs)
    return general_block(left, right, upper=False, advance=None, n_jobs=n_jobs)


@pytest.mark.parametrize("make", [tl.kernel, ConvolutionalNTK], ids=["kernel", "tangent"])
@pytest.mark.parametrize("case", [*CHAINS, *GRAPHS], ids=name)
def test_the_general_path_is_the_reference(case, make):
    text, shape = case
    kernel, X, Z = make(text), images(shape), images(shape, 3, seed=1)
    exact = kernel(X, Z, backend="reference")
    assert relative_error(general(kernel, X, Z), exact) < 1e-13
    prepared = prepare_general(kernel.graph(shape), X)
    assert relative_error(prepared.diagonal, kernel.diag(X, backend="reference")) < 1e-13


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_any_graph_agrees_with_the_reference(case):
    text, shape = case
    X, Z = images(shape, 2), images(shape, 2, seed=1)
    for kernel in (tl.kernel(text), ConvolutionalNTK(text)):
        assert relative_error(general(kernel, X, Z), kernel(X, Z, backend="reference")) < 1e-12


@pytest.mark.parametrize(
    "text", ["resnet8", "conv3 relu pool3(stride=2) conv3(dilation=2) relu globalpool normalize relu"]
)
def test_hostile_images_stay_finite_and_exact(text):
    kernel, X = tl.kernel(text), hostile_images()
    values = general(kernel, X, n_jobs=2)
    assert np.isfinite(values).all()
    assert np.abs(values - kernel(X, backend="reference")).max() < 1e-12
    assert np.isfinite(general(ConvolutionalNTK(text), X)).all()


def test_entries_of_the_general_path_do_not_depend_on_batches_or_threads():
    kernel, X = tl.kernel("resnet8"), images((16, 16, 2), 9)
    whole = general(kernel, X, n_jobs=2)
    np.testing.assert_array_equal(general(kernel, X[3:4], X), whole[3:4])


@pytest.mark.parametrize("text", ["resnet14", "conv3 relu patch2 conv3(stride=2) relu pool2 residual(relu) globalpool"])
def test_strides_ask_for_fewer_offsets(text):
    graph = tl.kernel(text).graph((16, 16, 1))
    assert {u % 4 for u in graph.offsets[0][0]} == {0} or {u % 4 for u in graph.offsets[0][0]} == {0, 1, 3}
    embeddings = [place for place in graph.body if isinstance(graph.nodes[place], EmbedNode)]
    assert graph.elements == sum(graph.pairs(place) for place in embeddings)
    assert graph.pairs(0) < 16**4


def test_work_of_a_chain_is_every_pair_of_positions_at_every_embedding():
    graph = tl.kernel("myrtle5").graph((32, 32, 3))
    assert graph.elements == 2 * 1024**2 + 256**2 + 64**2


def test_tangents_of_one_layer_of_weights_are_counted_once():
    # Two convolutions without a nonlinearity between them are one layer of weights; a branch of a sum has its own.
    X = images((6, 6, 2), 3)
    one, two = ConvolutionalNTK("conv3 conv3 globalpool"), ConvolutionalNTK("conv3 sum(conv3) globalpool")
    process = one.gaussian_process(X, backend="reference")
    np.testing.assert_allclose(one(X, backend="reference"), process)
    np.testing.assert_allclose(two(X, backend="reference"), 3 * process / 9)  # the first, the branch's, the readout


def test_deep_residual_networks_compile_in_one_walk():
    # A walk along every path would never end: each block doubles the number of paths.
    graph = tl.kernel(f"conv3 {'residual(relu conv3) ' * 80} relu globalpool").graph((4, 4, 1))
    assert graph.ancestors(graph.outputs[0]) == frozenset(range(graph.outputs[0]))
    assert graph.delicate is None


def test_sums_of_the_same_outputs_are_features_of_a_new_layer_of_weights():
    # The network concatenates the branches, so inner products count twice. Adding the features would count them four
    # times.
    graph = compile_graph(tl.Architecture.parse("conv3 sum(identity | identity) relu globalpool"), (4, 4), 1, True)
    weights = [place for place, node in enumerate(graph.nodes) if isinstance(node, WeightsNode)]
    assert len(weights) == 3  # of the convolution, before the ReLU, and the readout's


def test_what_does_not_grow_with_the_images_is_known():
    for text, free, degree in [
        ("conv3 relu globalpool", False, 1),
        ("conv3 relu globalpool normalize relu", True, 1),
        ("conv3 normalize relu globalpool", True, 0),
        ("sum(normalize conv3 | conv3) relu globalpool", False, None),
    ]:
        graph = compile_graph(tl.Architecture.parse(text), (4, 4), 1)
        assert (graph.scale_free, graph.degrees[graph.outputs[0]]) == (free, degree)
