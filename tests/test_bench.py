"""The benchmark of GPUs, as far as it runs without one: PyTorch computes the same kernel; tables show the record."""

from __future__ import annotations

import functools
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import conformance
from conformance import CHAINS, GRAPHS, relative_error
from cuda_host.machine import COMPILER, emulate
from shell import run
from tangentless.backends.cpu import CpuBackend
from tangentless.backends.cuda import CudaBackend
from tangentless.bench import gpu, rival, shapes
from tangentless.bench.ceilings import Ceilings
from tangentless.bench.photographs import has_pieces
from tangentless.classical import ConvolutionalNTK
from tangentless.errors import InputError, ParameterError
from tangentless.kernel import kernel
from tangentless.terminal_tables import gpu_table, matrix_line

CASE = gpu.GpuCase(
    architecture="myrtle5",
    shape=(32, 32, 3),
    images="synthetic",
    path="cuda: fused",
    pairs=278_784,
    turns=5,
    pairs_per_second=500_000.0,
    best_pairs_per_second=510_000.0,
    elements_per_second=1.1e12,
    share_of_special_functions=0.28,
    issue_slots_per_element=28.2,
    preparation_microseconds=50.0,
    compared_pairs=225,
    error=3e-8,
    error_relative_to_distance=5e-6,
    not_finite=0,
    same_bits=True,
    rival_pairs_per_second=50_000.0,
    rival_difference=3e-7,
    rival_missing=None,
    seconds=9.0,
)


WRITTEN = [case for case in (*CHAINS, *GRAPHS) if not set(case[0].split()) & {"erf", "gelu", "tanh", "sin", "cos"}]


@pytest.mark.parametrize("case", WRITTEN, ids=conformance.name)
def test_the_rival_computes_the_kernel(case: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    # Compiling takes a minute and does not change the arithmetic.
    monkeypatch.setattr(torch, "compile", lambda layer, **options: layer)
    text, shape = case
    graph, X = kernel(text).graph(shape), conformance.images(shape, 7)
    assert rival.why_unsupported(graph) is None
    wanted = kernel(text)(X[:3], X[3:], backend="reference")
    for precision, bound in (("float64", 1e-10), ("float32", 1e-5)):
        contender = rival.Rival(graph, precision, device="cpu")
        contender.batch = 5  # pairs in a batch, so that there are several batches
        found = contender.block(contender.prepare(X[:3]), contender.prepare(X[3:]))
        assert relative_error(found, wanted) < bound


def test_the_rival_computes_gradients_of_what_pairs_give(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    monkeypatch.setattr(torch, "compile", lambda layer, **options: layer)
    graph = kernel("conv3 relu pool2 conv3 relu globalpool").graph((8, 8, 2))
    X, Z, G = (conformance.images(shape, 3, seed) for seed, shape in enumerate(((8, 8, 2), (8, 8, 2), (3,))))
    contender, backend = rival.Rival(graph, "float64", device="cpu"), CpuBackend("float64", 1)
    contender.batch = 16  # so that there are several batches
    found = contender.gradient(contender.prepare(X), contender.prepare(Z), np.array(G))
    sides = [backend.gradient(graph, some, parameters=True) for some in (X, Z)]  # by the general path
    backend.pullback(graph, *sides, np.array(G))
    for gradient, side in zip(found, sides, strict=True):
        assert relative_error(gradient.numpy(), side.totals["pixels",]) < 1e-10


def test_turns_of_the_rival_have_full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    monkeypatch.setattr(torch, "compile", lambda layer, **options: layer)
    k, X = kernel("myrtle5"), conformance.images((8, 8, 2), 12)
    contender = rival.Rival(k.graph((8, 8, 2)), "float64", device="cpu")
    turns = rival.RivalTurns(contender, X[:5], X[5:])
    assert turns.turn() > 0
    assert turns.values.shape == (4, 4)
    assert contender.batch == 16
    wanted = k(X[:5], X[5:], backend="reference")[turns.part]
    np.testing.assert_allclose(turns.values, wanted, rtol=1e-10)


def test_graphs_that_the_rival_cannot_run_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for text in ("conv3 gelu globalpool", "conv3 relu conv3 step globalpool"):
        assert "closed form" in (rival.why_no_rival(kernel(text).graph((8, 8, 1))) or "")
    assert "tangent" in (rival.why_no_rival(ConvolutionalNTK("myrtle5").graph((8, 8, 1))) or "")
    assert rival.why_no_rival(kernel("resnet14").graph((32, 32, 3))) is None


def test_without_pytorch_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rival, "torch", None)
    assert "pip install torch" in (rival.why_no_rival(kernel("myrtle5").graph((8, 8, 1))) or "")


def test_given_images_are_used_where_they_have_the_shape() -> None:
    graph = kernel("myrtle5").graph((16, 16, 1))
    grey = gpu.as_images(np.random.default_rng(0).integers(0, 255, (5, 16, 16), dtype=np.uint8))
    sources = {grey.shape[1:]: grey}
    assert gpu._images(graph, 4, sources)[1] == "given"
    shifted, origin = gpu._images(graph, 12, sources)
    assert origin == "given, with shifted copies"
    assert len(np.unique(shifted.reshape(12, -1), axis=0)) == 12
    assert len(gpu._images(graph, 12, sources, fewer=True)[0]) == 5
    assert gpu._images(graph, 12, {})[1] == "synthetic"
    assert "digits" in gpu._images(kernel("myrtle5").graph((8, 8, 1)), 12, {})[1]


@pytest.mark.parametrize("shape", [(1, 8, 8, 1), (4, 8), (2, 3, 4, 5, 6)])
def test_what_cannot_be_compared_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        gpu.as_images(np.ones(shape))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")
def test_turns_go_on_for_the_seconds_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(gpu, "SIDE", 3)
    # A clock on which all turns take the same time.
    monkeypatch.setattr(gpu, "gpu_seconds", lambda work: (work(), 0.0625)[1])
    few, many = (
        gpu._Bench(CudaBackend(), {}, Ceilings(1e12, 1e13), False, seconds, 2).measure(
            "conv3 relu globalpool", (4, 4, 1)
        )[0]
        for seconds in (1e-9, 0.5)
    )
    assert few.turns == gpu.FEWEST_TURNS
    assert many.turns == 8


def test_the_command_asks_for_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object, seconds: float, **options: object) -> None:
        raise InputError(f"turns for {seconds} s")  # instead of a measurement, which needs a GPU

    emulate(monkeypatch)
    monkeypatch.setattr(gpu, "bench_gpu", stop)
    result = run("bench", "myrtle5", "--backend", "cuda", "--seconds", 0.25)
    assert "turns for 0.25 s" in result.output


