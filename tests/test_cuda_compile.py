"""Every kind of kernel compiles with NVRTC for every supported GPU, without spilling registers. Needs no GPU."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tangentless.architecture import Architecture
from tangentless.backends.cuda.compile import ADDED_BY_CUPY, OPTIONS, source, stage_options
from tangentless.backends.cuda.layout import FrontPlan, StagePlan
from tangentless.backends.cuda.node_back import BackKernels
from tangentless.backends.cuda.offset_writer import write_offsets
from tangentless.backends.cuda.offsets import plan_offsets
from tangentless.backends.cuda.plan import plan_graph
from tangentless.backends.cuda.pull_writer import write_pulling
from tangentless.backends.cuda.pulling import plan_pulling
from tangentless.bench import ceilings
from tangentless.classical import gpu
from tangentless.graph import compile_graph

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy, and NVRTC with it, is not installed")

RECORD = Path(__file__).parents[1] / "benchmarks" / "results" / "cuda_registers.json"
SHARED_KILOBYTES = {80: 163, 90: 227, 100: 227, 120: 99}  # most for a block, by compute capability
VARIANTS = [
    ("myrtle10-gaussian", (32, 32), 3),
    ("myrtle10", (32, 32), 3),
    ("myrtle7", (32, 32), 3),
    ("myrtle5", (32, 32), 3),
    ("myrtle10-gaussian", (28, 28), 1),
    ("myrtle10", (28, 28), 1),
    ("myrtle5", (28, 28), 1),
    ("conv3 gaussian conv3 gaussian pool2 conv3 relu globalpool normalize gaussian", (8, 8), 1),
    ("conv3 leakyrelu(0.2) conv3 pool2 conv3 polynomial3 pool2 conv3 gaussian(0.5) globalpool", (16, 12), 2),
    ("conv3 relu conv3 relu pool2 conv3 relu globalpool", (32, 32), 8),
    ("conv3 relu conv3 relu pool2 conv3 relu globalpool", (16, 16), 16),
    ("myrtle5", (32, 32), 48),
]
# Known spills in bytes a thread: two windows of 32 values exceed the registers by a little, three by more.
MOST_LOCAL_BYTES = {(32, 3): 160, (32, 2): 96}
ROUNDING_LOCAL_BYTES = 32
PULL_LOCAL_BYTES = 48  # where planes of images do not fit into shared memory
FLAT = "conv3 relu pool2 conv3 relu pool2 conv3 relu pool2 patch4"  # of the distillation


@dataclass(frozen=True)
class Build:
    """What the compiler reports for one kernel."""

    capability: int
    architecture: str
    stage: int
    registers: int
    local_bytes: int


def known_architectures() -> list[int]:
    try:
        supported = {int(a) for a in nvrtc.getSupportedArchs()}
    except (AttributeError, RuntimeError, OSError):
        return [80, 90]
    return [capability for capability in SHARED_KILOBYTES if capability in supported]


def compile_cubin(text: str, options: tuple[str, ...], capability: int) -> bytes:
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch=sm_{capability}", *ADDED_BY_CUPY, *options))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise AssertionError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory, the most of any kernel in a cubin, from its ELF sections.

    In `.nv.info`, attribute 0x2f04 is followed by a symbol and its registers, 0x1104 by a symbol and its stack frame.
    """
    registers = local = 0
    names = _sections(cubin)
    info = names[".nv.info"]
    at = 0
    while at + 4 <= len(info):
        code, size = int.from_bytes(info[at : at + 2], "little"), int.from_bytes(info[at + 2 : at + 4], "little")
        if code & 0xFF != 4:  # an attribute without payload
            at += 4
            continue
        value = int.from_bytes(info[at + 8 : at + 12], "little")
        if code == 0x2F04:
            registers = max(registers, value)
        elif code == 0x1104:
            local = max(local, value)
        at += 4 + size
    return registers, local


def _sections(elf: bytes) -> dict[str, bytes]:
    def number(at: int, size: int) -> int:
        return int.from_bytes(elf[at : at + size], "little")

    headers, size, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    table = [(number(h, 4), number(h + 24, 8), number(h + 32, 8)) for h in range(headers, headers + size * count, size)]
    text = elf[table[names][1] : table[names][1] + table[names][2]]
    return {text[n:].split(b"\0", 1)[0].decode(): elf[start : start + length] for n, start, length in table}


def allowed_local_bytes(plan: StagePlan) -> int:
    return MOST_LOCAL_BYTES.get((plan.block[0] * plan.block[1], plan.windows), ROUNDING_LOCAL_BYTES)


