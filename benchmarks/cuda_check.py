"""Check and time the CUDA backend on one GPU, in one run of a few minutes.

For every case: the kernels build, 225 random pairs agree with float64, results have the same bits for other batch sizes
and tiles, no entry is NaN, and the rate in pairs per second, whole, by stage and as a share of the special-function and
issue ceilings, which are measured first. PyTorch compiled layer by layer runs beside it as the rival. The images come
from a file of whitened CIFAR-10 and MNIST images (arrays `cifar` and `mnist`) and from scikit-learn's digits; the
10,000 images of the symmetric matrix are these, shifted.

    python benchmarks/cuda_check.py data/cuda_check.npz OUTPUT_FOLDER [--quick]
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from sklearn.datasets import load_digits

from tangentless.architecture import Architecture
from tangentless.backends import cuda
from tangentless.backends.cuda import CudaBackend, plan
from tangentless.backends.cuda.fused import ROUNDS, FusedPath, batch_units, column_heights
from tangentless.backends.reference import ReferenceBackend
from tangentless.kernel import kernel
from tangentless.program import Program, compile_program

SIDE = 528  # 278,784 pairs of distinct images
SMALL = "conv3 gaussian conv3 gaussian conv3 gaussian pool2 conv3 gaussian conv3 gaussian globalpool normalize gaussian"
CASES = [
    ("myrtle10-gaussian", "cifar"),
    ("myrtle10", "cifar"),
    ("myrtle7", "cifar"),
    ("myrtle5", "cifar"),
    ("myrtle10-gaussian", "mnist"),
    ("myrtle5", "mnist"),
    (SMALL, "digits"),
]

CEILINGS = r"""
extern "C" __global__ void special(float* output, int rounds) {
    float a[16];
    for (int i = 0; i < 16; i++) a[i] = -0.01f * (threadIdx.x + i);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 16; i++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(a[i]));
    for (int i = 1; i < 16; i++) a[0] += a[i];
    output[blockIdx.x * blockDim.x + threadIdx.x] = a[0];
}
extern "C" __global__ void issued(float* output, int rounds) {
    float a[16];
    for (int i = 0; i < 16; i++) a[i] = 0.01f * (threadIdx.x + i);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 16; i++) asm volatile("fma.rn.f32 %0, %0, 0f3F000000, 0f3F000000;" : "+f"(a[i]));
    for (int i = 1; i < 16; i++) a[0] += a[i];
    output[blockIdx.x * blockDim.x + threadIdx.x] = a[0];
}
"""


def load_images(path: Path) -> dict[str, np.ndarray]:
    stored = np.load(path)
    digits = load_digits().images[..., None]
    return {"cifar": stored["cifar"], "mnist": stored["mnist"][..., None] / 255.0, "digits": digits}


def leave_out_tensor_cores() -> None:
    """Make first layers run without them, to see what they are worth."""
    plan._patch_steps = lambda *_: 0


def measure_ceilings() -> dict[str, float]:
    """Special functions and float32 instructions per second of all threads, in kernels that do nothing else."""
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    blocks, threads, rounds = 4 * properties["multiProcessorCount"], 512, 20000
    output = cupy.zeros(blocks * threads, dtype=cupy.float32)
    rates = {}
    for name, kernel_function in (("special_functions", "special"), ("issued_instructions", "issued")):
        function = cupy.RawModule(code=CEILINGS, options=("-std=c++17",)).get_function(kernel_function)
        work = functools.partial(function, (blocks,), (threads,), (output, np.int32(rounds)))
        work()
        rates[name] = 16.0 * rounds * len(output) / min(seconds(work, 3))
    return rates


def seconds(work: Any, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return times


def stage_times(path: FusedPath, left: Any, right: Any, pairs: int) -> list[float]:
    """Microseconds per pair in each stage, one launch of each over a full batch."""
    batch = min(pairs, 32768)
    columns = max(1, batch // len(left))
    right = right[0:columns]
    batch = len(left) * columns
    totals = cupy.zeros((len(left), columns))
    heights = column_heights(len(left), columns)
    source, times = left.left[0], []
    for stage, stage_plan in enumerate(path.plans):
        units = cupy.asarray(batch_units(heights, 0, batch, ROUNDS * stage_plan.slots))
        output = totals if stage_plan.last else cupy.empty((batch, stage_plan.output_floats), dtype=cupy.float32)
        x, z = left.left[stage], right.right[stage]

        work = functools.partial(path.launches[stage], x, z, source, output, units, columns, 1)

        work()
        times.append(float(np.median(seconds(work, 3))) / batch * 1e6)
        source = output
    return times


def resources(backend: CudaBackend, path: FusedPath) -> list[dict[str, int]]:
    found = []
    for stage_plan in path.plans:
        kernel_function = backend.machines[0]._compile("stage.cu", cuda.machine.stage_options(stage_plan), "stage")
        found.append(
            {
                "registers": kernel_function.num_regs,
                "local_bytes": kernel_function.local_size_bytes,
                "threads": stage_plan.threads,
                "shared_bytes": 4 * stage_plan.shared_floats,
                "tensor_cores": stage_plan.patch_steps > 0,
            }
        )
    return found


def same_bits(backend: CudaBackend, program: Program, left: Any, right: Any) -> bool:
    """Whether a corner of the matrix has the same bits in other batches, tiles and orders."""
    n = min(48, len(left))
    whole = backend.block(program, left[0:n], right[0:n])
    largest = cuda.LARGEST_BATCH
    same = True
    try:
        for batch in (1000, 77):
            cuda.LARGEST_BATCH = batch
            same &= np.array_equal(whole, backend.block(program, left[0:n], right[0:n]))
    finally:
        cuda.LARGEST_BATCH = largest
    tiles = [
        np.concatenate(
            [backend.block(program, left[a : min(a + 7, n)], right[b : min(b + 11, n)]) for b in range(0, n, 11)],
            axis=1,
        )
        for a in range(0, n, 7)
    ]
    wide = np.concatenate(tiles)[:n, :n]
    return bool(same and np.array_equal(whole, wide))


def run_case(architecture: str, name: str, images: np.ndarray, repeats: int) -> dict[str, Any]:
    program = compile_program(Architecture.parse(architecture), images.shape[1:-1], images.shape[-1])
    backend = CudaBackend()
    started = time.perf_counter()
    path = backend._path(0, program)
    build = time.perf_counter() - started
    if not isinstance(path, FusedPath):
        return {"path": backend.describe(program)}
    side = min(SIDE, len(images) // 2)
    started = time.perf_counter()
    left, right = backend.prepare(program, images[:side]), backend.prepare(program, images[side : 2 * side])
    prepared = time.perf_counter() - started
    backend.block(program, left[0:64], right[0:64])
    values = backend.block(program, left, right)
    repeat = np.array(seconds(lambda: backend.block(program, left, right), repeats))
    rate = side * side / float(np.median(repeat))
    result: dict[str, Any] = {
        "architecture": Architecture.parse(architecture).short_name,
        "images": name,
        "build_seconds": build,
        "prepare_microseconds_per_image": prepared / (2 * side) * 1e6,
        "pairs": side * side,
        "pairs_per_second": rate,
        "all_rates": [side * side / float(t) for t in repeat],
        "elements_per_second": rate * program.elements,
        "stage_microseconds": stage_times(path, left.copies[0], right.copies[0], side * side),
        "nan": int(np.isnan(values).sum()),
        "value_range": [float(values.min()), float(values.max())],
        "resources": resources(backend, path),
        "same_bits": same_bits(backend, program, left, right),
    }
    exact = CudaBackend(precision="float64")
    chosen = np.random.default_rng(3).choice(side, 15, replace=False)
    others = np.random.default_rng(4).choice(side, 15, replace=False)
    first = exact.prepare(program, images[:side][chosen])
    second = exact.prepare(program, images[side : 2 * side][others])
    reference = exact.block(program, first, second)
    found = values[np.ix_(chosen, others)]
    result["error"] = float(np.abs(found / reference - 1).max())
    result["error_of_one_minus_k"] = float(np.abs((found - reference) / (1 - reference)).max())
    result["diagonal_error"] = float(np.abs(left.diagonal / 1.0 - 1.0).max())
    return result


def check_general(images: np.ndarray) -> float:
    """The largest difference between the general path and the reference, on a few pairs."""
    program = compile_program(
        Architecture.parse("conv3 relu conv3 gaussian pool2 conv3 relu globalpool normalize relu"), (16, 16), 3
    )
    small = images[:4, 8:24, 8:24].astype(np.float64)
    exact, reference = CudaBackend(precision="float64"), ReferenceBackend()
    found = exact.block(program, exact.prepare(program, small[:2]), exact.prepare(program, small[2:]))
    wanted = reference.block(program, reference.prepare(program, small[:2]), reference.prepare(program, small[2:]))
    return float(np.abs(found / wanted - 1).max())


def check_symmetric(images: np.ndarray, count: int) -> dict[str, Any]:
    """A symmetric matrix through the public interface; images beyond those given are the same, shifted."""
    k = kernel("myrtle10-gaussian")
    backend = CudaBackend()
    k(images[:64], backend=backend)
    shifted = [np.roll(images, shift, axis=2) for shift in range(-(-count // len(images)))]
    images = np.concatenate(shifted)[:count]
    started = time.perf_counter()
    values = k(images, backend=backend)
    elapsed = time.perf_counter() - started
    pairs = len(images) * (len(images) + 1) // 2
    return {
        "images": len(images),
        "pairs_per_second": pairs / elapsed,
        "symmetric": bool(np.array_equal(values, values.T)),
        "nan": int(np.isnan(values).sum()),
        "diagonal_is_one": bool(np.all(np.diagonal(values) == 1.0)),
    }


def build(architecture: str, shape: tuple[int, ...], tensor_cores: bool) -> None:
    """Compile a case's kernels; CuPy keeps them on disk for the process that runs them."""
    if not tensor_cores:
        leave_out_tensor_cores()
    program = compile_program(Architecture.parse(architecture), shape[:-1], shape[-1])
    CudaBackend()._path(0, program)