def test_the_table_shows_what_was_measured() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(gpu_table([CASE]))
    text = console.export_text()
    for shown in ("myrtle5", "32×32×3, synthetic", "500,000", "28 %", "50,000", "10.0", "3e-08", "yes"):
        assert shown in text
    assert gpu.summary(CASE) == "myrtle5 32×32×3: 500,000 pairs/s, 10.0 times PyTorch, error 3e-08 (9 s)"
    matrix = gpu.GpuMatrix("myrtle5", (32, 32, 3), "synthetic", 10_000, 100.0, 500_050.0, 0.97, True, 0)
    assert "97 % of the rate of a block" in matrix_line(matrix)


SMALL = (
    shapes.Shape("tuned", "conv3 relu globalpool normalize relu", (4, 4, 3), finite=True),
    shapes.Shape("conv5", "conv5 relu pool3(stride=2) conv3 relu globalpool normalize relu", (7, 6, 3)),
    shapes.Shape("too small", "pool4 conv3 relu globalpool", (6, 6, 3)),
    shapes.Shape("sequence, float64", "conv3 relu globalpool", (8, 4), precision="float64"),
    shapes.Shape("tangents", "conv3 relu globalpool", (4, 4, 12), precision="float64", tangent=True),
)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    if COMPILER is None:
        pytest.skip("no C++ compiler to build the kernels for the host")
    emulate(monkeypatch)
    monkeypatch.setattr(shapes, "gpu_environment", lambda: {"gpu": "the host", "date": "today"})
    monkeypatch.setattr(gpu, "gpu_seconds", lambda work: (work(), 0.5)[1])
    monkeypatch.setattr(shapes, "FINITE", 4)
    monkeypatch.setattr(shapes, "EXPECTED", {"float32": 1.0, "float64": 1.0})
    monkeypatch.setattr(shapes, "FEWEST", 3)