@pytest.mark.parametrize("capability", known_architectures())
@pytest.mark.parametrize(("architecture", "grid", "channels"), VARIANTS)
def test_stages_compile_within_their_registers(
    architecture: str, grid: tuple[int, int], channels: int, capability: int
) -> None:
    graph = compile_graph(Architecture.parse(architecture), grid, channels)
    plans = plan_graph(graph, 1024 * SHARED_KILOBYTES[capability])
    assert not isinstance(plans, str)
    for stage, plan in enumerate(plans, start=1):
        registers, local = resources(compile_cubin(source("stage.cu"), stage_options(plan), capability))
        _record(Build(capability, f"{architecture} {grid[0]}x{grid[1]}x{channels}", stage, registers, local))
        assert 0 < registers <= 255
        assert local <= allowed_local_bytes(plan), f"stage {stage} spills {local} bytes"


@pytest.mark.parametrize("capability", known_architectures())
@pytest.mark.parametrize("side", [16, 32])
def test_front_of_many_channels_compiles_within_its_registers(side: int, capability: int) -> None:
    graph = compile_graph(Architecture.parse("conv3 relu conv3 relu globalpool"), (side, side), 512)
    plans = plan_graph(graph, 1024 * SHARED_KILOBYTES[capability])
    assert not isinstance(plans, str)
    front = FrontPlan(plans[0])
    assert front.shared_bytes <= 1024 * SHARED_KILOBYTES[capability]
    _, local = resources(compile_cubin(source("front.cu"), stage_options(front), capability))
    assert local <= 64


@pytest.mark.parametrize("capability", known_architectures())
@pytest.mark.parametrize("text", ["resnet8", "conv3 abs conv3(stride=2) erf pool2 patch2 gelu globalpool"])
@pytest.mark.parametrize("tangent", [False, True])
def test_kernels_of_the_general_path_compile(text: str, tangent: bool, capability: int) -> None:
    graph = compile_graph(Architecture.parse(text), (16, 16), 3, tangent=tangent)
    assert compile_cubin(BackKernels.text(graph), OPTIONS, capability)


@pytest.mark.parametrize("capability", known_architectures())
@pytest.mark.parametrize(("text", "side"), [("resnet8", 32), ("conv7 gelu pool3(stride=2) conv3 relu globalpool", 64)])
@pytest.mark.parametrize(("precision", "tangent"), [("float32", False), ("float64", False), ("float64", True)])
def test_kernels_that_follow_offsets_compile(
    text: str, side: int, precision: str, tangent: bool, capability: int
) -> None:
    graph = compile_graph(Architecture.parse(text), (side, side), 3, tangent=tangent)
    plan = plan_offsets(graph, precision, 1024 * SHARED_KILOBYTES[capability])
    if isinstance(plan, str):
        assert "more than the" in plan
        return
    assert compile_cubin(write_offsets(plan)[0], OPTIONS, capability)


@pytest.mark.parametrize("capability", known_architectures())
@pytest.mark.parametrize(("text", "both"), [("myrtle5", True), ("myrtle5", False), (FLAT, False)])
def test_kernels_that_pull_gradients_compile_within_their_registers(text: str, both: bool, capability: int) -> None:
    graph = compile_graph(Architecture.parse(text), (32, 32), 3)
    plan = plan_pulling(graph, "float32", 1024 * SHARED_KILOBYTES[capability], both)
    assert not isinstance(plan, str)
    registers, local = resources(compile_cubin(write_pulling(plan)[0], OPTIONS, capability))
    assert 0 < registers <= 255
    assert local <= PULL_LOCAL_BYTES


@pytest.mark.parametrize("capability", known_architectures())
def test_kernels_of_vectors_compile(capability: int) -> None:
    assert compile_cubin(gpu.module_text(), OPTIONS, capability)


@pytest.mark.parametrize("capability", known_architectures())
def test_kernels_that_measure_ceilings_compile(capability: int) -> None:
    assert compile_cubin(ceilings.source(), ceilings.OPTIONS, capability)


def _record(build: Build) -> None:
    """Write the figures to the record, if the environment asks for one."""
    if "TANGENTLESS_RECORD" not in os.environ:
        return
    stored = json.loads(RECORD.read_text()) if RECORD.exists() else []
    kept = [b for b in stored if (b["capability"], b["architecture"], b["stage"]) != _key(build)]
    RECORD.parent.mkdir(exist_ok=True)
    ordered = sorted([*kept, asdict(build)], key=lambda b: (b["architecture"], b["stage"], b["capability"]))
    RECORD.write_text(json.dumps(ordered, indent=1) + "\n")


def _key(build: Build) -> tuple[int, str, int]:
    return build.capability, build.architecture, build.stage
