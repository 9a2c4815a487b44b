"""A user's nonlinearity, window layer and pool, registered once, work in texts, backends, files and networks."""

from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import numpy as np
import pytest

import tangentless as tl
from conformance import images, relative_error
from cuda_host.machine import COMPILER, emulate
from tangentless.backends import get_backend
from tangentless.backends.cuda import CudaBackend
from tangentless.classical import ConvolutionalNTK
from tangentless.errors import ArchitectureError, InputError, StoreMismatchError
from tangentless.gram import resume
from tangentless.layers import LAYERS
from tangentless.models import load_model, save_model


@dataclass(frozen=True)
class Swish(tl.Nonlinearity):
    """x / (1 + exp(-beta x)): only the activation is given."""

    beta: float = 1.0
    name: ClassVar[str] = "swish"

    def activation(self, preactivation):
        return preactivation / (1.0 + 2.718281828459045 ** (-self.beta * preactivation))


@dataclass(frozen=True)
class Causal(tl.Stack):
    """A window of the current and earlier positions, as in networks of sequences."""

    size: int = 2
    dilation: int = 1
    name: ClassVar[str] = "causal"

    def windows(self, length):
        return tl.Windows(self.size, length, dilation=self.dilation, start=-self.dilation * (self.size - 1))


@dataclass(frozen=True)
class Smooth(tl.Average):
    """A pool of overlapping windows, at every position where the whole window is in the grid."""

    size: int = 2
    name: ClassVar[str] = "smooth"

    def windows(self, length):
        return tl.Windows(self.size, length - self.size + 1)


