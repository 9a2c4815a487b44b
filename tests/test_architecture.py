"""Architectures: reading, writing, and errors that name the layer and what would fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tangentless as tl
from tangentless.architecture import NAMED, Architecture
from tangentless.backends.segments import chain
from tangentless.errors import ArchitectureError
from tangentless.graph import EmbedNode, PoolNode, SumNode, WindowNode, compile_graph

LAYERS = st.one_of(
    st.builds(tl.Conv, st.sampled_from([1, 3, 5, 7]), st.integers(1, 3), st.integers(1, 3)),
    st.builds(tl.Pool, st.integers(1, 9), st.none() | st.integers(1, 9)),
    st.builds(tl.Patch, st.integers(1, 4)),
    st.builds(tl.Erf, st.floats(0.1, 10)),
    st.builds(tl.LeakyReLU, st.floats(0, 1)),
    st.builds(tl.Gaussian, st.floats(1e-6, 1e6)),
    st.builds(tl.Polynomial, st.integers(1, 30)),
    st.sampled_from([tl.ReLU(), tl.HalfPool(), tl.GlobalPool(), tl.Normalize(), tl.GELU(), tl.Abs(), tl.Step()]),
)
BRANCHES = st.recursive(
    LAYERS,
    lambda layer: (
        st.builds(
            lambda branches: tl.Sum(tuple(b for b, _ in branches), tuple(w for _, w in branches)),
            st.lists(st.tuples(st.lists(layer, max_size=3).map(tuple), st.floats(1e-3, 1e3)), min_size=1, max_size=3),
        )
        | st.builds(tl.Residual, st.lists(layer, min_size=1, max_size=3).map(tuple))
    ),
    max_leaves=8,
)


@given(st.lists(BRANCHES, min_size=1, max_size=12))
def test_text_form_round_trips(layers):
    architecture = Architecture(tuple(layers))
    assert Architecture.parse(str(architecture)) == architecture
    assert eval(repr(architecture)) == architecture


@pytest.mark.parametrize(
    ("name", "convolutions"), [("myrtle5", (2, 1, 1)), ("myrtle7", (2, 2, 2)), ("myrtle10", (3, 3, 3))]
)
@pytest.mark.parametrize("suffix", ["", "-gaussian"])
@pytest.mark.parametrize("size", [32, 28])
def test_myrtle_family_is_the_papers(name, convolutions, suffix, size):
    graph = compile_graph(Architecture.parse(name + suffix), (size, size), 3)
    stages = chain(graph)
    nonlinearity = tl.Gaussian() if suffix else tl.ReLU()
    assert tuple(len(stage.steps) for stage in stages) == convolutions
    assert {step.embedding for stage in stages for step in stage.steps} == {nonlinearity}
    assert [stage.pool for stage in stages] == [(2, 2), (2, 2), (size // 4, size // 4)]
    assert [graph.nodes[place].layer for place in graph.head] == [tl.Normalize(), nonlinearity]


@pytest.mark.parametrize(("name", "embeddings"), [("resnet8", 9), ("resnet14", 15)])
def test_residual_networks_have_three_resolutions_and_add_before_activations(name, embeddings):
    graph = compile_graph(Architecture.parse(name), (32, 32), 3)
    nodes = [graph.nodes[place] for place in graph.body]
    assert {node.grid for node in nodes} == {(32, 32), (16, 16), (8, 8), (1, 1)}
    assert sum(isinstance(node, EmbedNode) for node in nodes) == embeddings - 2
    assert sum(isinstance(node, PoolNode) for node in nodes) == 1
    sums = [node for node in nodes if isinstance(node, SumNode)]
    assert len(sums) == (embeddings - 3) // 2
    assert not any(isinstance(graph.nodes[source], EmbedNode) for node in sums for source in node.sources)
    averaging = [node for node in nodes if isinstance(node, WindowNode)][1:]  # all but the first are inside sums
    assert all(node.scale == 1 / (node.axes[0].size * node.axes[1].size) for node in averaging)


def test_names_print_as_names():
    for name in NAMED:
        assert repr(tl.kernel(name)) == f"kernel({name!r})"


def test_a_list_a_text_and_an_architecture_give_the_same_kernel():
    text = "conv3 relu globalpool"
    layers = [tl.Conv(3), tl.ReLU(), tl.GlobalPool()]
    assert tl.kernel(text) == tl.kernel(layers) == tl.kernel(Architecture.parse(text))
    assert len({tl.kernel(text), tl.kernel(layers)}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("conv3 rely globalpool", "layer 2 of 3, 'rely': unknown layer; did you mean 'relu'"),
        ("mirtle5", "did you mean 'myrtle5'"),
        ("best", "best is a recipe, not a list of layers"),
        ("conv4 relu", "layer 1 of 2, 'conv4': conv needs an odd size"),
        ("conv3 relu(0.1)", "takes no parameter"),
        ("conv3 leakyrelu(abc)", "slope must be a number, not 'abc'"),
        ("conv3 gaussian(1,2)", "takes gamma only"),
        ("conv3 pool2.5", "cannot be read"),
        ("conv3(", "a parenthesis is not closed"),
        ("conv3) relu", "a parenthesis is closed but not opened"),
        (
            "conv3(strid=2)",
            "layer 1 of 1, 'conv3(strid=2)': parameter 'strid' is unknown; conv has size, stride, dilation",
        ),
        ("conv3(size=3)", "'size' is given twice"),
        ("conv3(stride=0)", "stride of at least 1"),
        ("conv3(stride=2, dilation=1.5)", "dilation must be a whole number, not '1.5'"),
        ("sum()", "branch 1: it is empty; write identity for a branch without layers"),
        ("sum(conv3 | )", "branch 2: it is empty"),
        (
            "relu sum(conv3 | conv4 relu)",
            "layer 2 of 2, 'sum(conv3 | conv4 relu)', branch 2: layer 1 of 2, 'conv4': conv needs",
        ),
        ("sum(x * conv3 | conv3)", "branch 1: a weight is a number"),
        ("sum(-1 * conv3 | conv3)", "finite and above 0"),
        ("sum3(conv3)", "branches stand in parentheses"),
        ("residual", "branches stand in parentheses, such as residual(relu conv3)"),
        ("residual(conv3 | conv5)", "one branch without a weight"),
        ("residual(" * 3000 + "conv3" + ")" * 3000, "nested more than 100 deep"),
        ("rbf", "the kernel of vectors is tangentless.classical.Gaussian(gamma)"),
        ("ntk(3)", "the kernel of vectors is tangentless.classical.NTK(depth)"),
        ("residual(identity)", "needs layers beside the identity"),
    ],
)
def test_text_that_cannot_be_read_says_where(text, message):
    with pytest.raises(ArchitectureError) as error:
        Architecture.parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "grid", "message"),
    [
        (
            "conv3 relu pool3",
            (32, 32),
            "layer 3 of 3: pool3 does not divide an axis of 32; what would fit: pool2, pool4",
        ),
        (
            "pool2 pool2 pool2",
            (28, 28),
            "layer 3 of 3: pool2 does not divide an axis of 7; what would fit: pool7, pool2(stride=2)",
        ),
        (
            "pool16",
            (8, 8),
            "layer 1 of 1: pool16 does not divide an axis of 8; what would fit: pool2, pool4, pool8, globalpool",
        ),
        ("conv3 relu pool2", (32, 32), "16×16 grid is left"),
        ("conv3 relu", (16,), "16 grid is left"),
        ("conv3 relu", (), "conv3 needs a sequence or an image"),
        (
            "patch3 relu",
            (8, 8),
            "layer 1 of 2: patch3 does not divide an axis of 8; what would fit: patch2, patch4, patch8",
        ),
        (f"pool{10**20}(stride=2)", (8, 8), "has no window inside an axis of 8"),
        (f"patch{10**20}", (8, 8), "does not divide an axis of 8"),
        ("pool5(stride=2)", (4, 8), "pool5(stride=2) has no window inside an axis of 4; at most pool4 fits"),
        (
            "relu sum(conv3(stride=2) relu | identity)",
            (8, 8),
            "layer 2 of 2: branches of a sum must end on one grid, but conv3(stride=2) relu ends on 4×4; identity ends "
            "on 8×8; give the others the same strides, for example conv1(stride=2)",
        ),
        (
            "residual(relu sum(conv3 | pool3))",
            (8, 8),
            "layer 1 of 1: branch 1, layer 2 of 2: branch 2, layer 1 of 1: pool3",
        ),
    ],
)
def test_layers_that_do_not_fit_say_what_would(text, grid, message):
    with pytest.raises(ArchitectureError) as error:
        Architecture.parse(text).grids(grid)
    assert message in str(error.value)


@pytest.mark.parametrize("value", [[], [tl.ReLU(), "relu"], 3, None])
def test_what_is_no_architecture_is_refused(value):
    with pytest.raises(ArchitectureError):
        tl.kernel(value)
