"""Gradients on a GPU, real or emulated, against the reference; their bits, memory and location."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tangentless as tl
from conformance import CHAINS, GRAPHS, graphs, hostile_images, images, name, partly_black
from cuda_host.arrays import DeviceArray
from cuda_host.machine import COMPILER, HostMachine, emulate
from tangentless.backends import cuda
from tangentless.backends.cuda import CudaBackend, gpu_present, pulled
from tangentless.backends.cuda.machine import CudaMachine
from tangentless.backends.cuda.plan import plan_graph
from tangentless.backends.cuda.pulled import PulledGradient, PullPath
from tangentless.classical import ConvolutionalNTK
from tangentless.devices import Device
from tangentless.errors import ArchitectureError
from test_gradients import COMPOSED, SMALL, as_tuple, louder, relative

BRANCHES = "conv3 residual(relu conv3) relu pool3(stride=2) gaussian globalpool normalize relu"


def use(machine, monkeypatch):
    """A CUDA backend on the real GPU, or on the emulated one."""
    if machine == "real":
        if not gpu_present():
            pytest.skip("no NVIDIA GPU, or no CuPy to use it")
    elif COMPILER is None:
        pytest.skip("no C++ compiler to build the kernels for the host")
    else:
        emulate(monkeypatch)
    return CudaBackend(gpus=(0,))


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.gpu)])
def backend(request, monkeypatch):
    return use(request.param, monkeypatch)


def check(kernel, X, Z, backend, bound=1e-9, **options):
    """Compare gradients of k(X, Z) and k(X, X), by pixels and by parameters, with those of the reference."""
    rng = np.random.default_rng(0)
    G, S = rng.standard_normal((len(X), len(Z))), rng.standard_normal((len(X), len(X)))
    found, expected = (
        (*kernel.vjp(X, Z, G, backend=one, **options), *as_tuple(kernel.vjp(X, None, S, backend=one, **options)))
        for one in (backend, "reference")
    )
    slopes, exact = ([one for one in some if isinstance(one, dict)] for some in (found, expected))
    arrays, exact_arrays = ([one for one in some if not isinstance(one, dict)] for some in (found, expected))
    assert relative(arrays, exact_arrays) < bound
    for some, others in zip(slopes, exact, strict=True):
        assert some == pytest.approx(others, rel=1e-8, abs=1e-9)


# Slow: three nonlinearities need tables of slopes by their parameters.
TABLES = pytest.param(GRAPHS[-2], marks=pytest.mark.slow)


@pytest.mark.parametrize("case", [*CHAINS[::4], *GRAPHS[:-2], GRAPHS[-1], TABLES], ids=name)
def test_gradients_of_every_graph_agree_with_the_reference(backend, case):
    text, shape = case
    check(tl.kernel(text), partly_black(images(shape, 3)), images(shape, 2, seed=1), backend, parameters=True)


def test_gradients_by_parameters_that_change_norms_agree_with_the_reference(backend):
    X, Z = images((4, 4, 2), 3), images((4, 4, 2), 2, seed=1)
    check(louder(0.8, 1.3, 2.1), X, Z, backend, 1e-6, parameters=True)


@pytest.mark.parametrize("case", [CHAINS[7], *GRAPHS[1::7], GRAPHS[-1]], ids=name)
def test_gradients_of_tangent_kernels_agree_with_the_reference(backend, case):
    text, shape = case
    check(ConvolutionalNTK(text), partly_black(images(shape, 3)), images(shape, 2, seed=1), backend)


@pytest.mark.parametrize("kernel", COMPOSED[:4], ids=repr)
def test_gradients_of_composed_kernels_agree_with_the_reference(backend, kernel):
    check(kernel, images((4, 4, 2), 3), images((4, 4, 2), 2, seed=1), backend, 1e-6, parameters=True)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CHAINS, *GRAPHS], ids=name)
@pytest.mark.parametrize(("precision", "bound"), [("float64", 1e-9), ("float32", 1e-4)])
def test_gradients_in_either_precision_agree_with_the_reference(case, precision, bound, monkeypatch):
    use("real", monkeypatch)
    text, shape = case
    backend = CudaBackend(precision, gpus=(0,))
    check(tl.kernel(text), partly_black(images(shape, 3)), images(shape, 2, seed=1), backend, bound)


FLAT = ("conv3 relu pool2 conv3 gaussian patch4 relu", (8, 8, 2))
WIDE = ("conv3 relu pool2 conv3 relu globalpool relu", (4, 36, 5))  # more columns than a warp has threads


@pytest.mark.parametrize("case", [CHAINS[0], CHAINS[6], CHAINS[8], CHAINS[10], FLAT, WIDE], ids=name)
@pytest.mark.parametrize(("precision", "bound"), [("float64", 1e-11), ("float32", 1e-4)])
def test_fused_gradients_of_chains_agree_with_the_reference(case, precision, bound, monkeypatch):
    use("emulated", monkeypatch)
    (text, shape), backend = case, CudaBackend(precision, gpus=(0,))
    kernel, X, Z = tl.kernel(text), partly_black(images(shape, 4)), images(shape, 3, seed=1)
    assert isinstance(backend.gradient(kernel.graph(shape), X), PulledGradient)
    check(kernel, X, Z, backend, bound)
    G = np.random.default_rng(0).standard_normal((4, 3))
    expected = kernel.vjp(X, Z, G, backend="reference")
    one = [kernel.vjp(X, Z, G, backend=backend, wrt=side)[number] for number, side in enumerate("XZ")]
    assert relative(one, expected) < bound


@pytest.mark.parametrize("weight", [2.0**200, 2.0**-200])
def test_sizes_of_cotangents_change_no_bit_of_fused_gradients(weight, monkeypatch):
    backend = use("emulated", monkeypatch)
    kernel, X, G = tl.kernel("conv3 relu pool2 conv3 relu globalpool"), images((4, 4, 2), 3), np.ones((3, 3))
    assert isinstance(backend.gradient(kernel.graph((4, 4, 2)), X), PulledGradient)
    for Z in (None, images((4, 4, 2), 3, seed=1)):
        found, expected = (as_tuple(kernel.vjp(X, Z, G * scale, backend=backend)) for scale in (weight, 1.0))
        for some, one in zip(found, expected, strict=True):
            assert np.array_equal(some / weight, one)


def test_fused_gradients_of_channels_that_the_first_stage_does_not_multiply(monkeypatch):
    backend, shape = use("emulated", monkeypatch), (6, 18, 320)
    kernel = tl.kernel("conv3 relu conv3 relu pool2 conv3 relu globalpool")
    assert plan_graph(kernel.graph(shape), HostMachine.shared_limit)[0].given
    assert isinstance(backend.gradient(kernel.graph(shape), images(shape, 1)), PulledGradient)
    check(kernel, images(shape, 3), images(shape, 2, seed=1), backend, 1e-4)


def test_sides_are_pulled_one_after_the_other_where_both_do_not_fit(monkeypatch):
    use("emulated", monkeypatch)
    plan = cuda.plan_pulling
    monkeypatch.setattr(cuda, "plan_pulling", lambda *given: "it is too large" if given[-1] else plan(*given))
    check(tl.kernel(SMALL), images((4, 4, 2), 3), images((4, 4, 2), 2, seed=1), CudaBackend(gpus=(0,)), 1e-4)


def test_fused_gradients_with_all_threads_of_a_block(monkeypatch):
    use("emulated", monkeypatch)
    shape = (8, 16, 1)  # the smallest whose teams take turns
    kernel, X, Z = tl.kernel(SMALL), images(shape, 3), images(shape, 2, seed=1)
    G, backend = np.random.default_rng(0).standard_normal((3, 2)), CudaBackend(gpus=(0,))
    in_step = kernel.vjp(X, Z, G, backend=backend)
    monkeypatch.setattr(HostMachine, "all_threads", True)
    for found, expected in zip(kernel.vjp(X, Z, G, backend=CudaBackend(gpus=(0,))), in_step, strict=True):
        assert np.array_equal(found, expected)


# Mistakes put into the turns of teams: (right text in the source, wrong text in its place).
MISTAKES = {
    "teams do not wait": "seen > round) return;=>true) return;",
    "the first team is a round too far ahead": "AHEAD + 1;=>AHEAD + 2;",
    "a round counts as finished a round too early": "finished[team] = round + 1=>finished[team] = round + 2",
    "a team finishes before all its threads have": "sync_warp();\n        order_memory();=>order_memory();",
}


@pytest.mark.slow  # each case compiles everything anew, with ThreadSanitizer
@pytest.mark.parametrize(
    ("text", "shape", "sides", "mistake"),
    [
        ("conv3 relu pool2 conv3 relu globalpool", "16,16,1", "XZ", None),
        ("conv3 relu pool2 conv3 relu globalpool", "16,16,1", "Z", None),
        ("conv3 relu pool2 conv3 relu pool2 patch4", "16,16,3", "Z", None),
        ("conv3 relu conv3 gaussian conv3 relu pool2 conv3 relu globalpool", "14,22,2", "XZ", None),
        ("conv5 relu conv3 pool3 relu globalpool", "15,12,5", "XZ", None),
        ("myrtle10", "16,16,2", "XZ", None),
        *(("conv3 relu pool2 conv3 relu globalpool", "16,16,1", "XZ", name) for name in MISTAKES),
    ],
)
def test_teams_do_not_race(text, shape, sides, mistake):
    library = sanitizer()
    if library is None:
        pytest.skip("no ThreadSanitizer for the C++ compiler")
    program = Path(__file__).parent / "cuda_host" / "races.py"
    mistakes = [] if mistake is None else [MISTAKES[mistake]]
    # The sanitizer needs addresses that are not randomised. It also complains of libraries that it does not know.
    run = ["setarch", "-R", sys.executable, str(program), text, shape, sides, *mistakes]
    variables = {**os.environ, "LD_PRELOAD": library, "TSAN_OPTIONS": "exitcode=0 report_signal_unsafe=0"}
    done = subprocess.run(run, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
    races = re.findall(r"^SUMMARY: ThreadSanitizer: data race .*library\.cpp.*", done.stderr, re.MULTILINE)
    assert bool(races) == (mistake is not None), races


def sanitizer():
    """The library of ThreadSanitizer, if the compiler has it."""
    if COMPILER is None or shutil.which("setarch") is None:
        return None
    asked = subprocess.run([COMPILER, "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    path = Path(asked.stdout.strip())
    return str(path) if path.is_absolute() and path.exists() else None


@pytest.mark.parametrize("kernel", [tl.kernel("conv3 relu globalpool gaussian"), tl.kernel(SMALL).mirrored()], ids=repr)
def test_bits_of_fused_gradients_do_not_depend_on_tiles_and_batches(backend, kernel, monkeypatch):
    X, Z = images((8, 8, 2), 13), images((8, 8, 2), 7, seed=1)
    rng = np.random.default_rng(0)
    G, S = rng.standard_normal((13, 7)), rng.standard_normal((13, 13))

    def gradients():
        return [*kernel.vjp(X, Z, G, backend=backend), kernel.vjp(X, None, S, backend=backend)]

    expected = gradients()
    monkeypatch.setattr(cuda, "TILE", 4)
    monkeypatch.setattr(pulled, "_SCRATCH", 1)
    for found, one in zip(gradients(), expected, strict=True):
        assert np.array_equal(found, one)


@settings(max_examples=3)
@given(graphs(), st.integers(0, 99))
def test_gradients_of_random_graphs_agree_with_the_reference(graph, seed):
    text, shape = graph
    with pytest.MonkeyPatch.context() as monkeypatch:
        backend = use("emulated", monkeypatch)
        check(tl.kernel(text), images(shape, 2, seed), images(shape, 1, seed + 1), backend, parameters=True)


@pytest.mark.parametrize("kernel", [tl.kernel("myrtle5").mirrored(), ConvolutionalNTK(BRANCHES)], ids=repr)
def test_hostile_images_have_finite_gradients(backend, kernel):
    X = hostile_images()
    G = np.random.default_rng(0).standard_normal((len(X), len(X)))
    gradient = kernel.vjp(X, None, G, backend=backend)
    assert np.isfinite(gradient).all()
    assert not gradient[8].any()  # a black image: where a nonlinearity has no derivative, zero is taken


def test_duplicates_have_the_gradient_that_an_image_has_with_itself(backend):
    X, one = images((6, 6, 2), 1), np.ones((1, 1))
    kernel = tl.kernel("conv3 relu pool2 residual(conv3 relu) globalpool")
    left, right, _ = kernel.vjp(X, X, one, backend=backend, parameters=True)
    alone, _ = kernel.vjp(X, None, one, backend=backend, parameters=True)
    # Near c = 1, f' has a square root of 1 - c, so rounding leaves half of the digits.
    np.testing.assert_allclose(left + right, alone, rtol=1e-6)


@pytest.mark.parametrize("kernel", [tl.kernel(BRANCHES), ConvolutionalNTK(SMALL)], ids=repr)
def test_bits_do_not_depend_on_tiles_and_batches(backend, kernel, monkeypatch):
    X, Z = images((8, 8, 2), 9), images((8, 8, 2), 7, seed=1)
    rng = np.random.default_rng(0)
    G, S = rng.standard_normal((9, 7)), rng.standard_normal((9, 9))
    options = {"backend": backend, "parameters": not isinstance(kernel, ConvolutionalNTK)}

    def gradients():
        return [*kernel.vjp(X, Z, G, **options), *as_tuple(kernel.vjp(X, None, S, **options))]

    expected = gradients()
    monkeypatch.setattr(cuda, "TILE", 4)
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 3)
    for found, one in zip(gradients(), expected, strict=True):
        assert np.array_equal(found, one)


def test_smaller_batches_follow_when_memory_runs_out(backend, monkeypatch):
    X, kernel, G = images((8, 8, 2), 5), tl.kernel(BRANCHES), np.random.default_rng(0).standard_normal((5, 5))
    expected = kernel.vjp(X, None, G, backend=backend, parameters=True)
    batches, pull = [], cuda.pull_general

    def short_of_memory(left, right, cotangent, *, advance, batch, **options):
        batches.append(batch)

        def count(pairs):
            advance(pairs)
            if len(batches) == 1:
                raise MemoryError  # the memory runs out after the first batch

        pull(left, right, cotangent, advance=count, batch=min(batch, 3), **options)

    monkeypatch.setattr(cuda, "pull_general", short_of_memory)
    monkeypatch.setattr(type(backend.machines[0]), "is_out_of_memory", lambda self, e: isinstance(e, MemoryError))
    found = kernel.vjp(X, None, G, backend=backend, parameters=True)
    assert batches[1] < batches[0]
    assert np.array_equal(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize("failing", ["segment_1", "pull_0"])
def test_smaller_batches_follow_when_memory_runs_out_in_a_fused_gradient(backend, failing, monkeypatch):
    X, Z, kernel = images((8, 8, 2), 9), images((8, 8, 2), 7, seed=1), tl.kernel(SMALL)
    G = np.random.default_rng(0).standard_normal((9, 7))
    monkeypatch.setattr(cuda, "LARGEST_BATCH", 24)
    expected = kernel.vjp(X, Z, G, backend=backend)
    monkeypatch.setattr(type(backend.machines[0]), "is_out_of_memory", lambda self, e: isinstance(e, MemoryError))
    batches, pull, calls = [], PullPath.pull, []

    def counted(path, left, right, cotangent, batch, done, advance):
        batches.append((batch, done))
        for owner in {path.forward, path}:
            if not hasattr(owner, "whole"):
                owner.whole, owner.launch = owner.launch, functools.partial(launched, owner.launch)
        pull(path, left, right, cotangent, batch, done, advance)

    def launched(launch, name, *arguments):
        calls.append(name)
        if name == failing and calls.count(failing) == 3:
            raise MemoryError  # the memory runs out in the third batch
        launch(name, *arguments)

    monkeypatch.setattr(PullPath, "pull", counted)
    found = kernel.vjp(X, Z, G, backend=backend)
    assert batches == [(24, 0), (12, 4)]
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_values_that_come_with_gradients_agree_with_those_alone(backend, monkeypatch):
    Z = images((8, 8, 2), 9)
    X, G = Z[:5], np.random.default_rng(0).standard_normal((5, 9))
    for text in (SMALL, "conv3 relu pool2 conv3 relu patch4 relu"):
        kernel, device = tl.kernel(text), Device.of(backend)
        values, pull = kernel.values_and_pull(device, Z, len(X))
        assert relative([values], [kernel(X, Z, backend="reference")]) < 1e-5
        assert np.array_equal(pull(G), kernel.vjp(X, Z, G, backend=backend, wrt="X")[0])
        with monkeypatch.context() as patch:
            patch.setattr(cuda, "LARGEST_BATCH", 3)
            patch.setattr(cuda, "TILE", 4)
            again, pull = kernel.values_and_pull(device, Z, len(X))
            assert np.array_equal(again, values)
        np.testing.assert_allclose(np.diagonal(values), kernel.diag(X, backend="reference"), rtol=1e-6)


def test_progress_counts_every_pair_once(backend):
    X, counted = images((8, 8, 2), 5), []
    tl.kernel(BRANCHES).vjp(
        X, None, np.eye(5) + 1.0, backend=backend, parameters=True, progress=lambda *some: counted.append(some)
    )
    assert counted[-1] == (10, 10)


@pytest.mark.parametrize("kernel", [tl.kernel(BRANCHES), tl.kernel(SMALL).mirrored() * tl.kernel(BRANCHES)], ids=repr)
@pytest.mark.parametrize("parameters", [True, False])
def test_gradients_of_arrays_on_the_device_stay_there(kernel, parameters, fake_cupy, monkeypatch):
    backend = use("emulated", monkeypatch)
    X, Z, G = images((8, 8, 2), 3), images((8, 8, 2), 2, seed=1), np.random.default_rng(0).standard_normal((3, 2))
    expected = kernel.vjp(X, Z, G, backend=backend, parameters=parameters)
    monkeypatch.delattr(HostMachine, "download")
    fake_cupy.downloads.clear()
    found = kernel.vjp(*(fake_cupy.asarray(one) for one in (X, Z, G)), backend=backend, parameters=parameters)
    assert not fake_cupy.downloads
    for some, others in zip(found[:2], expected[:2], strict=True):
        assert isinstance(some, DeviceArray)
        assert np.array_equal(some.view(np.ndarray), others)
    assert found[2:] == expected[2:]


@pytest.mark.gpu
@pytest.mark.parametrize("text", [SMALL, BRANCHES])
def test_tensors_on_the_gpu_take_part_in_automatic_differentiation_there(text, monkeypatch):
    torch = pytest.importorskip("torch")
    use("real", monkeypatch)
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    kernel, (left, right) = tl.kernel(text), (images((8, 8, 2), 3), images((8, 8, 2), 2, seed=1))
    expected = kernel.vjp(left, right, np.ones((3, 2)), backend="cuda", precision="float64")
    X, Z = (torch.tensor(one, device="cuda", requires_grad=True) for one in (left, right))
    monkeypatch.delattr(CudaMachine, "download")
    kernel(X, Z, backend="cuda", precision="float64").sum().backward()
    for tensor, one in zip((X, Z), expected, strict=True):
        assert tensor.grad.is_cuda
        np.testing.assert_allclose(tensor.grad.cpu().numpy(), one, rtol=0, atol=1e-12 * np.abs(one).max())
    small = [tensor.detach()[:2].requires_grad_() for tensor in (X, Z)]
    assert torch.autograd.gradcheck(lambda x, z: kernel(x, z, backend="cuda", precision="float64"), small)


def test_kernels_without_a_gradient_say_so(backend):
    with pytest.raises(ArchitectureError, match="step has no tangent kernel and no gradient"):
        tl.kernel("conv3 step globalpool").vjp(images((4, 4, 2), 3), None, np.ones((3, 3)), backend=backend)