def build_all(cases: list[tuple[str, str]], images: dict[str, np.ndarray], tensor_cores: bool) -> float:
    """All kernels, in as many processes as there are cores to spare; seconds."""
    started = time.perf_counter()
    with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(build, architecture, images[name].shape[1:], tensor_cores) for architecture, name in cases]
        for job in jobs:
            job.exception()  # whoever needs the kernel will meet the same one
    return time.perf_counter() - started


def run_tiny(images: np.ndarray) -> None:
    """Every kernel once on little data, for compute-sanitizer."""
    for text, size in (("myrtle10-gaussian", 16), ("myrtle5", 32), ("conv5 relu pool2 conv3 relu globalpool", 8)):
        some = images[:3, :size, :size]
        values = kernel(text)(some, some[:2], backend=CudaBackend())
        print(text, size, "nan", int(np.isnan(values).sum()), flush=True)


def rival_rate(architecture: str, images: np.ndarray) -> float:
    from cuda_rival import Rival

    cupy.get_default_memory_pool().free_all_blocks()
    program = compile_program(Architecture.parse(architecture), images.shape[1:-1], images.shape[-1])
    return Rival(program).pairs_per_second(images)


def guarded(work: Any) -> Any:
    try:
        return work()
    except Exception as error:
        cupy.get_default_memory_pool().free_all_blocks()
        return {"failed": f"{type(error).__name__}: {error}"[:2000]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help="the first case only")
    parser.add_argument("--tiny", action="store_true", help="little data and no timing, for compute-sanitizer")
    parser.add_argument("--without-tensor-cores", dest="tensor_cores", action="store_false")
    parser.add_argument("--no-rival", dest="rival", action="store_false")
    parser.add_argument("--symmetric", type=int, default=10000, help="images of the symmetric matrix; 0: none")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    images = load_images(arguments.images)
    if arguments.tiny:
        run_tiny(images["cifar"])
        return
    if not arguments.tensor_cores:
        leave_out_tensor_cores()
    started = time.perf_counter()
    cases = CASES[:1] if arguments.quick else CASES
    report: dict[str, Any] = {
        "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "cupy": cupy.__version__,
        "nvrtc": list(cupy.cuda.nvrtc.getVersion()),
        "build_seconds": build_all(cases, images, arguments.tensor_cores),
        "ceilings": measure_ceilings(),
        "general_error": guarded(lambda: check_general(images["cifar"])),
        "cases": [],
    }
    print(report, flush=True)
    for architecture, name in cases:
        case = guarded(functools.partial(run_case, architecture, name, images[name], 3))
        if "pairs_per_second" in case:
            case["share_of_special_functions"] = case["elements_per_second"] / report["ceilings"]["special_functions"]
        report["cases"].append(case)
        print_case(case, time.perf_counter() - started)
        (arguments.output / "cuda_check.json").write_text(json.dumps(report, indent=1))
    if arguments.symmetric:
        report["symmetric"] = guarded(lambda: check_symmetric(images["cifar"], arguments.symmetric))
        print(report["symmetric"], f"[{time.perf_counter() - started:.0f} s]", flush=True)
    (arguments.output / "cuda_check.json").write_text(json.dumps(report, indent=1))
    for case, (architecture, name) in zip(report["cases"], cases, strict=True):
        if name == "cifar" and arguments.rival:
            rival = guarded(functools.partial(rival_rate, architecture, images[name]))
            case["compiled_torch_pairs_per_second"] = rival
            print(architecture, "compiled torch", rival, f"[{time.perf_counter() - started:.0f} s]", flush=True)
    (arguments.output / "cuda_check.json").write_text(json.dumps(report, indent=1))


def print_case(case: dict[str, Any], elapsed: float) -> None:
    if "pairs_per_second" not in case:
        print(case, flush=True)
        return
    stages = " ".join(f"{t:.3f}" for t in case["stage_microseconds"])
    used = " ".join(f"{r['registers']}/{r['local_bytes']}" for r in case["resources"])
    print(
        f"{case['architecture'][:24]:24s} {case['images']:6s} "
        f"{case['pairs_per_second']:12,.0f}/s ({case['elements_per_second']:.3g} el/s) us/pair {stages} | "
        f"K {case['error']:.1e} 1-K {case['error_of_one_minus_k']:.1e} nan {case['nan']} bits {case['same_bits']} "
        f"regs/local {used} prep {case['prepare_microseconds_per_image']:.0f} us [{elapsed:.0f} s]",
        flush=True,
    )


if __name__ == "__main__":
    main()