def test_shapes_are_measured_beside_the_first(emulated: None) -> None:
    photographs = np.random.default_rng(0).integers(0, 256, (2, 40, 50, 3), dtype=np.uint8)
    reports: list[shapes.ShapeRecord] = []
    record = shapes.bench_shapes(SMALL, (), photographs, rival=False, processes=0, report=reports.append)
    tuned, conv5, sequence, tangents = record.rows
    assert [len(report.rows) for report in reports] == [1, 2, 2, 3, 4, 4]
    assert list(record.left_out) == ["too small"]
    assert tuned.share == 1.0
    assert conv5.share == conv5.elements_per_second / tuned.elements_per_second
    assert tuned.finite_pairs == 16
    assert {row.not_finite for row in record.rows} == {0}
    assert all(row.same_bits for row in record.rows)
    assert max(tuned.error, conv5.error) < 3e-7
    assert max(sequence.error, tangents.error) < 1e-12
    assert "by offsets, float32" in conv5.path
    assert "tangents by offsets" in tangents.path
    assert {row.images for row in record.rows} == {"pieces of photographs, standardised"}
    assert json.loads(json.dumps(record.to_json()))["rows"][1]["ratio"] is None
    table = shapes.shapes_table([replace(conv5, rival_pairs_per_second=conv5.pairs_per_second / 4), tangents])
    assert "7×6×3, pieces of photographs" in table
    assert "| 4.0 |" in table
    assert "fused by offsets, float32 |" in table


def test_a_case_is_measured_and_leaves_pairs_for_the_reference(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SIDE", 3)
    bench = gpu._Bench(CudaBackend(gpus=gpu.GPUS), {}, Ceilings(1e12, 1e13), False, 1.0, 2)
    with bench.backend.machines[0].active():
        case, question = bench.measure("conv3 relu pool2 conv3 relu globalpool normalize relu", (8, 8, 1))
    assert (case.pairs, case.turns, case.pairs_per_second, case.compared_pairs) == (9, 3, 18.0, 9)
    assert case.images == "scikit-learn's digits"
    assert case.not_finite == 0
    assert case.same_bits
    assert case.error < 3e-7
    assert (case.ratio, case.rival_missing) == (None, "left out")
    assert [part.shape for part in question[1:]] == [(2, 8, 8, 1), (2, 8, 8, 1), (2, 2)]
    assert gpu._reference_error(*question) < 1e-12


def test_shapes_that_come_too_late_are_left_out(emulated: None) -> None:
    record = shapes.bench_shapes(SMALL[:2], seconds=-1.0, rival=False, processes=0)
    assert record.rows == ()
    assert list(record.left_out) == ["tuned", "conv5"]


def test_a_run_of_shapes_leaves_a_record(
    emulated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photographs = tmp_path / "photographs.npy"
    np.save(photographs, np.random.default_rng(0).integers(0, 256, (2, 40, 50, 3), dtype=np.uint8))
    monkeypatch.setattr(shapes, "STANDARD", SMALL)
    monkeypatch.setattr(shapes, "BASE", SMALL[0])
    monkeypatch.setattr(shapes, "MOST", 3)
    monkeypatch.setattr(shapes, "bench_shapes", functools.partial(shapes.bench_shapes, processes=0))
    arguments = [
        "shapes",
        "conv5",
        "--photographs",
        str(photographs),
        "--no-rival",
        "--output",
        str(tmp_path / "r.json"),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    shapes.main()
    record = json.loads((tmp_path / "r.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["tuned", "conv5"]
    assert "| conv5 | 7×6×3" in capsys.readouterr().out
    with pytest.raises(ParameterError, match="'conv5'"):
        shapes.run_shapes([], None, None, 1.0, False, ["conv6"])


def test_failures_ahead_of_time_are_reported_and_stop_nothing(
    emulated: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for shape in SMALL[1:3]:
        shapes.build_shape(shape, rival=False)
    assert capsys.readouterr().err.startswith("too small: compiling ahead failed: ArchitectureError: ")


def test_every_standard_shape_has_a_graph_and_real_images() -> None:
    for shape in shapes.STANDARD:
        assert shape.graph.elements > 0
        assert has_pieces(shape.shape)
    assert sum(shape.finite for shape in shapes.STANDARD) >= 5


def test_the_command_measures_shapes_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(sources: list, photographs: None, output: None, seconds: float, rival: bool, names: list) -> None:
        raise InputError(f"shapes {names} of {sources}, rival {rival}")  # in the place of a measurement

    emulate(monkeypatch)
    monkeypatch.setattr(shapes, "run_shapes", stop)
    arguments = ["bench", "conv5", "--shapes", "--images", "X.npy", "--no-rival"]
    result = run(*arguments, "--backend", "cuda")
    assert "shapes ['conv5'] of ['X.npy'], rival False" in result.output
    assert "--shapes need --backend cuda" in run("bench", "--shapes").output
