"""Architectures: reading, writing, and errors that name the layer and what would fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tangentless as tl
from tangentless.architecture import NAMED, Architecture
from tangentless.errors import ArchitectureError
from tangentless.program import compile_program

LAYERS = st.one_of(
    st.builds(tl.Conv, st.sampled_from([1, 3, 5, 7])),
    st.builds(tl.Pool, st.integers(1, 9)),
    st.builds(tl.LeakyReLU, st.floats(0, 1)),
    st.builds(tl.Gaussian, st.floats(1e-6, 1e6)),
    st.builds(tl.Polynomial, st.integers(1, 30)),
    st.sampled_from([tl.ReLU(), tl.GlobalPool(), tl.Normalize()]),
)


@given(st.lists(LAYERS, min_size=1, max_size=20))
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
    program = compile_program(Architecture.parse(name + suffix), (size, size), 3)
    nonlinearity = tl.Gaussian() if suffix else tl.ReLU()
    assert tuple(len(stage.steps) for stage in program.stages) == convolutions
    assert {step.embedding for stage in program.stages for step in stage.steps} == {nonlinearity}
    assert [stage.pool for stage in program.stages] == [(2, 2), (2, 2), (size // 4, size // 4)]
    assert program.head == (tl.Normalize(), nonlinearity)


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
        ("conv4 relu", "layer 1 of 2, 'conv4': conv needs an odd size"),
        ("conv3 relu(0.1)", "takes no parameter"),
        ("conv3 leakyrelu(abc)", "not a number"),
        ("conv3 gaussian(1,2)", "takes gamma only"),
        ("conv3 pool2.5", "cannot be read"),
        ("conv3(", "cannot be read"),
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
            "layer 3 of 3: pool3 does not divide its 32×32 input; what would fit: pool2, pool4",
        ),
        ("pool2 pool2 pool2", (28, 28), "layer 3 of 3: pool2 does not divide its 7×7 input; what would fit: pool7"),
        ("conv3 relu pool2", (32, 32), "16×16 grid is left"),
        ("conv3 relu", (16,), "16 grid is left"),
        ("conv3 relu", (), "conv3 needs a sequence or an image"),
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
