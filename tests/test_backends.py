"""Conformance: every backend agrees with the reference, and the reference with neural-tangents."""

import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tangentless as tl
from conformance import CHAINS, GRAPHS, hostile_images, images, name, relative_error, slow_where
from conftest import frozen
from nonlinearities import Sine, Step
from tangentless.backends import get_backend
from tangentless.backends.cpu import CpuBackend
from tangentless.backends.cpu.plan import Fused, fuse
from tangentless.backends.cpu.simd import host_features
from tangentless.backends.workers import run_parallel
from tangentless.errors import BackendError, ParameterError
from tangentless.graph import compile_graph

GOLDENS = Path(__file__).parent / "goldens" / "neural_tangents.npz"
# Cases that compile code of their own, for seconds in each precision. In float32 all but the first are run.
OWN_CODE = (
    "resnet14-gaussian",
    "normalize conv3 gaussian(0.2)",
    "patch2 relu residual",
    "residual(conv3",
    "conv3 relu residual",
    "conv3 sum(relu conv3 | conv5)",
)


@pytest.mark.parametrize("case", json.loads(str(np.load(GOLDENS)["cases"])), ids=lambda case: case["name"])
def test_reference_agrees_with_neural_tangents(case):
    goldens = np.load(GOLDENS)
    kernel = tl.kernel(case["architecture"])
    values = kernel(goldens[f"inputs/{case['inputs']}"], backend="reference")
    np.testing.assert_allclose(values, goldens[f"kernel/{case['name']}"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", slow_where([*CHAINS, *GRAPHS], *OWN_CODE), ids=name)
def test_float64_agrees_with_the_reference_to_rounding(case):
    text, shape = case
    X, Z = images(shape), images(shape, 3, seed=1)
    kernel = tl.kernel(text)
    for arguments in [(X,), (X, Z)]:
        values = kernel(*arguments, backend="cpu", precision="float64")
        assert relative_error(values, kernel(*arguments, backend="reference")) < 1e-13


@pytest.mark.parametrize("case", slow_where([*CHAINS, *GRAPHS], "resnet14-gaussian"), ids=name)
def test_float32_agrees_with_the_reference(case):
    text, shape = case
    # Small grids average out little of the rounding, so the bound is wide; on real images it is 1e-7 (see below).
    X, Z = images(shape), images(shape, 19, seed=1)
    kernel = tl.kernel(text)
    assert relative_error(kernel(X, Z), kernel(X, Z, backend="reference")) < 4e-7


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_architecture_of_windows_agrees_with_the_reference(data):
    height, width = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    # Always the same first layers, so that one compiled variant serves all.
    grid, layers = (height, width), ["conv3", "conv1"]
    while max(grid) > 1 and len(layers) < 9:
        pools = [f"pool{p}" for p in range(2, min(grid) + 1) if all(n % p == 0 for n in grid)]
        layer = data.draw(st.sampled_from(["conv1", "conv3", "conv3", "conv5", "relu", "relu", *pools]))
        layers.append(layer)
        if layer.startswith("pool"):
            grid = tuple(n // int(layer[4:]) for n in grid)
    kernel = tl.kernel(" ".join(["conv3 relu", *layers, "relu globalpool normalize relu"]))
    X = images((height, width, data.draw(st.integers(1, 4))), 3, seed=data.draw(st.integers(0, 99)))
    assert relative_error(kernel(X, precision="float64"), kernel(X, backend="reference")) < 1e-12


AVX512 = "+avx,+avx2,+fma,+avx512f,+avx512vl,+avx512dq,+avx512bw"


# Each case compiles everything anew. `make test-processors` runs all tests with each of these instruction sets.
@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("x86-64", "+sse2"),
        pytest.param("x86-64", "+avx,+avx2,+fma", marks=pytest.mark.slow),
        pytest.param("skylake-avx512", AVX512, marks=pytest.mark.slow),  # square roots by Newton's method
        pytest.param("znver4", AVX512, marks=pytest.mark.slow),  # square roots by an instruction
    ],
)
def test_other_processors_compute_the_same(name, features, tmp_path):
    if not {feature[1:] for feature in features.split(",")} <= host_features():
        pytest.skip("this processor cannot run their instructions")
    script = (
        "import numpy as np, tangentless as tl\n"
        "X = np.random.default_rng(0).standard_normal((3, 8, 8, 3))\n"
        "k = tl.kernel('myrtle5')\n"
        "print(np.abs(k(X) - k(X, backend='reference')).max())\n"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1e-7


@pytest.mark.parametrize("layer", [Step(), Sine()], ids=["general path", "fitted series"])
def test_a_users_nonlinearity_runs_on_every_path(layer):
    kernel = tl.kernel([tl.Conv(3), layer, tl.Pool(2), tl.Conv(3), layer, tl.GlobalPool()])
    X, Z = images((6, 6, 2)), images((6, 6, 2), 3, seed=1)
    fused = fuse(kernel.graph((6, 6, 2)), "float32", 16)
    assert isinstance(fused, Fused) == isinstance(layer, Sine)
    for arguments in [(X,), (X, Z)]:
        error = relative_error(kernel(*arguments), kernel(*arguments, backend="reference"))
        # The step's dual takes a square root near 0, which amplifies rounding errors.
        assert error < (4e-7 if isinstance(layer, Sine) else 1e-7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv3 polynomial40 globalpool", "polynomial40"),
        ("conv3 " * 30 + "relu globalpool", "more windows than float32"),
    ],
)
def test_graphs_that_cannot_be_fused_say_why_and_are_right(text, reason):
    X = images((4, 4, 1), 3)
    kernel = tl.kernel(text)
    assert reason in get_backend("cpu").describe(kernel.graph((4, 4, 1)))
    assert relative_error(kernel(X), kernel(X, backend="reference")) < 1e-12


@pytest.mark.parametrize("layer", ["gaussian(100)", "polynomial20"])
def test_steep_embeddings_run_in_float64_by_themselves(layer):
    X = images((4, 4, 2), 3)
    kernel = tl.kernel(f"conv3 {layer} globalpool")
    assert "fused, float64" in get_backend("cpu").describe(kernel.graph((4, 4, 2)))
    assert relative_error(kernel(X), kernel(X, backend="reference")) < 1e-12


@pytest.mark.parametrize(("layers", "error"), [((2, 2), 4e-7), ((5, 4), 3e-6)])
def test_steep_layers_in_a_row_lose_the_digits_that_the_documentation_says(layers, error):
    first, second = ("conv3 gaussian(2) " * count for count in layers)
    kernel = tl.kernel(f"{first} pool2 {second} globalpool")
    X = np.random.default_rng(0).standard_normal((6, 16, 16, 3))
    X[0] = np.abs(X[0])
    X[1, :9] = 0.0
    X[2] = X[0] + 1e-4 * X[2]
    X[4] = X[3] + 0.1 * X[4]
    X[5] = 1.0
    exact = kernel(X, backend="reference")
    assert relative_error(kernel(X, backend="cpu"), exact) < 1.2 * error
    assert relative_error(kernel(X, backend="cpu", precision="float64"), exact) < 1e-11


@pytest.mark.parametrize(
    "text", ["globalpool", "normalize globalpool normalize", "pool2 conv3 relu globalpool normalize"]
)
def test_pools_whose_terms_cancel_keep_their_digits(text):
    X = images((6, 6, 2), 4) - images((6, 6, 2), 4).mean(axis=(1, 2), keepdims=True)
    # The mean is a thousandth of the pixels, so that pools cancel.
    X = X + 1e-3 * images((2,), 4, seed=1)[:, None, None]
    kernel = tl.kernel(text)
    assert "fused, float64" in get_backend("cpu").describe(kernel.graph((6, 6, 2)))
    assert relative_error(kernel(X), kernel(X, backend="reference")) < 1e-9


@pytest.mark.parametrize("text", ["myrtle5", "myrtle10", "myrtle10-gaussian"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_hostile_images_are_computed_exactly(text, precision):
    X = hostile_images()
    kernel = tl.kernel(text)
    reference = kernel(X, backend="reference")
    values = kernel(X, precision=precision)
    assert np.isfinite(values).all()
    assert np.isfinite(kernel(X, X, precision=precision)).all()
    bound = 4e-7 if precision == "float32" else 1e-12
    assert np.abs(values - reference).max() < bound
    expected = np.ones(len(X))
    expected[8] = 0.0  # a black image has no features
    np.testing.assert_array_equal(np.diagonal(values), expected)
    np.testing.assert_allclose(np.diagonal(kernel(X, X, precision=precision)), expected, atol=1e-7)


@pytest.mark.parametrize("text", ["myrtle5", "myrtle10", "myrtle10-gaussian"])
def test_real_images_are_computed_to_eight_digits(text, data_folder):
    X = whitened_cifar10(data_folder)
    kernel = tl.kernel(text)
    values, reference = kernel(X), kernel(X, backend="reference")
    error = np.abs(values - reference)
    different = ~np.eye(len(X), dtype=bool)
    assert error.max() < 1e-7
    assert (error[different] / (1 - reference[different])).max() < 1e-4


def whitened_cifar10(folder, count=7):
    raw = np.fromfile(folder / "cifar-10-batches-bin" / "data_batch_1.bin", np.uint8, 1000 * 3073).reshape(-1, 3073)
    flat = raw[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1).reshape(-1, 3072) / 255.0
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(flat.T @ flat / len(flat))
    white = flat[:count] @ (vectors / np.sqrt(values + 1e-5)) @ vectors.T
    return frozen(white.reshape(-1, 32, 32, 3))


def test_entries_do_not_depend_on_tiles_threads_or_neighbours():
    X = images((8, 8, 3), 45)
    kernel = tl.kernel("myrtle5")
    backend = CpuBackend(n_jobs=2)
    prepared = kernel.prepare(backend, X)
    whole = kernel.block(backend, prepared, prepared)
    part = kernel.block(CpuBackend(n_jobs=1), prepared[7:30], prepared[21:])
    np.testing.assert_array_equal(part, whole[7:30, 21:])
    alone = kernel.prepare(backend, X[7:8])
    np.testing.assert_array_equal(kernel.block(backend, alone, prepared[21:]), whole[7:8, 21:])
    upper = kernel.block(backend, prepared, prepared, upper=True)
    np.testing.assert_array_equal(np.triu(upper), np.triu(whole))


def test_progress_counts_every_pair_once():
    X = images((8, 8, 1), 37)
    seen = []
    tl.kernel("myrtle5")(X, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (37 * 38 // 2, 37 * 38 // 2)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_an_interrupt_ends_all_threads():
    X = images((16, 16, 3), 200)
    reports = []

    def interrupt(done, total):
        reports.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tl.kernel("myrtle5")(X, progress=interrupt)
    assert len(reports) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tangentless-")]


def test_an_interrupt_starts_no_other_task():
    def interrupt(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel(itertools.count(), lambda task, room: 1, lambda: None, 3, interrupt)  # tasks never run out


def test_describe_says_which_path_runs():
    graph = compile_graph(tl.Architecture.parse("myrtle5"), (32, 32), 3)
    assert "fused" in get_backend("auto").describe(graph)
    assert "reference" in get_backend("reference").describe(graph)


def test_unknown_backends_and_precisions_are_refused():
    with pytest.raises(BackendError, match="there are auto, reference, cpu, cuda"):
        tl.kernel("relu")(np.ones((2, 3)), backend="tpu")
    with pytest.raises(BackendError, match="or a backend object, not 3"):
        tl.kernel("relu")(np.ones((2, 3)), backend=3)
    with pytest.raises(ParameterError, match="float16"):
        tl.kernel("relu")(np.ones((2, 3)), precision="float16")
    with pytest.raises(ParameterError, match="n_jobs"):
        tl.kernel("relu")(np.ones((2, 3)), n_jobs=0)