@dataclass(frozen=True)
class Sparse(tl.Average):
    """A pool of windows with gaps, from the second position on."""

    size: int = 2
    name: ClassVar[str] = "sparse"

    def windows(self, length):
        return tl.Windows(self.size, (length - 2 * self.size) // 2 + 1, stride=2, dilation=2, start=1)


TEXTS = [
    "conv3 swish globalpool normalize swish(beta=0.5)",
    "causal2 relu causal3(dilation=2) relu globalpool",
    "conv3 relu smooth3 residual(swish causal2) relu globalpool normalize relu",
    "conv3 relu causal4 relu sparse2 relu globalpool normalize relu",
]


@pytest.fixture(autouse=True)
def registered():
    for layer in (Swish, Causal, Smooth, Sparse):
        tl.register(layer)
    yield
    for layer in (Swish, Causal, Smooth, Sparse):
        LAYERS.pop(layer.name, None)


@pytest.mark.parametrize("text", TEXTS)
def test_text_form_round_trips(text):
    architecture = tl.Architecture.parse(text)
    assert tl.Architecture.parse(str(architecture)) == architecture


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_backend_agrees(text, precision):
    X, Z = images((6, 5, 2)), images((6, 5, 2), 3, seed=1)
    for kernel in (tl.kernel(text), ConvolutionalNTK(text)):
        exact = kernel(X, Z, backend="reference")
        assert relative_error(kernel(X, Z, backend="cpu", precision=precision), exact) < 4e-7
        assert kernel.graph((6, 5, 2)).elements > 0
        assert get_backend("cpu").describe(kernel.graph((6, 5, 2)))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")
@pytest.mark.parametrize("text", TEXTS)
def test_an_emulated_gpu_agrees(text, monkeypatch):
    emulate(monkeypatch)
    X, Z = images((6, 5, 2)), images((6, 5, 2), 3, seed=1)
    for kernel in (tl.kernel(text), ConvolutionalNTK(text)):
        exact = kernel(X, Z, backend="reference")
        assert relative_error(kernel(X, Z, backend=CudaBackend()), exact) < 3e-7


def test_gradients_agree(monkeypatch):
    X, Z = images((6, 5, 2), 2), images((6, 5, 2), 3, seed=1)
    k, G = tl.kernel(TEXTS[3]), images((3,), 2, seed=2)
    exact = k.vjp(X, Z, G, backend="reference")
    for found, right in zip(k.vjp(X, Z, G, backend="cpu", precision="float64"), exact, strict=True):
        assert relative_error(found, right) < 1e-9
    if COMPILER is not None:
        emulate(monkeypatch)
        for found, right in zip(k.vjp(X, Z, G, backend=CudaBackend()), exact, strict=True):
            assert relative_error(found, right) < 1e-9


@pytest.mark.parametrize(
    ("kind", "windows", "message"),
    [
        (tl.Average, tl.Windows(3, 6, start=-1), "reads the positions -1 to 6 of an axis of 6"),
        (tl.Average, tl.Windows(2, 3, stride=2, dilation=2), "reads the positions 0 to 6 of an axis of 6"),
        (tl.Stack, tl.Windows(3, 7, start=-1), "has 7 windows, 1 apart, on an axis of 6; .* at most 6"),
        (tl.Stack, tl.Windows(1, 4, stride=2), "has 4 windows, 2 apart, on an axis of 6; .* at most 3"),
    ],
)
def test_windows_that_do_not_fit_are_refused(kind, windows, message):
    layer = type("Odd", (kind,), {"name": "odd", "windows": lambda self, length: windows})()
    with pytest.raises(ArchitectureError, match=f"layer 1 of 2: odd {message}"):
        tl.kernel([layer, tl.GlobalPool()])(images((6, 6, 2), 2))


def test_a_model_file_and_a_store_know_it(tmp_path):
    X, y = images((6, 5, 2), 12), np.arange(12) % 3
    model = tl.KernelRidgeClassifier(TEXTS[2], store=tmp_path / "K").fit(X, y)
    save_model(tmp_path / "model", model)
    np.testing.assert_array_equal(load_model(tmp_path / "model").decision_function(X), model.decision_function(X))
    np.testing.assert_allclose(np.asarray(tl.open_gram(tmp_path / "K")), tl.kernel(TEXTS[2])(X), rtol=1e-12)


class LaterCausal(Causal):
    """The class of that name after an edit."""

    def windows(self, length):
        return tl.Windows(self.size, length)


class LaterSwish(Swish):
    """The class of that name after an edit."""

    def activation(self, preactivation):
        return preactivation**2


@pytest.mark.parametrize("edited", [LaterCausal, LaterSwish])
@pytest.mark.parametrize("make", [tl.kernel, ConvolutionalNTK])
def test_files_are_refused_once_a_layer_computes_something_else(tmp_path, make, edited):
    X, y = images((6, 5, 2), 12), np.arange(12) % 3
    for _ in range(2):
        model = tl.KernelRidgeClassifier(make(TEXTS[2]), store=tmp_path / "K").fit(X, y)
    save_model(tmp_path / "model", model)
    LAYERS[edited.name] = edited
    with pytest.raises(InputError, match=f"something else now .*{edited.name}"):
        load_model(tmp_path / "model")
    for go_on in (lambda: tl.gram(make(TEXTS[2]), X, store=tmp_path / "K"), lambda: resume(tmp_path / "K")):
        with pytest.raises(StoreMismatchError, match=f"architectures is .*; {edited.name}"):
            go_on()


@pytest.mark.parametrize("text", TEXTS)
def test_networks_of_it_approach_the_kernel(text):
    torch = pytest.importorskip("torch")
    X = images((6, 5, 2), 4).astype(np.float32)
    kernel = tl.kernel(text)
    exact = kernel(X, backend="reference")
    networks = [tl.Architecture.parse(text).to_torch(512, 2, shape=(6, 5, 2), seed=seed) for seed in range(6)]
    mean = np.mean([network.kernel(torch.from_numpy(X)) for network in networks], axis=0)
    assert relative_error(mean, exact) < 0.1


def test_files_with_an_unregistered_layer_name_it_and_the_remedy(tmp_path):
    X, y = images((6, 5, 2), 12), np.arange(12) % 3
    model = tl.KernelRidgeClassifier(TEXTS[0], store=tmp_path / "K").fit(X, y)
    save_model(tmp_path / "model", model)
    del LAYERS["swish"]
    with pytest.raises(InputError, match=r"swish.*import the module that registers it first") as caught:
        load_model(tmp_path / "model")
    assert "kernel=..." not in str(caught.value)
    with pytest.raises(ArchitectureError, match=r"swish.*tangentless.register"):
        tl.kernel(TEXTS[0])


@pytest.mark.parametrize(
    "found", [(2, 4), None, tl.Windows(2, 0), tl.Windows(0, 4), tl.Windows(2, 4, -1), tl.Windows(2, 4.0), tl.Windows]
)
def test_windows_that_cannot_be_used_name_the_layer_and_what_to_return(found):
    class Wrong(tl.Stack):
        name = "wrong"

        def windows(self, length):
            return found

    with pytest.raises(
        ArchitectureError, match=r"layer 2 of 3: windows of wrong must return Windows\(size, count, .*not"
    ):
        tl.kernel([tl.ReLU(), Wrong(), tl.GlobalPool()])(images((6, 5, 2), 3))


def test_a_parameter_may_be_absent_whether_its_annotation_is_a_text_or_a_type():
    for annotation in ("int | None", int | None):
        layer = make_dataclass(
            "Hop", [("stride", annotation, None)], bases=(Causal,), namespace={"name": "hop"}, frozen=True
        )
        assert str(tl.register(layer)()) == "hop2"
        del LAYERS["hop"]


@pytest.mark.parametrize("first", [-2, -1, 0, 3])
def test_the_text_of_any_whole_first_parameter_reads_back(first):
    layer = make_dataclass(
        "Lean", [("slant", int, -1), ("gap", float, 0.5)], bases=(Swish,), namespace={"name": "lean"}, frozen=True
    )
    tl.register(layer)
    for one in (layer(slant=first), layer(slant=first, gap=-2.0)):
        assert tl.Architecture.parse(str(one)).layers == (one,)
    del LAYERS["lean"]


@pytest.mark.parametrize("text", ["tanh(5)", "gelu(10)"])
def test_a_scale_too_steep_for_quadrature_is_told_apart_from_a_missing_dual(text):
    with pytest.raises(ArchitectureError, match="use a smaller scale"):
        tl.kernel(f"{text} globalpool")(images((6, 5, 2), 2))
